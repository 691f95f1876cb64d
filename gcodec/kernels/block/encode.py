"""The encoding driver: values in, blocks out."""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import U8, U64
from ..core.unaligned import subarray, subarray_if_any, width_of
from ..entropy.encode_streams import NextValues, encode_buffers, encode_streams, prefix_encoder
from ..heads.column_references import fill_columns, remove_columns
from ..heads.symbols import find_block_symbols, symbol_ranges
from ..levels.rounding import round_values
from ..planes.layouts import plane_tables, split_planes
from .header import (
    BLOCK_HEADER,
    CODED_HEADER,
    FLAGS,
    HAS_COLUMNS,
    CodedHeader,
    is_constant,
    pack_numbers,
    seal_block,
    store_constant,
    store_raw,
    write_coded,
)


@inlined
def encode_coded(
    values,
    shifted,
    levels,
    n,
    stream_len,
    float_bits,
    base,
    with_references,
    c,
    books,
    planes,
    scratch,
    out,
    at,
    following,
):
    """A coded block with codebook ``c`` at ``at``, count, checksum and flags left out. ``shifted``: the values
    without column references, or just the values. Returns the end, or -1 if it cannot be coded."""
    n_streams = (n + stream_len - 1) // stream_len
    references, stream_bytes = scratch.references, scratch.stream_bytes
    base, width = find_block_symbols(
        shifted, levels, stream_len, float_bits, base, with_references, symbol_ranges(books, c), scratch
    )
    planes_at = at + CODED_HEADER
    streams_at = split_planes(values, stream_len, float_bits, plane_tables(books, c), planes, scratch, out, planes_at)
    code = prefix_encoder(books, c, float_bits)
    end = encode_streams(values, stream_len, code, following, encode_buffers(scratch), out, streams_at)
    if end >= 0:
        least, most = stream_bytes[0], stream_bytes[0]
        for s in range(1, n_streams):
            least, most = min(least, stream_bytes[s]), max(most, stream_bytes[s])
        length_width = 0
        while (most - least) >> length_width:
            length_width += 1
        sizes = end - streams_at, streams_at - planes_at
        header = CodedHeader(base, sizes[0], sizes[1], least, length_width, width, code.run_symbol, 0)
        write_coded(out, at, c, header)
        end = pack_numbers(stream_bytes, n_streams, np.int64(least), length_width, out, end)
        end = pack_numbers(references, n_streams, np.int64(0), width, out, end)
    return end


@kernel
def greatest(levels):
    """The greatest of uint8[n]; n > 0."""
    most = U8(0)
    for i in range(len(levels)):
        most = max(most, levels[i])
    return np.int64(most)


@kernel
def encode_blocks(
    values,
    levels,
    geometry,
    float_bits,
    begin,
    end,
    rounding,
    choices,
    columns,
    books,
    planes,
    rounded,
    keep,
    scratch,
    out,
    at,
    sizes,
):
    """Encode blocks ``begin ... end`` back to back from byte ``at`` of ``out`` and note their ``sizes``
    (uint32[n_blocks]).

    ``values``: uintW[n_values]; ``levels``: uint8[n_values], or None (all of level 0); ``rounded``: None where nothing
    is rounded, else uintW[n_values] for all that decoding will return where that is to be kept (``keep``), or
    scratch.rounded; the bundles are described in :mod:`bundles`. ``out`` needs room for the raw
    size of these blocks, 24 bytes a block and the worst case of one coded block. Returns the end, or
    -1 where a level is none.
    """
    width = width_of(values) // 8
    stream_len = geometry.stream_len
    for b in range(begin, end):
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        block_values = subarray(values, start, n)
        block_levels = subarray_if_any(levels, start, n)
        if levels is not None and greatest(block_levels) >= rounding.n_levels:
            return -1
        if rounded is not None:
            result = subarray(rounded, start if keep else 0, n)
            round_values(
                block_values,
                block_levels,
                float_bits,
                rounding,
                scratch.symbols,
                subarray(values, start + n, n),
                result,
            )
            block_values = result
        stop = -1
        if is_constant(block_values, n):
            stop = store_constant(out, at, block_values[0], width)
        elif choices.codebook[b] >= 0:
            c = choices.codebook[b]
            shifted, flags = block_values, 0
            head_mask = (1 << float_bits.head_bits) - 1
            infinity = U64(0) if block_levels is None else float_bits.infinity  # only levels ask what is finite
            if (
                len(columns.spans)
                and fill_columns(columns.spans, columns.heads, start, n, scratch.columns)
                and remove_columns(
                    block_values, n, scratch.columns, float_bits.head_shift, head_mask, infinity, scratch.shifted
                )
            ):
                shifted, flags = subarray(scratch.shifted, 0, n), HAS_COLUMNS
            stop = encode_coded(
                block_values,
                shifted,
                block_levels,
                n,
                stream_len,
                float_bits,
                choices.base[b],
                choices.references,
                c,
                books,
                planes,
                scratch,
                out,
                at,
                # Of rounded values every other line: rounding has fetched the others.
                NextValues(subarray(values, start + n, n), np.int64(64 if rounded is None else 128)),
            )
            out[at + FLAGS] = U8(flags)
        if stop < 0 or stop >= at + BLOCK_HEADER + n * width:
            stop = store_raw(out, at, block_values, n, width)
        stop = seal_block(out, at, stop, n, b)
        sizes[b] = stop - at
        at = stop
    return at
