"""The rules of optimizer-aware truncation over arrays: levels from parameters, gradients and state.

One fused pass each over the terms of :mod:`terms`, of which LLVM makes vectors. ``k`` are constants of the working type
(float32 or float64), see there; ``out``: uint8[n], result; all other arrays float32[n] or float64[n], or None.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, floats_at, subarray
from .terms import N_ACCUMULATOR, N_ADAM, N_LINEAR, accumulator_terms, adam_terms, linear_terms, passed

PASS = 7  #: thresholds that are compared with at a time
UNIT = 1 << 16  #: of a reciprocal: exact for all exponents that float32 has
UNEVEN, NO_THRESHOLDS = (np.int32(0), np.int32(0)), (np.float32(0),)


class Thresholds(NamedTuple):
    """The thresholds that U is compared with: level l is passed where 2**(n_l + p_param - p_grad) * U <= |N|.

    Attributes:
        powers: those powers of two, PASS of the working type, padded with infinity; or NO_THRESHOLDS where they are
            evenly spaced, 2**first, 2**(first + d) ... with ``first`` not negative, which float32 can divide out.
        even: (first - d, UNIT / d rounded up), int32 each; or UNEVEN.
        top: how many of them are real, uint8: the highest level.
    """

    powers: tuple[Any, ...]
    even: tuple[Any, Any]
    top: np.uint8


@kernel
def _level(u, n, thresholds):
    """Return how many thresholds u passes, as uint8.

    Where they are evenly spaced, a division counts them. The difference of two positive floats' bits, above the
    mantissa, is the logarithm of their ratio, rounded down, as a mantissa that is less borrows from the exponent:

        bits of n       0 | exponent of n | mantissa of n
      - bits of u       0 | exponent of u | mantissa of u
      = floor(log2(n / u)) in bits 23 and up
    """
    if len(thresholds.powers) > 1:
        return passed(u, n, thresholds.powers)
    before, reciprocal = thresholds.even
    top = np.int32(thresholds.top)
    size, term = (
        bits_of_float(np.float32(n if n > 0 else 0)),
        bits_of_float(np.float32(u)),
    )  # a NaN is not greater than 0
    steps = np.int32(np.int32(np.int32(size) - np.int32(term & U32(0x7FFFFFFF))) >> np.int32(23))
    steps = np.int32(steps - before)
    steps = steps if steps > np.int32(0) else np.int32(0)
    steps = np.int32(np.int32(steps * reciprocal) >> np.int32(16))  # UNIT is 2**16
    return np.uint8(steps if steps < top else top)


@kernel
def linear(out, theta, grad, buf, k, thresholds):
    """Choose levels by :func:`linear_terms`. ``buf``: momentum, or None."""
    for i in range(out.size):
        if buf is None:
            u, n = linear_terms(theta[i], grad[i], None, k)
        else:
            u, n = linear_terms(theta[i], grad[i], buf[i], k)
        level = _level(u, n, thresholds)
        out[i] = thresholds.top if grad[i] == 0 else level


@kernel
def accumulator(out, theta, grad, square, buf, k, thresholds):
    """Choose levels by :func:`accumulator_terms`. ``square``: the accumulator; ``buf``: momentum, or None."""
    for i in range(out.size):
        if buf is None:
            u, n = accumulator_terms(theta[i], grad[i], square[i], None, k)
        else:
            u, n = accumulator_terms(theta[i], grad[i], square[i], buf[i], k)
        level = _level(u, n, thresholds)
        out[i] = thresholds.top if grad[i] == 0 else level


@kernel
def adam(out, theta, grad, mean, square, max_square, k, thresholds):
    """Choose levels by :func:`adam_terms`. ``mean``, ``square``: the moments; ``max_square``: amsgrad's, or None."""
    for i in range(out.size):
        if max_square is None:
            u, n = adam_terms(theta[i], grad[i], mean[i], square[i], None, k)
        else:
            u, n = adam_terms(theta[i], grad[i], mean[i], square[i], max_square[i], k)
        level = _level(u, n, thresholds)
        out[i] = thresholds.top if grad[i] == 0 else level


#: Columns of a table of tensors that lie in one buffer: first value, the one after the last, which constants, and the
#: addresses of parameter and state, 0 for None.
BEGIN, END, WHICH, PARAM, FIRST, SECOND, THIRD = range(7)


@kernel
def _part(row, begin, end):
    """Return which values of a tensor lie in a range of the buffer: the first, as an index into the tensor and into the
    range, and their number.

        buffer      ......|begin ........................ end|......
        tensor              |BEGIN ... END|
                          ->|-|<- second result
    """
    first, stop = max(row[BEGIN], begin), min(row[END], end)
    return first - row[BEGIN], first - begin, stop - first


@kernel
def linear_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`linear` for many float32 tensors in one call.

    ``grad``: the buffer's values from ``begin`` on; ``table``: int64[n, 7], tensors that may have values among them;
    ``constants``: float32[n, N_LINEAR]; ``even``, ``top``: thresholds that all have in common.
    """
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = to_fixed_tuple(constants[row[WHICH]], N_LINEAR)
            theta = floats_at(row[PARAM], skip, n)
            if row[FIRST]:
                buf = floats_at(row[FIRST], skip, n)
                linear(subarray(out, at, n), theta, subarray(grad, at, n), buf, k, thresholds)
            else:
                linear(subarray(out, at, n), theta, subarray(grad, at, n), None, k, thresholds)


@kernel
def accumulator_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`accumulator` for many tensors, as :func:`linear_of_many` does. ``constants``:
    float32[n, N_ACCUMULATOR]."""
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = to_fixed_tuple(constants[row[WHICH]], N_ACCUMULATOR)
            theta, square = floats_at(row[PARAM], skip, n), floats_at(row[FIRST], skip, n)
            if row[SECOND]:
                buf = floats_at(row[SECOND], skip, n)
                accumulator(subarray(out, at, n), theta, subarray(grad, at, n), square, buf, k, thresholds)
            else:
                accumulator(subarray(out, at, n), theta, subarray(grad, at, n), square, None, k, thresholds)


@kernel
def adam_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`adam` for many tensors, as :func:`linear_of_many` does. ``constants``:
    float32[n, N_ADAM]."""
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = to_fixed_tuple(constants[row[WHICH]], N_ADAM)
            theta, mean, square = (
                floats_at(row[PARAM], skip, n),
                floats_at(row[FIRST], skip, n),
                floats_at(row[SECOND], skip, n),
            )
            if row[THIRD]:
                max_square = floats_at(row[THIRD], skip, n)
                adam(subarray(out, at, n), theta, subarray(grad, at, n), mean, square, max_square, k, thresholds)
            else:
                adam(subarray(out, at, n), theta, subarray(grad, at, n), mean, square, None, k, thresholds)
