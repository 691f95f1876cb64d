"""The decoding driver of constant, raw and coded blocks: blocks in, values out. Trusts nothing in a block but its
size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.bundles import Books, Columns, FloatBits, Geometry, Planes
from ..core.jit import inlined, kernel
from ..core.scalar import U64
from ..core.unaligned import load_u16, load_u32, load_value, subarray, width_of
from ..entropy.decode_streams import PrefixDecoder, decode_buffers, decode_streams
from ..entropy.encode_streams import STREAM_PAD
from ..entropy.prefix_code import ESCAPE
from ..heads.column_references import fill_columns, restore_columns
from ..heads.sign_in_head import turn_in_place
from ..planes.layouts import count_plane_items, merge_planes, plane_tables
from .header import (
    BAD_FIELD,
    BAD_PLANES,
    BAD_SIZE,
    BAD_STREAM,
    BASE,
    BLOCK_HEADER,
    CODEBOOK,
    CODED,
    CODED_HEADER,
    CONSTANT,
    HAS_COLUMNS,
    KIND,
    N_VALUES,
    OK,
    RESERVED,
    check_block,
    is_zero,
    read_coded,
    unpack_numbers,
)


class CodedDecoding(NamedTuple):
    """The part of decoding that all coded blocks of a frame have in common.

    Attributes:
        geometry: Sizes of the array and its parts.
        float_bits: The value type.
        columns: Column references.
        books: Tables of the codebooks.
        planes: The planes.
    """

    geometry: Geometry
    float_bits: FloatBits
    columns: Columns
    books: Books
    planes: Planes


@kernel
def locate_streams(data, streams_at, lengths_at, n_streams, length_width, min_bytes, scratch):
    """Find where a block's sub-streams begin, from their packed lengths; return whether they end at ``lengths_at``.

        streams_at                      lengths_at
        | stream 0 | stream 1 | ... |   | packed lengths, each less ``min_bytes``
        starts[0]  starts[1]

    Results: ``stream_bytes`` and ``starts`` of the scratch.
    """
    unpack_numbers(data, lengths_at, n_streams, length_width, scratch.stream_bytes)
    position = streams_at
    for s in range(n_streams):
        scratch.stream_bytes[s] += min_bytes
        scratch.starts[s] = position
        position += scratch.stream_bytes[s]
        if position > lengths_at:  # before it runs away: lengths are as the data says
            break
    return position == lengths_at


@inlined
def decode_coded(data, at, size, start, coding, scratch, out):
    """Decode the coded block of ``size`` bytes at ``at``; return a status.

    Its codebook exists; its values, those from number ``start`` of the frame on, go to ``out`` (uintW[n]).
    """
    float_bits, books, planes, columns = coding.float_bits, coding.books, coding.planes, coding.columns
    n, stream_len, c = len(out), coding.geometry.stream_len, data[at + CODEBOOK]
    head_mask = (1 << float_bits.head_bits) - 1
    tables = plane_tables(books, c)
    base, symbol_bytes, plane_bytes, min_bytes, length_width, reference_width, run_symbol, flags = read_coded(data, at)
    n_streams = (n + stream_len - 1) // stream_len
    streams_at = at + CODED_HEADER + plane_bytes
    lengths_at = streams_at + symbol_bytes
    references_at = lengths_at + (n_streams * length_width + 7) // 8
    body = references_at + (n_streams * reference_width + 7) // 8 - at
    # Each check makes sure of what the steps after it read and write; their order is docs/format.md, section 11.
    #     at         + 32      streams_at     lengths_at   references_at    at + body     at + size
    #     header   | planes  | sub-streams  | lengths    | references     | zeros         |
    #
    # All sizes are int64 sums of fields of at most 32 bits: they cannot wrap around, however wrong they are. With the
    # size of the block right, all five parts lie inside it, and the block inside the frame (block_index.find_blocks).
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
    elif not locate_streams(data, streams_at, lengths_at, n_streams, length_width, min_bytes, scratch):
        status = BAD_STREAM
    if status == OK:
        unpack_numbers(data, references_at, n_streams, reference_width, scratch.references)
        for s in range(n_streams):
            scratch.bases[s] = (base + np.int64(scratch.references[s])) & head_mask
        escape_length, head_bits = np.int64(books.lengths[c, ESCAPE]), np.int64(float_bits.head_bits)
        code = PrefixDecoder(books.table[c], books.lengths[c], escape_length, head_bits, run_symbol)
        n_escapes = decode_streams(data, stream_len, code, decode_buffers(scratch), out, at + size)
        if n_escapes < 0:
            status = BAD_STREAM
    if status == OK:
        # How many items each plane has follows from the symbols. Only when they take exactly the bytes that the header
        # says are planes read: no plane then reads beyond its end, whatever the symbols are.
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
        # Escaped heads are whole, not relative to any reference, and come last for that reason.
        for k in range(n_escapes):
            #     escapes     place among the symbols:  s * (stream_len + STREAM_PAD) + k
            #     i           number of the value:      s * stream_len + k
            s = scratch.escapes[k] // (stream_len + STREAM_PAD)
            i = scratch.escapes[k] - s * STREAM_PAD
            # Written out: as a function of scalar.py, of which there was one, it made all decoding 8 % slower.
            tail = U64(out[i]) & ~(U64(head_mask) << U64(float_bits.head_shift))
            out[i] = tail | (U64(scratch.escape_heads[k]) << U64(float_bits.head_shift))
        # Last of all, and in place: everything before works on turned values, as the encoder did.
        if float_bits.fine_bits:
            turn_in_place(out, float_bits.head_shift)
    return status


@kernel
def decode_plain(data, at, size, n_stored, out):
    """Decode a block of ``n_stored`` values as they are, of which the first stands for all that follow the last; return
    a status. ``out``: uintW[n]."""
    if data[at + CODEBOOK] or load_u16(data, at + BASE):
        return BAD_FIELD
    width = width_of(out) // 8
    body = BLOCK_HEADER + n_stored * width
    if size != (body + 7) & ~7:
        return BAD_SIZE
    if not is_zero(data, at + body, at + size):
        return BAD_FIELD
    for i in range(n_stored):
        out[i] = load_value(data, at + BLOCK_HEADER + i * width, out)
    for i in range(n_stored, len(out)):
        out[i] = out[0]
    return OK


@kernel
def decode_blocks(blocks, begin, end, coding, scratch, out, out_first):
    """Decode blocks from ``begin`` on, as many before ``end`` as are constant, raw or coded.

    Args:
        blocks: A :class:`bundles.FrameBlocks`.
        begin: First block.
        coding: A :class:`CodedDecoding`.
        scratch: A :class:`bundles.Scratch`.
        out: uintW, result: value i of the frame goes to ``out[i - out_first]``.
        out_first: The frame's value that ``out`` begins with.

    Returns:
        (status, block): the first block that is of another kind (status OK) or faulty; ``end`` if there is none.
    """
    data, geometry = blocks.data, coding.geometry
    for b in range(begin, end):
        at, size = blocks.offsets[b], blocks.sizes[b]
        kind = data[at + KIND]
        if kind > CODED:
            return OK, b
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        block_out = subarray(out, start - out_first, n)
        status = check_block(data, at, size, b)
        if status != OK:
            return status, b
        if load_u32(data, at + N_VALUES) != n:
            return BAD_FIELD, b
        if kind != CODED:
            status = decode_plain(data, at, size, 1 if kind == CONSTANT else n, block_out)
        elif size < CODED_HEADER or data[at + CODEBOOK] >= len(coding.books.n_symbols):
            status = BAD_FIELD
        else:
            status = decode_coded(data, at, size, start, coding, scratch, block_out)
        if status != OK:
            return status, b
    return OK, end
