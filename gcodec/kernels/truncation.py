"""The rules of optimizer-aware truncation, value by value: levels from parameters, gradients and state.

:mod:`gcodec.truncation` has the formulas, their derivations and the rule that turns N and U into a level.

One fused pass each, without a branch, so that LLVM makes vectors of it. ``k`` are constants of the working type
(float32 or float64); ``t`` are thresholds 2**(n_l + p_param - p_grad), seven at a time and padded with infinity, or
``even`` stands for them where they are evenly spaced; ``top`` of them are real. The rule is multiplied through by the
denominators. ``out``: uint8[n]; all else float32[n] or float64[n], or None.

Rounding. A U below ``floor`` (2**-100 in float32) counts as ``floor`` and a second moment below it as 0, which keeps
whatever decides far from underflow, with flush-to-zero too. U and D are then sums and products of positive terms, right
to a few units of 2**-24; U is inflated by 2**-18. N may cancel, so its error is measured by its parts and subtracted:
2**-20 of their sum is 16 units of 2**-24, for the roundings of the terms and of the D in them. That subtraction also
turns every infinity into a NaN, and a NaN fails all comparisons: level 0.

Many CPUs take a hundred cycles for a product that is denormal or has a denormal factor, and dead parameters have such
gradients (zeros) and such momentum all the time. So a gradient counts as ``least`` at least, whose U is about
``floor``, and momentum below ``faint`` as 0 in N, which its product with the learning rate, ``lost``, makes up for.
"""

from __future__ import annotations

import math

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from .jit import kernel
from .memory import bits_of, floats_at, view
from .scalar import U32

U_MARGIN = 1 + 2.0**-18
N_MARGIN = 2.0**-20
PASS = 7  #: thresholds that are compared with at a time
UNIT = 1 << 16  #: of a reciprocal: exact for all exponents that float32 has
UNEVEN, NO_THRESHOLDS = (np.int32(0), np.int32(0)), (np.float32(0),)


@kernel
def _count(u, n, t):
    """How many thresholds u passes."""
    level = np.uint8(0)
    for j in range(len(t)):
        level += np.uint8(t[j] * u <= n)
    return level


@kernel
def _level(u, n, t, even, number):
    """How many thresholds u passes, of ``number`` in all. Where ``t`` has but one element, float32's thresholds are
    2**first, 2**(first + d) ..., and a division counts them: ``even`` is ``(first - d, 1 / d)``. The difference of two
    positive numbers' bits, above the mantissa, is the logarithm of their ratio, rounded down."""
    if len(t) > 1:
        return _count(u, n, t)
    before, reciprocal = even
    size, term = bits_of(np.float32(n if n > 0 else 0)), bits_of(np.float32(u))  # a NaN is not greater than 0
    steps = np.int32(np.int32(np.int32(size) - np.int32(term & U32(0x7FFFFFFF))) >> np.int32(23))
    steps = np.int32(steps - before)
    steps = steps if steps > np.int32(0) else np.int32(0)
    steps = np.int32(np.int32(steps * reciprocal) >> np.int32(16))
    return np.uint8(steps if steps < np.int32(number) else np.int32(number))


@kernel
def _least(a, b):
    """The least |x| over x from a to b, not positive if 0 lies between. NaN if b is."""
    low = a if a < b else b
    high = b if a < b else a
    return low if low > -high else -high


@kernel
def _least_square(g, size, decay, sign, reach, margin, zero):
    """A lower bound of (sign * x + decay)**2 over all x within ``reach * size`` of g."""
    low = abs(sign * g + decay) - (reach * size + margin * abs(decay))
    low = zero if low < zero else low
    return low * low


@kernel
def linear(out, theta, grad, buf, k, t, even, top):
    """N = keep * theta - carry * buf, U = slope * |g|: ``sgd_levels``."""
    keep, carry, slope, floor, least, _, faint, lost, margin, zero, _ = k
    for i in range(out.size):
        x = keep * theta[i]
        n = abs(x) - margin * abs(x)
        if buf is not None:
            b = buf[i]
            y = carry * (zero if abs(b) < faint else b)
            n = abs(x - y) - (margin * (abs(x) + abs(y)) + lost)
        a = abs(grad[i])
        u = slope * (least if a < least else a)
        u = floor if u < floor else u
        level = _level(u, n, t, even, top)
        out[i] = top if a == 0 else level


