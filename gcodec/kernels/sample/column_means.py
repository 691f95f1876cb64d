"""Find column references: how far the heads of a column are from those of their rows (docs/format.md sections 4 and 7).

tensor        column 0   column 1   ...      mean head of the row
row 0         h00 - m0   h01 - m0            m0
row 5         h50 - m5   h51 - m5            m5                        some rows only
reference     the mean of each column, rounded
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import kernel
from ..core.scalar import I8, I32, U32, U64, head_of
from ..core.unaligned import fetch_values, subarray, width_of
from ..heads.means import mean_head

MAX_REFERENCE = 100  #: max size of a reference
GROUP = 64  #: columns that are added up at a time: sampled columns are padded to a multiple of this
FETCHED = 512  #: values that are fetched ahead: rows lie too far apart for the processor to guess
#: Columns of a table of tensors: first value; number of columns; how many of them may share a reference; columns and
#: rows to sample; and every how many rows.
START, N_COLUMNS, N_SHARING, N_SAMPLED, N_ROWS, EVERY = range(6)
#: Columns of its results: values that were counted; the sum of squares of how far their heads are from their row's
#: mean; by how much references take that down, with one for each column, and with one for each N_SHARING.
N_COUNTED, SQUARES, BY_COLUMN, BY_GROUP = range(4)


class RowSample(NamedTuple):
    """The part of a tensor that is summed up by column.

    Attributes:
        n_columns: Number of the tensor's columns.
        n_sampled: How many of its first columns are summed up.
        n_rows: How many rows are.
        every: Stride of these rows.
    """

    n_columns: int
    n_sampled: int
    n_rows: int
    every: int


@kernel
def explained(total, number):
    """Return how much less the squares of some integers sum to once their mean, rounded, is subtracted from each.

    With n integers x and any m, Σ x² - Σ (x - m)² = 2 m Σ x - n m². ``total``: Σ x; ``number``: n.
    """
    # total / number, rounded to the nearest: floor(total / number + 1/2), also where the total is negative.
    mean = (2 * total + number) // max(2 * number, 1)
    return mean * (2 * total - number * mean)


@kernel
def add_row(row, head_shift, head_mask, sums, numbers):
    """Add how far the heads of one row are from their mean to the sums of their columns.

        row        a     b     0     c        mean head of a, b, c: m
        sums      +a-m  +b-m  +0    +c-m
        numbers   +1    +1    +0    +1

    Args:
        row: uintW[n_columns], values.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        sums: int32[n_columns], added to.
        numbers: int32[n_columns], likewise: how many values were added up.

    Returns:
        The sum of the squares of these differences.
    """
    count = len(row)
    column_sums, column_numbers = subarray(sums, 0, count), subarray(numbers, 0, count)
    mean, _ = mean_head(row, head_shift, head_mask)
    mean_32, total = I32(mean), U32(0)
    # Two loops that do the same: in 32 bits, vectors have twice the lanes.
    if width_of(row) <= 32:
        for j in range(count):
            bits = U32(row[j])
            difference = I32(I32(head_of(bits, head_shift, head_mask)) - mean_32)
            difference = difference if bits else I32(0)
            column_sums[j] = I32(column_sums[j] + difference)
            column_numbers[j] = I32(column_numbers[j] + I32(bits != U32(0)))
            total = U32(total + U32(I32(difference * difference)))
    else:
        for j in range(count):
            word = U64(row[j])
            difference_64 = I32(I32(head_of(word, head_shift, head_mask)) - mean_32)
            difference_64 = difference_64 if word else I32(0)
            column_sums[j] = I32(column_sums[j] + difference_64)
            column_numbers[j] = I32(column_numbers[j] + I32(word != U64(0)))
            total = U32(total + U32(I32(difference_64 * difference_64)))
    return np.int64(total)


@kernel
def sum_columns(values, sample, head_shift, head_mask, row, sums, numbers):
    """Add up by column, over a sample of rows, how far heads of values that are not 0 are from their row's mean.

    Args:
        values: uintW, the tensor, row by row.
        sample: Which rows and columns.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        row: uintW[n_sampled, rounded up to a multiple of GROUP], scratch.
        sums: int32, as many, result.
        numbers: int32, as many, result: how many values were added up.

    Returns:
        The sum of the squares of these differences.
    """
    n_columns, count, n_rows, every = sample
    squares, padded, ahead = np.int64(0), (count + GROUP - 1) & ~(GROUP - 1), max(FETCHED // count, 1)
    copy, step = subarray(row, 0, padded), every * n_columns
    for j in range(padded):
        sums[j] = 0
        numbers[j] = 0
        copy[j] = 0
    #     r            -ahead ...  -1        | 0          1              ...
    #     fetched      row 0 ... ahead - 1   | row ahead  row ahead + 1  ...      as far as there are rows
    #     added up                           | row 0      row 1          ...
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
        tensors: int64[n_tensors, 6], columns START to EVERY.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        row: uintW, scratch, for the max number of columns, rounded up to a multiple of GROUP.
        sums: int32, scratch, as many.
        numbers: int32, scratch, as many.
        measured: int64[n_tensors, 4], result, columns N_COUNTED to BY_GROUP.
    """
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, START], tensors[t, N_COLUMNS], tensors[t, N_SHARING]
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
    """Find the column references of tensors: mean head of every N_SHARING columns less that of the row, rounded.

    Arguments are those of :func:`measure_columns`, but that all columns are sampled, whatever N_SAMPLED is, and
    ``heads``: int8, result, the references of one tensor after another.
    """
    place = 0
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, START], tensors[t, N_COLUMNS], tensors[t, N_SHARING]
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
