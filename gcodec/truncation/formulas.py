"""Optimizer-aware truncation: how many mantissa bits of a gradient cannot change the next optimizer step.

GComp (SoCC '24, mantissa compression and Table 2) sorts gradient values into a few *levels*, each dropping a fixed
number of mantissa bits, by how many times over the parameter outweighs the gradient's term in its update. Here is
one formula per optimizer; ``gcodec.truncation.evaluate`` applies them to plain arrays, and
``gcodec.truncation.optimizers`` reads those out of a live ``torch.optim`` object.

The rule. Let N be the parameter after the step but for this gradient's term, and U the size of that term (for the
adaptive methods: |g| times a bound on the update's slope). With p the mantissa bits of the parameter's and of the
gradient's type, a value gets the highest level l whose drop n_l satisfies, without a division,

    2**(n_l + p_param - p_grad) * U <= |N|

Rounding to nearest at bit n moves a normal g by at most 2**(n - p_grad - 1) |g|, hence the parameter by at most
2**-(p_param + 1) |N|; plain truncation by at most twice that. Level 0 is the answer where no level satisfies the
rule, so a ladder whose level 0 drops bits does not carry the bound there. Source and deviations from Table 2:
docs/algorithms/near-lossless.md.

Hyperparameters are named as in ``torch.optim``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..errors import InvalidArgument, Unsupported
from ..format.ladders import MANTISSA_BITS
from ..kernels.levels.terms import (
    N_MARGIN,
    U_MARGIN,
    AccumulatorConstants,
    AdamConstants,
    DeltaConstants,
    LinearConstants,
    PeakConstants,
)
from .evaluate import ACCUMULATOR, ADAM, DEFAULT, DELTA, LINEAR, PEAK, Formula, Policy

ADVICE = "use lossless or mantissa_bits instead"
_of_a_step = lru_cache(64)  #: a step has many tensors of few rules, whose numbers are Python's own


@_of_a_step
def sgd_formula(
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    *,
    policy: Policy = DEFAULT,
    started: bool = True,
) -> Formula:
    """Return the formula of SGD, SGD with momentum and with Nesterov momentum.

    With h = g + wd * theta (``maximize`` flips g, which no size here depends on), mu and tau:

        plain       theta -= lr * h
        momentum    b' = mu * b + (1 - tau) * h;  theta -= lr * b'          in the first step b' = h, undampened
        Nesterov    b' as before;                 theta -= lr * (h + mu * b')

    that is, theta -= lr * (c * h + e * b) with c = 1, 1 - tau, 1 + mu * (1 - tau) and e = 0, mu, mu**2. Exactly,
    then, U = lr * |c| * |g| and N = (1 - lr * c * wd) * theta - lr * e * b.

    Args:
        lr, momentum, dampening, weight_decay, nesterov: torch's hyperparameters.
        policy: What the rule may assume.
        started: There is momentum already: b, from an earlier step.

    Returns:
        The formula for the arrays (theta, g, b or None), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters that have no meaning.
    """
    _check(lr=lr, momentum=momentum, weight_decay=weight_decay, dampening=abs(dampening))
    fresh = 1.0 - dampening if started and momentum else 1.0
    c, e = (1 + momentum * fresh, momentum * momentum) if nesterov else (fresh, momentum)
    c = c if momentum else 1.0
    keep, slope = 1 - lr * c * weight_decay, lr * abs(c) * policy.gain * U_MARGIN
    return Formula(LINEAR, lr, LinearConstants(keep, carry=lr * e, slope=slope))


@_of_a_step
def adagrad_formula(
    step: int,
    lr: float,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of a step of AdaGrad.

    theta -= clr * h / D with h = +-g + wd * theta, D = s + eps, s = sqrt(r + h**2) and
    clr = lr / (1 + (step - 1) * lr_decay). As D grows with |h|, h / D has a slope of (1 - h**2 / (s * D)) / D, which is
    at least 0 and at most 1 / D. An error dg in g thus moves theta by at most clr * |dg| / D_low, where D_low is the
    least D on the way, at the least |h| that rounding g can lead to; in a group, where h may become anything,
    D_low = sqrt(r) + eps. So U = clr * |g| / D_low. And N = theta - clr * wd * theta / D for some D >= D_low: the rule
    takes the least |N| over all of them.

    Args:
        step: The step's number, from 1.
        lr, lr_decay, eps, weight_decay, maximize: torch's hyperparameters.
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, r), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters or a ladder that have no meaning.
    """
    _check(lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, before=step - 1)
    rate = lr / (1 + (step - 1) * lr_decay)
    shared, new = _shared(rate, weight_decay, maximize, policy, grad), 0.0 if policy.in_group else 1.0
    constants = AccumulatorConstants(0.0, rate * weight_decay, *shared, 1.0, new, eps)
    return Formula(ACCUMULATOR, rate, constants)


