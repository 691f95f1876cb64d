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
    IS_PREDICTED,
    MIN_STREAM_BYTES,
    N_VALUES,
    OK,
    PLANE_BYTES,
    PREDICTED,
    RUN_SYMBOL,
    SYMBOL_BYTES,
)
from ..core.scalar import I32, U32, U64, lesser
from ..entropy.prefix_code import TABLE_SIZE
from .block_reader import check_fields, check_plain, copy_values, find_streams
from .block_writer import ceil_bytes
from .grid import THREADS, N, block_number, gpu_kernel, seed_of, sum_of_words, weighed
from .joining import SYMBOL_WORDS, count_planes, decode_stream, fill_run, plane_regions, write_values
from .launch_tables import (
    BLOCK_BYTES,
    BLOCK_LOG2,
    COUNT,
    FIRST,
    FIRST_BOOK,
    FIRST_SPAN,
    FRAME,
    MOST_STREAMS,
    N_BOOKS,
    N_SPANS,
    STREAM,
    TARGET,
)


@gpu_kernel
def decode_blocks(words, frames, owner, offsets, sizes, coding, tables, out, statuses):
    """Decode a block of the grid's block of a frame.

    ``words``: uint32, ``out``: uintW: all frames and their values are reached from their places on; ``frames``:
    int64[n_frames, 10], see :mod:`launch_tables`; ``owner``: int32[n_blocks], which frame a block is of; ``offsets``,
    ``sizes``: int64[n_blocks], bytes from the frame's start, checked to lie inside it and multiples of 8; ``coding``: a
    :class:`launch_tables.ValueCoding`; ``tables``: :class:`launch_tables.DecodeTables`; ``statuses``: int32[n_blocks],
    results as of :mod:`gcodec.kernels.block.header`. Values of a block that is not OK are undefined.
    """
    symbols = cuda.shared.array(SYMBOL_WORDS, np.uint32)
    lookup = cuda.shared.array(TABLE_SIZE, np.uint16)
    stream_bytes = cuda.shared.array(MOST_STREAMS, np.uint32)
    begins = cuda.shared.array(MOST_STREAMS, np.uint32)
    even_cells = cuda.shared.array(THREADS, np.uint64)
    odd_cells = cuda.shared.array(THREADS, np.uint64)
    bit_cells = cuda.shared.array(THREADS, np.uint64)
    mask_cells = cuda.shared.array(THREADS, np.uint64)
    region = cuda.shared.array(8, np.uint32)
    totals = cuda.shared.array(2, np.uint64)
    failed = cuda.shared.array(1, np.uint32)

    lane, g = I32(cuda.threadIdx.x), block_number()
    f = owner[g]
    b = I32(g - I32(frames[f, FIRST]))
    block_log2, log2 = U64(frames[f, BLOCK_LOG2]), I32(frames[f, STREAM])
    first_value = U64(U64(b) << block_log2)
    n = I32(lesser(U64(U64(frames[f, COUNT]) - first_value), U64(U64(1) << block_log2)))
    n_streams = I32(I32(I32(n + I32(I32(1) << log2)) - I32(1)) >> log2)
    start = U64(U64(frames[f, FRAME]) + U64(U64(offsets[g]) >> U64(2)))
    target, size = U64(U64(frames[f, TARGET]) + first_value), sizes[g]
    if size < BLOCK_HEADER or size > BLOCK_BYTES:
        if lane == 0:
            statuses[g] = BAD_SIZE
        return
    if lane == 0:
        totals[0], totals[1], failed[0] = U64(0), U64(0), U32(0)
    cuda.syncthreads()
    cuda.atomic.add(totals, 0, sum_of_words(words, start, I32(size >> 2)))
    cuda.syncthreads()
    w0, w1 = U32(words[start]), U32(words[start + U64(N_VALUES >> 2)])
    w2, w3 = U32(words[start + U64(CHECKSUM >> 2)]), U32(words[start + U64((CHECKSUM >> 2) + 1)])
    found = U64(U64(totals[0]) + U64(seed_of(b) - U64(weighed(w2, 2) + weighed(w3, 3))))
    kind, c = U32(w0 & U32(255)), U32(U32(w0 >> U32(8)) & U32(255))
    status = OK
    if found != U64(U64(w2) | U64(U64(w3) << U64(32))):
        status = BAD_CHECKSUM
    elif kind > U32(CODED):
        status = IS_PREDICTED if kind == U32(PREDICTED) else BAD_KIND
    elif w1 != U32(n):
        status = BAD_FIELD
    elif kind == U32(CODED):
        if size < CODED_HEADER or c >= U32(frames[f, N_BOOKS]):
            status = BAD_FIELD
    else:
        n_stored = I32(1) if kind == U32(CONSTANT) else n
        status = check_plain(words, start, size, n_stored, coding)
        if status == OK:
            copy_values(words, start, n, n_stored, coding, out, target)
    if status != OK or kind != U32(CODED):
        if lane == 0:
            statuses[g] = status
        return
    book = I32(I32(frames[f, FIRST_BOOK]) + I32(c))
    n_spans = I32(frames[f, N_SPANS])
    status = check_fields(words, start, size, n, n_streams, coding, U32(tables.most[book]), n_spans)
    last = U32(I32(size >> 2) - I32(1))
    w4, w5 = U32(words[start + U64(SYMBOL_BYTES >> 2)]), U32(words[start + U64(PLANE_BYTES >> 2)])
    w6, w7 = U32(words[start + U64(MIN_STREAM_BYTES >> 2)]), U32(words[start + U64(RUN_SYMBOL >> 2)])
    streams_at = U32(U32(CODED_HEADER) + w5)
    lengths_at = U32(streams_at + w4)
    length_width = U32(U32(w6 >> U32(16)) & U32(255))
    if status == OK:
        cuda.syncthreads()
        if lane == 0:
            totals[0] = U64(0)
        end = find_streams(words, start, last, lengths_at, n_streams, length_width, U32(w6 & U32(0xFFFF)),
                            stream_bytes, begins, bit_cells, streams_at)
        if end != lengths_at:
            status = BAD_STREAM
    if status == OK:
        for i in range(lane, I32(TABLE_SIZE), N):
            lookup[i] = tables.lookups[book, i]
        cuda.syncthreads()
        for s in range(lane, n_streams, N):
            count = lesser(I32(I32(1) << log2), I32(n - I32(s << log2)))
            row = U32(U32(U32(s) << U32(log2 - I32(2))) + U32(s))
            if stream_bytes[s]:
                used = decode_stream(words, start, last, U32(U32(begins[s]) << U32(3)), count, row, lookup,
                                     coding.head_bits, symbols, out, U64(target + U64(I32(s << log2))))
                if ceil_bytes(used) != U32(stream_bytes[s]):
                    cuda.atomic.or_(failed, 0, U32(1))
            else:
                fill_run(U32(w7 & U32(255)), count, row, symbols)
        cuda.syncthreads()
        status = BAD_STREAM if failed[0] else OK
    if status == OK:
        count_planes(symbols, n, log2, tables.infos, book, totals)
        if not plane_regions(coding, tables.widths, totals, w5, region):
            status = BAD_PLANES
    if status == OK:
        references_at = U32(lengths_at + ceil_bytes(U32(U32(n_streams) * length_width)))
        column_value = np.int64(first_value) if U32(w7 >> U32(8)) else np.int64(-1)
        write_values(words, start, last, n, log2, book, U32(w0 >> U32(16)), references_at, U32(w6 >> U32(24)),
                    column_value, I32(frames[f, FIRST_SPAN]), n_spans, coding, tables, symbols, region, even_cells,
                    odd_cells, bit_cells, mask_cells, out, target)
    if lane == 0:
        statuses[g] = status
