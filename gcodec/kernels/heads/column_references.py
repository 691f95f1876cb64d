"""Column references: removing and restoring them, and how they lie in a record (docs/format.md sections 7 and 4)."""

from __future__ import annotations

import numpy as np

from ..block.header import pack_numbers
from ..core.jit import kernel
from ..core.scalar import I8, I64, add_to_head, shift_right, wrap
from ..core.unaligned import subarray, width_of
from ..entropy.encode_streams import STREAM_PAD


@kernel
def fill_columns(spans, heads, start, n, out):
    """Fill in the column references of values ``start ... start + n`` of an array, 0 where there are none.

    Args:
        spans: int64[5 * n_spans]: first and last value, columns, where in ``heads`` they lie and how many share one.
        heads: int8, references of all spans.
        start: First value.
        n: Number of values.
        out: int8[n], result.

    Returns:
        Whether there are any.
    """
    result, any_span = subarray(out, 0, n), False
    for i in range(n):
        result[i] = I8(0)
    low, high = 0, len(spans) // 5
    while low < high:  # spans rise: the first that ends behind the start
        middle = (low + high) >> 1
        if spans[5 * middle + 1] > start:
            high = middle
        else:
            low = middle + 1
    for k in range(5 * low, len(spans), 5):
        begin, end = max(spans[k], start), min(spans[k + 1], start + n)
        if begin >= end:
            break
        any_span = True
        n_columns, group = spans[k + 2], spans[k + 4]
        column = (begin - spans[k]) % n_columns
        i = begin - start
        while i < end - start:  # row by row of the span, the first from some column on
            count = min(n_columns - column, end - start - i)
            first, last = column // group, (column + count - 1) // group
            row, part = subarray(heads, spans[k + 3] + first, last - first + 1), subarray(out, i, count)
            if group == 1:
                for j in range(count):
                    part[j] = row[j]
            else:
                j = 0
                for g in range(last - first + 1):
                    group_end = min((first + g + 1) * group - column, count)
                    while j < group_end:
                        part[j] = row[g]
                        j += 1
            i += count
            column = 0
    return any_span


@kernel
def remove_columns(values, n, columns, head_shift, head_mask, infinity, out):
    """Take columns' references off the heads of values, by :func:`scalar.add_to_head`; 0 stays 0.

    Args:
        values: uintW[n].
        n: Number of values.
        columns: int8[n], the references.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        infinity: Bits of infinity, or 0 where it does not matter which values are finite.
        out: uintW[n], result.

    Returns:
        Whether the encoder may use the result in place of the values: whether no other becomes 0, and none finite that
        was not or the other way round.
    """
    source, references, result = subarray(values, 0, n), subarray(columns, 0, n), subarray(out, 0, n)
    width = width_of(values)
    zero = wrap(0, result[0])
    lost = zero  # any value that has become 0
    if infinity == 0:
        for i in range(n):
            moved = add_to_head(source[i], -I64(references[i]), head_shift, head_mask)
            moved = moved if source[i] else zero
            lost = wrap(lost | (zero if moved else source[i]), zero)
            result[i] = moved
        return lost == 0
    # A magnitude less infinity has its top bit set where the value is finite. What differs in that bit from what it was
    # has changed sides.
    top, magnitude = wrap(infinity, zero), shift_right(wrap(-1, zero), 1)
    crossed = zero
    for i in range(n):
        moved = add_to_head(source[i], -I64(references[i]), head_shift, head_mask)
        moved = moved if source[i] else zero
        before, after = wrap((source[i] & magnitude) - top, zero), wrap((moved & magnitude) - top, zero)
        crossed = wrap(crossed | (before ^ after), zero)
        lost = wrap(lost | (zero if moved else source[i]), zero)
        result[i] = moved
    return shift_right(crossed, width - 1) == 0 and lost == 0


@kernel
def restore_columns(out, n, stream_len, symbols, columns, head_shift, head_mask):
    """Undo :func:`remove_columns` in place, for all values whose symbol is not 0."""
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        count = min(stream_len, n - first)
        stream_symbols = subarray(symbols, s * (stream_len + STREAM_PAD), count)
        references, result = subarray(columns, first, count), subarray(out, first, count)
        for i in range(count):
            moved = add_to_head(result[i], references[i], head_shift, head_mask)
            result[i] = moved if stream_symbols[i] else result[i]


@kernel
def pack_heads(heads, out):
    """Pack references as they lie in a record: less the least of them, each in as many bits as the greatest then needs.

    Args:
        heads: int8[n].
        out: uint8[n], result.

    Returns:
        (the least, bits of each, bytes).
    """
    min_head, max_head = np.int64(heads[0]), np.int64(heads[0])
    for i in range(1, len(heads)):
        min_head, max_head = min(min_head, np.int64(heads[i])), max(max_head, np.int64(heads[i]))
    width = 0
    while (max_head - min_head) >> width:
        width += 1
    return min_head, width, pack_numbers(heads, len(heads), min_head, width, out, 0)


@kernel
def unpack_heads(data, at, width, min_head, heads):
    """Unpack what :func:`pack_heads` has packed.

    Args:
        data: uint8.
        at: Byte at which the packed references begin.
        width: Bits of each, at most 8.
        min_head: The least reference.
        heads: int8[n], result.

    Returns:
        The greatest reference, which may be more than an int8 holds.
    """
    window, filled, max_head = np.int64(0), 0, np.int64(min_head)
    for i in range(len(heads)):
        if filled < width:
            window |= np.int64(data[at]) << filled
            at += 1
            filled += 8
        head = min_head + (window & ((1 << width) - 1))
        window >>= width
        filled -= width
        max_head = max(max_head, head)
        heads[i] = I8(head)
    return max_head
