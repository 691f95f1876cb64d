"""GradZip's experiments (Cho et al., section 3), on a small network among simulated ranks.

    python -m bench.experiments.gradzip [--quick] [--seeds N] [--steps N] [--minutes N] [--processes N] [--resume]

writes ``bench/results/experiment-gradzip.csv``: held-out accuracy of a residual network on the hard digits of
``problems``, for every method of the paper's Table 1, each from the same initial weights and with the same batches per
seed. Ranks of factors are chosen layer by layer, so that 2 m n / ((m + n) k) is the ratio asked for, at least 1;
``float_ratio`` is what was sent in all, dense vectors and small layers included. Trainings for which the minutes do not
suffice are left out, and named: later seeds first. ``--resume`` keeps the trainings that are there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import harmonic_mean

import numpy as np

from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.experiments.pool import PROCESSES, Job, fill, kept
from bench.experiments.problems import PROBLEMS
from bench.experiments.trial import run
from bench.markdown import markdown, trained_on
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.timing import processor
from gcodec.compressors import ACPSGD, Cast, Compressor, Dense, GradNA, GradZip, PowerSGD, SparCML, TopK
from gcodec.compressors.lowrank import matrix_shape
from gcodec.demo.models import DigitNet

FILE = "experiment-gradzip.csv"
COLUMNS = ("method", "variant", "seed", "steps", "accuracy", "loss", "float_ratio", "byte_ratio", "processor")
BATCH, RATE = 32, 0.05
Setting = Callable[[tuple[int, ...]], Compressor]


def of_floats(ratio: float) -> Setting:
    """Return GradNA that sends as many floats as GradZip at this ratio: of its two factors only that of rows travels,
    so k = n / ratio, rounded."""

    def setting(shape: tuple[int, ...]) -> Compressor:
        m, n = matrix_shape(shape)
        return GradNA(min(max(1, round(n / ratio)), m, n))

    return setting


def low_rank(kind: type[PowerSGD | ACPSGD], ratio: float) -> Setting:
    """Return PowerSGD or ACP-SGD that sends as many floats as GradZip at this ratio. PowerSGD sends both factors in
    every step, the other two one of them."""

    def setting(shape: tuple[int, ...]) -> Compressor:
        m, n = matrix_shape(shape)
        factors = 1 if kind is PowerSGD else 2
        return kind(max(1, round(factors * m * n / ((m + n) * ratio))))

    return setting


PAPER, FED, MOVING, MOVING_FED = "as published", "error feedback", "moving average", "moving average, error feedback"
SAME_FLOATS, SAME_FLOATS_FED = "GradZip's floats", "GradZip's floats, error feedback"
AVERAGE = 0.9  #: weight of the factor before in a moving average


def of_ratio(kind: type[GradZip], ratio: float, dtype: str | None = None, average: float = 0.0) -> Setting:
    """Return GradZip or GradNA at a ratio of the paper's: k = 2 m n / ((m + n) ratio), rounded."""

    def setting(shape: tuple[int, ...]) -> Compressor:
        m, n = matrix_shape(shape)
        return kind(max(1, round(2 * m * n / ((m + n) * ratio))), dtype=dtype, average=average)

    return setting


#: Table 1 of the paper, by its names; variants of it; and the low-rank methods that are used today, as controls.
METHODS: dict[tuple[str, str], Setting] = {
    ("Baseline-FP32", PAPER): lambda shape: Dense(),
    ("Baseline-FP16", PAPER): lambda shape: Cast("float16"),
    **{(f"GradZip-{ratio}-FP32", variant): of_ratio(GradZip, ratio) for ratio in (10, 40) for variant in (PAPER, FED)},
    **{("GradZip-50-FP16", variant): of_ratio(GradZip, 50, "float16") for variant in (PAPER, FED)},
    **{("GradZip-40-FP32", variant): of_ratio(GradZip, 40, average=AVERAGE) for variant in (MOVING, MOVING_FED)},
    **{("GradNA-10-FP32", variant): of_ratio(GradNA, 10) for variant in (PAPER, FED)},
    **{("GradNA-10-FP32", variant): of_floats(10) for variant in (SAME_FLOATS, SAME_FLOATS_FED)},
    ("SparCML-40-FP32", FED): lambda shape: SparCML(TopK(1 / 40)),
    **{
        (f"{name}-{ratio}-FP32", FED): low_rank(kind, ratio)
        for name, kind in (("PowerSGD", PowerSGD), ("ACP-SGD", ACPSGD))
        for ratio in (10, 40)
    },
}
_NAMES = {f"{method}, {variant}": (method, variant) for method, variant in METHODS}


