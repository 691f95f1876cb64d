"""The lines of GraVAC's Algorithm 1, one by one: what promotes theta_min, what is charged to whom, what is averaged;
and what L-GreCo is told on several ranks."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gcodec.adaptive import Adaptive, Exponential, Geometric, GraVAC, LGreCo, Measured, ranks
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import Dense, PowerSGD, TopK
from tests.support.compressor_settings import SHAPES, gradients_at, mean_of, same

pytestmark = pytest.mark.usefixtures("one_thread")


def of(rank: Adaptive) -> Any:
    """Return the controller of a rank."""
    return rank.controller


def gravac(size=4, **options):
    """Return a GraVAC between 10 and 1000 among so many ranks, whose newest gains count alone."""
    controller = GraVAC(TopK(0.1), **{"window": 4, "weight": 1.0, **options})
    controller.start({"x": (100, 100)}, size)
    return controller


def feed(controller, mild, harsh, steps):
    """Feed steps in which theta_min keeps ``mild``, and the candidate ``harsh``."""
    for _ in range(steps):
        controller.choose(Measured(1.0, 1.0, (mild, harsh)[: len(controller.factors)]))


def test_theta_min_never_rises_to_a_factor_that_keeps_too_little():
    controller = gravac(epsilon=0.7)
    feed(controller, 0.5, 0.5, 4)
    assert (controller.floor, controller.candidate) == (10, 40)
    feed(controller, 0.9, 0.9, 4)
    assert controller.floor == 40


@pytest.mark.parametrize(("mild", "harsh", "floor"), [(0.50, 0.496, 20), (0.50, 0.493, 10), (0.90, 0.893, 20)])
def test_omega_is_relative_to_the_milder_gain(mild, harsh, floor):
    """One percent of 0.50 is 0.005, which a difference of 0.007 is above; one percent of 0.90 it is below."""
    controller = gravac(epsilon=0.4, omega=0.01)
    feed(controller, mild, harsh, 4)
    assert controller.floor == floor


def test_compressed_steps_are_charged_the_time_of_probing_and_dense_ones_are_not():
    controller = gravac(epsilon=0.7)
    feed(controller, 0.9, 0.8, 1)
    controller.choose(Measured(1.0, 1.0, (0.5, 0.4), seconds=3.0, measuring=1.0, samples=8.0))
    assert controller.throughputs == {20.0: pytest.approx(8 / 3 * 0.8)}
    controller.choose(Measured(1.0, 1.0, (0.5, 0.4), seconds=3.0, measuring=1.0, samples=8.0))
    assert controller.throughputs[1.0] == pytest.approx(8 / 2)


@pytest.mark.parametrize(
    ("size", "window", "weight"),
    [(4, 500, 0.04), (32, 500, 0.32), (200, 500, 1.0), (4, 10, 0.3), (1, 20, 0.15), (40, 10, 0.4), (4, 2, 1.0)],
)
def test_a_gain_weighs_a_hundredth_of_the_ranks_but_at_least_three_windowths(size, window, weight):
    controller = gravac(size, window=window, weight=None)
    feed(controller, 0.5, 0.5, 1)
    feed(controller, 1.0, 1.0, 1)
    assert controller.gains[10] == pytest.approx(0.5 + 0.5 * weight)


def test_averages_of_both_factors_begin_anew_with_every_candidate():
    controller = gravac(weight=0.1, epsilon=0.95)
    feed(controller, 0.2, 0.1, 4)
    assert (controller.gains[10], controller.gains[20]) == (pytest.approx(0.2), pytest.approx(0.1))
    controller.choose(Measured(0.0, 0.0, (0.0, 0.0)))  # of zeros there is no gain to begin with
    feed(controller, 0.9, 0.8, 1)
    assert (controller.gains[10], controller.gains[40]) == (0.9, 0.8)
    feed(controller, 0.8, 0.7, 1)
    assert (controller.gains[10], controller.gains[40]) == (pytest.approx(0.89), pytest.approx(0.79))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60),
    st.sampled_from([Exponential(), Geometric()]),
    st.sampled_from([None, 0.04, 1.0]),
    st.integers(1, 9),
)
def test_gains_of_nested_settings_never_rise_with_the_factor(shares, policy, weight, window):
    """Whatever the gradients of a step, a choice among the milder one's values keeps no more than it: so must averages
    that are compared. Otherwise theta_min rises to what only a calmer time has made look good."""
    controller = gravac(policy=policy, weight=weight, window=window, epsilon=0.6)
    for mild, part in shares:
        factors = controller.factors
        controller.choose(Measured(1.0, 1.0, (mild, mild * part)[: len(factors)]))
        gains = [controller.gains[factor] for factor in factors]
        assert gains == sorted(gains, reverse=True) or gains[1] <= gains[0] * (1 + 1e-12)


def test_gains_fall_with_the_factor_in_training_too():
    """Gradients grow steeper from step to step, so that averages of different steps would be in the wrong order."""
    group = ranks(2, TopK(0.1), GraVAC(TopK(0.1), 2, 32, 0.99, window=3))
    for step in range(12):
        gradients = [
            {name: value * value.abs() ** step for name, value in own.items()}
            for own in gradients_at(step, 2, scale=1.0)
        ]
        factors = of(group[0]).factors
        run_conversations([rank.average(own) for rank, own in zip(group, gradients, strict=True)])
        kept = [of(group[0]).gains[factor] for factor in factors]
        assert kept == sorted(kept, reverse=True)


def test_throughput_counts_the_samples_of_all_ranks_and_the_mean_of_their_seconds():
    """T_sys = N b / t: ranks' samples add up, and the time of a step is one of them, not the sum over ranks."""
    clocks = ([0.0], [0.0])
    controllers = [GraVAC(TopK(0.1), 2, 4, 0.2, window=100) for _ in clocks]
    group = [
        ranks(2, TopK(0.1), controller, partial(now.__getitem__, 0))[rank]
        for rank, (controller, now) in enumerate(zip(controllers, clocks, strict=True))
    ]
    for step in range(3):
        clocks[0][0] += 2.0
        clocks[1][0] += 4.0
        run_conversations(
            [
                rank.average(own, samples=samples)
                for rank, own, samples in zip(group, gradients_at(step, 2), (10, 20), strict=True)
            ]
        )
    for rank in group:
        gains = of(rank).gains
        assert of(rank).throughputs == {4: pytest.approx((10 + 20) / 3 * gains[4], rel=0.05)}


