"""The tables of docs/experiments-lgreco.md, from the CSV files: ``bench.report`` puts them in their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import harmonic_mean, mean, stdev

from bench.experiments.lgreco import tables
from bench.experiments.lgreco.methods import DENSE, LGRECO, MATCHED, RANKS, SPARSE, UNIFORM
from bench.experiments.lgreco.problems import PROBLEMS
from bench.markdown import markdown, records, source
from gcodec.benchmark.csv_tables import read_table

Row = dict[str, str]
QUALITY = "quality, mean ± deviation over seeds"


def unique(rows: Sequence[Row], *keys: str) -> list[tuple[str, ...]]:
    """Return what rows have in some columns, each once, in order."""
    return list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))


def number(rows: Sequence[Row], column: str) -> float:
    """Return the mean of a column; NaN where it is empty."""
    return mean(float(row[column] or "nan") for row in rows)


def ratio(rows: Sequence[Row], column: str = "byte_ratio") -> float:
    """Return the ratio of all trainings together, in which each had as much to send: the harmonic mean."""
    return harmonic_mean([float(row[column]) for row in rows])


def quality(rows: Sequence[Row]) -> str:
    """Return mean and deviation over seeds."""
    values = [float(row["quality"]) for row in rows]
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def paired(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """Return mean and deviation of the differences in quality between trainings of the same seeds."""
    known = {row["seed"]: float(row["quality"]) for row in others}
    results = [float(row["quality"]) - known[row["seed"]] for row in rows if row["seed"] in known]
    spread = f" ± {stdev(results):.3f}" if len(results) > 1 and any(results) else ""
    return f"{mean(results):+.3f}{spread}" if results else ""


def pairs(results: Path) -> list[str]:
    """Return the table of uniform settings and L-GreCo, by family (Tables 2 and 3)."""
    comments, rows = read_table(results / tables.TRAININGS)
    rows = [row for row in rows if row["part"] == "pairs"]
    lines: list[str] = []
    for (problem,) in unique(rows, "problem"):
        table, selected = list[list[str]](), [row for row in rows if row["problem"] == problem]
        dense = [row for row in selected if row["method"] == DENSE]
        for family, method in unique(selected, "family", "method"):
            own, uniform, matched = (
                [row for row in selected if (row["family"], row["method"]) == (family, one)]
                for one in (method, UNIFORM, MATCHED)
            )
            over = ["", "", ""]
            if method == LGRECO:
                gains = (ratio(own, column) / ratio(uniform, column) for column in ("byte_ratio", "adapted_ratio"))
                worst = max(float(row["worst_error_of_uniform"]) for row in own)
                over = [*(f"{gain:.2f}" for gain in gains), f"{worst:.4f}"]
            table.append(
                [
                    family or method,
                    method if family else "",
                    str(len(own)),
                    quality(own),
                    paired(own, dense),
                    *(paired(own, other) if method == LGRECO else "" for other in (uniform, matched)),
                    f"{ratio(own):.2f}",
                    *over,
                    f"{number(own, 'lost_share'):.3f}",
                ]
            )
        columns = [
            "family",
            "settings",
            ">seeds",
            f">{QUALITY}",
            ">to dense",
            ">to uniform",
            ">to uniform of its bytes",
            ">ratio",
            ">ratio / uniform",
            ">the same, from the first decision on",
            ">largest error / uniform",
            ">really lost, share of squares",
        ]
        lines += [f"**{problem}**, {PROBLEMS[problem].unit}:", "", *markdown(columns, table), ""]
    return [*lines, f"From {source(comments)}"]


def rivals(results: Path) -> list[str]:
    """Return the table of other adaptive methods (Tables 4 and 6), and of what the paper leaves to future work."""
    comments, rows = read_table(results / tables.TRAININGS)
    _, modeled = read_table(results / tables.THROUGHPUT)
    lines: list[str] = []
    for part, family in (("rivals", RANKS), ("sparse rivals", SPARSE)):
        for (problem,) in unique([row for row in rows if row["part"] == part], "problem"):
            selected = [
                row
                for row in rows
                if (row["problem"], row["family"]) == (problem, family)
                and row["part"] in ("pairs", part, "future work")
            ]
            speeds = {
                row["method"]: f"{float(row['speedup']):.2f}"
                for row in modeled
                if (row["problem"], row["family"], row["gbps"], row["workers"]) == (problem, family, "0.1", "8")
            }
            dense = [row for row in rows if (row["problem"], row["method"]) == (problem, DENSE)]
            table = []
            for (method,) in unique(selected, "method"):
                own = [row for row in selected if row["method"] == method]
                error = f"{number(own, 'median_error_of_uniform'):.3f}" if own[0]["median_error_of_uniform"] else ""
                table.append(
                    [
                        method,
                        str(len(own)),
                        quality(own),
                        paired(own, dense),
                        f"{ratio(own):.2f}",
                        f"{ratio(own, 'float_ratio'):.2f}",
                        error,
                        *([speeds.get(method, "")] if speeds else []),
                    ]
                )
            columns = [
                "method",
                ">seeds",
                f">{QUALITY}",
                ">to dense",
                ">ratio",
                ">float ratio",
                ">error / uniform, median",
                *([">modeled speed at 0.1 Gb/s, 8 workers, of dense"] if speeds else []),
            ]
            lines += [f"**{problem}, {family}**, {PROBLEMS[problem].unit}:", "", *markdown(columns, table), ""]
    return [*lines, f"From {source(comments)}"]


def sweep(results: Path) -> list[str]:
    """Return quality and ratio by density and by bits (Figure 2), and variants of L-GreCo; of the seeds that all have
    that are compared."""
    comments, rows = read_table(results / tables.TRAININGS)
    parts = ("pairs", "sweep", "bit sweep", "variants", "depth")
    table = list[dict[str, str]]()
    for problem, family in sorted(unique(rows, "problem", "family"), key=lambda pair: pair[1], reverse=True):
        selected = [
            row for row in rows if (row["problem"], row["family"]) == (problem, family) and row["part"] in parts
        ]
        dense = [row for row in rows if (row["problem"], row["method"]) == (problem, DENSE)]
        if all(row["part"] == "pairs" for row in selected):
            continue
        for (method,) in unique(selected := in_common(selected), "method"):
            own, control = (
                [row for row in selected if row["method"] == one]
                for one in (method, MATCHED + method.removeprefix(LGRECO))
            )
            worst = [row["worst_error_of_uniform"] for row in own]
            table.append(
                {
                    "problem": problem,
                    "family": family,
                    "settings": method,
                    ">seeds": str(len(own)),
                    ">quality": f"{number(own, 'quality'):.3f}",
                    ">to dense": paired(own, dense),
                    ">to uniform of its bytes": paired(own, control) if method.startswith(LGRECO) else "",
                    ">ratio": f"{ratio(own):.2f}",
                    ">largest error / uniform": f"{max(map(float, worst)):.4f}" if all(worst) else "",
                    ">really lost, share of squares": f"{number(own, 'lost_share'):.3f}",
                }
            )
    return [*records(table), "", f"From {source(comments)}"]


def in_common(rows: Sequence[Row]) -> list[Row]:
    """Those of the seeds that all methods have."""
    seeds = [{row["seed"] for row in rows if row["method"] == method} for (method,) in unique(rows, "method")]
    return [row for row in rows if all(row["seed"] in selected for selected in seeds)]


def overhead(results: Path) -> list[str]:
    """Return the table of what decisions take (Table 1)."""
    comments, rows = read_table(results / tables.OVERHEAD)
    table = [
        {
            "problem": row["problem"],
            "family": row["family"],
            ">tensors": row["tensors"],
            ">settings in all": row["settings"],
            ">errors, ms": f"{1000 * float(row['error_seconds']):.2f}",
            ">dynamic programming, ms": f"{1000 * float(row['choose_seconds']):.2f}",
            ">a step, ms": f"{1000 * float(row['step_seconds']):.2f}",
            ">errors, %": f"{float(row['error_percent']):.2f}",
            ">dynamic programming, %": f"{float(row['choose_percent']):.2f}",
        }
        for row in rows
    ]
    return [
        *records(table),
        "",
        f"Processor time of one rank; percent of {rows[0]['interval_steps']} steps; from {source(comments)}",
    ]


def low_rank(results: Path) -> list[str]:
    """Errors by power iteration (appendix C)."""
    comments, rows = read_table(results / tables.LOW_RANK)
    keys = (
        "mean_excess_percent",
        "worst_excess_percent",
        "seconds_of_svd",
        "same_ranks",
        "bytes_of_svds",
        "error_of_uniform",
    )
    table = [[row["problem"], row["power_steps"], *(f"{float(row[key] or 'nan'):.3f}" for key in keys)] for row in rows]
    columns = [
        "problem",
        ">steps",
        ">error over the least, mean %",
        ">worst %",
        ">time / SVD's",
        ">share of ranks chosen alike",
        ">bytes / SVD's",
        ">true error / uniform",
    ]
    return [*markdown(columns, table), "", f"Processor time; from {source(comments)}"]


def replay(results: Path) -> list[str]:
    """Say whether trainings made once more decided alike, and ranks among each other."""
    _, rows = read_table(results / tables.TRAININGS)
    keys = ("problem", "family", "method", "seed")
    again = [row for row in rows if row["part"] == "replay"]
    first = {tuple(row[key] for key in keys): row for row in rows if row["part"] == "pairs"}
    both = [(row, first[tuple(row[key] for key in keys)]) for row in again]
    same = sum(all(item[what] == other[what] for what in ("decisions", "quality", "loss")) for item, other in both)
    alike = sum(row["same_on_ranks"] == "1" for row in rows)
    return [
        f"{same} of {len(again)} training runs made twice decided the same at every step and came to the same",
        "quality and loss, to the last digit written.",
        f"In {alike} of {len(rows)} training runs all ranks had the same settings at every step.",
    ]


#: Name of a marked place to what fills it, and the file in bench/results that this reads.
PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "lgreco-pairs": (pairs, tables.TRAININGS),
    "lgreco-replay": (replay, tables.TRAININGS),
    "lgreco-rivals": (rivals, tables.TRAININGS),
    "lgreco-sweep": (sweep, tables.TRAININGS),
    "lgreco-overhead": (overhead, tables.OVERHEAD),
    "lgreco-lowrank": (low_rank, tables.LOW_RANK),
}
