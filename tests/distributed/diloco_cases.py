"""Cases that the ranks of tests/distributed/test_diloco.py run, in a Gloo world."""

from __future__ import annotations

import io
import itertools
from copy import deepcopy
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

import gcodec
import gcodec.distributed as gd
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback, MomentumCorrection
from gcodec.compressors import QSGD, Blockwise, PowerSGD, TopK
from gcodec.compressors.sparse import pack_sparse
from gcodec.distributed import visible
from tests.distributed.rank_basics import (
    Net,
    assert_refused,
    crc,
    dense_sum,
    from_all,
    heard,
    only_on,
    rank,
    sabotage,
    size,
    take_steps,
)

NESTEROV: dict[str, Any] = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


class Run:
    """A model, its inner optimizer and the outer loop; ``start``: the model's parameters before that is made."""

    def __init__(
        self, mode: str, every: int = 3, narrow: bool = False, lr: float = 0.002, start: Any = None, **options: Any
    ) -> None:
        torch.manual_seed(10 + rank())  # ranks begin apart
        self.model = Net(narrow=narrow)
        with torch.no_grad():
            for item in self.model.parameters():
                item.add_(torch.randn_like(item) * 0.01)
        if start is not None:
            self.model.load_state_dict(start)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=lr)
        outer = torch.optim.SGD(self.model.parameters(), **NESTEROV)
        modes: dict[str, Any] = {
            "lossless": gd.Lossless(),
            "fixed": gd.FixedBits(8),
            "near": gd.NearLossless(outer),
            "visible": gd.Visible(),
            "visible, rounded": gd.Visible(torch.float16, 4),
            "2 bits": CompressionPlan(Blockwise(2, block=50), min_values=0, vectors=True),
            "int4": "int4",
            "topk": TopK(0.03, mantissa_bits=1),
            "qsgd": QSGD(4),
            "powersgd": PowerSGD(2),
            "fading": CompressionPlan(Blockwise(3), ErrorFeedback(0.9)),
        }
        self.diloco = gd.DiLoCo(outer, every, mode=modes[mode], threads=1, **options)
        self.params = list(self.model.parameters())

    def step(self, number: int) -> float:
        """Take one inner step and return its loss."""
        return take_steps([number % 5], self.model, self.inner)

    def crc(self) -> int:
        """Return a checksum of the parameters."""
        return crc([item.detach() for item in self.params])


def strided() -> list[int]:
    """Return checksums, from the start on, of parameters that lie in memory with gaps, or in other orders on other
    ranks, and check that nothing is written into the gaps."""
    torch.manual_seed(20 + rank())  # ranks begin apart
    memory = torch.full((300, 200), 7.0)
    gaps = memory[:200, ::2]
    gaps.copy_(torch.randn(200, 100))
    turned = torch.randn(150, 120)
    params = [nn.Parameter(gaps), nn.Parameter(turned if rank() else turned.t().contiguous().t())]
    diloco = gd.DiLoCo(torch.optim.SGD(params, **NESTEROV), 1)
    checksums = [crc([item.detach().contiguous() for item in params])]
    for _ in range(2):
        with torch.no_grad():
            for item in params:
                item.add_(torch.randn(item.shape) * 0.01)
        diloco.step()
        checksums.append(crc([item.detach().contiguous() for item in params]))
    assert bool((memory[200:] == 7).all())
    assert bool((memory[:, 1::2] == 7).all())
    return checksums


def law() -> list[int]:
    """Check that lossless outer steps are the outer optimizer's, with the mean in the order of ranks, bit for bit."""
    run = Run("lossless", min_bytes=1)
    copies = [nn.Parameter(item.detach().clone()) for item in run.params]
    outer = torch.optim.SGD(copies, **NESTEROV)
    results = [run.crc()]
    for number in range(9):
        run.step(number)
        gradients = [item.grad.clone() for item in run.params if item.grad is not None]
        for item, copy in zip(run.params, copies, strict=True):
            copy.grad = dense_sum([copy.detach() - there for there in from_all(item)], True)
        if run.diloco.step():
            outer.step()
            assert all(torch.equal(item, copy) for item, copy in zip(run.params, copies, strict=True))
            results.append(run.crc())
        kept = [item.grad for item in run.params if item.grad is not None]
        assert all(torch.equal(item, before) for item, before in zip(kept, gradients, strict=True))
    return results