def test_lgreco_sends_all_tensors_dense_while_it_warms_up():
    controller = LGreCo(PowerSGD(4), period=2, warmup=3)
    controller.start(SHAPES, 2)
    for step in range(3):
        assert controller.settings(step, None) == dict.fromkeys(SHAPES, Dense())
    assert controller.settings(3, None) == dict.fromkeys(SHAPES, PowerSGD(4))


class Listening(LGreCo):
    """Keeps what it decides from."""

    heard: dict[str, torch.Tensor]

    def decide(self, means):
        self.heard = copy.deepcopy(dict(means))
        return super().decide(means)


@pytest.mark.parametrize("source", ["average", "own", "reduced"])
def test_planners_decide_from_the_averages_the_own_or_the_reduced_gradients(source):
    """ "average" is the mean over the period of what compression made of the gradients, not of the gradients."""
    group = ranks(2, CompressionPlan(TopK(0.05), None), Listening(TopK(0.05), period=3, source=source))
    gradients = [gradients_at(step, 2) for step in range(3)]
    averages = [
        run_conversations([rank.average(one) for rank, one in zip(group, own, strict=True)])[0] for own in gradients
    ]
    wanted = {"average": averages, "own": [own[0] for own in gradients], "reduced": [mean_of(own) for own in gradients]}
    heard = of(group[0]).heard
    assert math.prod(heard["linear"].shape) == 4200
    for name, mean in heard.items():
        torch.testing.assert_close(mean, sum(one[name] for one in wanted[source]) / 3)
    assert not same(wanted["average"][0]["linear"], wanted["reduced"][0]["linear"])
