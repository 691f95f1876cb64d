"""The bypass in simulated training: steps take what a made-up machine says, and no second process is needed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import gcodec.distributed as gd
from gcodec.distributed import Bypass
from gcodec.distributed.reduction import bypass as bypasses
from gcodec.distributed.reduction.bypass import TIMED, BypassController
from gcodec.distributed.reduction.ways import CAST, CODED, CODING, DENSE, OWN_CODEBOOKS, UNPREDICTED, WayTimes
from gcodec.distributed.stats import Counters

WAYS = (CODED, OWN_CODEBOOKS, DENSE, CAST)
SIZES = 1 << 24, 3 << 24
Machine = Callable[[int, int], float]  #: seconds of a step, by its number and its way


class AloneLane:
    """As much of a lane of one rank as the bypass asks for."""

    rank, size = 0, 1


def train(
    machine: Machine,
    n_steps: int,
    every: int = 500,
    size_seconds: Callable[[int, int], float] | None = None,
    ways: tuple[int, ...] = WAYS,
    share: Callable[[int], float] = lambda way: 1 / 3,
) -> tuple[BypassController, list[int], float]:
    """Return the bypass after so many steps, the way of the first bucket in each, and the seconds of all.

    Args:
        machine: Seconds of a step.
        n_steps: Number of steps.
        every: Steps from one trial to the next.
        size_seconds: Seconds of a bucket by its size and way; None: a share of the step's.
        ways: The ways to choose among.
        share: What a way of the codec sends of each byte.
    """
    controller, now, taken = BypassController(Bypass(every=every), "", ways), [0.0], []
    with mock.patch.object(bypasses, "perf_counter", lambda: now[0]):
        for step in range(n_steps):
            timed, way = controller.kind == TIMED, controller.way_for(SIZES[0])
            for size in SIZES:
                chosen = controller.way_for(size)
                sent = size * share(chosen)
                counters = Counters(raw_bytes=size, dense_bytes=size, sent_bytes=sent, encoded_bytes=size)
                counters.seconds = size_seconds(size, chosen) if size_seconds else machine(step, chosen) / len(SIZES)
                counters.encode_seconds = 1e-3
                if timed or chosen in CODING:
                    controller.add(size, counters)
            taken.append(way)
            now[0] += machine(step, way) * (1.1 if timed else 1.0)
            lane: Any = AloneLane()
            controller.end_step(lane)
    return controller, taken, now[0]


@pytest.mark.parametrize("best", WAYS)
def test_the_fastest_way_is_taken_and_a_trial_costs_little(best):
    controller, taken, seconds = train(lambda step, way: 0.1 if way == best else 0.15, 500)
    assert taken[-1] == best and controller.default == best
    assert taken.count(best) >= 478
    assert seconds <= 500 * 0.1 * 1.03
    assert controller.numbers["bypass_compressing"] == (best in CODING)
    assert controller.numbers["bypass_gain"] == pytest.approx({DENSE: 2 / 3, CAST: 1.0}.get(best, 1.5))
    assert list(controller.way_ratios.values()) == [pytest.approx(3.0)] * 2


@pytest.mark.parametrize("predicted", [False, True])
def test_a_way_without_prediction_is_in_doubt_only_where_something_is_predicted(predicted):
    noise = random.Random(4)

    def machine(step: int, way: int) -> float:
        return (0.2 if way == DENSE else 0.1) * noise.uniform(0.98, 1.02)

    controller, taken, _ = train(
        machine, 40, ways=(CODED, UNPREDICTED, DENSE), share=lambda way: 0.3 if way == CODED and predicted else 0.4
    )
    assert (controller.start == 3 + 4 * 4 + 1 + 500) == (not predicted)  # else there is another trial soon
    assert predicted or set(taken[20:]) == {CODED}


def test_a_model_without_large_buckets_is_said_not_to_be_compressed():
    with mock.patch.object(BypassController, "add"):
        controller, _, _ = train(lambda step, way: 0.1, 100)
    assert controller.numbers["bypass_compressing"] == 0 and controller.way_name == "uncompressed"
    assert controller.way_ratios == {} == controller.way_ms
    assert all(math.isnan(number) for name, number in controller.numbers.items() if name != "bypass_compressing")
    assert controller.start == 524  # there is nothing to doubt


def test_noise_is_outvoted_by_more_trials():
    """Steps of a shared machine: a quarter more or less, and now and then twice as long."""
    noise = random.Random(1)

    def machine(step: int, way: int) -> float:
        return (
            {CODED: 0.85, OWN_CODEBOOKS: 1.0, DENSE: 1.0, CAST: 1.1}[way]
            * noise.uniform(0.75, 1.25)
            * (2 if noise.random() < 0.1 else 1)
        )

    shares = [train(machine, 400)[1][250:].count(CODED) / 150 for _ in range(12)]
    assert sum(shares) / len(shares) >= 0.9


def test_a_wrong_decision_is_tried_again_early():
    """While the trial lasted, somebody else had the machine whenever dense steps came."""

    def machine(step: int, way: int) -> float:
        return (0.3 if step < 30 else 0.1) if way != CODED else (0.2 if step < 30 else 0.4)

    controller, taken, _ = train(machine, 160)
    assert taken[25] == CODED
    assert taken[-1] != CODED
    assert controller.verdicts and CODED not in controller.verdicts.values()


def test_a_machine_that_becomes_slower_for_all_is_not_tried_for_ever():
    _, taken, _ = train(lambda step, way: (1.0 if way == DENSE else 1.2) * (1 + step / 400), 400)
    assert taken.count(DENSE) > 300


def test_it_is_noticed_soon_that_another_way_is_better_however_often_this_has_happened():
    """Every 400 steps all become slower, and another way is the best."""

    def best(step: int) -> int:
        return CODED if step // 400 % 2 else DENSE

    _, taken, _ = train(lambda step, way: 3.0 ** (step // 400) * (1 if way == best(step) else 2), 6000, every=10_000)
    for begin in range(0, 6000, 400):
        assert set(taken[begin + 75 : begin + 400]) == {best(begin)}


def test_after_a_calm_time_it_is_noticed_soon_that_another_way_is_better():
    """Steps of all ways become ever slower, and then stay as they are for a while, until another way is better."""

    def machine(step: int, way: int) -> float:
        slower = min(step, 1500) / 100
        return (1.0 if way == DENSE else 1.2) * (1 + slower) if step < 4000 else 40.0 if way == DENSE else 1.0

    _, taken, _ = train(machine, 4200, every=100)
    assert DENSE not in taken[4080:4100]


def test_small_buckets_may_go_without_the_codec_where_steps_are_faster_with_it():
    controller, _, _ = train(
        lambda step, way: 0.1 if way in CODING else 0.2,
        60,
        size_seconds=lambda size, way: 0.01 if (way in CODING) == (size == SIZES[1]) else 0.001,
    )
    assert controller.way_for(SIZES[0]) in CODING and controller.way_for(SIZES[1]) == CAST


def test_ways_that_are_clearly_slower_take_no_part_in_further_trials():
    noise = random.Random(1)
    _, taken, _ = train(lambda step, way: noise.uniform(1, 1.3) if way in (DENSE, CAST) else 2.0, 120)
    assert taken.count(OWN_CODEBOOKS) == 4
    assert set(taken[47:65]) == {DENSE, CAST}


def test_a_change_of_the_ways_begins_anew():
    controller, _, _ = train(lambda step, way: 0.1 if way == CAST else 0.2, 60)
    assert controller.default == CAST
    controller.choose_among((CODED, DENSE))
    assert not controller.verdicts and not controller.trying and controller.start == 63
    assert controller.way_for(SIZES[0]) == CODED


def test_another_mode_is_tried_soon():
    state = gd.CompressedAllreduce(mode=gd.FixedBits(10))
    assert state._bypass is not None
    state._bypass.step, state._bypass.start = 100, 523
    state.mode = gd.FixedBits(10)
    assert state._bypass.start == 523
    state.mode = gd.FixedBits(7)
    assert state._bypass.start == 103


def test_the_state_of_a_bypass_can_be_restored():
    controller, _, _ = train(lambda step, way: 0.1 if way == OWN_CODEBOOKS else 0.2, 60)
    copy = BypassController(Bypass(), "", WAYS)
    copy.load_state_dict(controller.state_dict())
    assert (copy.default, copy.verdicts, copy.step) == (controller.default, controller.verdicts, controller.step)
    assert copy.start == copy.step + 3  # the link may be another one
    assert copy.numbers == controller.numbers and not math.isnan(copy.numbers["bypass_gain"])


def test_a_way_is_clearly_faster_if_it_wins_most_rounds():
    times = WayTimes((CODED, DENSE, CAST))
    for coded, dense in ((1.0, 1.1), (1.1, 1.2), (0.9, 0.8), (1.0, 1.3)):
        times.add_round({CODED: coded, DENSE: dense, CAST: 2.0})
    assert times.best == CODED
    assert DENSE in times.contenders and CAST not in times.contenders
    for _ in range(4):
        times.add_round({CODED: 1.0, DENSE: 1.1})
    assert DENSE not in times.contenders
    assert times.seconds_of(DENSE) == pytest.approx(float(np.median([1.1, 1.2, 0.8, 1.3, 1.1, 1.1, 1.1, 1.1])))
