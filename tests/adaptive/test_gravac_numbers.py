"""GraVAC on numbers alone: branches, candidates and the end of its exploration."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from gcodec.adaptive import (
    Exponential,
    Geometric,
    GraVAC,
    Listed,
    Measured,
    gravac_bits,
)
from gcodec.compressors import Dense, TopK
from gcodec.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("one_thread")


def gravac(**options):
    """Return a GraVAC between 10 and 1000 that believes every gain at once."""
    controller = GraVAC(TopK(0.1), **{"window": 4, "weight": 1.0, **options})
    controller.start({"x": (100, 100)}, 4)
    return controller


def feed(controller, gains, seconds=None, steps=1):
    """Feed steps in which factors keep what ``gains`` says of them, and take what ``seconds`` says of the one sent."""
    for _ in range(steps):
        took = 0.0 if seconds is None or not controller.log else seconds(controller.log[-1])
        kept = tuple(gains(factor) for factor in controller.factors)
        controller.choose(Measured(1.0, 1.0, kept, took, 0.0, 100.0))
    return controller.log[-steps:]


def test_gravac_sends_the_candidate_the_floor_or_dense_by_what_each_keeps():
    controller = gravac()
    assert feed(controller, lambda factor: 0.9) == [20]
    assert feed(controller, lambda factor: 0.8 if factor == 10 else 0.6) == [10]
    assert feed(controller, lambda factor: 0.5) == [1]
    assert controller.fallback == Dense()


def test_candidates_of_exponential_and_geometric_policies_are_the_papers():
    assert Exponential().candidates(10, 1000) == [20, 40, 160, 1000]
    assert Geometric().candidates(10, 2000) == [20, 40, 80, 160, 320, 640, 1280, 2000]
    assert Geometric().candidates(1.5, 1000)[:5] == [3, 6, 12, 24, 48]
    assert Listed((12, 15)).candidates(10, 30) == [12, 15, 30]


@pytest.mark.parametrize("policy", [Exponential(), Geometric()], ids=repr)
def test_every_candidate_factor_is_tried_for_one_window(policy):
    controller = gravac(policy=policy, omega=0.0)
    wanted = policy.candidates(10, 1000)
    assert feed(controller, lambda factor: 0.9 - factor / 1e5, steps=4 * len(wanted)) == [
        factor for factor in wanted for _ in range(4)
    ]
    assert controller.floor == 10
    assert controller.ideal == 0


def test_the_floor_rises_to_the_candidate_that_was_just_tried():
    controller = gravac(omega=0.01)
    feed(controller, lambda factor: 0.9 if factor <= 40 else 0.8, steps=4)
    assert (controller.floor, controller.candidate) == (20, 40)
    feed(controller, lambda factor: 0.9 if factor <= 40 else 0.8, steps=4)
    assert (controller.floor, controller.candidate) == (40, 160)
    feed(controller, lambda factor: 0.9 if factor <= 40 else 0.8, steps=4)
    assert (controller.floor, controller.candidate) == (40, 1000)


@pytest.mark.parametrize(("settle", "sent"), [(False, 10), (True, 40)])
def test_exploration_with_settle_ends_at_the_best_factor_that_keeps_enough(settle, sent):
    """The published rule goes to theta_min after the last candidate, though another factor did as well."""
    controller = gravac(settle=settle, omega=0.0)

    def gains(factor):
        return 0.8 - factor / 1e3 if factor <= 40 else 0.5

    feed(controller, gains, lambda factor: 1 / factor, steps=4 * 4)
    assert controller.candidate == (40 if settle else 1000)
    assert feed(controller, gains, lambda factor: 1 / factor, steps=12) == [sent] * 12
    assert set(feed(controller, lambda factor: gains(factor) - 0.065, lambda factor: 1 / factor, steps=12)[4:]) == (
        {20} if settle else {10}
    )  # where it keeps too little, the next
    assert feed(controller, lambda factor: 0.5, lambda factor: 1 / factor) == [1]


def test_exploration_ends_where_throughput_no_longer_rises():
    """The papers' case: throughput saturates, so the lower of the two best factors it is, for good."""
    controller = gravac(policy=Geometric(), most=2000, omega=0.01)

    def seconds(factor):
        return 1 / min(factor, 1280) ** 0.5

    feed(controller, lambda factor: 0.9 - 2e-5 * factor**0.5, seconds, steps=4 * 7 + 3)
    assert controller.ideal == 0
    feed(controller, lambda factor: 0.9 - 2e-5 * factor**0.5, seconds, steps=1)
    assert controller.ideal == 1280
    assert feed(controller, lambda factor: 0.9, seconds, steps=20) == [1280] * 20
    assert feed(controller, lambda factor: 0.5, seconds) == [1]  # branches stay
    assert controller.throughputs[1280] == pytest.approx(100 / seconds(1280) * 0.9)


