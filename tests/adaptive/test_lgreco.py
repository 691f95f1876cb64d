"""The laws of L-GreCo: its dynamic programming against all combinations, and its errors and costs."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gcodec.adaptive import (
    Accordion,
    Adaptive,
    Bytes,
    Floats,
    GlobalThreshold,
    KMeans,
    LGreCo,
    Listed,
    Prioritized,
    Range,
    Seconds,
    ranks,
)
from gcodec.adaptive.families import errors_of
from gcodec.adaptive.knapsack import discretized, solve
from gcodec.averaging.averager import Averager
from gcodec.averaging.feedback import WarmUp
from gcodec.averaging.simulate import Simulation, run_conversations
from gcodec.compressors import DGC, QSGD, Dense, Frames, PowerSGD, RandomK, RedSync, TopK
from gcodec.errors import InvalidArgument
from tests.adaptive.uneven_model import MODEL, gradients
from tests.support.compressor_settings import SHAPES, gradients_at, mean_of, norm, same

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = [TopK(0.05), DGC(0.05), RedSync(0.05), RandomK(0.05), QSGD(4), PowerSGD(4), Frames(4)]


def made(**options):
    controller = LGreCo(**options)
    controller.start(MODEL, 4)
    return controller


def chosen(controller, choices):
    return {name: controller.options[name][int(choice)] for name, choice in zip(MODEL, choices, strict=True)}


def totals(controller, settings):
    """Return the error, by the controller's metric, and the cost of settings on :func:`gradients`."""
    error = cost = 0.0
    for name, tensor in gradients().items():
        squared = float(errors_of([settings[name]], tensor, controller.method)[0])
        error += math.sqrt(squared) if controller.metric == "plain" else squared
        cost += controller.cost.of(name, MODEL[name], settings[name])
    return error, cost


# The dynamic programming


@st.composite
def tables(draw):
    """Draw errors and costs of up to five items of up to four options; the reference is any of these."""
    numbers = st.integers(0, 30)
    errors, costs, references = [], [], []
    for _ in range(draw(st.integers(1, 5))):
        n = draw(st.integers(1, 4))
        errors.append(np.array(draw(st.lists(numbers, min_size=n, max_size=n)), float))
        costs.append(np.array(draw(st.lists(numbers, min_size=n, max_size=n)), float))
        references.append(draw(st.integers(0, n - 1)))
    return errors, costs, references


def best_of_all(weights, costs, budget):
    """Return the smallest cost of all combinations that fit, or None."""
    options = [range(len(weight)) for weight in weights]
    fitting = [
        sum(cost[i] for cost, i in zip(costs, chosen, strict=True))
        for chosen in itertools.product(*options)
        if sum(weight[i] for weight, i in zip(weights, chosen, strict=True)) <= budget
    ]
    return min(fitting, default=None)


def spent(table, chosen):
    return sum(item[i] for item, i in zip(table, chosen, strict=True))


@given(tables(), st.integers(0, 60))
def test_solve_finds_the_cheapest_choices_within_the_budget(table, budget):
    weights, costs, _ = table
    weights = [weight.astype(np.int64) for weight in weights]
    best = best_of_all(weights, costs, budget)
    if best is None:
        with pytest.raises(InvalidArgument):
            solve(weights, costs, budget)
        return
    result = solve(weights, costs, budget)
    assert spent(weights, result) <= budget
    assert spent(costs, result) == best
    assert spent(costs, solve(weights, costs, budget + 5)) <= best


@given(tables(), st.sampled_from([1, 7, 100, 10000]))
def test_choices_by_binned_errors_keep_the_references_budget(table, n_bins):
    """The references fit; what fits has no more error than they have; and with bins fine enough for these whole
    numbers, the choice is the best there is."""
    errors, costs, references = table
    bins, budget = discretized(errors, references, n_bins)
    assert spent(bins, references) == budget
    assert all((item >= 0).all() for item in bins)
    result = solve(bins, costs, budget)
    total = spent(errors, references)
    assert spent(errors, result) <= total * (1 + 1e-12)
    assert spent(costs, result) <= spent(costs, references)
    if total > 0 and n_bins % total == 0:
        assert spent(costs, result) == best_of_all(errors, costs, total)


def test_equal_costs_are_decided_by_the_error():
    bins = [np.array([5, 2, 3])]
    assert solve(bins, [np.array([1.0, 1.0, 1.0])], 5) == [1]


def test_solve_returns_no_choices_for_no_items():
    assert solve([], [], 10) == []


