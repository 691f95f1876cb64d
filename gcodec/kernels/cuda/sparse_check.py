"""Kernels that check a frame of sparse blocks: the hash of its base, its blocks' checksums and headers."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..block.header import (
    BAD_CHECKSUM,
    BAD_FIELD,
    BAD_KIND,
    BAD_SIZE,
    BLOCK_HEADER,
    CHANGE_LENGTH_WIDTH,
    CHECKSUM,
    CODED,
    CODED_HEADER,
    CONSTANT,
    INNER_BYTES,
    N_VALUES,
    OK,
    PREDICTED,
    SPARSE,
    SYMBOL_BYTES,
)
from ..block.sparse_decode import MAX_LENGTH_WIDTH
from ..core.scalar import I32, U32, U64, lesser
from .block_reader import check_plain, has_zeros
from .grid import N, block_number, gpu_function, gpu_kernel, seed_of, sum_of_words, weighed
from .sparse_tables import MAX_SPARSE_BYTES
from .words import BlockWords

PART_LOG2 = 16  #: of the words that a block of the grid sums


@gpu_kernel
def sum_words(values, shape, sums):
    """Sum a part of the words of an array as its hash does (docs/format.md section 8).

    Args:
        values: uintW[n_values], whose bytes, padded with zeros, are the words.
        shape: The :class:`sparse_tables.SparseShape`.
        sums: uint64[n_parts], results.
    """
    total = cuda.shared.array(1, np.uint64)
    lane, g = I32(cuda.threadIdx.x), block_number()
    per_word = U64(U32(32) // shape.width)
    n_words = U64(U64(U64(shape.n_values + per_word) - U64(1)) // per_word)
    first = U64(U64(g) << U64(PART_LOG2))
    n = I32(lesser(U64(n_words - first), U64(U64(1) << U64(PART_LOG2))))
    if lane == 0:
        total[0] = U64(0)
    cuda.syncthreads()
    share = U64(0)
    for j in range(lane, n, N):
        index, word = U64(first + U64(j)), U64(0)
        for k in range(I32(per_word)):
            i = U64(U64(index * per_word) + U64(k))
            if i < shape.n_values:
                word = U64(word | U64(U64(values[i]) << U64(U32(U32(k) * shape.width))))
        share = U64(share + weighed(U32(word), U32(index & U64(0xFFFFFFFF))))
    cuda.atomic.add(total, 0, share)
    cuda.syncthreads()
    if lane == 0:
        sums[g] = U64(total[0])


@gpu_function
def values_in(shape, b):
    """Return the number of values of block ``b``: int32."""
    log2 = U64(shape.block_log2)
    return I32(lesser(U64(shape.n_values - U64(U64(b) << log2)), U64(U64(1) << log2)))


@gpu_function
def block_of(frame, b):
    """Return the :class:`words.BlockWords` of block ``b``."""
    start = U64(U64(frame.offsets[b]) >> U64(2))
    return BlockWords(frame.words, start, U32(I32(frame.sizes[b] >> 2) - I32(1)))


@gpu_function
def book_of(block, shape):
    """Return the number of a sparse block's codebook among those of changes: int32."""
    return I32(I32(U32(U32(block.words[block.start]) >> U32(8)) & U32(255)) - I32(shape.first_book))


@gpu_function
def stream_log2_of(block):
    """Return log2 of the values per sub-stream of a sparse block: uint32."""
    return U32(U32(U32(block.words[block.start + U64(CHANGE_LENGTH_WIDTH >> 2)]) >> U32(8)) & U32(255))


