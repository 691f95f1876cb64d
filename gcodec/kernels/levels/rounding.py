"""Round values by level before they are coded: drop as many low mantissa bits as the level says.

    float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    result    s eeeeeeee mmmmmmmmmmmm00000000000     a level that drops 11 bits, which planes then need not store

How an encoder rounds is its choice; docs/format.md section 4 says which bits levels drop. The scalar law is
:func:`scalar.round_value`; :mod:`rounding_avx512` and :mod:`rounding_shuffles` are vector steps by it. float64 is
rounded by :func:`scalar.round_magnitude`, one value at a time.
"""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512, HAS_SSSE3
from ..core.jit import kernel
from ..core.scalar import U32, U64, level_of, round_magnitude, round_value
from ..core.unaligned import prefetch, subarray, width_of
from ..core.vector import look_up_level

if HAS_AVX512:
    from .rounding_avx512 import round_16, round_32
elif HAS_SSSE3:
    from .rounding_shuffles import fill_drops, round_16, round_32

PART = 1024  #: values whose levels are looked up before any is rounded
ROUNDING_BYTES = PART + 64  #: scratch of :func:`round_values`


@kernel
def _levels_at(levels, zeros, i):
    """Return where the levels of 64 values from ``i`` on lie, as an array and an index: in ``zeros``, uint8[64], where
    there are no levels."""
    if levels is None:
        return zeros, 0
    return levels, i


@kernel
def _fetch_lines(levels, upcoming, i, n):
    """Have every other cache line of 64 upcoming values fetched, as far as there are any, and the line of their levels.

    Args:
        levels: uint8, those of the upcoming values ``n`` further on; or None.
        upcoming: uintW, of which there may be fewer, or None.
        i: Number of the first of the 64.
        n: Number of values that are rounded meanwhile.
    """
    if upcoming is not None:
        if levels is not None and i < len(upcoming):
            prefetch(levels, i + n)
        width = width_of(upcoming) >> 3
        for line in range(i * width, min(i + 64, len(upcoming)) * width, 128):
            prefetch(upcoming, line)


@kernel
def _round_groups_shuffles(values, levels, float_bits, rounding, chunk, upcoming, out):
    """Round whole groups of 64 values with SSSE3; arguments as of :func:`round_values`. Returns how many values these
    are."""
    n, whole, width, drops = len(values), len(values) & ~63, width_of(values), rounding.drops
    nearest, prune = rounding.nearest, rounding.prune
    #     chunk     0 ... 63                                64 ...
    #               levels of values that have none, all 0  drops by level, as the step looks them up
    fill_drops(drops, chunk, 64)
    for i in range(64):
        chunk[i] = 0
    infinity = np.int64(float_bits.infinity)
    # A magnitude below ``limit`` is finite, and so is what it is rounded to; one below ``min_kept`` becomes 0.
    # Rounding adds half a unit at most, 2**22 of float32, 2**6 of bfloat16, 2**9 of float16: less than infinity >> 5,
    # which is 0x3FC0000, 0x3FC and 0x3E0.
    limit, min_kept = infinity - (infinity >> 5), np.int64(float_bits.smallest_normal) if prune else np.int64(0)
    sign_bit, top, normal = U32(1 << (width - 1)), U32(float_bits.infinity), U32(float_bits.smallest_normal)
    for i in range(0, whole, 64):
        group_levels, place = _levels_at(levels, chunk, i)
        _fetch_lines(levels, upcoming, i, n)
        if width == 32:
            large = round_32(values, i, group_levels, place, chunk, 64, out, i, limit, min_kept, np.int64(nearest))
        else:
            large = round_16(values, i, group_levels, place, chunk, 64, out, i, limit, min_kept, np.int64(nearest))
        if large:  # rare: near infinity, infinite or a NaN; all 64 once more, one by one
            for k in range(64):
                drop = U32(drops[group_levels[place + k]])
                out[i + k] = round_value(U32(values[i + k]), drop, U32(drops[0]), sign_bit, top, normal, nearest, prune)
    return whole


