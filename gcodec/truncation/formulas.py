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

from ..errors import InvalidArgument, Unsupported
from ..format.ladders import MANTISSA_BITS
from ..kernels.levels.terms import N_MARGIN, U_MARGIN, AccumulatorConstants, AdamConstants, LinearConstants
from .evaluate import ACCUMULATOR, ADAM, DEFAULT, LINEAR, Formula, Policy

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
        policy: what the rule may assume.
        started: there is momentum already: b, from an earlier step.

    Returns:
        The formula for the arrays (theta, g, b or None), all of them before the step.

    Raises:
        InvalidArgument: hyperparameters that have no meaning.
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
        step: the step's number, from 1.
        lr, lr_decay, eps, weight_decay, maximize: torch's hyperparameters.
        policy: what the rule may assume.
        grad: name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, r), all of them before the step.

    Raises:
        InvalidArgument: hyperparameters or a ladder that have no meaning.
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
        policy: what the rule may assume.
        grad: name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, v, b or None for zeros), all of them before the step.

    Raises:
        InvalidArgument: hyperparameters or a ladder that have no meaning.
        Unsupported: alpha > 1, where D shrinks as |h| grows.
    """
    _check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
    if alpha > 1:
        raise Unsupported(f"no bound for RMSProp with alpha = {alpha} > 1: use lossless or mantissa_bits")
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
        decoupled: weight decay is AdamW's.
        policy: what the rule may assume.
        grad: name of the gradient's type.

    Returns:
        The formula for the arrays (theta, g, m, v, v_max or None), all of them before the step.

    Raises:
        InvalidArgument: hyperparameters or a ladder that have no meaning.
    """
    b1, b2 = betas
    _check(lr=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=weight_decay, before=step - 1)
    if b1 >= 1 or b2 >= 1:
        raise InvalidArgument(f"betas must be below 1: {betas}")
    c, a, bias2 = lr / (1 - b1**step), 1 - b1, 1 - b2**step
    keep, coupled = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    shared = _shared(c, coupled, maximize, policy, grad)
    constants = AdamConstants(
        keep=keep,
        carry=c * b1,
        drift=c * a * coupled,
        slope=shared.slope,
        share=a,
        spread=math.sqrt((1 - b2) / bias2) * b1,
        quarter=0.25 / a,
        sign=shared.sign,
        decay=shared.decay,
        reach=shared.reach,
        old=b2,
        new=0.0 if policy.in_group else 1 - b2,
        unbias=1 / math.sqrt(bias2),
        eps=eps,
    )
    return Formula(ADAM, lr, constants)


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
