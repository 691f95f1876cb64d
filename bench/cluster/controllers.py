"""GraVAC beside static factors and Accordion on a network: its Table 2, in seconds that were measured.

    python -m bench.cluster.controllers [--quick] [--model lstm] [--rate 1gbit] [--steps N] [--out DIR]

writes ``cluster-controllers.csv``: whole trainings on the bed, methods in lockstep, those of
``bench.experiments.gravac_methods`` by their names. A controller hears the seconds of its own steps. ``loss``: of the
last tenth of the steps; ``times_faster``: than dense training, in as many steps; ``float_ratio``: values over floats
sent, as the paper counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from bench.cluster.bed import RATES, clean_up_when_told_to_end, obstacle
from bench.cluster.runs import IGNORED, RATE, Result, train
from bench.cluster.training import FP32
from bench.codec import RESULTS
from gcodec.demo.tables import write_table

FILE = "cluster-controllers.csv"
METHODS = (FP32, "Top-k 10x", "DGC 10x", "DGC 1000x", "GraVAC 0.7, DGC", "GraVAC 0.7, DGC, settling",
           "GraVAC 0.7, RedSync, geometric", "Accordion, PowerSGD 4/1")
SLOW_RATE = "100mbit"
STEPS, QUICK_STEPS = 150, 12
COLUMNS = ("model", "workers", "rate", "seed", "method", "steps", "loss", "seconds", "step_seconds", "times_faster",
           "nic_bytes", "byte_ratio", "float_ratio")


def rows_of(result: Result) -> Iterator[list[object]]:
    """A row for each method, the dense one first."""
    runs = result["runs"]
    dense_seconds, dense_bytes = sum(runs[FP32]["seconds"][IGNORED:]), fmean(runs[FP32]["sent"][IGNORED:])
    for method, run in runs.items():
        seconds, sent, steps = run["seconds"][IGNORED:], fmean(run["sent"][IGNORED:]), len(run["losses"])
        floats = run["stats"]["compressor"]["float_ratio"] if run["stats"] else 1.0
        yield [result["model"], result["workers"], result["rate"], result["seed"], method, steps,
               f"{fmean(run['losses'][-max(steps // 10, 1) :]):.4f}", f"{sum(seconds):.3f}", f"{median(seconds):.5f}",
               f"{dense_seconds / sum(seconds):.3f}", f"{sent:.0f}", f"{dense_bytes / sent:.2f}", f"{floats:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.controllers", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=("cnn", "lstm", "transformer"), help="of these only (lstm)")
    parser.add_argument("--rate", action="append", choices=RATES, help=f"at these only ({RATE} and {SLOW_RATE})")
    parser.add_argument("--steps", type=int, help=f"of each method ({STEPS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps of a small model at {RATE}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    rows: list[list[object]] = []
    for model in options.model or ["cnn" if options.quick else "lstm"]:
        for rate in options.rate or ([RATE] if options.quick else [RATE, SLOW_RATE]):
            steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
            found = list(rows_of(train(model, rate, steps, 1, METHODS, options.quick)))
            for row in found:
                print(*row, sep=", ", flush=True)
            rows += found
            write_table(options.out / FILE, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
