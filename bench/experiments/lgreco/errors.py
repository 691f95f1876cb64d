"""Measure what L-GreCo's decisions take, and how good its two ways to low-rank errors are, on gradients accumulated in
training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch

from bench.experiments.lgreco.methods import RANKS, REFERENCES
from bench.experiments.lgreco.trainings import Training
from gcodec.adaptive import Bytes, Range
from gcodec.adaptive.families import errors_of
from gcodec.adaptive.knapsack import discretized, solve
from gcodec.adaptive.losses import square
from gcodec.compressors import Compressor

INTERVAL = 200  #: steps between decisions, that overheads are stated for
BINS, ROUNDS = 10000, 5
LEAST = 1e-4  #: of a squared norm: below, float32 leaves too little of differences of squares
STEPS = (1, 2, 3, 5, 10)  #: of power iteration
Means = Mapping[str, torch.Tensor]


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of the processor: the median of some calls after a first one; and what it returns."""
    result, times = call(), []
    for _ in range(ROUNDS):
        begun = process_time()
        call()
        times.append(process_time() - begun)
    return median(times), result


def options_of(reference: Compressor, means: Means) -> dict[str, list[Compressor]]:
    """Return the paper's settings of every tensor."""
    return {name: Range().settings(reference, mean.shape) for name, mean in means.items()}


def choice(
    reference: Compressor,
    options: Mapping[str, list[Compressor]],
    errors: list[np.ndarray],
    shapes: Mapping[str, torch.Size],
) -> list[int]:
    """Run the dynamic programming, from errors on."""
    bins, budget = discretized(errors, [own.index(reference) for own in options.values()], BINS)
    costs = [np.array([Bytes().of(name, shapes[name], one) for one in own]) for name, own in options.items()]
    return solve(bins, costs, budget)


def overhead(training: Training) -> dict[str, object]:
    """Return a decision as a share of ``INTERVAL`` steps of the training that its gradients come from (Table 1)."""
    job, means = training.job, training.means
    reference = REFERENCES[job.problem][job.family]
    options, shapes = options_of(reference, means), {name: mean.shape for name, mean in means.items()}
    erring, errors = seconds_of(lambda: [errors_of(options[name], mean) for name, mean in means.items()])
    choosing, _ = seconds_of(lambda: choice(reference, options, errors, shapes))
    step = (training.train_seconds + training.compress_seconds) / job.steps
    return {
        "problem": job.problem,
        "family": job.family,
        "tensors": len(means),
        "settings": sum(map(len, options.values())),
        "error_seconds": f"{erring:.6f}",
        "choose_seconds": f"{choosing:.6f}",
        "step_seconds": f"{step:.6f}",
        "interval_steps": INTERVAL,
        "error_percent": f"{100 * erring / (INTERVAL * step):.4f}",
        "choose_percent": f"{100 * choosing / (INTERVAL * step):.4f}",
    }


def low_rank(training: Training) -> Iterator[dict[str, object]]:
    """Errors by power iteration against those by singular values, and what comes of them (appendix C). Excess: of
    norms, over tensors and ranks; the error of the ranks that they lead to is by singular values."""
    means, problem = training.means, training.job.problem
    reference = REFERENCES[problem][RANKS]
    options, shapes = options_of(reference, means), {name: mean.shape for name, mean in means.items()}
    costs = [np.array([one.payload_bytes(shapes[name]) for one in own]) for name, own in options.items()]
    uniform = [own.index(reference) for own in options.values()]

    def errors(method: str, steps: int = 0) -> list[np.ndarray]:
        return [errors_of(options[name], mean, method, steps) for name, mean in means.items()]

    seconds, exact = seconds_of(partial(errors, "svd"))
    best = choice(reference, options, exact, shapes)
    for steps in STEPS:
        took, result = seconds_of(partial(errors, "power", steps))
        excess = np.concatenate(
            [
                excess_of(power, true, square(mean))
                for power, true, mean in zip(result, exact, means.values(), strict=True)
            ]
        )
        ranks = choice(reference, options, result, shapes)
        same = np.equal(ranks, best).mean()
        yield {
            "problem": problem,
            "power_steps": steps,
            "tensors": len(means),
            "mean_excess_percent": f"{excess.mean():.4f}" if len(excess) else "",
            "worst_excess_percent": f"{excess.max():.4f}" if len(excess) else "",
            "seconds_of_svd": f"{took / seconds:.3f}",
            "same_ranks": f"{same:.3f}",
            "bytes_of_svds": f"{total(costs, ranks) / total(costs, best):.4f}",
            "error_of_uniform": f"{total(exact, ranks) / total(exact, uniform):.4f}",
        }


def excess_of(found: np.ndarray, least: np.ndarray, whole: float) -> np.ndarray:
    """Return by how many percent errors exceed the min, as norms; where these are more than rounding."""
    known = least > LEAST * whole
    excess: np.ndarray = 100 * (np.sqrt(found[known] / least[known]) - 1)
    return excess


def total(tables: Sequence[np.ndarray], numbers: Sequence[int]) -> float:
    """Return the sum of one number from each table."""
    return sum(float(table[number]) for table, number in zip(tables, numbers, strict=True))