# Settings and errors


@pytest.mark.parametrize(
    ("reference", "values"),
    [
        (QSGD(4), [2, 3, 4, 5, 6, 7, 8]),
        (QSGD(6), [3, 4, 5, 6, 7, 8]),
        (PowerSGD(4), [2, 3, 4, 5, 6, 7, 8]),
        (PowerSGD(1), [1, 2]),
        (Frames(3), [2, 3, 4, 5, 6]),
    ],
    ids=repr,
)
def test_default_ranges_of_ranks_and_bits_are_the_papers(reference, values):
    settings = Range().settings(reference, (60, 70))
    assert [setting.value for setting in settings] == values
    assert reference in settings


def test_ranges_end_at_density_1_and_at_full_rank():
    settings = Range().settings(TopK(0.05), (60, 70))
    assert [setting.value for setting in settings] == pytest.approx([0.005 * n for n in range(1, 101)])
    assert settings[9] == TopK(0.05)
    assert max(setting.value for setting in Range().settings(TopK(0.5), (60, 70))) == 1
    assert [item.value for item in Range(least=8, most=64).settings(PowerSGD(32), (900, 900))] == list(range(8, 65))
    assert [item.value for item in Range().settings(PowerSGD(4), (5, 900))] == [2, 3, 4, 5]
    for wrong in ({"below": 0.5}, {"above": 0.0}, {"share": 0}):
        with pytest.raises(InvalidArgument):
            Range(**wrong)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_expected_errors_are_those_of_compressing(family):
    """Random choices, and those that only aim at top-k, may have somewhat larger errors."""
    for name, tensor in gradients().items():
        settings = Range().settings(family, MODEL[name])
        result, whole = errors_of(settings, tensor), float(tensor.double().square().sum())
        assert (np.diff(result) <= 1e-9 * whole).all() or isinstance(family, QSGD)  # more sent, less lost
        for setting, error in list(zip(settings, result, strict=True))[:: max(len(settings) // 3, 1)]:
            if isinstance(family, RandomK | DGC | RedSync):
                assert error <= setting.error(tensor) + 0.2 * whole
            elif isinstance(family, PowerSGD):
                assert error == pytest.approx(setting.error(tensor, steps=5), rel=0.15, abs=1e-9 * whole)
            else:  # top-k by histogram; one draw of QSGD's
                close = {TopK: 1e-2, QSGD: 0.3}.get(type(setting), 1e-4)
                assert error == pytest.approx(setting.error(tensor), rel=close, abs=1e-9 * whole)


def test_errors_of_settings_that_warm_up_are_those_of_what_they_become():
    """Their floats and bytes are counted as those of what they become, too."""
    tensor = gradients()["a"]
    settings: list[Any] = [TopK(0.001), RandomK(0.05), DGC(0.02)]
    warming = [WarmUp(setting, steps=100) for setting in settings]
    assert errors_of(warming, tensor).tolist() == errors_of(settings, tensor).tolist()
    assert [setting.floats(tensor.shape) for setting in warming] == [x.floats(tensor.shape) for x in settings]


@pytest.mark.parametrize(
    "setting", [TopK(0.05), QSGD(4), QSGD(4, norm="l2"), PowerSGD(2), Frames(3), RandomK(0.1)], ids=repr
)
@pytest.mark.parametrize("share", [0.001, 1.0])
def test_errors_of_tensors_with_nan_are_nan(setting, share):
    tensor = gradients()["a"].clone().view(-1)
    tensor[: max(round(share * len(tensor)), 1)] = math.nan
    assert math.isnan(errors_of([setting], tensor.view(MODEL["a"]))[0])


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_errors_of_quantization_are_means_over_draws(norm):
    tensor = gradients()["a"]
    for bits in (2, 4):
        nearest = QSGD(bits, bucket=100, norm=norm, stochastic=False)
        assert errors_of([nearest], tensor)[0] == pytest.approx(nearest.error(tensor), rel=1e-4)
        drawn = [QSGD(bits, bucket=100, norm=norm, seed=seed).error(tensor) for seed in range(40)]
        assert errors_of([QSGD(bits, bucket=100, norm=norm)], tensor)[0] == pytest.approx(np.mean(drawn), rel=0.03)


def test_errors_are_the_same_in_every_dtype_and_infinite_where_values_are():
    tensor = gradients()["a"]
    settings = [TopK(0.05), QSGD(4), PowerSGD(2), Frames(3), RandomK(0.1)]
    wanted = errors_of(settings, tensor)
    for dtype in (torch.float64, torch.bfloat16):
        assert errors_of(settings, tensor.to(dtype)) == pytest.approx(wanted, rel=0.05)
    bad = tensor.clone()
    bad[3, 3] = math.inf
    assert not np.isfinite(errors_of(settings, bad)).any()


def test_low_rank_errors_by_power_iteration_come_close_to_the_svds():
    tensor = gradients()["a"]
    settings = [PowerSGD(rank) for rank in (1, 2, 4, 8)]
    best, result = errors_of(settings, tensor, "svd"), errors_of(settings, tensor, "power")
    assert (result >= best * (1 - 1e-6)).all()
    assert (result <= best * 1.1).all()
    for power in (-80, 50):
        scaled = errors_of(settings, tensor * 2.0**power, "power")
        assert scaled * 4.0**-power == pytest.approx(result, rel=1e-3)
    assert errors_of([PowerSGD(40)], tensor)[0] == 0  # factors larger than the matrix: sent dense
    with pytest.raises(InvalidArgument):
        errors_of(settings, tensor, "guess")


# Decisions


@pytest.mark.parametrize("metric", ["squared", "plain"])
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_lgreco_sends_less_than_its_reference_at_no_more_error(family, metric):
    controller = made(reference=family, metric=metric, method="svd")
    reference = dict.fromkeys(MODEL, family)
    choices = controller.decide(gradients())
    assert choices == controller.decide(gradients())
    error, cost = totals(controller, chosen(controller, choices))
    allowed, uniform = totals(controller, reference)
    assert error <= allowed * (1 + 1e-9)
    assert cost < uniform


def test_families_may_differ_from_tensor_to_tensor():
    alone, mixed = made(reference=TopK(0.05)), made(reference=TopK(0.05), others=(PowerSGD(2), QSGD(4)))
    _, cost = totals(alone, chosen(alone, alone.decide(gradients())))
    settings = chosen(mixed, mixed.decide(gradients()))
    error, less = totals(mixed, settings)
    assert error <= totals(mixed, dict.fromkeys(MODEL, TopK(0.05)))[0] * (1 + 1e-9)
    assert less < 0.9 * cost
    assert len({type(setting) for setting in settings.values()}) > 1


def test_priorities_and_measured_times_shift_compression_between_tensors():
    """Compression moves to where it is cheaper; the errors stay within the same budget."""
    plain = made(reference=TopK(0.05))
    buckets = {name: number + 1 for number, name in enumerate(MODEL)}
    first = Seconds.measured(buckets, {1: 10.0, 2: 0.1, 3: 0.1, 4: 0.1}, dict.fromkeys((1, 2, 3, 4), 1e6))
    for cost in (Prioritized(Bytes(), {"a": 100, "b": 1, "c": 1, "d": 1}), first):
        controller = made(reference=TopK(0.05), cost=cost)
        settings, before = (chosen(item, item.decide(gradients())) for item in (controller, plain))
        assert settings["a"].value < before["a"].value
        assert settings["b"].value >= before["b"].value
        assert totals(plain, settings)[0] <= totals(plain, dict.fromkeys(MODEL, TopK(0.05)))[0] * (1 + 1e-9)
    assert Floats().of("a", (60, 70), TopK(0.05)) == 210
    for seconds, sent_bytes in (({1: 1.0}, {1: 0.0}), ({}, {1: 1.0}), ({1: 1.0}, {})):
        with pytest.raises(InvalidArgument):
            Seconds.measured({"a": 1}, seconds, sent_bytes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": 1.0, "c": 1.0, "d": 1.0},
        {**dict.fromkeys(MODEL, 1.0), "b": math.nan},
        {**dict.fromkeys(MODEL, 1.0), "b": -1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [partial(Prioritized, Bytes()), Seconds], ids=["Prioritized", "Seconds"])
def test_a_cost_without_a_price_of_a_tensor_is_refused_at_the_start(kind, wrong):
    """The first decision, on one rank only, would come too late."""
    with pytest.raises(InvalidArgument, match="'b'"):
        LGreCo(TopK(0.05), cost=kind(wrong)).start(MODEL, 2)


def test_decisions_on_non_finite_gradients_keep_the_choices_before():
    controller = made(reference=TopK(0.05))
    bad = gradients()
    bad["b"] = bad["b"] * math.nan
    references = controller.decide(bad)
    assert set(chosen(controller, references).values()) == {TopK(0.05)}
    controller.apply(controller.decide(gradients()))
    assert controller.decide(bad) == controller.choices
    zeros = {name: torch.zeros(shape) for name, shape in MODEL.items()}
    assert {item.value for item in chosen(controller, controller.decide(zeros)).values()} == {0.005}


def resumed(rank):
    """Return a rank that goes on from another one's state."""
    averager, controller = rank.averager, copy.deepcopy(rank.controller)
    del controller.shapes
    other = Adaptive(Averager(averager.plan, averager.rank, averager.size), controller)
    other.load_state_dict(rank.state_dict())
    return other


def run_step(group, step, bad=None):
    """Run a step of simulated ranks whose gradients of one tensor have a value ``bad``, if there is one."""
    of_ranks = gradients_at(step, len(group))
    for own in of_ranks if bad is not None else ():
        own["linear"][3, 3] = bad
    run_conversations([rank.average(own) for rank, own in zip(group, of_ranks, strict=True)])


@pytest.mark.parametrize("source", ["average", "own", "reduced"])
@pytest.mark.parametrize("reference", [QSGD(4), TopK(0.05), PowerSGD(3)], ids=repr)
def test_a_period_in_which_no_gradient_of_a_tensor_was_finite_changes_no_setting(reference, source):
    """As zeros they would lose nothing by the harshest setting, and get it."""
    group: Any = ranks(2, reference, LGreCo(reference, period=2, source=source))
    for step in range(2):
        run_step(group, step)
    before = group[0].controller.choices
    assert len(before) == 3
    for step, bad in ((2, math.inf), (3, math.nan)):
        run_step(group, step, bad)
    assert all(rank.controller.choices == before for rank in group)


@pytest.mark.parametrize("source", ["average", "own", "reduced"])
def test_gradients_that_are_not_finite_are_left_out_of_the_sums(source):
    """Whichever step of a period they are in; and a run that is resumed in between does the same."""
    sums = []
    for bad_step in (0, 1, 2):
        group: Any = ranks(2, Dense(), Accordion(TopK(1.0), TopK(1.0), period=3, source=source))
        good = iter(range(2))
        for step in range(3):
            run_step(group, 9 if step == bad_step else next(good), math.nan if step == bad_step else None)
            group = [resumed(rank) for rank in group]
        sums.append(group[0].controller.norms["linear"])
    assert sums[0] == pytest.approx(sums[1]) == pytest.approx(sums[2])


def test_settings_of_accordion_are_the_references_of_lgreco():
    accordion = Accordion(PowerSGD(6), PowerSGD(2))
    controller = made(reference=PowerSGD(4), accordion=accordion)
    assert controller.settings(0, 1.0) == dict.fromkeys(MODEL, PowerSGD(6))
    budgets = []
    for scale in (1.0, 1.0, 5.0):  # nothing to compare with; calm; critical again
        numbers = controller.decide({name: item * scale for name, item in gradients().items()})
        controller.apply(numbers)
        settings = controller.settings(1, 1.0)
        error = totals(controller, settings)[0]
        mild, harsh = (totals(controller, dict.fromkeys(MODEL, PowerSGD(rank)))[0] for rank in (6, 2))
        budgets.append(error <= mild * (1 + 1e-9))
        assert error <= harsh * (1 + 1e-9)
    assert budgets == [True, False, True]
    assert controller.settings(2, 0.1) == dict.fromkeys(MODEL, PowerSGD(6))  # the learning rate fell
    state, again = controller.state_dict(), made(reference=PowerSGD(4), accordion=Accordion(PowerSGD(6), PowerSGD(2)))
    again.load_state_dict(state)
    assert again.settings(3, 0.1) == controller.settings(3, 0.1)
    assert again.decide(gradients()) == controller.decide(gradients())
    with pytest.raises(InvalidArgument):
        again.load_state_dict({**state, "accordion": 0})
    with pytest.raises(InvalidArgument):
        LGreCo(PowerSGD(4), accordion=Accordion(TopK(0.5), TopK(0.1)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"period": 0},
        {"bins": 0},
        {"metric": "cubed"},
        {"method": "guess"},
        {"steps": 0},
        {"source": "elsewhere"},
        {"reference": Dense()},
        {"others": (Dense(),)},
    ],
    ids=str,
)
def test_lgreco_refuses_arguments_out_of_range(wrong):
    with pytest.raises(InvalidArgument):
        LGreCo(**{"reference": TopK(0.05), **wrong})


# On simulated ranks


@pytest.mark.parametrize(
    "controller",
    [
        LGreCo(PowerSGD(3), others=(TopK(0.02), Frames(3)), period=3, warmup=2, source="own"),
        LGreCo(PowerSGD(2), period=2, source="reduced", accordion=Accordion(PowerSGD(4), PowerSGD(1))),
        LGreCo(RandomK(0.1), period=2, cost=Prioritized(Bytes(), {"linear": 1, "images": 5, "wide": 9})),
        KMeans(TopK(0.05), (TopK(0.2), TopK(0.1), TopK(0.02)), period=2),
        GlobalThreshold(TopK(0.05), period=2),
    ],
    ids=lambda controller: repr(controller)[:30],
)
def test_planners_decide_alike_on_all_ranks_and_error_feedback_telescopes(controller):
    """Error feedback telescopes while settings and families change, and a resumed run goes on as it would have."""
    size, steps = 3, 9
    group, twin = ranks(size, TopK(0.05), controller), ranks(size, TopK(0.05), controller)
    sent: dict[str, Any] = dict.fromkeys(SHAPES, 0.0)
    given_in: dict[str, Any] = dict.fromkeys(SHAPES, 0.0)
    seen = set()
    for step in range(steps):
        own = gradients_at(step, size)
        averages = run_conversations([rank.average(one, rate=1.0) for rank, one in zip(group, own, strict=True)])
        again = run_conversations([rank.average(one, rate=1.0) for rank, one in zip(twin, own, strict=True)])
        if step in (2, 4):
            states = [rank.state_dict() for rank in twin]
            twin = ranks(size, TopK(0.05), controller)
            for rank, state in zip(twin, states, strict=True):
                rank.load_state_dict(state)
        for other in (*averages, *again):
            assert all(same(other[name], averages[0][name]) for name in SHAPES)
        for rank in group:
            assert rank.averager.compressors == group[0].averager.compressors
        seen.add(repr(sorted(group[0].averager.compressors.items())))
        for name, mean in mean_of(own).items():
            given_in[name] = given_in[name] + mean.double()
            sent[name] = sent[name] + averages[0][name].double()
    assert len(seen) > 1
    for name, whole in given_in.items():
        left = sum(
            (r.double() for rank in group if (r := rank.averager.residual(name)) is not None), torch.zeros_like(whole)
        )
        assert norm(whole - sent[name] - left / size) <= 1e-5 * norm(whole)


def test_decisions_that_change_no_rank_leave_all_bits_as_they_are():
    """Factors and residuals are those of a run without decisions, bit for bit."""
    only = LGreCo(PowerSGD(4), Range(least=4, most=4), period=2)
    group, still = ranks(2, PowerSGD(4), only), Simulation(2, PowerSGD(4))
    for step in range(5):
        own = gradients_at(step, 2)
        decided = run_conversations([rank.average(one) for rank, one in zip(group, own, strict=True)])[0]
        wanted = still.average(own)[0]
        assert all(same(decided[name], wanted[name]) for name in SHAPES)
    assert group[0].controller.state_dict()["choices"] == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Range(least=math.nan),
        lambda: Range(most=math.inf),
        lambda: Range(below=math.inf),
        lambda: Range(above=math.inf),
        lambda: Range(least=9, most=3),
        lambda: Seconds({}, fixed=math.nan),
        lambda: Seconds({}, fixed=-1.0),
        lambda: Seconds({"a": "x"}).of("a", (2, 2), PowerSGD(1)),  # type: ignore[dict-item]
        lambda: Seconds({"a": math.nan}).of("a", (2, 2), PowerSGD(1)),
        lambda: Listed((math.nan,)),
        lambda: Listed(("a",)),  # type: ignore[arg-type]
        lambda: LGreCo(PowerSGD(4), others=(1,)),  # type: ignore[arg-type]
        lambda: KMeans(PowerSGD(4), (PowerSGD(2), 8)),  # type: ignore[arg-type]
    ],
)
def test_settings_that_no_decision_can_come_of_are_refused_where_they_are_made(make):
    with pytest.raises(InvalidArgument):
        make()


@pytest.mark.parametrize("controller", [LGreCo(PowerSGD(4)), KMeans(PowerSGD(4), (PowerSGD(2), PowerSGD(8)))])
def test_the_first_step_may_not_be_begun_in_parts(controller):
    (rank,) = ranks(1, PowerSGD(4), controller)
    with pytest.raises(InvalidArgument, match=r"first step .* average"):
        rank.begin()
