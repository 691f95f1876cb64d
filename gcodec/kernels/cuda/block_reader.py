"""A block's header and its small parts, none of which is trusted."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda

from ..block.header import (
    BAD_FIELD,
    BAD_SIZE,
    BLOCK_HEADER,
    CODED_HEADER,
    HAS_COLUMNS,
    MIN_STREAM_BYTES,
    OK,
    PLANE_BYTES,
    RUN_SYMBOL,
    SYMBOL_BYTES,
)
from ..core.scalar import I32, U32, U64
from .block_writer import ceil_bytes
from .grid import N, gpu_function, scan
from .launch_tables import BLOCK_BYTES
from .words import number_at


class DecodedBlock(NamedTuple):
    """A coded block while it is decoded: first its symbols, then its values.

    Attributes:
        n: Number of values, int32.
        log2: log2 of the values of a sub-stream, int32.
        symbols: Symbols of the values, four in a word: shared, uint32, see :func:`joining.symbol_at`.
        out: Values of all frames, uintW; until a value is known, the head of an escaped one lies there.
        at: Where in ``out`` the block's first value goes, uint64.
    """

    n: Any
    log2: Any
    symbols: Any
    out: Any
    at: Any


class HeadSources(NamedTuple):
    """The parts that make up the head of a coded value, beside the relative head of its symbol.

    Attributes:
        base: Reference head of the block, uint32.
        references: What the block has for each sub-stream, :class:`words.PackedNumbers`.
        first_value: Number of the block's first value in the frame, int64; -1 where there are no column references.
        first_span: First row of the frame's column references, int32.
        n_spans: How many rows it has, int32.
    """

    base: Any
    references: Any
    first_value: Any
    first_span: Any
    n_spans: Any


@gpu_function
def has_zeros(block, begin, end):
    """Return whether bytes ``begin ... end`` of a block are all zero."""
    bits = U32(0)
    for i in range(begin, end):
        word = U32(block.words[block.start + U64(U32(i) >> U32(2))])
        bits = U32(bits | U32(word >> U32(U32(U32(i) & U32(3)) << U32(3))))
    return U32(bits & U32(255)) == U32(0)


@gpu_function
def check_plain(block, size, n_stored, coding):
    """Return the status of a constant or raw block's header and size.

    Args:
        block: The :class:`words.BlockWords`.
        size: Bytes of the block, int64.
        n_stored: Number of values that it stores, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
    """
    if U32(block.words[block.start]) >> U32(8):
        return BAD_FIELD
    body = U32(U32(BLOCK_HEADER) + U32(U32(n_stored) * U32(coding.width >> U32(3))))
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(block, body, U32(size)) else BAD_FIELD


@gpu_function
def check_fields(block, size, n_streams, coding, n_symbols, n_spans):
    """Return the status of a coded block's header and size.

        word 4               word 5              word 6                                      word 7
        symbol_bytes         plane_bytes         min_stream_bytes | l. width | ref. width    run_symbol | flags | 0

    Args:
        block: The :class:`words.BlockWords`.
        size: Bytes of the block, int64.
        n_streams: Number of its sub-streams, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        n_symbols: Number of symbols of the block's codebook, uint32.
        n_spans: How many column references the frame has, int32.
    """
    words, start = block.words, block.start
    symbol_bytes, base = U32(words[start + U64(SYMBOL_BYTES >> 2)]), U32(U32(words[start]) >> U32(16))
    plane_bytes, w6 = U32(words[start + U64(PLANE_BYTES >> 2)]), U32(words[start + U64(MIN_STREAM_BYTES >> 2)])
    w7 = U32(words[start + U64(RUN_SYMBOL >> 2)])
    length_width, reference_width = U32(U32(w6 >> U32(16)) & U32(255)), U32(w6 >> U32(24))
    if (
        base >> coding.head_bits
        or length_width > U32(16)
        or reference_width > coding.head_bits
        or U32(w7 & U32(255)) > n_symbols
        or U32(U32(w7 >> U32(8)) & U32(255)) > (U32(HAS_COLUMNS) if n_spans else U32(0))
        or U32(w7 >> U32(16))
    ):
        return BAD_FIELD
    if symbol_bytes > U32(BLOCK_BYTES) or plane_bytes > U32(BLOCK_BYTES):  # or else sums of 32 bits might wrap
        return BAD_SIZE
    body = U32(U32(CODED_HEADER) + U32(symbol_bytes + plane_bytes))
    body = U32(body + U32(ceil_bytes(U32(U32(n_streams) * length_width))))
    body = U32(body + U32(ceil_bytes(U32(U32(n_streams) * reference_width))))
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(block, body, U32(size)) else BAD_FIELD


@gpu_function
def find_streams(block, lengths, n_streams, min_bytes, first, sizes, begins, cells):
    """Find the bytes of each sub-stream and where it begins: the sums of the lengths before it.

    Args:
        block: The :class:`words.BlockWords`.
        lengths: Lengths less ``min_bytes``, :class:`words.PackedNumbers`.
        n_streams: Number of sub-streams, int32.
        min_bytes: Bytes of the shortest one, uint32.
        first: Byte of the block at which the first one begins, uint32.
        sizes: Results, shared, uint32[MAX_STREAMS].
        begins: Results, the byte of the block at which each begins: shared, uint32[MAX_STREAMS].
        cells: Scratch, shared, uint64[THREADS].

    Returns:
        The end of the last one, uint32, or 0 where that is far off.
    """
    lane, done = I32(cuda.threadIdx.x), U64(first)
    for tile in range(I32(0), n_streams, N):  # a thread for each sub-stream; a block has up to twice as many
        s, size = I32(tile + lane), U32(0)
        if s < n_streams:
            size = U32(min_bytes + number_at(block, lengths, s))
        cells[lane] = U64(size)
        scan(cells)
        if s < n_streams:
            sizes[s] = size
            begins[s] = U32(U64(done + U64(U64(cells[lane]) - U64(size))) & U64(0xFFFFFFFF))
        done = U64(done + U64(cells[N - I32(1)]))
        cuda.syncthreads()
    return U32(0) if done > U64(BLOCK_BYTES) else U32(done & U64(0xFFFFFFFF))


@gpu_function
def copy_values(block, n, n_stored, coding, out, target):
    """Copy the values of a raw block, or of a constant one, of which one is stored.

    Args:
        block: The :class:`words.BlockWords`.
        n: Number of values, int32.
        n_stored: Number of values that the block stores, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        out: Values of all frames, uintW, results.
        target: Where in ``out`` the first one goes, uint64.
    """
    per_word = I32(U32(32) // coding.width)
    mask = U32(U64(U64(U64(1) << U64(coding.width)) - U64(1)) & U64(0xFFFFFFFF))
    for i in range(I32(cuda.threadIdx.x), n, N):
        k = i if n_stored > 1 else I32(0)
        word = U32(block.words[block.start + U64(I32(I32(4) + I32(k // per_word)))])
        out[target + U64(i)] = U32(U32(word >> U32(U32(k % per_word) * coding.width)) & mask)


@gpu_function
def column_reference(tables, sources, value):
    """Return the column reference of value number ``value`` (int64) of a frame: uint32, modulo 2**32.

        span      first value | last value | number of columns | first head | values per head
        head      heads[first head + (value - first value) % number of columns // values per head]
    """
    spans = tables.spans
    for k in range(sources.first_span, sources.first_span + sources.n_spans):
        begin = spans[k, 0]
        if begin <= value and value < spans[k, 1]:
            return U32(I32(tables.heads[spans[k, 3] + ((value - begin) % spans[k, 2]) // spans[k, 4]]) & I32(0xFFFF))
    return U32(0)
