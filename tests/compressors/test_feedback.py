"""The laws of momentum correction and its relatives: what DGC does around its choice of values."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback, MomentumCorrection, WarmUp
from gcodec.averaging.simulate import Simulation, run_conversations
from gcodec.compressors import DGC, QSGD, Dense, TopK
from gcodec.compressors.contract import alone
from gcodec.errors import InvalidArgument
from tests.support.compressor_settings import PROMISES, SHAPES, gradients_at, mean_of, norm, one_step, run, same
from tests.support.covering import each_value

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("compressor", [Dense(), DGC(1.0), TopK(0.05)], ids=repr)
def test_sent_and_residual_add_up_to_the_sum_of_momenta(compressor, nesterov):
    """This holds without masking and clipping; and where everything is sent, it is what torch's SGD steps with."""
    size, steps = 3, 6
    momentum = MomentumCorrection(0.9, nesterov=nesterov, masking=False)
    simulation = Simulation(size, CompressionPlan(compressor, momentum, min_values=0))
    param = torch.nn.Parameter(torch.zeros(SHAPES["linear"], dtype=torch.float64))
    optimizer = torch.optim.SGD([param], lr=1.0, momentum=0.9, nesterov=nesterov)
    sent = torch.zeros_like(param.detach())
    for step in range(steps):
        sent = sent + one_step(simulation, step)["linear"].double()
        param.grad = mean_of(gradients_at(step, size))["linear"].double()
        optimizer.step()
    left = sum(
        (r.double() for rank in simulation.ranks if (r := rank.residual("linear")) is not None), torch.zeros_like(sent)
    )
    moved = -param.detach()
    assert norm(moved - sent - left / size) <= 1e-5 * norm(moved)


def test_masking_forgets_momentum_where_values_were_sent():
    rank = Averager(CompressionPlan(TopK(0.1), MomentumCorrection(0.9), min_values=0))
    gradient = gradients_at(0, 1)[0]["linear"]
    chosen = {}
    rank.watch = lambda name, corrected, outcome: chosen.update({name: outcome.indices})
    alone(rank.average({"x": gradient}))
    momentum, residual = rank.memories["x"]["momentum"].view(-1), rank.memories["x"]["residual"].view(-1)
    assert not momentum[chosen["x"]].any()
    assert not residual[chosen["x"]].any()
    assert torch.count_nonzero(momentum) == torch.count_nonzero(residual) == 4200 - 420


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", list(PROMISES))
def test_expanded_gradients_are_averaged_as_contiguous_ones(name, dtype):
    plan = CompressionPlan(PROMISES[name].setting, min_values=0)
    expanded, contiguous = Averager(plan), Averager(plan)
    gradient = gradients_at(0, 1, dtype=dtype)[0]["linear"][:, :1].expand(60, 70)
    average = alone(expanded.average({"x": gradient}))["x"]
    wanted = alone(contiguous.average({"x": gradient.contiguous()}))["x"]
    assert norm(average - wanted) <= 1e-5 * norm(wanted)
    residual, left = expanded.residual("x"), contiguous.residual("x")
    assert (residual is None) == (left is None)
    if residual is not None and left is not None:
        assert norm(residual - left) <= 1e-5 * norm(wanted)


@pytest.mark.parametrize("feedback", [ErrorFeedback(), MomentumCorrection(0.9)], ids=repr)
@pytest.mark.parametrize("shape", [(70, 60), (60, 1, 70), (1, 70), (4200,)])
def test_a_residual_of_another_shape_is_refused_rather_than_broadcast(feedback, shape):
    plan = CompressionPlan(TopK(0.1), feedback, min_values=0, vectors=True)
    before, resumed = Averager(plan), Averager(plan)
    alone(before.average({"layer.weight": torch.ones(60, 70)}))
    resumed.load_state_dict(before.state_dict())
    with pytest.raises(InvalidArgument, match=r"'layer\.weight'.*\(60, 70\)"):
        alone(resumed.average({"layer.weight": torch.ones(shape)}))


@pytest.mark.parametrize("name", list(PROMISES))
@pytest.mark.parametrize(
    "feedback", [ErrorFeedback(), MomentumCorrection(0.9), MomentumCorrection(0.9, nesterov=True)], ids=repr
)
def test_channels_last_gradients_are_averaged_as_contiguous_ones(name, feedback):
    """Residuals of low ranks are rounded once less where the gradient is contiguous."""

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.shape == b.shape and norm(a - b) <= 1e-5 * norm(b)

    plan = CompressionPlan(PROMISES[name].setting, feedback, min_values=0)
    contiguous, channels_last = Simulation(2, plan), Simulation(2, plan)
    for step in range(3):
        gradients = [{"images": ranks["images"]} for ranks in gradients_at(step, 2)]
        other = [{"images": ranks["images"].to(memory_format=torch.channels_last)} for ranks in gradients]
        wanted, averages = contiguous.average(gradients), channels_last.average(other)
        assert all(close(a["images"], b["images"]) for a, b in zip(averages, wanted, strict=True))
    for one, another in zip(contiguous.ranks, channels_last.ranks, strict=True):
        memory, kept = another.memories["images"], one.memories["images"]
        assert all(close(memory[key], kept[key]) for key in ("residual", "momentum") if key in kept)