@_of_a_step
def rmsprop_formula(
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of a step of RMSProp, not centered.

    AdaGrad's argument with v' = alpha * v + (1 - alpha) * h**2 for r + h**2. With momentum, b' = mu * b + h / D and
    theta -= lr * b': the same term, and N has lr * mu * b less. (Centered, D = sqrt(v' - mean'**2) + eps: however large
    v, rounding g may bring D near eps. No bound.)

    Args:
        lr, alpha, eps, weight_decay, momentum, maximize: torch's hyperparameters.
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, v, b or None for zeros), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters or a ladder that have no meaning.
        Unsupported: alpha > 1, where D shrinks as |h| grows.
    """
    _check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
    if alpha > 1:
        raise Unsupported(f"no bound for RMSProp with alpha = {alpha} > 1: {ADVICE}")
    shared, new = _shared(lr, weight_decay, maximize, policy, grad), 0.0 if policy.in_group else 1 - alpha
    constants = AccumulatorConstants(lr * momentum, lr * weight_decay, *shared, alpha, new, eps)
    return Formula(ACCUMULATOR, lr, constants)


@_of_a_step
def adam_formula(
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of a step of Adam, of AdamW (``decoupled``), and of both with amsgrad (v_max given).

    theta' = theta0 - c * (b + a * h) / D, where theta0 = theta, or (1 - lr * wd) * theta if decoupled; h = +-g, plus
    wd * theta if not; c = lr / (1 - b1**t); b = b1 * m; a = 1 - b1; D = s + eps; s = sqrt(V / (1 - b2**t));
    V = b2 * v + (1 - b2) * h**2, with amsgrad the greater of that and v_max. With q = sqrt((1 - b2) / (1 - b2**t)),
    w = (1 - b2) * h**2 / V in [0, 1] and B = q * |b| / D, differentiating gives

        |d theta' / d g| <= c / D * (a * (1 - w * s / D) + B * sqrt(w))           (where v_max rules: c * a / D)

    The bracket is at most a + B; as a parabola in sqrt(w), it is also at most a + B**2 / (4 * a * s / D). D, s and
    s / D grow with |h|, so their least values on the way (:func:`adagrad_formula`; in a group those at h = 0) bound it
    all:

        U = c * |g| / D * (a + B * min(1, q * |b| / (4 * a * s)))

    N = theta0 - c * (b + a * wd * theta) / D, wd only if not decoupled; least |N| over all D >= D_low.

    Args:
        step: t, the step's number, from 1.
        lr, betas, eps, weight_decay, maximize: torch's hyperparameters, betas as (b1, b2).
        decoupled: Weight decay is AdamW's.
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, m, v, v_max or None), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters or a ladder that have no meaning.
    """
    b1, b2 = betas
    options = AdamOptions(lr, betas, eps, weight_decay, decoupled, maximize)
    _check_adam(step, options)
    c, bias2 = lr / (1 - b1**step), 1 - b2**step
    moments = _Moments(c, c * b1, 1 - b1, math.sqrt((1 - b2) / bias2) * b1, 1 / math.sqrt(bias2), eps)
    return _adam_like(options, moments, policy, grad)


class AdamOptions(NamedTuple):
    """Hyperparameters that NAdam and RAdam share with Adam, named as there; ``decoupled``: weight decay is AdamW's."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False


@_of_a_step
def nadam_formula(
    step: int,
    mu_product: float,
    options: AdamOptions,
    momentum_decay: float = 4e-3,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of a step of NAdam.

    With mu_t = b1 * (1 - 0.96**(t * momentum_decay) / 2) and P the product of mu_1 ... mu_t, torch's step is

        theta' = theta0 - (lr * (1 - mu_t) / (1 - P) * h + M * m') / D,  M = lr * mu_next / (1 - P * mu_next)

    where m' = b1 * m + (1 - b1) * h, and theta0, h, s and D are those of :func:`adam_formula`. So it is
    theta' = theta0 - c * (b + h) / D with c = lr * (1 - mu_t) / (1 - P) + M * (1 - b1) and b = M * b1 / c * m: Adam's
    form with a = 1, whose derivation asks nothing else of a, b and c.

    Args:
        step: t, the step's number, from 1.
        mu_product: The product of mu_1 ... mu_(t - 1), as torch keeps it in float32; 1 before the first step.
        options: torch's hyperparameters.
        momentum_decay: likewise.
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, m, v), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters, a product or a ladder that have no meaning.
        Unsupported: beta1 so near 1 that torch, in float32, divides by zero.
    """
    lr, (b1, b2), eps = options.lr, options.betas, options.eps
    _check_adam(step, options)
    _check(momentum_decay=momentum_decay, mu_product=mu_product)
    now, later = (b1 * (1 - 0.5 * 0.96 ** (t * momentum_decay)) for t in (step, step + 1))
    product = float(np.float32(mu_product) * np.float32(now))
    if product >= 1:
        raise Unsupported(f"no bound for NAdam where {now} is 1 in float32: {ADVICE}")
    mean, unbias = lr * later / (1 - product * later), 1 / math.sqrt(1 - b2**step)
    own = lr * (1 - now) / (1 - product) + mean * (1 - b1)
    spread = math.sqrt(1 - b2) * unbias * mean * b1 / own if own else 0.0
    return _adam_like(options, _Moments(own, mean * b1, 1.0, spread, unbias, eps), policy, grad)


