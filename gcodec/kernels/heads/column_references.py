"""Remove column references from heads and restore them, and pack them as in a record (docs/format.md sections 4 and 7).

tensor        column 0   column 1   column 2   ...
references       +3         -1          0             one for each column, or for each group of columns
row 0         h00 - 3    h01 + 1    h02               heads as they are coded
row 1         h10 - 3    h11 + 1    h12
"""

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

        array         ....|first span: rows of n_columns...|......|second span....|....
        values             start |<------------- n ------------->|

    Args:
        spans: int64[5 * n_spans], tensors with references, in the order of their values: of each its first value, the
            one behind its last, its number of columns, where in ``heads`` its references begin, and how many columns
            share one.
        heads: int8, references of all spans.
        start: Number of the first value.
        out: int8[n], result.

    Returns:
        Whether any of the values lies in a span.
    """
    result, any_span = subarray(out, 0, n), False
    for i in range(n):
        result[i] = I8(0)
    low, high = 0, len(spans) // 5
    while low < high:  # a binary search for the first span that ends behind the start
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
        # Row by row of the span, of which the first begins in some column. Rows are copied by loops without a division
        # for each value, and the usual case, a reference for each column, as a whole.
        while i < end - start:
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
    """Subtract column references from the heads of values, by :func:`scalar.add_to_head`; a value of 0 stays 0.

    Args:
        values: uintW[n].
        columns: int8[n], the reference of each value.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        infinity: uint64, bits of infinity, or 0 where it does not matter which values are finite.
        out: uintW[n], result.

    Returns:
        Whether the encoder may use the result in place of the values: no other value has become 0, whose symbol is
        another, and none has become finite or ceased to be, which its level depends on.
    """
    # Whether the result can be used is found out over all values, without a way out of the loop, so that it becomes one
    # of vectors: it can, but for a few blocks.
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
    # magnitude - infinity      1xxx...    negative: the value is finite
    #                           0xxx...    it is not
    # before ^ after            1xxx...    it has changed sides; ORed over all values, so that no loop has a branch
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
    """Add column references to the heads of values, in place: the inverse of :func:`remove_columns`.

    Args:
        out: uintW[n], the values.
        stream_len: Values per sub-stream.
        symbols: uint8, strided; values whose symbol is 0 are left as they are.
        columns: int8[n], the reference of each value.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
    """
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
    """Pack references as they lie in a record: each less the min, in as many bits as the max then needs.

    Args:
        heads: int8[n], references.
        out: uint8[n], result.

    Returns:
        The min, the bits of each number, and the number of bytes.
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
    """Unpack references: the inverse of :func:`pack_heads`.

        window    ...ccccbbbb    bits that are read but not used yet, at most 7 + 8; the next number is the lowest

    Args:
        data: uint8.
        at: Byte at which the packed numbers begin.
        width: Bits of each, at most 8.
        min_head: The min of all references, which is added to each number.
        heads: int8[n], result.

    Returns:
        The max of all references, which may be more than an int8 holds: then the record is not legal.
    """
    window, filled, max_head = np.int64(0), 0, np.int64(min_head)
    for i in range(len(heads)):
        # Widths are 8 at most, so one byte more is always enough; none is read beyond the last number's.
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
