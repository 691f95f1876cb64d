"""Planes and levels: which bits of a value are kept, and where they lie (docs/format.md section 4)."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ..dtypes import DType
from ..errors import Corruption

MAX_LEVELS, MAX_PLANES, MAX_PLANE_BITS = 16, 8, 56


class Level(NamedTuple):
    """A level as it stands in a frame's header.

    Attributes:
        drop: Mantissa bits that values of this level lose.
        mask: Bit p is set if values of this level own an item of plane p.
    """

    drop: int
    mask: int


def kept_bits(dtype: DType, drop: int) -> int:
    """Return how many tail bits remain, sign included, when ``drop`` mantissa bits are dropped."""
    return dtype.tail_bits - min(drop, dtype.tail_bits - 1) if dtype.tail_bits else 0


def check_levels(dtype: DType, widths: tuple[int, ...], levels: tuple[Level, ...]) -> None:
    """Check the rules of "Planes and levels" (docs/format.md section 4).

    Args:
        dtype: The value type of the frame.
        widths: Width of each plane's items in bits.
        levels: The levels of the frame.

    Raises:
        Corruption: A rule is broken.
    """
    drops = [level.drop for level in levels]
    good = all(1 <= width <= MAX_PLANE_BITS for width in widths)
    good = good and all(a < b for a, b in pairwise(drops)) and drops[-1] <= dtype.mantissa_bits
    for level in levels:
        kept = sum(width for p, width in enumerate(widths) if level.mask >> p & 1)
        good = good and level.mask >> len(widths) == 0 and kept == kept_bits(dtype, level.drop)
    if dtype.tail_bits == 0:
        good = good and not widths and levels == (Level(0, 0),)
    if not good:
        raise Corruption(f"frame header: planes {widths} and levels {levels} do not fit {dtype.name}")
