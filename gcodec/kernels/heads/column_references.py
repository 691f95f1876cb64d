"""Column references: removing and restoring them, and how they lie in a record (docs/format.md sections 7 and 4)."""

from __future__ import annotations

import numpy as np

from ..block.header import pack_numbers
from ..core.jit import kernel
from ..core.scalar import I8, I64, NARROW, U16, U32, U64
from ..core.unaligned import subarray, width_of
from ..entropy.encode_streams import STREAM_PAD


@kernel
def fill_columns(spans, heads, start, n, out):
    """Column references of values ``start ... start + n`` of an array, 0 where there are none.

    ``spans``: int64[5 * n]: first and last value, columns, where in ``heads`` (int8) they lie and how many share one;
    ``out``: int8[n], result. Returns whether there are any.
    """
    own, found = subarray(out, 0, n), False
    for i in range(n):
        own[i] = I8(0)
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
        found = True
        n_columns, group = spans[k + 2], spans[k + 4]
        column = (begin - spans[k]) % n_columns
        i = begin - start
        while i < end - start:
            count = min(n_columns - column, end - start - i)
            first, last = column // group, (column + count - 1) // group
            row, some = subarray(heads, spans[k + 3] + first, last - first + 1), subarray(out, i, count)
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
    some, own, result = subarray(values, 0, n), subarray(columns, 0, n), subarray(out, 0, n)
    width = width_of(values)
    if width == 32:
        shift = U32(head_shift) & NARROW
        field, top, magnitude = U32(U32(head_mask) << shift), U32(infinity), U32(0x7FFFFFFF)
        crossed, lost = U32(0), U32(0)  # in its top bit, whether any changed sides of infinity; any that became 0
        if top == 0:  # which nobody asks about
            for i in range(n):
                bits = U32(some[i])
                moved = U32(bits - U32(U32(own[i]) << shift))
                moved = U32(U32(bits & ~field) | U32(moved & field))
                moved = moved if bits else U32(0)
                lost = U32(lost | U32(U32(0) if moved else bits))
                result[i] = moved
            return lost == 0
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
def restore_columns(out, n, stream_len, symbols, columns, head_shift, head_mask):
    """Inverse of :func:`remove_columns`, in place: of all values whose symbol is not 0."""
    width, shift, step = width_of(out), U32(head_shift) & NARROW, U16(1 << head_shift)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        count = min(stream_len, n - first)
        some, own = subarray(symbols, s * (stream_len + STREAM_PAD), count), subarray(columns, first, count)
        result = subarray(out, first, count)
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
def pack_heads(heads, out):
    """References as they lie in a record: less the least of them, each in as many bits as the greatest then needs.

    ``heads``: int8[n]; ``out``: uint8[n], result. Returns (the least, bits of each, bytes)."""
    least, most = np.int64(heads[0]), np.int64(heads[0])
    for i in range(1, len(heads)):
        least, most = min(least, np.int64(heads[i])), max(most, np.int64(heads[i]))
    width = 0
    while (most - least) >> width:
        width += 1
    return least, width, pack_numbers(heads, len(heads), least, width, out, 0)


@kernel
def unpack_heads(data, at, width, least, heads):
    """Inverse of :func:`pack_heads`, of ``width`` <= 8, from byte ``at`` of ``data``: ``heads``: int8[n], result.
    Returns the greatest, which may be more than an int8 holds."""
    window, filled, most = np.int64(0), 0, np.int64(least)
    for i in range(len(heads)):
        if filled < width:
            window |= np.int64(data[at]) << filled
            at += 1
            filled += 8
        head = least + (window & ((1 << width) - 1))
        window >>= width
        filled -= width
        most = max(most, head)
        heads[i] = I8(head)
    return most
