"""One rank's gradients, as data-parallel training has them: at recorded parameters, of a batch of the rank's own.

A buffer is made of slots. A slot is a model as it was recorded at some step (parameters and optimizer state, the same
on every rank), with the gradient that this rank computes there on its own batch. Slots go through the recorded steps
from ``FIRST_STEP`` on, again and again, each time with other batches, until the buffer has the size that is asked for;
the last one ends with the tensor that reaches it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.record import PLANS, QUICK_PLANS
from gcodec.benchmark.sources import find_dumps
from gcodec.demo.train import SEED, TASKS, TrainingPlan, TrainingTask
from gcodec.errors import InvalidArgument
from gcodec.recorder import PARAM, Dump

FIRST_STEP = 100  #: gradients of the first steps of a training are unlike the rest
SETS = 2  #: of gradients at the same parameters; rounds take turns


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's part in an all-reduce.

    Attributes:
        params: Parameters whose gradients the buffer holds, end to end in row-major order.
        optimizer: torch's, with the recorded state of these.
        sets: Gradients, float32[n], ``SETS`` times.
        origin: Model and steps, for tables.
    """

    params: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    sets: list[torch.Tensor]
    origin: str


def dumps_of(folder: Path, model: str, quick: bool = False) -> list[Dump]:
    """Return the dumps of whole models that slots can be made of. Raises InvalidArgument if there are none."""
    wanted = {f"{PARAM}/{name}" for name, _ in TASKS[model](_plan(model, quick)).model.named_parameters()}
    dumps = usable(dump for name, dump in find_dumps(folder) if name == model and wanted <= dump.keys)
    if not dumps:
        raise InvalidArgument(f"{folder} has no dumps of all of {model!r} with optimizer state: python -m bench.record")
    return dumps


def _plan(model: str, quick: bool) -> TrainingPlan:
    return (QUICK_PLANS if quick else PLANS)[model]


def share_of(folder: Path, model: str, n_bytes: int, rank: int, quick: bool = False) -> Share:
    """Return a buffer of at least ``n_bytes`` for a rank. Raises InvalidArgument if nothing fitting was recorded."""
    dumps, plan = dumps_of(folder, model, quick), _plan(model, quick)
    task = TASKS[model](plan)
    sizes = [parameter.nbytes for parameter in task.model.parameters()]
    params: list[torch.nn.Parameter] = []
    sets: list[list[torch.Tensor]] = [[] for _ in range(SETS)]
    groups: list[tuple[Dump, dict[str, torch.nn.Parameter]]] = []
    taken = 0
    for slot in count():
        if taken >= n_bytes:
            break
        dump = dumps[slot % len(dumps)]
        load(task, dump)
        kept = 1 + sum(taken + end < n_bytes for end in list(accumulate(sizes))[:-1])
        named = dict(list(task.model.named_parameters())[:kept])
        copies = {name: torch.nn.Parameter(parameter.detach().clone()) for name, parameter in named.items()}
        for number, gradients in enumerate(sets):
            gradients += _gradient(task, plan, kept, (SEED, dump.step, slot, number, rank))
        groups.append((dump, copies))
        params += copies.values()
        taken += sum(sizes[:kept])
    flat = [torch.cat([gradient.reshape(-1) for gradient in gradients]) for gradients in sets]
    steps = ", ".join(str(dump.step) for dump in dumps)
    return Share(params, optimizer_of(groups), flat, f"{model}, steps {steps}")


def usable(dumps: Iterator[Dump]) -> list[Dump]:
    """Those with optimizer state, without the first steps if there are later ones."""
    results = [dump for dump in dumps if set(dump.state_kinds) - {"step"}]
    return [dump for dump in results if dump.step >= FIRST_STEP] or results


def load(task: TrainingTask, dump: Dump) -> None:
    """Give the model the recorded parameters."""
    with torch.no_grad():
        for name, parameter in task.model.named_parameters():
            parameter.copy_(torch.from_numpy(np.asarray(dump.param(name))))


def optimizer_of(groups: Sequence[tuple[Dump, dict[str, torch.nn.Parameter]]]) -> torch.optim.Optimizer:
    """Return the recorded optimizer, for copies of the recorded parameters, with their recorded state."""
    kind = getattr(torch.optim, groups[0][0].optimizer)
    alike: dict[str, dict[str, Any]] = {}  # parameter groups: as few as a training has
    for dump, copies in groups:
        for name, copy in copies.items():
            hyper = dump.hyper(name)
            alike.setdefault(repr(sorted(hyper.items())), {"params": [], **hyper})["params"].append(copy)
    optimizer: torch.optim.Optimizer = kind(list(alike.values()))
    for dump, copies in groups:
        for name, copy in copies.items():
            state = {key: torch.from_numpy(np.array(value)) for key, value in dump.state(name).items()}
            optimizer.state[copy] = {key: value if value.ndim else float(value) for key, value in state.items()}
    return optimizer


def _gradient(task: TrainingTask, plan: TrainingPlan, kept: int, seed: tuple[int, ...]) -> list[torch.Tensor]:
    """Return the gradients of the first ``kept`` parameters, on a batch of their own, clipped as the training clips."""
    task.model.zero_grad()
    task.loss(plan.batch, np.random.default_rng(seed)).backward()
    if task.clip is not None:
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), task.clip)
    results = [parameter.grad for parameter in task.model.parameters()]
    return [gradient.detach().clone() for gradient in results[:kept] if gradient is not None]
