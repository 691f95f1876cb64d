"""The time of a training step with each compressor, apart from computing: GradZip's Figures 3 (a) and (b).

    python -m bench.cluster.compressed [--quick] [--model cnn] [--rate 1gbit] [--steps N] [--out DIR]

writes ``cluster-compressors.csv``: methods take turns, step by step, on the bed. ``compute_seconds``: the median step
of a run whose hook sends nothing; ``communication_seconds``: how much longer a method's step is, compressing and
waiting together, as in the paper. Ratios of low-rank methods are those of the paper's formula, for each layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean, median, quantiles

from bench.cluster.runs import IGNORED, RATE, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import COMPRESSORS, FP16, FP32, NEAR, NOTHING

FILE = "cluster-compressors.csv"
METHODS = (NOTHING, FP32, FP16, NEAR, *COMPRESSORS)
STEPS, QUICK_STEPS = 60, 12
COLUMNS = (
    "model",
    "workers",
    "rate",
    "method",
    "steps",
    "step_seconds",
    "step_seconds_q1",
    "step_seconds_q3",
    "compute_seconds",
    "communication_seconds",
    "times_faster",
    "nic_bytes",
    "byte_ratio",
)


def rows_of(result: Result) -> Iterator[list[object]]:
    """Yield a row for each method but the one that sends nothing."""
    runs = result["runs"]
    compute = median(runs[NOTHING]["seconds"][IGNORED:])
    dense, dense_bytes = median(runs[FP32]["seconds"][IGNORED:]), fmean(runs[FP32]["sent"][IGNORED:])
    for method, run in runs.items():
        if method == NOTHING:
            continue
        low, middle, high = quantiles(run["seconds"][IGNORED:], n=4)
        sent = fmean(run["sent"][IGNORED:])
        yield [
            result["model"],
            result["workers"],
            result["rate"],
            method,
            len(run["seconds"]) - IGNORED,
            f"{middle:.5f}",
            f"{low:.5f}",
            f"{high:.5f}",
            f"{compute:.5f}",
            f"{middle - compute:.5f}",
            f"{dense / middle:.3f}",
            f"{sent:.0f}",
            f"{dense_bytes / sent:.2f}",
        ]


MODELS = ("cnn", "lstm", "transformer")
SWEEP = Sweep(
    "compressed",
    __doc__.splitlines()[0],
    FILE,
    COLUMNS,
    rows_of,
    METHODS,
    (RATE, "100mbit"),
    tuple(Training(model, STEPS) for model in MODELS),
    ("cnn",),
    Training("cnn", QUICK_STEPS, small=True),
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