@gpu_function
def check_sparse_header(block, size, n, shape, books, is_base):
    """Return the status of a sparse block's header and size; BAD_KIND for one without a base, which the host decodes.

        word 0                          word 4          word 5              word 6                          word 7
        kind | codebook | template      symbol_bytes    min_stream_bytes    length_width | stream_log2 | 0  inner_bytes

    Args:
        block: The :class:`words.BlockWords`.
        size: Bytes of the block, int64.
        n: Values of the block, int32.
        shape: The :class:`sparse_tables.SparseShape`.
        books: The :class:`sparse_tables.ChangeBooks`.
        is_base: As in :class:`sparse_tables.SparseFrame`.
    """
    words, start = block.words, block.start
    if size < CODED_HEADER:
        return BAD_FIELD
    c, template = book_of(block, shape), U32(U32(words[start]) >> U32(16))
    w6, inner_bytes = U32(words[start + U64(CHANGE_LENGTH_WIDTH >> 2)]), U32(words[start + U64(INNER_BYTES >> 2)])
    length_width, log2 = U32(w6 & U32(255)), stream_log2_of(block)
    if U32(w6 >> U32(16)) or c < 0 or c >= len(books.n_classes) or U32(inner_bytes & U32(7)):
        return BAD_FIELD
    if books.n_classes[c] == 0:
        return BAD_KIND
    if template >= U32(len(is_base)) or is_base[template] == 0 or inner_bytes:
        return BAD_FIELD
    if length_width > U32(MAX_LENGTH_WIDTH) or log2 < U32(6) or log2 > shape.block_log2:
        return BAD_FIELD
    symbol_bytes = U32(words[start + U64(SYMBOL_BYTES >> 2)])
    if symbol_bytes > U32(MAX_SPARSE_BYTES):  # or else sums of 32 bits might wrap
        return BAD_SIZE
    n_streams = U32(U32(U32(U32(n) + U32(U32(1) << log2)) - U32(1)) >> log2)
    packed = U32(U32(U32(n_streams * length_width) + U32(7)) >> U32(3))
    body = U32(U32(U32(CODED_HEADER) + symbol_bytes) + packed)
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(block, body, U32(size)) else BAD_FIELD


@gpu_kernel
def check_sparse_blocks(frame, shape, books, logs, statuses):
    """Check a block of a frame, as far as its checksum and its header say it.

    Args:
        frame: The :class:`sparse_tables.SparseFrame`.
        shape: The :class:`sparse_tables.SparseShape`.
        books: The :class:`sparse_tables.ChangeBooks`.
        logs: Results, as in :class:`sparse_tables.SubStreams`.
        statuses: int32[n_blocks], results, as of :mod:`gcodec.kernels.block.header`.
    """
    total = cuda.shared.array(1, np.uint64)
    lane, b, size = I32(cuda.threadIdx.x), block_number(), frame.sizes[block_number()]
    if size < BLOCK_HEADER or size > MAX_SPARSE_BYTES:
        if lane == 0:
            logs[b], statuses[b] = U32(0), BAD_SIZE
        return
    block, n = block_of(frame, b), values_in(shape, b)
    words, start = block.words, block.start
    if lane == 0:
        total[0] = U64(0)
    cuda.syncthreads()
    cuda.atomic.add(total, 0, sum_of_words(words, start, I32(size >> 2)))
    cuda.syncthreads()
    if lane > 0:
        return
    kind, w1 = U32(U32(words[start]) & U32(255)), U32(words[start + U64(N_VALUES >> 2)])
    w2, w3 = U32(words[start + U64(CHECKSUM >> 2)]), U32(words[start + U64((CHECKSUM >> 2) + 1)])
    checksum = U64(U64(total[0]) + U64(seed_of(b) - U64(weighed(w2, 2) + weighed(w3, 3))))  # all words but its own
    status, log2 = OK, U32(0)
    if checksum != U64(U64(w2) | U64(U64(w3) << U64(32))):
        status = BAD_CHECKSUM
    elif kind == U32(CODED) or kind == U32(PREDICTED) or kind > U32(SPARSE):
        status = BAD_KIND
    elif w1 != U32(n):
        status = BAD_FIELD
    elif kind == U32(SPARSE):
        status = check_sparse_header(block, size, n, shape, books, frame.is_base)
        log2 = stream_log2_of(block) if status == OK else U32(0)
    else:
        status = check_plain(block, size, I32(1) if kind == U32(CONSTANT) else n, shape)
    logs[b], statuses[b] = log2, status