@kernel
def accumulator(out, theta, grad, square, buf, k, t, even, top):
    """N = theta - carry * buf - drift * theta / D, U = slope * |g| / D, both times D: ``adagrad_levels``."""
    carry, drift, slope, sign, decay, reach, old, new, eps, floor, least, double, faint, lost, margin, zero, _ = k
    for i in range(out.size):
        a = abs(grad[i])
        size = double if a < least else a
        v = old * square[i] + new * _least_square(grad[i], size, decay * theta[i], sign, reach, margin, zero)
        v = zero if abs(v) < floor else v
        d = math.sqrt(v) + eps
        x = theta[i]
        parts = abs(x)
        if buf is not None:
            b = buf[i]
            y = carry * (zero if abs(b) < faint else b)
            x = x - y
            parts = parts + abs(y)
        x = x * d
        z = drift * theta[i]
        n = _least(x, x - z) - (margin * (parts * d + abs(z)) + lost * d)
        u = slope * size
        u = floor if u < floor else u
        level = _level(u, n, t, even, top)
        out[i] = top if a == 0 else level


@kernel
def adam(out, theta, grad, mean, square, most, k, t, even, top):
    """N = keep * theta - (carry * m + drift * theta) / D and U of ``adam_levels``, both times D**2."""
    keep, carry, drift, slope, share, spread, quarter, sign, decay, reach, old, new, unbias, eps = k[:14]
    floor, least, double, faint, lost, margin, zero, one = k[14:]
    for i in range(out.size):
        a = abs(grad[i])
        size = double if a < least else a
        v = old * square[i] + new * _least_square(grad[i], size, decay * theta[i], sign, reach, margin, zero)
        if most is not None:
            v = (most[i] if v < most[i] else v) + zero * most[i]
        v = zero if abs(v) < floor else v
        s = unbias * math.sqrt(v)
        d = s + eps
        m = abs(mean[i])
        p = spread * (faint if m < faint else m)
        f = quarter * p / s
        f = f if f < one else one
        u = slope * size * (share * d + p * f)
        u = floor if u < floor else u
        x = keep * theta[i] * d
        y = carry * (zero if m < faint else mean[i])
        z = drift * theta[i]
        n = (_least(x, x - (y + z)) - (margin * (abs(x) + (abs(y) + abs(z))) + lost)) * d
        level = _level(u, n, t, even, top)
        out[i] = top if a == 0 else level


#: Of a table of tensors that lie in one buffer: first value, the one after the last, which constants, and the addresses
#: of parameter and state, 0 for None.
BEGIN, END, WHICH, PARAM, FIRST, SECOND, THIRD = range(7)


@kernel
def _part(row, begin, end):
    """Which values of a tensor lie in a range of the buffer: the first, seen from the tensor and from the range, and
    their number."""
    first, stop = max(row[BEGIN], begin), min(row[END], end)
    return first - row[BEGIN], first - begin, stop - first


@kernel
def linear_of_many(out, grad, begin, table, constants, even, top):
    """:func:`linear` for the tensors of ``table`` (int64[n, 7]) that have values among ``grad``, the buffer's from
    ``begin`` on; all float32. ``constants``: float32[n, 11]; ``even``, ``top``: thresholds that all have in common."""
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = to_fixed_tuple(constants[row[WHICH]], 11)
            theta = floats_at(row[PARAM], skip, n)
            if row[FIRST]:
                buf = floats_at(row[FIRST], skip, n)
                linear(view(out, at, n), theta, view(grad, at, n), buf, k, NO_THRESHOLDS, even, top)
            else:
                linear(view(out, at, n), theta, view(grad, at, n), None, k, NO_THRESHOLDS, even, top)


@kernel
def accumulator_of_many(out, grad, begin, table, constants, even, top):
    """:func:`accumulator` likewise; ``constants``: float32[n, 17]."""
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = to_fixed_tuple(constants[row[WHICH]], 17)
            theta, square = floats_at(row[PARAM], skip, n), floats_at(row[FIRST], skip, n)
            if row[SECOND]:
                buf = floats_at(row[SECOND], skip, n)
                accumulator(view(out, at, n), theta, view(grad, at, n), square, buf, k, NO_THRESHOLDS, even, top)
            else:
                accumulator(view(out, at, n), theta, view(grad, at, n), square, None, k, NO_THRESHOLDS, even, top)


@kernel
def adam_of_many(out, grad, begin, table, constants, even, top):
    """:func:`adam` likewise; ``constants``: float32[n, 22]."""
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = to_fixed_tuple(constants[row[WHICH]], 22)
            theta, mean, square = (
                floats_at(row[PARAM], skip, n),
                floats_at(row[FIRST], skip, n),
                floats_at(row[SECOND], skip, n),
            )
            if row[THIRD]:
                most = floats_at(row[THIRD], skip, n)
                adam(view(out, at, n), theta, view(grad, at, n), mean, square, most, k, NO_THRESHOLDS, even, top)
            else:
                adam(view(out, at, n), theta, view(grad, at, n), mean, square, None, k, NO_THRESHOLDS, even, top)
