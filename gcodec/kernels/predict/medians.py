"""The row that others of a tensor are multiples of: an element-wise median of a sample of them (docs/format.md section
8).

Arithmetic is in float32, one operation at a time and in a fixed order, so that every machine finds the same row.
"""

from __future__ import annotations

import math

import numpy as np

from ..core.jit import kernel
from ..core.unaligned import subarray
from .residuals import as_float, flush_tiny
from .scales import dot


@kernel
def _order(rows, low, high, n):
    """Put the lesser of each pair of elements of two rows in row ``low``: one step of a sorting network."""
    a, b = rows[low], rows[high]
    for i in range(n):
        x, y = a[i], b[i]
        a[i] = x if x < y else y
        b[i] = y if x < y else x


@kernel
def _sort(rows, n_rows, n):
    """Sort columns, all at once, by Batcher's odd-even merge network. ``n_rows``: a power of two.

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
            for j in range(k % p, n_rows - k, 2 * k):
                for i in range(min(k, n_rows - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        _order(rows, i + j, i + j + k, n)
            k //= 2
        p *= 2


@kernel
def _unit_row(values, n_columns, dtype_code, row, sums):
    """Bring a row to length 1, as float32, in ``row``. Returns 1, or 0 if it has no direction: all zero, not finite, or
    near the ends of the range."""
    max_size = np.float32(0)
    for i in range(n_columns):
        row[i] = flush_tiny(as_float(values[i], dtype_code))
        size = abs(row[i])
        max_size = size if size > max_size or size != size else max_size  # a NaN stays: nothing is greater
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
def median_row(values, dtype_code, n_rows, every, template, rows, ordered, sums):
    """Find the element-wise median of a sample of rows, each brought to length 1 and to the same direction.

    Args:
        values: uintW, rows of n_columns.
        dtype_code: their type.
        n_rows: rows in the sample.
        every: one row in so many is in it.
        template: float32[n_columns], result; zeros where no row has a direction.
        rows: float32[n, n_columns], scratch; n: a power of two and at least ``n_rows``.
        ordered: like ``rows``.
        sums: float32[N_SUMS], scratch.
    """
    n, n_columns = 0, len(template)
    for r in range(n_rows):
        n += _unit_row(subarray(values, r * every * n_columns, n_columns), n_columns, dtype_code, rows[n], sums)
    for i in range(n_columns):
        template[i] = rows[n // 2, i] if n else np.float32(0)
    # Directions are those of the template so far: of a single row, which may be an odd one, then of the median of a
    # quarter of them.
    for step in (4, 1):
        n_taken = (n + step - 1) // step
        size = 1
        while size < n_taken:
            size *= 2
        for r in range(size if n else 0):
            target = ordered[r]
            if r >= n_taken:  # the network wants a power of two: infinities sort to the end
                for i in range(n_columns):
                    target[i] = np.float32(np.inf)
            else:
                row = rows[r * step]
                sign = np.float32(-1) if dot(row, template, n_columns, sums) < np.float32(0) else np.float32(1)
                for i in range(n_columns):
                    target[i] = np.float32(row[i] * sign)
        if n:
            _sort(ordered, size, n_columns)
            # The two in the middle, one and the same where n_taken is odd; the infinities lie behind all that are
            # taken.
            low, high = ordered[(n_taken - 1) // 2], ordered[n_taken // 2]
            for i in range(n_columns):
                template[i] = flush_tiny(np.float32(np.float32(low[i] + high[i]) * np.float32(0.5)))
