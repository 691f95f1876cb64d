"""The decoding driver: blocks in, values out. Trusts nothing in a block but its size."""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import U64
from ..core.unaligned import load_u16, load_u32, load_u64, load_value, subarray, width_of
from ..entropy.decode_streams import PrefixDecoder, decode_buffers, decode_streams
from ..entropy.encode_streams import STREAM_PAD
from ..entropy.prefix_code import ESCAPE
from ..heads.column_references import fill_columns, restore_columns
from ..planes.layouts import count_plane_items, merge_planes, plane_tables
from .header import (
    BAD_CHECKSUM,
    BAD_FIELD,
    BAD_KIND,
    BAD_PLANES,
    BAD_SIZE,
    BAD_STREAM,
    BASE,
    BLOCK_HEADER,
    CHECKSUM,
    CODEBOOK,
    CODED,
    CODED_HEADER,
    CONSTANT,
    HAS_COLUMNS,
    IS_PREDICTED,
    KIND,
    N_VALUES,
    OK,
    PREDICTED,
    RESERVED,
    block_checksum,
    read_coded,
    unpack_numbers,
)


@kernel
def is_zero(data, start, stop):
    """Return whether bytes ``start ... stop`` are all zero."""
    found = 0
    for i in range(start, stop):
        found |= data[i]
    return found == 0


@inlined
def decode_coded(data, at, size, start, n, stream_len, float_bits, columns, c, books, planes, scratch, out):
    """Decode the coded block of ``size`` bytes at ``at`` with codebook ``c``; return a status.

    Its values, those from number ``start`` of the frame on, go to ``out`` (uintW[n])."""
    head_mask = (1 << float_bits.head_bits) - 1
    tables = plane_tables(books, c)
    base, symbol_bytes, plane_bytes, least, length_width, reference_width, run_symbol, flags = read_coded(data, at)
    stream_bytes, starts, bases = scratch.stream_bytes, scratch.starts, scratch.bases
    n_streams = (n + stream_len - 1) // stream_len
    streams_at = at + CODED_HEADER + plane_bytes
    lengths_at = streams_at + symbol_bytes
    references_at = lengths_at + (n_streams * length_width + 7) // 8
    body = references_at + (n_streams * reference_width + 7) // 8 - at
    status = OK
    if (
        base > head_mask
        or length_width > 16
        or reference_width > float_bits.head_bits
        or run_symbol > books.n_symbols[c]
        or flags > (HAS_COLUMNS if len(columns.spans) else 0)
        or not is_zero(data, at + RESERVED, at + CODED_HEADER)
    ):
        status = BAD_FIELD
    elif (body + 7) & ~7 != size:
        status = BAD_SIZE
    elif not is_zero(data, at + body, at + size):
        status = BAD_FIELD
    else:
        unpack_numbers(data, lengths_at, n_streams, length_width, stream_bytes)
        position = streams_at
        for s in range(n_streams):
            stream_bytes[s] += least
            starts[s] = position
            position += stream_bytes[s]
            if position > lengths_at:
                break
        if position != lengths_at:
            status = BAD_STREAM
    if status == OK:
        unpack_numbers(data, references_at, n_streams, reference_width, scratch.references)
        for s in range(n_streams):
            bases[s] = (base + np.int64(scratch.references[s])) & head_mask
        escape_length = np.int64(books.lengths[c, ESCAPE])
        code = PrefixDecoder(
            books.table[c], books.lengths[c], escape_length, np.int64(float_bits.head_bits), run_symbol
        )
        n_escapes = decode_streams(data, stream_len, code, decode_buffers(scratch), out, at + size)
        if n_escapes < 0:
            status = BAD_STREAM
    if status == OK:
        count_plane_items(n, stream_len, tables, planes, scratch)
        total = 0
        for p in range(planes.n):
            total += (scratch.n_items[p] * planes.widths[p] + 7) >> 3
        if total != plane_bytes:
            status = BAD_PLANES
    if status == OK:
        merge_planes(data, at + CODED_HEADER, stream_len, float_bits, tables, planes, scratch, out)
        if flags and fill_columns(columns.spans, columns.heads, start, n, scratch.columns):
            restore_columns(out, n, stream_len, scratch.symbols, scratch.columns, float_bits.head_shift, head_mask)
        for k in range(n_escapes):
            s = scratch.escapes[k] // (stream_len + STREAM_PAD)
            i = scratch.escapes[k] - s * STREAM_PAD
            clear = U64(out[i]) & ~(U64(head_mask) << U64(float_bits.head_shift))
            out[i] = clear | (U64(scratch.escape_heads[k]) << U64(float_bits.head_shift))
    return status


@kernel
def decode_blocks(
    data, offsets, sizes, begin, end, geometry, float_bits, columns, books, planes, scratch, out, out_first
):
    """Decode blocks ``begin ... end``; value i of the frame goes to ``out[i - out_first]``.

    ``data``: uint8, readable for ``codec.margin`` bytes after the last of these blocks; ``offsets`` and ``sizes``:
    int64[n_blocks], checked to lie inside the frame; the bundles are described in :mod:`bundles`. Returns
    (status, block); IS_PREDICTED where it met a block that :mod:`predicted` decodes.
    """
    width = width_of(out) // 8
    for b in range(begin, end):
        at, size = offsets[b], sizes[b]
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        if size < BLOCK_HEADER:
            return BAD_SIZE, b
        if block_checksum(data, at, size, b) != load_u64(data, at + CHECKSUM):
            return BAD_CHECKSUM, b
        block_kind, c = data[at + KIND], data[at + CODEBOOK]
        block_out = subarray(out, start - out_first, n)
        if block_kind > CODED:
            return IS_PREDICTED if block_kind == PREDICTED else BAD_KIND, b
        if load_u32(data, at + N_VALUES) != n:
            return BAD_FIELD, b
        if block_kind == CODED:
            if size < CODED_HEADER or c >= len(books.n_symbols):
                return BAD_FIELD, b
            status = decode_coded(
                data, at, size, start, n, geometry.stream_len, float_bits, columns, c, books, planes, scratch, block_out
            )
            if status != OK:
                return status, b
            continue
        if c or load_u16(data, at + BASE):
            return BAD_FIELD, b
        n_stored = 1 if block_kind == CONSTANT else n
        body = BLOCK_HEADER + n_stored * width
        if size != (body + 7) & ~7:
            return BAD_SIZE, b
        if not is_zero(data, at + body, at + size):
            return BAD_FIELD, b
        for i in range(n_stored):
            block_out[i] = load_value(data, at + BLOCK_HEADER + i * width, block_out)
        for i in range(n_stored, n):
            block_out[i] = block_out[0]
    return OK, end