def test_dense_tensors_keep_their_momentum():
    simulation, averages = run(CompressionPlan(TopK(0.1), MomentumCorrection(0.5)), 2, 2)
    first, second = (mean_of(gradients_at(step, 2))["bias"] for step in (0, 1))
    assert norm(averages[1]["bias"] - (second + 0.5 * first)) <= 1e-6 * norm(second)
    assert simulation.ranks[0].residual("bias") is None


def test_gradients_are_clipped_to_the_limit_over_the_root_of_the_number_of_ranks():
    simulation = Simulation(4, CompressionPlan(Dense(), MomentumCorrection(0.0, clip=0.5), min_values=0))
    gradient = torch.ones(10, 10)  # of norm 10
    average = simulation.average([{"x": gradient}] * 4)[0]["x"]
    assert norm(average) == pytest.approx(0.25, rel=1e-5)
    small = gradient * 1e-3
    assert torch.equal(simulation.average([{"x": small}] * 4)[0]["x"], small)


@pytest.mark.parametrize("power", [0, 40, 70, 120])
def test_gradients_whose_squares_overflow_are_clipped_as_others(power):
    rank = Averager(CompressionPlan(Dense(), MomentumCorrection(0.0, clip=0.5), min_values=0))
    gradient = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)) * 2.0**power
    average = alone(rank.average({"x": gradient}))["x"]
    assert norm(average - gradient.double() * (0.5 / norm(gradient))) <= 1e-5


def test_a_momentum_of_the_optimizers_own_is_refused():
    param = torch.nn.Parameter(torch.zeros(3))
    MomentumCorrection().check(torch.optim.SGD([param], lr=0.1))
    ErrorFeedback().check(torch.optim.Adam([param]))
    for optimizer in (torch.optim.SGD([param], lr=0.1, momentum=0.9), torch.optim.Adam([param])):
        with pytest.raises(InvalidArgument):
            MomentumCorrection().check(optimizer)


def test_residuals_decay_by_their_factor_every_step():
    rank = Averager(CompressionPlan(TopK(0.01), ErrorFeedback(decay=0.5), min_values=0))
    gradient = gradients_at(0, 1)[0]["linear"]
    alone(rank.average({"x": gradient}))
    left = rank.memories["x"]["residual"].clone()
    seen = {}
    rank.watch = lambda name, corrected, outcome: seen.update({name: corrected.clone()})
    alone(rank.average({"x": gradient}))
    assert torch.equal(seen["x"], gradient + 0.5 * left)


def test_compressors_without_feedback_keep_no_memory():
    simulation, _ = run(CompressionPlan(TopK(0.01), feedback=None), 2, 3)
    assert all(not memory for memory in simulation.ranks[0].memories.values())


def test_the_whole_recipe_of_dgc_trains():
    """DGC as published, from warm-up to masking, solves least squares as dense training with momentum does."""
    random = torch.Generator().manual_seed(0)
    data = torch.randn(2, 200, 60, generator=random)
    targets = data @ torch.randn(60, 20, generator=random)

    def loss_after(plan, steps=300, rate=0.01):
        weight, simulation = torch.zeros(60, 20), Simulation(2, plan)
        for _ in range(steps):
            gradients = [
                {"w": item.T @ (item @ weight - target) / 200} for item, target in zip(data, targets, strict=True)
            ]
            weight = weight - rate * simulation.average(gradients)[0]["w"]
        return norm(torch.cat(list(data)) @ weight - torch.cat(list(targets))) ** 2

    dense = loss_after(CompressionPlan(Dense(), MomentumCorrection(0.9, masking=False)))
    start = norm(targets) ** 2
    result = loss_after(CompressionPlan(WarmUp(DGC(0.05), steps=10), MomentumCorrection(0.9, clip=300.0)))
    assert dense < 1e-3 * start
    assert result < 1e-3 * start


