"""The laws of every compressor, and those of single ones, among ranks in one process."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gcodec.averaging.averager import Averager, CompressionPlan, compression_plan
from gcodec.averaging.feedback import ErrorFeedback, WarmUp
from gcodec.averaging.simulate import Simulation, compress_on, run_conversations
from gcodec.averaging.state import pack_state, unpack_state
from gcodec.compressors import (
    DGC,
    QSGD,
    Cast,
    Dense,
    Frames,
    GradNA,
    GradZip,
    Place,
    PowerSGD,
    RandomK,
    RedSync,
    SparCML,
    TopK,
    gradzip,
    lowrank,
)
from gcodec.compressors.contract import AllGather, AllReduce, Memory, alone, n_kept
from gcodec.compressors.magnitudes import BinnedMagnitudes, Magnitudes, magnitudes_in
from gcodec.compressors.outcome import SparseValues
from gcodec.compressors.randomk import random_subset
from gcodec.compressors.selection import count_above, magnitude_bits
from gcodec.compressors.sparse import unpack_sparse
from gcodec.errors import InvalidArgument, PeerError
from tests.support import fake_gpu
from tests.support.compressor_settings import PROMISES, SHAPES, gradients_at, mean_of, norm, one_step, run, same

pytestmark = pytest.mark.usefixtures("one_thread")
everyone = pytest.mark.parametrize("name", PROMISES)


# Laws for all

@everyone
def test_a_compressor_at_its_lossless_setting_averages_as_dense(name):
    promise = PROMISES[name]
    if promise.lossless is None:
        return
    shapes = {"x": (50, 50)} if promise.square else SHAPES
    steps = 2 if promise.square else 4      # each divides by a random matrix
    plan = CompressionPlan(promise.lossless, feedback=None, smallest=0, vectors=True)
    _, averages = run(plan, 3, steps, shapes=shapes)
    for step, result in enumerate(averages):
        for tensor, wanted in mean_of(gradients_at(step, 3, shapes=shapes)).items():
            assert norm(result[tensor] - wanted) <= promise.apart * norm(wanted), tensor


@everyone
def test_gradients_on_a_device_are_averaged_on_that_device(name):
    """The averages are the host's, and nothing is used that a device's tensors do not allow."""
    simulation, host = Simulation(2, PROMISES[name].setting), Simulation(2, PROMISES[name].setting)
    for step in range(2):
        wanted, gradients = one_step(host, step), gradients_at(step, 2)
        with fake_gpu.FakeGpuMode():
            result = simulation.average([{key: fake_gpu.to_fake_gpu(x) for key, x in own.items()} for own in gradients])
        for own in result:
            assert all(isinstance(x, fake_gpu.FakeGpuTensor) and same(fake_gpu.to_host(x), wanted[key])
                       for key, x in own.items())


@everyone
@pytest.mark.parametrize("size", [1, 2, 4])
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


@everyone
@pytest.mark.parametrize("size", [2, 3, 4])
def test_error_feedback_telescopes_across_a_change_of_setting(name, size):
    promise = PROMISES[name]
    simulation = Simulation(size, CompressionPlan(promise.setting, smallest=0, vectors=True))
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
        left = sum((r.double() for rank in simulation.ranks if (r := rank.residual(tensor)) is not None),
                   torch.zeros_like(total))
        assert norm(total - sent[tensor] - left) <= 3 * max(promise.rounding, 1e-6) * norm(total), tensor


@everyone
def test_a_resumed_run_of_a_compressor_is_the_uninterrupted_run(name):
    plan = CompressionPlan(PROMISES[name].setting, smallest=100)
    simulation, _ = run(plan, 3, 3)
    buffer = io.BytesIO()
    torch.save([rank.state_dict() for rank in simulation.ranks], buffer)
    saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    texts = [unpack_state(pack_state(state)) for state in saved]        # as hooks keep it
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
    simulation = Simulation(2, CompressionPlan(PROMISES[name].setting, smallest=0))
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


@everyone
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
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
    assert eval(repr(setting), {**{name: getattr(room, name) for name in room.__all__}, "WarmUp": WarmUp}) == setting


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
    chosen_by_threshold = isinstance(setting, RedSync) or getattr(setting, "sample", None) is not None
    loose = isinstance(setting, Frames) or chosen_by_threshold or "sparcml" in name or "rounded" in name
    assert count.floats == pytest.approx(wanted, rel=0.6 if loose else 1e-9)
    assert count.payload_bytes == pytest.approx(n_bytes, rel=0.6 if loose or "raising" in name else 0.2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@everyone
def test_float64_and_bfloat16_gradients_keep_their_type(name, dtype):
    simulation, averages = run(CompressionPlan(PROMISES[name].setting), 2, 3, dtype=dtype)
    assert all(item.dtype == dtype and bool(torch.isfinite(item).all()) for item in averages[-1].values())
    residual = simulation.ranks[0].residual("linear")
    if residual is not None and not isinstance(PROMISES[name].setting, Cast):
        assert residual.dtype == (dtype if dtype == torch.float64 or "random" in name else residual.dtype)


@everyone
def test_gradients_are_not_written_to(name):
    simulation = Simulation(2, CompressionPlan(PROMISES[name].setting))
    gradients = gradients_at(0, 2)
    before = [{tensor: one.clone() for tensor, one in own.items()} for own in gradients]
    simulation.average(gradients)
    assert all(same(one, before[rank][tensor]) for rank, own in enumerate(gradients) for tensor, one in own.items())


# Settings

@pytest.mark.parametrize("wrong", [
    lambda: TopK(0.0), lambda: TopK(1.5), lambda: TopK(0.1, sample=2.0), lambda: QSGD(1), lambda: QSGD(9), lambda:
    QSGD(norm="l1"), lambda: PowerSGD(0), lambda: PowerSGD(True), lambda: GradZip(2, regularization=-1.0), lambda:
    GradZip(2, average=1.0), lambda: GradZip(2, dtype="int8"), lambda: Cast("float64"), lambda: DGC(0.1, upper=0.9),
    lambda: RedSync(0.1, method="other"), lambda: RedSync(0.1, same_sign=True, mantissa_bits=3), lambda: Frames(0),
    lambda: Dense().at(1), lambda: WarmUp(QSGD(), 3), lambda: Simulation(0, Dense()),
    lambda: Simulation(2, "bf16"), lambda: compression_plan(""),
    lambda: ErrorFeedback(0.0), lambda: CompressionPlan(Dense(), smallest=-1),
])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        wrong()


def test_plans_are_given_by_themselves_by_a_compressor_or_by_an_accuracy():
    plan = CompressionPlan(TopK(0.5), None)
    assert compression_plan(plan) is plan
    assert compression_plan(TopK(0.5)) == CompressionPlan(TopK(0.5), ErrorFeedback())
    assert compression_plan("fp8") == Simulation(2, "fp8").plan == CompressionPlan(Frames(2), ErrorFeedback())


def test_few_mantissa_bits_keep_exponents_and_round_to_nearest():
    gradient = gradients_at(0, 1)[0]["linear"] * torch.logspace(-30, 30, 70)
    sent = Frames(2).decompressed(gradient).contribution
    assert bool(((sent - gradient).abs() <= gradient.abs() / 8).all())
    mantissas, _ = torch.frexp(sent)
    assert torch.equal(mantissas * 8, (mantissas * 8).round())


def test_integers_and_sparse_tensors_are_refused():
    for tensor in (torch.zeros(4, 4, dtype=torch.int32), torch.eye(4).to_sparse()):
        with pytest.raises(InvalidArgument):
            alone(Averager(CompressionPlan(TopK(0.5), smallest=0)).average({"x": tensor}))


def test_at_replaces_the_knob_of_a_setting():
    assert TopK(0.1).at(0.2) == TopK(0.2)
    assert PowerSGD(4).at(2).value == 2
    assert QSGD(4).at(3) == QSGD(3)
    assert WarmUp(DGC(0.1), 5).at(0.2) == WarmUp(DGC(0.2), 5)


def test_small_tensors_and_vectors_stay_dense():
    simulation, averages = run(CompressionPlan(TopK(0.01), smallest=2000), 2, 1)
    exact = mean_of(gradients_at(0, 2))
    assert all(same(averages[0][tensor], exact[tensor]) for tensor in ("bias", "images"))
    assert not same(averages[0]["linear"], exact["linear"])
    assert simulation.ranks[0].last["images"].ratio == 1


def test_densities_of_warm_up_are_the_papers():
    warm = WarmUp(DGC(0.001), steps=10)
    results = [warm.setting(step).value for step in (0, 9, 10, 20, 30, 39, 40, 1000)]
    assert results == pytest.approx([0.251, 0.251, 0.0631, 0.0158, 0.00398, 0.00398, 0.001, 0.001], rel=1e-2)


def test_ranks_whose_requests_differ_raise_PeerError():
    def asks(request):
        yield request

    with pytest.raises(PeerError):
        run_conversations([asks(AllGather(b"")), asks(AllReduce(torch.zeros(3)))])
    with pytest.raises(PeerError):
        run_conversations([asks(AllReduce(torch.zeros(4))), asks(AllReduce(torch.zeros(3)))])


def test_importing_a_compressor_loads_no_other():
    program = "import sys; from gcodec.compressors import PowerSGD; print(*(n for n in sys.modules if 'gcodec' in n))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {"powersgd", "lowrank", "casts", "contract", "outcome"}
    below = {"gcodec", "gcodec.dtypes", "gcodec.errors"}
    assert set(loaded) == {*below, "gcodec.compressors", *(f"gcodec.compressors.{x}" for x in ours)}


# Laws of single ones

def test_topk_keeps_the_largest_values():
    gradient = gradients_at(0, 1)[0]["linear"]
    outcome = TopK(0.1).decompressed(gradient)
    left = (gradient - outcome.contribution).abs().max()
    assert outcome.indices is not None
    assert outcome.indices.numel() == 420
    assert bool((gradient.view(-1)[outcome.indices].abs() >= left).all())


@pytest.mark.parametrize("setting", [TopK(0.01, sample=0.01), DGC(0.01), RedSync(0.01),
                                     RedSync(0.01, method="bisection")], ids=repr)
@pytest.mark.parametrize("kind", ["normal", "heavy", "clustered", "mostly zero"])
def test_thresholds_keep_about_as_much_as_exact_topk(setting, kind):
    random = torch.Generator().manual_seed(5)
    values = torch.randn(400, 1000, generator=random)
    if kind == "heavy":
        values = values * torch.exp(2 * torch.randn(values.shape, generator=random))
    elif kind == "clustered":
        values[:4] *= 100
    elif kind == "mostly zero":
        values = values * (torch.rand(values.shape, generator=random) < 0.005)
    best, result = TopK(0.01).decompressed(values), setting.decompressed(values)
    limit = 2.0 if isinstance(setting, RedSync) else 1.5
    assert norm(result.contribution) >= 0.93 * norm(best.contribution)
    assert result.floats <= limit * best.floats


def test_binned_magnitudes_agree_with_counting():
    """Thresholds lie between and within the bins, for any number of values."""
    random = torch.Generator().manual_seed(0)
    flat = torch.randn(300_001, generator=random) ** 3
    flat[:5] = torch.tensor([0.0, -0.0, 1e-42, 3.5, -3.5])
    bits = magnitude_bits(flat)
    assert bits is not None
    assert isinstance(magnitudes_in(flat), BinnedMagnitudes)
    assert not isinstance(magnitudes_in(flat[:1000]), BinnedMagnitudes)
    counted, binned = Magnitudes(flat), BinnedMagnitudes(flat, bits)
    assert binned.mean == pytest.approx(counted.mean, rel=1e-5)
    assert binned.max == counted.max
    for threshold in (0.0, 1e-42, 1e-3, 0.5, 0.5009765625, 3.5, 3.5 + 1e-6, counted.max, 1e30):
        count = count_above(flat, threshold)
        assert binned.max_above(threshold) >= count
        for k in (1, count - 1, count, count + 1, count + 50, len(flat)):
            assert binned.reached(threshold, k) == (count >= k)
    for bad in (math.nan, -math.inf):
        flat[7] = bad
        assert BinnedMagnitudes(flat, bits).max == math.inf


@pytest.mark.parametrize("method", ["trimmed", "bisection"])
def test_redsync_chooses_by_histogram_what_it_chooses_by_counting(method):
    flat = torch.randn(300_001, generator=torch.Generator().manual_seed(1)) ** 3
    for density in (0.5, 0.01, 1e-5):
        setting = RedSync(density, method=method)
        result = setting.select(flat, {}, Place())
        with mock.patch("gcodec.compressors.redsync.magnitudes_in", Magnitudes):
            assert torch.equal(setting.select(flat, {}, Place()), result)


@given(st.integers(1, 2000), st.floats(0.01, 1.0), st.integers(0, 100))
def test_a_random_subset_has_the_size_and_order_it_should(n, density, seed):
    k = n_kept(n, density)
    subset = random_subset(n, k, seed)
    assert subset.numel() == k
    assert bool((subset[1:] > subset[:-1]).all())
    assert int(subset[0]) >= 0
    assert int(subset[-1]) < n


def test_random_k_is_uniform_and_unbiased():
    """Each of 40 positions is kept with probability 1/4: over 4000 steps 1000 times, standard deviation 27.4. All lie
    within 5 of these with probability 1 - 40 * 5.7e-7: a false alarm in 40,000 seeds, and the seed is fixed."""
    gradient = torch.linspace(-1, 1, 40).view(8, 5)
    counts, total = torch.zeros(40), torch.zeros(8, 5, dtype=torch.float64)
    memory: Memory = {}
    for _ in range(4000):
        outcome = alone(RandomK(0.25, unbiased=True).compress(gradient, memory, Place()))
        counts[outcome.indices] += 1
        total += outcome.average
    assert bool(((counts - 1000).abs() < 5 * 27.4).all())
    deviation = gradient.double().abs() * (3 / 4000) ** 0.5
    assert bool(((total / 4000 - gradient).abs() <= 5 * deviation + 1e-9).all())


@pytest.mark.parametrize("norm_kind", ["max", "l2"])
def test_qsgd_is_unbiased_and_within_a_level(norm_kind):
    """The mean of 2000 draws lies within 5 standard deviations, each at most half a level, of all of 300 values:
    a false alarm in 5,800 seeds, and the seed is fixed."""
    gradient = torch.randn(300, generator=torch.Generator().manual_seed(1)).view(10, 30)
    setting = QSGD(3, bucket=100, norm=norm_kind)
    rows = gradient.view(3, 100)
    norms = rows.abs().amax(1) if norm_kind == "max" else rows.norm(dim=1)
    level = (norms[:, None] / setting.levels).expand(3, 100).reshape(10, 30)
    total = torch.zeros(10, 30, dtype=torch.float64)
    memory: Memory = {}
    for _ in range(2000):
        result = alone(setting.compress(gradient, memory, Place())).contribution
        assert bool(((result - gradient).abs() <= level * (1 + 1e-5)).all())
        total += result
    assert bool(((total / 2000 - gradient).abs() <= 5 * level / 2 / 2000**0.5).all())


def test_qsgd_draws_differ_between_ranks_and_steps():
    gradient = torch.full((20, 20), 0.3)
    gradient[0, 0] = 1.0
    memories: list[Memory] = [{}, {}]
    first = compress_on(QSGD(3), [gradient, gradient], memories)
    second = compress_on(QSGD(3), [gradient, gradient], memories)
    drawn = [outcome.contribution for outcome in (*first, *second)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


@pytest.mark.parametrize("setting", [PowerSGD(3), PowerSGD(3, iterations=2), GradZip(3), GradZip(3, relative=True)])
def test_gradients_of_low_rank_are_sent_exactly_after_a_few_steps(setting):
    """The matrix of rank 3 stays the same; the ridge takes a little."""
    random = torch.Generator().manual_seed(2)
    matrix = torch.randn(50, 3, generator=random) @ torch.randn(3, 40, generator=random)
    memory: Memory = {}
    for _ in range(6):
        outcome = alone(setting.compress(matrix, memory, Place()))
    assert norm(outcome.average - matrix) <= 1e-4 * norm(matrix)


@pytest.mark.parametrize("setting", [PowerSGD(4), GradZip(4, regularization=1e-8)])
def test_warm_starts_approach_the_best_approximation(setting):
    """Power iteration on a matrix that stays the same ends at its singular value decomposition; the step's error
    too."""
    random = torch.Generator().manual_seed(3)
    values = torch.tensor([10.0, 9, 8, 7, 2, 1, 1, 1])
    left, right = (torch.linalg.qr(torch.randn(n, 8, generator=random)).Q for n in (60, 50))
    matrix = (left * values) @ right.T
    best = float(values[4:].square().sum())
    assert setting.error(matrix, steps=20) == pytest.approx(best, rel=1e-2)
    assert setting.error(matrix, steps=20) <= setting.error(matrix, steps=1)


def test_gradzip_solves_the_papers_normal_equations():
    """(V V^T + lambda I) U^T = V G^T, and only U is sent: m k floats at one step, k n at the next."""
    gradient = gradients_at(0, 1)[0]["linear"]
    memory: Memory = {}
    setting = GradZip(4, regularization=0.01)
    first = alone(setting.compress(gradient, memory, Place()))
    u = memory["gradzip.0"]
    start = setting.start("gradzip.1", 70, 4, gradient, {}, Place())
    wanted = torch.linalg.solve(start.T @ start + 0.01 * torch.eye(4), start.T @ gradient.T).T
    assert norm(u - wanted) <= 1e-5 * norm(wanted)
    assert norm(first.average - u @ start.T) <= 1e-6 * norm(first.average)
    second = alone(setting.compress(gradient, memory, Place()))
    v = memory["gradzip.1"].T
    wanted = torch.linalg.solve(u.T @ u + 0.01 * torch.eye(4), u.T @ gradient)
    assert norm(v - wanted) <= 1e-5 * norm(wanted)
    assert (first.floats, second.floats) == (60 * 4, 70 * 4)
    assert setting.floats((60, 70)) == (60 + 70) * 4 / 2


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (90, 4), (300, 16)])
def test_gradzip_solves_small_systems_as_it_solves_large_ones(monkeypatch, shape, dtype, relative):
    factor = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=dtype)
    factor *= torch.logspace(0, -4, shape[1], dtype=dtype)
    setting = GradZip(shape[1], relative=relative)
    results = []
    for few in (1 << 30, 0):
        monkeypatch.setattr(gradzip, "_MAX_KERNEL_PRODUCTS", few)
        results.append(setting._solved(factor))
    assert results[0].dtype == results[1].dtype == dtype
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6 * float(results[1].abs().max()))


def test_gradna_draws_its_first_factor_once(monkeypatch):
    memory: Memory = {}
    gradients = [gradients_at(step, 1)[0]["linear"] for step in range(3)]
    first = alone(GradNA(4).compress(gradients[0], memory, Place()))
    assert memory["gradna.1"].shape == (70, 4)
    monkeypatch.setattr(lowrank, "orthonormal", None)       # is not called again
    results = [alone(GradNA(4).compress(gradient, memory, Place())).average for gradient in gradients]
    assert same(results[0], first.average)
    monkeypatch.undo()
    for gradient, result in zip(gradients, results, strict=True):
        assert same(alone(GradNA(4).compress(gradient, {}, Place())).average, result)


@pytest.mark.parametrize("name", [name for name, promise in PROMISES.items() if promise.lossless is not None])
def test_a_rank_counts_as_contributed_what_it_sent_itself(name):
    """At the lossless setting that is its own gradient, and nothing is left over. A mean that is counted instead adds
    up over ranks just as well, but leaves every rank with the difference of its gradient from the others'."""
    promise = PROMISES[name]
    assert promise.lossless is not None
    shape = (50, 50) if promise.square else (60, 70)
    gradients = [own["x"] for own in gradients_at(0, 2, shapes={"x": shape})]
    places = [Place(rank, 2, "x") for rank in range(2)]
    outcomes = run_conversations([promise.lossless.compress(gradient, {}, place)
                                  for gradient, place in zip(gradients, places, strict=True)])
    for gradient, outcome in zip(gradients, outcomes, strict=True):
        assert norm(gradient - outcome.contribution) <= max(promise.apart, promise.rounding) * norm(gradient)


