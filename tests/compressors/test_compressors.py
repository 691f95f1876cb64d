"""The laws that every compressor obeys, among ranks in one process."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("torch")

import torch

from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import WarmUp
from gcodec.averaging.simulate import Simulation, compress_on, run_conversations
from gcodec.averaging.state import pack_state, unpack_state
from gcodec.compressors import Frames, Place, PowerSGD, TopK
from gcodec.compressors.contract import Memory, wide
from tests.support import fake_gpu
from tests.support.compressor_settings import (
    ESTIMATED,
    INDICES,
    PROMISES,
    SHAPES,
    gradients_at,
    mean_of,
    norm,
    one_step,
    run,
    same,
)
from tests.support.covering import each_value

pytestmark = pytest.mark.usefixtures("one_thread")
everyone = pytest.mark.parametrize("name", PROMISES)


@everyone
def test_a_compressor_at_its_lossless_setting_averages_as_dense(name):
    promise = PROMISES[name]
    if promise.lossless is None:
        return
    shapes = {"x": (50, 50)} if promise.square else SHAPES
    steps = 2 if promise.square else 4  # each divides by a random matrix
    plan = CompressionPlan(promise.lossless, feedback=None, min_values=0, vectors=True)
    _, averages = run(plan, 3, steps, shapes=shapes)
    for step, result in enumerate(averages):
        for tensor, wanted in mean_of(gradients_at(step, 3, shapes=shapes)).items():
            assert norm(result[tensor] - wanted) <= promise.apart * norm(wanted), tensor


@pytest.mark.parametrize("name", [name for name, promise in PROMISES.items() if promise.lossless is not None])
def test_a_rank_counts_as_contributed_what_it_sent_itself(name):
    """At the lossless setting that is its own gradient, and nothing is left over. A mean that is counted instead adds
    up over ranks just as well, but leaves every rank with the difference of its gradient from the others'."""
    promise = PROMISES[name]
    assert promise.lossless is not None
    shape = (50, 50) if promise.square else (60, 70)
    gradients = [own["x"] for own in gradients_at(0, 2, shapes={"x": shape})]
    places = [Place(rank, 2, "x") for rank in range(2)]
    outcomes = run_conversations(
        [promise.lossless.compress(gradient, {}, place) for gradient, place in zip(gradients, places, strict=True)]
    )
    for gradient, outcome in zip(gradients, outcomes, strict=True):
        assert norm(gradient - outcome.contribution) <= max(promise.apart, promise.rounding) * norm(gradient)


@everyone
def test_gradients_on_a_device_are_averaged_on_that_device(name):
    """The averages are the host's, and nothing is used that a device's tensors do not allow."""
    simulation, host = Simulation(2, PROMISES[name].setting), Simulation(2, PROMISES[name].setting)
    for step in range(2):
        wanted, gradients = one_step(host, step), gradients_at(step, 2)
        with fake_gpu.FakeGpuMode():
            result = simulation.average([{key: fake_gpu.to_fake_gpu(x) for key, x in own.items()} for own in gradients])
        for own in result:
            assert all(
                isinstance(x, fake_gpu.FakeGpuTensor) and same(fake_gpu.to_host(x), wanted[key])
                for key, x in own.items()
            )


@each_value(name=PROMISES, size=[1, 2, 4])
def test_contributions_of_ranks_add_up_to_the_average(name, size):
    """Error feedback needs no more than that whatever is in the average counts as sent by some rank."""
    setting = PROMISES[name].setting
    memories: list[Memory] = [{} for _ in range(size)]
    for step in range(3):
        gradients = [own["linear"] for own in gradients_at(step, size)]
        outcomes = compress_on(setting, gradients, memories)
        sent = sum(outcome.contribution.double() for outcome in outcomes)
        assert norm(sent - size * outcomes[0].average.double()) <= PROMISES[name].rounding * norm(sent)
        assert all(same(outcome.average, outcomes[0].average) for outcome in outcomes)
        for outcome in outcomes:
            if outcome.indices is not None:
                rest = outcome.contribution.clone().view(-1)
                rest[outcome.indices] = 0
                assert not rest.any()


@each_value(name=PROMISES, size=[2, 3, 4])
def test_error_feedback_telescopes_across_a_change_of_setting(name, size):
    promise = PROMISES[name]
    simulation = Simulation(size, CompressionPlan(promise.setting, min_values=0, vectors=True))
    given_in = {tensor: torch.zeros(shape, dtype=torch.float64) for tensor, shape in SHAPES.items()}
    sent = {tensor: torch.zeros(shape, dtype=torch.float64) for tensor, shape in SHAPES.items()}
    for step in range(5):
        if step == 2:
            simulation.set("linear", TopK(0.3))
            simulation.set("wide", PowerSGD(2))
        if step == 3 and promise.setting.knob is not None and promise.setting.knob != "bits":
            simulation.set("images", promise.setting.at(0.2 if promise.setting.knob == "density" else 2))
        averages = one_step(simulation, step)
        for own in gradients_at(step, size):
            for tensor, gradient in own.items():
                given_in[tensor] += gradient
        for tensor, average in averages.items():
            sent[tensor] += size * average.double()
    for tensor, total in given_in.items():
        left = sum(
            (r.double() for rank in simulation.ranks if (r := rank.residual(tensor)) is not None),
            torch.zeros_like(total),
        )
        assert norm(total - sent[tensor] - left) <= 3 * max(promise.rounding, 1e-6) * norm(total), tensor