def test_state_of_another_rank_or_version_is_refused():
    simulation, _ = run(TopK(0.1), 2, 1)
    state = simulation.ranks[0].state_dict()
    for wrong, ours in ((simulation.ranks[1], "1 of 2"), (Averager(CompressionPlan(TopK(0.1)), 0, 3), "0 of 3")):
        with pytest.raises(InvalidArgument, match=f"of rank {ours}, not of rank 0 of 2: .* another number of ranks"):
            wrong.load_state_dict(state)
    with pytest.raises(InvalidArgument, match="version 1, not 2"):
        simulation.ranks[0].load_state_dict({**state, "version": 2})
    for tensors in (None, 3, [state["tensors"]], {"linear": 3}):
        with pytest.raises(InvalidArgument, match="must be a dictionary for each tensor"):
            simulation.ranks[0].load_state_dict({**state, "tensors": tensors})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("in_place", [False, True])
def test_residuals_of_narrow_gradients_are_kept_in_float32(dtype, in_place):
    """In float32, a small gradient that is added to a large residual is not rounded away."""
    rank = Averager(CompressionPlan(TopK(1e-3), min_values=0))
    sent, steps = torch.zeros(40, 50), 60
    gradient = gradients_at(0, 1)[0]["linear"].view(-1)[:2000].view(40, 50).to(dtype)
    for _ in range(steps):
        sent += alone(rank.average({"x": gradient.clone()}, in_place=in_place))["x"].float()
    residual = rank.residual("x")
    assert residual is not None
    assert residual.dtype == torch.float32
    assert norm(steps * gradient.float() - sent - residual) <= 1e-6 * norm(residual)


@pytest.mark.parametrize("feedback", [ErrorFeedback(), MomentumCorrection(0.9, masking=False)], ids=repr)
@pytest.mark.parametrize("compressor", [TopK(1e-3), QSGD(8), Dense()], ids=repr)
def test_residuals_beyond_the_range_of_float16_are_sent_in_parts(compressor, feedback):
    """An infinite residual would make the average of this step and of all later ones NaN."""
    rank = Averager(CompressionPlan(compressor, feedback, min_values=0))
    gradient = gradients_at(0, 1)[0]["linear"] / gradients_at(0, 1)[0]["linear"].abs().max()
    gradient = (8000 * gradient).half()
    sent = step_sum = momentum = torch.zeros(gradient.shape)
    for _ in range(20):
        average = alone(rank.average({"x": gradient}))["x"]
        assert bool(torch.isfinite(average).all())
        sent = sent + average.float()
        momentum = gradient.float() + (0 if isinstance(feedback, ErrorFeedback) else 0.9) * momentum
        step_sum = step_sum + momentum
    residual = rank.residual("x")
    assert norm(step_sum - sent - (0 if residual is None else residual)) <= 1e-3 * norm(step_sum)
    alone(rank.average({"x": torch.full_like(gradient, math.inf)}))
    assert rank.last["x"].dropped


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_residuals_that_were_saved_in_a_narrow_type_go_on_in_float32(dtype):
    rank = Averager(CompressionPlan(TopK(1e-3), min_values=0))
    rank.memories["x"] = {"residual": torch.full((40, 50), 1.0, dtype=dtype)}
    alone(rank.average({"x": torch.full((40, 50), 2.0**-12, dtype=dtype)}))
    residual = rank.residual("x")
    assert residual is not None
    assert residual.dtype == torch.float32
    assert residual.max() == 1 + 2.0**-12


@each_value(name=PROMISES, feedback=[ErrorFeedback(0.5), MomentumCorrection(0.5, nesterov=True, clip=0.01)])
def test_averages_in_place_have_the_same_bits_and_residuals(name, feedback):
    """Hooks average in the gradients' memory, narrow types too; a gradient that is not finite changes no residual."""
    plan = CompressionPlan(PROMISES[name].setting, feedback, min_values=100)
    for dtype in (torch.float32, torch.bfloat16):
        groups = [[Averager(plan, rank, 3) for rank in range(3)] for _ in range(2)]
        for step in range(4):
            gradients = [{key: one.to(dtype) for key, one in own.items()} for own in gradients_at(step, 3)]
            if step == 2:
                gradients[1]["linear"][3, 4] = math.nan
            results = []
            for group, in_place in zip(groups, (False, True), strict=True):
                mine = [{key: one.clone() for key, one in own.items()} for own in gradients]
                results += [
                    run_conversations(
                        [one.average(own, in_place=in_place) for one, own in zip(group, mine, strict=True)]
                    )[1]
                ]
                assert all((results[-1][key] is one) == in_place for key, one in mine[1].items())
            assert all(same(results[0][key], results[1][key]) for key in results[0])
            for one, other in zip(*groups, strict=True):
                for key in results[0]:
                    left = one.residual(key), other.residual(key)
                    assert left == (None, None) or same(*left)
