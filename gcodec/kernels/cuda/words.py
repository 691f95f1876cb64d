"""Bits into words and out of them.

A block's bytes are made in *regions*: each plane, the sub-streams, their lengths, their references. Items of a tile are
put into a window in shared memory, one part for each region, and whole words go from there to the slot in global
memory, neighbors by neighbors. A word that two regions share is written by both, by an atomic OR into zeros.
"""

from __future__ import annotations

from numba import cuda

from ..core.scalar import I32, U32, U64, lesser
from .grid import N, gpu_function, weighed


@gpu_function
def put(window, place, item, width):
    """OR an item of at most 32 bits into ``window`` (shared, uint32) at bit ``place``."""
    word, shift = U32(U32(place) >> U32(5)), U32(U32(place) & U32(31))
    cuda.atomic.or_(window, word, U32(U32(item) << shift))
    if U32(shift + width) > U32(32):
        cuda.atomic.or_(window, U32(word + U32(1)), U32(U32(item) >> U32(U32(32) - shift)))


@gpu_function
def get(words, start, last, place):
    """32 bits from bit ``place`` of a block that begins at word ``start`` (uint64); words after ``last`` (uint32), its
    last one, are taken to be that."""
    word, shift = U32(U32(place) >> U32(5)), U32(U32(place) & U32(31))
    low, high = lesser(word, last), lesser(U32(word + U32(1)), last)
    both = U64(U64(words[start + U64(low)]) | U64(U64(words[start + U64(high)]) << U64(32)))
    return U32(U64(both >> U64(shift)))


@gpu_function
def flush(window, begin, before, after, first, slots, slot):
    """Write a region's words that are complete, keep the rest, and clear the window behind it.

    ``begin``: first word of the region's part of ``window``; ``before``, ``after``: bit of the block up to which the
    region was done before this tile and is now; ``first``: bit at which the region begins; all of them uint32;
    ``slots``: uint32, ``slot``: where in it the block lies. Returns this thread's share of the checksum.
    """
    lane, total = I32(cuda.threadIdx.x), U64(0)
    here = U32(U32(before) >> U32(5))
    n = I32(U32(U32(after) >> U32(5)) - here)
    shared = here == U32(U32(first) >> U32(5))
    cuda.syncthreads()
    for i in range(lane, n, N):
        word, index = U32(window[U32(begin + U32(i))]), U32(here + U32(i))
        total = U64(total + weighed(word, index))
        if i == 0 and shared:
            cuda.atomic.or_(slots, slot + U64(index), word)
        else:
            slots[slot + U64(index)] = word
    cuda.syncthreads()
    if n > 0:
        rest = U32(window[U32(begin + U32(n))])  # of the last word, incomplete: it comes first in the next tile
        cuda.syncthreads()
        for i in range(lane, I32(n + I32(1)), N):
            window[U32(begin + U32(i))] = rest if i == 0 else U32(0)
    return total


@gpu_function
def finish(window, begin, end, slots, slot):
    """Write a region's last word, if it is incomplete, by one thread. ``end``: bit at which the region ends. Returns
    the word's share of the checksum."""
    if U32(U32(end) & U32(31)) == U32(0):
        return U64(0)
    word, index = U32(window[U32(begin)]), U32(U32(end) >> U32(5))
    cuda.atomic.or_(slots, slot + U64(index), word)
    return weighed(word, index)
