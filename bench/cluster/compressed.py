"""The time of a training step with each compressor, apart from computing: GradZip's Figures 3 (a) and (b).

    python -m bench.cluster.compressed [--quick] [--model cnn] [--rate 1gbit] [--steps N] [--out DIR]

writes ``cluster-compressors.csv``: methods take turns, step by step, on the bed. ``compute_seconds``: the median step
of a run whose hook sends nothing; ``communication_seconds``: how much longer a method's step is, compressing and
waiting together, as in the paper. Ratios of low-rank methods are those of the paper's formula, for each layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean, median

from bench.cluster.rows import names_of, quartiles
from bench.cluster.runs import IGNORED, RATE, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import COMPRESSORS, FP16, FP32, NEAR, NOTHING
from gcodec.benchmark.csv_tables import NamedRow

FILE = "cluster-compressors.csv"
METHODS = (NOTHING, FP32, FP16, NEAR, *COMPRESSORS)
STEPS, QUICK_STEPS = 60, 12


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method but the one that sends nothing."""
    runs = result["runs"]
    compute = median(runs[NOTHING]["seconds"][IGNORED:])
    dense, dense_bytes = median(runs[FP32]["seconds"][IGNORED:]), fmean(runs[FP32]["sent"][IGNORED:])
    for method, run in runs.items():
        if method == NOTHING:
            continue
        seconds, sent = run["seconds"][IGNORED:], fmean(run["sent"][IGNORED:])
        yield {
            **names_of(result),
            "method": method,
            "steps": len(seconds),
            **quartiles(seconds),
            "compute_seconds": f"{compute:.5f}",
            "communication_seconds": f"{median(seconds) - compute:.5f}",
            "times_faster": f"{dense / median(seconds):.3f}",
            "nic_bytes": f"{sent:.0f}",
            "byte_ratio": f"{dense_bytes / sent:.2f}",
        }


MODELS = ("cnn", "lstm", "transformer")
SWEEP = Sweep(
    "compressed",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    METHODS,
    (RATE, "100mbit"),
    tuple(Training(model, STEPS) for model in MODELS),
    ("cnn",),
    Training("cnn", QUICK_STEPS, small=True),
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
