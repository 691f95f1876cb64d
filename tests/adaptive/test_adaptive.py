"""The laws of GraVAC and Accordion, and of states, on made-up measurements and on simulated ranks."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gcodec.adaptive import Accordion, Adaptive, Geometric, GraVAC, KMeans, LGreCo, Listed, Range, ranks
from gcodec.adaptive.losses import at_factor, loss, rounded_to_bits, square
from gcodec.adaptive.multilevel import Chosen, probe_settings
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.feedback import MomentumCorrection
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import DGC, QSGD, Dense, Frames, GradZip, Place, PowerSGD, RandomK, RedSync, TopK, alone
from gcodec.errors import InvalidArgument
from tests.adaptive.simulated_ranks import advance, counter, of
from tests.support.compressor_settings import SHAPES, gradients_at, mean_of, norm, same
from tests.support.controller_settings import with_junk

pytestmark = pytest.mark.usefixtures("one_thread")


# What settings keep, and which there may be


@pytest.mark.parametrize(
    "make",
    [
        lambda: KMeans(TopK(0.1), (TopK(0.5), RandomK(0.1, unbiased=True))),
        lambda: GraVAC(RandomK(0.1, unbiased=True)),
        lambda: LGreCo(QSGD(6, norm="l2")),
        lambda: LGreCo(TopK(0.1), others=(RandomK(0.1, unbiased=True),)),
        lambda: Accordion(QSGD(6, norm="l2"), QSGD(4, norm="l2")),
    ],
)
def test_controllers_that_may_choose_what_diverges_with_feedback_are_refused_with_it(make):
    gradients = gradients_at(0, 1)[0]
    adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1))), make())
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            alone(adaptive.average(gradients))
    with pytest.raises(InvalidArgument, match="feedback must be None"):
        alone(Adaptive(Averager(CompressionPlan(TopK(0.1))), make()).average(gradients))
    alone(Adaptive(Averager(CompressionPlan(TopK(0.1), feedback=None)), make()).average(gradients))


@pytest.mark.parametrize(
    "setting",
    [
        TopK(0.1),
        TopK(0.1, sample=0.1),
        DGC(0.1),
        RedSync(0.1),
        RandomK(0.1),
        RedSync(0.1, same_sign=True),
        QSGD(4),
        PowerSGD(2),
        Frames(3),
    ],
    ids=repr,
)
def test_energy_kept_and_energy_lost_by_a_setting_add_up_to_the_whole(setting):
    tensor = gradients_at(0, 1)[0]["linear"]
    whole = square(tensor)
    for level in probe_settings(tensor, [setting], {}, Place()):
        outcome = alone(level.compressor.compress(tensor, {}, Place()))
        lost = square(tensor - outcome.contribution)
        assert level.kept == pytest.approx(whole - lost, rel=1e-4, abs=1e-6 * whole)


def indices_of(level):
    assert isinstance(level.compressor, Chosen)
    return level.compressor.indices


@pytest.mark.parametrize("family", [TopK(0.1), DGC(0.1), RedSync(0.1), RandomK(0.1)], ids=repr)
def test_a_harsher_probe_chooses_among_the_values_of_the_milder_one(family):
    """The second choice is among the first's values; for exact top-k it is what choosing anew would be."""
    tensor = gradients_at(0, 1)[0]["linear"]
    mild, harsh = probe_settings(tensor, [family.at(0.1), family.at(0.01)], {}, Place())
    first, second = indices_of(mild), indices_of(harsh)
    assert set(second.tolist()) < set(first.tolist())
    assert 20 <= len(second) <= 84
    assert harsh.kept < mild.kept < square(tensor)
    if isinstance(family, TopK):
        assert torch.equal(second, indices_of(probe_settings(tensor, [family.at(0.01)], {}, Place())[0]))


@pytest.mark.parametrize("compressor", [TopK(0.1, sample=0.05, least=3), DGC(0.1, reselect=False)], ids=repr)
def test_ranks_count_as_many_draws_however_few_values_each_has_left_to_refine(compressor):
    """Random-k after them chooses the same values on all ranks only if its count of draws is the same."""
    controller = GraVAC(compressor, 10, 20, 0.01, window=100, policy=Listed((10.5,)), dense=RandomK(0.5))
    group: Any = ranks(3, compressor, controller)
    for step in range(6):
        advance(group, step)
    counts = [{name: rank.averager.memories[name].get("step") for name in SHAPES} for rank in group]
    assert counts[0] == counts[1] == counts[2]
    for rank in group:
        rank.controller.epsilon = 1.0  # nothing keeps as much, so the next step is sent by Random-k
    assert advance(group, 6)["linear"].count_nonzero() == 2100
    assert of(group).log[-1] == 1


