"""Column references: finding, removing and restoring them (docs/format.md section 7)."""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .means import mean_head
from .memory import view, width_of
from .scalar import I8, I32, I64, NARROW, U16, U32, U64
from .streams import STREAM_PAD

MOST_HEAD = 100  #: a reference's greatest size


@kernel
def fill_columns(spans, heads, start, n, out):
    """Column references of values ``start ... start + n`` of an array, 0 where there are none.

    ``spans``: int64[5 * n]: first and last value, columns, where in ``heads`` (int8) they lie and how many share one;
    ``out``: int8[n], result. Returns whether there are any.
    """
    own, found = view(out, 0, n), False
    for i in range(n):
        own[i] = I8(0)
    for k in range(0, len(spans), 5):
        begin, end = max(spans[k], start), min(spans[k + 1], start + n)
        if begin >= end:
            continue
        found = True
        n_columns, group = spans[k + 2], spans[k + 4]
        column = (begin - spans[k]) % n_columns
        i = begin - start
        while i < end - start:
            count = min(n_columns - column, end - start - i)
            first, last = column // group, (column + count - 1) // group
            row, some = view(heads, spans[k + 3] + first, last - first + 1), view(out, i, count)
            if group == 1:
                for j in range(count):
                    some[j] = row[j]
            else:
                j = 0
                for g in range(last - first + 1):
                    own_end = min((first + g + 1) * group - column, count)
                    while j < own_end:
                        some[j] = row[g]
                        j += 1
            i += count
            column = 0
    return found


@kernel
def remove_columns(values, n, columns, head_shift, head_mask, infinity, out):
    """Values with their columns' references taken off their heads; 0 stays 0.

    ``columns``: int8[n]; ``out``: uintW[n], result. Returns whether the encoder may look at these in place of the
    values: whether no other becomes 0, and none finite that was not or the other way round.
    """
    some, own, result = view(values, 0, n), view(columns, 0, n), view(out, 0, n)
    width = width_of(values)
    if width == 32:
        shift = U32(head_shift) & NARROW
        field, top, magnitude = U32(U32(head_mask) << shift), U32(infinity), U32(0x7FFFFFFF)
        crossed, lost = U32(0), U32(0)  # in its top bit, whether any changed sides of infinity; any that became 0
        for i in range(n):
            bits = U32(some[i])
            moved = U32(bits - U32(U32(own[i]) << shift))
            moved = U32(U32(bits & ~field) | U32(moved & field))
            moved = moved if bits else U32(0)
            crossed = U32(crossed | U32(U32(U32(bits & magnitude) - top) ^ U32(U32(moved & magnitude) - top)))
            lost = U32(lost | U32(U32(0) if moved else bits))
            result[i] = moved
        return U32(crossed >> U32(31)) == 0 and lost == 0
    if width == 16:
        step = U16(1 << head_shift)
        narrow_field, narrow_top, rest = U16(head_mask << head_shift), U16(infinity), U16(0x7FFF)
        narrow_crossed, narrow_lost = U16(0), U16(0)
        for i in range(n):
            short = U16(some[i])
            gone = U16(short - U16(U16(own[i]) * step))
            gone = U16(U16(short & ~narrow_field) | U16(gone & narrow_field))
            gone = gone if short else U16(0)
            before, after = U16(U16(short & rest) - narrow_top), U16(U16(gone & rest) - narrow_top)
            narrow_crossed = U16(narrow_crossed | U16(before ^ after))
            narrow_lost = U16(narrow_lost | U16(U16(0) if gone else short))
            result[i] = gone
        return U16(narrow_crossed >> U16(15)) == 0 and narrow_lost == 0
    wide_field, magnitude = U64(head_mask) << U64(head_shift), (U64(1) << U64(width - 1)) - U64(1)
    bad = False
    for i in range(n):
        word = U64(some[i])
        less = (word & ~wide_field) | ((word - (U64(I64(own[i])) << U64(head_shift))) & wide_field)
        less = less if word else U64(0)
        bad |= (word != U64(0)) != (less != U64(0))
        bad |= ((word & magnitude) < U64(infinity)) != ((less & magnitude) < U64(infinity))
        result[i] = less
    return not bad