@pytest.mark.parametrize(("density", "switch", "dense"), [(0.3, 0.4, True), (0.3, 0.9, False), (0.05, 0.4, False)])
def test_sparcml_sends_sums_without_indices_from_the_density_of_its_switch_on(density, switch, dense):
    """Four ranks' 30 % are three quarters of a sum: below the switch only these values are sent, above it all."""
    gathered: list[tuple[torch.Tensor, torch.Tensor]] = []
    like = torch.zeros(1050, dtype=torch.float32)

    def overheard(conversation):
        reply = None
        try:
            while True:
                request = conversation.send(reply)
                if isinstance(request, AllGather):
                    gathered.append(unpack_sparse(request.payload, like))
                reply = yield request
        except StopIteration as end:
            return end.value

    gradients = [own["linear"] for own in gradients_at(0, 4)]
    setting = SparCML(TopK(density), switch=switch)
    run_conversations([overheard(setting.compress(gradient, {}, Place(rank, 4, "x")))
                       for rank, gradient in enumerate(gradients)])
    chosen = torch.zeros(4200, dtype=torch.bool)
    for gradient in gradients:
        chosen[gradient.flatten().abs().topk(round(density * 4200)).indices] = True
    parts = chosen.view(4, 1050).sum(1).tolist()
    assert [len(indices) for indices, _ in gathered] == ([1050] * 4 if dense else parts)
    assert all((part >= switch * 1050) == dense for part in parts)


