"""The decoding driver: blocks in, values out. Trusts nothing in a block but its size."""

from __future__ import annotations

import numpy as np

from . import planes
from .blocks import (
    BAD_CHECKSUM, BAD_FIELD, BAD_KIND, BAD_PLANES, BAD_SIZE, BAD_STREAM, BLOCK_HEADER, CODED, CODED_HEADER, CONSTANT,
    OK, RAW, SEED, load_value, unpack_numbers,
)
from .jit import kernel
from .memory import load_u16, load_u32, load_u64
from .scalar import U64
from .streams import STREAM_PAD, checksum, decode_streams


@kernel
def count_items(symbols, n, stream, owns, n_planes, n_items):
    """Number of items of every plane. ``owns``: uint8[8, 256]; ``n_items``: int64[8], result."""
    n_streams = (n + stream - 1) // stream
    for p in range(n_planes):
        total = 0
        own = owns[p]
        for s in range(n_streams):
            place = s * (stream + STREAM_PAD)
            for i in range(place, place + min(stream, n - s * stream)):
                total += own[symbols[i]]
        n_items[p] = total


@kernel
def merge(layout, data, at, symbols, n, stream, n_planes, widths, owns, shift, head_shift, head_mask, tail_bits,
          rel, bases, tail, items, n_items, out):
    """All values of a block from its planes and symbols, by the layout's kernels."""
    if layout == planes.LAYOUT_24:
        planes.merge_24(data, at, n_items[0], symbols, n, stream, rel, bases, head_mask << head_shift, out)
        return
    if layout == planes.LAYOUT_8:
        planes.merge_8(data, at, n_items[0], symbols, n, stream, rel, bases, head_mask << head_shift, out)
        return
    if layout == planes.LAYOUT_NARROW:
        for p in range(n_planes):
            planes.unpack_bytes(data, at, n_items[p], widths[p], items[p])
            at += (n_items[p] * widths[p] + 7) >> 3
        planes.merge_narrow(items, symbols, n, stream, owns, shift, n_planes, tail)
    elif layout == planes.LAYOUT_GENERAL:
        tail[:n] = 0
        for p in range(n_planes):
            planes.merge_plane(data, at, symbols, n, stream, owns[p], shift[p], widths[p], tail)
            at += (n_items[p] * widths[p] + 7) >> 3
    planes.merge_values(tail, symbols, n, stream, rel, bases, head_mask << head_shift, tail_bits, out)


@kernel
def decode_coded(data, at, size, n, stream, head_bits, head_shift, n_symbols, lengths, table, rel, layout, n_planes,
                 widths, owns, shift, tail_bits, references, bases, symbols, tail, items, n_items, stream_bytes,
                 starts, escapes, escape_heads, out):
    """One coded block at ``at`` of ``size`` bytes into ``out`` (uintW[n]). Returns a status."""
    head_mask = (1 << head_bits) - 1
    base = np.int64(load_u16(data, at + 2))
    symbol_bytes = np.int64(load_u32(data, at + 16))
    plane_bytes = np.int64(load_u32(data, at + 20))
    least = np.int64(load_u16(data, at + 24))
    length_width, reference_width = np.int64(data[at + 26]), np.int64(data[at + 27])
    run_symbol = data[at + 28]
    if base > head_mask or length_width > 16 or reference_width > head_bits or run_symbol > n_symbols:
        return BAD_FIELD
    if data[at + 29] or data[at + 30] or data[at + 31]:
        return BAD_FIELD
    n_streams = (n + stream - 1) // stream
    streams_at = at + CODED_HEADER + plane_bytes
    lengths_at = streams_at + symbol_bytes
    references_at = lengths_at + (n_streams * length_width + 7) // 8
    body = references_at + (n_streams * reference_width + 7) // 8 - at
    if (body + 7) & ~7 != size:
        return BAD_SIZE
    unpack_numbers(data, lengths_at, n_streams, length_width, stream_bytes)
    position = streams_at
    for s in range(n_streams):
        stream_bytes[s] += least
        starts[s] = position
        position += stream_bytes[s]
        if position > lengths_at:
            return BAD_STREAM
    if position != lengths_at:
        return BAD_STREAM
    unpack_numbers(data, references_at, n_streams, reference_width, references)
    for s in range(n_streams):
        bases[s] = ((base + np.int64(references[s])) & head_mask) << head_shift
    n_escapes = decode_streams(data, starts, stream_bytes, n, stream, run_symbol, table, lengths, lengths[255],
                               head_bits, symbols, escapes, escape_heads)
    if n_escapes < 0:
        return BAD_STREAM
    count_items(symbols, n, stream, owns, n_planes, n_items)
    total = 0
    for p in range(n_planes):
        total += (n_items[p] * widths[p] + 7) >> 3
    if total != plane_bytes:
        return BAD_PLANES
    merge(layout, data, at + CODED_HEADER, symbols, n, stream, n_planes, widths, owns, shift, head_shift, head_mask,
          tail_bits, rel, bases, tail, items, n_items, out)
    for k in range(n_escapes):
        s = escapes[k] // (stream + STREAM_PAD)
        i = s * stream + escapes[k] - s * (stream + STREAM_PAD)
        clear = U64(out[i]) & ~(U64(head_mask) << U64(head_shift))
        out[i] = clear | (U64(escape_heads[k]) << U64(head_shift))
    return OK


