"""Finding column references: how far the heads of a column are from those of their rows (docs/format.md section 7)."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import I8, I32, NARROW, U32, U64
from ..core.unaligned import fetch_values, view, width_of
from ..heads.means import mean_head

MAX_REFERENCE = 100  #: a reference's greatest size
GROUP = 64  #: columns that are added up together
FETCHED = 512  #: values that are fetched ahead: rows lie too far apart for the processor to guess


@kernel
def explained(total, number):
    """By how much the squares of ``number`` integers that add up to ``total`` sum to less once their mean, rounded, is
    taken off."""
    mean = (2 * total + number) // max(2 * number, 1)
    return mean * (2 * total - number * mean)


@kernel
def add_row(row, head_shift, head_mask, sums, numbers):
    """Add to ``sums`` and ``numbers``, int32 for each column, how far heads are from their mean, and whether there is
    one: of values that are not 0. Returns the sum of squares."""
    count = len(row)
    own, many = view(sums, 0, count), view(numbers, 0, count)
    mean, _ = mean_head(row, head_shift, head_mask)
    middle, total = I32(mean), U32(0)
    if width_of(row) <= 32:
        shift, mask = U32(head_shift) & NARROW, U32(head_mask)
        for j in range(count):
            bits = U32(row[j])
            far = I32(I32((bits >> shift) & mask) - middle)
            far = far if bits else I32(0)
            own[j] = I32(own[j] + far)
            many[j] = I32(many[j] + I32(bits != U32(0)))
            total = U32(total + U32(I32(far * far)))
    else:
        for j in range(count):
            word = U64(row[j])
            away = I32(I32((word >> U64(head_shift)) & U64(head_mask)) - middle)
            away = away if word else I32(0)
            own[j] = I32(own[j] + away)
            many[j] = I32(many[j] + I32(word != U64(0)))
            total = U32(total + U32(I32(away * away)))
    return np.int64(total)


@kernel
def sum_columns(values, n_columns, count, n_rows, every, head_shift, head_mask, row, sums, numbers):
    """Add up, by column, how far heads of some rows are from their row's mean; of values that are not 0.

    ``values``: uintW, rows of ``n_columns``, of which the first ``count`` are looked at, in ``n_rows`` of them, one in
    ``every``; ``sums``, ``numbers``: int32, results of all columns; ``row``: uintW, scratch: like these for ``count``
    and up to a multiple of GROUP. Returns the sum of squares.
    """
    squares, padded, ahead = np.int64(0), (count + GROUP - 1) & ~(GROUP - 1), max(FETCHED // count, 1)
    copy, step = view(row, 0, padded), every * n_columns
    for j in range(padded):
        sums[j] = 0
        numbers[j] = 0
        copy[j] = 0
    for r in range(-ahead, n_rows):
        if r + ahead < n_rows:
            fetch_values(values, (r + ahead) * step, count)
        if r >= 0:
            some = view(values, r * step, count)
            if padded > count:  # zeros count for nothing, and vectors are whole
                for j in range(count):
                    copy[j] = some[j]
                some = copy
            squares += add_row(some, head_shift, head_mask, sums, numbers)
    return squares


@kernel
def measure_columns(values, tensors, head_shift, head_mask, row, sums, numbers, found):
    """How much of the variance of heads within rows is that of their columns.

    ``tensors``: int64[n, 6], of each: first value, columns, how many belong together, columns to look at, rows to look
    at, every how many rows; ``row``: uintW, and ``sums``, ``numbers``: int32, scratch for the most columns and up to a
    multiple of GROUP; ``found``: int64[n, 4], results: values that were counted, sum of squares, and by how much column
    references take it down, one per column and one per group.
    """
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, 0], tensors[t, 1], tensors[t, 2]
        count, n_rows, every = tensors[t, 3], tensors[t, 4], tensors[t, 5]
        some = view(values, start, (n_rows - 1) * every * n_columns + count)
        found[t, 1] = sum_columns(some, n_columns, count, n_rows, every, head_shift, head_mask, row, sums, numbers)
        total, single, joint, group_sum, group_number = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for j in range(count):
            total += numbers[j]
            single += explained(np.int64(sums[j]), np.int64(numbers[j]))
            group_sum += sums[j]
            group_number += numbers[j]
            if (j + 1) % group == 0:
                joint += explained(group_sum, group_number)
                group_sum, group_number = np.int64(0), np.int64(0)
        found[t, 0], found[t, 2], found[t, 3] = total, single, joint


@kernel
def find_column_heads(values, tensors, head_shift, head_mask, row, sums, numbers, heads):
    """Column references of tensors: mean head of every ``group`` columns less that of the row, rounded.

    ``tensors``, ``row``, ``sums``, ``numbers``: as in :func:`measure_columns`, all columns looked at; ``heads``: int8,
    results, one tensor after another.
    """
    place = 0
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, 0], tensors[t, 1], tensors[t, 2]
        n_rows, every = tensors[t, 4], tensors[t, 5]
        some = view(values, start, ((n_rows - 1) * every + 1) * n_columns)
        sum_columns(some, n_columns, n_columns, n_rows, every, head_shift, head_mask, row, sums, numbers)
        for first in range(0, n_columns, group):
            total, number = np.int64(0), np.int64(0)
            for j in range(first, first + group):
                total += sums[j]
                number += numbers[j]
            mean = (2 * total + number) // max(2 * number, 1)
            heads[place] = I8(min(max(mean, -MAX_REFERENCE), MAX_REFERENCE))
            place += 1
