"""What the ranks of tests/test_distributed_adaptive.py run. Every function here is one rank's part."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist

import gcodec.distributed as gd
from gcodec.adaptive import Accordion, Adaptive, AdaptiveOptimizer, GraVAC, LGreCo, ranks
from gcodec.averaging import Averager, Plan
from gcodec.compressors import PowerSGD, RandomK, TopK
from gcodec.distributed.stats import Tally
from gcodec.simulate import converse
from tests.compressor_settings import gradients_at, same
from tests.distributed_cases import crc

CONTROLLERS: dict[str, Any] = {
    "gravac": GraVAC(TopK(0.1), 2, 32, 0.3, window=2, omega=0.0),
    "gravac random-k": GraVAC(RandomK(0.1), 1.5, 6, 0.2, window=2, omega=0.0),
    "lgreco": LGreCo(PowerSGD(3), others=(TopK(0.02),), period=2, accordion=Accordion(PowerSGD(4), PowerSGD(2))),
    "accordion": Accordion(TopK(0.2), TopK(0.05), period=2, source="reduced"),
}


def follows(name: str, steps: int = 6) -> tuple[Any, int, int]:
    """Averages and decisions are those of simulated ranks, bit for bit: a sum of two is the same in any order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    controller, tally = CONTROLLERS[name], Tally()
    simulated = ranks(size, TopK(0.1), controller, itertools.count(0.0).__next__)
    real = ranks(size, TopK(0.1), controller, itertools.count(0.0).__next__)[rank]
    found, settings = [], set()
    for step in range(steps):
        gradients = gradients_at(step, size)
        wanted = converse([one.average(own, rate=1.0) for one, own in zip(simulated, gradients, strict=True)])
        averages = gd.converse(real.average(gradients[rank], rate=1.0), tally=tally)
        assert all(same(averages[one], wanted[rank][one]) for one in averages), step
        settings.add(repr([compressor.floats((60, 70)) for compressor in real.averager.compressors.values()]))
        found += list(averages.values())
    states = [one.controller.state_dict() for one in (real, simulated[rank])]
    for state in states:
        state.pop("throughputs", None)      # a clock that all ranks look at runs faster
    assert states[0] == states[1]
    return crc(found), len(settings), int(tally.sent_bytes)


def trains(steps: int = 25) -> Any:
    """Least squares with each rank's own data: the loss before and after, of the same parameters on all ranks."""
    rank = dist.get_rank()
    random = torch.Generator().manual_seed(rank)
    data = torch.randn(200, 60, generator=random)
    target = data @ torch.randn(60, 40, generator=torch.Generator().manual_seed(7))
    torch.manual_seed(0)
    model = torch.nn.Linear(60, 40)
    inner = torch.optim.SGD(model.parameters(), lr=5.0)
    adaptive = Adaptive(Averager(Plan(TopK(0.1)), rank, dist.get_world_size()), GraVAC(TopK(0.1), 2, 16, 0.5, window=5))
    optimizer = AdaptiveOptimizer(inner, model.named_parameters(), adaptive, gd.converse, samples=200)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return crc([one.detach() for one in model.parameters()]), losses[0], losses[-1]
