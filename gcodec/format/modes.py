"""The bits that a frame keeps: planes and levels of each mode, and the layout that the kernels give them."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..kernels.planes import layout_types
from .ladders import Ladder
from .levels import MAX_PLANE_BITS, MAX_PLANES, Level, kept_bits

LOSSLESS, FIXED, NEAR_LOSSLESS = 0, 1, 2  #: mode codes of the frame header
_LONG_TAILS = {23: (16, 7), 20: (16, 4)}  #: widths of the planes of tails of so many bits


@dataclass(frozen=True)
class BitLayout:
    """The bits of its values that a frame keeps, and the planes that hold them.

    Attributes:
        mode: Code of the mode in the frame's header.
        widths: Width of each plane's items in bits, as in the header.
        levels: The levels, as in the header.
        drops: Mantissa bits that the encoder rounds away, for each level; a lossless frame's are zero in its values.
        lossy: True if rounding may change a value.
        prune: True if denormals and -0 become +0.
    """

    mode: int
    widths: tuple[int, ...]
    levels: tuple[Level, ...]
    drops: tuple[int, ...]
    lossy: bool
    prune: bool

    @cached_property
    def _hash(self) -> int:
        return hash((self.mode, self.widths, self.levels, self.drops, self.lossy, self.prune))

    def __hash__(self) -> int:
        """Return the hash, kept: layouts are the keys of what is kept from call to call."""
        return self._hash

    @cached_property
    def is_plain(self) -> bool:
        """Return True if all bits of all values are kept, at one level."""
        return not self.lossy and self.drops == (0,)

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """Return the plane mask of every level."""
        return tuple(level.mask for level in self.levels)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Return the kept tail bits of every level."""
        return tuple(sum(width for p, width in enumerate(self.widths) if mask >> p & 1) for mask in self.masks)

    @cached_property
    def most_kept(self) -> int:
        """Return the most tail bits that a level keeps."""
        return max(self.kept)

    @cached_property
    def drop_table(self) -> np.ndarray:
        """Return ``drops`` for the kernels: uint8[256], zero beyond the last level."""
        return np.frombuffer(bytearray(self.drops).ljust(256, b"\0"), np.uint8)


@lru_cache
def lossless(dtype: DType, mode: int = LOSSLESS) -> BitLayout:
    """Return the layout that keeps everything, in planes that are fast to pack.

    Args:
        mode: Code of the mode that was asked for, which may allow less.
    """
    widths = () if not dtype.tail_bits else _LONG_TAILS.get(dtype.tail_bits, (dtype.tail_bits,))
    return BitLayout(mode, widths, (Level(0, (1 << len(widths)) - 1),), (0,), False, False)


@lru_cache
def lossless_at(dtype: DType, drops: tuple[int, ...], mode: int = LOSSLESS) -> BitLayout:
    """Return the layout that keeps everything of values whose low bits are zero.

    Args:
        dtype: The value type, which has a tail.
        drops: For each level, how many low mantissa bits are zero in its values: rising, fewer than the tail's bits.
        mode: Code of the mode that was asked for, which may allow less.
    """
    rising = sorted(kept_bits(dtype, drop) for drop in drops)
    n_digits = (rising[-1] - rising[0]).bit_length()
    widths: list[int] = []
    masks: dict[int, int] = {}
    if dtype.tail_bits > 32 and n_digits < len(rising) - 1:
        # Each plane takes a pass over the values; binary digits of how many bits a level has more need fewer.
        widths = [1 << digit for digit in reversed(range(n_digits))] + [rising[0]]
        for kept in rising:
            digits = f"{kept - rising[0]:0{n_digits}b}"  # the highest first, as planes are
            masks[kept] = int(digits[::-1], 2) | 1 << n_digits
    else:
        for before, kept in zip([0, *rising], rising, strict=False):
            widths += _small_planes(kept - before) if dtype.tail_bits <= 32 else (kept - before,)
            masks[kept] = (1 << len(widths)) - 1
    if len(widths) > MAX_PLANES:
        raise InvalidArgument(f"drops {drops} need {len(widths)} planes, but at most {MAX_PLANES} are possible")
    levels = tuple(Level(drop, masks[kept_bits(dtype, drop)]) for drop in drops)
    return BitLayout(mode, tuple(widths), levels, drops, False, False)


