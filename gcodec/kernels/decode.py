"""The decoding driver: blocks in, values out. Trusts nothing in a block but its size."""

from __future__ import annotations

import numpy as np

from . import planes
from .blocks import (
    BAD_CHECKSUM, BAD_FIELD, BAD_KIND, BAD_PLANES, BAD_SIZE, BAD_STREAM, BLOCK_HEADER, CODED, CODED_HEADER, CONSTANT,
    OK, RAW, SEED, load_value, unpack_numbers,
)
from .jit import kernel
from .memory import load_u16, load_u32, load_u64, view, width_of
from .scalar import U8, U32, U64
from .streams import STREAM_PAD, checksum, decode_streams


@kernel
def is_zero(data, start, stop):
    """Whether bytes ``start ... stop`` are all zero."""
    found = 0
    for i in range(start, stop):
        found |= data[i]
    return found == 0


@kernel
def count_items(symbols, n, stream, n_planes, mark_of, marks, n_items):
    """Number of items of every plane: ``n_items``: int64[8], result; with ``marks`` also the marks of all values."""
    n_items[:] = 0
    if marks is not None:
        planes.find_marks(symbols, n, stream, mark_of, marks)
    for s in range((n + stream - 1) // stream):
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - s * stream)
        for i in range(count, (count + 63) & ~63):
            symbols[place + i] = 0
            if marks is not None:
                marks[place + i] = 0
        for p in range(n_planes):
            total = U32(0)
            if marks is not None:
                some = view(marks, place, count)
                for i in range(count):
                    total += U32((some[i] >> U8(p)) & U8(1))
            else:
                some = view(symbols, place, count)
                for i in range(count):
                    total += U32((mark_of[some[i]] >> U8(p)) & U8(1))
            n_items[p] += np.int64(total)


@kernel
def count_single(symbols, n, stream, n_items):
    """The same for a single plane of which all values but zeros own an item."""
    total = 0
    for s in range((n + stream - 1) // stream):
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - s * stream)
        for i in range(count, (count + 63) & ~63):
            symbols[place + i] = 0
        total += planes.count_marked(symbols, place, count)
    n_items[0] = total


@kernel
def merge(data, at, symbols, n, stream, n_planes, widths, mark_of, shift, uniform, head_of, narrow_head_of, head_shift, head_mask,
          tail_bits, bases, words, dense, lone, bytes_, marks, items, n_items, general, bare, out):
    """All values of a block from its planes and symbols; which scratch is there says which layout it is."""
    if general is not None:
        for i in range(n):
            general[i] = U64(0)
        for p in range(n_planes):
            planes.merge_plane(data, at, symbols, n, stream, mark_of, p, shift[p], widths[p], general)
            at += (n_items[p] * widths[p] + 7) >> 3
        planes.merge_values(general, symbols, n, stream, head_of, bases, head_shift, head_mask, tail_bits, out)
        return
    if items is not None:
        planes.merge_narrow(data, at, symbols, marks, n, stream, n_planes, widths, narrow_head_of, shift, uniform, bases, words,
                            bytes_, items, n_items, out)
        return
    if dense is not None:
        planes.merge_24(data, at, symbols, n, stream, np.int64(head_of[1]), bases, words, dense, out)
        return
    if lone is not None:
        planes.merge_8(data, at, symbols, n, stream, np.int64(head_of[1]), bases, lone, out)
        return
    if bare is not None:
        planes.merge_values(None, symbols, n, stream, head_of, bases, head_shift, head_mask, tail_bits, out)


