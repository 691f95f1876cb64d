"""Rounding values by level before they are coded."""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512, HAS_SSSE3
from ..core.jit import kernel
from ..core.scalar import U32, U64, round_magnitude, round_value
from ..core.unaligned import prefetch, subarray, width_of
from ..core.vector import look_up_level

if HAS_AVX512:
    from .rounding_avx512 import round_16, round_32
elif HAS_SSSE3:
    from .rounding_ssse3 import fill_drops, round_16, round_32


@kernel
def _levels_at(levels, zeros, i):
    """Where the levels of 64 values lie: (array, index)."""
    if levels is None:
        return zeros, 0
    return levels, i


@kernel
def _fetch_lines(levels, upcoming, i, n):
    """Have half of 64 values of what comes next fetched, if anything does, and their levels."""
    if upcoming is not None:
        if levels is not None:
            prefetch(levels, i + n)
        width = width_of(upcoming) >> 3
        for line in range(i * width, (i + 64) * width, 128):
            prefetch(upcoming, line)


@kernel
def _round_groups(values, levels, n, drops, infinity, smallest_normal, nearest, prune, chunk, upcoming, out):
    """:func:`round_values` of whole groups of 64, without AVX-512."""
    width = width_of(values)
    fill_drops(drops, chunk, 64)
    for i in range(64):
        chunk[i] = 0
    # A magnitude below this is finite, and so is what it is rounded to.
    limit, below = np.int64(infinity) - (np.int64(infinity) >> 5), np.int64(smallest_normal) if prune else np.int64(0)
    sign_bit, top, least, first = U32(1 << (width - 1)), U32(infinity), U32(smallest_normal), U32(drops[0])
    for i in range(0, n, 64):
        own, place = _levels_at(levels, chunk, i)
        _fetch_lines(levels, upcoming, i, n)
        if width == 32:
            large = round_32(values, i, own, place, chunk, 64, out, i, limit, below, np.int64(nearest))
        else:
            large = round_16(values, i, own, place, chunk, 64, out, i, limit, below, np.int64(nearest))
        if large:
            for k in range(64):
                drop = U32(drops[own[place + k]])
                out[i + k] = round_value(U32(values[i + k]), drop, first, sign_bit, top, least, nearest, prune)


@kernel
def round_values(values, levels, n, drops, infinity, smallest_normal, nearest, prune, chunk, upcoming, out):
    """Drop mantissa bits by level. ``levels``: uint8[n], or None where all values are of level 0; ``drops``:
    uint8[256], by level; ``infinity``, ``smallest_normal``: bits of these magnitudes; ``nearest``, ``prune``: as in
    :func:`scalar.round_magnitude`, and whether denormals and -0 become +0; ``chunk``: uint8[1088], scratch;
    ``upcoming``: values that will be wanted next, or None: every other line of them is fetched meanwhile, and their
    levels, which are behind these. Infinities and NaNs are of level 0 whatever ``levels`` says."""
    width = width_of(values)
    if width == 64:
        for i in range(n):
            bits = U64(values[i])
            magnitude = bits & ~(U64(1) << U64(63))
            drop = drops[0]
            if levels is not None:
                drop = drops[levels[i]] if magnitude < U64(infinity) else drop
            result = round_magnitude(magnitude, U64(drop), U64(infinity), nearest) | (bits & (U64(1) << U64(63)))
            out[i] = U64(0) if prune and magnitude < U64(smallest_normal) else result
        return
    sign_bit = U32(1 << (width - 1))
    top, least, first = U32(infinity), U32(smallest_normal), U32(drops[0])
    whole = np.int64(0)
    if HAS_AVX512:
        whole = n & ~63
        below = np.int64(smallest_normal) if prune else np.int64(0)
        if levels is None:
            for i in range(64):
                chunk[i] = 0
        for i in range(0, whole, 64):
            own, place = _levels_at(levels, chunk, i)
            _fetch_lines(levels, upcoming, i, n)
            if width == 32:
                round_32(values, i, own, place, drops, 0, out, i, infinity, below, np.int64(nearest))
            else:
                round_16(values, i, own, place, drops, 0, out, i, infinity, below, np.int64(nearest))
    elif HAS_SSSE3:
        whole = n & ~63
        _round_groups(values, levels, whole, drops, infinity, smallest_normal, nearest, prune, chunk, upcoming, out)
    for begin in range(whole, n, 1024):
        count = min(1024, n - begin)
        some, result = subarray(values, begin, count), subarray(out, begin, count)
        if levels is None:
            for i in range(count):
                chunk[i] = drops[0]
        else:
            some_levels = subarray(levels, begin, count)
            for i in range(count):
                chunk[i] = some_levels[i]
            for i in range(0, count, 64):
                look_up_level(drops, 0, chunk, i, chunk, i)
        for i in range(count):
            drop = U32(chunk[i])
            result[i] = round_value(U32(some[i]), drop, first, sign_bit, top, least, nearest, prune)