def fixed(dtype: DType, mantissa_bits: int) -> BitLayout:
    """Return the layout that keeps a number of mantissa bits of every value.

    Args:
        mantissa_bits: At least 1: without any, a NaN could not be told from infinity.

    Raises:
        InvalidArgument: The type is lossless only, or has fewer mantissa bits.
    """
    if dtype.tail_bits == 0:
        raise InvalidArgument(f"mantissa_bits must be None for {dtype.name}, which can only be encoded losslessly")
    try:
        if isinstance(mantissa_bits, bool):  # True would keep a single bit
            raise TypeError
        mantissa_bits = operator.index(mantissa_bits)
    except TypeError:
        raise InvalidArgument(f"mantissa_bits must be an integer, not {mantissa_bits!r}") from None
    if not 1 <= mantissa_bits <= dtype.mantissa_bits:
        raise InvalidArgument(
            f"mantissa_bits must be in 1 ... {dtype.mantissa_bits} for {dtype.name}, not {mantissa_bits}"
        )
    drop = dtype.mantissa_bits - mantissa_bits
    return _fixed(dtype, drop) if drop else lossless(dtype)


@lru_cache
def _fixed(dtype: DType, drop: int) -> BitLayout:
    widths = _small_planes(kept_bits(dtype, drop)) if dtype.tail_bits <= 32 else (kept_bits(dtype, drop),)
    return BitLayout(FIXED, widths, (Level(drop, (1 << len(widths)) - 1),), (drop,), True, False)


def _small_planes(kept: int) -> tuple[int, ...]:
    """Return planes of 6 bits and one of at most 8 for ``kept`` bits: kernels move bytes, and 6 bits pack fastest."""
    n_six = max(-(-(kept - 8) // 6), 0)
    return (6,) * n_six + (kept - 6 * n_six,)


@lru_cache
def ladder(dtype: DType, steps: Ladder) -> BitLayout:
    """Return the layout in which values keep as many bits as their level says.

    Raises:
        InvalidArgument: The type is lossless only, the ladder drops more bits than it has, or needs too many planes.
    """
    drops = steps.drops
    if dtype.tail_bits == 0:
        raise InvalidArgument(f"ladder must be None for {dtype.name}, which can only be encoded losslessly")
    if drops[0] >= dtype.mantissa_bits or drops[-1] > dtype.mantissa_bits:
        raise InvalidArgument(
            f"ladder must drop at most the {dtype.mantissa_bits} mantissa bits of {dtype.name}, and fewer at its first "
            f"level, not {drops}"
        )
    kept = [kept_bits(dtype, drop) for drop in drops]
    widths, masks = _even_planes(kept) or _nested_planes(kept)
    levels = tuple(Level(drop, mask) for drop, mask in zip(drops, masks, strict=True))
    return BitLayout(NEAR_LOSSLESS, widths, levels, drops, True, True)


def _even_planes(kept: list[int]) -> tuple[tuple[int, ...], list[int]] | None:
    """Return planes of twice the greatest common step, and one of a single step for odd levels, and masks.

    Few and wide planes mean few items per value. None if the planes would be too wide or too many.
    """
    step = math.gcd(*kept)
    n_wide = max(kept) // (2 * step)
    if 2 * step > 8 or n_wide + 1 > MAX_PLANES:
        return None
    odd = any(k // step % 2 for k in kept)
    masks = [(1 << k // (2 * step)) - 1 | (k // step % 2) << n_wide for k in kept]
    return (2 * step,) * n_wide + ((step,) if odd else ()), masks


def _nested_planes(kept: list[int]) -> tuple[tuple[int, ...], list[int]]:
    """Return one plane for each step of the ladder, and masks by which a level owns items of the first few."""
    rising = sorted(set(kept))
    widths = tuple(b - a for a, b in zip([0, *rising], rising, strict=False))
    if len(widths) > MAX_PLANES or max(widths) > MAX_PLANE_BITS:
        raise InvalidArgument(
            f"ladder keeps {kept} bits, which need planes of {widths} bits: at most {MAX_PLANES} planes of at most "
            f"{MAX_PLANE_BITS} bits are possible"
        )
    return widths, [(1 << rising.index(k) + 1) - 1 for k in kept]


@lru_cache
def layout_of(dtype: DType, widths: tuple[int, ...], levels: tuple[Level, ...]) -> type[layout_types.Layout]:
    """Return the layout whose kernels are the fastest that can handle these planes."""
    whole = len(levels) == 1 and widths == (dtype.tail_bits,)
    if dtype.tail_bits == 0:
        return layout_types.NoPlanes
    if whole and dtype.tail_bits == 24:
        return layout_types.Tails24
    if (whole and dtype.tail_bits == 8) or (dtype.tail_bits == 24 and len(levels) == 1 and widths == (8,)):
        return layout_types.Tails8
    if whole and dtype.bits == 16 and dtype.tail_bits in (7, 4):
        return layout_types.ShortTails
    if dtype.bits == 32 and len(levels) == 1 and levels[0].drop == 0 and widths == _LONG_TAILS.get(dtype.tail_bits):
        return layout_types.LongTails
    if dtype.head_bits <= 8 and max(widths) <= 8:
        return layout_types.NarrowPlanes
    return layout_types.GeneralPlanes
