"""Find column references: how far the heads of a column are from those of their rows (docs/format.md sections 4 and 7).

tensor        column 0   column 1   ...      mean head of the row
row 0         h00 - m0   h01 - m0            m0
row 5         h50 - m5   h51 - m5            m5                        some rows only
reference     the mean of each column, rounded
"""

from __future__ import annotations

from math import log2
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
#: Columns of its results: the bits that references promise to save, with one for each column, and with one for each
#: N_SHARING.
BY_COLUMN, BY_GROUP = range(2)
RECORD_BITS, HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
STEP_VARIANCE = 1 / 12  #: of what rounding to whole heads leaves out


class ColumnTensors(NamedTuple):
    """Tensors whose columns may get references, and what these must save.

    Attributes:
        tensors: int64[n, 6], columns START to EVERY.
        share: float64[n], the share of the values that is sampled.
        n_heads: int64[n, 2], references by BY_COLUMN and BY_GROUP.
        min_gain: float64[n], by a value's bits, the fewest bits that references must promise to save.
    """

    tensors: np.ndarray
    share: np.ndarray
    n_heads: np.ndarray
    min_gain: np.ndarray


class ColumnScratch(NamedTuple):
    """Working memory for the max number of columns, rounded up to a multiple of GROUP.

    Attributes:
        row: uintW.
        sums: int32.
        numbers: int32.
    """

    row: np.ndarray
    sums: np.ndarray
    numbers: np.ndarray


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
def sum_columns(values, sample, head_shift, head_mask, scratch):
    """Add up by column, over a sample of rows, how far heads of values that are not 0 are from their row's mean.

    Args:
        values: uintW, the tensor, row by row.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        scratch: See :class:`ColumnScratch`; ``sums``, and ``numbers``, how many values were added up, are results.

    Returns:
        The sum of the squares of these differences.
    """
    n_columns, count, n_rows, every = sample
    squares, padded, ahead = np.int64(0), (count + GROUP - 1) & ~(GROUP - 1), max(FETCHED // count, 1)
    copy, sums, numbers, step = subarray(scratch.row, 0, padded), scratch.sums, scratch.numbers, every * n_columns
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
def _gain(by_references, squares, number, share, n_heads):
    """Return the bits that references promise to save, as if heads were distributed normally: of a quarter of the
    variance, they take a bit less.

    Args:
        by_references: By how much they take the sum of squares down.
        squares: That sum, of how far heads are from their row's mean.
        number: How many heads were counted, 1 at least.
        share: The share of the values that is sampled.
    """
    # To code a number that is distributed normally takes log2 of its standard deviation, but for a constant: so it is
    # half of the logarithm by which the variance falls.
    variance = squares / number + STEP_VARIANCE
    bits = log2(variance / (variance - by_references / number)) / 2
    return bits * (number / share) - HEAD_BITS * n_heads - RECORD_BITS


@kernel
def weigh_columns(values, columns, head_shift, head_mask, scratch, gains):
    """Measure how much of the variance of heads within rows is that of their columns, and what that is worth.

    Args:
        values: uintW, the array.
        columns: See :class:`ColumnTensors`.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        scratch: See :class:`ColumnScratch`.
        gains: float64[n_tensors, 2], result.

    Returns:
        Whether the references of any tensor promise to save enough.
    """
    tensors, any_promised = columns.tensors, False
    sums, numbers = scratch.sums, scratch.numbers
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, START], tensors[t, N_COLUMNS], tensors[t, N_SHARING]
        count, n_rows, every = tensors[t, N_SAMPLED], tensors[t, N_ROWS], tensors[t, EVERY]
        tensor = subarray(values, start, (n_rows - 1) * every * n_columns + count)
        sample = RowSample(n_columns, count, n_rows, every)
        squares = sum_columns(tensor, sample, head_shift, head_mask, scratch)
        total, single, joint, group_sum, group_number = np.int64(0), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for j in range(count):
            total += numbers[j]
            single += explained(np.int64(sums[j]), np.int64(numbers[j]))
            group_sum += sums[j]
            group_number += numbers[j]
            if (j + 1) % group == 0:
                joint += explained(group_sum, group_number)
                group_sum, group_number = np.int64(0), np.int64(0)
        # Nothing is sampled but zeros where `total` is 0: then nothing is gained, by the same formula.
        by_column = _gain(single, squares, max(total, 1), columns.share[t], columns.n_heads[t, BY_COLUMN])
        by_group = _gain(joint, squares, max(total, 1), columns.share[t], columns.n_heads[t, BY_GROUP])
        gains[t, BY_COLUMN], gains[t, BY_GROUP] = by_column, by_group
        any_promised |= max(by_column, by_group) > width_of(values) * columns.min_gain[t]
    return any_promised


@kernel
def find_column_heads(values, tensors, head_shift, head_mask, scratch, heads):
    """Find the column references of tensors: mean head of every N_SHARING columns less that of the row, rounded.

    Args:
        values: uintW, the array.
        tensors: int64[n_tensors, 6], columns START to EVERY; all columns are sampled, whatever N_SAMPLED is.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        scratch: See :class:`ColumnScratch`.
        heads: int8, result, the references of one tensor after another.
    """
    place, sums, numbers = 0, scratch.sums, scratch.numbers
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, START], tensors[t, N_COLUMNS], tensors[t, N_SHARING]
        n_rows, every = tensors[t, N_ROWS], tensors[t, EVERY]
        tensor = subarray(values, start, ((n_rows - 1) * every + 1) * n_columns)
        sum_columns(tensor, RowSample(n_columns, n_columns, n_rows, every), head_shift, head_mask, scratch)
        for first in range(0, n_columns, group):
            total, number = np.int64(0), np.int64(0)
            for j in range(first, first + group):
                total += sums[j]
                number += numbers[j]
            # To the nearest integer, of negative sums, too; 0 of a column of zeros.
            mean = (2 * total + number) // max(2 * number, 1)
            heads[place] = I8(min(max(mean, -MAX_REFERENCE), MAX_REFERENCE))
            place += 1
