"""Blocks without sub-streams: constant and raw ones, of which nothing is trusted."""

from __future__ import annotations

from numba import cuda

from ..block.header import BAD_FIELD, BAD_SIZE, BLOCK_HEADER, OK
from ..core.scalar import I32, U32, U64
from .grid import N, gpu_function


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
