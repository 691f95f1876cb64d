"""The bound of optimizer-aware truncation, against torch's own steps; and the reading of optimizers."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcodec.errors import InvalidArgument, Unsupported
from gcodec.optimizers import OptimizerView, levels_for, view, view_from_dump
from gcodec.truncation import FINE_LADDER, MANTISSA_BITS, PAPER_LADDER, Ladder, Policy, round_to_levels, ulp_histogram

torch = pytest.importorskip("torch")

N = 256
LR = st.sampled_from([1.0, 0.1, 1e-3, 3e-5])
DECAY = st.sampled_from([0.0, 0.0, 1e-4, 0.1, 2.0])
EPS = st.sampled_from([1e-8, 1e-8, 1e-15, 1e-2, 0.0])
BETA = st.sampled_from([0.9, 0.999, 0.5, 0.0])


def options(**choices):
    """A strategy for the hyperparameters of one optimizer."""
    return st.fixed_dictionaries({"lr": LR, "weight_decay": DECAY, "maximize": st.booleans()} | choices)


ADAM = options(betas=st.tuples(BETA, BETA), eps=EPS, amsgrad=st.booleans())
CASES = [
    ("SGD", options()),
    ("SGD", options(momentum=st.sampled_from([0.9, 0.99, 1.5]), dampening=st.sampled_from([0.0, 0.4, 1.0, 1.2]))),
    ("SGD", options(momentum=st.sampled_from([0.5, 0.9]), nesterov=st.just(True))),
    ("Adagrad", options(lr_decay=st.sampled_from([0.0, 0.2]), eps=EPS,
                        initial_accumulator_value=st.sampled_from([0.0, 0.3]))),
    ("RMSprop", options(alpha=st.sampled_from([0.99, 0.5, 0.0, 1.0]), eps=EPS, momentum=st.sampled_from([0.0, 0.9]))),
    ("Adam", ADAM),
    ("AdamW", ADAM),
]
every_rule = pytest.mark.parametrize(("name", "choices"), CASES, ids=lambda x: x if isinstance(x, str) else "")
SEEDS = st.integers(0, 2**32 - 1)
# Exponents of theta and of gradients: near each other, as in training, and anywhere.
SCALES = st.sampled_from([((-6, 0), (-14, -6)), ((-6, 0), (-30, -10)), ((-30, 30), (-45, 25)), ((0, 1), (-2, 3))])
LADDERS = [FINE_LADDER["float32"], PAPER_LADDER["float32"], Ladder((0, *range(9, 24)))]
POLICIES = st.builds(Policy, st.sampled_from(LADDERS), st.booleans())


def wild(rng, scale, n=N):
    """float32 values of both signs, exponents anywhere within ``scale``, one in ten zero."""
    return (rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(*scale, n)) * (rng.random(n) > 0.1)).astype(np.float32)


def prepared(name, hyper, theta, state, dtype):
    """(parameter, optimizer) of torch in a given state (a dict of arrays and numbers, empty before the first step)."""
    param = torch.nn.Parameter(torch.tensor(theta, dtype=dtype))
    optimizer = getattr(torch.optim, name)([param], **hyper)
    for key, value in state.items():
        kind = torch.float32 if key == "step" else dtype
        optimizer.state[param][key] = torch.tensor(value, dtype=kind)
    return param, optimizer


def after(name, hyper, theta, state, grad, dtype=torch.float64):
    """(theta, state) after torch's own step, as float64 arrays."""
    param, optimizer = prepared(name, hyper, theta, state, dtype)
    param.grad = torch.tensor(grad, dtype=dtype)
    optimizer.step()
    kept = {key: value.detach().double().numpy() for key, value in optimizer.state[param].items() if value is not None}
    return param.detach().double().numpy(), kept


def gradient_term(name, hyper, state, grad):
    """What the gradient contributes to theta in a step that left ``state``; N is theta after the step less this."""
    sign = 1.0 if hyper["maximize"] else -1.0
    if name == "Adagrad":
        rate = hyper["lr"] / (1 + (state["step"] - 1) * hyper["lr_decay"])
        return sign * rate * grad / (np.sqrt(state["sum"]) + hyper["eps"])
    if name == "RMSprop":
        return sign * hyper["lr"] * grad / (np.sqrt(state["square_avg"]) + hyper["eps"])
    (b1, b2), t = hyper["betas"], state["step"]
    v = state["max_exp_avg_sq" if hyper["amsgrad"] else "exp_avg_sq"]
    rate = sign * hyper["lr"] / (1 - b1**t) * (1 - b1)
    return rate * grad / (np.sqrt(v / (1 - b2**t)) + hyper["eps"])


