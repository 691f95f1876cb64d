"""Split and merge planes behind wide heads, 64 values at a time, for CPUs with AVX-512: vector steps of
:mod:`wide_head`, whose law is :func:`scalar.tail_of` and :func:`scalar.value_of`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import load, move
from ..core.value_parts import extract_tails, join_values
from .whole_tail_avx512 import merger, splitter

_INDEX = ir.IntType(64)
_TWO = ir.Constant(_INDEX, 2)


def _long_splitter(low_bits: int) -> Any:
    """Make the step that writes tails of 16 bits and ``low_bits``.

    values    s hhhhhhhhh mmmmmmmmmmmmmmmmmmmmmm      low_bits = 7; 4 where the head has 12 bits
    tails               s mmmmmmmmmmmmmmm mmmmmmm
    upper               s mmmmmmmmmmmmmmm             64 16-bit lanes, compressed half by half to ``out``
    lower                                 mmmmmmm     64 bytes, compressed to ``items``, and packed later
    """

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        values, mask = load(builder, at(0, 32), 32, 64), load(builder, at(2, 8), 8, 64).compare("!=", 0)
        tail = extract_tails(values, 15 + low_bits)
        # 64 lanes of 16 bits are two registers: the second is stored where the items of the first end.
        upper, total = (tail >> low_bits).to(16), ir.Constant(_INDEX, 0)
        for k in range(2):
            half = mask.part(k, 32)
            move("compress", upper.part(k, 32), half).store(builder.gep(at(4, 8), [builder.mul(total, _TWO)]))
            total = builder.add(total, half.count())
        move("compress", (tail & (1 << low_bits) - 1).to(8), mask).store(at(6, 8))
        return total

    return intrinsic_step(types.intp, 8, generate)


def _long_merger(low_bits: int) -> Any:
    """Make the inverse: expand both planes to the lanes whose symbol is not 0, and join them with heads.

    upper               s mmmmmmmmmmmmmmm
    lower                                 mmmmmmm
    heads       hhhhhhhhh                             symbol + origin, modulo 2**9 or 2**12
    values    s hhhhhhhhh mmmmmmmmmmmmmmmmmmmmmm
    """

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        symbols, total, upper = load(builder, at(4, 8), 8, 64), ir.Constant(_INDEX, 0), []
        mask = symbols.compare("!=", 0)
        for k in range(2):
            half = mask.part(k, 32)
            packed = load(builder, builder.gep(at(0, 8), [builder.mul(total, _TWO)]), 16, 32)
            upper.append(move("expand", packed, half))
            total = builder.add(total, half.count())
        lower = move("expand", load(builder, at(2, 8), 8, 64), mask)
        tail = (upper[0].pick(list(range(64)), upper[1]).to(32) << low_bits) | lower.to(32)
        value = join_values(symbols.to(32) + args[8], tail, 32, 15 + low_bits)
        mask.choose(value, tail).store(at(6, 32))
        return total

    return intrinsic_step(types.intp, 9, generate)


#: split_23_64(values, i, symbols, j, out, at, items, k) -> number of items: write the tail of 23 bits of each of 64
#: float32 whose symbol is not 0: the upper 16 bits to ``out``, the lower 7 to ``items``, both uint8 with 64 bytes of
#: margin. split_20_64: tails of 20 bits, behind a head of 12.
split_23_64, split_20_64 = _long_splitter(7), _long_splitter(4)
#: merge_23_64(data, at, items, k, symbols, j, out, i, origin) -> number of items: join 64 float32, the inverse of
#: split_23_64. ``origin``: the head that symbol 0 would have if it had one; heads are symbols + origin, modulo 512.
#: merge_20_64: the inverse of split_20_64; heads are modulo 4096.
merge_23_64, merge_20_64 = _long_merger(7), _long_merger(4)

#: split_7_64(values, i, symbols, j, out, at) -> number of items: write the tail of each of 64 bfloat16 with a head of 9
#: bits whose symbol is not 0, seven bits in a byte each.
split_7_64 = splitter(6)
#: merge_7_64(data, at, symbols, j, out, i, origin) -> number of items: join 64 such values, the inverse of split_7_64.
merge_7_64 = merger(6)
#: The same for a head of 12 bits and a tail of four.
split_4_64, merge_4_64 = splitter(3), merger(3)
