"""Planes of whole tails, 64 values at a time, for CPUs with AVX-512: vector steps of :mod:`whole_tail`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import load, move
from ..core.simd_avx512 import extract_tails, join_values

_INDEX = ir.IntType(64)
_THREE = ir.Constant(_INDEX, 3)


def _generate_split_24(builder: Any, args: list[Any], at: Any) -> Any:
    picks = [4 * (k // 3) + k % 3 for k in range(48)] + [63] * 16
    symbols, out, total = load(builder, at(2, 8), 8, 64), at(4, 8), ir.Constant(_INDEX, 0)
    for k in range(4):
        words = load(builder, builder.gep(at(0, 32), [ir.Constant(_INDEX, 64 * k)]), 32, 16)
        mask = symbols.part(k, 16).compare("!=", 0)
        place = builder.gep(out, [builder.mul(total, _THREE)])
        move("compress", extract_tails(words), mask).seen_as(8).pick(picks).store(place)
        total = builder.add(total, mask.count())
    return total


#: split_24_64(values, i, symbols, j, out, at) -> how many: three bytes for each of 64 float32 whose symbol is not 0.
split_24_64 = intrinsic_step(types.intp, 6, _generate_split_24)


def _generate_merge_24(builder: Any, args: list[Any], at: Any) -> Any:
    picks = [64 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)]
    symbols, data, total = load(builder, at(2, 8), 8, 64), at(0, 8), ir.Constant(_INDEX, 0)
    for k in range(4):
        some = symbols.part(k, 16)
        mask = some.compare("!=", 0)
        packed = load(builder, builder.gep(data, [builder.mul(total, _THREE)]), 8, 64)
        tail = move("expand", packed.pick(picks, packed ^ packed).seen_as(32), mask)
        value = join_values(some.to(32) + args[6], tail)
        mask.choose(value, tail).store(builder.gep(at(4, 32), [ir.Constant(_INDEX, 64 * k)]))
        total = builder.add(total, mask.count())
    return total


#: merge_24_64(data, at, symbols, j, out, i, origin) -> how many items: inverse; ``origin``: head of symbol 0.
merge_24_64 = intrinsic_step(types.intp, 7, _generate_merge_24)


def splitter(rest: int) -> Any:
    """Make a step that cuts 64 values of 16 bits with ``rest`` bits below the head."""
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        values, mask = load(builder, at(0, 16), 16, 64), load(builder, at(2, 8), 8, 64).compare("!=", 0)
        tail = (values & (1 << rest) - 1) | ((values >> (15 - rest)) & (1 << rest))
        move("compress", tail.to(8), mask).store(at(4, 8))
        return mask.count()

    return intrinsic_step(types.intp, 6, generate)


def merger(rest: int) -> Any:
    """Make the inverse of a step of :func:`splitter`."""
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        symbols = load(builder, at(2, 8), 8, 64)
        mask = symbols.compare("!=", 0)
        tail = move("expand", load(builder, at(0, 8), 8, 64), mask).to(16)
        head = (symbols + args[6]).to(16) if rest == 7 else symbols.to(16) + args[6]
        mask.choose(join_values(head, tail, 16, rest), tail).store(at(4, 16))
        return mask.count()

    return intrinsic_step(types.intp, 7, generate)


#: split_8_64(values, i, symbols, j, out, at) -> how many: the tail of each of 64 bfloat16 whose symbol is not 0, a byte
#: each.
split_8_64 = splitter(7)
#: merge_8_64(data, at, symbols, j, out, i, origin) -> how many items: inverse; ``origin``: head of symbol 0.
merge_8_64 = merger(7)