@_of_a_step
def radam_formula(step: int, options: AdamOptions, *, policy: Policy = DEFAULT, grad: str = "float32") -> Formula:
    """Return the formula of a step of RAdam.

    From rho_t > 5 on it is Adam's step (:func:`adam_formula`) with c = r_t * sqrt(1 - b2**t) * lr / (1 - b1**t) and
    D = sqrt(V) + eps, where the bias of V is not corrected: q = sqrt(1 - b2). Here rho = 2 / (1 - b2) - 1, rho_t =
    rho - 2 * t * b2**t / (1 - b2**t), and r_t**2 = (rho_t - 4) * (rho_t - 2) * rho / ((rho - 4) * (rho - 2) * rho_t).
    Until then D is 1, and does not depend on h: theta' = theta0 - lr / (1 - b1**t) * (b1 * m + (1 - b1) * h).

    Args:
        step: t, the step's number, from 1.
        options: torch's hyperparameters.
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, m, v), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters or a ladder that have no meaning.
    """
    b1, b2 = options.betas
    _check_adam(step, options)
    bias2, rho = 1 - b2**step, 2 / (1 - b2) - 1
    rho_now, c, a = rho - 2 * step * b2**step / bias2, options.lr / (1 - b1**step), 1 - b1
    moments = _Moments(c, c * b1, a, 0.0, 0.0, 1.0)
    if rho_now > 5:
        c *= math.sqrt((rho_now - 4) * (rho_now - 2) * rho / ((rho - 4) * (rho - 2) * rho_now) * bias2)
        moments = _Moments(c, c * b1, a, math.sqrt(1 - b2) * b1, 1.0, options.eps)
    return _adam_like(options, moments, policy, grad)


@_of_a_step
def adamax_formula(
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of a step of Adamax.

    theta' = theta - c * (b + a * h) / D with c = lr / (1 - b1**t), b = b1 * m, a = 1 - b1, h = +-g + wd * theta and
    D = max(b2 * u, |h| + eps). Where D is b2 * u, the slope of the step is c * a / D; where it is |h| + eps,

        |d theta' / d g| = c * |a * eps -+ b| / D**2 <= c / D**2 * (a * eps + |b|)

    Both fall with D, so its least value on the way (:func:`adagrad_formula`; in a group max(b2 * u, eps)) bounds them:

        U = c * |g| / D * max(a, (a * eps + |b|) / D)

    N = theta - c * (b + a * wd * theta) / D, least |N| over all D >= D_low.

    Args:
        step: t, the step's number, from 1.
        lr, betas, eps, weight_decay, maximize: torch's hyperparameters, betas as (b1, b2).
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, m, u), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters or a ladder that have no meaning.
    """
    b1, b2 = betas
    _check_adam(step, AdamOptions(lr, betas, eps, weight_decay))
    c, a, new = lr / (1 - b1**step), 1 - b1, 0.0 if policy.in_group else 1.0
    shared = _shared(c, weight_decay, maximize, policy, grad)
    constants = PeakConstants(
        carry=c * b1,
        drift=c * a * weight_decay,
        slope=shared.slope,
        share=a,
        spread=b1,
        sign=shared.sign,
        decay=shared.decay,
        reach=shared.reach,
        old=b2,
        new=new,
        eps=eps,
    )
    return Formula(PEAK, lr, constants)


@_of_a_step
def adadelta_formula(
    lr: float,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of a step of Adadelta.

    theta' = theta - lr * E * h / D with E = sqrt(delta + eps), which g does not enter, h = +-g + wd * theta and
    D = sqrt(rho * v + (1 - rho) * h**2 + eps): AdaGrad's argument (:func:`adagrad_formula`) with a rate for each value.
    So U = lr * E * |g| / D and N = theta - lr * E * wd * theta / D, least |N| over all D >= D_low.

    Args:
        lr, rho, eps, weight_decay, maximize: torch's hyperparameters.
        policy: What the rule may assume.
        grad: Name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, v, delta), all of them before the step.

    Raises:
        InvalidArgument: Hyperparameters or a ladder that have no meaning.
    """
    _check(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)
    if rho > 1:
        raise Unsupported(f"no bound for Adadelta with rho = {rho} > 1: {ADVICE}")
    shared, new = _shared(lr, weight_decay, maximize, policy, grad), 0.0 if policy.in_group else 1 - rho
    return Formula(DELTA, lr, DeltaConstants(lr * weight_decay, *shared, rho, new, eps))