def test_gradna_never_leaves_the_span_of_its_first_factor():
    """Without alternation all that is ever sent lies in the span of the first V: what the paper's comparison shows."""
    memory: Memory = {}
    spans = []
    for step in range(4):
        outcome = alone(GradNA(4).compress(gradients_at(step, 1)[0]["linear"], memory, Place()))
        spans.append(outcome.average)
    assert int(torch.linalg.matrix_rank(torch.cat(spans), rtol=1e-4)) == 4


@pytest.mark.parametrize("setting", [PowerSGD(4), GradZip(4)])
def test_a_warm_start_survives_a_change_of_rank(setting):
    gradient = gradients_at(0, 1)[0]["linear"]
    memory: Memory = {}
    for _ in range(2):
        alone(setting.compress(gradient, memory, Place()))
    before = {key: value.clone() for key, value in memory.items() if torch.is_tensor(value)}
    key = "powersgd.q" if isinstance(setting, PowerSGD) else "gradzip.1"
    for rank in (2, 6):
        start = setting.at(rank).start(key, 70, rank, gradient, memory, Place())
        assert start.shape == (70, rank)
        assert torch.equal(start[:, : min(rank, 4)], before[key][:, : min(rank, 4)])


def test_redsync_with_same_sign_sends_one_mean_of_alternating_sign():
    setting = RedSync(0.05, same_sign=True)
    memory: Memory = {}
    gradient = gradients_at(0, 1)[0]["linear"]
    for sign in (1, -1, 1):
        result = alone(setting.compress(gradient, memory, Place()))
        sent = result.contribution.view(-1)[result.indices]
        assert bool((sent * sign > 0).all())
        assert float(sent[0]) == pytest.approx(float(gradient.view(-1)[result.indices].mean()), rel=1e-5)
        assert result.floats == 1


