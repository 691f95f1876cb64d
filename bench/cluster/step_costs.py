"""What a step costs with every setting of docs/training/which-mode.md: processor time, and bytes on the wire.

    python -m bench.cluster.step_costs [--quick] [--rate unshaped] [--steps N] [--out DIR]

writes ``cluster-step-costs.csv``: methods take turns, step by step, on the bed, without a limit and without a bypass.
``processor_seconds``: the median step's, of all threads of a rank, Gloo's among them; other programs on the machine
hardly change it. ``step_seconds`` is the clock's. From the first and from ``nic_bytes``, ``bench.experiments.accuracy``
models steps on links.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean, median

from bench.cluster.bed import UNSHAPED
from bench.cluster.rows import names_of
from bench.cluster.runs import IGNORED, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import BF16, FIXED_BF16, FP32, LOSSLESS, NEAR, NOTHING, PLAIN_COMPRESSORS
from gcodec.benchmark.csv_tables import NamedRow

FILE = "cluster-step-costs.csv"
METHODS = (NOTHING, FP32, BF16, LOSSLESS, NEAR, FIXED_BF16, *PLAIN_COMPRESSORS)
STEPS, QUICK_STEPS = 40, 8


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method."""
    runs = result["runs"]
    sent = {method: fmean(run["sent"][IGNORED:]) for method, run in runs.items()}
    for method, run in runs.items():
        yield {
            **names_of(result),
            "method": method,
            "steps": len(run["seconds"]) - IGNORED,
            "processor_seconds": f"{median(run['processor'][IGNORED:]):.5f}",
            "step_seconds": f"{median(run['seconds'][IGNORED:]):.5f}",
            "nic_bytes": f"{sent[method]:.0f}",
            "bytes_of_fp32": f"{sent[method] / sent[FP32]:.4f}" if sent[FP32] else "",
        }


SWEEP = Sweep(
    "step_costs",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    METHODS,
    (UNSHAPED,),
    (Training("gpt", STEPS), Training("lstm", STEPS), Training("transformer", STEPS), Training("cnn", STEPS)),
    ("gpt",),
    Training("gpt", QUICK_STEPS, small=True),
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
