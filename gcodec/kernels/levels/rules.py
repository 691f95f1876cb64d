"""The rules of optimizer-aware truncation over arrays: levels from parameters, gradients and state.

One fused pass each over the terms of :mod:`terms`, of which LLVM makes vectors. ``k`` are constants of the working type
(float32 or float64); ``t`` are thresholds 2**(n_l + p_param - p_grad), seven at a time and padded with infinity, or
``even`` stands for them where they are evenly spaced; ``top`` of them are real. ``out``: uint8[n]; all else float32[n]
or float64[n], or None.
"""

from __future__ import annotations

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of, floats_at, view
from .terms import accumulator_terms, adam_terms, linear_terms, passed

PASS = 7  #: thresholds that are compared with at a time
UNIT = 1 << 16  #: of a reciprocal: exact for all exponents that float32 has
UNEVEN, NO_THRESHOLDS = (np.int32(0), np.int32(0)), (np.float32(0),)


@kernel
def _level(u, n, t, even, number):
    """How many thresholds u passes, of ``number`` in all. Where ``t`` has but one element, float32's thresholds are
    2**first, 2**(first + d) ..., ``first`` not negative; a division counts them: ``even`` is ``(first - d, 1 / d)``.
    The difference of two positive numbers' bits, above the mantissa, is the logarithm of their ratio, rounded down."""
    if len(t) > 1:
        return passed(u, n, t)
    before, reciprocal = even
    size, term = bits_of(np.float32(n if n > 0 else 0)), bits_of(np.float32(u))  # a NaN is not greater than 0
    steps = np.int32(np.int32(np.int32(size) - np.int32(term & U32(0x7FFFFFFF))) >> np.int32(23))
    steps = np.int32(steps - before)
    steps = steps if steps > np.int32(0) else np.int32(0)
    steps = np.int32(np.int32(steps * reciprocal) >> np.int32(16))
    return np.uint8(steps if steps < np.int32(number) else np.int32(number))


@kernel
def linear(out, theta, grad, buf, k, t, even, top):
    """Levels by :func:`linear_terms`."""
    for i in range(out.size):
        if buf is None:
            u, n = linear_terms(theta[i], grad[i], None, k)
        else:
            u, n = linear_terms(theta[i], grad[i], buf[i], k)
        level = _level(u, n, t, even, top)
        out[i] = top if grad[i] == 0 else level


@kernel
def accumulator(out, theta, grad, square, buf, k, t, even, top):
    """Levels by :func:`accumulator_terms`."""
    for i in range(out.size):
        if buf is None:
            u, n = accumulator_terms(theta[i], grad[i], square[i], None, k)
        else:
            u, n = accumulator_terms(theta[i], grad[i], square[i], buf[i], k)
        level = _level(u, n, t, even, top)
        out[i] = top if grad[i] == 0 else level


@kernel
def adam(out, theta, grad, mean, square, most, k, t, even, top):
    """Levels by :func:`adam_terms`."""
    for i in range(out.size):
        if most is None:
            u, n = adam_terms(theta[i], grad[i], mean[i], square[i], None, k)
        else:
            u, n = adam_terms(theta[i], grad[i], mean[i], square[i], most[i], k)
        level = _level(u, n, t, even, top)
        out[i] = top if grad[i] == 0 else level


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