def test_gravac_ends_dense_where_compression_raises_no_throughput():
    controller = gravac(omega=0.05, epsilon=0.7)
    feed(controller, lambda factor: 0.5, lambda factor: 1.0, steps=2)  # dense
    feed(controller, lambda factor: 0.99, lambda factor: 1.0, steps=2)
    assert controller.ideal == controller.floor == 1
    assert feed(controller, lambda factor: 1.0) == [1]
    assert controller.probes() == [{"x": Dense()}]


@pytest.mark.parametrize("bounds", [{"most": 100.0}, {"least": 20.0}, {"least": 200.0, "most": 500.0}], ids=repr)
def test_a_state_with_factors_outside_of_the_bounds_is_refused(bounds):
    """A run that is resumed with a lower ``most`` would go on to compress harder than that."""
    controller = gravac(omega=0.0)
    feed(controller, lambda factor: 0.9 - factor / 10000, steps=8)
    assert controller.factors == (10, 160)
    with pytest.raises(InvalidArgument, match="the state has a factor of"):
        gravac(**bounds).load_state_dict(controller.state_dict())
    gravac(least=5.0, most=160.0).load_state_dict(controller.state_dict())


def test_a_state_that_has_ended_dense_is_taken_with_any_bounds():
    controller = gravac(omega=0.05, epsilon=0.7)
    feed(controller, lambda factor: 0.5, lambda factor: 1.0, steps=2)
    feed(controller, lambda factor: 0.99, lambda factor: 1.0, steps=2)
    other = gravac(least=200.0, most=500.0)
    other.load_state_dict(controller.state_dict())
    assert other.factors == (1,)


def test_throughput_of_the_dense_branch_excludes_the_time_of_probes():
    controller = gravac()
    feed(controller, lambda factor: 0.5)
    controller.choose(Measured(1.0, 1.0, (0.5, 0.5), 3.0, 1.0, 8.0))
    assert controller.throughputs == {1.0: 4.0}


def test_gains_are_moving_averages():
    controller = gravac(weight=0.04, window=500)
    for gain in (0.5, 1.0, 1.0):
        feed(controller, lambda factor, gain=gain: gain)
    assert controller.gains[10] == pytest.approx(0.5 + 0.5 * (1 - 0.96**2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_zero_or_non_finite_gradients_change_no_gain_and_are_sent_dense(bad):
    controller = gravac()
    feed(controller, lambda factor: 0.9)
    before = dict(controller.gains)
    choice = controller.choose(Measured(bad, bad, (bad, bad)))
    assert controller.gains == before
    assert choice == (1 if bad == 0 else None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"least": 0.5},
        {"least": 20.0, "most": 10.0},
        {"epsilon": 0.0},
        {"window": 0},
        {"weight": 2.0},
        {"omega": -1.0},
        {"denominator": "both"},
        {"metric": "cubed"},
    ],
    ids=str,
)
def test_gravac_refuses_arguments_out_of_range(wrong):
    with pytest.raises(InvalidArgument):
        GraVAC(TopK(0.1), **wrong)


def test_policies_refuse_arguments_out_of_range():
    wrong = (
        lambda: Exponential(1.0),
        lambda: Geometric(0.5),
        lambda: Listed(()),
        lambda: Listed((3, 2)),
        lambda: gravac_bits((3, 5)),
    )
    for call in wrong:
        with pytest.raises(InvalidArgument):
            call()


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=40),
    st.sampled_from([Exponential(), Geometric()]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.integers(1, 4),
)
def test_gravac_keeps_its_invariants_whatever_is_measured(steps, policy, omega, window):
    """Sent tensors keep enough; candidates only rise, to theta_max at most, until a factor that was sent is ideal; the
    same numbers lead to the same decisions, before a resume or after."""
    controller, twin = (gravac(policy=policy, omega=omega, window=window, epsilon=0.6) for _ in range(2))
    wanted = {1.0, 10.0, *policy.candidates(10, 1000)}
    for mild, harsh, seconds in steps:
        before, factors = (controller.floor, controller.candidate, controller.ideal), controller.factors
        kept = (max(mild, harsh), min(mild, harsh))[: len(factors)]
        measured = Measured(1.0, 1.0, kept, seconds, 0.0, 1.0)
        choice = controller.choose(measured)
        assert (choice is None) == (max(kept) < 0.6)
        assert controller.log[-1] == (1 if choice is None else factors[choice])
        if choice is not None:
            assert kept[choice] >= 0.6
            assert kept[-1] < 0.6 or choice == len(factors) - 1
        if before[2]:
            assert (controller.floor, controller.candidate, controller.ideal) == before
        elif controller.ideal:
            assert controller.candidate == controller.ideal in controller.throughputs
        else:
            assert controller.floor >= before[0]
            assert 1000 >= controller.candidate >= before[1]
        assert {controller.floor, controller.candidate} <= wanted
        again = gravac(policy=policy, omega=omega, window=window, epsilon=0.6)
        again.load_state_dict(twin.state_dict())
        again.choose(measured)
        twin = again
    assert twin.state_dict() == controller.state_dict()
