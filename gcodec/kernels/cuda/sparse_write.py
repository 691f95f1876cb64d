"""Kernels that write sparse blocks: first the bytes of each sub-stream are counted, then bits go to where they belong.

    write_sub_streams     a block of the grid for each sub-stream; launched twice, to measure and to write
    seal_sparse_blocks    headers, lengths of sub-streams, raw blocks, checksums; and the prelude, which the host makes
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..block.header import BLOCK_HEADER, CHECKSUM, CODED_HEADER, N_VALUES, RAW, SPARSE
from ..core.scalar import I32, I64, U32, U64, lesser
from ..entropy.changes import MAX_CLASSES, OTHER, category_bits, category_of, first_of
from .grid import THREADS, N, block_number, gpu_function, gpu_kernel, scan, seed_of, sum_of_words
from .sparse_find import symbols_of_change
from .sparse_tables import (
    FIRST_STREAM,
    IS_RAW,
    LENGTH_BITS,
    MIN_BYTES,
    PLACE_WORD,
    SIZE_BYTES,
    STREAMS_BYTES,
)


@gpu_function
def put_bits(words, bit, item, width):
    """OR an item of at most 32 bits, which has no others, into ``words`` (uint32, zeros so far) at ``bit`` (uint64)."""
    word, shift = U64(bit >> U64(5)), U32(bit & U64(31))
    cuda.atomic.or_(words, word, U32(U32(item) << shift))
    if U32(shift + width) > U32(32):
        cuda.atomic.or_(words, U64(word + U64(1)), U32(U32(item) >> U32(U32(32) - shift)))


@gpu_function
def bits_after(symbol):
    """Return how many bits follow the symbol of a step, int64."""
    return I64(((symbol + 1) >> 1) - 1) if symbol else I64(0)


@gpu_function
def put_number(words, bit, number, category, entry):
    """Write a number: the code of its category, ``entry``, and the bits below its highest; return the bit behind it.

    Args:
        words: As of :func:`put_bits`.
        bit: As of :func:`put_bits`.
        number: The number, uint32.
        category: Its category, int64.
        entry: Code and length of its symbol, as of :class:`changes.ChangeCodes`, uint32.
    """
    length, count = U32(entry & U32(15)), U32(category_bits(category))
    rest = U32(U32(number) - U32(first_of(category)))
    put_bits(words, bit, U32(U32(entry >> U32(4)) | U32(rest << length)), U32(length + count))
    return U64(U64(bit + U64(length)) + U64(count))


@gpu_function
def bits_of_change(codes, k, change):
    """Return the bits of a change of class ``k``: uint64."""
    entry = U32(codes.classes[k, 3 * change.category + change.kind])
    bits = U64(U64(entry & U32(15)) + U64(category_bits(change.category)))
    if change.kind == OTHER:
        step = U32(codes.steps[change.symbol])
        bits = U64(U64(bits + U64(step & U32(15))) + U64(bits_after(change.symbol)))
    return bits


@gpu_function
def put_change(words, bit, codes, k, change):
    """Write a change of class ``k`` at ``bit``; see :func:`put_bits`."""
    entry = U32(codes.classes[k, 3 * change.category + change.kind])
    bit = put_number(words, bit, change.gap, change.category, entry)
    if change.kind == OTHER:
        entry, count = U32(codes.steps[change.symbol]), U64(bits_after(change.symbol))
        length = U32(entry & U32(15))
        put_bits(words, bit, U32(entry >> U32(4)), length)
        magnitude = change.step if change.symbol & 1 else U64(U64(0) - change.step)
        rest = U32(magnitude & U64(U64(U64(1) << count) - U64(1)))
        put_bits(words, U64(bit + U64(length)), rest, U32(count))


@gpu_kernel
def write_sub_streams(found, codes, sign, sizes, begins, out):
    """Measure or write a sub-stream.

        number of changes of a class | change | change | ... | number of changes of the next class | ...

    Args:
        found: The :class:`sparse_tables.FoundChanges`.
        codes: The :class:`sparse_tables.GpuChangeCodes`.
        sign: 2**(W - 1), uint64.
        sizes: uint32[n_streams], results: bytes of each.
        begins: int64[n_streams]: byte of ``out`` at which each begins; -1 for one that is only measured.
        out: uint32, the frame, zeros so far; result.
    """
    cells = cuda.shared.array(THREADS, np.uint64)
    lane, g = I32(cuda.threadIdx.x), block_number()
    begin, first, total = begins[g], found.starts[g], U32(0)
    for k in range(MAX_CLASSES):
        total = U32(total + U32(found.counts[g, k]))
    place, done = U64(0), U64(0)
    if begin >= 0:
        place = U64(U64(begin) << U64(3))
    if total:
        for k in range(MAX_CLASSES):
            if codes.is_empty[k] == 0:
                count = I32(found.counts[g, k])
                category = I64(category_of(I64(count)))
                entry = U32(codes.counts[category])
                if lane == 0 and begin >= 0:
                    put_number(out, U64(place + done), U32(count), category, entry)
                done = U64(done + U64(U64(entry & U32(15)) + U64(category_bits(category))))
                for tile in range(I32(0), count, N):
                    i, own = I32(tile + lane), U64(0)
                    at = first + lesser(i, I32(count - I32(1)))
                    change = symbols_of_change(found, first, at, sign)
                    if i < count:
                        own = bits_of_change(codes, k, change)
                    cells[lane] = own
                    scan(cells)
                    if i < count and begin >= 0:
                        put_change(out, U64(U64(U64(place + done) + U64(cells[lane])) - own), codes, k, change)
                    done = U64(done + U64(cells[N - I32(1)]))
                    cuda.syncthreads()
                first += count
    if lane == 0:
        sizes[g] = U32(U64(done + U64(7)) >> U64(3))


@gpu_function
def put_raw(source, b, n, place, out):
    """Write the values of a raw block.

    Args:
        source: The :class:`sparse_tables.SparseSource`.
        b: Number of the block, int32.
        n: Its values, int32.
        place: Word of ``out`` at which it begins, uint64.
        out: As of :func:`write_sub_streams`.
    """
    per_word, first = I32(U32(32) // source.width), U64(U64(b) << U64(source.block_log2))
    for j in range(I32(cuda.threadIdx.x), I32(I32(I32(n + per_word) - I32(1)) // per_word), N):
        word = U64(0)
        for k in range(per_word):
            i = I32(I32(j * per_word) + k)
            if i < n:
                word = U64(word | U64(U64(source.values[first + U64(i)]) << U64(U32(U32(k) * source.width))))
        out[U64(place + U64(BLOCK_HEADER >> 2)) + U64(j)] = U32(word)


@gpu_function
def put_sparse_header(row, source, n, sizes, place, out):
    """Write the header of a sparse block, all but its first four words, and the lengths of its sub-streams.

    Args:
        row: int64[8], the block's row of :func:`seal_sparse_blocks`.
        source: The :class:`sparse_tables.SparseSource`.
        n: Its values, int32.
        sizes: As of :func:`write_sub_streams`.
        place: Word of ``out`` at which it begins, uint64.
        out: As of :func:`write_sub_streams`.
    """
    lane, log2, width = I32(cuda.threadIdx.x), source.stream_log2, U32(row[LENGTH_BITS])
    n_streams = I32(U32(U32(U32(U32(n) + U32(U32(1) << log2)) - U32(1)) >> log2))
    lengths = U64(U64(U64(U64(place << U64(2)) + U64(CODED_HEADER)) + U64(row[STREAMS_BYTES])) << U64(3))
    if width:
        for s in range(lane, n_streams, N):
            length = U32(U32(sizes[row[FIRST_STREAM] + s]) - U32(row[MIN_BYTES]))
            put_bits(out, U64(lengths + U64(U32(U32(s) * width))), length, width)
    if lane == 0:
        out[place + U64(4)] = U32(row[STREAMS_BYTES])
        out[place + U64(5)] = U32(row[MIN_BYTES])
        out[place + U64(6)] = U32(width | U32(log2 << U32(8)))


@gpu_kernel
def seal_sparse_blocks(rows, source, sizes, prelude, out):
    """Write what a block of a frame has besides its sub-streams; one more block of the grid copies the prelude.

    Blocks have codebook 0 and template 0.

    Args:
        rows: int64[n_blocks, 8], columns ``PLACE_WORD`` ... ``FIRST_STREAM``.
        source: The :class:`sparse_tables.SparseSource`.
        sizes: As of :func:`write_sub_streams`.
        prelude: uint32, the words of the prelude.
        out: uint32, the frame, in which only sub-streams are written so far; result.
    """
    total = cuda.shared.array(1, np.uint64)
    lane, b = I32(cuda.threadIdx.x), block_number()
    if b == len(rows):
        for i in range(lane, I32(len(prelude)), N):
            out[i] = prelude[i]
        return
    log2 = U64(source.block_log2)
    n = I32(lesser(U64(source.n_values - U64(U64(b) << log2)), U64(U64(1) << log2)))
    row, place = rows[b], U64(rows[b, PLACE_WORD])
    if row[IS_RAW]:
        put_raw(source, b, n, place, out)
    else:
        put_sparse_header(row, source, n, sizes, place, out)
    if lane == 0:
        out[place] = U32(RAW) if row[IS_RAW] else U32(SPARSE)
        out[place + U64(N_VALUES >> 2)] = U32(n)
        total[0] = U64(seed_of(b))
    cuda.syncthreads()
    cuda.atomic.add(total, 0, sum_of_words(out, place, I32(row[SIZE_BYTES] >> 2)))
    cuda.syncthreads()
    if lane == 0:
        out[place + U64(CHECKSUM >> 2)] = U32(U64(total[0]) & U64(0xFFFFFFFF))
        out[place + U64((CHECKSUM >> 2) + 1)] = U32(U64(total[0]) >> U64(32))