@kernel
def restore_columns(out, n, stream, symbols, columns, head_shift, head_mask):
    """Inverse of :func:`remove_columns`, in place: of all values whose symbol is not 0."""
    width, shift, step = width_of(out), U32(head_shift) & NARROW, U16(1 << head_shift)
    for s in range((n + stream - 1) // stream):
        first = s * stream
        count = min(stream, n - first)
        some, own = view(symbols, s * (stream + STREAM_PAD), count), view(columns, first, count)
        result = view(out, first, count)
        if width == 32:
            field = U32(U32(head_mask) << shift)
            for i in range(count):
                bits = U32(result[i])
                moved = U32(bits + U32(U32(own[i]) << shift))
                moved = U32(U32(bits & ~field) | U32(moved & field))
                result[i] = moved if some[i] else bits
        elif width == 16:
            narrow_field = U16(head_mask << head_shift)
            for i in range(count):
                short = U16(result[i])
                gone = U16(short + U16(U16(own[i]) * step))
                gone = U16(U16(short & ~narrow_field) | U16(gone & narrow_field))
                result[i] = gone if some[i] else short
        else:
            wide_field = U64(head_mask) << U64(head_shift)
            for i in range(count):
                word = U64(result[i])
                more = (word & ~wide_field) | ((word + (U64(I64(own[i])) << U64(head_shift))) & wide_field)
                result[i] = more if some[i] else word


@kernel
def explained(total, number):
    """By how much the squares of ``number`` integers that add up to ``total`` sum to less once their mean, rounded, is
    taken off."""
    mean = (2 * total + number) // max(2 * number, 1)
    return mean * (2 * total - number * mean)


@kernel
def sum_columns(values, n_columns, count, n_rows, every, head_shift, head_mask, sums, numbers):
    """Add up, by column, how far heads of some rows are from their row's mean; of values that are not 0.

    ``values``: uintW, rows of ``n_columns``, of which the first ``count`` are looked at, in ``n_rows`` of them, one in
    ``every``; ``sums``, ``numbers``: int32[count], results, zeroed. Returns the sum of squares.
    """
    squares, own, many = np.int64(0), view(sums, 0, count), view(numbers, 0, count)
    for r in range(n_rows):
        row = view(values, r * every * n_columns, count)
        mean, _ = mean_head(row, head_shift, head_mask)
        middle, total = I32(mean), U32(0)
        if width_of(values) <= 32:
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
        squares += np.int64(total)
    return squares


@kernel
def measure_columns(values, tensors, head_shift, head_mask, sums, numbers, found):
    """How much of the variance of heads within rows is that of their columns.

    ``tensors``: int64[n, 6], of each: first value, columns, how many belong together, columns to look at, rows to look
    at, every how many rows; ``sums``, ``numbers``: int32, scratch for the most columns; ``found``: int64[n, 4],
    results: values that were counted, sum of squares, and by how much column references take it down, one per column
    and one per group.
    """
    for t in range(len(tensors)):
        start, n_columns, group = tensors[t, 0], tensors[t, 1], tensors[t, 2]
        count, n_rows, every = tensors[t, 3], tensors[t, 4], tensors[t, 5]
        for j in range(count):
            sums[j] = 0
            numbers[j] = 0
        some = view(values, start, (n_rows - 1) * every * n_columns + count)
        found[t, 1] = sum_columns(some, n_columns, count, n_rows, every, head_shift, head_mask, sums, numbers)
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
def find_heads(values, tensors, head_shift, head_mask, sums, numbers, heads):
    """Column references of tensors: mean head of every ``group`` columns less that of the row, rounded.

    ``tensors``: as in :func:`measure_columns`, all columns looked at; ``heads``: int8, results, one tensor after
    another.
    """
    place = 0
    for t in range(len(tensors)):
        start, n_columns, group, n_rows, every = (
            tensors[t, 0],
            tensors[t, 1],
            tensors[t, 2],
            tensors[t, 4],
            tensors[t, 5],
        )
        for j in range(n_columns):
            sums[j] = 0
            numbers[j] = 0
        some = view(values, start, ((n_rows - 1) * every + 1) * n_columns)
        sum_columns(some, n_columns, n_columns, n_rows, every, head_shift, head_mask, sums, numbers)
        for first in range(0, n_columns, group):
            total, number = np.int64(0), np.int64(0)
            for j in range(first, first + group):
                total += sums[j]
                number += numbers[j]
            mean = (2 * total + number) // max(2 * number, 1)
            heads[place] = I8(min(max(mean, -MOST_HEAD), MOST_HEAD))
            place += 1
