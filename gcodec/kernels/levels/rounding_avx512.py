"""Round 64 values by level, for CPUs with AVX-512: vector steps of :mod:`rounding`, whose law is
:func:`scalar.round_value`.

What depends on the level is computed once a step in a register, in lane l for level l, and permuted to the values:

    level               0           1           2     ...     here drops of 0, 3 and 6 bits
    unit       ...0000001  ...0001000  ...1000000             the lowest bit that is kept
    low        ...0000000  ...0000111  ...0111111             what is dropped
    half       ...0000000  ...0000011  ...0011111             half of unit less 1; 0 to truncate
    odd        ...0000000  ...0001000  ...1000000             the bit that makes a tie round up; 0 if nothing is dropped

    rounded    (value + half + (value & odd ? 1 : 0)) & ~low
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import Vector, load, splat
from ..core.simd_avx512 import look_up_bytes, permute

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _round_all(builder: Any, args: list[Any], at: Any, bits: int) -> None:
    """Round 64 values of any kind, infinities and NaNs too, which are of level 0: :func:`scalar.round_value` lane by
    lane. The arguments are those of the step."""
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
    """Make the step that rounds values of so many bits: without a thought of infinity, which is right where magnitudes
    are below ``limit``, and in the rare group that has larger ones once more by :func:`_round_all`."""
    n, sign_bit = 512 // bits, 1 << (bits - 1)

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        unit = splat(builder, _number(1), bits, n) << load(builder, at(4, 8), 8, n).to(bits)
        low, nearest = unit - 1, builder.neg(args[10])
        # Where nothing is dropped there is no half to round up, nor a bit that would make it even.
        half, odd, max_magnitude = (low >> 1) & nearest, (unit & ~1) & nearest, unit ^ unit
        for k in range(0, 64, n):
            values = load(builder, builder.gep(at(0, bits), [_number(k * bits // 8)]), bits, n)
            # As lanes of the values' width, which a permute takes: lane l of half, odd and low is level l's.
            level = load(builder, builder.gep(at(2, 8), [_number(k)]), 8, n).to(bits)
            magnitude = values & (sign_bit - 1)
            bumped = values + permute(half, level)
            bumped = (values & permute(odd, level)).compare("!=", 0).choose(bumped + 1, bumped)
            result = bumped & (permute(low, level) ^ -1)
            magnitude.compare(">=", args[9]).choose(result, result ^ result).store(
                builder.gep(at(6, bits), [_number(k * bits // 8)])
            )
            max_magnitude = magnitude.compare(">", max_magnitude).choose(magnitude, max_magnitude)
        # A magnitude below this is finite, and so is what it is rounded to.
        # (Half a unit is at most 2**22 of float32, 2**6 of bfloat16 and 2**9 of float16; infinity >> 5 is more.)
        limit = builder.sub(args[8], builder.lshr(args[8], _number(5)))
        large = max_magnitude.compare(">=", limit).number()
        with builder.if_then(builder.icmp_unsigned("!=", large, _number(0)), likely=False):
            _round_all(builder, args, at, bits)

    return intrinsic_step(types.void, 11, generate)


#: round_32(values, i, levels, j, drops, 0, out, k, infinity, min_kept, nearest): round 64 float32 by level. ``values``,
#: ``out``: uint32; ``levels``: uint8, below 16; ``drops``: uint8[64 or more], by level; ``infinity``: its bits;
#: magnitudes below ``min_kept`` become +0; ``nearest``: 1, or 0 to truncate. round_16: of values of 16 bits.
round_32, round_16 = _rounder(32), _rounder(16)
