"""What hook and process group cost where compressing does not pay: plain DDP, and gcodec with its bypass.

    python -m bench.cluster.bypass [--quick] [--out DIR]

writes ``cluster-bypass.csv``: for each model and rate the median step of each, in the same processes, and of PyTorch's
own dense hook, which tells what any hook in Python costs. The first ``FIRST`` steps of each are in a row, so that a
trial sees steps that follow each other; they do not count. Then methods take turns, step by step.
``paired``: the median of each step's time over that of the plain step beside it. ``compressed_share``: of the
all-reduces in the last step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from bench.cluster.bed import UNSHAPED, clean_up_when_told_to_end, obstacle
from bench.cluster.runs import Result, train
from bench.cluster.training import BYPASS, FP32, GROUP, HOOK
from bench.codec import RESULTS
from gcodec.demo.tables import write_table

FILE = "cluster-bypass.csv"
FIRST = 36  #: by then hook and process group have decided
RATES = (UNSHAPED, "2gbit", "1gbit", "100mbit")
COLUMNS = ("model", "workers", "rate", "batch", "method", "steps", "step_seconds", "step_seconds_q1",
           "step_seconds_q3", "of_plain", "paired", "compressed_share")


@dataclass(frozen=True)
class Plan:
    """A model, and a batch that makes a step take 50 ms or more."""

    model: str
    batch: int
    steps: int


PLANS = (Plan("cnn", 128, 160), Plan("transformer", 8, 120))
QUICK_PLANS = (Plan("cnn", 64, 60),)


def rows_of(result: Result) -> Iterator[list[object]]:
    """A row for each method."""
    plain = result["runs"][FP32]["seconds"][FIRST:]
    for method, run in result["runs"].items():
        seconds = run["seconds"][FIRST:]
        low, middle, high = quantiles(seconds, n=4)
        calls, dense = (after - before for before, after in zip(*run["calls"][-2:], strict=True))
        share = f"{1 - dense / calls:.3f}" if calls else ""
        yield [result["model"], result["workers"], result["rate"], result["batch"], method, len(seconds),
               f"{middle:.5f}", f"{low:.5f}", f"{high:.5f}", f"{middle / median(plain):.4f}",
               f"{median(own / other for own, other in zip(seconds, plain, strict=True)):.4f}", share]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.bypass", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="one model, unshaped")
    parser.add_argument("--model", action="append", help="of these only")
    parser.add_argument("--rate", action="append", help="at these only (" + ", ".join(RATES) + ")")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    rows: list[list[object]] = []
    for plan in QUICK_PLANS if options.quick else PLANS:
        if plan.model not in (options.model or [plan.model]):
            continue
        for rate in options.rate or (RATES[:1] if options.quick else RATES):
            more = ["--first", str(FIRST), "--batch", str(plan.batch)]
            found = list(rows_of(train(plan.model, rate, plan.steps, 1, (FP32, HOOK, BYPASS, GROUP), more=more)))
            for row in found:
                print(*row, sep=", ", flush=True)
            rows += found
    write_table(options.out / FILE, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
