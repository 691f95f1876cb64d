"""Rounding 64 values by level, for CPUs with SSSE3 but not AVX-512: vector steps of :mod:`rounding`. Sixteen at a time,
and what depends on the level by a shuffle of bytes, for there are neither shifts nor look-ups lane by lane."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from ..core.intrinsics import intrinsic_step
from ..core.jit import kernel
from ..core.scalar import U8, U32
from ..core.simd import Vector, load, splat
from ..core.vector_ssse3 import shuffle

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _address(builder: Any, start: Any, offset: int) -> Any:
    return builder.gep(start, [_number(offset)])


def zipped(low: Vector, high: Vector) -> Vector:
    """Vector of twice the width, from their lower and their upper halves."""
    both = low.pick([k + half for k in range(low.n) for half in (0, low.n)], high)
    return both.seen_as(2 * low.bits)


def _lows(builder: Any, tables: Any, levels: Vector, bits: int) -> Vector:
    """The bits that 16 levels drop, from their tables: of the lowest bytes of all levels, of the next ones ..."""
    parts = [shuffle(load(builder, _address(builder, tables, 16 * k), 8, 16), levels) for k in range(bits // 8)]
    while len(parts) > 1:
        parts = [zipped(*parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return parts[0]


def _rounder(bits: int) -> Any:
    sign = 1 << (bits - 1)

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        one = _number(1)
        limit = splat(builder, builder.sub(args[8], one), bits, 16)
        least = splat(builder, builder.sub(args[9], one), bits, 16)
        nearest = splat(builder, builder.neg(args[10]), bits, 16)
        # Where nothing is dropped there is no half to round up, nor a bit that would make it even.
        odd, most = nearest & ~1, nearest ^ nearest
        for k in range(0, 64, 16):
            values = load(builder, _address(builder, at(0, bits), k * bits // 8), bits, 16)
            low = _lows(builder, at(4, 8), load(builder, _address(builder, at(2, 8), k), 8, 16), bits)
            magnitude, unit = values & (sign - 1), (low + 1) & odd
            bumped = values + ((low >> 1) & nearest) - (values & unit).above(0).widened(bits)
            result = (bumped & (low ^ -1)) & magnitude.above(least).widened(bits)
            result.store(_address(builder, at(6, bits), k * bits // 8))
            most = magnitude.above(most).choose(magnitude, most)
        return most.above(limit).number()

    return intrinsic_step(types.intp, 11, generate)


#: round_32(values, i, levels, j, tables, 0, out, k, limit, least, nearest): 64 float32 rounded by level; those below
#: ``least`` become +0; ``nearest``: 1, or 0 to truncate; ``tables``: of :func:`fill_drops`. Returns something else than
#: 0 where there are magnitudes from ``limit`` on: those are not what they should be. round_16: of 16 bits.
round_32, round_16 = _rounder(32), _rounder(16)


@kernel
def fill_drops(drops, tables, at):
    """The bits that are dropped by level: uint8[4, 16] from ``tables[at]`` on, the lowest bytes of all levels first."""
    for level in range(16):
        low = U32(U32(U32(1) << U32(drops[level])) - U32(1))
        for k in range(4):
            tables[at + 16 * k + level] = U8((low >> U32(8 * k)) & U32(255))
