"""Parts of vector steps that several stages share, for CPUs with AVX-512 (VBMI and VBMI2)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .simd import Vector, call, constant, load, mask_of, pick_bits

_BYTES = ir.VectorType(ir.IntType(8), 64)


def extract_tails(words: Vector, rest: int = 23) -> Vector:
    """Tails of float32, with ``rest`` bits below the head."""
    return (words & (1 << rest) - 1) | ((words >> (31 - rest)) & (1 << rest))


def join_values(head: Vector, tail: Vector, bits: int = 32, rest: int | None = None) -> Vector:
    """float32 from heads (any upper bits) and tails, or ``bits`` 16: bfloat16 or float16, with ``rest`` bits below the
    head, by default 23 or 7."""
    rest = rest or {32: 23, 16: 7}[bits]
    low, sign = (1 << rest) - 1, 1 << (bits - 1)
    return ((head << rest) & (sign - 1 & ~low)) | (tail & low) | ((tail << (bits - 1 - rest)) & sign)


def look_up_bytes(builder: Any, table: Any, source: Vector, n: int = 256) -> Vector:
    """64 bytes through a table of 64 or 256 bytes at an address; of 64, the indices' low six bits count."""
    parts = [load(builder, builder.gep(table, [ir.Constant(ir.IntType(64), k)]), 8, 64).value for k in range(0, n, 64)]
    if n == 64:
        return permute(Vector(builder, parts[0]), source)
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (call(builder, name, _BYTES, [parts[k], source.value, parts[k + 1]]) for k in (0, 2))
    return source.compare(">=", 128).choose(Vector(builder, high), Vector(builder, low))


_LETTERS = {8: "qi", 16: "hi", 32: "si"}


def permute(table: Vector, source: Vector) -> Vector:
    """Vector of a register by their numbers, of which the low bits count."""
    name = f"llvm.x86.avx512.permvar.{_LETTERS[table.bits]}.512"
    return Vector(table.builder, call(table.builder, name, table.value.type, [table.value, source.value]))


def extract_heads(values: Vector, head_shift: int) -> Vector:
    """Heads of 64 values, of eight bits."""
    if values.bits == 16:
        return (values >> head_shift).to(8)
    # Each quarter's heads go to two bytes of every eight that are its own.
    found = values.part(0, 16).seen_as(8)
    picks = constant(values.builder, [head_shift + 32 * (lane & 1) for lane in range(64)])
    for k in range(4):
        own = mask_of(values.builder, [lane % 8 // 2 == k for lane in range(64)])
        found = own.choose(pick_bits(picks, values.part(k, 16).seen_as(8)), found)
    return found.pick([8 * (lane % 16 // 2) + lane // 16 * 2 + lane % 2 for lane in range(64)])


def deinterleave_bytes(words: list[Vector]) -> list[Vector]:
    """Return the lowest bytes of 64 words, then their next bytes, and so on: four registers of 64 bytes."""
    a, b, c, d = (one.seen_as(8).pick([4 * j + k for k in range(4) for j in range(16)]).seen_as(64) for one in words)
    found = []
    for half in (0, 4):  # quarters of registers, as a matrix of four times four, transposed
        pick = [*range(half, half + 4), *range(half + 8, half + 12)]
        left, right = a.pick(pick, b), c.pick(pick, d)
        found += [left.pick([k, k + 1, k + 4, k + 5, k + 8, k + 9, k + 12, k + 13], right).seen_as(8) for k in (0, 2)]
    return found
