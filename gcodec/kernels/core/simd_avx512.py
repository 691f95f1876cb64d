"""Parts of vector steps that several stages share, for CPUs with AVX-512 (VBMI and VBMI2)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .simd import Vector, call, load

_BYTES = ir.VectorType(ir.IntType(8), 64)


def look_up_bytes(builder: Any, table: Any, source: Vector, n: int = 256) -> Vector:
    """Return the entries of a table of bytes at 64 indices. Of 256 entries, two permutes of 128 each read the low seven
    bits of an index, and its highest bit chooses between them:

    index      0 nnnnnnn  ->  entry n           of the first permute
               1 nnnnnnn  ->  entry 128 + n     of the second

    Args:
        builder: llvmlite's.
        table: Address of the table.
        source: Indices, 64 bytes.
        n: Entries of the table, 64 or 256; of 64, the low six bits of an index count.
    """
    parts = [load(builder, builder.gep(table, [ir.Constant(ir.IntType(64), k)]), 8, 64).value for k in range(0, n, 64)]
    if n == 64:
        return permute(Vector(builder, parts[0]), source)
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (call(builder, name, _BYTES, [parts[k], source.value, parts[k + 1]]) for k in (0, 2))
    return source.compare(">=", 128).choose(Vector(builder, high), Vector(builder, low))


_LETTERS = {8: "qi", 16: "hi", 32: "si"}


def permute(table: Vector, source: Vector) -> Vector:
    """Return the lanes of a register with these numbers, of which the low bits count.

    table      a b c d e ...
    source     2 0 0 3 1 ...
    result     c a a d b ...
    """
    name = f"llvm.x86.avx512.permvar.{_LETTERS[table.bits]}.512"
    return Vector(table.builder, call(table.builder, name, table.value.type, [table.value, source.value]))


def deinterleave_bytes(words: list[Vector]) -> list[Vector]:
    """Return the lowest bytes of 64 words, then their next bytes, and so on: four registers of 64 bytes.

    Within a register the bytes are sorted first, which gives quarters of 16 bytes; the four times four quarters are
    then transposed, two halves of registers at a time:

    register 0    a0 a1 a2 a3        a0 b0 c0 d0     lowest bytes of all words
    register 1    b0 b1 b2 b3   ->   a1 b1 c1 d1
    register 2    c0 c1 c2 c3        a2 b2 c2 d2
    register 3    d0 d1 d2 d3        a3 b3 c3 d3     highest bytes

    Args:
        words: Four registers of 16 words.
    """
    #     place in a register      0 ... 15        16 ... 31       32 ... 47       48 ... 63
    #     its byte                 0 of 16 words   1 of 16 words   2 of 16 words   3 of 16 words
    by_byte = [4 * word + byte for byte in range(4) for word in range(16)]
    a, b, c, d = (register.seen_as(8).pick(by_byte).seen_as(64) for register in words)
    transposed = []
    for half in (0, 4):
        pick = [*range(half, half + 4), *range(half + 8, half + 12)]
        left, right = a.pick(pick, b), c.pick(pick, d)  # a0 a1 b0 b1 and c0 c1 d0 d1
        pairs = ([k, k + 1, k + 4, k + 5, k + 8, k + 9, k + 12, k + 13] for k in (0, 2))
        transposed += [left.pick(pick, right).seen_as(8) for pick in pairs]
    return transposed
