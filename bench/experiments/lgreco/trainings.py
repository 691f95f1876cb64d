"""One training among simulated ranks whose settings a controller chooses, and everything that is to be known of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from time import process_time

import numpy as np
import torch
import xxhash

from bench.data import ROOT
from bench.experiments.lgreco.methods import Setup, buckets_of, method_of
from bench.experiments.lgreco.problems import PROBLEMS
from bench.experiments.problems import Problem
from gcodec import adaptive
from gcodec.adaptive import Adaptive, Planner, Settings
from gcodec.adaptive.families import errors_of
from gcodec.adaptive.losses import square
from gcodec.averaging.averager import Count
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import Compressor, Outcome

RANKS = 2  #: each decodes the payloads of all, so that what a step takes grows with the square
KEPT = ROOT / ".cache" / "bench" / "lgreco"  #: pickled trainings, by their jobs
WATCHED = 10  #: steps from one look at what compression really loses to the next


@dataclass(frozen=True)
class Job:
    """A training to be made: all that a process needs to know of it."""

    part: str
    problem: str
    family: str
    method: str
    seed: int
    steps: int
    period: int


@dataclass(frozen=True)
class Decision:
    """A decision. ``step`` from which it held; ``error``: squared errors of all tensors on the accumulated gradients,
    over those of the uniform setting, of low ranks by singular values; ``cost``: payload bytes, likewise; ``settings``:
    values of the knob; ``seconds`` it took, of the processor's."""

    step: int
    error: float
    cost: float
    settings: tuple[float, ...]
    seconds: float


class Observed(Planner):
    """A planner that also records what its decisions result in, without changing them."""

    def __init__(self, inner: Planner, reference: Compressor) -> None:
        self.inner, self.reference = inner, reference
        self.period, self.source = inner.period, inner.source
        self.decisions: list[Decision] = []
        self.means: dict[str, torch.Tensor] = {}  #: that the last decision was made from; on the deciding rank only
        self.aside = 0.0  #: seconds of the processor that observing took
        self._seconds: float | None = None

    def start(self, shapes: Mapping[str, tuple[int, ...]], size: int) -> None:
        super().start(shapes, size)
        self.inner.start(shapes, size)

    @property
    def n_numbers(self) -> int:
        return self.inner.n_numbers

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        begun = process_time()
        numbers = self.inner.decide(means)
        self._seconds, self.means = process_time() - begun, dict(means)
        return numbers

    def apply(self, numbers: Sequence[float]) -> None:
        self.inner.apply(numbers)

    def settings(self, step: int, rate: float | None) -> Settings:
        result = self.inner.settings(step, rate)
        if self._seconds is not None:
            begun = process_time()
            self.decisions.append(self._judged(step, result, self._seconds))
            self._seconds, self.aside = None, self.aside + process_time() - begun
        return result

    def _judged(self, step: int, settings: Settings, seconds: float) -> Decision:
        error, cost = np.zeros(2), np.zeros(2)
        for name, mean in self.means.items():
            both = [settings[name], self.reference]
            error += errors_of(both, mean, "svd")
            cost += [item.payload_bytes(mean.shape) for item in both]
        values = tuple(getattr(setting, "threshold", setting.value) for setting in settings.values())
        return Decision(step, float(error[0] / error[1]), float(cost[0] / cost[1]), values, seconds)


@dataclass
class Training:
    """The results of a training. Seconds are of the processor, of one rank and all steps: ``train_seconds`` of forward
    and backward pass and optimizer, ``compress_seconds`` of averaging without decisions, ``decide_seconds`` of these.
    ``loss``: mean over the last tenth of the steps; ``lost``: share of the squared error-fed gradients that compression
    really lost, mean over steps looked at; ``tensors``, ``periods``: what rank 0 sent, by name, by period."""

    job: Job
    quality: float = 0.0
    loss: float = 0.0
    lost: float = 0.0
    same: bool = True  #: all ranks had the same settings at every step
    train_seconds: float = 0.0
    compress_seconds: float = 0.0
    decide_seconds: float = 0.0
    total: Count = field(default_factory=Count)
    tensors: dict[str, Count] = field(default_factory=dict)
    periods: list[Count] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    buckets: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    compressed: list[str] = field(default_factory=list)  #: names of the tensors that decisions are about
    means: dict[str, torch.Tensor] = field(default_factory=dict)  #: of the last period

    @property
    def decided(self) -> str:
        """A hash of all decisions, to tell whether two trainings made the same."""
        facts = [(decision.step, decision.settings) for decision in self.decisions]
        return xxhash.xxh3_64_hexdigest(repr(facts).encode())

    @property
    def adapted_ratio(self) -> float:
        """Bytes before over bytes after, from the first decision on, or from where it would have been."""
        count = Count()
        for period in self.periods[1:] or self.periods:
            count.add(period)
        return count.ratio


def path_of(job: Job, folder: Path) -> Path:
    """Where a training is kept."""
    return folder / f"{xxhash.xxh3_64_hexdigest(repr(job).encode())}.pickle"


