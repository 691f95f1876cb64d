"""What the ranks of tests/distributed/test_compressors.py run. Every function here is one rank's part."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.adaptive import GraVAC, LGreCo
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import MomentumCorrection, WarmUp
from gcodec.averaging.simulate import Simulation
from gcodec.compressors import DGC, Compressor, Dense, PowerSGD, TopK
from gcodec.distributed.conversation import PAIRED, ConversationRunner
from gcodec.distributed.transport.message_exchange import DueMessage, MessageExchange
from gcodec.distributed.transport.transfers import Transfers
from tests.distributed.rank_basics import (
    Net,
    assert_refused,
    batch_of,
    crc,
    heard,
    loss_at,
    parts_of_step,
    rank,
    take_steps,
)
from tests.support.compressor_settings import PROMISES, norm, same

SHAPES = ((120, 70), (70,), (64, 9, 3, 3), (33, 200), (200,), (200, 51), (0, 4), (7, 7))
RATES = {"momentum": 0.9}


class Given(nn.Module):
    """Parameters whose gradients are what the batch says: the loss is their product with it."""

    def __init__(self, values: Sequence[torch.Tensor] = tuple(map(torch.zeros, SHAPES))) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(part.clone()) for part in values])

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss."""
        return torch.stack([(part * values).sum() for part, values in zip(self.parts, batch, strict=True)]).sum()


def gradients_of(step: int, who: int) -> dict[str, torch.Tensor]:
    """Return what rank ``who`` brings, known to all."""
    random = torch.Generator().manual_seed(100 * step + who)
    return {f"parts.{i}": torch.randn(shape, generator=random) * 0.01 for i, shape in enumerate(SHAPES)}


@contextlib.contextmanager
def given_model(
    group: dist.ProcessGroup, plan: CompressionPlan | Compressor, **options: Any
) -> Iterator[tuple[Given, Any, Any]]:
    """Return a model of given gradients under DDP, in buckets of 20 KB and more, and the hook's state."""
    model = Given()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02, process_group=group)
    state = gd.CompressedGradients(model, plan, group=group, **options)
    wrapped.register_comm_hook(state, gd.hook)
    yield model, wrapped, state
    del wrapped


def averages_at(step: int, model: Given, wrapped: Any) -> dict[str, torch.Tensor]:
    """Return what DDP makes of a step's gradients."""
    model.zero_grad()
    wrapped(list(gradients_of(step, rank()).values())).backward()
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


def follows(group: dist.ProcessGroup, name: str, steps: int = 4, paired: int = PAIRED) -> tuple[int, int]:
    """Averages are the simulator's, bit for bit, and what is sent and what is left telescopes, across a change of
    settings. ``paired``: bytes above which two ranks leave sums to Gloo."""
    with mock.patch("gcodec.distributed.conversation.PAIRED", paired):
        return _follows(group, name, steps)


def _follows(group: dist.ProcessGroup, name: str, steps: int) -> tuple[int, int]:
    promise, size = PROMISES[name], group.size()
    summed: dict[str, Any] = {}
    sent: dict[str, Any] = {}
    plan = CompressionPlan(promise.setting)
    simulation = Simulation(size, plan)
    results = []
    with given_model(group, plan) as (model, wrapped, state):
        for step in range(steps):
            if step == 2:
                for change in (state.compressors.__setitem__, simulation.set):
                    change("parts.0", TopK(0.2))
                    change("parts.5", PowerSGD(3))
            by_rank = [gradients_of(step, who) for who in range(size)]
            wanted, averages = simulation.average(by_rank)[0], averages_at(step, model, wrapped)
            for tensor, average in averages.items():
                assert same(average, wanted[tensor]), (step, tensor)
                total = torch.stack([own[tensor].double() for own in by_rank]).sum(0)
                summed[tensor] = summed.get(tensor, 0) + total
                sent[tensor] = sent.get(tensor, 0) + size * average.double()
                results.append(average.clone())
        for tensor, total in summed.items():
            left = state.averager.residual(tensor)
            left = torch.zeros_like(total) if left is None else left.double()
            dist.all_reduce(left, group=group)
            assert norm(total - sent[tensor] - left) <= 4 * max(promise.rounding, 1e-6) * norm(total), tensor
        numbers = state.stats()
    assert numbers["compressor"]["tensors"] == steps * len(SHAPES)
    return crc(results), len(numbers["buckets"])


