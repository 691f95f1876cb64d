"""The laws of optimizer-aware truncation: its bound, against torch's own steps; and the reading of optimizers."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcodec.errors import InvalidArgument, Unsupported
from gcodec.format.ladders import FINE_LADDER, MANTISSA_BITS, PAPER_LADDER, Ladder
from gcodec.truncation.evaluate import Policy
from gcodec.truncation.optimizers import RULES, OptimizerView, levels_for, view_from_dump, view_from_optimizer
from gcodec.truncation.reference import round_to_levels, ulp_histogram
from tests.gpu.native_laws import level_laws
from tests.support.paths import ROOT
from tests.truncation.gradient_terms import LINEAR, SINGLE, gradient_term
from tests.truncation.test_real_steps import OPTIMIZERS

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

N = 256
LR = st.sampled_from([1.0, 0.1, 1e-3, 3e-5])
DECAY = st.sampled_from([0.0, 0.0, 1e-4, 0.1, 2.0])
EPS = st.sampled_from([1e-8, 1e-8, 1e-15, 1e-2, 0.0])
BETA = st.sampled_from([0.9, 0.999, 0.5, 0.0])


def options(**choices):
    """Return a strategy for the hyperparameters of one optimizer."""
    return st.fixed_dictionaries({"lr": LR, "weight_decay": DECAY, "maximize": st.booleans()} | choices)


ADAM = options(betas=st.tuples(BETA, BETA), eps=EPS, amsgrad=st.booleans())
LIKE_ADAM = options(betas=st.tuples(BETA, BETA), eps=EPS, decoupled_weight_decay=st.booleans())
LIKE_RADAM = options(betas=st.tuples(BETA, BETA), eps=EPS.filter(bool), decoupled_weight_decay=st.booleans())
MOMENTUM_DECAY = st.fixed_dictionaries({"momentum_decay": st.sampled_from([4e-3, 0.0, 1.0])})
CASES = [
    ("SGD", options()),
    ("SGD", options(momentum=st.sampled_from([0.9, 0.99, 1.5]), dampening=st.sampled_from([0.0, 0.4, 1.0, 1.2]))),
    ("SGD", options(momentum=st.sampled_from([0.5, 0.9]), nesterov=st.just(True))),
    (
        "Adagrad",
        options(lr_decay=st.sampled_from([0.0, 0.2]), eps=EPS, initial_accumulator_value=st.sampled_from([0.0, 0.3])),
    ),
    ("RMSprop", options(alpha=st.sampled_from([0.99, 0.5, 0.0, 1.0]), eps=EPS, momentum=st.sampled_from([0.0, 0.9]))),
    ("Adam", ADAM),
    ("AdamW", ADAM),
    ("NAdam", LIKE_ADAM.flatmap(lambda hyper: st.builds(hyper.__or__, MOMENTUM_DECAY))),
    ("RAdam", LIKE_RADAM),
    ("Adamax", options(betas=st.tuples(BETA, BETA), eps=EPS)),
    ("Adadelta", options(rho=st.sampled_from([0.9, 0.99, 0.5, 0.0, 1.0]), eps=st.sampled_from([1e-6, 1e-10, 0.1]))),
    ("ASGD", options(lambd=st.sampled_from([0.0, 1e-4, 0.5]), alpha=st.sampled_from([0.0, 0.75]), t0=st.just(2.0))),
]
every_rule = pytest.mark.parametrize(("name", "choices"), CASES, ids=lambda x: x if isinstance(x, str) else "")
SEEDS = st.integers(0, 2**32 - 1)
# Exponents of theta and of gradients: near each other, as in training, and anywhere.
SCALES = st.sampled_from([((-6, 0), (-14, -6)), ((-6, 0), (-30, -10)), ((-30, 30), (-45, 25)), ((0, 1), (-2, 3))])
LADDERS = [FINE_LADDER["float32"], PAPER_LADDER["float32"], Ladder((0, *range(9, 24)))]
POLICIES = st.builds(Policy, st.sampled_from(LADDERS), st.booleans())


def wild(rng, scale, n=N):
    """Draw float32 values of both signs, exponents anywhere within ``scale``, one in ten zero."""
    return (rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(*scale, n)) * (rng.random(n) > 0.1)).astype(np.float32)


def prepared(name, hyper, theta, state, dtype):
    """Return (parameter, optimizer) of torch in a given state (a dict of arrays and numbers, empty before the first
    step)."""
    param = torch.nn.Parameter(torch.tensor(theta, dtype=dtype))
    optimizer = getattr(torch.optim, name)([param], **hyper)
    for key, value in state.items():
        kind = torch.float32 if key in SINGLE else dtype
        optimizer.state[param][key] = torch.tensor(value, dtype=kind)
    return param, optimizer


def after(name, hyper, theta, state, grad, dtype=torch.float64):
    """Return (theta, state) after torch's own step, as float64 arrays."""
    param, optimizer = prepared(name, hyper, theta, state, dtype)
    param.grad = torch.tensor(grad, dtype=dtype)
    optimizer.step()
    kept = {key: value.detach().double().numpy() for key, value in optimizer.state[param].items() if value is not None}
    return param.detach().double().numpy(), kept


