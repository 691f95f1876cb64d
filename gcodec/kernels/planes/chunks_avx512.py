"""Fused steps on 64 float32 whose kept bits are chunks of the tail, for CPUs with AVX-512: ladders in steps of three or
six bits, and half of the numbers of fixed bits. :mod:`class_steps_ssse3` is for CPUs without.

A value owns the first few of at most four **wide** planes, each of which holds the same chunk of every tail, and
perhaps an item of the **half** plane, the upper half of the chunk after those. That way a value's items are four bytes,
whatever its level is, and all levels are handled alike. The numbers of ``chunks`` say where they lie
(:func:`gcodec.format.tables.chunks_of`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ..core.intrinsics import intrinsic_step
from ..core.simd import Vector, load, move, pick_bits, splat
from ..core.simd_avx512 import deinterleave_bytes, extract_tails, look_up_bytes

_INDEX = ir.IntType(64)
WIDE = 4  #: planes
N_WIDE, HALF, FACTORS, PICKS = 0, 1, 2, 4  #: where numbers lie in ``chunks``


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


class _Chunks:
    """``chunks`` as a step reads it, and the planes' items: rows of bytes, with the number of those in each plane."""

    def __init__(self, builder: Any, chunks: Any, items: Any, row: Any, n_items: Any) -> None:
        self.builder, self.items, self.row, self.n_items = builder, items, row, n_items
        self.numbers = builder.bitcast(chunks, _INDEX.as_pointer())
        self.n_wide, self.half = self.number(N_WIDE), self.number(HALF)
        self.has_half = builder.icmp_signed(">=", self.half, _number(0))

    def number(self, k: int) -> Any:
        """Return the number at this place of ``chunks``."""
        return self.builder.load(self.builder.gep(self.numbers, [_number(k)]))

    def plane(self, plane: Any) -> tuple[Any, Any]:
        """Address of a plane's number of items, and of its next item."""
        count_at = self.builder.bitcast(
            self.builder.gep(self.n_items, [self.builder.shl(plane, _number(3))]), _INDEX.as_pointer()
        )
        rows = self.builder.mul(self.builder.sub(plane, _number(1)), self.row)  # ``items`` is one row in
        place = self.builder.add(rows, self.builder.load(count_at))
        return count_at, self.builder.gep(self.items, [place])

    def advance(self, count_at: Any, mask: Vector) -> None:
        """Count the items of a mask."""
        self.builder.store(self.builder.add(self.builder.load(count_at), mask.count()), count_at)


def _owners(chunks: _Chunks, marks: Vector) -> list[Vector]:
    """Masks of the values that own an item of each wide plane."""
    builder = chunks.builder
    wide = marks & builder.sub(builder.shl(_number(1), chunks.n_wide), _number(1))
    doubled = (wide.seen_as(16) << (8 - WIDE)).seen_as(8)
    found = []
    for _ in range(WIDE):  # the last plane's mark is in the topmost bit, which is the fastest to ask for
        found.append(doubled.negative())
        doubled = doubled + doubled
    return found[::-1]


def _half_owners(chunks: _Chunks, marks: Vector) -> Vector:
    """Mask of the values that own an item of the half plane."""
    return (marks & chunks.builder.shl(_number(1), chunks.n_wide)).compare("!=", 0)


def _generate_split(builder: Any, args: list[Any], at: Any) -> None:
    chunks = _Chunks(builder, at(8, 64), at(2, 8), args[3], at(4, 8))
    marks = look_up_bytes(builder, at(10, 8), load(builder, at(6, 8), 8, 64))
    picks = load(builder, builder.gep(at(8, 64), [_number(8 * PICKS)]), 8, 64)
    tails = [extract_tails(load(builder, builder.gep(at(0, 32), [_number(64 * k)]), 32, 16)) for k in range(4)]
    parts = deinterleave_bytes([pick_bits(picks, tail.seen_as(8)) for tail in tails])
    owners, upper = _owners(chunks, marks), parts[0]
    for k, (part, mask) in enumerate(zip(parts, owners, strict=True)):
        with builder.if_then(builder.icmp_signed("<", _number(k), chunks.n_wide)):
            count_at, place = chunks.plane(_number(k))
            move("compress", part, mask).store(place)
            chunks.advance(count_at, mask)
        if k + 1 < WIDE:
            upper = mask.choose(parts[k + 1], upper)
    with builder.if_then(chunks.has_half):
        count_at, place = chunks.plane(chunks.n_wide)
        mask = _half_owners(chunks, marks)
        move("compress", (upper.seen_as(16) >> chunks.half).seen_as(8), mask).store(place)
        chunks.advance(count_at, mask)


