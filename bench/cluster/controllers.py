"""GraVAC beside static factors and Accordion on a network: its Table 2, in seconds that were measured.

    python -m bench.cluster.controllers [--quick] [--model lstm] [--rate 100mbit] [--add] [--steps N] [--out DIR]

writes ``cluster-controllers.csv``: whole trainings on the bed, methods in lockstep, those of
``bench.experiments.gravac_methods`` by their names. A controller hears the seconds of its own steps. ``loss``: of the
last tenth of the steps; ``times_faster``: than dense training, in as many steps; ``float_ratio``: values over floats
sent, as the paper counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean, median

from bench.cluster.rows import names_of
from bench.cluster.runs import IGNORED, RATE, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import FP32
from gcodec.benchmark.csv_tables import NamedRow

FILE = "cluster-controllers.csv"
METHODS = (
    FP32,
    "Top-k 10x",
    "DGC 10x",
    "DGC 1000x",
    "GraVAC 0.7, DGC",
    "GraVAC 0.7, DGC, settling",
    "GraVAC 0.7, RedSync, geometric",
    "Accordion, PowerSGD 4/1",
)
SLOW_RATE = "100mbit"
STEPS, QUICK_STEPS = 150, 12


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method, the dense one first."""
    runs = result["runs"]
    dense_seconds, dense_bytes = sum(runs[FP32]["seconds"][IGNORED:]), fmean(runs[FP32]["sent"][IGNORED:])
    for method, run in runs.items():
        seconds, sent, steps = run["seconds"][IGNORED:], fmean(run["sent"][IGNORED:]), len(run["losses"])
        floats = run["stats"]["compressor"]["float_ratio"] if run["stats"] else 1.0
        yield {
            **names_of(result, "seed"),
            "method": method,
            "steps": steps,
            "loss": f"{fmean(run['losses'][-max(steps // 10, 1) :]):.4f}",
            "seconds": f"{sum(seconds):.3f}",
            "step_seconds": f"{median(seconds):.5f}",
            "times_faster": f"{dense_seconds / sum(seconds):.3f}",
            "nic_bytes": f"{sent:.0f}",
            "byte_ratio": f"{dense_bytes / sent:.2f}",
            "float_ratio": f"{floats:.2f}",
        }


MODELS = ("cnn", "lstm", "transformer")
SWEEP = Sweep(
    "controllers",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    METHODS,
    (RATE, SLOW_RATE),
    tuple(Training(model, STEPS) for model in MODELS),
    ("lstm",),
    Training("cnn", QUICK_STEPS, small=True),
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