def follows_in_other_orders(group: dist.ProcessGroup, name: str, steps: int = 3) -> int:
    """Check averages of parameters that do not lie row by row against the simulator's, and that residuals are theirs.

    A matrix of rank 2 is one only in the parameter's own order of values.
    """
    size, plan = group.size(), CompressionPlan(PROMISES[name].setting)

    def brought(step: int, who: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(100 * step + who)
        matrix = torch.randn(60, 2, generator=random) @ torch.randn(2, 48, generator=random)
        images = torch.randn(32, 8, 3, 3, generator=random)
        return {"parts.0": matrix.t().contiguous().t(), "parts.1": images.to(memory_format=torch.channels_last)}

    model = Given(list(brought(0, 0).values()))
    wrapped = DistributedDataParallel(model, process_group=group)
    state, simulation = gd.CompressedGradients(wrapped, plan), Simulation(size, plan)
    wrapped.register_comm_hook(state, gd.hook)
    for step in range(steps):
        by_rank = [brought(step, who) for who in range(size)]
        wanted = simulation.average(by_rank)[0]
        model.zero_grad()
        wrapped(list(by_rank[rank()].values())).backward()
        for key, param in model.named_parameters():
            assert param.grad is not None and same(param.grad, wanted[key]), (step, key)
            left, expected = state.averager.residual(key), simulation.ranks[rank()].residual(key)
            assert (left is None) == (expected is None)
            assert left is None or expected is None or same(left, expected), (step, key)
    return crc([param.grad for param in model.parameters() if param.grad is not None])


def resume(group: dist.ProcessGroup, name: str, first: int, second: int) -> None:
    """Check that a run that is saved and loaded goes on as the uninterrupted one."""
    plan = CompressionPlan(PROMISES[name].setting)
    with given_model(group, plan) as (model, wrapped, state):
        for step in range(first):
            averages_at(step, model, wrapped)
        buffer = io.BytesIO()
        torch.save(state.state_dict(), buffer)
        wanted = [crc(list(averages_at(step, model, wrapped).values())) for step in range(first, first + second)]
    with given_model(group, plan) as (model, wrapped, state):
        state.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
        assert [
            crc(list(averages_at(step, model, wrapped).values())) for step in range(first, first + second)
        ] == wanted
        assert_refused(lambda: state.load_state_dict({"version": 1, f"rank{1 - rank()}": {}}))


def distributed_checkpoint(group: dist.ProcessGroup, name: str, folder: str) -> bool:
    """Save a state through ``torch.distributed.checkpoint`` and load it in place into a new one."""
    plan = CompressionPlan(PROMISES[name].setting)
    with given_model(group, plan) as (model, wrapped, state):
        for step in range(3):
            averages_at(step, model, wrapped)
        save({"hook": state}, checkpoint_id=folder, process_group=group)
        saved = state.state_dict()
    with given_model(group, plan) as (model, wrapped, state):
        empty = state.state_dict()
        load({"hook": state}, checkpoint_id=folder, process_group=group)
        return bool(state.state_dict() == saved != empty)


def train(
    group: dist.ProcessGroup,
    plan_name: str,
    steps: int = 6,
    *,
    rate: float = 0.02,
    branch: bool = False,
    narrow: bool = False,
    images: bool = False,
    accumulate: int = 1,
    poison: bool = False,
    **ddp: Any,
) -> tuple[int, float, float, int]:
    """Train some steps; return a checksum of the parameters, first and last loss, and tensors that were dropped."""
    plans = {
        "dgc": CompressionPlan(WarmUp(DGC(0.02), steps=2, stages=2), MomentumCorrection(0.9, clip=5.0)),
        **{name: CompressionPlan(promise.setting) for name, promise in PROMISES.items()},
    }
    model = Net(branch, narrow, images)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=group, **ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    state = gd.CompressedGradients(wrapped, plans[plan_name], optimizer=optimizer, group=group)
    wrapped.register_comm_hook(state, gd.hook)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for _ in parts_of_step(wrapped, accumulate):
            x, y = batch_of(0)
            if poison and step == 1 and rank() == 0:
                x[0, 0] = float("nan")
            arguments = (x, step % 2 == 0) if branch and ddp.get("find_unused_parameters") else (x,)
            loss = nn.functional.cross_entropy(wrapped(*arguments), y)
            loss.backward()
        losses.append(float(loss))
        if poison and step == 1:  # a scaler would leave out this step
            assert all(bool(torch.isnan(param.grad).any()) for param in model.parameters() if param.grad is not None)
            continue
        optimizer.step()
    numbers = state.stats()
    assert len(numbers["buckets"]) >= 3
    assert numbers["steps"] == steps
    return crc(list(model.parameters())), losses[0], losses[-1], numbers["compressor"]["dropped"]


def unused(group: dist.ProcessGroup, name: str, told: bool, **ddp: Any) -> tuple[list[bool], list[torch.Tensor]]:
    """A branch that some steps use on all ranks, on one, on none: whether it had a gradient, the sum of what came of
    these, and this rank's residual less its own gradients. ``told``: whether the state knows what DDP was told."""
    model, alone = Net(branch=True), Net(branch=True)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=group, find_unused_parameters=True, **ddp)
    state = gd.CompressedGradients(wrapped if told else model, PROMISES[name].setting, group=group)
    wrapped.register_comm_hook(state, gd.hook)
    assert model.branch is not None
    assert alone.branch is not None
    weight, there = model.branch.weight, []
    total, owed = torch.zeros_like(weight), torch.zeros_like(weight)
    for step, uses in enumerate((True, False, rank() == 0, False, True)):
        model.zero_grad()
        loss_at(step, wrapped, uses).backward()
        there.append(weight.grad is not None)
        total += 0 if weight.grad is None else weight.grad
        if uses:
            owed -= torch.autograd.grad(loss_at(step, alone), alone.branch.weight)[0]
    owed += state.averager.memories["branch.weight"]["residual"]
    return there, [total.detach(), owed.detach()]