@_of_a_step
def asgd_formula(eta: float, lambd: float = 1e-4, weight_decay: float = 0.0, *, policy: Policy = DEFAULT) -> Formula:
    """Return the formula of a step of ASGD.

    theta' = (1 - lambd * eta) * theta - eta * h with h = +-g + wd * theta, where eta is what the step before computed.
    So U = eta * |g| and N = (1 - eta * (lambd + wd)) * theta. The average of the parameters, which ASGD keeps beside
    them, is off by no more than they are.

    Args:
        eta: The rate that torch keeps in the state; ``lr`` before the first step.
        lambd, weight_decay: torch's hyperparameters.
        policy: What the rule may assume.

    Returns:
        The formula for the arrays (theta, g), both of them before the step.

    Raises:
        InvalidArgument: Hyperparameters that have no meaning.
    """
    _check(eta=eta, lambd=lambd, weight_decay=weight_decay)
    constants = LinearConstants(1 - eta * (lambd + weight_decay), carry=0.0, slope=eta * policy.gain * U_MARGIN)
    return Formula(LINEAR, eta, constants)


class _Moments(NamedTuple):
    """The terms of a step of Adam's form: theta' = theta0 - (carry * m + rate * share * h) / D.

    D = unbias * sqrt(V) + eps, and ``spread`` is q * |b| / |m|, with b and q of :func:`adam_formula`.
    """

    rate: float
    carry: float
    share: float
    spread: float
    unbias: float
    eps: float


def _adam_like(options: AdamOptions, moments: _Moments, policy: Policy, grad: str) -> Formula:
    """Return the formula of a step of Adam's form."""
    rate, carry, share, spread, unbias, eps = moments
    b2, decay = options.betas[1], options.weight_decay
    keep, coupled = (1 - options.lr * decay, 0.0) if options.decoupled else (1.0, decay)
    shared = _shared(rate, coupled, options.maximize, policy, grad)
    constants = AdamConstants(
        keep=keep,
        carry=carry,
        drift=rate * share * coupled,
        slope=shared.slope,
        share=share,
        spread=spread,
        quarter=0.25 / share,
        sign=shared.sign,
        decay=shared.decay,
        reach=shared.reach,
        old=b2,
        new=0.0 if policy.in_group else 1 - b2,
        unbias=unbias,
        eps=eps,
    )
    return Formula(ADAM, options.lr, constants)


def _check_adam(step: int, options: AdamOptions) -> None:
    """Raise InvalidArgument for hyperparameters that have no meaning."""
    b1, b2 = options.betas
    _check(lr=options.lr, beta1=b1, beta2=b2, eps=options.eps, weight_decay=options.weight_decay, before=step - 1)
    if b1 >= 1 or b2 >= 1:
        raise InvalidArgument(f"betas must be below 1: {options.betas}")


class _Shared(NamedTuple):
    """The constants that the adaptive kernels share, as of :class:`AccumulatorConstants`."""

    slope: float
    sign: float
    decay: float
    reach: float


def _shared(rate: float, decay: float, maximize: bool, policy: Policy, grad: str) -> _Shared:
    """Return the constants that the adaptive kernels share; ``reach`` is the farthest that rounding may move |g| = 1.

    Truncation at bit n takes less than q = 2**(n - p_grad) units from a mantissa that stays at least 1, so at most
    q / (1 + q) of the value; rounding to nearest moves it by q / 2. (A denormal loses up to q of the smallest normal
    value; the kernels count it as two of those.)
    """
    q = math.ldexp(1.0, policy.ladder_for(grad).drops[-1] - MANTISSA_BITS[grad])
    gain = policy.gain
    return _Shared(rate * gain * U_MARGIN, -gain if maximize else gain, decay, gain * (q / (1 + q) + N_MARGIN))


def _check(**numbers: float) -> None:
    """Raise InvalidArgument unless all are finite and not negative."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise InvalidArgument(f"{name} must be finite and not negative, not {value}")
