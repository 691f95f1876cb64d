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

N = 48
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
POLICIES = st.builds(Policy, st.sampled_from([FINE_LADDER["float32"], PAPER_LADDER["float32"], Ladder((0, 22, 23))]),
                     st.booleans())


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


def check_step(name, hyper, theta, state, exact, rounded, bound, spare=2.0**-46):
    """A step with ``rounded`` ends within bound * |N| of one with ``exact``, in double precision."""
    ends = [after(name, hyper, theta, state, grad) for grad in (exact, rounded)]
    with np.errstate(all="ignore"):
        n = without_gradient(name, hyper, theta, state, exact, *ends[0])
    start = np.abs(theta.astype(np.float64))
    noise = spare * (start + np.abs(ends[0][0]) + np.abs(ends[0][0] - n))     # that of double precision itself
    apart = np.abs(ends[0][0] - ends[1][0])
    wrong = np.isfinite(ends[0][0]) & ~(apart <= bound * np.abs(n) + noise * (exact != rounded))
    assert not wrong.any(), [(x[wrong][:3]) for x in (theta, exact, rounded, apart, n, noise)]
    return ends[0][0] - n


def trajectory(name, hyper, rng, scales, steps):
    """(theta, state before the step, gradient) of each of several consecutive float32 steps."""
    theta, state = wild(rng, scales[0]), {}
    if name == "Adagrad":
        state = {"step": 0.0, "sum": np.full(N, hyper["initial_accumulator_value"], np.float32)}
    for _ in range(steps):
        grad = wild(rng, scales[1])
        yield theta, state, grad
        end, kept = after(name, hyper, theta, state, grad, torch.float32)
        ok = np.isfinite(end)
        for key, value in kept.items():
            kept[key] = value if key == "step" else np.where(ok, value, 1).astype(np.float32)
        theta, state = np.where(ok, end, 1).astype(np.float32), kept


def known_as(name, hyper, state):
    """The view of a state as ``trajectory`` gives it."""
    return view_from_dump(name, hyper, state)


# The bound

@every_rule
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_a_step_moves_by_at_most_half_an_ulp_of_n(name, choices, rounding):
    bound = 2.0**-24 if rounding == "nearest" else 2.0**-23

    @settings(max_examples=20)
    @given(choices, SEEDS, SCALES, POLICIES)
    def law(hyper, seed, scales, policy):
        for theta, state, grad in trajectory(name, hyper, np.random.default_rng(seed), scales, 3):
            levels = levels_for(known_as(name, hyper, state), theta, grad, ladder=policy.ladder,
                                in_group=policy.in_group)
            rounded = round_to_levels(grad, levels, policy.ladder, rounding)
            check_step(name, hyper, theta, state, grad, rounded, bound)

    law()