def join(group: dist.ProcessGroup, name: str) -> int:
    """Train ranks with different numbers of batches."""
    model = Net()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=group)
    state = gd.CompressedGradients(model, PROMISES[name].setting, group=group)
    wrapped.register_comm_hook(state, gd.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    with wrapped.join():
        take_steps(range(3 + 2 * rank()), wrapped, optimizer)
    return crc(list(model.parameters()))


def accounts(group: dist.ProcessGroup, name: str, paired: int) -> dict[str, float]:
    """What was sent and received, as counted and as handed to the network; ``reduced``: by Gloo, above ``paired``
    bytes."""
    handed = 0
    original = Transfers.send

    def send(self: Any, peer: int, tag: int, buffer: torch.Tensor, n: int) -> None:
        nonlocal handed
        handed += n
        original(self, peer, tag, buffer, n)

    with (
        mock.patch.object(Transfers, "send", send),
        mock.patch("gcodec.distributed.conversation.PAIRED", paired),
        given_model(group, PROMISES[name].setting) as (model, wrapped, state),
    ):
        for step in range(3):
            averages_at(step, model, wrapped)
        numbers = state.stats()
    reduced = 3 * sum(
        torch.Size(shape).numel() * 4 for i, shape in enumerate(SHAPES) if not state.plan.compresses(model.parts[i])
    )
    return {
        **numbers,
        "handed": handed,
        "reduced": 0 if paired else 2 * (group.size() - 1) / group.size() * reduced,
        **{f"payload_{key}": value for key, value in numbers["compressor"].items()},
    }


def foreign_states(group: dist.ProcessGroup, controlled: bool) -> list[str]:
    """Return what is said of states of a model whose names, or whose shapes, are other ones."""

    def made(model: nn.Module) -> Any:
        wrapped = DistributedDataParallel(model, process_group=group)
        state: Any = gd.CompressedGradients(wrapped, TopK(0.1))
        if controlled:
            state = gd.AdaptiveGradients(wrapped, TopK(0.1), LGreCo(TopK(0.1)))
        wrapped.register_comm_hook(state, gd.hook)
        return wrapped, state

    wrapped, state = made(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    wrapped(torch.randn(8, 64)).sum().backward()
    saved, said = state.state_dict(), []
    others: list[Any] = [
        torch.compile(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))),
        nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 64)),
    ]
    for other in others:
        wrapped, state = made(other)
        said.append(heard(partial(state.load_state_dict, saved), gcodec.InvalidArgument).text)
    return said


def unknown_name(group: dist.ProcessGroup) -> str:
    """Return what a step says of a compressor that is set by a name with DDP's prefix."""
    with given_model(group, TopK(0.1)) as given:
        return said_of_unknown_name(given)


