"""Fine-tunings of MiniLM on two simulated ranks, with gradients as they are, rounded to fp16, and near-lossless.

AdamW as BERT is fine-tuned: the rate rises over a tenth of the steps and falls to nothing in a straight line. Runs of a
seed start from the same weights, see the same batches and drop the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from bench.cluster.bits import Watcher, exponent_counts
from bench.cluster.training import perturb
from bench.experiments.accuracy import CONTROL, DENSE, near_lossless
from bench.experiments.minilm.fine_tuning import BATCH, RATE, adamw, sentence_loss, sentence_quality
from bench.experiments.minilm.model import pretrained
from bench.experiments.pool import Job
from bench.experiments.problems import Problem
from bench.experiments.trial import Gradients, Planned, Trial, run
from gcodec.averaging.averager import CompressionPlan
from gcodec.benchmark.csv_tables import NamedRow
from gcodec.benchmark.settings import NEAR_LOSSLESS
from gcodec.benchmark.timing import processor
from gcodec.compressors import Cast, Dense
from gcodec.demo.figures.observations import OBSERVATIONS_FILE, Observer, write_observations
from gcodec.recorder import Recorder

NAME = "MiniLM"
RANKS, STEPS = 2, 300
WARM_UP = 0.1  #: share of a run
RECORDED = (1, 30, 100, 200, 280, 300)
OBSERVED = 25  #: steps between two observations; recorded steps are observed, too
COUNTED = 10  #: steps between two whose exponents are coded
FP16 = "fp16"
#: In the order in which trainings of a seed begin.
METHODS: dict[str, CompressionPlan | Planned] = {
    DENSE: CompressionPlan(Dense(), None),
    NEAR_LOSSLESS: near_lossless,
    FP16: CompressionPlan(Cast("float16"), None, min_values=0, vectors=True),
    CONTROL: CompressionPlan(Dense(), None),
}


class FineTuning(Problem):
    """A problem whose optimizer is AdamW, and whose rate falls in a straight line."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return adamw(model, self.rate)

    def factor(self, step: int, steps: int) -> float:
        rise = max(WARM_UP * steps, 1.0)
        return min((step + 1) / rise, (steps - step) / (steps - rise + 1))


PROBLEM = FineTuning(
    NAME, pretrained, sentence_loss, sentence_quality, "% right", True, RATE, BATCH, STEPS, seconds=0.2
)


def perturbed() -> nn.Module:
    """Return the pretrained model, each parameter moved by an ulp."""
    model = pretrained()
    perturb(model, 1)
    return model


def problem_of(method: str, problem: Problem = PROBLEM) -> Problem:
    """Return the problem as a method has it."""
    return replace(problem, model=perturbed) if method == CONTROL else problem


def row_of(job: Job, steps: int, trial: Trial, n_values: int) -> list[object]:
    """Return a training's row. Losses are those of all steps, means over ranks."""
    sent = sum(traffic.wire_bytes for traffic in trial.traffic)
    return [
        *job,
        steps,
        f"{trial.quality:.3f}",
        PROBLEM.unit,
        f"{fmean(trial.losses[-max(steps // 10, 1) :]):.5f}",
        f"{sent / (steps * 2 * (RANKS - 1) / RANKS * 4 * n_values):.4f}",
        " ".join(f"{loss:.9g}" for loss in trial.losses),
        processor(),
    ]


def trained(job: Job, steps: int, problem: Problem = PROBLEM) -> list[object]:
    """Train, and say what came of it."""
    sizes = list[int]()
    own = problem_of(job[1], problem)
    trial = run(replace(own, model=partial(_counted, own.model, sizes)), METHODS[job[1]], job[2], steps, ranks=RANKS)
    return row_of(job, steps, trial, sizes[0])


def _counted(make: Any, sizes: list[int]) -> nn.Module:
    """Return a new model, and note how many values it has."""
    model: nn.Module = make()
    sizes.append(sum(param.numel() for param in model.parameters()))
    return model


@dataclass(frozen=True)
class Recording:
    """What is kept of a training whose gradients are looked at: the ``folder`` of its dumps, and which steps are
    ``recorded``, ``observed`` and counted, every so many."""

    folder: Path
    steps: int = STEPS
    recorded: tuple[int, ...] = RECORDED
    observed: int = OBSERVED
    counted: int = COUNTED

    @property
    def paths(self) -> list[Path]:
        """The dumps."""
        return [self.folder / NAME / f"step-{step:06d}.safetensors" for step in self.recorded]


def record(recording: Recording, seed: int = 0, problem: Problem = PROBLEM) -> tuple[list[object], list[NamedRow]]:
    """Train with gradients as they are and keep those of the last rank, which nothing has divided or averaged.

    Returns:
        The training's row, and rows of bits per exponent by the source of the table (``bench.cluster.bits``).
    """
    kept: dict[str, Any] = {}

    def model() -> nn.Module:
        kept["model"] = problem.model()
        return kept["model"]

    def plan(optimizer: torch.optim.Optimizer) -> CompressionPlan:
        kept["recorder"] = Recorder(kept["model"], optimizer, recording.folder / NAME, steps=recording.recorded)
        return CompressionPlan(Dense(), None)

    watcher, observer = Watcher(NAME, recording.counted), Observer()

    def see(step: int, gradients: Sequence[Gradients], averages: Gradients) -> None:
        params = dict(kept["model"].named_parameters())
        own = {name: gradient.numpy() for name, gradient in gradients[-1].items()}
        watcher.count(step + 1, exponent_counts(list(own.values())))
        if kept["recorder"].record() or (step + 1) % recording.observed == 0:
            observer.observe(step + 1, 0.0, [(own[name], params[name].detach().numpy()) for name in own])

    trial = run(replace(problem, model=model), plan, seed, recording.steps, ranks=RANKS, see=see)
    write_observations(observer.observations, recording.folder / NAME / OBSERVATIONS_FILE)
    n_values = sum(param.numel() for param in kept["model"].parameters())
    return row_of((NAME, DENSE, seed), recording.steps, trial, n_values), watcher.rows