def without_gradient(name, hyper, theta, state, grad, end, end_state):
    """Return N: the parameter after the step but for the gradient's term."""
    if name in LINEAR:  # that is a step with a gradient of zero
        return after(name, hyper, theta, state, np.zeros_like(grad))[0]
    return end - gradient_term(name, hyper, state, end_state, grad.astype(np.float64))


@np.errstate(all="ignore")  # 0 / 0 where eps is 0, the same with every gradient
def check_step(name, hyper, theta, state, exact, rounded, bound, spare=2.0**-46):
    """Check that a step with ``rounded`` ends within bound * |N| of one with ``exact``, in double precision."""
    ends = [after(name, hyper, theta, state, grad) for grad in (exact, rounded)]
    n = without_gradient(name, hyper, theta, state, exact, *ends[0])
    start = np.abs(theta.astype(np.float64))
    noise = spare * (start + np.abs(ends[0][0]) + np.abs(ends[0][0] - n))  # that of double precision itself
    apart = np.abs(ends[0][0] - ends[1][0])
    wrong = np.isfinite(ends[0][0]) & ~(apart <= bound * np.abs(n) + noise * (exact != rounded))
    assert not wrong.any(), [(x[wrong][:3]) for x in (theta, exact, rounded, apart, n, noise)]
    return ends[0][0] - n


def situations(name, hyper, rng, scales, steps) -> Any:
    """Yield (theta, state before the step, gradient), float32: of consecutive steps, then of one from an arbitrary
    state."""
    theta, state = wild(rng, scales[0]), {}
    if name == "Adagrad":
        state = {"step": 0.0, "sum": np.full(N, hyper["initial_accumulator_value"], np.float32)}
    for _ in range(steps):
        grad = wild(rng, scales[1])
        yield theta, state, grad
        end, kept = after(name, hyper, theta, state, grad, torch.float32)
        fine = np.isfinite(end)
        state = {
            key: float(value) if key in SINGLE else np.where(fine, value, 1).astype(np.float32)
            for key, value in kept.items()
        }
        theta = np.where(fine, end, 1).astype(np.float32)
    singles = {"step": float(rng.integers(2000)), "eta": hyper["lr"] * rng.random(), "mu": 0.5}
    singles["mu_product"] = float(np.float32(rng.random()))
    singles["eta"] = float(np.float32(singles["eta"]))
    for key in state:
        squares = key in ("sum", "square_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "acc_delta")
        state[key] = singles[key] if key in SINGLE else wild(rng, scales[1]) ** (2 if squares else 1)
    grad = wild(rng, scales[1])
    yield theta, state, grad


def test_every_rule_is_tried_by_every_law_of_rules():
    """By those below, by torch's own steps in every precision, and on a device; and the page of rules names it."""
    assert RULES.keys() == {name for name, _ in CASES}
    assert RULES.keys() == set(OPTIMIZERS) - {"Momentum", "Nesterov"}  # which are SGD's
    assert RULES.keys() == {name for name, *_ in level_laws.RULES.values()}
    for path in ("docs/algorithms/near-lossless.md", "docs/training/ddp.md"):
        page = (ROOT / path).read_text()
        assert not [name for name in RULES if not re.search(rf"\b{name}\b", page, re.IGNORECASE)]


# The bound


@every_rule
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_a_step_moves_by_at_most_half_an_ulp_of_n(name, choices, rounding):
    bound = 2.0**-24 if rounding == "nearest" else 2.0**-23

    @settings(max_examples=20)
    @given(choices, SEEDS, SCALES, POLICIES)
    def law(hyper, seed, scales, policy):
        for theta, state, grad in situations(name, hyper, np.random.default_rng(seed), scales, 2):
            levels = levels_for(
                view_from_dump(name, hyper, state), theta, grad, ladder=policy.ladder, in_group=policy.in_group
            )
            rounded = round_to_levels(grad, levels, policy.ladder, rounding)
            check_step(name, hyper, theta, state, grad, rounded, bound)

    law()


@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("Adagrad", {"lr_decay": 0.0, "initial_accumulator_value": 0.0}),
        ("RMSprop", {"alpha": 0.9}),
        ("Adam", {"betas": (0.5, 0.9), "amsgrad": False}),
    ],
)
def test_the_bound_counts_the_smallest_second_moment_on_the_way(name, hyper, rounding):
    """Decay all but cancels the gradient, there is no past, and rounding takes their sum through zero."""
    rng = np.random.default_rng(6)
    n = 20000
    theta = np.exp2(rng.uniform(-2, 2, n)).astype(np.float32)
    grad = -(theta * (1 + np.exp2(rng.uniform(-17, -1, n)) * rng.choice([-1.0, 1.0], n))).astype(np.float32)
    state = {"step": 0.0, "sum": np.zeros(n, np.float32)} if name == "Adagrad" else {}
    bound = 2.0**-24 if rounding == "nearest" else 2.0**-23
    for lr in (2.0**-23, 2.0**-24, 2.0**-25.5):
        options = hyper | {"lr": lr, "weight_decay": 1.0, "eps": 1e-10, "maximize": False}
        for ladder in LADDERS:
            levels = levels_for(view_from_dump(name, options, state), theta, grad, ladder=ladder, in_group=False)
            rounded = round_to_levels(grad, levels, ladder, rounding)
            check_step(name, options, theta, state, grad, rounded, bound)


