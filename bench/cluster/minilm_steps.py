"""Steps of MiniLM's fine-tuning with two real workers over links of limited rate: GComp's Figure 15.

    python -m bench.cluster.minilm_steps [--quick] [--rate 1gbit] [--add] [--steps N] [--out DIR]

writes ``cluster-minilm.csv``: for each rate and method the quartiles of a step's seconds, and means of the processor's
seconds and of the bytes that a worker sends. Methods take turns, step by step, in the same processes, each with a model
of its own; none has a bypass. The first steps, in which the learning rate rises and codebooks are made, do not count.
The link of the highest rate is as fast as two cores make it: ``line_share`` tells how much of a rate a step's bytes
would fill if they took all of its time. 10 minutes, and 6 GB of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from bench.cluster.bed import bits_per_second
from bench.cluster.minilm import NAME, fetched
from bench.cluster.rows import names_of, quartiles
from bench.cluster.runs import IGNORED, Result
from bench.cluster.sweep import Sweep, Training
from bench.cluster.training import BF16, FIXED_BF16, FP32, LOSSLESS, NEAR
from bench.markdown import records, rounded, source
from gcodec.benchmark.csv_tables import NamedRow, read_table

FILE = "cluster-minilm.csv"
METHODS = (FP32, BF16, LOSSLESS, NEAR, FIXED_BF16)
RATES = ("10gbit", "1gbit", "300mbit", "100mbit")
STEPS = 8  #: that count


def rows_of(result: Result) -> Iterator[NamedRow]:
    """Yield a row for each method."""
    runs = {
        method: {key: run[key][IGNORED:] for key in ("seconds", "sent", "processor")}
        for method, run in result["runs"].items()
    }
    dense = runs[FP32]
    for method, run in runs.items():
        seconds, sent = run["seconds"], fmean(run["sent"])
        yield {
            **names_of(result, "batch"),
            "method": method,
            "steps": len(seconds),
            **quartiles(seconds, 4),
            "of_fp32": f"{_beside(seconds, runs[FP32]['seconds']):.3f}",
            "of_bf16": f"{_beside(seconds, runs[BF16]['seconds']):.3f}",
            "processor_seconds": f"{median(run['processor']):.4f}",
            "nic_bytes": f"{sent:.0f}",
            "bytes_of_fp32": f"{sent / fmean(dense['sent']):.4f}",
            "line_share": f"{8 * sent / median(seconds) / bits_per_second(result['rate']):.4f}",
        }


def _beside(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of each step's time over that of another method's step beside it."""
    return median(own / other for own, other in zip(seconds, others, strict=True))


def table(results: Path) -> list[str]:
    """Return the table of docs/experiments-gcomp.md."""
    comments, rows = read_table(results / FILE)
    lines = [
        {
            "link": row["rate"],
            "method": row["method"],
            ">step, ms": f"{1e3 * float(row['step_seconds']):.0f}",
            ">first quartile": f"{1e3 * float(row['step_seconds_q1']):.0f}",
            ">third": f"{1e3 * float(row['step_seconds_q3']):.0f}",
            ">time, of fp32's": rounded(row["of_fp32"]),
            ">of the bf16 hook's": rounded(row["of_bf16"]),
            ">processor, ms": f"{1e3 * float(row['processor_seconds']):.0f}",
            ">MB sent": f"{float(row['nic_bytes']) / 1e6:.1f}",
            ">bytes, % of fp32's": f"{100 * float(row['bytes_of_fp32']):.1f}",
        }
        for row in rows
    ]
    return [
        *records(lines),
        "",
        f"{rows[0]['workers']} workers with {rows[0]['batch']} sentences each, {rows[0]['steps']} steps of each method "
        f"in turns; from {source(comments)}",
    ]


SWEEP = Sweep(
    "minilm_steps",
    __doc__.splitlines()[0],
    FILE,
    rows_of,
    METHODS,
    RATES,
    (Training(NAME, STEPS + IGNORED),),
    (NAME,),
    Training(NAME, 2 + IGNORED, small=True),
    fetched,
)


if __name__ == "__main__":
    sys.exit(SWEEP.main())