@pytest.mark.parametrize(
    ("compressor", "factor", "setting"),
    [
        (TopK(0.5), 20, TopK(0.05)),
        (RandomK(0.5), 4, RandomK(0.25)),
        (Frames(3), 2, Frames(7)),
        (QSGD(4), 7.8, QSGD(4)),
        (QSGD(4), 100, QSGD(2)),
        (PowerSGD(4), 10, PowerSGD(3)),
        (GradZip(4), 1e6, GradZip(1)),
        (Frames(3), 3.2, Frames(1)),
        (TopK(0.5), 1, Dense()),
    ],
    ids=repr,
)
def test_at_factor_returns_the_setting_that_compresses_by_that_factor(compressor, factor, setting):
    assert at_factor(compressor, factor, (60, 70)) == setting


def test_a_compressor_without_a_knob_has_no_factors():
    with pytest.raises(InvalidArgument):
        at_factor(Dense(), 2, (60, 70))


@pytest.mark.parametrize("bits", [1, 2, 5, 9])
def test_rounded_to_bits_rounds_as_frames_do(bits):
    tensor = gradients_at(0, 1)[0]["linear"]
    sent = Frames(bits).decompressed(tensor).contribution
    assert same(rounded_to_bits(tensor, bits), sent)
    assert loss(Frames(bits), tensor) / square(tensor) == pytest.approx(4.0**-bits / 23, rel=0.25)


# GraVAC, on simulated ranks


def test_a_resumed_gravac_run_decides_as_an_uninterrupted_one():
    controller = GraVAC(TopK(0.1), 2, 64, 0.3, window=4, omega=0.02, policy=Geometric(), weight=0.5)
    whole, group = ranks(2, TopK(0.1), controller, counter()), ranks(2, TopK(0.1), controller, counter())
    for step in range(14):
        if step in (3, 8):
            states = [rank.state_dict() for rank in group]
            group = ranks(2, TopK(0.1), controller, counter())
            for rank, state in zip(group, states, strict=True):
                rank.load_state_dict(state)
        a, b = advance(whole, step), advance(group, step)
        assert all(same(a[name], b[name]) for name in a)
    assert of(whole).log == of(group).log
    assert len(set(of(whole).log)) > 2


@pytest.mark.parametrize(("denominator", "bound"), [("fed", 1.05), ("raw", math.inf)])
def test_the_gain_of_random_k_is_its_density(denominator, bound):
    """This holds with error-fed gradients in the denominator. With raw ones the gain grows with the residual."""
    group = ranks(2, RandomK(0.1), GraVAC(RandomK(0.1), 1.5, 3.0, 1.0, window=100, denominator=denominator, omega=0.0))
    of(group).dense = of(group[1:]).dense = RandomK(2 / 3)  # so that a residual grows
    for step in range(12):
        advance(group, step)
    gains = of(group).gains
    assert bound < math.inf or gains[1.5] > 0.7
    for factor, gain in gains.items():
        assert 0.95 / factor < gain < bound / factor


def test_random_k_at_the_papers_epsilon_starts_by_plain_norms_only():
    """At 1.5x and epsilon = 0.7 squared norms keep too little from the first step on, and a dense step leaves no
    residual for the raw denominator to count; plain norms keep enough."""
    for metric, factors in (("squared", {1.0}), ("plain", {1.5, 3.0})):
        controller = GraVAC(RandomK(0.1), 1.5, 3, 0.7, denominator="raw", metric=metric)
        group = ranks(2, RandomK(0.1), controller)
        for step in range(6):
            advance(group, step)
        assert set(of(group).log) <= factors
        assert of(group).gains[1.5] == pytest.approx(2 / 3, rel=0.05) or metric == "plain"