@every_rule
def test_errors_of_workers_add_up_to_the_bound_of_one(name, choices):
    """Each worker chooses levels for its own undivided gradient; the gather's second rounding costs as much again."""

    @settings(max_examples=20)
    @given(choices, SEEDS, SCALES, st.integers(2, 4), st.sampled_from(LADDERS), st.sampled_from([1.0, 8.0]))
    def law(hyper, seed, scales, workers, ladder, loss_scale):
        rng = np.random.default_rng(seed)
        for theta, state, first in situations(name, hyper, rng, scales, 2):
            known = view_from_dump(name, hyper, state)
            others = [first * np.float32(-1.25), *(wild(rng, scales[1]) for _ in range(workers - 2))]
            grads = [np.where(rng.random(N) < 0.5, other, wild(rng, scales[1])) for other in [first, *others]]
            coded = []
            for grad in grads:
                scaled = grad * np.float32(loss_scale)
                levels = levels_for(known, theta, scaled, ladder=ladder, loss_scale=loss_scale)
                coded.append(round_to_levels(scaled, levels, ladder) / np.float32(loss_scale))
            exact, mean = (np.stack(gs).astype(np.float64).mean(axis=0) for gs in (grads, coded))
            check_step(name, hyper, theta, state, exact, mean, 2.0**-24)
            levels = levels_for(known, theta, mean, in_group=False)
            again = round_to_levels(mean, levels, FINE_LADDER["float64"])
            check_step(name, hyper, theta, state, mean, again, 2.0**-24)

    law()


@every_rule
def test_summed_gradients_need_the_number_of_workers_as_scale(name, choices):
    """Four workers whose gradients are added, not averaged, and all round the same way."""

    @settings(max_examples=20)
    @given(choices, SEEDS, SCALES)
    def law(hyper, seed, scales):
        for theta, state, grad in situations(name, hyper, np.random.default_rng(seed), scales, 1):
            levels = levels_for(view_from_dump(name, hyper, state), theta, grad, scale=4)
            rounded = round_to_levels(grad, levels, FINE_LADDER["float32"])
            check_step(name, hyper, theta, state, 4 * grad, 4 * rounded, 2.0**-24)

    law()


def is_decoupled(name, hyper):
    """Return whether weight decay does not enter a square."""
    return name in (*LINEAR, "AdamW") or hyper.get("decoupled_weight_decay", False)