def kept(job: Job, folder: Path, resume: bool) -> Training:
    """Return a training, or what an earlier run has left of it in a folder."""
    path = path_of(job, folder)
    if resume and path.exists():
        known: Training = pickle.loads(path.read_bytes())
        return known
    warm_up(replace(job, seed=0, steps=3, period=1))
    result = train(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(result))
    return result


@cache
def warm_up(job: Job) -> None:
    """Train a few steps, once per process, with a decision after each: kernels that a first run compiles or loads count
    as compression otherwise."""
    train(job)


def train(job: Job) -> Training:
    """Trainings of one problem and seed start from the same parameters and see the same batches. All ranks share one
    model, as replicas never differ."""
    torch.set_num_threads(1)
    problem, result = PROBLEMS[job.problem], Training(job)
    torch.manual_seed(job.seed)
    model = problem.model()
    params = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=problem.rate, momentum=problem.momentum)
    result.buckets, result.shapes = buckets_of(params), {name: tuple(param.shape) for name, param in params.items()}
    ranks = _ranks(job, result)
    looked = _watch(ranks[0])
    randoms = [np.random.default_rng((job.seed, rank)) for rank in range(RANKS)]
    losses = []
    for step in range(job.steps):
        start = process_time()
        both = [gradients_of(problem, model, params, random) for random in randoms]
        losses.append(float(np.mean([loss for _, loss in both])))
        middle = process_time()
        rate = problem.rate * problem.factor(step, job.steps)
        averages = run_conversations(
            [rank.average(own, params, rate=rate) for rank, (own, _) in zip(ranks, both, strict=True)]
        )
        end = process_time()
        _update(problem, optimizer, params, averages[0], rate)
        result.compress_seconds += end - middle
        result.train_seconds += (middle - start) / RANKS + process_time() - end
        _count(result, ranks, step)
    return _finished(result, problem, model, ranks[0], losses, looked)


def _ranks(job: Job, found: Training) -> list[Adaptive]:
    method = method_of(job.part, job.problem, job.family, job.method)
    controller = method.make(
        Setup(method.reference, job.period, found.buckets, found.shapes, PROBLEMS[job.problem].seconds)
    )
    if isinstance(controller, Planner):
        controller = Observed(controller, method.reference)
    return adaptive.ranks(RANKS, method.plan, controller)


def gradients_of(
    problem: Problem, model: torch.nn.Module, params: Mapping[str, torch.Tensor], random: np.random.Generator
) -> tuple[dict[str, torch.Tensor], float]:
    """One rank's, and its loss."""
    loss = problem.loss(model, problem.batch, random)
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True)), float(loss.detach())


def _update(
    problem: Problem,
    optimizer: torch.optim.Optimizer,
    params: Mapping[str, torch.Tensor],
    averages: Mapping[str, torch.Tensor],
    rate: float,
) -> None:
    for name, average in averages.items():
        params[name].grad = average
    if problem.clip is not None:
        torch.nn.utils.clip_grad_norm_(list(params.values()), problem.clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def _watch(rank: Adaptive) -> list[tuple[int, float, float]]:
    """Return step, squared norm of what was lost, and of what was to be compressed, of every tensor in some steps."""
    looked: list[tuple[int, float, float]] = []

    def watch(name: str, corrected: torch.Tensor, outcome: Outcome) -> None:
        if rank.step % WATCHED == 0:
            lost = corrected - outcome.contribution
            looked.append((rank.step, square(lost), square(corrected)))

    rank.averager.watch = watch
    return looked


def _count(found: Training, ranks: Sequence[Adaptive], step: int) -> None:
    if step % found.job.period == 0:
        found.periods.append(Count())
    for name, count in ranks[0].averager.last.items():
        found.tensors.setdefault(name, Count()).add(count)
        found.periods[-1].add(count)
    first = ranks[0].averager.compressors
    found.same &= all(rank.averager.compressors == first for rank in ranks)


def _finished(
    found: Training,
    problem: Problem,
    model: torch.nn.Module,
    rank: Adaptive,
    losses: list[float],
    looked: list[tuple[int, float, float]],
) -> Training:
    found.quality, found.total = problem.quality(model), rank.averager.total
    found.loss = float(np.mean(losses[-max(len(losses) // 10, 1) :]))
    shares = []
    for step in dict.fromkeys(step for step, _, _ in looked):
        lost, whole = np.sum([item[1:] for item in looked if item[0] == step], 0)
        shares.append(lost / whole)
    found.lost = float(np.mean(shares))
    controller = rank.controller
    if isinstance(controller, Observed):
        found.decisions, found.compressed = controller.decisions, list(controller.shapes)
        found.means = controller.means if found.job.seed == 0 else {}
        found.decide_seconds = sum(decision.seconds for decision in found.decisions)
        found.compress_seconds -= found.decide_seconds + controller.aside
    found.compress_seconds /= RANKS
    return found
