"""The layouts of planes: types that say which kernels split values into planes and merge them again.

A layout is a type, of which ``Scratch.layout`` is one: it holds the scratch arrays of that layout's kernels, and
:mod:`layouts` chooses the kernels by it when code is compiled. Bytes are the same whatever the layout is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

GROUP = 64  #: bytes that the vector steps move at a time: the margin of every scratch array


class NoPlanes(NamedTuple):
    """Scratch of types without a tail, which have no planes.

    Attributes:
        unused: uint8[0]: numba's tuples have at least one element.
    """

    unused: np.ndarray


class Tails24(NamedTuple):
    """Scratch for one plane of tails of 24 bits (float32, lossless); see :mod:`whole_tail`.

    Attributes:
        words: uint32[stream_len + 64], tails of a sub-stream's values, with gaps where values are zero.
        dense: uint32[stream_len + 64], the same tails without gaps.
    """

    words: np.ndarray
    dense: np.ndarray


class Tails8(NamedTuple):
    """Scratch for one plane of 8 bits: tails of bfloat16 and float16, lossless, or their upper 8 bits of float32, which
    are those of seven mantissa bits; see :mod:`whole_tail`.

    Attributes:
        tails: uint8[stream_len + 64], of a sub-stream's values.
    """

    tails: np.ndarray


class ShortTails(NamedTuple):
    """Scratch for one plane of tails of 7 or 4 bits (bfloat16 with more than the exponent in the head); see
    :mod:`wide_head`.

    Attributes:
        items: uint8[block + 64], tails of the block's values without those of zeros, a byte each.
        tails: uint8[stream_len + 64], of a sub-stream's values, to decode.
    """

    items: np.ndarray
    tails: np.ndarray


class LongTails(NamedTuple):
    """Scratch for planes of 16 and 7 or 4 bits (float32 with more than the exponent in the head); see
    :mod:`wide_head`.

    Attributes:
        items: uint8[block + 64], the lower bits of tails of the block's values without those of zeros, a byte each.
    """

    items: np.ndarray


class NarrowPlanes(NamedTuple):
    """Scratch for several planes of at most 8 bits (ladders, fixed bits); see :mod:`narrow`.

    Attributes:
        words: uint32[stream_len + 64], tails of a sub-stream's values, or a last group of fewer than 64 values.
        bytes: uint8[2 * (stream_len + 64)], an item of one plane for each value, and its shifts; or picks.
        marks: uint8, laid out like symbols, which planes each value owns an item of; or classes of symbols.
        items: uint8[8, block + 64], by plane: the items that values own, a byte each.
    """

    words: np.ndarray
    bytes: np.ndarray
    marks: np.ndarray
    items: np.ndarray


class GeneralPlanes(NamedTuple):
    """Scratch for any planes; see :mod:`general`.

    Attributes:
        tails: uint64[block], of all values, to decode; to encode uint64[0].
    """

    tails: np.ndarray


Layout = NoPlanes | Tails24 | Tails8 | ShortTails | LongTails | NarrowPlanes | GeneralPlanes


def layout_scratch(layout: type[Layout], block: int, stream_len: int, strided: int, decode: bool) -> Layout:
    """Make the scratch of a layout.

    Args:
        layout: One of the types above.
        block: Values per block.
        stream_len: Values per sub-stream.
        strided: Bytes of arrays that are laid out like symbols.
        decode: Whether planes are merged with it, else split.

    Returns:
        The layout's arrays, uninitialized.
    """
    stream, whole = stream_len + GROUP, block + GROUP
    if layout is Tails24:
        return Tails24(np.empty(stream, np.uint32), np.empty(stream, np.uint32))
    if layout is Tails8:
        return Tails8(np.empty(stream, np.uint8))
    if layout is ShortTails:
        return ShortTails(np.empty(whole, np.uint8), np.empty(stream, np.uint8))
    if layout is LongTails:
        return LongTails(np.empty(whole, np.uint8))
    if layout is NarrowPlanes:
        items = np.empty((8, whole), np.uint8)
        return NarrowPlanes(
            np.empty(stream, np.uint32), np.empty(2 * stream, np.uint8), np.empty(strided, np.uint8), items
        )
    if layout is GeneralPlanes:
        return GeneralPlanes(np.empty(block if decode else 0, np.uint64))
    return NoPlanes(np.empty(0, np.uint8))
