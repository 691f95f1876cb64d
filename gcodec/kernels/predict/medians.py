"""The row that others of a tensor are multiples of: an element-wise median of a sample of them (docs/format.md section
8).

Arithmetic is in float32, one operation at a time and in a fixed order, so that every machine finds the same row.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, float_from_bits, subarray
from .residuals import as_float, flush_tiny
from .scales import dot

#: Columns that are sorted together: rows of so many stay in the first level of the cache.
TILE = 32


class MedianScratch(NamedTuple):
    """Working memory for a sample of n_rows rows.

    Attributes:
        rows: float32[n_rows, n_columns].
        signs: float32[n_rows], by which rows are brought to one direction.
        ordered: float32[n, TILE]; n: a power of two and at least ``n_rows``.
        sums: float32[N_SUMS].
    """

    rows: np.ndarray
    signs: np.ndarray
    ordered: np.ndarray
    sums: np.ndarray


def _generate_order(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that orders two rows; as one, because LLVM does not know that they are not the same."""
    kind = ir.VectorType(ir.FloatType(), TILE).as_pointer()
    low, high = (builder.bitcast(at(k, 32), kind) for k in (0, 2))
    x, y = (builder.load(place, align=4) for place in (low, high))
    is_ordered = builder.fcmp_ordered("<", x, y)
    builder.store(builder.select(is_ordered, x, y), low, align=4)
    builder.store(builder.select(is_ordered, y, x), high, align=4)


#: _order(rows, i, rows, j): put the lesser of each pair of TILE elements (float32) in those from i on: one step of a
#: sorting network.
_order = intrinsic_step(types.void, 4, _generate_order)


@kernel
def _sort(rows, n_rows):
    """Sort TILE columns, all at once, by Batcher's odd-even merge network. ``n_rows``: a power of two.

    Sorted runs of p rows are merged to runs of 2 p, in steps that compare rows k apart: p, p / 2 ... 1. For four rows:

        p = 1, k = 1      p = 2, k = 2      p = 2, k = 1
        0 --+             0 --+
        1 --+             1 --|-+           1 --+
        2 --+             2 --+ |           2 --+
        3 --+             3 ----+
    """
    p = 1
    while p < n_rows:
        k = p
        while k >= 1:
            for j in range(k & (p - 1), n_rows - k, 2 * k):
                for i in range(j, min(j + k, n_rows - k)):
                    # Only within a run of 2 p rows: of numbers below that, both have the same bits above.
                    if i ^ (i + k) < 2 * p:
                        _order(rows, i * TILE, rows, (i + k) * TILE)
            k //= 2
        p *= 2


@kernel
def _unit_row(values, n_columns, dtype_code, row, sums):
    """Bring a row to length 1, as float32, in ``row``. Returns 1, or 0 if it has no direction: all zero, not finite, or
    near the ends of the range."""
    max_bits = U32(0)  # which rise with the size, and are largest of a NaN; of floats, LLVM makes no vectors here
    for i in range(n_columns):
        row[i] = flush_tiny(as_float(values[i], dtype_code))
        max_bits = max(max_bits, U32(bits_of_float(row[i]) & U32(0x7FFFFFFF)))
    max_size = float_from_bits(max_bits)
    # `not` of a comparison, so that a NaN, with which none holds, returns here, too.
    if not np.float32(1e-30) < max_size < np.float32(1e30):
        return 0
    factor = np.float32(np.float32(1) / max_size)  # first, so that no square of a small row vanishes
    for i in range(n_columns):
        row[i] = flush_tiny(np.float32(row[i] * factor))
    factor = np.float32(np.float32(1) / np.float32(math.sqrt(dot(row, row, n_columns, sums))))
    for i in range(n_columns):
        row[i] = flush_tiny(np.float32(row[i] * factor))
    return 1


@kernel
def _median_of_tile(scratch, step, n_taken, first, template):
    """Find the median of every ``step``-th row, times its sign, in columns ``first ... first + TILE``, as many as there
    are; other arguments as of :func:`median_row`."""
    rows, signs, ordered = scratch.rows, scratch.signs, scratch.ordered
    count, size = min(TILE, len(template) - first), 1
    while size < n_taken:
        size *= 2
    for r in range(size):
        target = subarray(ordered, r * TILE, TILE)
        for i in range(TILE):  # the network wants a power of two: infinities sort to the end
            target[i] = np.float32(np.inf)
        if r < n_taken:
            row, sign = rows[r * step], signs[r * step]
            for i in range(count):
                target[i] = np.float32(row[first + i] * sign)
    _sort(ordered, size)
    # The two in the middle, one and the same where n_taken is odd; the infinities lie behind all that are taken.
    low, high = subarray(ordered, (n_taken - 1) // 2 * TILE, TILE), subarray(ordered, n_taken // 2 * TILE, TILE)
    for i in range(count):
        template[first + i] = flush_tiny(np.float32(np.float32(low[i] + high[i]) * np.float32(0.5)))


@kernel
def median_row(values, dtype_code, n_rows, every, template, scratch):
    """Find the element-wise median of a sample of rows, each brought to length 1 and to the same direction.

    Args:
        values: uintW, rows of n_columns.
        every: One row in so many is in it.
        template: float32[n_columns], result; zeros where no row has a direction.
        scratch: A :class:`MedianScratch`.
    """
    rows, signs, _, sums = scratch
    n, n_columns = 0, len(template)
    for r in range(n_rows):
        n += _unit_row(subarray(values, r * every * n_columns, n_columns), n_columns, dtype_code, rows[n], sums)
    for i in range(n_columns):
        template[i] = rows[n // 2, i] if n else np.float32(0)
    # Directions are those of the template so far: of a single row, which may be an odd one, then of the median of a
    # quarter of them.
    for step in (4, 1):
        n_taken = (n + step - 1) // step
        for r in range(0, n, step):
            signs[r] = np.float32(-1) if dot(rows[r], template, n_columns, sums) < np.float32(0) else np.float32(1)
        for first in range(0, n_columns if n else 0, TILE):
            _median_of_tile(scratch, step, n_taken, first, template)
