"""The encoding driver: values in, blocks out."""

from __future__ import annotations

import numpy as np

from . import planes
from .blocks import (
    BLOCK_HEADER, CODED, CODED_HEADER, CONSTANT, RAW, SEED, find_references, find_symbols, is_constant, pack_numbers,
    round_values, store_value,
)
from .jit import kernel
from .memory import store_u16, store_u32, store_u64, view, view_if_any, width_of
from .scalar import U8, U16, U32, U64
from .streams import checksum, encode_streams


@kernel
def split(values, symbols, n, stream, n_planes, widths, mark_of, shift, uniform, tail_bits, words, dense, lone, bytes_, marks, items,
          n_items, general, out, at):
    """All planes of a block; which scratch is there says which layout it is. Returns the end."""
    if general is not None:
        for p in range(n_planes):
            at = planes.split_plane(values, symbols, n, stream, tail_bits, mark_of, p, shift[p], widths[p], out, at)
        return at
    if items is not None:
        return planes.split_narrow(values, symbols, n, stream, n_planes, widths, mark_of, shift, uniform, marks, words, bytes_,
                                   items, n_items, out, at)
    if dense is not None:
        return planes.split_24(values, symbols, n, stream, words, dense, out, at)
    if lone is not None:
        return planes.split_8(values, symbols, n, stream, lone, out, at)
    return at


@kernel
def encode_coded(values, levels, n, stream, infinity, base, with_references, head_bits, head_shift, first, count, number,
                 ranges, table, escape_code, escape_length, run_symbol, n_planes, widths, mark_of, shift, uniform, tail_bits,
                 references, chunk, symbols, words, dense, lone, bytes_, marks, items, n_items, general, stream_bytes, out, at):
    """Body of a coded block at ``at``, its header's own fields included. Returns the end, or -1 if it cannot be coded."""
    head_mask = (1 << head_bits) - 1
    n_streams = (n + stream - 1) // stream
    width = 0
    if with_references:
        base, width = find_references(values, n, stream, head_shift, head_mask, references)
    else:
        for s in range(n_streams):
            references[s] = 0
    find_symbols(values, levels, n, stream, infinity, base, references, head_shift, head_mask, first, count, number,
                 ranges, chunk, symbols)
    planes_at = at + CODED_HEADER
    streams_at = split(values, symbols, n, stream, n_planes, widths, mark_of, shift, uniform, tail_bits, words, dense, lone, bytes_,
                       marks, items, n_items, general, out, planes_at)
    end = encode_streams(symbols, values, n, stream, table, escape_code, escape_length, head_bits, head_shift, run_symbol,
                         out, streams_at, stream_bytes)
    if end < 0:
        return -1
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
    return pack_numbers(references, n_streams, 0, width, out, end)


@kernel
def encode_blocks(values, levels, n_values, block, stream, begin, end, drops, infinity, smallest_normal, nearest, prune,
                  choice, bases, with_references, head_bits, head_shift, first, count, number, ranges, tables,
                  escape_codes, escape_lengths, run_symbols, n_planes, widths, mark_of, shift, uniform, tail_bits,
                  rounded, references, chunk, symbols, words, dense, lone, bytes_, marks, items, n_items, general, stream_bytes,
                  out, at, sizes):
    """Encode blocks ``begin ... end`` back to back from byte ``at`` of ``out`` and note their ``sizes`` (uint32[n_blocks]).

    ``levels``: uint8[n_values], or None (all of level 0); ``choice``: int64[n_blocks], the codebook of each block (-1: store
    raw); ``bases``: int64[n_blocks]; ``first ... run_symbols`` and ``mark_of, shift``: tables of all codebooks, first axis the
    codebook; ``rounded``: None where nothing is rounded; ``rounded ... stream_bytes``: scratch of one block (``codec.Scratch``).
    ``out`` needs room for the raw size of these blocks, 24 bytes a block and the worst case of one coded block. Returns the end.
    """
    width = width_of(values) // 8
    for b in range(begin, end):
        start = b * block
        n = min(block, n_values - start)
        block_values = view(values, start, n)
        block_levels = view_if_any(levels, start, n)
        if rounded is not None:
            round_values(block_values, block_levels, n, drops, infinity, smallest_normal, nearest, prune, symbols, rounded)
            block_values = view(rounded, 0, n)
        store_u32(out, at, U32(0))
        store_u32(out, at + 4, U32(n))
        stop = -1
        if is_constant(block_values, n):
            out[at] = U8(CONSTANT)
            store_value(out, at + BLOCK_HEADER, block_values, 0)
            stop = at + BLOCK_HEADER + width
        elif choice[b] >= 0:
            c = choice[b]
            stop = encode_coded(
                block_values, block_levels, n, stream, infinity, bases[b], with_references, head_bits, head_shift, first[c],
                count[c], number[c], ranges[c], tables[c], escape_codes[c], escape_lengths[c], run_symbols[c], n_planes,
                widths, mark_of[c], shift[c], uniform, tail_bits, references, chunk, symbols, words, dense, lone, bytes_, marks, items,
                n_items, general, stream_bytes, out, at)
            out[at] = U8(CODED)
            out[at + 1] = U8(c)
        if stop < 0 or stop >= at + BLOCK_HEADER + n * width:
            store_u32(out, at, U32(RAW))
            for i in range(n):
                store_value(out, at + BLOCK_HEADER + i * width, block_values, i)
            stop = at + BLOCK_HEADER + n * width
        while (stop - at) & 7:
            out[stop] = U8(0)
            stop += 1
        seed = U64(b + 1) * U64(SEED)
        store_u64(out, at + 8, U64(checksum(out, at, (stop - at) >> 2, 2, seed)))
        sizes[b] = stop - at
        at = stop
    return at
