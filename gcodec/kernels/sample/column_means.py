"""Find column references: how far the heads of a column are from those of their rows (docs/format.md section 7)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import kernel
from ..core.scalar import I8, I32, NARROW, U32, U64
from ..core.unaligned import fetch_values, subarray, width_of
from ..heads.means import mean_head

MAX_REFERENCE = 100  #: a reference's greatest size
GROUP = 64  #: columns that are added up together
FETCHED = 512  #: values that are fetched ahead: rows lie too far apart for the processor to guess
START, N_COLUMNS, TOGETHER, N_SAMPLED, N_ROWS, EVERY = range(6)  #: columns of a table of tensors
N_COUNTED, SQUARES, BY_COLUMN, BY_GROUP = range(4)  #: columns of its results


class RowSample(NamedTuple):
    """The part of a tensor that is summed up by column.

    Attributes:
        n_columns: of the tensor.
        n_sampled: its first columns, which are summed up.
        n_rows: rows that are.
        every: one row in so many is among them.
    """

    n_columns: int
    n_sampled: int
    n_rows: int
    every: int


@kernel
def explained(total, number):
    """Return by how much the squares of ``number`` integers that add up to ``total`` sum to less once their mean,
    rounded, is taken off: with n integers x of the mean m, Σ x² - Σ (x - m)² = 2 m Σ x - n m²."""
    mean = (2 * total + number) // max(2 * number, 1)
    return mean * (2 * total - number * mean)


@kernel
def add_row(row, head_shift, head_mask, sums, numbers):
    """Add to ``sums`` and ``numbers``, int32 for each column, how far heads are from their row's mean, and 1; nothing
    for values that are 0. Returns the sum of squares.

        row        a     b     0     c        mean head of a, b, c: m
        sums      +a-m  +b-m  +0    +c-m
        numbers   +1    +1    +0    +1
    """
    count = len(row)
    column_sums, column_numbers = subarray(sums, 0, count), subarray(numbers, 0, count)
    mean, _ = mean_head(row, head_shift, head_mask)
    middle, total = I32(mean), U32(0)
    if width_of(row) <= 32:
        shift, mask = U32(head_shift) & NARROW, U32(head_mask)
        for j in range(count):
            bits = U32(row[j])
            far = I32(I32((bits >> shift) & mask) - middle)
            far = far if bits else I32(0)
            column_sums[j] = I32(column_sums[j] + far)
            column_numbers[j] = I32(column_numbers[j] + I32(bits != U32(0)))
            total = U32(total + U32(I32(far * far)))
    else:
        for j in range(count):
            word = U64(row[j])
            away = I32(I32((word >> U64(head_shift)) & U64(head_mask)) - middle)
            away = away if word else I32(0)
            column_sums[j] = I32(column_sums[j] + away)
            column_numbers[j] = I32(column_numbers[j] + I32(word != U64(0)))
            total = U32(total + U32(I32(away * away)))
    return np.int64(total)


@kernel
def sum_columns(values, sample, head_shift, head_mask, row, sums, numbers):
    """Add up, by column, how far heads of a sample of rows are from their row's mean; of values that are not 0.

    Args:
        values: uintW, the tensor.
        sample: a :class:`RowSample`.
        head_shift, head_mask: where the head lies in a value.
        row: uintW, scratch: for n_sampled columns and up to a multiple of GROUP.
        sums: int32, likewise, result.
        numbers: int32, likewise, result: how many values were summed up.

    Returns:
        The sum of squares.
    """
    n_columns, count, n_rows, every = sample
    squares, padded, ahead = np.int64(0), (count + GROUP - 1) & ~(GROUP - 1), max(FETCHED // count, 1)
    copy, step = subarray(row, 0, padded), every * n_columns
    for j in range(padded):
        sums[j] = 0
        numbers[j] = 0
        copy[j] = 0
    for r in range(-ahead, n_rows):
        if r + ahead < n_rows:
            fetch_values(values, (r + ahead) * step, count)
        if r >= 0:
            part = subarray(values, r * step, count)
            if padded > count:  # zeros count for nothing, and vectors are whole
                for j in range(count):
                    copy[j] = part[j]
                part = copy
            squares += add_row(part, head_shift, head_mask, sums, numbers)
    return squares


@kernel
def measure_columns(values, tensors, head_shift, head_mask, row, sums, numbers, measured):
    """Measure how much of the variance of heads within rows is that of their columns.

    Args:
        values: uintW, the array.
        tensors: int64[n, 6], of each: first value, columns, how many of them may share a reference (TOGETHER), columns
            and rows to sample, and every how many rows.
        head_shift, head_mask: where the head lies in a value.
        row, sums, numbers: uintW, int32, int32, scratch for the most columns and up to a multiple of GROUP.
        measured: int64[n, 4], result, of each: values that were counted, the sum of squares of what their heads are
            from their row's mean, and by how much references take that down: one per column, one per TOGETHER.
    """
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, START], tensors[t, N_COLUMNS], tensors[t, TOGETHER]
        count, n_rows, every = tensors[t, N_SAMPLED], tensors[t, N_ROWS], tensors[t, EVERY]
        tensor = subarray(values, start, (n_rows - 1) * every * n_columns + count)
        sample = RowSample(n_columns, count, n_rows, every)
        measured[t, SQUARES] = sum_columns(tensor, sample, head_shift, head_mask, row, sums, numbers)
        total, single, joint, group_sum, group_number = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for j in range(count):
            total += numbers[j]
            single += explained(np.int64(sums[j]), np.int64(numbers[j]))
            group_sum += sums[j]
            group_number += numbers[j]
            if (j + 1) % group == 0:
                joint += explained(group_sum, group_number)
                group_sum, group_number = np.int64(0), np.int64(0)
        measured[t, N_COUNTED], measured[t, BY_COLUMN], measured[t, BY_GROUP] = total, single, joint


@kernel
def find_column_heads(values, tensors, head_shift, head_mask, row, sums, numbers, heads):
    """Find the column references of tensors: mean head of every TOGETHER columns less that of the row, rounded.

    Args:
        values, tensors, head_shift, head_mask, row, sums, numbers: as in :func:`measure_columns`; all columns are
            sampled.
        heads: int8, result, one tensor after another.
    """
    place = 0
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, START], tensors[t, N_COLUMNS], tensors[t, TOGETHER]
        n_rows, every = tensors[t, N_ROWS], tensors[t, EVERY]
        tensor = subarray(values, start, ((n_rows - 1) * every + 1) * n_columns)
        sample = RowSample(n_columns, n_columns, n_rows, every)
        sum_columns(tensor, sample, head_shift, head_mask, row, sums, numbers)
        for first in range(0, n_columns, group):
            total, number = np.int64(0), np.int64(0)
            for j in range(first, first + group):
                total += sums[j]
                number += numbers[j]
            mean = (2 * total + number) // max(2 * number, 1)
            heads[place] = I8(min(max(mean, -MAX_REFERENCE), MAX_REFERENCE))
            place += 1