#: split_chunks_32(values, i, items, row, n_items, 0, symbols, j, chunks, 0, mark_of, 0): the items of 64 float32 behind
#: the ``n_items`` that each plane has; ``items``: rows of ``row`` bytes; what lies above an item in its byte is of no
#: meaning.
split_chunks_32 = intrinsic_step(types.void, 12, _generate_split)


def _unpack(a: Vector, b: Vector) -> list[Vector]:
    """Vector of two registers in turn, within each 128 bits: of their lower halves, and of their upper halves."""
    n = 128 // a.bits
    return [
        a.pick([lane + k // 2 + k % 2 * a.n for lane in range(start, a.n, n) for k in range(n)], b)
        for start in (0, n // 2)
    ]


#: Fours of 64 bytes, so that unpacking twice puts them in order.
_FOURS = [4 * (k % 4) + k // 4 for k in range(16)]


def _generate_merge(builder: Any, args: list[Any], at: Any) -> None:
    chunks = _Chunks(builder, at(8, 64), at(2, 8), args[3], at(4, 8))
    marks, symbols = load(builder, at(10, 8), 8, 64), load(builder, at(6, 8), 8, 64)
    none = symbols ^ symbols
    # A zero has no items, so that without a head all its bits are 0.
    head = symbols.compare("!=", 0).choose(look_up_bytes(builder, at(12, 8), symbols) + args[14], none)
    slot = cgutils.alloca_once_value(builder, none.value)
    with builder.if_then(chunks.has_half):
        count_at, place = chunks.plane(chunks.n_wide)
        mask = _half_owners(chunks, marks)
        halves = (move("expand", load(builder, place, 8, 64), mask).seen_as(16) << chunks.half).seen_as(8)
        builder.store(halves.value, slot)
        chunks.advance(count_at, mask)
    halves, parts = Vector(builder, builder.load(slot)), []
    for k, mask in enumerate(_owners(chunks, marks)):
        # A half goes where the value has no item of its own, the first time.
        slot = cgutils.alloca_once_value(builder, halves.value)
        with builder.if_then(builder.icmp_signed("<", _number(k), chunks.n_wide)):
            count_at, place = chunks.plane(_number(k))
            builder.store(move("expand", load(builder, place, 8, 64), mask, halves).value, slot)
            chunks.advance(count_at, mask)
        parts.append(Vector(builder, builder.load(slot)))
        halves = mask.choose(halves, none)
    *parts, head = [one.seen_as(32).pick(_FOURS).seen_as(8) for one in (*parts, head)]
    upper, lower = (
        [both.multiply_pairs(splat(builder, chunks.number(FACTORS + k), 16, 32)) for both in _unpack(first, second)]
        for k, (first, second) in enumerate((parts[:2], parts[2:]))
    )
    for k, (twelve, rest, exponent) in enumerate(zip(upper, lower, _unpack(head, none), strict=True)):
        low = (twelve << 12) | rest
        high = ((twelve << 4) & 0x8000) | (exponent.seen_as(16) << 7) | ((twelve >> 4) & 0x7F)
        for m, words in enumerate(_unpack(low, high)):
            words.store(builder.gep(at(0, 32), [_number(64 * (2 * k + m))]))


#: merge_chunks_32(out, i, items, row, n_items, 0, symbols, j, chunks, 0, marks, j, head_of, 0, base): inverse;
#: ``marks``: of the values, ``head_of``: uint8[256]; items have nothing above them in their bytes.
merge_chunks_32 = intrinsic_step(types.void, 15, _generate_merge)