def parts_of_the_update(name, hyper, theta, state, grad, end_state):
    """Return the sum of the sizes of all that torch adds up to the update: what its own rounding is relative to."""
    decay = hyper["weight_decay"] + hyper.get("lambd", 0.0)
    theta, inflow = np.abs(theta), np.abs(grad) + decay * np.abs(theta)
    past = np.abs(state.get("momentum_buffer", 0.0))
    if name in LINEAR:
        return hyper["lr"] * 3 * (inflow + 2 * past)
    if "betas" in hyper:
        inflow = (np.abs(state.get("exp_avg", 0.0)) + inflow) / (1 - hyper["betas"][0])
    size = np.abs(gradient_term(name, hyper, state, end_state, np.ones_like(theta)))
    return size * inflow + hyper["lr"] * (past + hyper["weight_decay"] * theta)


@every_rule
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_in_the_parameters_own_precision_adds_a_few_roundings(name, choices, dtype):
    """|difference| <= half an ulp of N + 1 ulp (both steps round their result) + 12 roundings of the update's parts."""
    unit = 2.0 ** -(MANTISSA_BITS[dtype] + 1)
    kind = getattr(torch, dtype)

    @settings(max_examples=20)
    @given(
        choices, SEEDS, st.sampled_from([((-6, 0), (-14, -6)), ((-6, 0), (-30, -10)), ((0, 1), (-2, 3))]), st.booleans()
    )
    @np.errstate(all="ignore")
    def law(hyper, seed, scales, in_group):
        rng = np.random.default_rng(seed)
        for theta, state, grad in situations(name, hyper, rng, scales, 2):
            theta, grad = theta.astype(dtype), grad.astype(dtype)
            if dtype == "float64":
                theta, grad = (x * (1 + rng.random(N) * 2.0**-20) for x in (theta, grad))
            levels = levels_for(view_from_dump(name, hyper, state), theta, grad, in_group=in_group)
            rounded = round_to_levels(grad, levels, FINE_LADDER[dtype])
            (one, _), (two, _) = (after(name, hyper, theta, state, g, kind) for g in (grad, rounded))
            end, end_state = after(name, hyper, theta, state, grad)
            n = without_gradient(name, hyper, theta, state, grad, end, end_state)
            ulp = np.spacing(np.maximum(np.abs(one), np.abs(two)).astype(dtype)).astype(np.float64)
            ulp = ulp * (2 if name == "NAdam" else 1)  # which adds its terms one after the other
            noise = 2 * 12 * unit * parts_of_the_update(name, hyper, theta, state, grad, end_state)
            # Where decay cancels the gradient, torch's rounding of their sum reaches the second moment.
            sign = -1.0 if hyper["maximize"] else 1.0
            decay = 0.0 if is_decoupled(name, hyper) else hyper["weight_decay"]
            calm = np.abs(sign * grad + decay * theta) >= (np.abs(grad) + decay * np.abs(theta)) / 8
            finite = np.isfinite(one) & np.isfinite(two)
            wrong = finite & calm & ~(np.abs(one - two) <= unit * np.abs(n) + ulp + noise)
            assert not wrong.any(), [x[wrong][:3] for x in (theta, grad, rounded, one, two, n, noise)]

    law()


