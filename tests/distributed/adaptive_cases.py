"""What the ranks of tests/distributed/test_adaptive.py run. Every function here is one rank's part."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

import gcodec.distributed as gd
from gcodec.adaptive import (
    Adaptive,
    AdaptiveOptimizer,
    GraVAC,
    Selector,
    ranks,
)
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import Dense, TopK
from gcodec.distributed.stats import Counters
from tests.distributed.compressor_cases import Given, averages_at, gradients_of, said_of_unknown_name
from tests.distributed.rank_basics import (
    Net,
    assert_refused,
    crc,
    heard,
    loss_at,
    parts_of_step,
    rank,
    take_steps,
)
from tests.support.compressor_settings import gradients_at, same
from tests.support.controller_settings import CONTROLLERS, PLANS, decisions


def counter() -> Any:
    """A clock that goes by how often one looks at it."""
    return itertools.count(0.0).__next__


def follows(group: dist.ProcessGroup, name: str, steps: int = 6) -> tuple[Any, int, int]:
    """Check that averages and decisions are those of simulated ranks, bit for bit."""
    size = group.size()
    controller, counters = CONTROLLERS[name], Counters()
    simulated = ranks(size, TopK(0.1), controller, counter())
    real = ranks(size, TopK(0.1), controller, counter())[rank()]
    result, settings = [], set()
    for step in range(steps):
        gradients = gradients_at(step, size)
        wanted = run_conversations([one.average(own, rate=1.0) for one, own in zip(simulated, gradients, strict=True)])
        averages = gd.converse(real.average(gradients[rank()], rate=1.0), group, counters=counters)
        assert all(same(averages[one], wanted[rank()][one]) for one in averages), step
        settings.add(repr([compressor.floats((60, 70)) for compressor in real.averager.compressors.values()]))
        result += list(averages.values())
    assert decisions(real.controller) == decisions(simulated[rank()].controller)
    return crc(result), len(settings), int(counters.sent_bytes)


def trains(group: dist.ProcessGroup, steps: int = 25) -> Any:
    """Solve least squares with each rank's own data: the loss before and after, of the same parameters on all ranks."""
    random = torch.Generator().manual_seed(rank())
    data = torch.randn(200, 60, generator=random)
    target = data @ torch.randn(60, 40, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(0)
    model = torch.nn.Linear(60, 40)
    inner = torch.optim.SGD(model.parameters(), lr=5.0)
    averager = Averager(CompressionPlan(TopK(0.1)), rank(), group.size())
    adaptive = Adaptive(averager, GraVAC(TopK(0.1), 2, 16, 0.5, window=5))
    optimizer = AdaptiveOptimizer(
        inner, model.named_parameters(), adaptive, lambda conversation: gd.converse(conversation, group), samples=200
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return crc([item.detach() for item in model.parameters()]), losses[0], losses[-1]


def trains_scaled(group: dist.ProcessGroup, fused: bool, overflow: int = 3, steps: int = 6) -> Any:
    """Train with a gradient scaler, whose scale on rank 1 overflows in one step: a checksum of the parameters after
    each step, and this rank's scale in the end."""
    torch.manual_seed(0)
    model = nn.Linear(60, 40)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1)), rank(), group.size()), GraVAC(TopK(0.1), 2, 16, 0.3, 3))
    optimizer = AdaptiveOptimizer(
        inner, model.named_parameters(), adaptive, lambda conversation: gd.converse(conversation, group)
    )
    scaler, seen = torch.amp.GradScaler("cpu", init_scale=2.0**10), []
    for step in range(steps):
        optimizer.zero_grad()
        random = torch.Generator().manual_seed(100 * step + rank())
        scaler.scale((model(torch.randn(8, 60, generator=random)) - 1).square().mean()).backward()
        if step == overflow and rank() == 1:
            model.weight.grad = torch.full_like(model.weight, torch.inf)
        scaler.step(optimizer)
        scaler.update()
        seen.append(crc([param.detach() for param in model.parameters()]))
    assert adaptive.step == steps
    return seen, scaler.get_scale()


def trains_with_unused(group: dist.ProcessGroup, steps: int = 5) -> Any:
    """Train with parameters that no rank uses, that only rank 0 does, in some steps, and that all do: how far each has
    moved, whether it has a gradient in the end, and a checksum."""
    torch.manual_seed(0)
    parts = {name: nn.Linear(40, 40) for name in ("used", "on rank 0", "never")}
    start, model = {name: part.weight.detach().clone() for name, part in parts.items()}, nn.ModuleDict(parts)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.1)
    plan = CompressionPlan(TopK(0.1), min_values=1 << 30)
    adaptive = Adaptive(Averager(plan, rank(), group.size()), GraVAC(TopK(0.1)))
    optimizer = AdaptiveOptimizer(
        inner, model.named_parameters(), adaptive, lambda conversation: gd.converse(conversation, group)
    )
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(step))
        loss = parts["used"](x).square().mean()
        if rank() == 0 and step == 1:
            loss = loss + 0 * parts["on rank 0"](x).sum()
        loss.backward()
        optimizer.step()
    moved = {name: not torch.equal(part.weight.detach(), start[name]) for name, part in parts.items()}
    return (
        moved,
        [name for name, part in parts.items() if part.weight.grad is not None],
        crc([param.detach() for param in model.parameters()]),
    )


