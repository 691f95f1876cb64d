"""Levels by the optimizers' rules: the drivers over :mod:`gcodec.kernels.levels.terms`.

A block of the grid does :data:`values.BLOCK` values of one tensor; a table has a row for each tensor, so that a launch
does many. Thread i takes values i, i + 128, ...: neighbors read neighbors. No thread waits for another.

All three kernels take the same arguments:

* ``arrays``: :class:`RuleArrays`, and ``kinds``: the :class:`FloatKinds` that they hold;
* ``rows``: int64[n, 10], columns below, and ``owner``: int32[n_blocks], the row of each block;
* ``constants``: float32[m, ...], as ``k`` of the terms; ``thresholds``: float32[m, 15], padded with infinity;
* ``out``: uint8, results.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ..core.floats import widened
from ..core.scalar import I32, U8, U32, U64, lesser
from ..levels.terms import accumulator_terms, adam_terms, linear_terms, passed
from .grid import N, block_number, gpu_function, gpu_kernel
from .values import BLOCK, BLOCK_LOG2

THRESHOLDS = 15
#: Columns of the table: where gradient, parameter and state begin, in elements of their arrays, -1 where there is none;
#: how many values; number of the first block in the launch; which constants; where the levels go; the highest level.
GRAD, PARAM, FIRST, SECOND, THIRD, COUNT, BLOCK_AT, WHICH, OUT, TOP = range(10)


class RuleArrays(NamedTuple):
    """The arrays that rules read, from which all tensors' are reached: uint16 or uint32, as :class:`FloatKinds` says.

    Attributes:
        grads: Gradients.
        params: Parameters.
        first: State: momentum (SGD), squares (AdaGrad, RMSProp), or mean (Adam).
        second: State: momentum (RMSProp), or squares (Adam).
        third: State: the squares' maximum (Adam).
    """

    grads: Any
    params: Any
    first: Any
    second: Any
    third: Any


class FloatKinds(NamedTuple):
    """Kinds of floats that the :class:`RuleArrays` hold, as :func:`floats.widened` numbers them; all uint32.

    Attributes:
        grads: Kind of the gradients.
        params: Kind of the parameters.
        first: Kind of the first state array.
        second: Kind of the second state array.
        third: Kind of the third state array.
    """

    grads: np.uint32
    params: np.uint32
    first: np.uint32
    second: np.uint32
    third: np.uint32


@gpu_function
def number(array, place, kind):
    """Return an element as a float32."""
    return np.float32(widened(U32(array[place]), kind))


@gpu_function
def bounds(t, i):
    """Return a row of thresholds as a tuple, which stays in registers."""
    return (t[i, 0], t[i, 1], t[i, 2], t[i, 3], t[i, 4], t[i, 5], t[i, 6], t[i, 7], t[i, 8], t[i, 9], t[i, 10],
            t[i, 11], t[i, 12], t[i, 13], t[i, 14])


@gpu_function
def part_of(rows, owner):
    """Return this grid block's row, the first of its values in the tensor (uint64), and their number."""
    g = block_number()
    f = owner[g]
    start = U64(U64(I32(g - I32(rows[f, BLOCK_AT]))) << U64(BLOCK_LOG2))
    return f, start, I32(lesser(U64(U64(rows[f, COUNT]) - start), U64(BLOCK)))


@gpu_kernel
def choose_linear(arrays, kinds, rows, owner, constants, thresholds, out):
    """Choose levels by :func:`terms.linear_terms`; the first state is momentum, which may be missing."""
    f, start, n = part_of(rows, owner)
    c, i = constants, rows[f, WHICH]
    k = (c[i, 0], c[i, 1], c[i, 2], c[i, 3], c[i, 4], c[i, 5], c[i, 6], c[i, 7], c[i, 8], c[i, 9], c[i, 10],
         c[i, 11], c[i, 12])
    t, top = bounds(thresholds, i), U8(rows[f, TOP])
    grad, param, first = U64(rows[f, GRAD]) + start, U64(rows[f, PARAM]) + start, U64(rows[f, FIRST]) + start
    for j in range(I32(cuda.threadIdx.x), n, N):
        g = number(arrays.grads, grad + U64(j), kinds.grads)
        theta = number(arrays.params, param + U64(j), kinds.params)
        if rows[f, FIRST] < 0:
            u, size = linear_terms(theta, g, None, k)
        else:
            u, size = linear_terms(theta, g, number(arrays.first, first + U64(j), kinds.first), k)
        level = passed(np.float32(u), np.float32(size), t)
        out[U64(rows[f, OUT]) + start + U64(j)] = top if g == 0 else level