@every_rule
def test_hardly_any_trained_parameter_differs_by_more_than_an_ulp(name, choices):
    rng = np.random.default_rng(7)
    n = 20000
    extra: dict[str, dict[str, Any]] = {
        "SGD": {"momentum": 0.9},
        "Adagrad": {"lr_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10},
        "RMSprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.9},
        "NAdam": {"betas": (0.9, 0.999), "eps": 1e-8, "momentum_decay": 4e-3},
        "RAdam": {"betas": (0.9, 0.999), "eps": 1e-8},
        "Adamax": {"betas": (0.9, 0.999), "eps": 1e-8},
        "Adadelta": {"rho": 0.9, "eps": 1e-6},
        "ASGD": {},
    }
    hyper: dict[str, Any] = {"lr": 1e-3, "weight_decay": 1e-4, "maximize": False} | extra.get(
        name, {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}
    )
    theta, sizes = rng.normal(0, 0.05, n).astype(np.float32), np.exp(rng.normal(-7, 1, n))
    state = {"step": 0.0, "sum": np.zeros(n, np.float32)} if name == "Adagrad" else {}
    for _ in range(5):
        grad = (sizes * rng.normal(0, 1, n)).astype(np.float32)
        levels = levels_for(view_from_dump(name, hyper, state), theta, grad)
        rounded = round_to_levels(grad, levels, FINE_LADDER["float32"])
        one, _ = after(name, hyper, theta, state, grad, torch.float32)
        two, state = after(name, hyper, theta, state, rounded, torch.float32)
        state = {key: float(value) if key in SINGLE else value.astype(np.float32) for key, value in state.items()}
        theta = two.astype(np.float32)
        ulps = ulp_histogram(one.astype(np.float32), theta)
        assert ulps[0] > 0.8 * n
        rare = n / (500 if name == "NAdam" else 1000)  # which rounds twice as often
        assert ulps[2] + ulps[3] <= rare  # where the step cancels the parameter to less than N
    assert (levels > 0).mean() > 0.5


@every_rule
@pytest.mark.parametrize(
    ("param_type", "grad_type"),
    [
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("bfloat16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float16", "float16"),
        ("float32", "float64"),
    ],
)
def test_the_bound_holds_for_mixed_precisions(name, choices, param_type, grad_type):
    """Half an ulp of N in the parameter's type, for a gradient of another type, denormals (not pruned) included."""
    param_kind, grad_kind = getattr(torch, param_type), getattr(torch, grad_type)

    @settings(max_examples=6)
    @given(
        choices, SEEDS, st.sampled_from([((-6, 0), (-14, -6)), ((-6, 0), (-30, -10)), ((0, 1), (-2, 3))]), st.booleans()
    )
    def law(hyper, seed, scales, in_group):
        if name == "RAdam" and grad_type == "float16":  # of which smaller ones are zero
            hyper = hyper | {"eps": max(hyper["eps"], 1e-6)}
        for theta, state, grad in situations(name, hyper, np.random.default_rng(seed), scales, 1):
            theta, grad = torch.tensor(theta).to(param_kind), torch.tensor(grad).to(grad_kind)
            levels = levels_for(view_from_dump(name, hyper, state), theta, grad, in_group=in_group)
            bits = grad.view(torch.int16).numpy().view(np.uint16) if grad_type == "bfloat16" else grad.numpy()
            rounded = round_to_levels(bits, levels, FINE_LADDER[grad_type], prune=False)
            if grad_type == "bfloat16":
                rounded = (rounded.astype(np.uint32) << 16).view(np.float32)
            check_step(
                name,
                hyper,
                theta.double().numpy(),
                state,
                grad.double().numpy(),
                rounded.astype(np.float64),
                2.0 ** -(MANTISSA_BITS[param_type] + 1),
            )

    law()


# Reading optimizers


def stepped(kind, steps=2, dtype=torch.float32, shape=(4, 6), **hyper):
    """Return (parameter, optimizer) after some steps, a new gradient in place."""
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(shape).to(dtype))
    optimizer = kind(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 99.0}, {"params": [param]}], **{"lr": 0.01} | hyper
    )
    for _ in range(steps):
        param.grad = (torch.randn(shape) / 100).to(dtype)
        optimizer.step()
    param.grad = (torch.randn(shape) / 100).to(dtype)
    return param, optimizer


LIVE = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "maximize": True, "weight_decay": 0.1, "foreach": True}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "lr": torch.tensor(0.02)}),
    (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    (torch.optim.RMSprop, {"momentum": 0.9, "alpha": 0.9}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1, "fused": True}),
    (torch.optim.Adam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": torch.tensor(0.02), "betas": (torch.tensor(0.8), torch.tensor(0.99))}),
    (torch.optim.AdamW, {"betas": (0.8, 0.9)}),
    (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.01}),
    (torch.optim.RAdam, {"betas": (0.8, 0.9)}),
    (torch.optim.Adamax, {"weight_decay": 0.1}),
    (torch.optim.Adadelta, {"rho": 0.8}),
    (torch.optim.ASGD, {"lambd": 0.1, "alpha": 1.0}),
]


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(("kind", "hyper"), LIVE, ids=[kind.__name__ for kind, _ in LIVE])
def test_a_live_optimizer_reads_like_its_dump(kind, hyper, steps):
    if not hyper.keys() <= inspect.signature(kind).parameters.keys():
        pytest.skip("this torch's optimizer has no such hyperparameter")
    param, optimizer = stepped(kind, steps, **hyper)
    live = view_from_optimizer(optimizer, param)
    plain = {key: value for key, value in optimizer.param_groups[1].items() if key not in ("params", "foreach")}
    state = {key: value.numpy() for key, value in optimizer.state.get(param, {}).items() if value is not None}
    dumped = view_from_dump(kind.__name__, plain, state)
    assert (live.name, live.hyper) == (dumped.name, dumped.hyper)
    assert live.hyper["lr"] == pytest.approx(float(hyper.get("lr", 0.01)))
    assert live.state.keys() == dumped.state.keys()
    assert live.state.get("step", steps) == steps
    levels = [
        levels_for(optimizer, param, param.grad),
        levels_for(live, param, param.grad),
        levels_for(dumped, param.detach().numpy(), param.grad.numpy()),
    ]
    assert all(np.array_equal(levels[0], x) for x in levels)
    assert levels[0].shape == (4, 6)


