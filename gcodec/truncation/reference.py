"""Rounding at levels, in numpy, and distances in ulps.

This is the law that the codec's own rounding is tested against. It is in the package, and not among the tests, because
``gcodec bench`` verifies by it what the codec returns before it times anything.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from ..errors import InvalidArgument, check_choice
from ..format.ladders import LAYOUTS, Array, FloatLayout, Ladder
from ..tensors import as_plain_array
from .evaluate import dtype_name


def round_to_levels(
    x: Array,
    levels: Array | int,
    ladder: Ladder,
    rounding: str = "nearest",
    prune: bool = True,
) -> Array:
    """Return what decoding gives for ``x`` encoded at ``levels``.

    A level's drop n zeroes the low n mantissa bits: rounded to nearest, ties to even, as an integer addition whose
    carry may reach the exponent; or cut off. A carry to infinity is not made: that value is cut off. Infinities stay.
    A NaN is cut off; where that leaves no mantissa bit, the lowest kept one is set (if none is kept, the highest).
    ``prune`` turns denormals (at any level) and -0 into +0.

    Args:
        x: float32, float64, float16, or bfloat16 as uint16 bits; any shape.
        levels: Integer array that broadcasts to x's shape, or one level for all.
        ladder: Mantissa bits to drop, by level.
        rounding: "nearest" or "truncate".
        prune: Whether denormals and -0 become +0.

    Returns:
        A new array of x's dtype and shape.

    Raises:
        InvalidArgument: A level or rounding that does not exist, a ladder that drops more bits than there are, or an
            argument of another type.
    """
    check_choice("rounding", rounding, ("nearest", "truncate"))
    name = dtype_name(x)
    if not isinstance(ladder, Ladder):
        raise InvalidArgument(f"ladder must be a gcodec.Ladder, not {ladder!r:.80}")
    ladder.check_fits(name)
    try:
        indices = np.broadcast_to(as_plain_array(levels, "levels"), x.shape)
    except ValueError:
        raise InvalidArgument(f"levels must broadcast to the shape of x, {x.shape}, unlike {levels!r:.80}") from None
    if indices.dtype.kind not in "iu" or (indices.size and not 0 <= indices.min() <= indices.max() < len(ladder.drops)):
        raise InvalidArgument(f"levels must be integers from 0 to {len(ladder.drops) - 1}")
    word = _word(x)
    drop = np.array(ladder.drops, word)[indices]
    bits = np.array(x, order="C").view(word)
    return _round_bits(bits, drop, LAYOUTS[name], word, rounding == "nearest", prune).view(x.dtype)


def _round_bits(bits: Array, drop: Array, layout: FloatLayout, word: Any, nearest: bool, prune: bool) -> Array:
    """Return the bits of values rounded, each by its own ``drop``; both unsigned integers of type ``word``."""
    one, smallest = word(1), word(1 << layout.mantissa_bits)
    size = bits & word((1 << (layout.exponent_bits + layout.mantissa_bits)) - 1)
    infinity = word(((1 << layout.exponent_bits) - 1) << layout.mantissa_bits)
    cut = size >> drop << drop
    result = cut
    if nearest:
        # Half a unit, less 1 where the lowest kept bit is 0: ties go to even. Where nothing is dropped, add nothing.
        drops = (drop > 0).astype(word)
        half = (one << drop) >> one
        up = (size + half - drops + ((size >> drop) & drops)) >> drop << drop
        result = np.where(up < infinity, up, cut)
    spared = one << np.minimum(drop, word(layout.mantissa_bits - 1))
    nan = np.where(cut == infinity, cut | spared, cut)
    result = np.where(size < infinity, result, np.where(size > infinity, nan, size)) | (bits ^ size)
    return np.asarray(np.where(size < smallest, word(0), result) if prune else result, word)


def _word(x: Array) -> Any:
    """Return the unsigned integer type as wide as x's."""
    return np.dtype(f"u{x.dtype.itemsize}").type


def ulp_histogram(a: Array, b: Array, limit: int = 2) -> dict[int, int]:
    """Count how many values of ``a`` and ``b`` are 0, 1, ... ``limit`` and more ulps apart.

    The distance counts the steps from one value to the other through all of the type's values, +0 and -0 being one.
    Two NaNs count as equal, a NaN and a number as far apart.

    Args:
        a: float32, float64, float16, or bfloat16 as uint16 bits; any shape.
        b: An array of the same dtype and shape.
        limit: The greatest distance with a key of its own, 0 to 1000.

    Returns:
        Distances to counts, all keys from 0 to ``limit + 1`` (everything farther apart).

    Raises:
        InvalidArgument: A and b do not match, or ``limit`` is out of range.
    """
    layout = LAYOUTS[dtype_name(a)]
    dtype_name(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        raise InvalidArgument(f"a and b must match, unlike {a.dtype}{a.shape} and {b.dtype}{b.shape}")
    if not isinstance(limit, Integral) or not 0 <= limit <= 1000:
        raise InvalidArgument(f"limit must be an integer in 0 ... 1000, not {limit!r:.80}")
    word = _word(a)
    sign = word(1 << (layout.exponent_bits + layout.mantissa_bits))
    infinity = word(((1 << layout.exponent_bits) - 1) << layout.mantissa_bits)
    x, y = (np.ascontiguousarray(z).reshape(-1).view(word) for z in (a, b))
    low, high = np.minimum(x & ~sign, y & ~sign), np.maximum(x & ~sign, y & ~sign)
    distance = np.where((x ^ y) & sign, high + low, high - low)
    distance = np.where(high > infinity, np.where(low > infinity, word(0), ~word(0)), distance)
    counts = np.bincount(np.minimum(distance, word(limit + 1)).astype(np.int64), minlength=limit + 2)
    return {ulps: int(count) for ulps, count in enumerate(counts)}
