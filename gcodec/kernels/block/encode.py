"""The encoding driver: values in, blocks out."""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import U8, U16, U32, U64
from ..core.unaligned import store_u16, store_u32, store_u64, store_value, subarray, subarray_if_any, width_of
from ..entropy.encode_streams import checksum, encode_streams
from ..entropy.prefix_code import ESCAPE
from ..heads.column_references import fill_columns, remove_columns
from ..heads.symbols import find_block_symbols, symbol_ranges
from ..levels.rounding import round_values
from ..planes.layouts import plane_tables, split_planes
from .header import BLOCK_HEADER, CODED, CODED_HEADER, CONSTANT, HAS_COLUMNS, RAW, SEED, is_constant, pack_numbers


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
    upcoming,
    apart,
):
    """A coded block with codebook ``c`` at ``at``, kind, count, checksum and flags left out. ``shifted``: the values
    without column references, or just the values. Returns the end, or -1 if it cannot be coded."""
    n_streams = (n + stream_len - 1) // stream_len
    references, stream_bytes = scratch.references, scratch.stream_bytes
    base, width = find_block_symbols(
        shifted, levels, stream_len, float_bits, base, with_references, symbol_ranges(books, c), scratch
    )
    planes_at = at + CODED_HEADER
    streams_at = split_planes(values, stream_len, float_bits, plane_tables(books, c), planes, scratch, out, planes_at)
    run_symbol = books.run_symbol[c]
    end = encode_streams(
        scratch.symbols,
        values,
        n,
        stream_len,
        books.table[c],
        books.escape_code[c],
        np.int64(books.lengths[c, ESCAPE]),
        float_bits.head_bits,
        float_bits.head_shift,
        run_symbol,
        scratch.chunk,
        out,
        streams_at,
        stream_bytes,
        upcoming,
        apart,
    )
    if end >= 0:
        least, most = stream_bytes[0], stream_bytes[0]
        for s in range(1, n_streams):
            least, most = min(least, stream_bytes[s]), max(most, stream_bytes[s])
        length_width = 0
        while (most - least) >> length_width:
            length_width += 1
        store_u16(out, at + 2, U16(base))
        store_u32(out, at + 16, U32(end - streams_at))
        store_u32(out, at + 20, U32(streams_at - planes_at))
        store_u32(out, at + 24, U32(least) | (U32(length_width) << U32(16)) | (U32(width) << U32(24)))
        store_u32(out, at + 28, U32(run_symbol))
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
        store_u32(out, at, U32(0))
        store_u32(out, at + 4, U32(n))
        stop = -1
        if is_constant(block_values, n):
            out[at] = U8(CONSTANT)
            store_value(out, at + BLOCK_HEADER, block_values[0])
            stop = at + BLOCK_HEADER + width
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
                subarray(values, start + n, n),
                64 if rounded is None else 128,  # rounding has fetched the others
            )
            out[at] = U8(CODED)
            out[at + 1] = U8(c)
            out[at + 29] = U8(flags)
        if stop < 0 or stop >= at + BLOCK_HEADER + n * width:
            store_u32(out, at, U32(RAW))
            for i in range(n):
                store_value(out, at + BLOCK_HEADER + i * width, block_values[i])
            stop = at + BLOCK_HEADER + n * width
        while (stop - at) & 7:
            out[stop] = U8(0)
            stop += 1
        seed = U64(b + 1) * U64(SEED)
        store_u64(out, at + 8, U64(checksum(out, at, (stop - at) >> 2, 2, seed)))
        sizes[b] = stop - at
        at = stop
    return at