def overlapped_law(mixing: float) -> list[int]:
    """Check that an exchange that overlaps with steps is of the parameters at its beginning, and that the outer step is
    taken when it is due: bit for bit the outer optimizer's, mixed with the rank's own. Return checksums of the
    parameters after each outer step, as ranks share them."""
    run = Run("lossless", every=9, parts=gd.Streaming(3, 2, mixing), min_bytes=1)
    copies = [nn.Parameter(item.detach().clone()) for item in run.params]
    outer = torch.optim.SGD(copies, **NESTEROV)
    results, turn = [], list[int]()
    for number in range(20):
        run.step(number)
        gradients = [item.grad.clone() for item in run.params if item.grad is not None]
        own = [item.detach().clone() for item in run.params]
        begins, ends = number % 3 == 2, number > 2 and number % 3 == 1
        if begins:
            turn = run.diloco._turns[number // 3 % 3]
            for index, copy in enumerate(copies):
                mean = dense_sum([copy.detach() - there for there in from_all(own[index])], True)
                copy.grad = mean if index in turn else None
        assert run.diloco.step() == ends
        if ends:
            outer.step()
            results.append(crc([item.detach() for item in copies]))
        for index, (item, anchor) in enumerate(zip(run.params, run.diloco._anchors, strict=True)):
            assert torch.equal(anchor, copies[index])
            mixed = torch.lerp(anchor, own[index], mixing) if ends and index in turn else own[index]
            assert torch.equal(item, mixed)
        kept = [item.grad for item in run.params if item.grad is not None]
        assert all(torch.equal(item, before) for item, before in zip(kept, gradients, strict=True))
    return results


def ahead() -> int:
    """Check that a rank goes on while others have not come to the exchange yet, and return a checksum of what ranks
    share after the outer step. Where a rank waited for it, that would be an error after the timeout."""
    run, waited = (
        Run("2 bits", every=2, parts=gd.Streaming(1, 1), group=dist.new_group(), timeout=timedelta(seconds=20)),
        False,
    )
    for turn in range(size()):
        if turn == rank():
            for number in range(2):
                run.step(number)
                try:
                    assert not run.diloco.step()
                except gcodec.PeerError:
                    waited = True
            run.step(2)
        dist.barrier()
    assert not waited
    assert run.diloco.step()
    return crc(run.diloco._anchors)


def flushed_amid() -> tuple[int, bool]:
    """Check that a flush applies the exchange that has begun, and return a checksum of the parameters, and whether a
    state still holds an exchange."""
    run = Run("2 bits", every=6, parts=gd.Streaming(3, 1))
    for number in range(4):
        run.step(number)
        run.diloco.step()
    before = [item.clone() for item in run.diloco._anchors]
    assert run.diloco.state_dict()["version"] == 2
    turn = run.diloco._turns[1]
    applied: list[list[bool]] = []
    run.diloco.optimizer.register_step_pre_hook(
        lambda *_: applied.append([item.grad is not None for item in run.params])
    )
    run.diloco.flush()
    assert applied == [[index in turn for index in range(len(before))], [True] * len(before)]
    assert all(torch.equal(item, anchor) for item, anchor in zip(run.params, run.diloco._anchors, strict=True))
    return run.crc(), "overlapped" in run.diloco.state_dict()


def resumed_otherwise(overlap_steps: int) -> tuple[int, bool]:
    """Check that an exchange that a state holds is applied, when it is due or at the latest ahead of the next one, by a
    loop that has other parts and overlaps. Return a checksum of what ranks share, and whether it has been applied."""
    run = Run("2 bits", every=12, parts=gd.Streaming(2, 5))
    for number in range(7):
        run.step(number)
        run.diloco.step()
    state = run.diloco.state_dict()
    again = Run("2 bits", every=9, parts=gd.Streaming(1, overlap_steps), group=dist.new_group())
    again.model.load_state_dict(run.model.state_dict())
    again.diloco.load_state_dict(state)
    assert torch.equal(again.diloco._anchors[0], state["anchors"][0])
    again.step(7)
    assert not again.diloco.step()
    again.step(8)
    return crc(again.diloco._anchors), again.diloco.step()


def silent() -> str:
    """Return what a rank hears at the step that ends an exchange to which the last rank never comes, and check that
    the parameters are then those of the last outer step."""
    Run(
        "lossless", every=3, parts=gd.Streaming(1, 2), group=dist.new_group(), min_bytes=1
    )  # so that the next one is soon made
    dist.barrier()
    run = Run(
        "lossless", every=3, parts=gd.Streaming(1, 2), group=dist.new_group(), timeout=timedelta(seconds=3), min_bytes=1
    )
    text, own = "", 0
    if rank() < size() - 1:
        for number in range(4):
            run.step(number)
            assert not run.diloco.step()
        run.step(4)
        own = run.crc()
        text = heard(run.diloco.step, gcodec.PeerError).text
    dist.barrier()
    if text:
        assert run.crc() == crc(run.diloco._anchors) != own
        assert "overlapped" not in run.diloco.state_dict()
    return text


def conservation(mode: str, overlap_steps: int = 0) -> tuple[list[int], float]:
    """Check that what was sent plus the residual is what was to be sent, on every rank and for every value.

    In a round, bit for bit; over rounds, up to the rounding of one addition in each.
    """
    run = Run(mode, lr=2e-5, parts=gd.Streaming(1, overlap_steps))
    exchange = run.diloco._kept_back
    assert exchange is not None and len(run.params) >= 3
    setting = exchange.averager.plan.compressor
    copies = [nn.Parameter(item.detach().clone()) for item in run.params]
    outer = torch.optim.SGD(copies, **NESTEROV)
    watched: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    exchange.averager.watch = lambda name, corrected, outcome: watched.update(
        {name: (corrected.clone(), outcome.contribution.clone())}
    )
    to_send, sent, bound = ([torch.zeros_like(item, dtype=torch.float64) for item in copies] for _ in range(3))
    checksums = []
    for number in range(12):
        run.step(number)
        if number % 3 == 2:  # an exchange begins
            gradients = [copy.detach() - item.detach() for item, copy in zip(run.params, copies, strict=True)]
            found = [exchange.averager.residual(str(index)) for index in range(len(copies))]
            before = [None if residual is None else residual.clone() for residual in found]
        if not run.diloco.step():
            continue
        for index, (gradient, copy) in enumerate(zip(gradients, copies, strict=True)):
            corrected, contribution = watched[str(index)]
            residual, earlier = exchange.averager.residual(str(index)), before[index]
            if residual is None:  # of what is sent uncompressed
                assert mode == "topk" and copy.dim() < 2
                residual = torch.zeros_like(corrected)
            assert torch.equal(corrected, gradient if earlier is None else gradient + earlier)
            assert torch.equal(residual, corrected - contribution)
            if mode != "2 bits":  # whose contributions are not values that were to be sent
                assert torch.equal(contribution + residual, corrected)
            if isinstance(setting, gd.Visible):
                view, weight = setting.view, copy.detach()
                seen = (weight - corrected).to(view) != weight.to(view)
                assert torch.equal(contribution[~seen], torch.zeros_like(contribution[~seen]))
                if mode == "visible":
                    assert torch.equal(contribution[seen], corrected[seen])
            to_send[index] += gradient
            sent[index] += contribution
            bound[index] += (corrected.abs() + residual.abs()).double() * 2.0**-24
            assert bool(((sent[index] + residual - to_send[index]).abs() <= bound[index]).all())
            copy.grad = dense_sum(from_all(contribution), True)
        outer.step()
        anchors = run.diloco._anchors
        if isinstance(setting, gd.Visible):
            assert all(torch.equal(item, copy) for item, copy in zip(anchors, copies, strict=True))
        else:  # which round sums once more: what that takes is in a residual
            assert all(torch.allclose(item, copy, atol=1e-6) for item, copy in zip(anchors, copies, strict=True))
            with torch.no_grad():
                for item, copy in zip(anchors, copies, strict=True):
                    copy.copy_(item)
        assert overlap_steps or run.crc() == crc(anchors)
        checksums.append(crc(anchors))
    return checksums, exchange.share


def flushed(name: str = "visible") -> bool:
    """Check that after a flush the parameters are those of the lossless mode, bit for bit, and no residual is left.

    All values are multiples of the same power of two, and means too, so that no order of additions rounds.
    """
    random = torch.Generator().manual_seed(rank())
    shapes = [(40, 30), (70,), (), (0,), (5, 4, 3)]
    loops = []
    keeping = {"visible": gd.Visible(), "topk": CompressionPlan(TopK(0.1), min_values=0, vectors=True)}[name]
    modes: list[Any] = [gd.Lossless(), keeping]
    for mode in modes:
        params = [nn.Parameter(torch.full(shape, 1.5)) for shape in shapes]
        outer = torch.optim.SGD(params, lr=1.0)
        loops.append((params, gd.DiLoCo(outer, 1, mode=mode, threads=1, group=dist.new_group())))
    (plain, _), (kept_back, diloco) = loops
    for _ in range(5):
        updates = [torch.randint(-40, 80, shape, generator=random) * (size() * 2.0**-16) for shape in shapes]
        for params, loop in loops:
            with torch.no_grad():
                for param, update in zip(params, updates, strict=True):
                    param.sub_(update)
            loop.step()
    assert not torch.equal(plain[0], kept_back[0])
    assert "residual" in diloco.state_dict()
    diloco.flush()
    assert all(torch.equal(a, b) for a, b in zip(plain, kept_back, strict=True))
    assert "residual" not in diloco.state_dict()
    return True


def half_flushed() -> str:
    """Return what a rank hears if one flushes where the others count a step."""
    run = Run("visible", every=1, group=dist.new_group(), timeout=timedelta(seconds=20))
    run.step(0)
    return heard(run.diloco.step if rank() else run.diloco.flush, gcodec.PeerError).text


def train(mode: str, narrow: bool = False, steps: int = 18) -> tuple[int, float, float, float]:
    """Return a checksum after the last outer step, the first and last round's loss, and the ratio."""
    run = Run(mode, narrow=narrow, min_bytes=1000)
    losses = []
    for number in range(steps):
        losses.append(run.step(number))
        run.diloco.step()
    return run.crc(), sum(losses[:5]) / 5, sum(losses[-5:]) / 5, run.diloco.stats()["ratio"]


def resume(mode: str, parts: int = 1, overlap_steps: int = 0, every: int = 3) -> bool:
    """Check that a run that is interrupted in the middle of a round, and where exchanges overlap with steps in the
    middle of one, goes on as if it had not been."""
    options: dict[str, Any] = {"parts": gd.Streaming(parts, overlap_steps), "every": every}
    run = Run(mode, lr=2e-4, min_bytes=1000, **options)
    saved = io.BytesIO()
    for number in range(12):
        if number == 7:
            state = {
                "model": run.model.state_dict(),
                "inner": run.inner.state_dict(),
                "diloco": run.diloco.state_dict(),
            }
            assert ("overlapped" in state["diloco"]) == (overlap_steps > 0)
            torch.save(state, saved)
        run.step(number)
        run.diloco.step()
    again = Run(mode, lr=2e-4, min_bytes=1000, **options)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    again.model.load_state_dict(loaded["model"])
    again.inner.load_state_dict(loaded["inner"])
    again.diloco.load_state_dict(loaded["diloco"])
    for number in range(7, 12):
        again.step(number)
        again.diloco.step()
    return (run.crc(), crc(run.diloco._anchors)) == (again.crc(), crc(again.diloco._anchors))


def corrupted(culprit: int, mode: str, overlap_steps: int = 0) -> tuple[str, bool]:
    """Return what step() raises when one rank's messages are damaged, and whether all is as after the last round."""
    options: dict[str, Any] = {"every": 1 + overlap_steps, "parts": gd.Streaming(1, overlap_steps)}
    run = Run(mode, lr=1e-4, group=dist.new_group(), min_bytes=1, timeout=timedelta(seconds=20), **options)
    for number in range(1 + 2 * overlap_steps):
        run.step(number)
        run.diloco.step()
    before, residual = crc(run.diloco._anchors), crc_of_residual(run)
    damage = {"lossless": lambda: sabotage("payload"), "visible": last_payload_damaged, "2 bits": last_result_damaged}
    with only_on(culprit, damage[mode]()):
        for number in range(overlap_steps):  # up to where the next exchange begins, and on
            run.step(number)
            assert not run.diloco.step()
        run.step(1)
        text = heard(run.diloco.step).text
    return text, (run.crc(), crc_of_residual(run)) == (before, residual)


def last_payload_damaged() -> Any:
    """Return the patch that damages a rank's payload for the last parameter, after which others have been read."""
    pack, count = pack_sparse, itertools.count(1)

    def damaged(flat: torch.Tensor, *rest: Any) -> bytes:
        payload = pack(flat, *rest)
        return payload if next(count) % 8 else payload[:-1] + bytes([payload[-1] ^ 1])

    return mock.patch.object(visible, "pack_sparse", damaged)


def last_result_damaged() -> Any:
    """Return the patch that damages a rank's sum of the last parameter, after which all else has been read."""
    pack, count = Blockwise.pack, itertools.count(1)

    def damaged(self: Blockwise, flat: torch.Tensor, decoded: torch.Tensor | None = None) -> bytes:
        payload = pack(self, flat, decoded)
        return payload if next(count) % (8 * (size() + 1)) else payload[:-1] + bytes([payload[-1] ^ 1])

    return mock.patch.object(Blockwise, "pack", damaged)


def crc_of_residual(run: Run) -> int:
    """Return a checksum of a run's residuals."""
    tensors = run.diloco.state_dict().get("residual", {"tensors": {}})["tensors"]
    return crc([memory["residual"] for memory in tensors.values()])


def refused_states() -> None:
    """Check that a state with a residual is refused where it would be lost, or is not this rank's."""
    run, plain = Run("visible", every=1, lr=1e-4), Run("lossless", every=1)
    run.step(0)
    run.diloco.step()
    state = run.diloco.state_dict()
    residual = state["residual"]
    name, memory = next(iter(residual["tensors"].items()))
    other = {"residual": memory["residual"].view(-1)[:2]}
    bad = [
        (plain, state),
        *(
            (run, {**state, "residual": changed})
            for changed in (
                {**residual, "rank": rank() + 1},
                {**residual, "size": size() + 1},
                3,
                {**residual, "tensors": {name: other}},
                {**residual, "tensors": {"99": memory}},
                {**residual, "tensors": {name: None}},
            )
        ),
    ]
    before = run.crc(), crc_of_residual(run)
    for loop, wrong in bad:
        assert_refused(partial(loop.diloco.load_state_dict, wrong), text="residual")
    assert (run.crc(), crc_of_residual(run)) == before
    run.diloco.load_state_dict({key: value for key, value in state.items() if key != "residual"})
    assert "residual" not in run.diloco.state_dict()


def grown() -> str:
    """Return what an outer step says when its optimizer has got a parameter since; ranks have other gradients of it."""
    outer = torch.optim.SGD([nn.Parameter(torch.ones(300))], lr=0.7)
    diloco = gd.DiLoCo(outer, 1)
    diloco.step()
    late = nn.Parameter(torch.ones(300))
    late.grad = torch.full((300,), float(1 + rank()))
    outer.add_param_group({"params": [late]})
    text = heard(diloco.step, gcodec.InvalidArgument).text
    assert bool((late == 1).all())
    return text


def refusals() -> None:
    """Check that senseless arguments are refused."""
    real = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)
    pair = torch.optim.SGD([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))], lr=1.0)
    waves = torch.optim.SGD([nn.Parameter(torch.zeros(3, dtype=torch.complex64))], lr=1.0)
    narrow = torch.optim.SGD([nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], lr=1.0)
    mesh = init_device_mesh("cpu", (size(),))
    doubles = torch.optim.SGD([nn.Parameter(torch.zeros(3, dtype=torch.float64))], lr=1.0)
    sharded = torch.optim.SGD([nn.Parameter(distribute_tensor(torch.zeros(6, 4), mesh))], lr=1.0)
    expanded = torch.optim.SGD([nn.Parameter(torch.zeros(3, 1).expand(3, 4))], lr=1.0)
    for inner, why in ((torch.optim.LBFGS, "no closure"), (torch.optim.SparseAdam, "dense")):
        assert_refused(partial(gd.DiLoCo, inner([nn.Parameter(torch.zeros(3))]), 1), text=why)
    assert_refused(
        lambda: gd.DiLoCo(sharded, 1),
        lambda: gd.DiLoCo(expanded, 1),
        lambda: gd.DiLoCo(nn.Linear(3, 4), 1),  # type: ignore[arg-type]
        lambda: gd.DiLoCo(real, 0),
        lambda: gd.DiLoCo(narrow, 1, mode=gd.Visible()),
        lambda: gd.Visible(torch.float32),
        lambda: gd.DiLoCo(real, 1, mode=CompressionPlan(TopK(0.1), MomentumCorrection())),
        lambda: gd.DiLoCo(real, 3, parts=2),
        lambda: gd.DiLoCo(real, 2, parts=2),  # of one parameter
        lambda: gd.DiLoCo(real, 2, parts=0),
        lambda: gd.DiLoCo(real, 3, parts=gd.Streaming(1, 3)),
        lambda: gd.DiLoCo(pair, 4, parts=gd.Streaming(2, 2)),
        lambda: gd.Streaming(1, -1),
        lambda: gd.Streaming(0),
        lambda: gd.Streaming(1, 1, 1.0),
        lambda: gd.Streaming(1, 1, float("nan")),
        lambda: gd.DiLoCo(real, 3, parts=gd.Streaming(1, 1), mode=gd.NearLossless(real)),
        lambda: gd.Visible(mantissa_bits=0),
        lambda: gd.DiLoCo(waves, 1),
        lambda: gd.DiLoCo(real, 1).load_state_dict({"version": 2}),
        lambda: gd.DiLoCo(real, 1).load_state_dict({"version": 1}),
        lambda: gd.DiLoCo(real, 1).load_state_dict(gd.DiLoCo(doubles, 1).state_dict()),
    )
    loop = gd.DiLoCo(real, 1)
    state = loop.state_dict()
    moved = {**state, "steps": 7, "anchors": [anchor + 1 for anchor in state["anchors"]]}
    amid = {**moved, "version": 2}
    average: dict[str, Any] = {"numbers": [0], "due": 9, "averages": [torch.ones(3)]}
    for bad in (
        {**state, "steps": -1},
        {**moved, "steps": True},
        {**moved, "optimizer": {}},
        amid,
        {**amid, "overlapped": None},
        {**amid, "overlapped": {**average, "numbers": [1]}},
        {**amid, "overlapped": {**average, "numbers": []}},
        {**amid, "overlapped": {**average, "due": 0}},
        {**amid, "overlapped": {**average, "averages": [torch.ones(2)]}},
        {**amid, "overlapped": {**average, "averages": [1.0]}},
    ):
        assert_refused(partial(loop.load_state_dict, bad))
        now = loop.state_dict()
        assert now["steps"] == 0 and all(map(torch.equal, now["anchors"], state["anchors"]))
    for known in ("Visible()", "'int8'"):
        assert_refused(lambda: gd.DiLoCo(real, 1, mode="visible"), text=known)
    elsewhere = torch.optim.SGD([nn.Parameter(torch.zeros(3, device="meta"))], lr=1.0)
    assert_refused(lambda: gd.DiLoCo(elsewhere, 1), by=gcodec.Unsupported, text="meta")


