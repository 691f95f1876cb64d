"""Column references: finding, removing and restoring them (docs/format.md section 7)."""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .memory import view, width_of
from .scalar import I8, I64, U16, U32, U64
from .streams import STREAM_PAD


@kernel
def fill_columns(spans, heads, start, n, out):
    """Column references of values ``start ... start + n`` of an array, 0 where there are none.

    ``spans``: int64[n, 4]: first and last value, columns and where in ``heads`` (int8) they lie; ``out``: int8[n],
    result. Returns whether there are any.
    """
    own, found = view(out, 0, n), False
    for i in range(n):
        own[i] = I8(0)
    for k in range(len(spans)):
        begin, end = max(spans[k, 0], start), min(spans[k, 1], start + n)
        if begin >= end:
            continue
        found = True
        n_columns = spans[k, 2]
        column = (begin - spans[k, 0]) % n_columns
        i = begin - start
        while i < end - start:
            count = min(n_columns - column, end - start - i)
            row, some = view(heads, spans[k, 3] + column, count), view(out, i, count)
            for j in range(count):
                some[j] = row[j]
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
        field = U32(U32(head_mask) << U32(head_shift))
        top, wrong = U32(infinity), U32(0)
        for i in range(n):
            bits = U32(some[i])
            moved = U32(bits - U32(U32(own[i]) << U32(head_shift)))
            moved = U32((bits & ~field) | (moved & field))
            moved = moved if bits else U32(0)
            wrong |= U32((bits != U32(0)) != (moved != U32(0)))
            wrong |= U32((U32(bits & U32(0x7FFFFFFF)) < top) != (U32(moved & U32(0x7FFFFFFF)) < top))
            result[i] = moved
        return wrong == 0
    if width == 16:
        narrow_field = U16(head_mask << head_shift)
        narrow_top, narrow_wrong = U16(infinity), U16(0)
        for i in range(n):
            short = U16(some[i])
            gone = U16(short - U16(U16(own[i]) << U16(head_shift)))
            gone = U16((short & ~narrow_field) | (gone & narrow_field))
            gone = gone if short else U16(0)
            narrow_wrong |= U16((short != U16(0)) != (gone != U16(0)))
            narrow_wrong |= U16((U16(short & U16(0x7FFF)) < narrow_top) != (U16(gone & U16(0x7FFF)) < narrow_top))
            result[i] = gone
        return narrow_wrong == 0
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
    width = width_of(out)
    for s in range((n + stream - 1) // stream):
        first = s * stream
        count = min(stream, n - first)
        some, own = view(symbols, s * (stream + STREAM_PAD), count), view(columns, first, count)
        result = view(out, first, count)
        if width == 32:
            field = U32(U32(head_mask) << U32(head_shift))
            for i in range(count):
                bits = U32(result[i])
                moved = U32(bits + U32(U32(own[i]) << U32(head_shift)))
                moved = U32((bits & ~field) | (moved & field))
                result[i] = moved if some[i] else bits
        elif width == 16:
            narrow_field = U16(head_mask << head_shift)
            for i in range(count):
                short = U16(result[i])
                gone = U16(short + U16(U16(own[i]) << U16(head_shift)))
                gone = U16((short & ~narrow_field) | (gone & narrow_field))
                result[i] = gone if some[i] else short
        else:
            wide_field = U64(head_mask) << U64(head_shift)
            for i in range(count):
                word = U64(result[i])
                more = (word & ~wide_field) | ((word + (U64(I64(own[i])) << U64(head_shift))) & wide_field)
                result[i] = more if some[i] else word


@kernel
def mean_of_row(values, heads, group, head_shift, head_mask):
    """Mean of a row's heads less their columns' ``heads`` (int8, one per ``group`` of columns, or None), of values that
    are not 0, rounded down, and how many these are."""
    total, number = 0, 0
    for j in range(len(values)):
        if values[j]:
            total += np.int64(U64(values[j]) >> U64(head_shift)) & head_mask
            number += 1
            if heads is not None:
                total -= np.int64(heads[j // group])
    return total // max(number, 1), number


@kernel
def fit_columns(values, n_columns, rows, group, head_shift, head_mask, sums, numbers, heads, plain, relative):
    """Column references from some rows, and what they would save these.

    ``values``: uintW, rows of ``n_columns``; ``rows``: int64, which rows to look at; ``sums``, ``numbers``:
    int64[n_columns / group], zeroed; ``heads``: int8[n_columns / group], result; ``plain``, ``relative``: uint32[512],
    results, zeroed: histograms of heads less their row's mean, and less the column's reference as well.
    Returns how many values were counted.
    """
    for r in range(len(rows)):
        row = view(values, rows[r] * n_columns, n_columns)
        mean, _ = mean_of_row(row, None, group, head_shift, head_mask)
        for j in range(n_columns):
            if row[j]:
                head = (np.int64(U64(row[j]) >> U64(head_shift)) & head_mask) - mean
                sums[j // group] += head
                numbers[j // group] += 1
                plain[min(max(head + 256, 0), 511)] += U32(1)
    for g in range(len(heads)):
        count = max(numbers[g], 1)
        heads[g] = I8(min(max((2 * sums[g] + count) // (2 * count), -100), 100))
    total = 0
    for r in range(len(rows)):
        row = view(values, rows[r] * n_columns, n_columns)
        mean, number = mean_of_row(row, heads, group, head_shift, head_mask)
        total += number
        for j in range(n_columns):
            if row[j]:
                head = (np.int64(U64(row[j]) >> U64(head_shift)) & head_mask) - mean - np.int64(heads[j // group])
                relative[min(max(head + 256, 0), 511)] += U32(1)
    return total