def test_the_state_read_from_an_optimizer_is_a_view_of_it():
    param, optimizer = stepped(torch.optim.SGD, momentum=0.9)
    buffer = optimizer.state[param]["momentum_buffer"]
    known = view_from_optimizer(optimizer, param).state["momentum_buffer"]
    buffer.zero_()
    assert not np.any(known)


def test_a_missing_accumulator_is_the_initial_one():
    hyper = {"lr": 0.1, "initial_accumulator_value": 4.0}
    theta, grad = np.ones(3, np.float32), np.full(3, 1e-4, np.float32)
    levels = [
        levels_for(view_from_dump("Adagrad", hyper, state), theta, grad)
        for state in ({}, {"sum": np.full(3, 4, np.float32)})
    ]
    assert np.array_equal(levels[0], levels[1])
    assert levels[0].all()


def test_a_bfloat16_model_is_read_as_bits():
    param, optimizer = stepped(torch.optim.AdamW, dtype=torch.bfloat16)
    known = view_from_optimizer(optimizer, param)
    assert np.asarray(known.state["exp_avg"]).dtype == np.uint16
    wide = {key: value.float().numpy() for key, value in optimizer.state[param].items()}
    same = view_from_dump("AdamW", optimizer.param_groups[1], wide)
    assert np.array_equal(levels_for(known, param, param.grad), levels_for(same, param, param.grad))


def test_levels_do_not_depend_on_memory_formats():
    param, optimizer = stepped(torch.optim.Adam, shape=(2, 3, 4, 5))
    want = levels_for(optimizer, param, param.grad)
    turned = [x.contiguous(memory_format=torch.channels_last) for x in (param.detach(), param.grad)]
    assert np.array_equal(levels_for(view_from_optimizer(optimizer, param), *turned), want)
    flat = levels_for(view_from_optimizer(optimizer, param), param, param.grad.reshape(-1))
    assert np.array_equal(flat, want.reshape(-1))


def test_options_of_levels_for_reach_the_rule():
    param, optimizer = stepped(torch.optim.Adam)
    plain = levels_for(optimizer, param, param.grad)
    out = np.empty(24, np.uint8)
    assert levels_for(optimizer, param, param.grad * 64, loss_scale=64, out=out) is out
    assert np.array_equal(out, plain.reshape(-1))
    assert np.array_equal(levels_for(optimizer, param, param.grad / 8, scale=8), plain)
    assert (levels_for(optimizer, param, param.grad, in_group=False) >= plain).all()
    assert levels_for(optimizer, param, param.grad, ladder=PAPER_LADDER["float32"]).max() <= 3


def test_wrapped_and_inherited_steps_are_read_as_torchs():
    class Named(torch.optim.SGD):
        """A subclass that steps as its base does."""

    param, optimizer = stepped(Named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)
    known = view_from_optimizer(optimizer, param)
    assert known.name == "SGD"
    assert known.hyper["lr"] == pytest.approx(0.005)


class OwnStep(torch.optim.Adam):
    """A subclass whose step is its own."""

    def step(self, closure=None):
        return super().step(closure)


#: Those of torch that this version has: Adafactor came with 2.5, Muon with 2.9.
WITHOUT_A_RULE = [getattr(torch.optim, name, None) for name in ("Adafactor", "LBFGS", "Muon", "Rprop")]


