"""The tables of GraVAC's experiments in docs/experiments.md, from their CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import harmonic_mean

import numpy as np

from bench.experiments.gravac_methods import DENSE, TABLE_2, UNFED
from bench.experiments.gravac_pictures import FILES, Row
from bench.experiments.problems import PROBLEMS
from bench.markdown import markdown, source, trained_on
from gcodec.benchmark.csv_tables import read_table

RUNS = FILES["runs"]
BASE = "Top-k 10x"  #: of speedups, as in the paper
RANDOM_K = (
    "Random-k 10x",
    UNFED,
    *(f"GraVAC 0.7, Random-k, {ways}" for ways in ("raw, plain", "fed, plain", "raw, squared", "fed, squared")),
    "Accordion, Random-k 1.5x/1000x",
)
ACCORDION = ("GraVAC 0.7, DGC", "GraVAC 0.7, Top-k", "Accordion, PowerSGD 4/1", "Accordion, Top-k 10x/1000x")
GAINS = (
    "GraVAC 0.7, DGC",
    "GraVAC 0.7, DGC, raw",
    "GraVAC 0.7, DGC, plain",
    "GraVAC 0.9, DGC",
    "GraVAC 0.9, DGC, raw",
    "GraVAC 0.9, DGC, plain",
    "GraVAC 0.7, DGC, settling",
    "GraVAC 0.7, DGC, 1 Gb/s",
    "GraVAC 0.7, RedSync, geometric",
)
COLUMNS = [
    "problem",
    "method",
    ">seeds",
    ">quality",
    ">minus dense",
    ">floats",
    ">bytes",
    ">dense steps",
    ">speed without compression's time, 1 Gb/s",
    ">30 Mb/s",
]
LINKS = ("link_seconds_1g", "link_seconds_30m")


def table_2(results: Path) -> list[str]:
    """Return the table of GraVAC beside static factors."""
    return _table(results, TABLE_2)


def random_k(results: Path) -> list[str]:
    """Return the table of what each way makes of a choice at random."""
    return _table(results, (DENSE, *RANDOM_K))


def accordion(results: Path) -> list[str]:
    """Return the table of GraVAC beside Accordion."""
    return _table(results, (DENSE, *ACCORDION))


def gains(results: Path) -> list[str]:
    """Return the table of denominators, metrics and policies."""
    return _table(results, (DENSE, *GAINS))


def _table(results: Path, methods: Sequence[str]) -> list[str]:
    """Rows of these methods, for problems that have more of them than the dense row and one other."""
    comments, rows = read_table(results / RUNS)
    table = []
    for problem in PROBLEMS:
        outcomes = {
            method: [row for row in rows if (row["problem"], row["method"]) == (problem, method)] for method in methods
        }
        outcomes = {method: selected for method, selected in outcomes.items() if selected}
        if DENSE in outcomes and len(outcomes) > 2:
            base = [row for row in rows if (row["problem"], row["method"]) == (problem, BASE)]
            table += [
                [problem, method, *_cells(selected, outcomes[DENSE], base)] for method, selected in outcomes.items()
            ]
    shown = [row for row in rows if row["method"] in methods]
    return [*markdown(COLUMNS, table), "", trained_on(comments, shown)]


def _cells(some: Sequence[Row], dense: Sequence[Row], base: Sequence[Row]) -> list[str]:
    """Means over seeds; differences from the dense run of the same seed. Speeds are those of the model alone: of the
    computation that the problem states, and the traffic."""
    of_seed = {row["seed"]: float(row["quality"]) for row in dense}
    lost = [float(row["quality"]) - of_seed[row["seed"]] for row in some if row["seed"] in of_seed]
    unit = PROBLEMS[some[0]["problem"]].unit
    digits = 1 if unit.startswith("%") else 3
    spread = f" ± {np.std(lost, ddof=1):.{digits}f}" if len(lost) > 1 else ""
    dense_steps = 100 * _mean(some, "dense_steps") / _mean(some, "steps")
    compute = PROBLEMS[some[0]["problem"]].seconds
    speedups = [f"{(compute + _mean(base, key)) / (compute + _mean(some, key)):.2f}" if base else "" for key in LINKS]
    return [
        str(len(some)),
        f"{_mean(some, 'quality'):.{digits}f} {unit}",
        f"{np.mean(lost):+.{digits}f}{spread}",
        *(f"{_ratio(some, key):.1f}×" for key in ("float_ratio", "byte_ratio")),
        f"{dense_steps:.0f} %",
        *speedups,
    ]


def _mean(rows: Sequence[Row], key: str) -> float:
    return float(np.mean([float(row[key]) for row in rows]))


def _ratio(rows: Sequence[Row], key: str) -> float:
    """Return the ratio of all trainings together, in which each had as much to send: the harmonic mean."""
    return harmonic_mean([float(row[key]) for row in rows])


def levels(results: Path) -> list[str]:
    """Return the table of two factors tried on one gradient."""
    comments, rows = read_table(results / FILES["levels"])
    table = [
        [
            row["data"],
            row["values"],
            row["tensors"],
            row["method"],
            f"{float(row['speedup']):.2f}×",
            f"{float(row['speedup_q1']):.2f} ... {float(row['speedup_q3']):.2f}",
        ]
        for row in rows
    ]
    return [
        *markdown(["gradient", ">values", ">tensors", "method", ">speedup", ">quartiles"], table),
        "",
        f"Ratios of processor times; from {source(comments)}",
    ]


def reached(results: Path) -> list[str]:
    """Steps by the factor that GraVAC sent."""
    comments, rows = read_table(results / FILES["factors"])
    table = []
    for problem, method in dict.fromkeys((row["problem"], row["method"]) for row in rows):
        selected = [row for row in rows if (row["problem"], row["method"], row["seed"]) == (problem, method, "0")]
        if selected and method.startswith("GraVAC"):
            sent = ", ".join(f"{row['factor']}×: {row['steps']}" for row in selected if int(row["steps"]))
            gain = ", ".join(
                f"{row['factor']}×: {float(row['gain']):.2f}" for row in selected if float(row["factor"]) > 1
            )
            table.append([problem, method, sent, gain])
    return [
        *markdown(["problem", "method", "steps by factor", "last gain by factor"], table),
        "",
        f"First seed; from {source(comments)}",
    ]


#: Name of a marked place to what fills it, and the file that this reads.
PLACES = {
    "gravac-table-2": (table_2, RUNS),
    "gravac-random-k": (random_k, RUNS),
    "gravac-accordion": (accordion, RUNS),
    "gravac-gains": (gains, RUNS),
    "gravac-levels": (levels, FILES["levels"]),
    "gravac-factors": (reached, FILES["factors"]),
}
