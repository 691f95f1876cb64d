"""Heads and tails of values in registers, and look-ups by level: parts of vector steps that several stages share."""

from __future__ import annotations

from typing import Any

from .intrinsics import HAS_AVX512
from .simd import Vector, constant, mask_of, pick_bits
from .simd_avx512 import look_up_bytes
from .vector_shuffles import LANES, load_table, shuffle


def extract_tails(words: Vector, rest: int = 23) -> Vector:
    """Return the tails of float32: signs above the bits below the head. Its law is :func:`scalar.tail_of`.

    words      s hhhhhhhh mmmmmmmmmmmmmmmmmmmmmmm
    result     ........ s mmmmmmmmmmmmmmmmmmmmmmm

    Args:
        words: Values, lanes of 32 bits.
        rest: Number of bits below the head.
    """
    return (words & (1 << rest) - 1) | ((words >> (31 - rest)) & (1 << rest))


def join_values(head: Vector, tail: Vector, bits: int = 32, rest: int | None = None) -> Vector:
    """Return values of heads and tails, the inverse of :func:`extract_tails`. Its law is :func:`scalar.value_of`.

    head       xxxxxxxx hhhhhhhh               any upper bits
    tail       ........ s mmmmmmm
    result     s hhhhhhhh mmmmmmm

    Args:
        head: Heads, lanes of ``bits``.
        tail: Tails, lanes of ``bits``.
        bits: Bits of a value: 32, or 16 for bfloat16 and float16.
        rest: Number of bits below the head; by default that of float32, 23, or of bfloat16, 7.
    """
    #     head << rest     . hhhhhhhh .......      & all bits but the sign and the lowest `rest`
    #     tail             . ........ mmmmmmm      & the lowest `rest`
    #     tail << ...      s ........ .......      & the sign: from bit `rest` of the tail to the top
    rest = rest or {32: 23, 16: 7}[bits]
    low, sign = (1 << rest) - 1, 1 << (bits - 1)
    return ((head << rest) & (sign - 1 & ~low)) | (tail & low) | ((tail << (bits - 1 - rest)) & sign)


def extract_heads(values: Vector, head_shift: Any) -> Vector:
    """Return the heads of 64 values, of eight bits. Its law is :func:`scalar.head_of`.

    Of 32 bits, with AVX-512, a quarter is a register of 16 values, two in every eight bytes, and its heads go to two
    of these bytes, which no other quarter has:

    quarter 0      a          b          c          d     ...     values
    quarter 1      A          B          C          D     ...
    heads          a b A B ........      c d C D ........         eight bytes each; then quarters 2 and 3
    result         a b c d ... A B C D ...                        64 bytes

    Args:
        values: Values, lanes of 16 or 32 bits.
        head_shift: Number of bits below the head.
    """
    if values.bits == 16 or not HAS_AVX512:
        return (values >> head_shift).to(8)
    heads = values.part(0, 16).seen_as(8)
    # Of the eight bytes that two values are, even bytes of the result take the head of the lower value, odd ones that
    # of the upper: eight bits from bit head_shift or 32 + head_shift on. So each quarter has all of its heads four
    # times, and the masks take another copy of each quarter: nothing needs to be moved until the last shuffle.
    picks = constant(values.builder, [32 * (lane & 1) for lane in range(64)]) + head_shift
    for k in range(4):
        of_quarter = mask_of(values.builder, [lane % 8 // 2 == k for lane in range(64)])
        heads = of_quarter.choose(pick_bits(picks, values.part(k, 16).seen_as(8)), heads)
    return heads.pick([8 * (lane % 16 // 2) + lane // 16 * 2 + lane % 2 for lane in range(64)])


def look_up_levels(builder: Any, table: Any, levels: Vector) -> Vector:
    """Return the entries of a table of bytes at 64 levels, below 16; with AVX-512 or AVX2.

    Args:
        builder: llvmlite's.
        table: Address of the table, of 64 entries.
        levels: 64 bytes.
    """
    if HAS_AVX512:
        return look_up_bytes(builder, table, levels, 64)
    entries = load_table(builder, table)
    low, high = (shuffle(entries, levels.part(half, LANES)) for half in range(2))
    return low.pick(list(range(64)), high)
