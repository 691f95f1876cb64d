"""The row that others of a tensor are multiples of: an element-wise median of some of them (docs/format.md section 8).

Arithmetic is in float32, one operation at a time and in a fixed order, so that every machine finds the same row.
"""

from __future__ import annotations

import math

import numpy as np

from ..core.jit import kernel
from ..core.unaligned import view
from .residuals import LANES, as_float, flush_tiny, flushed_product


@kernel
def _dot(a, b, n, sums):
    """Scalar product of two rows: float32[n]. ``sums``: float32[LANES], scratch."""
    for lane in range(LANES):
        sums[lane] = np.float32(0)
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        x, y = view(a, i, LANES), view(b, i, LANES)
        for lane in range(LANES):
            sums[lane] = flush_tiny(np.float32(sums[lane] + flushed_product(x[lane], y[lane])))
    total = np.float32(0)
    for i in range(whole, n):
        total = flush_tiny(np.float32(total + flushed_product(a[i], b[i])))
    for lane in range(LANES):
        total = flush_tiny(np.float32(total + sums[lane]))
    return total


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
    """Sort columns, all at once, by Batcher's odd-even merge network. ``n_rows``: a power of two."""
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
def _unit_row(values, n_columns, form, row, sums):
    """A row brought to length 1, as float32. Returns 1, or 0 if it has no direction: all zero, not finite, or near the
    ends of the range."""
    greatest = np.float32(0)
    for i in range(n_columns):
        row[i] = flush_tiny(as_float(values[i], form))
        size = abs(row[i])
        greatest = size if size > greatest or size != size else greatest
    if not np.float32(1e-30) < greatest < np.float32(1e30):
        return 0
    factor = np.float32(np.float32(1) / greatest)  # first, so that no square of a small row vanishes
    for i in range(n_columns):
        row[i] = flush_tiny(np.float32(row[i] * factor))
    factor = np.float32(np.float32(1) / np.float32(math.sqrt(_dot(row, row, n_columns, sums))))
    for i in range(n_columns):
        row[i] = flush_tiny(np.float32(row[i] * factor))
    return 1


@kernel
def median_row(values, n_columns, form, n_rows, every, template, rows, ordered, sums):
    """Element-wise median of some rows, each brought to length 1 and to the same direction: ``template``:
    float32[n_columns], result; zeros where there is no row to see.

    ``values``: uintW, rows of ``n_columns``, of which ``n_rows`` are looked at, one in ``every``; ``rows``,
    ``ordered``: float32[n, n_columns], n a power of two and at least ``n_rows``, ``sums``: float32[LANES], scratch.
    """
    n = 0
    for r in range(n_rows):
        n += _unit_row(view(values, r * every * n_columns, n_columns), n_columns, form, rows[n], sums)
    for i in range(n_columns):
        template[i] = rows[n // 2, i] if n else np.float32(0)
    for step in (4, 1):
        n_some = (n + step - 1) // step
        size = 1
        while size < n_some:
            size *= 2
        for r in range(size if n else 0):
            target = ordered[r]
            if r >= n_some:
                for i in range(n_columns):
                    target[i] = np.float32(np.inf)
            else:
                row = rows[r * step]
                sign = np.float32(-1) if _dot(row, template, n_columns, sums) < np.float32(0) else np.float32(1)
                for i in range(n_columns):
                    target[i] = np.float32(row[i] * sign)
        if n:
            _sort(ordered, size, n_columns)
            low, high = ordered[(n_some - 1) // 2], ordered[n_some // 2]
            for i in range(n_columns):
                template[i] = flush_tiny(np.float32(np.float32(low[i] + high[i]) * np.float32(0.5)))
