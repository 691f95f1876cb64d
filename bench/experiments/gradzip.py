"""GradZip's experiments (Cho et al., section 3), on a small network among simulated ranks.

    python -m bench.experiments.gradzip [--quick] [--seeds N] [--steps N] [--minutes N] [--threads N]

writes ``bench/results/experiment-gradzip.csv``: held-out accuracy of a residual network on the hard digits of
``problems``, for every method of the paper's Table 1, each from the same initial weights and with the same batches per
seed. Ranks of factors are chosen layer by layer, so that 2 m n / ((m + n) k) is the ratio asked for, at least 1;
``float_ratio`` is what was sent in all, dense vectors and small layers included. Seeds that do not fit into the minutes
are left out, whole.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from bench.codec import RESULTS
from bench.experiments.problems import PROBLEMS
from bench.experiments.trial import run
from gcodec.averaging import Plan
from gcodec.compressors import Cast, Compressor, Dense, GradNA, GradZip, SparCML, TopK
from gcodec.compressors.lowrank import matrix_shape
from gcodec.demo.models import DigitNet
from gcodec.demo.tables import write_table
from gcodec.feedback import ErrorFeedback

FILE = "experiment-gradzip.csv"
COLUMNS = ("method", "feedback", "seed", "steps", "accuracy", "loss", "float_ratio", "byte_ratio")
BATCH, RATE = 32, 0.05
Setting = Callable[[tuple[int, ...]], Compressor]


def of_ratio(kind: type[GradZip], ratio: float, dtype: str | None = None) -> Setting:
    """GradZip or GradNA at a ratio of the paper's: k = 2 m n / ((m + n) ratio), rounded."""
    def setting(shape: tuple[int, ...]) -> Compressor:
        m, n = matrix_shape(shape)
        return kind(max(1, round(2 * m * n / ((m + n) * ratio))), dtype=dtype)
    return setting


#: Table 1 of the paper, by its names; and whether what is left out is fed back, which the paper does not do.
METHODS: dict[tuple[str, bool], Setting] = {
    ("Baseline-FP32", False): lambda shape: Dense(),
    ("Baseline-FP16", False): lambda shape: Cast("float16"),
    **{(f"GradZip-{ratio}-FP32", fed): of_ratio(GradZip, ratio) for ratio in (10, 40) for fed in (False, True)},
    **{("GradZip-50-FP16", fed): of_ratio(GradZip, 50, "float16") for fed in (False, True)},
    **{("GradNA-10-FP32", fed): of_ratio(GradNA, 10) for fed in (False, True)},
    ("SparCML-40-FP32", True): lambda shape: SparCML(TopK(1 / 40)),
}


def trained(setting: Setting, feedback: bool, seed: int, steps: int, width: int) -> list[object]:
    """Accuracy on held-out images, mean loss of the last tenth of the steps, and the two ratios."""
    problem = replace(PROBLEMS["cnn"], model=lambda: DigitNet(width=width), rate=RATE, batch=BATCH)
    plan = Plan(Dense(), ErrorFeedback() if feedback else None)
    trial = run(problem, plan, seed, steps, lambda name, shape: setting(tuple(shape)))
    return [f"{trial.quality / 100:.4f}", f"{np.mean(trial.losses[-max(steps // 10, 1) :]):.4f}",
            f"{trial.sent.float_ratio:.2f}", f"{trial.sent.ratio:.2f}"]


def rows_of(seeds: int, steps: int, width: int, minutes: float) -> Iterator[list[object]]:
    """Every method with every seed, as long as another seed fits."""
    begin = perf_counter()
    for seed in range(seeds):
        if seed and (perf_counter() - begin) * (seed + 1) / seed > 60 * minutes:
            print(f"no time for seed {seed} and later ones", flush=True)
            return
        for (method, feedback), setting in METHODS.items():
            yield [method, int(feedback), seed, steps, *trained(setting, feedback, seed, steps, width)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.gradzip", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="of training (400)")
    parser.add_argument("--minutes", type=float, default=20, help="that seeds may take (20)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--quick", action="store_true", help="1 seed, 5 steps, a narrow network")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows = []
    seeds, steps, width = (1, 5, 16) if options.quick else (options.seeds, options.steps, 64)
    for row in rows_of(seeds, steps, width, options.minutes):
        print(*row, flush=True)
        rows.append(row)
    write_table(options.out / FILE, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
