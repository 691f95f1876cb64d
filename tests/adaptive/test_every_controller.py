"""The laws that every controller obeys, on simulated ranks; a line of ``CONTROLLERS`` has them tested."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gcodec.adaptive
import gcodec.compressors
from gcodec.adaptive import Accordion, Adaptive, GraVAC, ranks
from gcodec.adaptive.driver import load_packed_state, packed_state
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback, MomentumCorrection
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import DGC, PowerSGD, RedSync, TopK, alone
from gcodec.errors import InvalidArgument
from tests.adaptive.simulated_ranks import advance, counter, of
from tests.support.compressor_settings import SHAPES, gradients_at, mean_of, norm, same
from tests.support.controller_settings import CONTROLLERS, PLANS, decisions, is_controller, places_in, with_junk

pytestmark = pytest.mark.usefixtures("one_thread")
everyone = pytest.mark.parametrize("name", CONTROLLERS)


OTHERS = {
    repr(controller)[:40]: controller
    for controller in (
        GraVAC(DGC(0.1), 2, 50, 0.6, window=3),
        GraVAC(RedSync(0.1), 2, 50, 0.6, window=3, nested=False),
        GraVAC(PowerSGD(1), 2, 20, 0.4, window=3),
        Accordion(PowerSGD(4), TopK(0.01), period=3),
    )
}


@pytest.mark.parametrize("name", [*CONTROLLERS, *OTHERS])
def test_error_feedback_telescopes_under_a_controller_and_across_a_resume(name):
    """Averages and residuals add up to all gradients, and averages are the same on all ranks and after a resume."""
    size, steps, controller = 3, 10, (CONTROLLERS | OTHERS)[name]
    group = ranks(size, TopK(0.1), controller, counter())
    sent = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    all_there_was = {name: item.clone() for name, item in sent.items()}
    for step in range(steps):
        if step == 5:
            old = group
            group = ranks(size, TopK(0.1), controller, counter())
            for rank, before in zip(group, old, strict=True):
                rank.load_state_dict(before.state_dict())
            twin = ranks(size, TopK(0.1), controller, counter())
            for rank, before in zip(twin, old, strict=True):
                rank.load_state_dict(before.state_dict())
        averages = advance(group, step)
        if step >= 5:
            again = advance(twin, step)
            assert all(same(again[name], averages[name]) for name in averages)
        for name, item in mean_of(gradients_at(step, size)).items():
            all_there_was[name] += item.double()
            sent[name] += averages[name].double()
    for name, whole in all_there_was.items():
        left = sum(
            (r.double() for rank in group if (r := rank.averager.residual(name)) is not None), torch.zeros_like(whole)
        )
        assert norm(whole - sent[name] - left / size) <= 1e-5 * norm(whole)


@pytest.mark.parametrize("feedback", [ErrorFeedback(), MomentumCorrection()], ids=repr)
@everyone
def test_runs_of_every_controller_resume_from_packed_states(name, feedback):
    """Runs are resumed at the start, in the middle of a period and at its end; all times but the first are the same,
    too."""
    plan = PLANS.get(name, CompressionPlan(TopK(0.1), feedback))
    whole = ranks(3, plan, CONTROLLERS[name], counter())
    params = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for step in range(7):
        if step in (0, 3, 4):
            buffer = io.BytesIO()
            torch.save([packed_state(rank, SHAPES) for rank in whole], buffer)
            saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
            group = ranks(3, plan, CONTROLLERS[name], counter())
            for rank, state in zip(group, saved, strict=True):
                load_packed_state(rank, state, params)
            assert [packed_state(rank, SHAPES) for rank in group] == saved
        wanted, result = advance(whole, step, rate=1.0), advance(group, step, rate=1.0)
        assert all(same(result[tensor], wanted[tensor]) for tensor in wanted)
        assert decisions(of(group)) == decisions(of(whole))
    for other in range(3):
        with pytest.raises(InvalidArgument):
            load_packed_state(group[other], saved[other - 1], params)


@everyone
def test_decisions_and_averages_do_not_depend_on_the_default_dtype(name):
    """In bfloat16, norms and thresholds would be rounded on their way to the ranks, and random factors be coarse."""

    def run(dtype: torch.dtype) -> tuple[Any, dict[str, torch.Tensor]]:
        plan = PLANS.get(name, CompressionPlan(PowerSGD(2) if name == "lgreco" else TopK(0.1)))
        group = ranks(2, plan, copy.deepcopy(CONTROLLERS[name]), counter(0.3))
        gradients = [gradients_at(step, 2) for step in range(5)]
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(dtype)
            for by_rank in gradients:
                averages = run_conversations(
                    [rank.average(own, rate=0.1, samples=1001.0) for rank, own in zip(group, by_rank, strict=True)]
                )
        finally:
            torch.set_default_dtype(before)
        return of(group).state_dict(), averages[0]

    (wanted, averages), *others = [run(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
    for state, other in others:
        assert state == wanted
        assert all(same(other[key], averages[key]) for key in averages)


@everyone
def test_a_controller_of_two_models_is_refused_by_the_second(name):
    plan, controller = PLANS.get(name, CompressionPlan(TopK(0.1))), copy.deepcopy(CONTROLLERS[name])
    first, second = (Adaptive(Averager(plan), controller) for _ in range(2))
    for _ in range(2):
        alone(first.average({"linear": torch.ones(60, 70)}, rate=0.1))
    saved = first.state_dict()
    for other in (second, Adaptive(Averager(plan), controller)):
        with pytest.raises(InvalidArgument, match="controller must be newly made for each model"):
            alone(other.average({"linear": torch.ones(60, 70)}, rate=0.1))
    assert {key: first.state_dict()[key] for key in ("step", "controller")} == {
        key: saved[key] for key in ("step", "controller")
    }


@everyone
def test_sparse_gradients_are_refused_by_name(name):
    rank = Adaptive(Averager(PLANS.get(name, CompressionPlan(TopK(0.1)))), copy.deepcopy(CONTROLLERS[name]))
    gradients = {"linear": torch.ones(60, 70), "embedding.weight": torch.eye(60).to_sparse()}
    with pytest.raises(InvalidArgument, match="'embedding\\.weight'"):
        alone(rank.average(gradients, rate=0.1))
    alone(rank.average({**gradients, "embedding.weight": torch.eye(60)}, rate=0.1))


@everyone
def test_a_step_without_compressible_tensors_is_averaged_without_a_decision(name):
    (rank,) = ranks(1, TopK(0.1), CONTROLLERS[name])
    assert same(alone(rank.average({"bias": torch.ones(3)}, rate=1.0))["bias"], torch.ones(3))


@everyone
def test_nan_on_one_rank_reaches_all_ranks_and_no_later_step(name):
    group = ranks(2, PLANS.get(name, CompressionPlan(TopK(0.1))), CONTROLLERS[name], counter())
    for step in range(5):
        gradients = gradients_at(step, 2)
        if step == 1:
            gradients[1]["linear"][3, 3] = math.nan
        averages = run_conversations([rank.average(own, rate=1.0) for rank, own in zip(group, gradients, strict=True)])
        assert bool(torch.isfinite(averages[0]["linear"]).all()) == (step != 1)
        assert all(same(averages[0][key], averages[1][key]) for key in SHAPES)
        assert decisions(of(group)) == decisions(of(group[1:]))


@everyone
def test_the_repr_of_a_controller_is_the_call_that_makes_it(name):
    """Ranks compare it, so that it tells settings that differ."""
    controller: Any = CONTROLLERS[name]
    names = {key: getattr(room, key) for room in (gcodec.adaptive, gcodec.compressors) for key in room.__all__}
    names |= {"torch": torch, type(controller).__name__: type(controller)}
    assert repr(eval(repr(controller), names)) == repr(controller)
    assert not set(controller.changing) & {field.name for field in fields(controller) if field.repr}


def test_every_public_controller_has_these_laws():
    public = {value for name in gcodec.adaptive.__all__ if is_controller(value := getattr(gcodec.adaptive, name))}
    assert public - set(map(type, CONTROLLERS.values())) == set()


@everyone
def test_a_controllers_state_holds_plain_values_and_tensors_only(name):
    group = ranks(2, PLANS.get(name, CompressionPlan(TopK(0.1))), CONTROLLERS[name], counter())
    for step in range(3):
        advance(group, step, rate=1.0)

    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(key, str | int | float) and plain(item) for key, item in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return isinstance(value, int | float | str) or torch.is_tensor(value)

    assert plain(group[0].state_dict())


JUNK: tuple[Any, ...] = (None, -1, math.inf, "x", b"x", [], [1], {}, {"a": 1}, torch.zeros(3), torch.zeros(0))


@everyone
def test_states_with_junk_in_them_are_refused_by_an_InvalidArgument_or_taken(name):
    def new():
        return Adaptive(Averager(PLANS.get(name, CompressionPlan(TopK(0.1)))), copy.deepcopy(CONTROLLERS[name]))

    rank, refused = new(), set()
    for step in range(5):
        alone(rank.average(gradients_at(step, 1)[0], rate=0.1))
    state = rank.state_dict()
    for path in places_in(state):
        for junk in JUNK:
            try:
                new().load_state_dict(with_junk(state, path, junk))
            except InvalidArgument:
                refused.add(path[0])
    assert refused == state.keys()
