"""The rules of optimizer-aware truncation over arrays: levels from parameters, gradients and optimizer state.

One fused pass for each kind of optimizer over the terms of :mod:`terms`, of which LLVM makes vectors: two sides U and N
for each value, and a level, which is how many thresholds U passes. Levels are an encoder's choice; docs/format.md
section 4 says what they mean. In all functions ``k`` is the tuple of constants of :mod:`terms`, of the working type
(float32 or float64), and ``out`` uint8[n], the levels; all other arrays are float32[n] or float64[n], and those that
may be missing are None.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, floats_at, load_tuple, subarray, value_if_any
from .terms import (
    N_ACCUMULATOR,
    N_ADAM,
    N_DELTA,
    N_LINEAR,
    N_PEAK,
    accumulator_terms,
    adam_terms,
    delta_terms,
    linear_terms,
    passed,
    peak_terms,
)

PASS = 7  #: thresholds that are compared with at a time
UNIT = 1 << 16  #: of a reciprocal: exact for all exponents that float32 has
UNEVEN, NO_THRESHOLDS = (np.int32(0), np.int32(0)), (np.float32(0),)


class Thresholds(NamedTuple):
    """The thresholds that U is compared with: level l is passed where 2**(n_l + p_param - p_grad) * U <= |N|.

    Attributes:
        powers: Those powers of two, PASS of the working type, padded with infinity; or NO_THRESHOLDS where they are
            evenly spaced, 2**first, 2**(first + d) ... with ``first`` not negative, which float32 can divide out.
        even: (first - d, UNIT / d rounded up), int32 each; or UNEVEN.
        top: How many of them are real, uint8: the highest level.
    """

    powers: tuple[Any, ...]
    even: tuple[Any, Any]
    top: np.uint8


@kernel
def _level(sides, g, thresholds):
    """Return how many thresholds U passes, as uint8, given U and N; all of them where the gradient ``g`` is 0.

    Where thresholds are evenly spaced, a division counts them: 2**(first + j * d) <= n / u for j below
    floor((log2(n / u) - first + d) / d). The difference of two positive floats' bits, above the mantissa, is the
    logarithm of their ratio, rounded down, as a mantissa that is less borrows from the exponent:

        bits of n       0 | exponent of n | mantissa of n
      - bits of u       0 | exponent of u | mantissa of u
      = floor(log2(n / u)) in bits 23 and up
    """
    u, n = sides
    # The compiler knows how long a tuple is, so that it leaves one of both ways.
    if len(thresholds.powers) > 1:
        level = passed(u, n, thresholds.powers)
        return thresholds.top if g == 0 else level
    before, reciprocal = thresholds.even
    top = np.int32(thresholds.top)
    bits_of_n, bits_of_u = (
        bits_of_float(np.float32(n if n > 0 else 0)),
        bits_of_float(np.float32(u)),
    )  # a NaN is not greater than 0
    # Both are bits of numbers without a minus sign, so int32 holds them and their difference. A NaN of u, cleared of
    # its sign, has larger bits than any number: the difference is negative, and the level 0.
    steps = np.int32(np.int32(np.int32(bits_of_n) - np.int32(bits_of_u & U32(0x7FFFFFFF))) >> np.int32(23))
    steps = np.int32(steps - before)
    steps = steps if steps > np.int32(0) else np.int32(0)
    steps = np.int32(np.int32(steps * reciprocal) >> np.int32(16))  # UNIT is 2**16
    level = np.uint8(steps if steps < top else top)
    return thresholds.top if g == 0 else level


@kernel
def linear(out, theta, grad, buf, k, thresholds):
    """Choose levels by :func:`terms.linear_terms` (SGD, ASGD).

    Args:
        theta: Parameter.
        grad: Gradient.
        buf: Momentum buffer, or None.
        k: ``LinearConstants`` and ``Limits``.
        thresholds: What U is compared with.
    """
    for i in range(out.size):
        # Decided when the kernel is compiled, where an argument is None: no branch is left in the loop.
        out[i] = _level(linear_terms(theta[i], grad[i], value_if_any(buf, i), k), grad[i], thresholds)


@kernel
def accumulator(out, theta, grad, square, buf, k, thresholds):
    """Choose levels by :func:`terms.accumulator_terms` (AdaGrad, RMSProp).

    Args:
        theta: Parameter.
        grad: Gradient.
        square: Accumulator of squares.
        buf: Momentum buffer, or None.
        k: ``AccumulatorConstants`` and ``Limits``.
        thresholds: What U is compared with.
    """
    for i in range(out.size):
        sides = accumulator_terms(theta[i], grad[i], square[i], value_if_any(buf, i), k)
        out[i] = _level(sides, grad[i], thresholds)


@kernel
def adam(out, theta, grad, mean, square, max_square, k, thresholds):
    """Choose levels by :func:`terms.adam_terms` (Adam, AdamW, NAdam, RAdam).

    Args:
        theta: Parameter.
        grad: Gradient.
        mean: First moment.
        square: Second moment.
        max_square: Amsgrad's max of second moments, or None.
        k: ``AdamConstants`` and ``Limits``.
        thresholds: What U is compared with.
    """
    for i in range(out.size):
        sides = adam_terms(theta[i], grad[i], mean[i], square[i], value_if_any(max_square, i), k)
        out[i] = _level(sides, grad[i], thresholds)


@kernel
def delta(out, theta, grad, square, change, k, thresholds):
    """Choose levels by :func:`terms.delta_terms` (Adadelta).

    Args:
        theta: Parameter.
        grad: Gradient.
        square: Accumulator of squares.
        change: Accumulator of the updates' squares.
        k: ``DeltaConstants`` and ``Limits``.
        thresholds: What U is compared with.
    """
    for i in range(out.size):
        out[i] = _level(delta_terms(theta[i], grad[i], square[i], change[i], k), grad[i], thresholds)


@kernel
def peak(out, theta, grad, mean, largest, k, thresholds):
    """Choose levels by :func:`terms.peak_terms` (Adamax).

    Args:
        theta: Parameter.
        grad: Gradient.
        mean: First moment.
        largest: Decaying max of the gradients' magnitudes.
        k: ``PeakConstants`` and ``Limits``.
        thresholds: What U is compared with.
    """
    for i in range(out.size):
        out[i] = _level(peak_terms(theta[i], grad[i], mean[i], largest[i], k), grad[i], thresholds)


#: Columns of a table of tensors that lie in one buffer, int64: first value, the one after the last, row of its
#: constants, and the addresses of parameter and state, which are float32, 0 for None.
BEGIN, END, WHICH, PARAM, FIRST, SECOND, THIRD = range(7)


@kernel
def _part(row, begin, end):
    """Find the values of a tensor that lie in a range of the buffer.

        buffer      ............|begin ................... end|......
        tensor         |BEGIN .......... END|                                first result: begin - BEGIN, second: 0
        tensor                         |BEGIN .......... END|                first result: 0, second: BEGIN - begin

    Returns:
        The first of these values, as an index into the tensor and as one into the range; and their number, not positive
        if there are none.
    """
    first, stop = max(row[BEGIN], begin), min(row[END], end)
    return first - row[BEGIN], first - begin, stop - first


# The walks below differ in which arrays a row has, and which of these may be missing, which are types to numba. One
# walk for all rules, that chooses by the length of k, makes the same levels as fast, but takes a fifth to a third
# longer to compile.
@kernel
def linear_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`linear` for many float32 tensors in one call.

    Args:
        out: uint8[n], levels, result; of values that are no tensor's they stay as they are.
        grad: float32[n], the buffer's values from ``begin`` on.
        begin: Number of the first of them in the buffer.
        table: int64[n_tensors, 7], tensors that may have values among them; the columns are above.
        constants: float32[n_rows, N_LINEAR].
        even: See :class:`Thresholds`; all tensors have the same.
        top: Likewise.
    """
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        # `skip` is into the tensor's own arrays, which are given by addresses, `at` into the buffer's.
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = load_tuple(constants[row[WHICH]], N_LINEAR)
            theta = floats_at(row[PARAM], skip, n)
            # None is of another type than an array, and so a call of its own: the loop inside knows which it is.
            if row[FIRST]:
                buf = floats_at(row[FIRST], skip, n)
                linear(subarray(out, at, n), theta, subarray(grad, at, n), buf, k, thresholds)
            else:
                linear(subarray(out, at, n), theta, subarray(grad, at, n), None, k, thresholds)