def optimizer_checkpoint(group: dist.ProcessGroup, name: str, folder: str, first: int = 3, second: int = 4) -> int:
    """An optimizer around Adam through ``torch.distributed.checkpoint``, in place into a new one: a checksum of
    parameters after as many steps as without."""

    @contextlib.contextmanager
    def made() -> Iterator[tuple[Any, Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 40), nn.Linear(40, 60))
        adaptive = Adaptive(
            Averager(PLANS.get(name, CompressionPlan(TopK(0.1))), rank(), group.size()),
            copy.deepcopy(CONTROLLERS[name]),
            counter(),
        )
        yield (
            model,
            AdaptiveOptimizer(
                torch.optim.Adam(model.parameters(), 0.01),
                model.named_parameters(),
                adaptive,
                lambda conversation: gd.converse(conversation, group),
            ),
        )

    def train(model: Any, optimizer: Any, steps: range) -> int:
        for step in steps:
            optimizer.zero_grad()
            random = torch.Generator().manual_seed(100 * step + rank())
            (model(torch.randn(8, 60, generator=random)) - 1).square().mean().backward()
            optimizer.step()
        return crc([param.detach() for param in model.parameters()])

    with made() as (model, optimizer):
        train(model, optimizer, range(first))
        save({"model": model.state_dict(), "optimizer": optimizer}, checkpoint_id=folder, process_group=group)
        wanted = train(model, optimizer, range(first, first + second))
        decided = decisions(optimizer.adaptive.controller)
    with made() as (model, optimizer):
        weights = model.state_dict()
        load({"model": weights, "optimizer": optimizer}, checkpoint_id=folder, process_group=group)
        model.load_state_dict(weights)
        assert train(model, optimizer, range(first, first + second)) == wanted
        assert decisions(optimizer.adaptive.controller) == decided
    return wanted


# ---------------------------------------------------------------------------------------------------- DDP


@contextlib.contextmanager
def given_model(group: dist.ProcessGroup, name: str, **options: Any) -> Iterator[tuple[Given, Any, Any]]:
    """A model of given gradients under DDP, in buckets of 20 KB and more, and the state of a hook with a controller."""
    model = Given()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = gd.AdaptiveGradients(
        wrapped,
        PLANS.get(name, CompressionPlan(TopK(0.1))),
        copy.deepcopy(CONTROLLERS[name]),
        optimizer=optimizer,
        group=group,
        **options,
    )
    state.adaptive.clock = counter()
    wrapped.register_comm_hook(state, gd.hook)
    yield model, wrapped, state
    del wrapped


def set_rate(state: Any, step: int) -> float:
    """The learning rate of a step, in the hook's optimizer: it falls once."""
    state.optimizer.param_groups[0]["lr"] = rate = 1.0 if step < 5 else 0.1
    return rate


def under_ddp(group: dist.ProcessGroup, name: str, steps: int = 7, **options: Any) -> tuple[Any, int, int]:
    """Check that the hook's averages and decisions are those of simulated ranks, which get all gradients at once."""
    size = group.size()
    simulated = ranks(size, PLANS.get(name, CompressionPlan(TopK(0.1))), CONTROLLERS[name])
    for item in simulated:
        item.clock = counter()
    result, settings = [], list[str]()
    with given_model(group, name, **options) as (model, wrapped, state):
        for step in range(steps):
            rate = set_rate(state, step)
            wanted = run_conversations(
                [item.average(gradients_of(step, who), rate=rate) for who, item in enumerate(simulated)]
            )[0]
            averages = averages_at(step, model, wrapped)
            for tensor, average in averages.items():
                assert same(average, wanted[tensor]), (step, tensor)
            settings.append(repr([(type(item), item.floats((60, 70))) for item in state.compressors.values()]))
            result += [averages[tensor] for tensor in sorted(averages)]
            assert state.controller.state_dict() == simulated[rank()].controller.state_dict(), step
        numbers = state.stats()
    assert numbers["compressor"]["tensors"] == steps * len(list(model.parameters()))
    assert numbers["steps"] == steps
    alone = not isinstance(state.controller, Selector) and options.get("overlap", True)
    assert (numbers["buckets"][1]["sent_bytes"] > 0) == alone  # else it travels with the last one
    return (crc(result), repr(decisions(state.controller))), len(set(settings)), len(numbers["buckets"])


