"""The laws of AdaptiveOptimizer: it trains, resumes and leaves out steps as the optimizer inside it does."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gcodec.adaptive import Adaptive, AdaptiveOptimizer, GraVAC, LGreCo
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.feedback import MomentumCorrection
from gcodec.compressors import TopK, alone
from gcodec.errors import InvalidArgument
from tests.adaptive.simulated_ranks import counter
from tests.support.compressor_settings import same

pytestmark = pytest.mark.usefixtures("one_thread")


def test_an_adaptive_optimizer_trains_and_resumes():
    """The problem is least squares on a single rank; schedulers, checkpoints and zero_grad see what they expect."""
    torch.manual_seed(0)
    data, target = torch.randn(256, 60), torch.randn(256, 40)

    def made() -> Any:
        torch.manual_seed(1)
        model = torch.nn.Linear(60, 40)
        controller = GraVAC(TopK(0.1), 2, 16, 0.5, window=5, omega=0.0)
        inner = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1))), controller, counter())
        optimizer = AdaptiveOptimizer(inner, model.named_parameters(), adaptive, alone, samples=256)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)

    def train(made: Any, steps: int) -> float:
        model, optimizer, scheduler = made
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(data) - target).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
        return float(loss.detach())

    whole = made()
    first, last = train(whole, 1), train(whole, 29)
    best = (data @ torch.linalg.lstsq(torch.cat([data], 1), target).solution - target).square().mean().item()
    assert last - best < 0.5 * (first - best)
    assert set(whole[1].adaptive.controller.log) > {2.0}
    halves = made()
    train(halves, 12)
    resumed = made()
    resumed[0].load_state_dict(halves[0].state_dict())
    resumed[1].load_state_dict(halves[1].state_dict())
    resumed[2].load_state_dict(halves[2].state_dict())
    train(resumed, 18)
    assert same(resumed[0].weight.detach(), whole[0].weight.detach())
    assert resumed[1].adaptive.controller.log == whole[1].adaptive.controller.log
    assert resumed[1].param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(
    "made",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.5),
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.NAdam,
    ],
    ids=lambda made: getattr(made, "__name__", "SGD"),
)
def test_the_state_of_every_inner_optimizer_is_in_the_checkpoint(made):
    """The inner optimizer's state may be anything, its groups in any order; the keys of a checkpoint stay the same."""

    def optimizer() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(60, 40), torch.nn.Linear(40, 30))
        groups = [{"params": model[1].parameters()}, {"params": model[0].parameters(), "weight_decay": 0.01}]
        adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1))), GraVAC(TopK(0.1), 2, 16, 0.5, window=2), counter())
        return model, AdaptiveOptimizer(made(groups), model.named_parameters(), adaptive, alone)

    def train(model: Any, optimizer: Any, steps: int) -> list[torch.Tensor]:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 60, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
        return [param.detach().clone() for param in model.parameters()]

    model, whole = optimizer()
    empty = whole.state_dict()
    train(model, whole, 3)
    saved, weights = whole.state_dict(), copy.deepcopy(model.state_dict())
    assert [key for key, _ in flat(empty)] == [key for key, _ in flat(saved)]
    assert all(isinstance(value, str | int) for _, value in flat(saved))
    again, resumed = optimizer()
    again.load_state_dict(weights)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    assert all(same(a, b) for a, b in zip(train(model, whole, 3), train(again, resumed, 3), strict=True))
    for wrong in (
        {**saved, "version": 2},
        {"version": 1, "optimizer": saved["optimizer"]},
        {**saved, "optimizer": {**saved["optimizer"], "state": {}}},
        {**saved, "rank0": {}},
    ):
        with pytest.raises(InvalidArgument):
            resumed.load_state_dict(wrong)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        torch.optim.SGD,
        torch.optim.Adam,
        partial(torch.optim.SGD, fused=True),
        partial(torch.optim.Adam, fused=True),
        partial(torch.optim.Adam, foreach=True),
    ],
)
def test_a_gradient_scaler_changes_no_bit_and_leaves_out_steps_that_overflow(made, clip):
    """Scales are powers of two. A step that overflows leaves residuals, too, as they were."""

    def train(scaler: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(60, 40)
        adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1))), LGreCo(TopK(0.1), period=100))
        optimizer = AdaptiveOptimizer(made(model.parameters(), lr=0.01), model.named_parameters(), adaptive, alone)
        for step in range(6):
            overflows = step == 3
            if overflows and not scaler.is_enabled():
                continue
            optimizer.zero_grad()
            loss = model(torch.randn(8, 60, generator=torch.Generator().manual_seed(step))).square().mean()
            scaler.scale(loss).backward()
            if overflows:
                model.bias.grad = torch.full_like(model.bias, math.inf)
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
        return model.weight.detach(), model.bias.detach(), adaptive.averager.residual("weight")

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    plain = train(torch.amp.GradScaler("cpu", enabled=False))
    assert all(same(a, b) for a, b in zip(train(scaler), plain, strict=True))
    assert scaler.get_scale() == 2.0**11


