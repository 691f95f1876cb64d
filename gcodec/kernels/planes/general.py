"""Split and merge planes of any width, one value at a time (docs/format.md sections 4 and 7).

This is the path of float64 and of all planes that no faster layout covers, and what tests compare the faster layouts
with. See :mod:`layouts` for the terms.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U64, head_of_symbol, item_of, tail_of, value_of_symbol, with_item
from ..core.unaligned import load_u64, store_u64, subarray, width_of
from ..entropy.encode_streams import STREAM_PAD
from ..index.value_tables import look_up_all


@kernel
def split_general(values, stream_len, float_bits, tables, planes, scratch, out, at):
    """Write planes of any width up to 56 bits; arguments and result as of :func:`layouts.split_planes`. ``out`` has 8
    bytes of margin.

        tail       .......iiiiiiii.....    an item of width w, its lowest bit ``shift`` bits above the tail's
        window     ........iiiiiiiioooo    64 bits, of which the lowest ``filled`` are not written yet: new items above
                                           older ones; whole bytes are counted as written, up to 7 bits stay

    All 8 bytes of the window are stored each time, and those that are not whole yet are overwritten by the next store:
    that takes no branch on how many there are.
    """
    n, tail_bits, width, symbols = len(values), float_bits.tail_bits, width_of(values), scratch.symbols
    mark_of = tables.mark_of
    for p in range(planes.n):
        shift = tables.shift[p]
        item_bits = U64(planes.widths[p])
        item_mask = U64((1 << planes.widths[p]) - 1)
        window, filled = U64(0), U64(0)
        for s in range((n + stream_len - 1) // stream_len):
            first = s * stream_len
            place = s * (stream_len + STREAM_PAD)
            for i in range(min(stream_len, n - first)):
                symbol = symbols[place + i]
                owned = U64((mark_of[symbol] >> p) & 1)  # 1 or 0: without a branch, which would often be mispredicted
                tail = tail_of(U64(values[first + i]), width, tail_bits)
                item = item_of(tail, shift[symbol], item_mask * owned)
                window |= item << filled
                filled += item_bits * owned
                # At most 7 bits that wait and an item of 56: the window never holds more than 63.
                store_u64(out, at, window)
                at += np.int64(filled >> U64(3))
                window >>= filled & U64(56)
                filled &= U64(7)
        at += filled > 0
    return at


@kernel
def _merge_plane(data, at, p, stream_len, tables, planes, scratch, n):
    """OR the items of one plane into the tails of a block's values.

        loaded     ...nnnnniiiiiiiiooo                 64 bits of ``data`` from the byte on that has bit ``position``
        item                ...iiiiiiii                the lowest bits, once it is shifted right by ``position`` mod 8
        tail       .......iiiiiiii.....                the item, ``shift`` bits above the tail's lowest bit

    Args:
        data: uint8, readable 8 bytes past the plane.
        at: Byte at which the plane begins.
        p: Number of the plane.
        stream_len: Values per sub-stream.
        tables: The codebook's :class:`layouts.PlaneTables`.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols`` are known; ``layout.tails``, uint64, are added to.
    """
    symbols, tails, mark_of, shift = scratch.symbols, scratch.layout.tails, tables.mark_of, tables.shift[p]
    item_bits, item_mask = U64(planes.widths[p]), U64((1 << planes.widths[p]) - 1)
    position = U64(at) << U64(3)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        for i in range(min(stream_len, n - first)):
            symbol = symbols[place + i]
            owned = U64((mark_of[symbol] >> p) & 1)
            # Up to 7 bits to skip and 56 of the item are within the 64 that one load brings; planes are not wider
            # (section 4). Where the value owns none, the mask is 0 and the position stays.
            item = (load_u64(data, np.int64(position >> U64(3))) >> (position & U64(7))) & (item_mask * owned)
            tails[first + i] = with_item(tails[first + i], item, shift[symbol])
            position += item_bits * owned


@kernel
def merge_general(data, at, stream_len, float_bits, tables, planes, scratch, out):
    """Join heads and planes of any width into values: the inverse of :func:`split_general`; arguments as of
    :func:`layouts.merge_planes`."""
    n, width, tail_bits, symbols = len(out), width_of(out), float_bits.tail_bits, scratch.symbols
    tails, head_mask = scratch.layout.tails, U64((1 << float_bits.head_bits) - 1)
    for i in range(n):
        tails[i] = U64(0)
    for p in range(planes.n):
        _merge_plane(data, at, p, stream_len, tables, planes, scratch, n)
        at += (scratch.n_items[p] * planes.widths[p] + 7) >> 3
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        base = U64(scratch.bases[s])
        for i in range(min(stream_len, n - first)):
            symbol = symbols[place + i]
            head = head_of_symbol(U64(tables.head_of[symbol]), base, head_mask)
            out[first + i] = value_of_symbol(symbol, head, U64(tails[first + i]), width, tail_bits)


@kernel
def merge_without_planes(stream_len, float_bits, tables, scratch, out):
    """Turn heads into values of types that have no tail (of one byte), where the head is the value.

    Sub-streams mostly have the base of the one before, and so their symbols mean the same values.
    """
    n, head_mask, value_of, last = len(out), U64((1 << float_bits.head_bits) - 1), scratch.chunk, np.int64(-1)
    for s in range((n + stream_len - 1) // stream_len):
        first, base = s * stream_len, np.int64(scratch.bases[s])
        # 256 values are looked up for each base, and a sub-stream may have as few as 64: only where the base is another
        # one.
        if base != last:
            # scratch.chunk serves as the table, uint8[256] at least: heads of one-byte types are bytes.
            value_of[0] = 0
            for symbol in range(1, 256):
                value_of[symbol] = head_of_symbol(U64(tables.head_of[symbol]), U64(base), head_mask)
            last = base
        count = min(stream_len, n - first)
        symbols, values = subarray(scratch.symbols, s * (stream_len + STREAM_PAD), count), subarray(out, first, count)
        look_up_all(value_of, value_of, symbols, count, values)