def trained(job: Job, steps: int, width: int) -> list[object]:
    """Return the accuracy on held-out images, mean loss of the last tenth of the steps, and the two ratios."""
    method, variant = _NAMES[job[1]]
    problem = replace(PROBLEMS["cnn"], model=lambda: DigitNet(width=width), rate=RATE, batch=BATCH)
    plan = CompressionPlan(Dense(), ErrorFeedback() if FED in variant else None)
    trial = run(problem, plan, job[2], steps, lambda name, shape: METHODS[method, variant](tuple(shape)))
    return [
        method,
        variant,
        job[2],
        steps,
        f"{trial.quality / 100:.4f}",
        f"{np.mean(trial.losses[-max(steps // 10, 1) :]):.4f}",
        f"{trial.sent.float_ratio:.2f}",
        f"{trial.sent.ratio:.2f}",
        processor(),
    ]


def table(results: Path) -> list[str]:
    """Means over the seeds, and accuracy less that of the fp32 run of the same seed."""
    comments, rows = read_table(results / FILE)
    dense = {row["seed"]: float(row["accuracy"]) for row in rows if row["method"] == "Baseline-FP32"}
    lines = []
    for method, variant in METHODS:
        selected = [row for row in rows if (row["method"], row["variant"]) == (method, variant)]
        if selected:
            less = [100 * (float(row["accuracy"]) - dense[row["seed"]]) for row in selected if row["seed"] in dense]
            lines.append(
                [
                    method,
                    variant,
                    str(len(selected)),
                    f"{_mean(selected, 'accuracy', 100):.1f}",
                    f"{min(less):+.1f} ... {max(less):+.1f}" if less else "",
                    f"{_mean(selected, 'loss'):.3f}",
                    *(
                        f"{harmonic_mean([float(row[key]) for row in selected]):.1f}"
                        for key in ("float_ratio", "byte_ratio")
                    ),
                ]
            )
    columns = ["method", "variant", ">seeds", ">accuracy, %", ">minus fp32", ">loss", ">floats", ">bytes"]
    return [*markdown(columns, lines), "", trained_on(comments, rows)]


def _mean(rows: Sequence[dict[str, str]], name: str, scale: float = 1.0) -> float:
    return scale * float(np.mean([float(row[name]) for row in rows]))


PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {"gradzip-table": (table, FILE)}


def job_of_variant(row: Mapping[str, str]) -> Job:
    """Return the job of a table's row: its method is that of a variant."""
    return "cnn", f"{row['method']}, {row['variant']}", int(row["seed"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.gradzip", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of training (300)")
    parser.add_argument("--minutes", type=float, default=18, help="after which no training begins (18)")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"of one thread each ({PROCESSES})")
    parser.add_argument("--quick", action="store_true", help="1 seed, 5 steps, a narrow network")
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--out", type=Path, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    seeds, steps, width = (1, 5, 16) if options.quick else (options.seeds, options.steps, 32)
    path = (options.out or (CACHE / "quick" if options.quick else RESULTS)) / FILE
    every = [("cnn", name, seed) for seed in range(seeds) for name in _NAMES]
    rows = kept(path, every, steps, job_of_variant) if options.resume else {}
    work = partial(trained, steps=steps, width=width)
    fill(path, COLUMNS, every, rows, work, options.minutes, options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