@pytest.mark.parametrize(
    "made",
    [partial(torch.optim.SGD, lr=0.1, momentum=0.5, weight_decay=0.1), partial(torch.optim.AdamW, weight_decay=0.1)],
    ids=["SGD", "AdamW"],
)
def test_a_parameter_without_a_gradient_is_left_as_it_is_and_one_with_zeros_is_not(made):
    """Momentum and weight decay show it, as in torch's optimizers. One parameter has no gradient in any step, one in
    some, and one has a gradient of zeros."""
    ends = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({name: torch.nn.Linear(40, 40) for name in ("used", "sometimes", "never", "zeros")})
        optimizer: Any = made(model.parameters())
        if wrapped:
            adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1), min_values=1 << 30)), GraVAC(TopK(0.1)))
            optimizer = AdaptiveOptimizer(optimizer, model.named_parameters(), adaptive, alone)
        for step in range(6):
            optimizer.zero_grad()
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(step))
            loss = model["used"](x).square().mean() + 0 * model["zeros"](x).sum()
            (loss + model["sometimes"](x).square().mean() if step in (1, 2, 4) else loss).backward()
            optimizer.step()
        ends.append([param.detach() for param in model.parameters()])
    assert all(same(a, b) for a, b in zip(*ends, strict=True))


def test_what_error_feedback_has_left_of_a_parameter_is_sent_though_it_has_no_gradient():
    model = torch.nn.Linear(40, 40, bias=False)
    adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1))), GraVAC(TopK(0.1), 2, 2))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = AdaptiveOptimizer(inner, model.named_parameters(), adaptive, alone)
    start, gradient = model.weight.detach().clone(), torch.rand(40, 40) + 1
    model.weight.grad = gradient.clone()
    for _ in range(30):
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(model.weight.detach(), start - gradient)
    assert model.weight.grad is None


def test_gradients_in_float16_are_not_unscaled():
    model = torch.nn.Linear(3, 3).half()
    adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1))), GraVAC(TopK(0.1)))
    inner = torch.optim.SGD(model.parameters(), lr=1)
    optimizer = AdaptiveOptimizer(inner, model.named_parameters(), adaptive, alone)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(InvalidArgument, match="float16"):
        scaler.step(optimizer)


def flat(state: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested dictionaries by their keys joined."""
    for key, value in state.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def test_adaptive_optimizers_refuse_inner_optimizers_that_do_not_fit():
    model = torch.nn.Linear(3, 3)
    adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1), MomentumCorrection())), GraVAC(TopK(0.1)))
    named = list(model.named_parameters())
    with pytest.raises(InvalidArgument, match="momentum"):
        AdaptiveOptimizer(torch.optim.SGD(model.parameters(), lr=1, momentum=0.9), named, adaptive, alone)
    for kind, why in ((torch.optim.LBFGS, "no closure, but LBFGS"), (torch.optim.SparseAdam, "dense gradients")):
        with pytest.raises(InvalidArgument, match=why):
            AdaptiveOptimizer(kind(model.parameters()), named, adaptive, alone)
    plain = torch.optim.SGD(model.parameters(), lr=1)
    with pytest.raises(InvalidArgument):
        AdaptiveOptimizer(plain, named[:1], adaptive, alone)
    optimizer = AdaptiveOptimizer(plain, named, adaptive, alone)
    for call in (lambda: optimizer.step(lambda: 0.0), lambda: optimizer.add_param_group({"params": []})):
        with pytest.raises(InvalidArgument):
            call()
    assert "GraVAC" in repr(optimizer)
