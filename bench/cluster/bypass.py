"""The cost of hook and process group where compressing does not pay: plain DDP, and gcodec with its bypass.

    python -m bench.cluster.bypass [--quick] [--model cnn] [--rate 1gbit] [--steps N] [--out DIR]

writes ``cluster-bypass.csv``: for each model and rate the median step of each, in the same processes, and of PyTorch's
own dense hook, which tells what any hook in Python costs. The first ``FIRST`` steps of each are in a row, so that a
trial sees steps that follow each other; they do not count. Then methods take turns, step by step.
``paired``: the median of each step's time over that of the plain step beside it. ``compressed_share``: of the
all-reduces in the last step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import median

from bench.cluster.bed import UNSHAPED
from bench.cluster.minilm import NAME as MINILM
from bench.cluster.minilm import fetched
from bench.cluster.rows import names_of, quartiles
from bench.cluster.runs import Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import BYPASS, FP32, GROUP, HOOK
from gcodec.benchmark.csv_tables import NamedRow

FILE = "cluster-bypass.csv"
FIRST = 36  #: by then hook and process group have decided
RATES = (UNSHAPED, "2gbit", "1gbit", "100mbit")


def _of_batch(model: str, batch: int, steps: int) -> Training:
    """Return a training with a batch that makes a step take 50 ms or more."""
    return Training(model, steps, more=("--first", str(FIRST), "--batch", str(batch)))


TRAININGS = (
    _of_batch("cnn", 128, 160),
    _of_batch("transformer", 8, 120),
    Training(MINILM, FIRST + 32, more=("--first", str(FIRST))),
)


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method."""
    plain = result["runs"][FP32]["seconds"][FIRST:]
    for method, run in result["runs"].items():
        seconds = run["seconds"][FIRST:]
        calls, dense = (after - before for before, after in zip(*run["calls"][-2:], strict=True))
        share = f"{1 - dense / calls:.3f}" if calls else ""
        yield {
            **names_of(result, "batch"),
            "method": method,
            "steps": len(seconds),
            **quartiles(seconds),
            "of_plain": f"{median(seconds) / median(plain):.4f}",
            "paired": f"{median(own / other for own, other in zip(seconds, plain, strict=True)):.4f}",
            "compressed_share": share,
        }


SWEEP = Sweep(
    "bypass",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    (FP32, HOOK, BYPASS, GROUP),
    RATES,
    TRAININGS,
    ("cnn", "transformer", MINILM),
    _of_batch("cnn", 64, 60),
    fetched,
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
