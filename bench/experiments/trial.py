"""One training with simulated ranks: a model, its gradients averaged by a plan, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from time import process_time

import numpy as np
import torch

from bench.experiments.problems import Problem
from bench.experiments.traffic import LINK, Link, Traffic
from gcodec.adaptive import Adaptive, Controller
from gcodec.averaging.averager import Averager, CompressionPlan, Count
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import Compressor
from gcodec.compressors.contract import Outcome

RANKS = 4
Gradients = dict[str, torch.Tensor]
Choose = Callable[[str, torch.Size], Compressor]  #: a tensor's own setting, from its name and shape
Planned = Callable[[torch.optim.Optimizer], CompressionPlan]  #: the plan for a training by this optimizer
#: Called before the optimizer's step, which is counted from 0: its gradients by rank, and their averages.
See = Callable[[int, Sequence[Gradients], Gradients], None]


@dataclass
class Trial:
    """The results of a training.

    ``losses``: of every step, nats, mean over ranks; ``qualities`` on held-out data, by steps done; ``quality``, the
    last of them; ``sent``: by rank 0 in all; ``floats``: of that, in every step; ``traffic``: in every step, of a rank;
    ``norms``: in every step and on rank 0, squared L2 norms of the gradients, of what was compressed, and of what was
    sent of it; ``controller``: rank 0's, as it was in the end. Processor time of a rank: ``compress_seconds``, with
    decisions, decoding and adding up, and ``train_seconds``, all else.
    """

    losses: list[float] = field(default_factory=list)
    qualities: dict[int, float] = field(default_factory=dict)
    quality: float = 0.0
    sent: Count = field(default_factory=Count)
    floats: list[float] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)
    controller: Controller | None = None
    compress_seconds: float = 0.0
    train_seconds: float = 0.0


class Clock:
    """Seconds that pass for controllers: the same in every run, so that decisions are. A step takes ``compute``, and
    what its traffic takes on ``link``."""

    def __init__(self, compute: float, link: Link, traffic: Traffic) -> None:
        self.compute, self.link, self.traffic, self.steps = compute, link, traffic, 0

    def __call__(self) -> float:
        return self.compute * self.steps + self.traffic.seconds(self.link)


def run(
    problem: Problem,
    plan: CompressionPlan | Planned,
    seed: int,
    steps: int,
    choose: Choose | None = None,
    ranks: int = RANKS,
    controller: Controller | None = None,
    link: Link = LINK,
    every: int = 0,
    see: See | None = None,
) -> Trial:
    """Train from a seed; runs of one seed start from the same parameters and see the same batches. All ranks share one
    model, as replicas never differ.

    ``plan``: or what makes it of the optimizer; ``choose``: settings tensor by tensor; ``controller``: what changes
    them, by a clock on which steps take the problem's ``seconds`` and the time of their traffic on ``link``; ``every``:
    steps between evaluations, 0 for one at the end.
    """
    torch.manual_seed(seed)
    model = problem.model()
    params = dict(model.named_parameters())
    optimizer = problem.optimizer(model)
    plan = plan if isinstance(plan, CompressionPlan) else plan(optimizer)
    group = Group(problem, plan, ranks, controller, link)
    for name, param in params.items() if choose else ():
        assert choose is not None
        group.set(name, choose(name, param.shape))
    randoms = [np.random.default_rng((seed, rank)) for rank in range(ranks)]
    trial = Trial(controller=group.controller)
    for step in range(steps):
        start, rate = process_time(), problem.rate * problem.factor(step, steps)
        for settings in optimizer.param_groups:  # before averaging: near-lossless modes read it
            settings["lr"] = rate
        gradients = [_gradients(problem, model, params, random, trial) for random in randoms]
        trial.losses[-ranks:] = [float(np.mean(trial.losses[-ranks:]))]
        middle = process_time()
        averages = group.average(gradients, params, rate)
        end = process_time()
        if see is not None:
            see(step, gradients, averages)
        seen = process_time()
        _step(problem, optimizer, params, averages)
        trial.compress_seconds += (end - middle - group.watching) / ranks
        trial.train_seconds += (middle - start) / ranks + process_time() - seen
        group.account(trial, gradients[0])
        if every and (step + 1) % every == 0:
            trial.qualities[step + 1] = problem.quality(model)
    trial.quality = trial.qualities[steps] = problem.quality(model)
    trial.sent = group.averagers[0].total
    return trial


class Group:
    """The ranks: their averagers, a controller of each if there is any, and what they say to each other."""

    def __init__(
        self, problem: Problem, plan: CompressionPlan, size: int, controller: Controller | None, link: Link
    ) -> None:
        self.averagers = [Averager(plan, rank, size) for rank in range(size)]
        self.traffic, self.counted = Traffic(), Traffic()
        self.clock, self.samples = Clock(problem.seconds, link, self.traffic), problem.batch
        self.floats, self.kept, self.watching = 0.0, [0.0, 0.0], 0.0
        self.averagers[0].watch = self._watch
        self.ranks = (
            None
            if controller is None
            else [Adaptive(averager, deepcopy(controller), self.clock) for averager in self.averagers]
        )

    @property
    def controller(self) -> Controller | None:
        """The controller of rank 0."""
        return self.ranks[0].controller if self.ranks else None

    def set(self, name: str, compressor: Compressor) -> None:
        """Compress a tensor so on all ranks."""
        for averager in self.averagers:
            averager.compressors[name] = compressor

    def average(self, gradients: Sequence[Gradients], params: Mapping[str, torch.Tensor], rate: float) -> Gradients:
        """One step's averages."""
        self.kept, self.watching = [0.0, 0.0], 0.0
        if self.ranks:
            conversations = [
                rank.average(own, params, rate=rate, samples=self.samples)
                for rank, own in zip(self.ranks, gradients, strict=True)
            ]
        else:
            conversations = [
                averager.average(own, params) for averager, own in zip(self.averagers, gradients, strict=True)
            ]
        conversations[0] = self.traffic.metered(conversations[0], len(gradients))
        averages: Gradients = run_conversations(conversations)[0]
        self.clock.steps += 1
        return averages

    def _watch(self, name: str, corrected: torch.Tensor, outcome: Outcome) -> None:
        start = process_time()
        self.kept[0] += square(corrected)
        self.kept[1] += square(outcome.contribution)
        self.watching += process_time() - start

    def account(self, trial: Trial, own: Gradients) -> None:
        """Enter a step into the trial."""
        total = self.averagers[0].total.floats
        trial.floats.append(total - self.floats)
        trial.traffic.append(self.traffic - self.counted)
        trial.norms.append([sum(map(square, own.values())), *self.kept])
        self.floats, self.counted = total, self.traffic.copy()


def square(tensor: torch.Tensor) -> float:
    """Return the squared L2 norm."""
    return float(torch.linalg.vector_norm(tensor)) ** 2


def _gradients(
    problem: Problem,
    model: torch.nn.Module,
    params: Mapping[str, torch.Tensor],
    random: np.random.Generator,
    trial: Trial,
) -> Gradients:
    """Return the gradients of one rank; its loss goes to the end of the trial's."""
    model.zero_grad()
    loss = problem.loss(model, problem.batch, random)
    loss.backward()
    trial.losses.append(loss.item())
    return {name: param.grad for name, param in params.items() if param.grad is not None}


def _step(
    problem: Problem, optimizer: torch.optim.Optimizer, params: Mapping[str, torch.Tensor], averages: Gradients
) -> None:
    for name, average in averages.items():
        params[name].grad = average
    if problem.clip is not None:
        torch.nn.utils.clip_grad_norm_(list(params.values()), problem.clip)
    optimizer.step()