def without_gradient(name, hyper, theta, state, grad, end, end_state):
    """N: the parameter after the step but for the gradient's term."""
    if name == "SGD":       # linear: that is a step with a gradient of zero
        return after(name, hyper, theta, state, np.zeros_like(grad))[0]
    return end - gradient_term(name, hyper, end_state, grad.astype(np.float64))


@np.errstate(all="ignore")      # 0 / 0 where eps is 0, the same with every gradient
def check_step(name, hyper, theta, state, exact, rounded, bound, spare=2.0**-46):
    """A step with ``rounded`` ends within bound * |N| of one with ``exact``, in double precision."""
    ends = [after(name, hyper, theta, state, grad) for grad in (exact, rounded)]
    n = without_gradient(name, hyper, theta, state, exact, *ends[0])
    start = np.abs(theta.astype(np.float64))
    noise = spare * (start + np.abs(ends[0][0]) + np.abs(ends[0][0] - n))     # that of double precision itself
    apart = np.abs(ends[0][0] - ends[1][0])
    wrong = np.isfinite(ends[0][0]) & ~(apart <= bound * np.abs(n) + noise * (exact != rounded))
    assert not wrong.any(), [(x[wrong][:3]) for x in (theta, exact, rounded, apart, n, noise)]
    return ends[0][0] - n


def situations(name, hyper, rng, scales, steps):
    """(theta, state before the step, gradient), float32: of consecutive steps, then of one from an arbitrary state."""
    theta, state = wild(rng, scales[0]), {}
    if name == "Adagrad":
        state = {"step": 0.0, "sum": np.full(N, hyper["initial_accumulator_value"], np.float32)}
    for _ in range(steps):
        grad = wild(rng, scales[1])
        yield theta, state, grad
        end, kept = after(name, hyper, theta, state, grad, torch.float32)
        fine = np.isfinite(end)
        state = {key: float(value) if key == "step" else np.where(fine, value, 1).astype(np.float32)
                 for key, value in kept.items()}
        theta = np.where(fine, end, 1).astype(np.float32)
    for key in state:
        squares = key in ("sum", "square_avg", "exp_avg_sq", "max_exp_avg_sq")
        state[key] = float(rng.integers(2000)) if key == "step" else wild(rng, scales[1]) ** (2 if squares else 1)
    grad = wild(rng, scales[1])
    yield theta, state, grad


# The bound

@every_rule
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_a_step_moves_by_at_most_half_an_ulp_of_n(name, choices, rounding):
    bound = 2.0**-24 if rounding == "nearest" else 2.0**-23

    @settings(max_examples=20)
    @given(choices, SEEDS, SCALES, POLICIES)
    def law(hyper, seed, scales, policy):
        for theta, state, grad in situations(name, hyper, np.random.default_rng(seed), scales, 2):
            levels = levels_for(view_from_dump(name, hyper, state), theta, grad, ladder=policy.ladder,
                                in_group=policy.in_group)
            rounded = round_to_levels(grad, levels, policy.ladder, rounding)
            check_step(name, hyper, theta, state, grad, rounded, bound)

    law()


@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
@pytest.mark.parametrize(("name", "hyper"), [
    ("Adagrad", {"lr_decay": 0.0, "initial_accumulator_value": 0.0}),
    ("RMSprop", {"alpha": 0.9}),
    ("Adam", {"betas": (0.5, 0.9), "amsgrad": False}),
])
def test_the_least_second_moment_on_the_way_counts(name, hyper, rounding):
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
def test_workers_errors_add_up_to_the_bound_once(name, choices):
    """Each chooses levels for its own undivided gradient; the gather's second rounding costs as much again."""

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
            exact, mean = (np.mean(grads_, axis=0, dtype=np.float64) for grads_ in (grads, coded))
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