def added_parameter(group: dist.ProcessGroup) -> str:
    """Return what a step says of a parameter that the model got after its state was made."""
    model = nn.Sequential(nn.Linear(8, 8))
    state = gd.CompressedGradients(model, TopK(0.1), group=group)
    model.append(nn.Linear(8, 3))
    wrapped = DistributedDataParallel(model, process_group=group)
    wrapped.register_comm_hook(state, gd.hook)
    # Of DDP, of the hook.
    return heard(lambda: wrapped(torch.ones(2, 8)).sum().backward(), RuntimeError, gcodec.InvalidArgument).text


def said_of_unknown_name(given: tuple[Given, Any, Any]) -> str:
    """Return what the first step of a model says once a compressor is set by such a name; empty if nothing."""
    model, wrapped, state = given
    state.compressors["module.parts.0"] = PowerSGD(2)
    # Of DDP, of the hook.
    return heard(lambda: averages_at(0, model, wrapped), RuntimeError, gcodec.InvalidArgument).text


def refusals(group: dist.ProcessGroup) -> None:
    """Check that arguments without a meaning are refused."""
    model = Given()
    plan = CompressionPlan(DGC(0.1), MomentumCorrection())
    assert_refused(
        lambda: gd.CompressedGradients(model, plan),
        lambda: gd.CompressedGradients(model, plan, optimizer=torch.optim.SGD(model.parameters(), 1, 0.9)),
        lambda: gd.CompressedGradients(model, plan, optimizer=torch.optim.Adam(model.parameters())),
    )


def states_of_every_kind(group: dist.ProcessGroup) -> dict[str, Any]:
    """Return a state of the hook of each kind, by name."""
    model = Given()
    return {
        "codec": gd.CompressedAllreduce(group=group),
        "compressor": gd.CompressedGradients(model, TopK(0.1), group=group),
        "gravac": gd.AdaptiveGradients(model, TopK(0.1), GraVAC(TopK(0.1)), group=group),
        "lgreco": gd.AdaptiveGradients(model, TopK(0.1), LGreCo(TopK(0.1)), group=group),
    }


def states_of_other_kinds(group: dist.ProcessGroup) -> None:
    """Check that a state's checkpoint is refused by the states of other kinds."""
    states = states_of_every_kind(group)
    for name, state in states.items():
        others = [each.state_dict() for other, each in states.items() if other != name]
        assert_refused(*(partial(state.load_state_dict, saved) for saved in others))


def drawn(group: dist.ProcessGroup) -> bool:
    """Return whether making states leaves torch's own generator as it is, of which dropout and data loaders draw."""
    before = torch.get_rng_state()
    states_of_every_kind(group)
    return torch.equal(before, torch.get_rng_state())


# ---------------------------------------------------------------------------------------------------- Faults


def fault(group: dist.ProcessGroup, kind: str) -> list[str]:
    """Return what each step of this rank raised when rank 1 sends damage, or does something else."""
    setting: Compressor = TopK(0.05)
    patch: Any = contextlib.nullcontext()
    if rank() == 1 and kind == "setting":
        setting = TopK(0.06)
    if rank() == 1 and kind == "damage":
        original = ConversationRunner._first_message

        def note(self: ConversationRunner, exchange: MessageExchange, due: DueMessage, payload: bytes) -> Any:
            message = original(self, exchange, due, payload)
            if exchange.sequence >= 2 and len(message) > 200:
                message[150] ^= 1
            return message

        patch = mock.patch.object(ConversationRunner, "_first_message", note)
    if rank() == 1 and kind == "raise":
        patch = mock.patch.object(TopK, "select", side_effect=MemoryError("no memory"))
    if kind == "larger":
        setting = Dense() if rank() == 1 else PowerSGD(1)
    if kind == "between reduces":
        setting = PowerSGD(3)
        if rank() == 1:
            patch = mock.patch("gcodec.compressors.powersgd.orthonormal", side_effect=MemoryError("no memory"))
    results = []
    with given_model(group, setting) as (model, wrapped, _), patch:
        for step in range(3):
            results.append(heard(partial(averages_at, step, model, wrapped), Exception).line)
            if results[-1]:
                break
    gd.close_lanes(group, patience=1.0)  # the next case gets a new one
    return results
