"""What a step of training takes with each compressor, apart from computing: GradZip's Figures 3 (a) and (b).

    python -m bench.cluster.compressed [--quick] [--model cnn] [--rate 1gbit] [--steps N] [--out DIR]

writes ``cluster-compressors.csv``: methods take turns, step by step, on the bed. ``compute_seconds``: the median step
of a run whose hook sends nothing; ``communication_seconds``: how much longer a method's step is, compressing and
waiting together, as in the paper. Ratios of low-rank methods are those of the paper's formula, for each layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, quantiles

from bench.cluster.bed import RATES, clean_up_when_told_to_end, obstacle
from bench.cluster.runs import IGNORED, RATE, Result, train
from bench.cluster.training import COMPRESSORS, FP16, FP32, NEAR, NOTHING
from bench.codec import RESULTS
from gcodec.demo.tables import write_table

FILE = "cluster-compressors.csv"
METHODS = (NOTHING, FP32, FP16, NEAR, *COMPRESSORS)
STEPS, QUICK_STEPS = 60, 12
COLUMNS = ("model", "workers", "rate", "method", "steps", "step_seconds", "step_seconds_q1", "step_seconds_q3",
           "compute_seconds", "communication_seconds", "times_faster", "nic_bytes", "byte_ratio")


def rows_of(result: Result) -> Iterator[list[object]]:
    """A row for each method but the one that sends nothing."""
    runs = result["runs"]
    compute = median(runs[NOTHING]["seconds"][IGNORED:])
    dense, dense_bytes = median(runs[FP32]["seconds"][IGNORED:]), fmean(runs[FP32]["sent"][IGNORED:])
    for method, run in runs.items():
        if method == NOTHING:
            continue
        low, middle, high = quantiles(run["seconds"][IGNORED:], n=4)
        sent = fmean(run["sent"][IGNORED:])
        yield [result["model"], result["workers"], result["rate"], method, len(run["seconds"]) - IGNORED,
               f"{middle:.5f}", f"{low:.5f}", f"{high:.5f}", f"{compute:.5f}", f"{middle - compute:.5f}",
               f"{dense / middle:.3f}", f"{sent:.0f}", f"{dense_bytes / sent:.2f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.compressed", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=("cnn", "lstm", "transformer"), help="of these only (cnn)")
    parser.add_argument("--rate", action="append", choices=RATES, help=f"at these only ({RATE} and 100mbit)")
    parser.add_argument("--steps", type=int, help=f"of each method ({STEPS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps at {RATE}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    rows: list[list[object]] = []
    for model in options.model or ["cnn"]:
        for rate in options.rate or ([RATE] if options.quick else [RATE, "100mbit"]):
            steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
            found = list(rows_of(train(model, rate, steps, 1, METHODS, options.quick)))
            for row in found:
                print(*row, sep=", ", flush=True)
            rows += found
    write_table(options.out / FILE, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
