"""A block's header and its small parts, none of which is trusted."""

from __future__ import annotations

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
from .words import get


@gpu_function
def number_at(words, start, last, at, index, width):
    """Item ``index`` of a packed array that begins at byte ``at`` of a block; ``width`` at most 16."""
    bits = get(words, start, last, U32(U32(at << U32(3)) + U32(U32(index) * width)))
    return U32(bits & U32(U32(U32(1) << width) - U32(1)))


@gpu_function
def has_zeros(words, start, begin, end):
    """Return whether bytes ``begin ... end`` of a block are all zero."""
    found = U32(0)
    for i in range(begin, end):
        found = U32(found | U32(U32(words[start + U64(U32(i) >> U32(2))]) >> U32(U32(U32(i) & U32(3)) << U32(3))))
    return U32(found & U32(255)) == U32(0)


@gpu_function
def check_plain(words, start, size, n_stored, coding):
    """Status of a constant or raw block's header and sizes."""
    if U32(words[start]) >> U32(8):
        return BAD_FIELD
    body = U32(U32(BLOCK_HEADER) + U32(U32(n_stored) * U32(coding.width >> U32(3))))
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(words, start, body, U32(size)) else BAD_FIELD


@gpu_function
def check_fields(words, start, size, n, n_streams, coding, most, n_spans):
    """Status of a coded block's header and sizes."""
    symbol_bytes, base = U32(words[start + U64(SYMBOL_BYTES >> 2)]), U32(U32(words[start]) >> U32(16))
    w5, w6 = U32(words[start + U64(PLANE_BYTES >> 2)]), U32(words[start + U64(MIN_STREAM_BYTES >> 2)])
    w7 = U32(words[start + U64(RUN_SYMBOL >> 2)])
    length_width, reference_width = U32(U32(w6 >> U32(16)) & U32(255)), U32(w6 >> U32(24))
    if (
        base >> coding.head_bits
        or length_width > U32(16)
        or reference_width > coding.head_bits
        or U32(w7 & U32(255)) > most
        or U32(U32(w7 >> U32(8)) & U32(255)) > (U32(HAS_COLUMNS) if n_spans else U32(0))
        or U32(w7 >> U32(16))
    ):
        return BAD_FIELD
    if symbol_bytes > U32(BLOCK_BYTES) or w5 > U32(BLOCK_BYTES):
        return BAD_SIZE
    body = U32(U32(CODED_HEADER) + U32(symbol_bytes + w5))
    body = U32(body + U32(ceil_bytes(U32(U32(n_streams) * length_width))))
    body = U32(body + U32(ceil_bytes(U32(U32(n_streams) * reference_width))))
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(words, start, body, U32(size)) else BAD_FIELD


@gpu_function
def find_streams(words, start, last, at, n_streams, width, least, sizes, begins, cells, first):
    """Bytes of each sub-stream and where it begins, the first at byte ``first`` of the block. Returns the end of the
    last one, or 0 where that is far off."""
    lane, done = I32(cuda.threadIdx.x), U64(first)
    for tile in range(I32(0), n_streams, N):
        s, size = I32(tile + lane), U32(0)
        if s < n_streams:
            size = U32(least + number_at(words, start, last, at, s, width))
        cells[lane] = U64(size)
        scan(cells)
        if s < n_streams:
            sizes[s] = size
            begins[s] = U32(U64(done + U64(U64(cells[lane]) - U64(size))) & U64(0xFFFFFFFF))
        done = U64(done + U64(cells[N - I32(1)]))
        cuda.syncthreads()
    return U32(0) if done > U64(BLOCK_BYTES) else U32(done & U64(0xFFFFFFFF))


@gpu_function
def copy_values(words, start, n, n_stored, coding, out, target):
    """The values of a raw block, or of a constant one, of which one is stored."""
    per_word = I32(U32(32) // coding.width)
    mask = U32(U64(U64(U64(1) << U64(coding.width)) - U64(1)) & U64(0xFFFFFFFF))
    for i in range(I32(cuda.threadIdx.x), n, N):
        k = i if n_stored > 1 else I32(0)
        word = U32(words[start + U64(I32(I32(4) + I32(k // per_word)))])
        out[target + U64(i)] = U32(U32(word >> U32(U32(k % per_word) * coding.width)) & mask)


@gpu_function
def column_reference(spans, heads, first, n_spans, value):
    """The column reference of value number ``value`` (int64) of a frame: uint32, modulo 2**32."""
    for k in range(first, first + n_spans):
        begin = spans[k, 0]
        if begin <= value and value < spans[k, 1]:
            return U32(I32(heads[spans[k, 3] + ((value - begin) % spans[k, 2]) // spans[k, 4]]) & I32(0xFFFF))
    return U32(0)
