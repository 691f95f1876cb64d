"""Values cast between float32 and the types of 16 bits, as what others are coded against (docs/archive.md, section 5).

Every cast rounds to nearest, ties to even, on any machine: readers and writers must get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ..files.source import Bytes


def to_bfloat16(data: Bytes) -> Bytes:
    """Return float32 values as bfloat16, rounded to nearest, ties to even; NaN keeps its sign and upper bits, and is
    quiet.

    Args:
        data: uint8[4n], the values.

    Returns:
        uint8[2n].
    """
    bits = data.view("<u4")
    # Rounds up where what is cut off is above half, or is half and the last bit that stays is set.
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    short = rounded.astype("<u4", copy=False).view("<u2")[1::2].copy()
    is_nan = np.isnan(data.view("<f4"))
    if is_nan.any():
        short[is_nan] = bits[is_nan] >> np.uint32(16) | np.uint32(0x40)
    return short.view(np.uint8)


def to_float16(data: Bytes) -> Bytes:
    """Return float32 values as float16, rounded to nearest, ties to even; every NaN is 0x7E00 with its sign.

    Args:
        data: uint8[4n], the values.

    Returns:
        uint8[2n].
    """
    values = data.view("<f4")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = values.astype("<f2")
    is_nan = np.isnan(values)
    if is_nan.any():
        bits = rounded.view("<u2")
        bits[is_nan] = 0x7E00 | (data.view("<u4")[is_nan] >> np.uint32(16) & np.uint32(0x8000)).astype("<u2")
    return rounded.view(np.uint8)


def bfloat16_to_float32(data: Bytes) -> Bytes:
    """Return bfloat16 values as float32; NaN keeps its sign and bits.

    Args:
        data: uint8[2n], the values.

    Returns:
        uint8[4n].
    """
    return (data.view("<u2").astype("<u4") << np.uint32(16)).view(np.uint8)


def float16_to_float32(data: Bytes) -> Bytes:
    """Return float16 values as float32; every NaN is 0x7FC00000 with its sign.

    Args:
        data: uint8[2n], the values.

    Returns:
        uint8[4n].
    """
    values = data.view("<f2")
    with np.errstate(invalid="ignore"):
        widened = values.astype("<f4")
    is_nan = np.isnan(values)
    if is_nan.any():
        sign = (data.view("<u2")[is_nan] & np.uint16(0x8000)).astype("<u4")
        widened.view("<u4")[is_nan] = np.uint32(0x7FC00000) | sign << np.uint32(16)
    return widened.view(np.uint8)


class TypeCast(NamedTuple):
    """A cast from one type to another.

    Attributes:
        of_bytes: Width of a value in bytes before it is cast.
        to_bytes: Its width when it is cast.
        steps: Functions of bytes, the first first.
    """

    of_bytes: int
    to_bytes: int
    steps: tuple[Callable[[Bytes], Bytes], ...]

    def n_bytes_of(self, size: int) -> int:
        """Return how many bytes are cast to ``size`` bytes."""
        return size // self.to_bytes * self.of_bytes

    def apply(self, data: Bytes) -> Bytes:
        """Return values that are cast."""
        for step in self.steps:
            data = step(data)
        return data

    def read(self, read: Callable[[int, int], Bytes], start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop`` of the values that are cast; ``read``: of those before."""
        first, last = start // self.to_bytes, -(-stop // self.to_bytes)
        data, at = self.apply(read(first * self.of_bytes, last * self.of_bytes)), first * self.to_bytes
        return data[start - at : stop - at]


#: Types of 16 bits, each with what casts float32 to it, and it to float32.
_NARROW: Mapping[str, tuple[Callable[[Bytes], Bytes], Callable[[Bytes], Bytes]]] = {
    "bfloat16": (to_bfloat16, bfloat16_to_float32),
    "float16": (to_float16, float16_to_float32),
}
#: What float32 is cast to by each.
CASTS: Mapping[str, TypeCast] = {name: TypeCast(4, 2, (narrow,)) for name, (narrow, _) in _NARROW.items()}
#: What takes the place of a type where a base has another, by both types: first that of the base.
BASE_CASTS: Mapping[tuple[str, str], TypeCast] = {
    **{("float32", name): cast for name, cast in CASTS.items()},
    **{(name, "float32"): TypeCast(2, 4, (widen,)) for name, (_, widen) in _NARROW.items()},
    ("bfloat16", "float16"): TypeCast(2, 2, (bfloat16_to_float32, to_float16)),
    ("float16", "bfloat16"): TypeCast(2, 2, (float16_to_float32, to_bfloat16)),
}
