"""The layouts of planes: which kernels split values into planes and merge them again.

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
        words: uint32[stream_len + 64].
        dense: uint32[stream_len + 64].
    """

    words: np.ndarray
    dense: np.ndarray


class Tails8(NamedTuple):
    """Scratch for one plane of tails of 8 bits (bfloat16, float16, lossless); see :mod:`whole_tail`.

    Attributes:
        tails: uint8[stream_len + 64].
    """

    tails: np.ndarray


class Tails7(NamedTuple):
    """Scratch for one plane of tails of 7 bits (bfloat16 with a wide head); see :mod:`wide_head`.

    Attributes:
        seven: uint8[block + 64].
        tails: uint8[stream_len + 64].
    """

    seven: np.ndarray
    tails: np.ndarray


class Tails23(NamedTuple):
    """Scratch for planes of 16 and 7 bits (float32 with a wide head); see :mod:`wide_head`.

    Attributes:
        seven: uint8[block + 64].
    """

    seven: np.ndarray


class NarrowPlanes(NamedTuple):
    """Scratch for several planes of at most 8 bits (ladders, fixed bits); see :mod:`narrow`.

    Attributes:
        words: uint32[stream_len + 64].
        bytes: uint8[2 * (stream_len + 64)].
        marks: Laid out like symbols.
        items: uint8[8, block + 64].
    """

    words: np.ndarray
    bytes: np.ndarray
    marks: np.ndarray
    items: np.ndarray


class GeneralPlanes(NamedTuple):
    """Scratch for any planes; see :mod:`general`.

    Attributes:
        tails: uint64[block], to decode.
    """

    tails: np.ndarray


Layout = NoPlanes | Tails24 | Tails8 | Tails7 | Tails23 | NarrowPlanes | GeneralPlanes


def layout_scratch(layout: type[Layout], block: int, stream_len: int, strided: int, decode: bool) -> Layout:
    """Make the scratch of a layout for blocks of ``block`` values; ``strided``: length of arrays laid out like
    symbols."""
    stream, whole = stream_len + GROUP, block + GROUP
    if layout is Tails24:
        return Tails24(np.empty(stream, np.uint32), np.empty(stream, np.uint32))
    if layout is Tails8:
        return Tails8(np.empty(stream, np.uint8))
    if layout is Tails7:
        return Tails7(np.empty(whole, np.uint8), np.empty(stream, np.uint8))
    if layout is Tails23:
        return Tails23(np.empty(whole, np.uint8))
    if layout is NarrowPlanes:
        items = np.empty((8, whole), np.uint8)
        return NarrowPlanes(
            np.empty(stream, np.uint32), np.empty(2 * stream, np.uint8), np.empty(strided, np.uint8), items
        )
    if layout is GeneralPlanes:
        return GeneralPlanes(np.empty(block if decode else 0, np.uint64))
    return NoPlanes(np.empty(0, np.uint8))
