"""Rounding 64 values by level, for CPUs with AVX-512: vector steps of :mod:`rounding`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import Vector, load, splat
from ..core.simd_avx512 import look_up_bytes, permute

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _round_all(builder: Any, args: list[Any], at: Any, bits: int) -> None:
    """Rounding of any values."""
    sign_bit = 1 << (bits - 1)
    values, infinity = load(builder, at(0, bits), bits, 64), args[8]
    levels = load(builder, at(2, 8), 8, 64)
    magnitude = values & (sign_bit - 1)
    finite = magnitude.compare("<", infinity)
    drop = look_up_bytes(builder, at(4, 8), finite.choose(levels, levels ^ levels), 64).to(bits)
    unit = splat(builder, _number(1), bits, 64) << drop
    low = unit - 1
    kept = magnitude - (magnitude & low)
    bump = low.compare("!=", 0).choose((low >> 1) + ((magnitude >> drop) & 1), low)
    rounded = magnitude + (bump & builder.neg(args[10]))
    rounded = rounded - (rounded & low)
    usable = Vector(builder, builder.and_(finite.value, rounded.compare("<", infinity).value))
    above = magnitude.compare(">", infinity).value
    lost = Vector(builder, builder.and_(above, kept.compare("==", infinity).value))
    result = lost.choose(kept | unit, usable.choose(rounded, kept)) | (values & sign_bit)
    magnitude.compare("<", args[9]).choose(result ^ result, result).store(at(6, bits))


def _rounder(bits: int) -> Any:
    n, sign_bit = 512 // bits, 1 << (bits - 1)

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        unit = splat(builder, _number(1), bits, n) << load(builder, at(4, 8), 8, n).to(bits)
        low, nearest = unit - 1, builder.neg(args[10])
        # Where nothing is dropped there is no half to round up, nor a bit that would make it even.
        half, odd, most = (low >> 1) & nearest, (unit & ~1) & nearest, unit ^ unit
        for k in range(0, 64, n):
            values = load(builder, builder.gep(at(0, bits), [_number(k * bits // 8)]), bits, n)
            level = load(builder, builder.gep(at(2, 8), [_number(k)]), 8, n).to(bits)
            magnitude = values & (sign_bit - 1)
            bumped = values + permute(half, level)
            bumped = (values & permute(odd, level)).compare("!=", 0).choose(bumped + 1, bumped)
            result = bumped & (permute(low, level) ^ -1)
            magnitude.compare(">=", args[9]).choose(result, result ^ result).store(
                builder.gep(at(6, bits), [_number(k * bits // 8)])
            )
            most = magnitude.compare(">", most).choose(magnitude, most)
        # A magnitude below this is finite, and so is what it is rounded to.
        limit = builder.sub(args[8], builder.lshr(args[8], _number(5)))
        large = most.compare(">=", limit).number()
        with builder.if_then(builder.icmp_unsigned("!=", large, _number(0)), likely=False):
            _round_all(builder, args, at, bits)

    return intrinsic_step(types.void, 11, generate)


#: round_32(values, i, levels, j, drops, 0, out, k, infinity, least, nearest): 64 float32 rounded by level; those below
#: ``least`` become +0; ``nearest``: 1, or 0 to truncate. round_16: of 16 bits.
round_32, round_16 = _rounder(32), _rounder(16)