@kernel
def decode_blocks(data, offsets, sizes, begin, end, n_values, block, stream, head_bits, head_shift, n_symbols, lengths,
                  tables, rel, layout, n_planes, widths, owns, shift, tail_bits, references, bases, symbols, tail,
                  items, n_items, stream_bytes, starts, escapes, escape_heads, out, out_first):
    """Decode blocks ``begin ... end``; value i of the frame goes to ``out[i - out_first]``.

    ``data``: uint8, readable for ``block_margin`` bytes (see codec) after the last of these blocks; ``offsets``: int64 and
    ``sizes``: int64, both [n_blocks], checked to lie inside the frame; ``n_symbols``: int64[n_codebooks]; ``lengths``:
    uint8[n_codebooks, 256]; ``tables``: uint64[n_codebooks, 4096]; ``rel``: [n_codebooks, 256]. Returns (status, block).
    """
    width = out.itemsize
    for b in range(begin, end):
        at, size = offsets[b], sizes[b]
        start = b * block
        n = min(block, n_values - start)
        if size < BLOCK_HEADER:
            return BAD_SIZE, b
        seed = U64(b + 1) * U64(SEED)
        if checksum(data, at, size >> 2, 2, seed) != load_u64(data, at + 8):
            return BAD_CHECKSUM, b
        kind = data[at]
        block_out = out[start - out_first : start - out_first + n]
        if kind > CODED:
            return BAD_KIND, b
        if load_u32(data, at + 4) != n:
            return BAD_FIELD, b
        if kind != CODED and (data[at + 1] or load_u16(data, at + 2)):
            return BAD_FIELD, b
        if kind == CONSTANT:
            if size != BLOCK_HEADER + 8:
                return BAD_SIZE, b
            load_value(data, at + BLOCK_HEADER, block_out, 0)
            for i in range(1, n):
                block_out[i] = block_out[0]
        elif kind == RAW:
            if size != BLOCK_HEADER + ((n * width + 7) & ~7):
                return BAD_SIZE, b
            for i in range(n):
                load_value(data, at + BLOCK_HEADER + i * width, block_out, i)
        else:
            c = data[at + 1]
            if size < CODED_HEADER or c >= len(n_symbols):
                return BAD_FIELD, b
            status = decode_coded(
                data, at, size, n, stream, head_bits, head_shift, n_symbols[c], lengths[c], tables[c], rel[c], layout,
                n_planes, widths, owns[c], shift[c], tail_bits, references, bases, symbols, tail, items, n_items,
                stream_bytes, starts, escapes, escape_heads, block_out)
            if status != OK:
                return status, b
    return OK, end