def test_the_dense_branch_leaves_no_residual():
    group = ranks(2, TopK(0.1), GraVAC(TopK(0.1), 10, 100, 0.99, window=100))
    average = advance(group, 0)
    assert of(group).log == [1.0]
    assert all(rank.averager.residual(name) is None for rank in group for name in SHAPES)
    assert all(norm(average[name] - item) <= 1e-6 * norm(item) for name, item in mean_of(gradients_at(0, 2)).items())


def test_nan_on_one_rank_sends_that_step_dense_on_all_ranks():
    for compressor in (TopK(0.1), RandomK(0.1)):
        group = ranks(2, compressor, GraVAC(compressor, 2, 8, 0.1, window=2, omega=0.0))
        advance(group, 0)
        gradients = gradients_at(1, 2)
        gradients[1]["linear"][3, 3] = math.nan
        averages = run_conversations([rank.average(own) for rank, own in zip(group, gradients, strict=True)])
        assert all(one["linear"].isnan().any() for one in averages)
        assert all(same(averages[0][name], averages[1][name]) for name in SHAPES)
        assert of(group).log[1] == 1
        assert bool(torch.isfinite(advance(group, 2)["linear"]).all())
        assert of(group).log[2] > 1


def test_gradients_whose_squared_norm_is_beyond_float64_are_sent_dense():
    group = ranks(2, TopK(0.1), GraVAC(TopK(0.1), 2, 8, 0.1, window=2, omega=0.0))
    for step, scale, compressed in ((0, 1.0, True), (1, 1e154, False), (2, 1.0, True)):
        gradients = [
            {name: item * scale for name, item in own.items()}
            for own in gradients_at(step, 2, scale=1.0, dtype=torch.float64)
        ]
        averages = run_conversations([rank.average(own) for rank, own in zip(group, gradients, strict=True)])
        assert all(bool(torch.isfinite(average).all()) for average in averages[0].values())
        assert (of(group).log[step] > 1) == compressed
    assert math.isinf(square(torch.full((1,), 1e160, dtype=torch.float64)))


def test_throughput_is_samples_per_second_without_skipped_time():
    now = [0.0]
    (rank,) = group = ranks(1, TopK(0.1), GraVAC(TopK(0.1), 2, 4, 0.2, window=100), lambda: now[0])
    for step, passed in enumerate((5.0, 2.0, 100.0, 0.0)):
        now[0] += passed
        if passed == 100:  # an evaluation
            rank.skip()
            now[0] += 3
        alone(rank.average(gradients_at(step, 1)[0], samples=12))
        if step == 2:
            assert of(group).throughputs == {4: pytest.approx(12 / 2 * of(group).gains[4], rel=0.05)}
    assert of(group).throughputs == {4: pytest.approx(12 / 3 * of(group).gains[4], rel=0.05)}


def test_averages_stay_finite_with_gravac_and_momentum_correction():
    group = ranks(2, CompressionPlan(TopK(0.1), MomentumCorrection(0.9)), GraVAC(TopK(0.1), 2, 8, 0.5, window=2))
    for step in range(4):
        assert all(bool(torch.isfinite(item).all()) for item in advance(group, step).values())


def test_tensors_whose_shape_changes_between_steps_are_refused():
    group = ranks(1, TopK(0.1), GraVAC(TopK(0.1)))
    advance(group, 0)
    with pytest.raises(InvalidArgument, match=r"linear.* make a new controller"):
        alone(group[0].average({"linear": torch.zeros(60, 71)}))


def test_states_of_other_controllers_and_versions_are_refused():
    gravac_state = ranks(1, TopK(0.1), GraVAC(TopK(0.1)))[0].state_dict()
    (rank,) = ranks(1, TopK(0.1), Accordion(TopK(0.5), TopK(0.1)))
    with pytest.raises(InvalidArgument):
        rank.load_state_dict(gravac_state)
    with pytest.raises(InvalidArgument):
        rank.load_state_dict({**rank.state_dict(), "version": 2})
    with pytest.raises(InvalidArgument, match=r"one of Adaptive\.state_dict"):
        rank.load_state_dict(rank.averager.state_dict())
    for key in rank.state_dict():
        with pytest.raises(InvalidArgument):
            rank.load_state_dict({name: value for name, value in rank.state_dict().items() if name != key})
    for wrong in ({"period": 0}, {"threshold": 0.0}, {"drop": 1.0}, {"source": "elsewhere"}):
        with pytest.raises(InvalidArgument):
            Accordion(TopK(0.5), TopK(0.01), **wrong)


