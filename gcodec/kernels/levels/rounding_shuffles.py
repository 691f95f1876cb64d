"""Round 64 values by level, for CPUs with SSSE3 but not AVX-512: vector steps of :mod:`rounding`, whose law is
:func:`scalar.round_value`.

Sixteen or, with AVX2, 32 values at a time. There are no look-ups lane by lane, nor shifts of lanes of 16 bits, so the
bits that a level drops, ``low``, come from tables of 16 bytes by shuffles, one for each byte of a value, and all else
is computed from them:

    levels     l0       l1       l2       ...          16 bytes
    byte 0     table 0[l0], table 0[l1], ...           16 bytes each: the lowest bytes of low, then the next ones ...
    low        byte 3 | byte 2 | byte 1 | byte 0       zipped to 16 lanes of 32 bits: 0...01111111 to drop 7 bits
    unit       low + 1                                 the lowest bit that is kept
    rounded    (value + low / 2 + (value & unit ? 1 : 0)) & ~low

AVX2 has shifts of lanes of 32 bits: there low is (1 << drop) - 1, and one table says how many bits a level drops.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX2, intrinsic_step
from ..core.jit import kernel
from ..core.scalar import U8, U32
from ..core.simd import Vector, load, splat
from ..core.vector_shuffles import LANES, load_table, shuffle

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _address(builder: Any, start: Any, offset: int) -> Any:
    """Return the address so many bytes behind ``start``."""
    return builder.gep(start, [_number(offset)])


def zipped(low: Vector, high: Vector) -> Vector:
    """Join each lane of one vector and that of another to a lane of twice the width.

    low       l0 l1 l2 ...      high      h0 h1 h2 ...
    result    h0l0 h1l1 h2l2 ...
    """
    both = low.pick([k + half for k in range(low.n) for half in (0, low.n)], high)
    return both.seen_as(2 * low.bits)


def _lows(builder: Any, tables: Any, levels: Vector, bits: int) -> Vector:
    """Return the bits that values of so many bits drop, by level, from the tables of :func:`fill_drops`."""
    if HAS_AVX2 and bits == 32:
        drops = shuffle(load_table(builder, _address(builder, tables, 64)), levels).to(32)
        return (((drops ^ drops) + 1) << drops) - 1
    #     levels          2 0 1        bytes
    #     table 0         7F 00 0F     lowest bytes of low, by level; table 1, 2, 3: the next ones
    #     zipped          table 1 | table 0 -> 16 bits; table 3 | table 2 -> 16 bits; both -> 32 bits
    parts = [shuffle(load_table(builder, _address(builder, tables, 16 * k)), levels) for k in range(bits // 8)]
    while len(parts) > 1:
        parts = [zipped(*parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return parts[0]


def _rounder(bits: int) -> Any:
    """Make the step that rounds values of so many bits: without a thought of infinity, which is right where magnitudes
    are below ``limit``; it says whether there are larger ones."""
    sign = 1 << (bits - 1)

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        one = _number(1)
        max_finite = splat(builder, builder.sub(args[8], one), bits, LANES)  # comparisons are of what is above
        max_pruned = splat(builder, builder.sub(args[9], one), bits, LANES)
        nearest = splat(builder, builder.neg(args[10]), bits, LANES)
        # Where nothing is dropped there is no half to round up, nor a bit that would make it even.
        odd, max_magnitude = nearest & ~1, nearest ^ nearest
        for k in range(0, 64, LANES):
            values = load(builder, _address(builder, at(0, bits), k * bits // 8), bits, LANES)
            low = _lows(builder, at(4, 8), load(builder, _address(builder, at(2, 8), k), 8, LANES), bits)
            magnitude, unit = values & (sign - 1), (low + 1) & odd
            # A mask is -1 where it is set: to subtract it adds the 1 by which odd kept parts are bumped. `unit` has no
            # sign bit: drops end below the head, so `above`, which is of signed numbers, tells what is not 0.
            bumped = values + ((low >> 1) & nearest) - (values & unit).above(0).widened(bits)
            result = (bumped & (low ^ -1)) & magnitude.above(max_pruned).widened(bits)
            result.store(_address(builder, at(6, bits), k * bits // 8))
            max_magnitude = magnitude.above(max_magnitude).choose(magnitude, max_magnitude)
        return max_magnitude.above(max_finite).number()

    return intrinsic_step(types.intp, 11, generate)


#: round_32(values, i, levels, j, tables, 0, out, k, limit, min_kept, nearest) -> 0 unless a magnitude reaches
#: ``limit``, when the caller must round all 64 anew: round 64 float32 by level. ``values``, ``out``: uint32;
#: ``levels``: uint8, below 16; ``tables``: uint8[5, 16] of :func:`fill_drops`; magnitudes below ``min_kept`` become +0;
#: ``nearest``: 1, or 0 to truncate. round_16: of values of 16 bits.
round_32, round_16 = _rounder(32), _rounder(16)


@kernel
def fill_drops(drops, tables, at):
    """Write the bits that each level drops, the lowest bytes of all levels first, and then how many these are.

    Args:
        drops: uint8[16 or more], mantissa bits to drop by level.
        tables: uint8, result: 80 bytes of it, uint8[5, 16].
        at: Byte at which these begin.
    """
    for level in range(16):
        low = U32(U32(U32(1) << U32(drops[level])) - U32(1))
        for k in range(4):
            tables[at + 16 * k + level] = U8((low >> U32(8 * k)) & U32(255))
        tables[at + 64 + level] = drops[level]