@kernel
def _round_groups_avx512(values, levels, float_bits, rounding, chunk, upcoming, out):
    """Round whole groups of 64 values with AVX-512; arguments as of :func:`round_values`. Returns how many values these
    are."""
    n, whole, drops, infinity = len(values), len(values) & ~63, rounding.drops, float_bits.infinity
    nearest = np.int64(rounding.nearest)
    min_kept = np.int64(float_bits.smallest_normal) if rounding.prune else np.int64(0)
    if levels is None:
        for i in range(64):
            chunk[i] = 0
    for i in range(0, whole, 64):
        group_levels, place = _levels_at(levels, chunk, i)
        _fetch_lines(levels, upcoming, i, n)
        if width_of(values) == 32:
            round_32(values, i, group_levels, place, drops, 0, out, i, infinity, min_kept, nearest)
        else:
            round_16(values, i, group_levels, place, drops, 0, out, i, infinity, min_kept, nearest)
    return whole


@kernel
def _round_64(values, levels, float_bits, rounding, out):
    """Round float64, by :func:`scalar.round_magnitude`; arguments as of :func:`round_values`."""
    infinity, sign_bit = U64(float_bits.infinity), U64(1) << U64(63)
    for i in range(len(values)):
        bits = U64(values[i])
        magnitude = bits & ~sign_bit
        drop = rounding.drops[0]
        if levels is not None:
            drop = rounding.drops[level_of(bits, levels[i], sign_bit, infinity)]
        result = round_magnitude(magnitude, U64(drop), infinity, rounding.nearest) | (bits & sign_bit)
        out[i] = U64(0) if rounding.prune and magnitude < U64(float_bits.smallest_normal) else result


@kernel
def round_values(values, levels, float_bits, rounding, chunk, upcoming, out):
    """Drop mantissa bits by level. Infinities and NaNs are of level 0 whatever ``levels`` says.

    Args:
        values: uintW[n].
        levels: uint8[n], below 16, or None where all values are of level 0.
        float_bits: See :class:`bundles.FloatBits`.
        rounding: See :class:`bundles.Rounding`.
        chunk: uint8[ROUNDING_BYTES], scratch.
        upcoming: uintW, the values that will be wanted next, or None: every other line of them is fetched meanwhile,
            and their levels, which follow ``levels``.
        out: uintW[n], result.
    """
    n, width, drops = len(values), width_of(values), rounding.drops
    if width == 64:
        _round_64(values, levels, float_bits, rounding, out)
        return
    sign_bit, infinity, normal = U32(1 << (width - 1)), U32(float_bits.infinity), U32(float_bits.smallest_normal)
    whole, first = np.int64(0), U32(drops[0])
    if HAS_AVX512:
        whole = _round_groups_avx512(values, levels, float_bits, rounding, chunk, upcoming, out)
    elif HAS_SSSE3:
        whole = _round_groups_shuffles(values, levels, float_bits, rounding, chunk, upcoming, out)
    # What the groups leave, or all without SSSE3: in parts of as many values as the scratch has room for.
    for begin in range(whole, n, PART):
        count = min(PART, n - begin)
        part, result = subarray(values, begin, count), subarray(out, begin, count)
        # How many bits are dropped is looked up in a loop of its own: LLVM makes no vectors of look-ups.
        if levels is None:
            for i in range(count):
                chunk[i] = drops[0]
        else:
            part_levels = subarray(levels, begin, count)
            for i in range(count):
                chunk[i] = part_levels[i]
            for i in range(0, count, 64):
                look_up_level(drops, 0, chunk, i, chunk, i)
        for i in range(count):
            result[i] = round_value(
                U32(part[i]), U32(chunk[i]), first, sign_bit, infinity, normal, rounding.nearest, rounding.prune
            )