@kernel
def accumulator_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`accumulator` for many tensors; arguments as of :func:`linear_of_many`, ``constants``:
    float32[n_rows, N_ACCUMULATOR]."""
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = load_tuple(constants[row[WHICH]], N_ACCUMULATOR)
            theta, square = floats_at(row[PARAM], skip, n), floats_at(row[FIRST], skip, n)
            if row[SECOND]:
                buf = floats_at(row[SECOND], skip, n)
                accumulator(subarray(out, at, n), theta, subarray(grad, at, n), square, buf, k, thresholds)
            else:
                accumulator(subarray(out, at, n), theta, subarray(grad, at, n), square, None, k, thresholds)


@kernel
def adam_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`adam` for many tensors; arguments as of :func:`linear_of_many`, ``constants``:
    float32[n_rows, N_ADAM]."""
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = load_tuple(constants[row[WHICH]], N_ADAM)
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


@kernel
def delta_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`delta` for many tensors; arguments as of :func:`linear_of_many`, ``constants``:
    float32[n_rows, N_DELTA]."""
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = load_tuple(constants[row[WHICH]], N_DELTA)
            theta, square, change = (
                floats_at(row[PARAM], skip, n),
                floats_at(row[FIRST], skip, n),
                floats_at(row[SECOND], skip, n),
            )
            delta(subarray(out, at, n), theta, subarray(grad, at, n), square, change, k, thresholds)


@kernel
def peak_of_many(out, grad, begin, table, constants, even, top):
    """Choose levels by :func:`peak` for many tensors; arguments as of :func:`linear_of_many`, ``constants``:
    float32[n_rows, N_PEAK]."""
    thresholds = Thresholds(NO_THRESHOLDS, even, top)
    for i in range(len(table)):
        row = table[i]
        skip, at, n = _part(row, begin, begin + len(grad))
        if n > 0:
            k = load_tuple(constants[row[WHICH]], N_PEAK)
            theta, mean, largest = (
                floats_at(row[PARAM], skip, n),
                floats_at(row[FIRST], skip, n),
                floats_at(row[SECOND], skip, n),
            )
            peak(subarray(out, at, n), theta, subarray(grad, at, n), mean, largest, k, thresholds)
