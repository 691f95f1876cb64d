"""Cases that the ranks of tests/distributed/test_diloco.py run, in a Gloo world."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gcodec
import gcodec.distributed as gd
from tests.distributed.allreduce_cases import Net, batch_of, crc, dense_sum, rank, size
from tests.distributed.allreduce_cases import _sabotage as sabotage

NESTEROV: dict[str, Any] = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


class Run:
    """A model, its inner optimizer and the outer loop."""

    def __init__(self, mode: str, every: int = 3, narrow: bool = False, **options: Any) -> None:
        torch.manual_seed(10 + rank())      # ranks begin apart
        self.model = Net(narrow=narrow)
        with torch.no_grad():
            for item in self.model.parameters():
                item.add_(torch.randn_like(item) * 0.01)
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=0.002)
        outer = torch.optim.SGD(self.model.parameters(), **NESTEROV)
        modes: dict[str, Any] = {"lossless": gd.Lossless(), "fixed": gd.FixedBits(8), "near": gd.NearLossless(outer)}
        self.diloco = gd.DiLoCo(outer, every, mode=modes[mode], threads=1, **options)
        self.params = list(self.model.parameters())

    def step(self, number: int) -> float:
        """Take one inner step and return its loss."""
        x, y = batch_of(number % 5)
        self.inner.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.inner.step()
        return loss.item()

    def crc(self) -> int:
        """Return a checksum of the parameters."""
        return crc([item.detach() for item in self.params])


def law() -> list[int]:
    """Check that lossless outer steps are the outer optimizer's, with the mean in the order of ranks, bit for bit."""
    run = Run("lossless", smallest=1)
    copies = [nn.Parameter(item.detach().clone()) for item in run.params]
    outer = torch.optim.SGD(copies, **NESTEROV)
    results = [run.crc()]
    for number in range(9):
        run.step(number)
        gradients = [item.grad.clone() for item in run.params if item.grad is not None]
        for item, copy in zip(run.params, copies, strict=True):
            everywhere = [torch.empty_like(item) for _ in range(size())]
            dist.all_gather(everywhere, item.detach())
            copy.grad = dense_sum([copy.detach() - there for there in everywhere], True)
        if run.diloco.step():
            outer.step()
            assert all(torch.equal(item, copy) for item, copy in zip(run.params, copies, strict=True))
            results.append(run.crc())
        kept = [item.grad for item in run.params if item.grad is not None]
        assert all(torch.equal(item, before) for item, before in zip(kept, gradients, strict=True))
    return results


def train(mode: str, narrow: bool = False, steps: int = 30) -> tuple[int, float, float, float]:
    """Return a checksum after the last outer step, the first and last round's loss, and the ratio."""
    run = Run(mode, narrow=narrow, smallest=1000)
    losses = []
    for number in range(steps):
        losses.append(run.step(number))
        run.diloco.step()
    return run.crc(), sum(losses[:5]) / 5, sum(losses[-5:]) / 5, run.diloco.stats()["ratio"]


def resume(mode: str) -> bool:
    """Check that a run that is interrupted in the middle of a round goes on as if it had not been."""
    run = Run(mode, smallest=1000)
    saved = io.BytesIO()
    for number in range(12):
        if number == 7:
            state = {"model": run.model.state_dict(), "inner": run.inner.state_dict(),
                     "diloco": run.diloco.state_dict()}
            torch.save(state, saved)
        run.step(number)
        run.diloco.step()
    again = Run(mode, smallest=1000)
    loaded = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    again.model.load_state_dict(loaded["model"])
    again.inner.load_state_dict(loaded["inner"])
    again.diloco.load_state_dict(loaded["diloco"])
    for number in range(7, 12):
        again.step(number)
        again.diloco.step()
    return run.crc() == again.crc()


def corrupted(by: int) -> tuple[str, bool]:
    """Return what step() raises when one rank's messages are damaged, and whether the parameters are the last round's.
    """
    run = Run("lossless", every=1, group=dist.new_group(), smallest=1, timeout=timedelta(seconds=20))
    run.step(0)
    run.diloco.step()
    before = run.crc()
    undo = sabotage("payload") if rank() == by else None
    run.step(1)
    try:
        run.diloco.step()
    except gcodec.GcodecError as error:
        return str(error), run.crc() == before
    finally:
        if undo is not None:
            undo()
    return "", False


def refusals() -> None:
    """Check that senseless arguments are refused."""
    real = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)
    waves = torch.optim.SGD([nn.Parameter(torch.zeros(3, dtype=torch.complex64))], lr=1.0)
    for call in (lambda: gd.DiLoCo(real, 0), lambda: gd.DiLoCo(waves, 1),
                 lambda: gd.DiLoCo(real, 1).load_state_dict({"version": 2}),
                 lambda: gd.DiLoCo(real, 1).load_state_dict({"version": 1})):
        try:
            call()
        except gcodec.InvalidArgument:
            continue
        raise AssertionError("not refused")