@everyone
def test_a_resumed_run_of_a_compressor_is_the_uninterrupted_run(name):
    plan = CompressionPlan(PROMISES[name].setting, min_values=100)
    simulation, _ = run(plan, 3, 3)
    buffer = io.BytesIO()
    torch.save([rank.state_dict() for rank in simulation.ranks], buffer)
    saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    texts = [unpack_state(pack_state(state)) for state in saved]  # as hooks keep it
    resumed = [Simulation(3, plan) for _ in range(2)]
    for again, states in zip(resumed, (saved, texts), strict=True):
        for rank, state in zip(again.ranks, states, strict=True):
            rank.load_state_dict(state)
    for step in (3, 4):
        wanted = one_step(simulation, step)
        for again in resumed:
            result = one_step(again, step)
            assert all(same(result[tensor], wanted[tensor]) for tensor in wanted)


@everyone
@pytest.mark.parametrize("kind", ["zero", "equal", "one value", "empty", "one row"])
def test_zero_constant_single_and_empty_gradients_are_averaged(name, kind):
    shapes = {"zero": (40, 30), "equal": (40, 30), "one value": (1, 1), "empty": (0, 7), "one row": (1, 50)}
    fill = 0.0 if kind == "zero" else 0.25
    simulation = Simulation(2, CompressionPlan(PROMISES[name].setting, min_values=0))
    for _ in range(3):
        gradient = torch.full(shapes[kind], fill)
        averages = simulation.average([{"x": gradient}, {"x": gradient}])
        assert same(averages[0]["x"], averages[1]["x"])
        assert averages[0]["x"].shape == gradient.shape
        assert bool(torch.isfinite(averages[0]["x"]).all())
        if kind == "zero":
            assert not averages[0]["x"].any()
    after = torch.stack([one_step(simulation, step, shapes={"x": shapes[kind]})["x"] for step in (1, 2)])
    assert kind == "empty" or (bool(after.any()) and bool(torch.isfinite(after).all()))


@each_value(name=PROMISES, bad=[float("nan"), float("inf")])
def test_non_finite_values_reach_all_ranks_and_stay_out_of_residuals(name, bad):
    simulation, _ = run(CompressionPlan(PROMISES[name].setting), 3, 2)
    before = [rank.residual("linear") for rank in simulation.ranks]
    gradients = gradients_at(2, 3)
    gradients[1]["linear"][7, 7] = bad
    averages = simulation.average(gradients)
    assert all(not bool(torch.isfinite(average["linear"]).all()) for average in averages)
    assert [rank.last["linear"].dropped for rank in simulation.ranks] == [1, 1, 1]
    for rank, residual in zip(simulation.ranks, before, strict=True):
        now = rank.residual("linear")
        assert now is residual or (now is not None and residual is not None and same(now, residual))
    assert all(bool(torch.isfinite(item).all()) for item in one_step(simulation, 3).values())


@everyone
def test_the_repr_of_a_setting_is_the_call_that_makes_it(name):
    import gcodec.compressors as room

    setting = PROMISES[name].setting
    names = {name: getattr(room, name) for name in room.__all__}
    assert eval(repr(setting), {**names, "WarmUp": WarmUp, type(setting).__name__: type(setting)}) == setting


@everyone
@pytest.mark.parametrize("shape", [(16, 9, 3, 3), (300, 200)])
def test_floats_and_payload_bytes_are_those_predicted(name, shape):
    setting = PROMISES[name].setting
    if isinstance(setting, WarmUp):
        setting = setting.compressor
    simulation = Simulation(1, CompressionPlan(setting))
    for step in range(4):
        one_step(simulation, step, shapes={"x": shape})
    count = simulation.ranks[0].total
    wanted, n_bytes = 4 * setting.floats(shape), 4 * setting.payload_bytes(shape)
    off = PROMISES[name].off
    assert count.floats == pytest.approx(wanted, rel=off if off >= ESTIMATED else 1e-9)
    assert count.payload_bytes == pytest.approx(n_bytes, rel=off)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name, promise in PROMISES.items() if promise.off < INDICES])
def test_payload_bytes_that_do_not_depend_on_values_are_predicted_in_every_dtype(name, dtype):
    setting = PROMISES[name].setting
    for shape in ((60, 70), (8, 129)):
        simulation = Simulation(1, CompressionPlan(setting))
        for step in range(4):
            one_step(simulation, step, shapes={"x": shape}, dtype=dtype)
        predicted = 4 * setting.payload_bytes(shape, dtype)
        assert simulation.ranks[0].total.payload_bytes == pytest.approx(predicted, rel=5e-3)


def test_frames_of_few_bits_take_as_many_bytes_in_float64_and_never_more_than_lossless_ones():
    assert Frames(2).payload_bytes((10, 10), torch.float64) == Frames(2).payload_bytes((10, 10)) == 100 * 11 / 8
    assert Frames(7).payload_bytes((10, 10), torch.bfloat16) == Frames().payload_bytes((10, 10), torch.bfloat16) == 200


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@everyone
def test_float64_and_bfloat16_gradients_keep_their_type(name, dtype):
    simulation, averages = run(CompressionPlan(PROMISES[name].setting), 2, 3, dtype=dtype)
    assert all(item.dtype == dtype and bool(torch.isfinite(item).all()) for item in averages[-1].values())
    residual = simulation.ranks[0].residual("linear")
    assert residual is None or residual.dtype == wide(dtype)


@everyone
def test_gradients_are_not_written_to(name):
    simulation = Simulation(2, CompressionPlan(PROMISES[name].setting))
    gradients = gradients_at(0, 2)
    before = [{tensor: one.clone() for tensor, one in own.items()} for own in gradients]
    simulation.average(gradients)
    assert all(same(one, before[rank][tensor]) for rank, own in enumerate(gradients) for tensor, one in own.items())
