"""Steps at an accuracy: float32 and near-lossless, torch's bf16 hook and mode "bf16", each as a user has them.

    python -m bench.cluster.accuracies [--quick] [--model gpt] [--workers 2] [--rate 1gbit] [--add] [--out DIR]

writes ``cluster-accuracies.csv``: for each model and rate the median step of each method, in the same processes, and
``of_fp32`` and ``of_bf16``: the median, over blocks of ``BLOCK`` steps, of a block's median over that of the block of
the other method beside it. gcodec's hook has its bypass, whose choice is ``way``; ``SETTLE`` steps in which it has its
first trial come before all others and do not count. 7 minutes for the one model that it takes without ``--model``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from bench.cluster.bed import UNSHAPED, clean_up_when_told_to_end, obstacle
from bench.cluster.runs import Result, train
from bench.cluster.training import BF16, BUCKET_MB, BYPASS, BYPASS_BF16, FP32
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import read_table, write_table

FILE = "cluster-accuracies.csv"
METHODS = (FP32, BF16, BYPASS, BYPASS_BF16)
BLOCK, SETTLE = 6, 30  #: steps of a method in a row; and before all, of methods with a bypass
RATES = {UNSHAPED: 10, "1gbit": 8, "300mbit": 5, "100mbit": 2}  #: and how many blocks of each method count
COLUMNS = (
    "model",
    "workers",
    "rate",
    "method",
    "steps",
    "step_seconds",
    "of_fp32",
    "of_bf16",
    "nic_bytes",
    "bytes_of_fp32",
    "way",
)


def rows_of(result: Result) -> Iterator[list[object]]:
    """Yield a row for each method."""
    n_steps = len(result["runs"][FP32]["seconds"]) - BLOCK  # in the first block, buckets are rebuilt
    blocks = {method: _blocks(run["seconds"][-n_steps:]) for method, run in result["runs"].items()}
    sent = {method: fmean(run["sent"][-n_steps:]) for method, run in result["runs"].items()}
    for method, run in result["runs"].items():
        own = blocks[method]
        yield [
            result["model"],
            result["workers"],
            result["rate"],
            method,
            len(own) * BLOCK,
            f"{median(own):.5f}",
            *(f"{median(a / b for a, b in zip(own, blocks[other], strict=True)):.3f}" for other in (FP32, BF16)),
            f"{sent[method]:.0f}",
            f"{sent[method] / sent[FP32]:.3f}",
            run["stats"].get("bypass_way", ""),
        ]


def _blocks(seconds: Sequence[float]) -> list[float]:
    """Return the median of each block."""
    return [median(seconds[begin : begin + BLOCK]) for begin in range(0, len(seconds), BLOCK)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.accuracies", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=sorted(BUCKET_MB), help="of these only (gpt)")
    parser.add_argument("--rate", action="append", choices=list(RATES), help="at these only (all)")
    parser.add_argument("--workers", action="append", type=int, help="so many (2)")
    parser.add_argument("--add", action="store_true", help="keep the rows of other models, rates and workers")
    parser.add_argument("--quick", action="store_true", help="a small model without a limit")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (bench/results)")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    rates = options.rate or ([UNSHAPED] if options.quick else list(RATES))
    chosen = [
        (model, workers, rate)
        for model in options.model or ["gpt"]
        for workers in options.workers or [2]
        for rate in rates
    ]
    path = options.out / FILE
    kept = read_table(path)[1] if options.add and path.exists() else []
    rows: list[list[object]] = [
        [row[column] for column in COLUMNS]
        for row in kept
        if (row["model"], int(row["workers"]), row["rate"]) not in chosen
    ]
    for model, workers, rate in chosen:
        n_blocks = 2 if options.quick else RATES[rate]
        turns = "--settle", str(SETTLE), "--first", str(BLOCK), "--turn", str(BLOCK)
        result = train(model, rate, (1 + n_blocks) * BLOCK, 1, METHODS, options.quick, turns, workers)
        for row in rows_of(result):
            print(*row, sep=", ", flush=True)
            rows.append(row)
        write_table(path, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