@kernel
def decode_coded(data, at, size, n, stream, head_bits, head_shift, n_symbols, lengths, table, head_of, narrow_head_of, n_planes,
                 widths, mark_of, shift, uniform, tail_bits, references, bases, symbols, words, dense, lone, bytes_, marks, items,
                 n_items, general, bare, stream_bytes, starts, lanes, escapes, escape_heads, out):
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
    if not is_zero(data, at + body, at + size):
        return BAD_FIELD
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
        bases[s] = (base + np.int64(references[s])) & head_mask
    n_escapes = decode_streams(data, starts, stream_bytes, n, stream, run_symbol, table, lengths, lengths[255],
                               head_bits, lanes, symbols, escapes, escape_heads)
    if n_escapes < 0:
        return BAD_STREAM
    if dense is not None or lone is not None:
        count_single(symbols, n, stream, n_items)
    if items is not None:
        count_items(symbols, n, stream, n_planes, mark_of, marks, n_items)
    if general is not None:
        count_items(symbols, n, stream, n_planes, mark_of, marks, n_items)
    total = 0
    for p in range(n_planes):
        total += (n_items[p] * widths[p] + 7) >> 3
    if total != plane_bytes:
        return BAD_PLANES
    merge(data, at + CODED_HEADER, symbols, n, stream, n_planes, widths, mark_of, shift, uniform, head_of, narrow_head_of,
          head_shift, head_mask, tail_bits, bases, words, dense, lone, bytes_, marks, items, n_items, general, bare, out)
    for k in range(n_escapes):
        s = escapes[k] // (stream + STREAM_PAD)
        i = s * stream + escapes[k] - s * (stream + STREAM_PAD)
        clear = U64(out[i]) & ~(U64(head_mask) << U64(head_shift))
        out[i] = clear | (U64(escape_heads[k]) << U64(head_shift))
    return OK


@kernel
def decode_blocks(data, offsets, sizes, begin, end, n_values, block, stream, head_bits, head_shift, n_symbols, lengths,
                  tables, head_of, narrow_head_of, n_planes, widths, mark_of, shift, uniform, tail_bits, references, bases,
                  symbols, words, dense, lone, bytes_, marks, items, n_items, general, bare, stream_bytes, starts, lanes, escapes,
                  escape_heads, out, out_first):
    """Decode blocks ``begin ... end``; value i of the frame goes to ``out[i - out_first]``.

    ``data``: uint8, readable for ``block_margin`` bytes (see codec) after the last of these blocks; ``offsets``: int64 and
    ``sizes``: int64, both [n_blocks], checked to lie inside the frame; ``n_symbols``: int64[n_codebooks]; ``lengths``:
    uint8[n_codebooks, 256]; ``tables``: uint64[n_codebooks, 4096]; ``head_of``: uint16 and ``narrow_head_of``: uint8,
    both [n_codebooks, 256], relative heads. Returns (status, block).
    """
    width = width_of(out) // 8
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
        block_out = view(out, start - out_first, n)
        if kind > CODED:
            return BAD_KIND, b
        if load_u32(data, at + 4) != n:
            return BAD_FIELD, b
        if kind != CODED and (data[at + 1] or load_u16(data, at + 2)):
            return BAD_FIELD, b
        if kind == CONSTANT:
            if size != BLOCK_HEADER + 8:
                return BAD_SIZE, b
            if not is_zero(data, at + BLOCK_HEADER + width, at + size):
                return BAD_FIELD, b
            load_value(data, at + BLOCK_HEADER, block_out, 0)
            for i in range(1, n):
                block_out[i] = block_out[0]
        elif kind == RAW:
            if size != BLOCK_HEADER + ((n * width + 7) & ~7):
                return BAD_SIZE, b
            if not is_zero(data, at + BLOCK_HEADER + n * width, at + size):
                return BAD_FIELD, b
            for i in range(n):
                load_value(data, at + BLOCK_HEADER + i * width, block_out, i)
        else:
            c = data[at + 1]
            if size < CODED_HEADER or c >= len(n_symbols):
                return BAD_FIELD, b
            status = decode_coded(
                data, at, size, n, stream, head_bits, head_shift, n_symbols[c], lengths[c], tables[c], head_of[c],
                narrow_head_of[c], n_planes, widths, mark_of[c], shift[c], uniform, tail_bits, references, bases, symbols, words,
                dense, lone, bytes_, marks, items, n_items, general, bare, stream_bytes, starts, lanes, escapes, escape_heads, block_out)
            if status != OK:
                return status, b
    return OK, end
