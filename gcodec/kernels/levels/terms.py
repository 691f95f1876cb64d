"""The two sides of the rules of optimizer-aware truncation for one value: the size of the gradient's term, U, and what
the parameter would be without it, N.

:mod:`gcodec.truncation.formulas` has the formulas, their derivations and the rule that turns N and U into a level.
``k`` are its constants, of the working type (float32 or float64), as are all other arguments; what may be missing is
None. In ``k``, a rule's own constants (:class:`LinearConstants`, :class:`AccumulatorConstants`, :class:`AdamConstants`,
:class:`DeltaConstants`, :class:`PeakConstants`) stand before those that all rules have (:class:`Limits`), as one flat
tuple, so that a table of them is a matrix; each function takes it apart in one line, which does not compile if their
number is another. U and N are multiplied through by the denominators. No branch depends on a value, so that LLVM makes
vectors of the loops over them. Each operation rounds once, to the nearest, and none is fused with another:
``source/levels.cu`` has the same ones in the same order, and so the same levels.

Rounding. A U below ``floor`` (2**-100 in float32) counts as ``floor`` and a second moment below it as 0, which keeps
whatever decides far from underflow, with flush-to-zero too. U and D are then sums and products of positive terms, right
to a few units of 2**-24; U is inflated by 2**-18. N may cancel, so its error is measured by its parts and subtracted:
2**-20 of their sum is 16 units of 2**-24, for the roundings of the terms and of the D in them. That subtraction also
turns every infinity into a NaN, and a NaN fails all comparisons: level 0.

Many CPUs take a hundred cycles for a product that is denormal or has a denormal factor, and dead parameters have such
gradients (zeros) and such momentum all the time. So a gradient counts as ``min_grad`` at least, whose U is about
``floor``, and momentum below ``faint`` as 0 in N, which its product with the learning rate, ``lost``, makes up for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..core.jit import kernel

U_MARGIN = 1 + 2.0**-18
N_MARGIN = 2.0**-20


class LinearConstants(NamedTuple):
    """Constants of :func:`linear_terms`: N = keep * theta - carry * b, U = slope * |g|.

    Attributes:
        keep: What weight decay leaves of the parameter.
        carry: What momentum adds to the parameter, per unit of it.
        slope: Learning rate times the gradient's gain, inflated by ``U_MARGIN``.
    """

    keep: float
    carry: float
    slope: float


class AccumulatorConstants(NamedTuple):
    """Constants of :func:`accumulator_terms`: N = theta - carry * b - drift * theta / D, U = slope * |g| / D, where
    D = sqrt(old * square + new * h**2) + eps and h = sign * g + decay * theta.

    Attributes:
        carry: What momentum adds to the parameter, per unit of it.
        drift: What coupled weight decay subtracts from it, per unit of the parameter and of 1 / D.
        slope: Learning rate times the gradient's gain, inflated by ``U_MARGIN``.
        sign: The gradient's gain, negative where the optimizer maximizes.
        decay: Coupled weight decay.
        reach: How far rounding may move a gradient of 1.
        old: Share of the old accumulator in the new one.
        new: Share of h**2 in it; 0 in a group.
        eps: The optimizer's own.
    """

    carry: float
    drift: float
    slope: float
    sign: float
    decay: float
    reach: float
    old: float
    new: float
    eps: float


class AdamConstants(NamedTuple):
    """Constants of :func:`adam_terms`, with a, b1, b2, c, q and D of ``gcodec.truncation.formulas.adam_formula``.

    Attributes:
        keep: What decoupled weight decay leaves of the parameter.
        carry: c * b1, what the old mean adds, per unit of it and of 1 / D.
        drift: What coupled weight decay subtracts from the parameter, per unit of it and of 1 / D.
        slope: c times the gradient's gain, inflated by ``U_MARGIN``.
        share: A = 1 - b1.
        spread: q * b1.
        quarter: 1 / (4 * a).
        sign: The gradient's gain, negative where the optimizer maximizes.
        decay: Coupled weight decay.
        reach: How far rounding may move a gradient of 1.
        old: b2.
        new: 1 - b2, or 0 in a group.
        unbias: 1 / sqrt(1 - b2**t).
        eps: The optimizer's own.
    """

    keep: float
    carry: float
    drift: float
    slope: float
    share: float
    spread: float
    quarter: float
    sign: float
    decay: float
    reach: float
    old: float
    new: float
    unbias: float
    eps: float


class DeltaConstants(NamedTuple):
    """Constants of :func:`delta_terms`: N = theta - drift * E * theta / D, U = slope * E * |g| / D, where
    E = sqrt(delta + eps), D = sqrt(old * square + new * h**2 + eps) and h = sign * g + decay * theta.

    Attributes:
        drift: What coupled weight decay subtracts from the parameter, per unit of it and of E / D.
        slope: Learning rate times the gradient's gain, inflated by ``U_MARGIN``.
        sign: The gradient's gain, negative where the optimizer maximizes.
        decay: Coupled weight decay.
        reach: How far rounding may move a gradient of 1.
        old: Share of the old accumulator in the new one.
        new: Share of h**2 in it; 0 in a group.
        eps: The optimizer's own.
    """

    drift: float
    slope: float
    sign: float
    decay: float
    reach: float
    old: float
    new: float
    eps: float

    @property
    def carry(self) -> float:
        """Momentum adds nothing to the parameter."""
        return 0.0


class PeakConstants(NamedTuple):
    """Constants of :func:`peak_terms`, with a, b1, b2, c and D of ``gcodec.truncation.formulas.adamax_formula``.

    Attributes:
        carry: c * b1, what the old mean adds, per unit of it and of 1 / D.
        drift: What coupled weight decay subtracts from the parameter, per unit of it and of 1 / D.
        slope: c times the gradient's gain, inflated by ``U_MARGIN``.
        share: A = 1 - b1.
        spread: b1.
        sign: The gradient's gain, negative where the optimizer maximizes.
        decay: Coupled weight decay.
        reach: How far rounding may move a gradient of 1.
        old: b2.
        new: 1, or 0 in a group.
        eps: The optimizer's own.
    """

    carry: float
    drift: float
    slope: float
    share: float
    spread: float
    sign: float
    decay: float
    reach: float
    old: float
    new: float
    eps: float


class Limits(NamedTuple):
    """Constants that all rules have, of the working type.

    Attributes:
        floor: min U; a smaller one counts as this much.
        min_grad: min size of a gradient, whose U is about ``floor``; a smaller one counts as this much.
        raised: What a smaller gradient counts as in the adaptive rules: twice its type's smallest normal value, or
            ``min_grad`` where that is more.
        faint: Momentum below this counts as 0 in N.
        lost: How much of N that may be.
        max_grad: The adaptive rules take no larger gradient: rounded up, its square may be beyond the state's range.
        max_past: Likewise of squares of the past.
        margin: ``N_MARGIN``.
        zero: 0 of the working type.
        one: 1 of the working type.
    """

    floor: float
    min_grad: float
    raised: float
    faint: float
    lost: float
    max_grad: float
    max_past: float
    margin: float
    zero: float
    one: float


#: Lengths of ``k``.
N_LINEAR, N_ACCUMULATOR, N_ADAM, N_DELTA, N_PEAK = (
    len(constants._fields) + len(Limits._fields)
    for constants in (LinearConstants, AccumulatorConstants, AdamConstants, DeltaConstants, PeakConstants)
)


@kernel
def passed(u, n, t):
    """Return how many of the thresholds ``t`` (a tuple) u passes: t * u <= n; as uint8."""
    level = np.uint8(0)
    for j in range(len(t)):
        level += np.uint8(t[j] * u <= n)
    return level


@kernel
def _min_size(a, b):
    """Return the min of |x| over all x from a to b; it is not positive if 0 lies between, and NaN if b is."""
    #     low ... high      2 ... 5      -5 ... -2      -1 ... 3
    #     result            2             2             -1, as 0 lies between: no bound above 0
    low = a if a < b else b
    high = b if a < b else a
    return low if low > -high else -high


@kernel
def _min_square(g, size, decay, sign, reach, margin, zero):
    """Return a lower bound of (sign * x + decay)**2 over all x within ``reach * size`` of g, allowing for rounding by
    ``margin``."""
    # Rounding g moves sign * x + decay by reach * size at most: so much nearer to 0 it may come, and not beyond it.
    low = abs(sign * g + decay) - (reach * size + margin * abs(decay))
    low = zero if low < zero else low
    return low * low


@kernel
def _or_nothing(n, size, square, max_grad, max_past, zero):
    """Return n, or 0, which no threshold passes, where rounding may take the new square beyond the state's range; it
    would be infinite from then on. ``size`` is that of the gradient."""
    # Both sides of `&` are computed, unlike those of `and`, which is a branch.
    in_range = (size <= max_grad) & (square <= max_past)
    return n if in_range else zero


@kernel
def linear_terms(theta, g, b, k):
    """Return U = slope * |g| and the size of N = keep * theta - carry * b, as of ``sgd_formula``.

    Args:
        theta: Parameter.
        g: Gradient.
        b: Momentum, or None.
        k: :class:`LinearConstants` and :class:`Limits`, flat.

    Returns:
        U, inflated and at least ``floor``; and the size of N less what rounding may have added, which no threshold
        passes where it is negative or NaN.
    """
    keep, carry, slope, floor, min_grad, _, faint, lost, _, _, margin, zero, _ = k
    x = keep * theta
    n = abs(x) - margin * abs(x)
    if b is not None:
        y = carry * (zero if abs(b) < faint else b)
        n = abs(x - y) - (margin * (abs(x) + abs(y)) + lost)
    a = abs(g)
    u = slope * (min_grad if a < min_grad else a)
    return floor if u < floor else u, n


@kernel
def accumulator_terms(theta, g, square, b, k):
    """Return U = slope * |g| / D and the size of N = theta - carry * b - drift * theta / D, both times D, as of
    ``adagrad_formula`` and ``rmsprop_formula``.

    Args:
        theta: Parameter.
        g: Gradient.
        square: Accumulator of squares.
        b: Momentum, or None.
        k: :class:`AccumulatorConstants` and :class:`Limits`, flat.

    Returns:
        As of :func:`linear_terms`; the size of N is the min over all D that are at least the smallest that rounding g
        can lead to.
    """
    (
        carry, drift, slope, sign, decay, reach, old, new, eps,
        floor, min_grad, raised, faint, lost, max_grad, max_past, margin, zero, _,
    ) = k  # fmt: skip
    a = abs(g)
    size = raised if a < min_grad else a
    v = old * square
    if new != zero:
        v = v + new * _min_square(g, size, decay * theta, sign, reach, margin, zero)
    v = zero if abs(v) < floor else v
    d = math.sqrt(v) + eps
    # N times D, without a division: theta * D - carry * b * D - drift * theta.
    x = theta
    parts = abs(x)
    if b is not None:
        y = carry * (zero if abs(b) < faint else b)
        x = x - y
        parts = parts + abs(y)
    x = x * d
    z = drift * theta
    # What rounding may have added to the terms of N, and what momentum that counts as 0 may be, both times D as N is.
    error = margin * (parts * d + abs(z)) + lost * d
    n = _min_size(x, x - z) - error
    n = _or_nothing(n, a, square, max_grad, max_past, zero)
    u = slope * size
    return floor if u < floor else u, n


@kernel
def adam_terms(theta, g, mean, square, max_square, k):
    """Return U and the size of N = keep * theta - (carry * m + drift * theta) / D, both times D**2.

    See ``adam_formula`` for U.

    Args:
        theta: Parameter.
        g: Gradient.
        mean: First moment m.
        square: Second moment.
        max_square: Amsgrad's max of second moments, or None.
        k: :class:`AdamConstants` and :class:`Limits`, flat.

    Returns:
        As of :func:`accumulator_terms`.
    """
    (
        keep, carry, drift, slope, share, spread, quarter, sign, decay, reach, old, new, unbias, eps,
        floor, min_grad, raised, faint, lost, max_grad, max_past, margin, zero, one,
    ) = k  # fmt: skip
    a = abs(g)
    size = raised if a < min_grad else a
    v = old * square
    if new != zero:
        v = v + new * _min_square(g, size, decay * theta, sign, reach, margin, zero)
    if max_square is not None:
        # No comparison with a NaN holds, so the choice alone would lose one of max_square. 0 times it is a NaN, which
        # the sum passes on, and so is 0 times an infinity; of all other numbers it is 0.
        v = (max_square if v < max_square else v) + zero * max_square
    v = zero if abs(v) < floor else v
    s = unbias * math.sqrt(v)
    d = s + eps
    m = abs(mean)
    p = spread * (faint if m < faint else m)
    # Infinite where s is 0, or NaN where p is, too: neither is below 1, and so both count as 1, which is the bound that
    # holds for any s.
    f = quarter * p / s
    f = f if f < one else one
    # Of adam_formula, with p = q * |b| and f the lesser of 1 and q * |b| / (4 * a * s). Both sides are taken times
    # D**2, which spares the divisions by D:
    #
    #     U        c * |g| / D * (a + q * |b| / D * f)
    #     times    D * D
    #     U D**2   c * |g| * (a * D + p * f)
    u = slope * size * (share * d + p * f)
    x = keep * theta * d
    y = carry * (zero if m < faint else mean)
    z = drift * theta
    error = margin * (abs(x) + (abs(y) + abs(z))) + lost
    n = (_min_size(x, x - (y + z)) - error) * d
    n = n - (n - n)  # that product may be infinite
    n = _or_nothing(n, a, square, max_grad, max_past, zero)
    return floor if u < floor else u, n


@kernel
def delta_terms(theta, g, square, delta, k):
    """Return U = slope * E * |g| / D and the size of N = theta - drift * E * theta / D, both times D, as of
    ``adadelta_formula``.

    Args:
        theta: Parameter.
        g: Gradient.
        square: Accumulator of squares.
        delta: Accumulator of the updates' squares.
        k: :class:`DeltaConstants` and :class:`Limits`, flat.

    Returns:
        As of :func:`accumulator_terms`.
    """
    (
        drift, slope, sign, decay, reach, old, new, eps,
        floor, min_grad, raised, _, _, max_grad, max_past, margin, zero, _,
    ) = k  # fmt: skip
    a = abs(g)
    size = raised if a < min_grad else a
    v = old * square
    if new != zero:
        v = v + new * _min_square(g, size, decay * theta, sign, reach, margin, zero)
    v = zero if abs(v) < floor else v
    d = math.sqrt(v + eps)
    w = zero if abs(delta) < floor else delta
    e = math.sqrt(w + eps)
    x = theta * d
    z = drift * theta * e
    error = margin * (abs(x) + abs(z))
    n = _min_size(x, x - z) - error
    # The update's square goes into `delta`, as that of the gradient does into `square`: neither may leave the range.
    n = _or_nothing(_or_nothing(n, a, square, max_grad, max_past, zero), a, delta, max_grad, max_past, zero)
    u = slope * size * e
    return floor if u < floor else u, n


@kernel
def peak_terms(theta, g, mean, peak, k):
    """Return U and the size of N = theta - (carry * m + drift * theta) / D, both times D**2.

    See ``adamax_formula`` for U.

    Args:
        theta: Parameter.
        g: Gradient.
        mean: First moment m.
        peak: Decaying max of the gradients' magnitudes.
        k: :class:`PeakConstants` and :class:`Limits`, flat.

    Returns:
        As of :func:`accumulator_terms`.
    """
    (
        carry, drift, slope, share, spread, sign, decay, reach, old, new, eps,
        floor, min_grad, raised, faint, lost, _, _, margin, zero, _,
    ) = k  # fmt: skip
    a = abs(g)
    size = raised if a < min_grad else a
    d = eps
    if new != zero:
        d = d + math.sqrt(_min_square(g, size, decay * theta, sign, reach, margin, zero))
    s = old * peak
    # 0 times peak, as of max_square above: a NaN or an infinity of the state becomes a NaN of D.
    d = (d if s < d else s) + zero * peak
    m = abs(mean)
    # Of adamax_formula, times D**2: c * |g| * max(a * D, a * eps + |b|).
    p = share * eps + spread * (faint if m < faint else m)
    q = share * d
    u = slope * size * (p if q < p else q)
    x = theta * d
    y = carry * (zero if m < faint else mean)
    z = drift * theta
    error = margin * (abs(x) + (abs(y) + abs(z))) + lost
    n = (_min_size(x, x - (y + z)) - error) * d
    n = n - (n - n)  # that product may be infinite
    return floor if u < floor else u, n
