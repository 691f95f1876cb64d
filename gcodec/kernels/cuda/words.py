"""Bits of encoded blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.scalar import U32, U64, lesser
from .grid import gpu_function


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