@gpu_kernel
def choose_accumulator(arrays, kinds, rows, owner, constants, thresholds, out):
    """Choose levels by :func:`terms.accumulator_terms`; the states are squares, and momentum, which may be missing."""
    f, start, n = part_of(rows, owner)
    c, i = constants, rows[f, WHICH]
    k = (c[i, 0], c[i, 1], c[i, 2], c[i, 3], c[i, 4], c[i, 5], c[i, 6], c[i, 7], c[i, 8], c[i, 9], c[i, 10], c[i, 11],
         c[i, 12], c[i, 13], c[i, 14], c[i, 15], c[i, 16], c[i, 17], c[i, 18])
    t, top = bounds(thresholds, i), U8(rows[f, TOP])
    grad, param = U64(rows[f, GRAD]) + start, U64(rows[f, PARAM]) + start
    first, second = U64(rows[f, FIRST]) + start, U64(rows[f, SECOND]) + start
    for j in range(I32(cuda.threadIdx.x), n, N):
        g = number(arrays.grads, grad + U64(j), kinds.grads)
        theta = number(arrays.params, param + U64(j), kinds.params)
        square = number(arrays.first, first + U64(j), kinds.first)
        if rows[f, SECOND] < 0:
            u, size = accumulator_terms(theta, g, square, None, k)
        else:
            u, size = accumulator_terms(theta, g, square, number(arrays.second, second + U64(j), kinds.second), k)
        level = passed(np.float32(u), np.float32(size), t)
        out[U64(rows[f, OUT]) + start + U64(j)] = top if g == 0 else level


@gpu_kernel
def choose_adam(arrays, kinds, rows, owner, constants, thresholds, out):
    """Choose levels by :func:`terms.adam_terms`; the states are mean, squares, and their maximum, which may be
    missing."""
    f, start, n = part_of(rows, owner)
    c, i = constants, rows[f, WHICH]
    k = (c[i, 0], c[i, 1], c[i, 2], c[i, 3], c[i, 4], c[i, 5], c[i, 6], c[i, 7], c[i, 8], c[i, 9], c[i, 10], c[i, 11],
         c[i, 12], c[i, 13], c[i, 14], c[i, 15], c[i, 16], c[i, 17], c[i, 18], c[i, 19], c[i, 20], c[i, 21],
         c[i, 22], c[i, 23])
    t, top = bounds(thresholds, i), U8(rows[f, TOP])
    grad, param = U64(rows[f, GRAD]) + start, U64(rows[f, PARAM]) + start
    first, second, third = U64(rows[f, FIRST]) + start, U64(rows[f, SECOND]) + start, U64(rows[f, THIRD]) + start
    for j in range(I32(cuda.threadIdx.x), n, N):
        g = number(arrays.grads, grad + U64(j), kinds.grads)
        theta = number(arrays.params, param + U64(j), kinds.params)
        mean = number(arrays.first, first + U64(j), kinds.first)
        square = number(arrays.second, second + U64(j), kinds.second)
        if rows[f, THIRD] < 0:
            u, size = adam_terms(theta, g, mean, square, None, k)
        else:
            u, size = adam_terms(theta, g, mean, square, number(arrays.third, third + U64(j), kinds.third), k)
        level = passed(np.float32(u), np.float32(size), t)
        out[U64(rows[f, OUT]) + start + U64(j)] = top if g == 0 else level
