"""Bits into words and out of them.

A block's bytes are made in *regions*: each plane, the sub-streams, their lengths, their references. Items of a tile are
put into a window in shared memory, one part for each region, and whole words go from there to the slot in global
memory, neighbors by neighbors. A word that two regions share is written by both, by an atomic OR into zeros.

    window    | part of plane 0 | part of plane 1 | part of the codes |            shared: what a tile adds
    slot      header | plane 0 ......... | plane 1 ......... | codes ......        global: the whole block
                           ^ done: words before are written; the last one, incomplete, is first in the window
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda

from ..core.scalar import I32, U32, U64, lesser
from .grid import N, gpu_function, weighed


class BlockWords(NamedTuple):
    """The words of an encoded block, which none is read beyond.

    Attributes:
        words: Words of all frames of a launch, uint32.
        start: Word at which the block begins, uint64.
        last: Number of the block's last word, uint32.
    """

    words: Any
    start: Any
    last: Any


class PackedNumbers(NamedTuple):
    """A packed array of numbers in an encoded block.

    Attributes:
        at: Byte of the block at which it begins, uint32.
        width: Bits of each number, uint32, at most 16.
    """

    at: Any
    width: Any


class BlockSlot(NamedTuple):
    """The place of a block that is written.

    Attributes:
        words: Words of all slots, uint32.
        at: Word at which the block begins, uint64.
    """

    words: Any
    at: Any


class Window(NamedTuple):
    """The window of a block, and how far its regions are; all of them shared, uint32.

    Attributes:
        words: The window's words.
        region: Bit of the block at which each region begins, and after the last its end.
        done: Bit of the block up to which each region is written or in the window.
        parts: Word of the window at which each region's part begins; it stands for the word of ``done``.
    """

    words: Any
    region: Any
    done: Any
    parts: Any


@gpu_function
def put(window, place, item, width):
    """OR an item of at most 32 bits into ``window`` (shared, uint32) at bit ``place``.

        place = 32 word + shift      | word              | word + 1
                                     | <- shift -> iiiii | ii ...        bits of the item, the lowest first
    """
    word, shift = U32(U32(place) >> U32(5)), U32(U32(place) & U32(31))
    cuda.atomic.or_(window, word, U32(U32(item) << shift))
    if U32(shift + width) > U32(32):
        cuda.atomic.or_(window, U32(word + U32(1)), U32(U32(item) >> U32(U32(32) - shift)))


@gpu_function
def get(block, place):
    """Return 32 bits from bit ``place`` of a block (:class:`BlockWords`); words after its last are taken to be that.

    No place that a damaged block names leads out of it, and what is read there is compared with nothing.
    """
    word, shift = U32(U32(place) >> U32(5)), U32(U32(place) & U32(31))
    low, high = lesser(word, block.last), lesser(U32(word + U32(1)), block.last)
    both = U64(U64(block.words[block.start + U64(low)]) | U64(U64(block.words[block.start + U64(high)]) << U64(32)))
    return U32(U64(both >> U64(shift)))


@gpu_function
def number_at(block, numbers, index):
    """Return item ``index`` of :class:`PackedNumbers` of a block: uint32."""
    bits = get(block, U32(U32(numbers.at << U32(3)) + U32(U32(index) * numbers.width)))
    return U32(bits & U32(U32(U32(1) << numbers.width) - U32(1)))


@gpu_function
def flush(window, begin, before, after, first, slot):
    """Write a region's words that are complete, keep the rest, and clear the window behind it.

    Args:
        window: The window's words, shared, uint32.
        begin: First word of the region's part of the window, uint32.
        before: Bit of the block up to which the region was done before this tile, uint32.
        after: Bit up to which it is done now, uint32.
        first: Bit at which the region begins, uint32.
        slot: Where the block goes, a :class:`BlockSlot`.

    Returns:
        This thread's share of the checksum, uint64.
    """
    lane, total = I32(cuda.threadIdx.x), U64(0)
    here = U32(U32(before) >> U32(5))
    n = I32(U32(U32(after) >> U32(5)) - here)
    shared = here == U32(U32(first) >> U32(5))  # the region's first word may hold the end of the region before
    cuda.syncthreads()
    for i in range(lane, n, N):
        word, index = U32(window[U32(begin + U32(i))]), U32(here + U32(i))
        total = U64(total + weighed(word, index))
        if i == 0 and shared:
            cuda.atomic.or_(slot.words, slot.at + U64(index), word)
        else:
            slot.words[slot.at + U64(index)] = word
    cuda.syncthreads()
    if n > 0:
        rest = U32(window[U32(begin + U32(n))])  # of the last word, incomplete: it comes first in the next tile
        cuda.syncthreads()
        for i in range(lane, I32(n + I32(1)), N):
            window[U32(begin + U32(i))] = rest if i == 0 else U32(0)
    return total


@gpu_function
def finish(window, begin, end, slot):
    """Write a region's last word, if it is incomplete, by one thread.

    Args:
        window: The window's words, shared, uint32.
        begin: First word of the region's part of the window, uint32.
        end: Bit of the block at which the region ends, uint32.
        slot: Where the block goes, a :class:`BlockSlot`.

    Returns:
        The word's share of the checksum, uint64.
    """
    if U32(U32(end) & U32(31)) == U32(0):
        return U64(0)
    word, index = U32(window[U32(begin)]), U32(U32(end) >> U32(5))
    cuda.atomic.or_(slot.words, slot.at + U64(index), word)
    return weighed(word, index)
