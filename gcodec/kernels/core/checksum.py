"""The checksum of docs/format.md section 3, 16 words at a time."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .intrinsics import intrinsic_step
from .jit import kernel
from .scalar import U64, word_multiplier
from .simd import INDEX, Vector, constant, for_range, load, slot_for
from .unaligned import load_u32

_STEP, _LOW = 0x9E3779B1, 0xFFFFFFFF


def _sum_words(builder: Any, args: list[Any], at: Any) -> Any:
    """Sum words times their multipliers, m(i) = (i + 1) * _STEP | 1. The law is :func:`scalar.word_multiplier`.

    words      w15 w14 ...  w3   w2    w1   w0         a turn, 16 lanes of 32 bits
    product    (i + 1) * _STEP of each, and in the next turn 16 * _STEP more
    even                    +=   w2 * m2    w0 * m0    the lower halves of lanes of 64 bits
    odd                     +=   w3 * m3    w1 * m1    the upper ones
    result     all lanes of even and odd added up, modulo 2**64
    """
    # m(i) is taken from one turn to the next by an addition modulo 2**32, not by a product: 16 words further on it is
    # 16 * _STEP more, before the OR with 1. Products of 32 by 32 bits are exact in lanes of 64; sums wrap modulo 2**64,
    # as section 3 wants them, so the order in which they are added up does not matter.
    kinds = ir.VectorType(ir.IntType(32), 16), ir.VectorType(INDEX, 8)
    first = (constant(builder, [(i + 1) * _STEP & _LOW for i in range(16)], 32) + builder.mul(
        builder.trunc(args[3], ir.IntType(32)), ir.Constant(ir.IntType(32), _STEP)
    )).value  # fmt: skip
    zeros = ir.Constant(kinds[1], [0] * 8)
    slots = [slot_for(builder, value) for value in (first, zeros, zeros)]
    start = at(0, 8)
    with for_range(builder, args[2]) as index:
        words = load(builder, builder.gep(start, [builder.mul(index, ir.Constant(INDEX, 64))]), 32, 16).seen_as(64)
        product, even, odd = (Vector(builder, builder.load(slot)) for slot in slots)
        factors = (product | 1).seen_as(64)
        builder.store((product + 16 * _STEP).value, slots[0])
        builder.store((even + (words & _LOW) * (factors & _LOW)).value, slots[1])
        builder.store((odd + (words >> 32) * (factors >> 32)).value, slots[2])
    return (Vector(builder, builder.load(slots[1])) + Vector(builder, builder.load(slots[2]))).total()


#: sum_words(data, start, n, first) -> sum of 16 * n words from byte ``start`` on, each times its multiplier, as uint64;
#: the first of them is word number ``first`` of all that is summed.
sum_words = intrinsic_step(types.uint64, 4, _sum_words)


@kernel
def checksum(data, start, n_words, hole, seed):
    """Return the checksum of docs/format.md section 3, uint64.

    Args:
        data: uint8[], with the words from byte ``start`` on.
        start: First byte.
        n_words: Number of words of 32 bits.
        hole: Number of the first of two words that count as zero, where the checksum itself stands; negative for none.
        seed: What the sum begins with, uint64.
    """
    total = U64(seed) + sum_words(data, start, n_words >> 4, 0)
    for i in range(n_words & ~15, n_words):
        total += U64(load_u32(data, start + 4 * i)) * U64(word_multiplier(i))
    # The words that hold the checksum count as zero. To sum all and take these two off again costs two products; to
    # leave them out would break the vectors.
    if hole >= 0:
        for i in range(hole, hole + 2):
            total -= U64(load_u32(data, start + 4 * i)) * U64(word_multiplier(i))
    return total


@kernel
def partial_checksum(data, first, n_words):
    """Return the part of a checksum, uint64, that comes from words ``first ... first + n_words`` of ``data`` (uint8);
    :func:`checksum` is the seed and the sum of its parts, modulo 2**64."""
    total = sum_words(data, 4 * first, n_words >> 4, first)
    for i in range(first + (n_words & ~15), first + n_words):
        total += U64(load_u32(data, 4 * i)) * U64(word_multiplier(i))
    return total
