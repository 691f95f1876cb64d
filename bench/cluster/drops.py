"""Trainings on the bed whose learning rate falls to a tenth twice: the schedule of GComp's own trainings.

    python -m bench.cluster.drops [--quick] [--model cnn] [--rate 1gbit] [--add] [--steps N] [--out DIR]

writes ``cluster-drops.csv``: for each learning rate and method, and for the whole training ("all"), the loss of the
last tenth of the steps, the median of their seconds, and means of seconds and bytes as shares of fp32's. The first
steps of a learning rate do not count: codebooks and levels still follow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from bench.cluster.rows import names_of
from bench.cluster.runs import IGNORED, RATE, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import BF16, FIXED_BF16, FP32, LOSSLESS, NEAR
from bench.markdown import records, rounded, source
from gcodec.benchmark.csv_tables import NamedRow, read_table

FILE = "cluster-drops.csv"
METHODS = (FP32, BF16, LOSSLESS, NEAR, FIXED_BF16)
DROPS, STEPS = (600, 800), 1000
SETTLED = 20  #: steps of a learning rate before they count


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each learning rate and method, the dense one first; of all steps together at the end."""
    runs, rates = result["runs"], result["learning_rates"]
    edges = [0, *result["drops"], len(rates)]
    for begin, end in [*pairwise(edges), (0, len(rates))]:
        settled = begin + min(SETTLED if end - begin < len(rates) else IGNORED, (end - begin) // 2)
        whole = end - begin == len(rates)
        dense_seconds, dense_bytes = (fmean(runs[FP32][key][settled:end]) for key in ("seconds", "sent"))
        for method, run in runs.items():
            seconds, sent = (run[key][settled:end] for key in ("seconds", "sent"))
            yield {
                **names_of(result, "seed"),
                "learning_rate": "all" if whole else f"{rates[end - 1]:g}",
                "method": method,
                "steps": end - begin,
                "loss": f"{fmean(run['losses'][end - max((end - begin) // 10, 1) : end]):.5f}",
                "step_seconds": f"{median(seconds):.5f}",
                "of_fp32": f"{fmean(seconds) / dense_seconds:.4f}",
                "nic_bytes": f"{fmean(sent):.0f}",
                "bytes_of_fp32": f"{fmean(sent) / dense_bytes:.4f}",
            }


def table(results: Path) -> list[str]:
    """Return the table of docs/experiments-gcomp.md."""
    comments, rows = read_table(results / FILE)
    lines = [
        {
            "model": row["model"],
            ">learning rate": row["learning_rate"],
            "method": row["method"],
            ">steps": row["steps"],
            ">loss": row["loss"],
            ">bytes sent, % of fp32's": f"{100 * float(row['bytes_of_fp32']):.1f}",
            ">step, ms": f"{1e3 * float(row['step_seconds']):.0f}",
            ">time, of fp32's": rounded(row["of_fp32"]),
        }
        for row in rows
    ]
    return [
        *records(lines),
        "",
        f"{rows[0]['workers']} workers at {rows[0]['rate']}; from {source(comments)}",
    ]


def _dropping(*steps: int) -> tuple[str, ...]:
    return tuple(word for step in steps for word in ("--drop", str(step)))


SWEEP = Sweep(
    "drops",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    METHODS,
    (RATE,),
    (Training("cnn", STEPS, more=_dropping(*DROPS)),),
    ("cnn",),
    Training("cnn", 12, small=True, more=_dropping(6, 9)),
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
