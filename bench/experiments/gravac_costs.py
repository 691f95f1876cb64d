"""Measure what compression factors cost: one after another, and two at a time (GraVAC's Figure 3 and Table 3).

Ratios of processor times on one thread, so that what else the machine does matters little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import numpy as np
import torch

from bench.compressors import WrongResultError
from bench.controllers import gradient
from bench.experiments.gravac_methods import COMPRESSORS, Method
from bench.experiments.problems import PROBLEMS
from bench.experiments.traffic import LINK, SLOW
from bench.experiments.trial import Gradients, run
from gcodec.adaptive.multilevel import Chosen, ProbeResult, probe_settings
from gcodec.compressors import DGC, Compressor, Place

Tables = dict[str, tuple[tuple[str, ...], list[list[object]]]]
COSTS = (
    "problem",
    "factor",
    "payload_bytes",
    "compress_share",
    "link_seconds_1g",
    "link_seconds_30m",
    "steps_per_second_1g",
    "steps_per_second_30m",
)
LEVELS = ("data", "values", "tensors", "method", "speedup", "speedup_q1", "speedup_q3")
SWEEP = (10, 50, 100, 500, 1000)
SETTLED = 20  #: steps of training before gradients are taken
ROUNDS = 31
LARGE = 4_000_000  #: values


def tables(quick: bool) -> Tables:
    """Return both tables, as names, columns and rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        names = ["cnn"] if quick else list(PROBLEMS)
        costs = [row for name in names for row in costs_of(name, 1 if quick else SETTLED)]
        large = {"large": gradient((LARGE // 100 if quick else LARGE,), 2)}
        pairs = list(levels_of("one tensor", large, 3 if quick else ROUNDS // 3))
        for name in names:
            pairs += levels_of(name, gradients_of(name, 2 if quick else SETTLED), 3 if quick else ROUNDS)
    finally:
        torch.set_num_threads(before)
    return {"costs": (COSTS, costs), "levels": (LEVELS, pairs)}


def costs_of(name: str, steps: int) -> Iterator[list[object]]:
    """Yield a problem's first steps with DGC at every factor."""
    problem = PROBLEMS[name]
    run(problem, Method(DGC(0.1)).plan, 0, 1)  # reads the data, loads kernels
    for factor in SWEEP:
        trial = run(problem, Method(DGC(1 / factor)).plan, 0, steps)
        share = trial.compress_seconds / trial.train_seconds
        links = [sum(traffic.seconds(link) for traffic in trial.traffic) / steps for link in (LINK, SLOW)]
        yield [
            name,
            factor,
            trial.sent.payload_bytes // steps,
            f"{share:.3f}",
            *(f"{item:.6f}" for item in links),
            *(f"{1 / (problem.seconds * (1 + share) + item):.3f}" for item in links),
        ]


def gradients_of(name: str, steps: int) -> Gradients:
    """Return rank 0's gradients, some steps into a dense training."""
    last: list[Gradients] = [{}]

    def see(step: int, gradients: Any, averages: Gradients) -> None:
        last[0] = {key: tensor.clone() for key, tensor in gradients[0].items()}

    run(PROBLEMS[name], Method(COMPRESSORS["Top-k"], feedback=None).plan, 0, steps, see=see)
    return last[0]


def levels_of(data: str, gradients: Gradients, rounds: int) -> Iterator[list[object]]:
    """Yield, for 10x and 1000x of every tensor, how many times faster the second is chosen among the first's values
    than both among all; the ways take turns, and each round is a ratio of processor times."""
    for name, item in COMPRESSORS.items():
        settings = [item.at(1 / factor) for factor in (10, 1000)]
        verify(name, gradients, settings)
        times: dict[bool, list[float]] = {False: [], True: []}
        methods = {nested: partial(every, gradients, settings, nested) for nested in times}
        for _ in range(rounds):
            for nested, method in methods.items():
                times[nested].append(seconds_of(method))
        speedups = [direct / fast for direct, fast in zip(times[False], times[True], strict=True)]
        n_values = sum(tensor.numel() for tensor in gradients.values())
        yield [data, n_values, len(gradients), name, *(f"{np.quantile(speedups, q):.3f}" for q in (0.5, 0.25, 0.75))]


def every(gradients: Gradients, settings: list[Compressor], nested: bool) -> dict[str, list[ProbeResult]]:
    """Return both levels of each tensor."""
    return {name: probe_settings(tensor, settings, {}, Place(name=name), nested) for name, tensor in gradients.items()}


def verify(name: str, gradients: Gradients, settings: list[Compressor]) -> None:
    """Check that nested choices are among the first's, and for Top-k those of the direct way."""
    direct, nested = (every(gradients, settings, way) for way in (False, True))
    for key, (first, second) in nested.items():
        ours, theirs = second.compressor, direct[key][1].compressor
        assert isinstance(first.compressor, Chosen) and isinstance(ours, Chosen) and isinstance(theirs, Chosen)
        kept = gradients[key].reshape(-1)[ours.indices].abs().sort().values
        exact = gradients[key].reshape(-1)[theirs.indices].abs().sort().values
        if not torch.isin(ours.indices, first.compressor.indices).all() or (
            name == "Top-k" and not torch.equal(kept, exact)
        ):
            raise WrongResultError(f"{name} chooses other values of {key} on the second level")


def seconds_of(method: Callable[[], object]) -> float:
    """Return the processor time of a call."""
    start = process_time()
    method()
    return process_time() - start