def in_turns(mode: str) -> list[int]:
    """Check that parts take turns, and return checksums of each part after its exchange, and of all after a flush."""
    run = Run(mode, every=6, lr=1e-4, parts=3, min_bytes=1)
    assert sorted(number for turn in run.diloco._turns for number in turn) == [*range(len(run.params))]
    results = turns_taken(run, range(13), mode == "lossless")
    run.diloco.flush()
    return [*results, run.crc()]


def turns_taken(run: Run, numbers: range, lossless: bool) -> list[int]:
    """Check that parts of the parameters are exchanged in turns in these steps, a part every second step: each as alone
    by the outer optimizer, the others left as they are. Return checksums of each part after its exchange."""
    copies = [nn.Parameter(item.detach().clone()) for item in run.params]
    outer, results = torch.optim.SGD(copies, **NESTEROV), []
    outer.load_state_dict(deepcopy(run.diloco.optimizer.state_dict()))
    for number in numbers:
        run.step(number)
        before = [item.detach().clone() for item in run.params]
        took = run.diloco.step()
        turn = run.diloco._turns[(number // 2) % 3] if number % 2 else []
        assert took == bool(turn)
        for index, item in enumerate(run.params):
            if index not in turn:
                assert torch.equal(item, before[index])
        if turn and lossless:
            for index, copy in enumerate(copies):
                copy.grad = None
                if index in turn:
                    copy.grad = dense_sum([copy.detach() - there for there in from_all(before[index])], True)
            outer.step()
            assert all(torch.equal(run.params[index], copies[index]) for index in turn)
        results.append(crc([run.params[index].detach() for index in turn]))
    return results


def joined(mode: str) -> list[int]:
    """Check that the last rank, which joins after a flush between the turns of parts, has the others' parameters,
    momentum and turn. Return checksums of each part that was exchanged since, and of all after a flush."""
    options: dict[str, Any] = {"every": 6, "lr": 1e-4, "parts": 3, "min_bytes": 1}
    few, start = dist.new_group([*range(size() - 1)]), None
    states: list[Any] = [None]
    if rank() < size() - 1:
        run = Run(mode, group=few, **options)
        for number in range(5):
            run.step(number)
            run.diloco.step()
        run.diloco.flush()
        start, states = run.model.state_dict(), [run.diloco.state_dict()]
    dist.broadcast_object_list(states)
    (state,) = states
    again = Run(mode, start=start, group=dist.new_group(), **options)
    again.diloco.load_state_dict(state)
    assert all(torch.equal(item, anchor) for item, anchor in zip(again.params, state["anchors"], strict=True))
    assert all(again.diloco.optimizer.state[item]["momentum_buffer"].any() for item in again.params)
    results = turns_taken(again, range(5, 13), mode == "lossless")
    again.diloco.flush()
    return [*results, again.crc()]


def left(mode: str) -> list[int]:
    """Return checksums of the ranks that go on after the last rank has left, from a flush and another rank's state."""
    run = Run(mode, every=2, lr=1e-4)
    for number in range(4):
        run.step(number)
        run.diloco.step()
    run.step(4)
    run.diloco.flush()
    states: list[Any] = [None] * size()
    dist.all_gather_object(states, run.diloco.state_dict())
    rest = dist.new_group([*range(size() - 1)])
    if rank() == size() - 1:
        return []
    again = Run(mode, every=2, lr=1e-4, group=rest)
    again.model.load_state_dict(run.model.state_dict())
    again.diloco.load_state_dict(states[size() - 1])
    results = []
    for number in range(4, 8):
        again.step(number)
        if again.diloco.step():
            results.append(again.crc())
    return results
