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
from itertools import product
from pathlib import Path
from statistics import fmean, median

from bench.cluster.bed import UNSHAPED, clean_up_when_told_to_end, obstacle
from bench.cluster.rows import known, names_of, write_beside
from bench.cluster.runs import Result, train
from bench.cluster.training import BF16, BUCKET_MB, BYPASS, BYPASS_BF16, FP32
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow

FILE = "cluster-accuracies.csv"
METHODS = (FP32, BF16, BYPASS, BYPASS_BF16)
BLOCK, SETTLE = 6, 30  #: steps of a method in a row; and before all, of methods with a bypass
RATES = {UNSHAPED: 10, "1gbit": 8, "300mbit": 5, "100mbit": 2}  #: and how many blocks of each method count


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method."""
    n_steps = len(result["runs"][FP32]["seconds"]) - BLOCK  # in the first block, buckets are rebuilt
    blocks = {method: _blocks(run["seconds"][-n_steps:]) for method, run in result["runs"].items()}
    sent = {method: fmean(run["sent"][-n_steps:]) for method, run in result["runs"].items()}
    for method, run in result["runs"].items():
        own = blocks[method]
        yield {
            **names_of(result),
            "method": method,
            "steps": len(own) * BLOCK,
            "step_seconds": f"{median(own):.5f}",
            "of_fp32": f"{median(a / b for a, b in zip(own, blocks[FP32], strict=True)):.3f}",
            "of_bf16": f"{median(a / b for a, b in zip(own, blocks[BF16], strict=True)):.3f}",
            "nic_bytes": f"{sent[method]:.0f}",
            "bytes_of_fp32": f"{sent[method] / sent[FP32]:.3f}",
            "way": run["stats"].get("bypass_way", ""),
        }


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
    path, rows = options.out / FILE, list[NamedRow]()
    before = known(path) if options.add else []
    for model, workers, rate in product(options.model or ["gpt"], options.workers or [2], rates):
        n_blocks = 2 if options.quick else RATES[rate]
        turns = "--settle", str(SETTLE), "--first", str(BLOCK), "--turn", str(BLOCK)
        result = train(model, rate, (1 + n_blocks) * BLOCK, 1, METHODS, options.quick, turns, workers)
        for row in rows_of(result):
            print(*row.values(), sep=", ", flush=True)
            rows.append(row)
        write_beside(before, path, rows, ("model", "workers", "rate"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
