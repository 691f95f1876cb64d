"""The decoding driver for CUDA: blocks in, values out. Trusts nothing in a block but its size."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..block.header import (
    BAD_CHECKSUM,
    BAD_FIELD,
    BAD_KIND,
    BAD_PLANES,
    BAD_SIZE,
    BAD_STREAM,
    BLOCK_HEADER,
    CHECKSUM,
    CODED,
    CODED_HEADER,
    CONSTANT,
    MIN_STREAM_BYTES,
    N_VALUES,
    OK,
    PLANE_BYTES,
    RUN_SYMBOL,
    SYMBOL_BYTES,
)
from ..core.scalar import I32, U32, U64, lesser
from ..entropy.prefix_code import TABLE_SIZE
from .block_reader import DecodedBlock, HeadSources, check_fields, check_plain, copy_values, find_streams
from .block_writer import ceil_bytes
from .grid import THREADS, N, StripCells, block_number, gpu_kernel, seed_of, sum_of_words, weighed
from .joining import SYMBOL_WORDS, count_planes, decode_stream, fill_run, plane_regions, write_values
from .launch_tables import (
    BLOCK_BYTES,
    BLOCK_LOG2,
    COUNT,
    FIRST,
    FIRST_BOOK,
    FIRST_SPAN,
    FRAME,
    MAX_STREAMS,
    N_BOOKS,
    N_SPANS,
    STREAM,
    TARGET,
)
from .words import BlockWords, PackedNumbers


@gpu_kernel
def decode_blocks(frames, coding, tables, out, statuses):
    """Decode a block of the grid's block of a frame.

    Checksum first, by all threads; then a thread for each sub-stream; then all threads merge the planes.

    Args:
        frames: :class:`launch_tables.EncodedFrames`.
        coding: :class:`launch_tables.ValueCoding`.
        tables: :class:`launch_tables.DecodeTables`.
        out: uintW, results: the values of all frames are reached from their places on; undefined for a block that is
            not OK.
        statuses: int32[n_blocks], results, as of :mod:`gcodec.kernels.block.header`.
    """
    symbols = cuda.shared.array(SYMBOL_WORDS, np.uint32)
    lookup = cuda.shared.array(TABLE_SIZE, np.uint16)
    stream_bytes = cuda.shared.array(MAX_STREAMS, np.uint32)
    begins = cuda.shared.array(MAX_STREAMS, np.uint32)
    even_cells = cuda.shared.array(THREADS, np.uint64)
    odd_cells = cuda.shared.array(THREADS, np.uint64)
    bit_cells = cuda.shared.array(THREADS, np.uint64)
    mask_cells = cuda.shared.array(THREADS, np.uint64)
    region = cuda.shared.array(8, np.uint32)
    totals = cuda.shared.array(2, np.uint64)
    failed = cuda.shared.array(1, np.uint32)

    lane, g, words, rows = I32(cuda.threadIdx.x), block_number(), frames.words, frames.rows
    f = frames.owner[g]
    b = I32(g - I32(rows[f, FIRST]))
    block_log2, log2 = U64(rows[f, BLOCK_LOG2]), I32(rows[f, STREAM])
    first_value = U64(U64(b) << block_log2)
    n = I32(lesser(U64(U64(rows[f, COUNT]) - first_value), U64(U64(1) << block_log2)))
    n_streams = I32(I32(I32(n + I32(I32(1) << log2)) - I32(1)) >> log2)
    start = U64(U64(rows[f, FRAME]) + U64(U64(frames.offsets[g]) >> U64(2)))
    target, size = U64(U64(rows[f, TARGET]) + first_value), frames.sizes[g]
    if size < BLOCK_HEADER or size > BLOCK_BYTES:
        if lane == 0:
            statuses[g] = BAD_SIZE
        return
    source = BlockWords(words, start, U32(I32(size >> 2) - I32(1)))
    if lane == 0:
        totals[0], totals[1], failed[0] = U64(0), U64(0), U32(0)
    cuda.syncthreads()
    cuda.atomic.add(totals, 0, sum_of_words(words, start, I32(size >> 2)))
    cuda.syncthreads()
    w0, w1 = U32(words[start]), U32(words[start + U64(N_VALUES >> 2)])
    w2, w3 = U32(words[start + U64(CHECKSUM >> 2)]), U32(words[start + U64((CHECKSUM >> 2) + 1)])
    checksum = U64(U64(totals[0]) + U64(seed_of(b) - U64(weighed(w2, 2) + weighed(w3, 3))))  # all words but its own
    kind, c = U32(w0 & U32(255)), U32(U32(w0 >> U32(8)) & U32(255))
    status = OK
    if checksum != U64(U64(w2) | U64(U64(w3) << U64(32))):
        status = BAD_CHECKSUM
    elif kind > U32(CODED):
        status = BAD_KIND
    elif w1 != U32(n):
        status = BAD_FIELD
    elif kind == U32(CODED):
        if size < CODED_HEADER or c >= U32(rows[f, N_BOOKS]):
            status = BAD_FIELD
    else:
        n_stored = I32(1) if kind == U32(CONSTANT) else n
        status = check_plain(source, size, n_stored, coding)
        if status == OK:
            copy_values(source, n, n_stored, coding, out, target)
    if status != OK or kind != U32(CODED):
        if lane == 0:
            statuses[g] = status
        return

    # A coded block:  header | planes | sub-streams | lengths | references | zeros
    #                        ^ 32     ^ streams_at  ^ lengths_at
    book = I32(I32(rows[f, FIRST_BOOK]) + I32(c))
    n_spans = I32(rows[f, N_SPANS])
    status = check_fields(source, size, n_streams, coding, U32(tables.n_symbols[book]), n_spans)
    symbol_bytes, plane_bytes = U32(words[start + U64(SYMBOL_BYTES >> 2)]), U32(words[start + U64(PLANE_BYTES >> 2)])
    w6, w7 = U32(words[start + U64(MIN_STREAM_BYTES >> 2)]), U32(words[start + U64(RUN_SYMBOL >> 2)])
    streams_at = U32(U32(CODED_HEADER) + plane_bytes)
    lengths = PackedNumbers(U32(streams_at + symbol_bytes), U32(U32(w6 >> U32(16)) & U32(255)))
    block = DecodedBlock(n, log2, symbols, out, target)
    if status == OK:
        cuda.syncthreads()
        if lane == 0:
            totals[0] = U64(0)
        min_bytes = U32(w6 & U32(0xFFFF))
        end = find_streams(source, lengths, n_streams, min_bytes, streams_at, stream_bytes, begins, bit_cells)
        if end != lengths.at:
            status = BAD_STREAM
    if status == OK:
        for i in range(lane, I32(TABLE_SIZE), N):
            lookup[i] = tables.lookups[book, i]
        cuda.syncthreads()
        for s in range(lane, n_streams, N):
            if stream_bytes[s]:
                used = decode_stream(source, U32(U32(begins[s]) << U32(3)), s, lookup, coding.head_bits, block)
                if ceil_bytes(used) != U32(stream_bytes[s]):
                    cuda.atomic.or_(failed, 0, U32(1))
            else:
                fill_run(U32(w7 & U32(255)), s, block)
        cuda.syncthreads()
        status = BAD_STREAM if failed[0] else OK
    if status == OK:
        count_planes(block, tables.infos, book, totals)
        if not plane_regions(coding, tables.widths, totals, plane_bytes, region):
            status = BAD_PLANES
    if status == OK:
        references_at = U32(lengths.at + ceil_bytes(U32(U32(n_streams) * lengths.width)))
        references = PackedNumbers(references_at, U32(w6 >> U32(24)))
        column_value = np.int64(first_value) if U32(w7 >> U32(8)) else np.int64(-1)
        heads = HeadSources(U32(w0 >> U32(16)), references, column_value, I32(rows[f, FIRST_SPAN]), n_spans)
        cells = StripCells(even_cells, odd_cells, bit_cells, mask_cells)
        write_values(source, block, heads, tables, book, coding, region, cells)
    if lane == 0:
        statuses[g] = status