@pytest.mark.parametrize(
    ("before", "other"),
    [
        (LGreCo(TopK(0.01), period=2), LGreCo(TopK(0.3), Range(share=2), period=2)),
        (LGreCo(TopK(0.01), period=2), LGreCo(QSGD(4), period=2)),
        (KMeans(QSGD(4), (QSGD(6), QSGD(3)), period=2), KMeans(QSGD(4), (QSGD(6),), period=2)),
    ],
    ids=repr,
)
def test_choices_among_other_settings_are_refused(before, other):
    saved, resumed = after_a_decision(before), Adaptive(Averager(CompressionPlan(TopK(0.1))), copy.deepcopy(other))
    state = saved.state_dict()
    with pytest.raises(InvalidArgument, match=r"the state has chosen .* for '.*', which is none of the settings from"):
        resumed.load_state_dict(state)
    del state["controller"]["chosen"]  # as earlier states are
    with pytest.raises(InvalidArgument, match="options"):
        resumed.load_state_dict(state)


@pytest.mark.parametrize(
    ("before", "other"),
    [
        (LGreCo(PowerSGD(4), period=2), LGreCo(PowerSGD(4), Range(below=4.0, above=3.0), period=2)),
        (LGreCo(TopK(0.01), period=2), LGreCo(TopK(0.01), others=(QSGD(4),), period=2)),
        (LGreCo(QSGD(4), period=2), LGreCo(TopK(0.01), others=(QSGD(4),), period=2)),
        (KMeans(QSGD(4), (QSGD(6), QSGD(3)), period=2), KMeans(QSGD(4), (QSGD(7), QSGD(6), QSGD(3)), period=2)),
    ],
    ids=repr,
)
def test_choices_stay_the_same_settings_where_there_are_more_or_others_beside_them(before, other):
    saved, resumed = after_a_decision(before), Adaptive(Averager(CompressionPlan(TopK(0.1))), copy.deepcopy(other))
    resumed.load_state_dict(saved.state_dict())
    assert resumed.controller.settings(2, 0.1) == saved.controller.settings(2, 0.1)


@pytest.mark.parametrize(
    "controller", [LGreCo(TopK(0.01), period=2), KMeans(QSGD(4), (QSGD(6), QSGD(3)), period=2)], ids=repr
)
@pytest.mark.parametrize("n_choices", [1, 20])
def test_a_state_s_settings_decide_though_it_has_more_or_fewer_numbers(controller, n_choices):
    saved = after_a_decision(controller)
    state = saved.state_dict()
    state["controller"]["choices"] = [0] * n_choices
    resumed = Adaptive(Averager(CompressionPlan(TopK(0.1))), copy.deepcopy(controller))
    resumed.load_state_dict(state)
    assert resumed.controller.settings(2, 0.1) == saved.controller.settings(2, 0.1)


def after_a_decision(controller):
    """Return a rank whose controller, with a period of 2, has decided once."""
    rank = Adaptive(Averager(CompressionPlan(TopK(0.1))), copy.deepcopy(controller))
    for step in range(2):
        alone(rank.average(gradients_at(step, 1)[0], rate=0.1))
    return rank


def test_sums_residuals_and_numbers_of_another_kind_are_refused():
    saved = after_a_decision(LGreCo(TopK(0.01), period=2))
    alone(saved.average(gradients_at(2, 1)[0], rate=0.1))
    state = saved.state_dict()
    for path, junk, says in [
        (("sums", "linear"), torch.zeros(1), r"a sum of shape \(1,\) for 'linear', another than that of the tensor"),
        (("sums", "x"), torch.zeros(1), r"a sum of shape \(1,\) for 'x', another than that of the tensor"),
        (("averager", "tensors", "linear"), {"residual": 3}, "the residual of 'linear' must be a tensor, not a int"),
        (("controller", "choices"), {"a": 1}, "the state of LGreCo must have a list for choices, not a dict"),
        (("shapes",), [1], "parts of it are missing or of another kind: AttributeError"),
    ]:
        rank = Adaptive(Averager(CompressionPlan(TopK(0.1))), LGreCo(TopK(0.01), period=2))
        with pytest.raises(InvalidArgument, match=says):
            rank.load_state_dict(with_junk(state, path, junk))