def resume(group: dist.ProcessGroup, name: str, first: int, second: int, **options: Any) -> Any:
    """Check that a run that is saved and loaded in the middle of a period goes on as the uninterrupted one."""
    with given_model(group, name, **options) as (model, wrapped, state):
        for step in range(first):
            averages_at(step, model, wrapped)
        buffer = io.BytesIO()
        torch.save(state.state_dict(), buffer)
        wanted = [crc(list(averages_at(step, model, wrapped).values())) for step in range(first, first + second)]
        decided = decisions(state.controller)
    with given_model(group, name, **options) as (model, wrapped, state):
        saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        state.load_state_dict(saved)
        results = [crc(list(averages_at(step, model, wrapped).values())) for step in range(first, first + second)]
        assert results == wanted
        assert decisions(state.controller) == decided
        own = f"rank{rank()}"
        others = [{"version": 1, own: {key: saved[own][key] for key in keys}} for keys in ((), ("averager", "tensors"))]
        assert_refused(*(partial(state.load_state_dict, other) for other in others))
    return wanted


def distributed_checkpoint(group: dist.ProcessGroup, name: str, folder: str, steps: int = 3) -> bool:
    """Save a state through ``torch.distributed.checkpoint`` and load it in place into a new one."""
    with given_model(group, name) as (model, wrapped, state):
        for step in range(steps):
            averages_at(step, model, wrapped)
        save({"hook": state}, checkpoint_id=folder, process_group=group)
        saved = state.state_dict()
        wanted = crc(list(averages_at(steps, model, wrapped).values()))
    with given_model(group, name) as (model, wrapped, state):
        empty = state.state_dict()
        load({"hook": state}, checkpoint_id=folder, process_group=group)
        assert state.state_dict() == saved != empty
        return crc(list(averages_at(steps, model, wrapped).values())) == wanted


def train(
    group: dist.ProcessGroup,
    name: str,
    steps: int = 8,
    *,
    branch: bool = False,
    narrow: bool = False,
    images: bool = False,
    accumulate: int = 1,
    **ddp: Any,
) -> tuple[Any, float, float]:
    """Train some steps; return a checksum of parameters and decisions, first and last loss."""
    model = Net(branch, narrow, images)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=group, **ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = gd.AdaptiveGradients(
        wrapped,
        PLANS.get(name, CompressionPlan(TopK(0.1))),
        copy.deepcopy(CONTROLLERS[name]),
        optimizer=optimizer,
        group=group,
        samples=16 * accumulate,
    )
    wrapped.register_comm_hook(state, gd.hook)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in parts_of_step(wrapped, accumulate):
            uses = (step % 2 == 0,) if branch and ddp.get("find_unused_parameters") else ()
            loss = loss_at(0, wrapped, *uses)
            loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert len(state.stats()["buckets"]) >= 3
    assert state.stats()["steps"] == steps
    return (crc(list(model.parameters())), repr(decisions(state.controller))), losses[0], losses[-1]


def join(group: dist.ProcessGroup, name: str) -> int:
    """Train ranks with different numbers of batches."""
    model = Net()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    state = gd.AdaptiveGradients(wrapped, TopK(0.1), copy.deepcopy(CONTROLLERS[name]), optimizer=optimizer, group=group)
    wrapped.register_comm_hook(state, gd.hook)
    with wrapped.join():
        take_steps(range(3 + 2 * rank()), wrapped, optimizer)
    return crc(list(model.parameters()))


def fault(group: dist.ProcessGroup, name: str, kind: str) -> list[str]:
    """Return what each step of this rank raised when rank 1 has another controller or learning rate, or raises."""
    patch: Any = contextlib.nullcontext()
    if rank() == 1 and kind == "raise":
        patch = mock.patch.object(Adaptive, "part", side_effect=MemoryError("no memory"))
    results = []
    with given_model(group, name) as (model, wrapped, state):
        if rank() == 1 and kind == "controller":
            state.adaptive.controller = copy.deepcopy(CONTROLLERS["clusters"])
        for step in range(3):
            if rank() == 1 and kind == "rate":
                state.optimizer.param_groups[0]["lr"] = 0.5
            with patch if step == 1 else contextlib.nullcontext():
                results.append(heard(partial(averages_at, step, model, wrapped), Exception).line)
            if results[-1]:
                break
    gd.close_lanes(group, patience=1.0)  # the next case gets a new one
    return results


def changing(group: dist.ProcessGroup, name: str) -> str:
    """Return what is raised when gradients come with another tensor compressed than before."""
    with given_model(group, name) as (model, wrapped, state):
        averages_at(0, model, wrapped)
        state.averager.plan = CompressionPlan(Dense(), min_values=7000)
        text = heard(lambda: averages_at(1, model, wrapped), Exception).text
        gd.close_lanes(group, patience=1.0)
    return text


def unknown_name(group: dist.ProcessGroup, name: str) -> str:
    """Return what the first step says of a compressor that is set by a name with DDP's prefix."""
    with given_model(group, name) as given:
        return said_of_unknown_name(given)
