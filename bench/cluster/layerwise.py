"""L-GreCo beside uniform ranks of PowerSGD on a network: its Figures 3 to 6, in seconds that were measured.

    python -m bench.cluster.layerwise [--quick] [--model transformer] [--rate 100mbit] [--add] [--steps N] [--out DIR]

writes ``cluster-layerwise.csv``: whole trainings on the bed, methods in lockstep, those of
``bench.experiments.lgreco.methods`` by their names. ``loss``: of the last tenth of the steps; ``times_faster``: than
dense training, in as many steps, decisions included; ``of_uniform``: than the uniform rank; ``payload_ratio``: bytes of
gradients over payload bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

from bench.cluster.rows import names_of
from bench.cluster.runs import IGNORED, RATE, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import FP32, LAYERWISE
from bench.experiments.lgreco.methods import UNIFORM
from bench.markdown import records, rounded, source
from gcodec.benchmark.csv_tables import NamedRow, read_table

FILE = "cluster-layerwise.csv"
METHODS = (FP32, *LAYERWISE)
SLOW_RATE = "100mbit"
STEPS, QUICK_STEPS = 100, 12


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method, the dense one first."""
    runs = result["runs"]
    seconds_of = {method: sum(run["seconds"][IGNORED:]) for method, run in runs.items()}
    uniform = next(seconds for method, seconds in seconds_of.items() if method.endswith(UNIFORM))
    for method, run in runs.items():
        steps, seconds = len(run["losses"]), seconds_of[method]
        ratio = run["stats"]["compressor"]["ratio"] if run["stats"] else 1.0
        yield {
            **names_of(result, "seed"),
            "method": method,
            "steps": steps,
            "loss": f"{fmean(run['losses'][-max(steps // 10, 1) :]):.4f}",
            "seconds": f"{seconds:.3f}",
            "step_seconds": f"{median(run['seconds'][IGNORED:]):.5f}",
            "times_faster": f"{seconds_of[FP32] / seconds:.3f}",
            "of_uniform": f"{uniform / seconds:.3f}",
            "nic_bytes": f"{fmean(run['sent'][IGNORED:]):.0f}",
            "payload_ratio": f"{ratio:.2f}",
        }


def table(results: Path) -> list[str]:
    """Return the table of docs/experiments-lgreco.md."""
    comments, rows = read_table(results / FILE)
    lines = [
        {
            "model": row["model"],
            "link": row["rate"],
            "method": row["method"],
            ">steps": row["steps"],
            ">loss": row["loss"],
            ">step, ms": f"{1e3 * float(row['step_seconds']):.0f}",
            ">times as fast as dense": rounded(row["times_faster"]),
            ">as uniform": rounded(row["of_uniform"]),
            ">ratio": rounded(row["payload_ratio"]),
        }
        for row in rows
    ]
    return [*records(lines), "", f"{rows[0]['workers']} workers; from {source(comments)}"]


SWEEP = Sweep(
    "layerwise",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    METHODS,
    (SLOW_RATE, RATE),
    (Training("transformer", STEPS), Training("lstm", STEPS)),
    ("transformer",),
    Training("transformer", QUICK_STEPS, small=True),
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