def test_refining_a_milder_choice_of_topk_is_choosing_anew():
    """Choosing among the chosen finds what choosing among all does, for exact Top-k."""
    flat = gradients_at(0, 1)[0]["linear"].view(-1)
    coarse = TopK(0.1).select(flat, {}, Place())
    fine = TopK(0.01)
    result = fine.refine(SparseValues(coarse, flat[coarse]), flat.numel(), {}, Place())
    assert torch.equal(result.indices, fine.select(flat, {}, Place()))
    assert torch.equal(result.values, flat[result.indices])


@pytest.mark.parametrize("n_values", [0, 1, 3])
def test_refining_no_more_values_than_may_be_kept_returns_them(n_values):
    """A second choice among no more values than it may keep is the first one."""
    flat = torch.arange(float(n_values))
    chosen = SparseValues(torch.arange(n_values), flat)
    assert TopK(0.1).refine(chosen, n_values, {}, Place()).indices.numel() == min(n_values, 1)


def test_near_lossless_frames_follow_the_optimizer():
    param = torch.nn.Parameter(torch.randn(80, 50, generator=torch.Generator().manual_seed(1)) * 0.1)
    optimizer = torch.optim.SGD([param], lr=0.01)
    simulation = Simulation(2, CompressionPlan(Frames(optimizer=optimizer), feedback=None))
    gradients = [{"x": own["x"]} for own in gradients_at(0, 2, shapes={"x": (80, 50)})]
    average = simulation.average(gradients, {"x": param})[0]["x"]
    exact = mean_of(gradients)["x"]
    moved = 0.01 * (average.double() - exact.double()).abs()
    assert bool((moved <= 2 * 2.0**-24 * param.detach().double().abs() * 1.01 + 1e-12).all())
    assert simulation.ranks[0].last["x"].payload_bytes < Frames().payload_bytes((80, 50))
    with pytest.raises(InvalidArgument):
        simulation.average(gradients)


def test_names_and_seeds_alone_decide_random_choices():
    gradient = gradients_at(0, 1)[0]["linear"]
    chosen = {alone(replace(RandomK(0.05), seed=seed).compress(gradient, {}, Place(name=name))).indices.sum().item()
              for seed in (0, 1) for name in ("a", "b")}
    assert len(chosen) == 4
    state = torch.get_rng_state()
    run(RandomK(0.05), 2, 2)
    assert torch.equal(torch.get_rng_state(), state)
