"""Values that keep all their bits while others are rounded: fill values, which stand for "no data here".

A program that reads the array back compares with the fill value bit for bit: rounded, it would be a measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.modes import BitLayout, lossless_at
from .profile import spread_sample
from .request import NO_LEVELS

#: What data of the earth sciences, tables and netCDF itself write where there is none, of either sign.
CONVENTIONAL = (
    999.0,
    999.9,
    9999.0,
    9999.9,
    99999.0,
    999999.0,
    32767.0,
    32768.0,
    2147483647.0,
    2147483648.0,
    1e15,
    1e20,
    1e30,
    1e34,
    1e35,
    1e36,
    float(np.float32(1e20)),
    9.969209968386869e36,
    float(np.finfo(np.float32).max),
    float(np.finfo(np.float64).max),
)
_SAMPLE, _MIN_REPEATS, _MAX_FREQUENT = 1 << 13, 32, 16  #: a value met so often in a sample is kept; so many at most
_FAR = 10  #: values are far from others that are so many times as far away as nine tenths of these are wide
_ROWS_LOG2 = 16  #: values are told apart by so many high bits first, in a table,
_CHUNK = 1 << 16  #: as many at a time as the cache holds


def fill_values(bits: np.ndarray, dtype: DType, known: Iterable[Any] = ()) -> list[Any]:
    """Return what may stand for missing values in an array, to be given to ``encode(keep=)``.

    Args:
        bits: The array, uintW of any shape.
        known: What the caller knows to be fill values; None among them is left out.

    Returns:
        ``known``, the conventional fill values, values that are frequent in a sample, and those far from all others.
    """
    found = [value for value in known if value is not None]
    some, counts = np.unique(spread_sample(bits.ravel("K"), _SAMPLE), return_counts=True)
    often = some[counts >= _MIN_REPEATS]
    if len(often) <= _MAX_FREQUENT:
        found += _floats(often, dtype).tolist()
    found += _far_values(bits, dtype, _floats(some[counts < _MIN_REPEATS], dtype))
    return [*found, *CONVENTIONAL, *(-value for value in CONVENTIONAL)]


def _floats(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Return bits as the numbers that they are."""
    return bits.view(dtype.name) if dtype.in_numpy else (bits.astype(np.uint32) << 16).view(np.float32)


def _far_values(bits: np.ndarray, dtype: DType, some: np.ndarray) -> list[Any]:
    """Return the different values of an array that are far from nearly all others, as a fill value is that few values
    have; none if there are many.

    Args:
        bits: The array, uintW of any shape.
        some: Different values of it, to tell where most of them are.
    """
    finite = np.sort(some[np.isfinite(some)]).astype(np.float64)
    if not len(finite):
        return []
    first, middle, last = finite[[len(finite) // 20, len(finite) // 2, (len(finite) - 1) - len(finite) // 20]]
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = middle - _FAR * (last - first), middle + _FAR * (last - first)
        floats = _floats(bits.ravel("K"), dtype)
        if np.fmin.reduce(floats) >= low and np.fmax.reduce(floats) <= high:
            return []
        far = np.unique(floats[((floats < low) | (floats > high)) & np.isfinite(floats)])
    return far.tolist() if len(far) <= _MAX_FREQUENT else []


def keep_values(bits: np.ndarray, dtype: DType, layout: BitLayout, keep: Any) -> tuple[BitLayout, np.ndarray]:
    """Return a layout by which some values come back as they are, others with as many bits as ``layout`` says, and the
    levels.

    A value that would be rounded to one of those keeps all bits, too: it must not become a fill value.

    Args:
        bits: uintW[n], the array.
        layout: Of fixed mantissa bits, or lossless.
        keep: The values, numbers; each stands for the value of the type that is nearest.

    Returns:
        The layout, and uint8[n]; or ``layout`` and no levels if all values may be rounded.

    Raises:
        InvalidArgument: ``keep`` holds something else.
    """
    patterns = _patterns(keep, dtype)
    drop = layout.drops[0]
    if not layout.lossy or not len(patterns) or not len(bits):
        return layout, NO_LEVELS
    places, exact = _places(bits, dtype, patterns, drop)
    if not len(places):
        return layout, NO_LEVELS
    # How many low bits are zero in all fill values that are there; what is next to one keeps all bits.
    merged = int(np.bitwise_or.reduce(bits[places[exact]], initial=0))
    short = min((merged & -merged).bit_length() - 1, drop) if merged else drop
    drops = sorted({short, drop, *(() if exact.all() else (0,))})
    levels = np.full(len(bits), drops.index(drop), np.uint8)
    levels[places] = np.where(exact, drops.index(short), 0)
    return replace(lossless_at(dtype, tuple(drops), layout.mode), lossy=True), levels


def _places(bits: np.ndarray, dtype: DType, patterns: np.ndarray, drop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where values are that must not be rounded: intp[m], and which of them are equal to a pattern: bool[m].

    Args:
        bits: uintW[n], the array.
        patterns: uintW[k], rising.
        drop: How many bits other values lose.
    """
    first, last = _ranges(patterns, drop, dtype)
    shift = dtype.bits - min(_ROWS_LOG2, dtype.bits)
    rows = np.zeros(1 << dtype.bits - shift, bool)  # True where a value with these high bits may be in a range
    for begin, end in zip(first, last, strict=True):
        rows[int(begin) >> shift : (int(end) >> shift) + 1] = True
    places = np.concatenate(
        [
            np.flatnonzero(rows.take(bits[begin : begin + _CHUNK] >> bits.dtype.type(shift))) + begin
            for begin in range(0, len(bits), _CHUNK)
        ]
    )
    candidates = bits[places]
    nearest = np.searchsorted(first, candidates, "right") - 1
    is_met = (nearest >= 0) & (candidates <= last[nearest])
    places, candidates = places[is_met], candidates[is_met]
    at = np.minimum(np.searchsorted(patterns, candidates), len(patterns) - 1)
    return places, patterns[at] == candidates


def _patterns(keep: Any, dtype: DType) -> np.ndarray:
    """Return numbers as bits of a type, uintW[n], without zeros, which no rounding changes, and infinities and NaN."""
    try:
        numbers = np.asarray(keep, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"keep must be a number or a sequence of numbers, not {keep!r:.80}") from None
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.in_numpy:
            patterns = numbers.astype(dtype.name).view(dtype.uint)
        else:  # bfloat16, by rounding float32 to nearest even
            wide = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
            patterns = (wide + 0x7FFF + (wide >> 16 & 1) >> 16).astype(dtype.uint)
    magnitudes = patterns & dtype.uint.type((1 << dtype.bits - 1) - 1)
    return np.unique(patterns[(magnitudes != 0) & (magnitudes < dtype.infinity)])


def _ranges(patterns: np.ndarray, drop: int, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits from which and up to which values keep theirs, two arrays in order: a pattern alone, or, where it
    has no bits to drop, also what would be rounded to it.

        pattern   ...0101 0000      what is within 1111 of it may become it
    """
    low = dtype.uint.type((1 << drop) - 1)
    reach = np.where(patterns & low, dtype.uint.type(0), low)
    first, last = patterns - reach, patterns + reach
    order = np.argsort(first)
    first, last = first[order], np.maximum.accumulate(last[order])
    return first, last
