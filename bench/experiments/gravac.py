"""GraVAC's experiments (Tyagi and Swany, section IV), on small models among four simulated ranks.

    python -m bench.experiments.gravac [--quick] [--full] [--seeds N] [--minutes N] [--resume] [--untimed]
                                        [--processes N] [--out DIR]
    python -m bench.experiments.gravac --clock [--quick] [--out DIR]

writes ``bench/results/experiment-gravac-*.csv``: ``runs``, one row per training; ``curves``, how it went, in
``POINTS`` rows; ``factors``, how many steps were sent at which compression factor; ``early``, gradient norms of the
first quarter of dense trainings; ``costs``, processor time and traffic by factor; ``levels``, the time of two factors
tried on one gradient. Trainings run on two processes with one thread each, the most important first; those for which
there is no time in ``--minutes`` (30) are left out, and named: later seeds first. ``--full`` is all of them;
``--resume`` keeps the trainings that are there, and goes on with the others; ``--untimed`` leaves out whatever follows
from a clock, for machines that are busy; ``--clock`` trains nothing, and writes ``costs`` and ``levels``. Problems are
those of ``problems``, links those of ``traffic``: nothing here is a measurement of a network.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.experiments import gravac_costs
from bench.experiments.gravac_methods import DENSE, METHODS, jobs, window
from bench.experiments.pool import PROCESSES, Job, results_of
from bench.experiments.problems import PROBLEMS
from bench.experiments.traffic import LINK, SLOW
from bench.experiments.trial import Trial, run
from gcodec.adaptive import Accordion, GraVAC
from gcodec.benchmark.csv_tables import read_table, write_table
from gcodec.benchmark.timing import processor

NAME = "experiment-gravac-{}.csv"
SEEDS, MINUTES = 3, 30
POINTS = 25  #: rows of a curve
QUICK_STEPS = 4
QUICK = (
    DENSE,
    "GraVAC 0.7, DGC",
    "DGC 10x",
    "DGC 1000x",
    "GraVAC 0.7, RedSync, geometric",
    "GraVAC 0.7, Random-k, raw, plain",
    "Accordion, PowerSGD 4/1",
)
COLUMNS = {
    "runs": (
        "problem",
        "method",
        "seed",
        "steps",
        "values",
        "quality",
        "unit",
        "loss",
        "float_ratio",
        "byte_ratio",
        "dense_steps",
        "compress_share",
        "link_seconds_1g",
        "link_seconds_30m",
        "seconds_1g",
        "seconds_30m",
        "processor",
    ),
    "curves": (
        "problem",
        "method",
        "seed",
        "step",
        "loss",
        "quality",
        "raw",
        "fed",
        "sent",
        "factor",
        "seconds_1g",
        "seconds_30m",
    ),
    "factors": ("problem", "method", "seed", "factor", "steps", "gain", "samples_per_second_times_gain"),
    "early": ("problem", "seed", "step", "loss", "raw"),
}
Rows = dict[str, list[list[object]]]


def rows_of(job: Job, quick: bool, untimed: bool) -> Rows:
    """Train, and say how it went."""
    name, method_name, seed = job
    problem, method = PROBLEMS[name], METHODS[method_name]
    steps = QUICK_STEPS if quick else problem.steps
    controller = method.controller(steps) if method.controller else None
    if not (quick or untimed):  # loads kernels, which a first run compiles: they count as compression otherwise
        begun = 2 * window(steps) + 1  # from the second window on two factors are tried on one gradient
        run(problem, method.plan, seed, begun, controller=deepcopy(controller), link=method.link)
    trial = run(
        problem, method.plan, seed, steps, controller=controller, link=method.link, every=max(steps // POINTS, 1)
    )
    results: Rows = {
        "runs": [summary(job, trial, untimed)],
        "curves": curve(job, trial),
        "factors": factors(job, trial),
        "early": [],
    }
    if method_name == DENSE:
        results["early"] = [
            [name, seed, step + 1, f"{trial.losses[step]:.5f}", f"{trial.norms[step][0]:.6g}"]
            for step in range(steps // 4)
        ]
    return results


def summary(job: Job, trial: Trial, untimed: bool) -> list[object]:
    """Return the quality, and what was sent. ``compress_share``: processor time of compression over that of
    computation, in the same run. Seconds of a step: the problem's ``seconds``, that share of them, and the link's,
    modeled; nothing overlaps. Both are missing if ``untimed``."""
    problem, steps = PROBLEMS[job[0]], len(trial.losses)
    values = trial.sent.values // steps
    share = trial.compress_seconds / trial.train_seconds if job[1] != DENSE else 0.0
    links = [sum(traffic.seconds(link) for traffic in trial.traffic) / steps for link in (LINK, SLOW)]
    dense = sum(floats >= values for floats in trial.floats)
    seconds = ["" if untimed else f"{problem.seconds * (1 + share) + link:.6f}" for link in links]
    return [
        *job,
        steps,
        values,
        f"{trial.quality:.4f}",
        problem.unit,
        f"{np.mean(trial.losses[-steps // 10 :]):.4f}",
        f"{trial.sent.float_ratio:.3f}",
        f"{trial.sent.ratio:.3f}",
        dense,
        "" if untimed else f"{share:.3f}",
        *(f"{link:.6f}" for link in links),
        *seconds,
        processor(),
    ]


def curve(job: Job, trial: Trial) -> list[list[object]]:
    """Means between evaluations: loss, squared norms on rank 0 (``Trial.norms``), the factor that floats come to; and
    modeled seconds since the start, with the computation that the problem states and no compression."""
    problem, rows = PROBLEMS[job[0]], []
    values = trial.sent.values / len(trial.losses)
    for begin, end in pairwise([0, *trial.qualities]):
        norms = np.mean(trial.norms[begin:end], axis=0)
        seconds = [
            end * problem.seconds + sum(traffic.seconds(link) for traffic in trial.traffic[:end])
            for link in (LINK, SLOW)
        ]
        rows.append(
            [
                *job,
                end,
                f"{np.mean(trial.losses[begin:end]):.4f}",
                f"{trial.qualities[end]:.4f}",
                *(f"{norm:.6g}" for norm in norms),
                f"{values * (end - begin) / sum(trial.floats[begin:end]):.3f}",
                *(f"{total:.4f}" for total in seconds),
            ]
        )
    return rows


def factors(job: Job, trial: Trial) -> list[list[object]]:
    """Return a controller's steps by the compression factor of what was sent, with its last gain and throughput."""
    controller = trial.controller
    if isinstance(controller, GraVAC):
        counts = Counter(controller.log)
        known = sorted({*counts, *controller.gains})
        return [
            [
                *job,
                f"{factor:g}",
                counts[factor],
                f"{controller.gains.get(factor, 1.0):.4f}",
                f"{controller.throughputs[factor]:.4f}" if factor in controller.throughputs else "",
            ]
            for factor in known
        ]
    if isinstance(controller, Accordion):
        values = trial.sent.values / len(trial.losses)
        rounded = Counter(f"{values / floats:.3g}" for floats in trial.floats)
        return [[*job, factor, count, "", ""] for factor, count in sorted(rounded.items(), key=lambda item: item[0])]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.gravac", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of every training ({SEEDS})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"that all may take ({MINUTES})")
    parser.add_argument("--full", action="store_true", help="all of them, however long they take")
    parser.add_argument("--quick", action="store_true", help=f"a few trainings of {QUICK_STEPS} steps, to try it")
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--untimed", action="store_true", help="leave out what follows from a clock")
    parser.add_argument("--clock", action="store_true", help="only measure what factors cost")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"of one thread each ({PROCESSES})")
    parser.add_argument("--out", type=Path, help="where the CSV files go (default: bench/results)")
    options = parser.parse_args(arguments)
    out = options.out or (CACHE / "quick" if options.quick else RESULTS)
    every = [] if options.clock else jobs(1 if options.quick else options.seeds)
    if options.quick:
        every = [(name, method, seed) for name, method, seed in every if name == "cnn" and method in QUICK]
    tables = kept(out, every) if options.resume else {name: [] for name in COLUMNS}
    done = {job_of(row, "runs") for row in tables["runs"]}
    todo = [job for job in every if job not in done]
    minutes = float("inf") if options.full else options.minutes
    work = partial(rows_of, quick=options.quick, untimed=options.untimed)
    for _, rows in results_of(todo, work, minutes, options.processes):
        print(*rows["runs"][0], flush=True)
        for name, table in tables.items():
            table += rows[name]
            table.sort(key=lambda row: every.index(job_of(row, name)))
            write_table(out / NAME.format(name), COLUMNS[name], table)
    for name, (columns, table) in ({} if options.untimed else gravac_costs.tables(options.quick)).items():
        write_table(out / NAME.format(name), columns, table)
    return 0


def kept(folder: Path, every: Sequence[Job]) -> Rows:
    """Return the rows of these trainings that a folder has."""
    results: Rows = {}
    for name, columns in COLUMNS.items():
        path = folder / NAME.format(name)
        rows: list[list[object]] = (
            [[row[column] for column in columns] for row in read_table(path)[1]] if path.exists() else []
        )
        results[name] = [row for row in rows if job_of(row, name) in every]
    return results


def job_of(row: Sequence[object], table: str) -> Job:
    """Return the training that a row is from."""
    name, method, seed = (row[0], DENSE, row[1]) if table == "early" else row[:3]
    return str(name), str(method), int(str(seed))


if __name__ == "__main__":
    sys.exit(main())