@pytest.mark.parametrize("kind", [OwnStep, *filter(None, WITHOUT_A_RULE)])
def test_optimizers_without_a_rule_are_unsupported_and_the_error_says_what_to_do(kind):
    param = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = kind([param])
    with pytest.raises(Unsupported, match=f"{kind.__name__}.*lossless or mantissa_bits"):
        levels_for(optimizer, param, torch.ones(2, 2))


@pytest.mark.parametrize("name", ["Muon", "Lion", "adam"])
def test_names_of_optimizers_without_a_rule_are_unsupported(name):
    with pytest.raises(Unsupported, match="lossless or mantissa_bits"):
        view_from_dump(name, {"lr": 0.1}, {})
    with pytest.raises(Unsupported, match="lossless or mantissa_bits"):
        levels_for(OptimizerView(name, {"lr": 0.1}, {}), np.ones(1, np.float32), np.ones(1, np.float32))


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("RMSprop", {"centered": True}),
        ("RMSprop", {"alpha": 1.5}),
        ("RAdam", {"capturable": True}),
        ("RAdam", {"eps": 0.0}),
        ("NAdam", {"betas": (1 - 1e-12, 0.9)}),
    ],
)
def test_settings_without_a_bound_are_unsupported(name, hyper):
    hyper = hyper | ({"momentum_decay": 1e4} if name == "NAdam" else {})
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = getattr(torch.optim, name)([param], **hyper)
    param.grad = torch.ones(2)
    with pytest.raises(Unsupported, match="lossless or mantissa_bits"):
        levels_for(optimizer, param, param.grad)


@pytest.mark.parametrize(
    "grad",
    [torch.eye(2).to_sparse(), torch.ones(2, 2, device="meta"), torch.ones(2, 2, dtype=torch.complex64)],
    ids=["sparse", "meta", "complex"],
)
def test_tensors_that_cannot_be_read_are_unsupported(grad):
    param, optimizer = stepped(torch.optim.SGD, shape=(2, 2))
    with pytest.raises(Unsupported):
        levels_for(optimizer, param, grad)


@pytest.mark.parametrize(
    "call",
    [
        lambda param, optimizer: view_from_optimizer(optimizer, torch.nn.Parameter(torch.ones(2))),
        lambda param, optimizer: view_from_dump("SGD", {}, {}),
        lambda param, optimizer: view_from_dump("SGD", {"lr": "fast"}, {}),
        lambda param, optimizer: view_from_dump("Adam", {"lr": 0.1, "betas": 0.9}, {}),
        lambda param, optimizer: view_from_dump("SGD", {"lr": 0.1}, {"momentum_buffer": "none"}),
        lambda param, optimizer: view_from_dump("ASGD", {"lr": 0.1}, {"eta": "none"}),
        lambda param, optimizer: view_from_dump("NAdam", {"lr": 0.1}, {"mu_product": torch.ones(2)}),
        lambda param, optimizer: levels_for(optimizer, param, [1.0, 2.0]),
        lambda param, optimizer: levels_for(optimizer, param, torch.ones(3)),
        lambda param, optimizer: levels_for(optimizer, param, torch.ones(2, dtype=torch.int32)),
        lambda param, optimizer: levels_for(optimizer, param, torch.ones(2), loss_scale=0),
    ],
)
def test_reading_optimizers_refuses_senseless_arguments(call):
    with pytest.raises(InvalidArgument):
        call(*stepped(torch.optim.SGD, shape=(2,)))


@pytest.mark.parametrize(
    ("hyper", "state", "text"),
    [
        (3, {}, "hyper must map"),
        (None, {}, "hyper must map"),
        ({"lr": 0.1}, 3, "state must map"),
        ({"lr": 0.1}, None, "state must map"),
        *(
            ({"lr": 0.1}, {"step": step}, "step, the number of steps done")
            for step in ("x", -5, math.nan, math.inf, 10**400, [1], torch.ones(2))
        ),
    ],
)
def test_dumps_of_another_form_are_refused(hyper, state, text):
    with pytest.raises(InvalidArgument, match=text):
        view_from_dump("AdamW", hyper, state)


def test_neither_importing_nor_reading_a_dump_imports_torch():
    program = """
import sys
import numpy as np
from gcodec.truncation.optimizers import levels_for, view_from_dump
one = np.ones(4, np.float32)
assert levels_for(view_from_dump("SGD", {"lr": 1e-3}, {}), one, one).all()
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
