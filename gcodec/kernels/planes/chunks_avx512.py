"""Split and merge 64 float32 whose kept bits are chunks of the tail, for CPUs with AVX-512 (docs/format.md sections 4
and 7).

Ladders in steps of three or six bits, and half of all numbers of fixed bits, cut the tail of 24 bits into at most four
**chunks**, of which each level keeps the first few. The items of chunk k are **wide plane** k; a **half plane** holds
the upper part of the chunk that follows those that a value keeps. The ladder 0/3/.../21, with planes of 6 6 6 6 3 bits:

    tail (24 bits)   s mmmmm   mmmmmm   mmmmmm   mmm mmm
    chunk            0         1        2        3
    level 0 owns     plane 0   plane 1  plane 2  plane 3
    level 1 owns     plane 0   plane 1  plane 2  plane 4 (half): the upper three bits of chunk 3
    level 2 owns     plane 0   plane 1  plane 2
    level 3 owns     plane 0   plane 1  plane 4 (half): the upper three bits of chunk 2

So all items of a value lie in four bytes, one for each chunk, whatever its level is, and all levels are handled alike:
without a look-up of shifts, and with all four planes cut from the tail, or joined to it, at once.
:func:`gcodec.format.tables.chunks_of` computes the numbers in ``chunks`` where planes are of this kind.
:mod:`class_steps_shuffles` is for CPUs without AVX-512.

Steps take pairs of array and index, and then numbers (:func:`intrinsics.intrinsic_step`): ``at(n, bits)`` is the
address of argument n at the index that follows it, ``args[n]`` is argument n; the comment on a step lists them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import Vector, load, move, pick_bits, slot_for, splat
from ..core.simd_avx512 import deinterleave_bytes, look_up_bytes
from ..core.value_parts import extract_tails

_INDEX = ir.IntType(64)
WIDE = 4  #: max number of wide planes
#: Where numbers lie in ``chunks`` (int64[12]): how many wide planes there are; how far left in its chunk an item of the
#: half plane lies, -1 without such a plane; two pairs of factors that join chunks; where chunks begin (uint8[64]).
N_WIDE, HALF, FACTORS, PICKS = 0, 1, 2, 4


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


class _Chunks:
    """The numbers of ``chunks``, and the items of all planes, in the LLVM code of one step.

    Attributes:
        builder: What emits the code.
        items: Address of the row behind that of plane 0: rows of ``row`` bytes, one for each plane.
        row: Bytes of a row.
        n_items: Address of int64[8], how many items each plane has by now.
        numbers: Address of ``chunks``.
        n_wide: Number of wide planes, which is also the number of the half plane.
        half: How far left in its chunk an item of the half plane lies.
        has_half: Whether there is a half plane.
    """

    def __init__(self, builder: Any, chunks: Any, items: Any, row: Any, n_items: Any) -> None:
        self.builder, self.items, self.row, self.n_items = builder, items, row, n_items
        self.numbers = builder.bitcast(chunks, _INDEX.as_pointer())
        self.n_wide, self.half = self.number(N_WIDE), self.number(HALF)
        self.has_half = builder.icmp_signed(">=", self.half, _number(0))

    def number(self, k: int) -> Any:
        """Return the number at this place of ``chunks``."""
        return self.builder.load(self.builder.gep(self.numbers, [_number(k)]))

    def plane(self, plane: Any) -> tuple[Any, Any]:
        """Return the addresses of a plane's number of items and of its next item.

        items   plane 0  |iiiiiiii......|
                plane 1  |iiiii.........|        row: bytes from one to the next
                               ^ next item: row * plane + n_items[plane]
        """
        count_at = self.builder.bitcast(
            self.builder.gep(self.n_items, [self.builder.shl(plane, _number(3))]), _INDEX.as_pointer()
        )
        rows = self.builder.mul(self.builder.sub(plane, _number(1)), self.row)  # ``items`` is one row in
        place = self.builder.add(rows, self.builder.load(count_at))
        return count_at, self.builder.gep(self.items, [place])

    def advance(self, count_at: Any, mask: Vector) -> None:
        """Add the number of lanes in a mask to a plane's number of items."""
        self.builder.store(self.builder.add(self.builder.load(count_at), mask.count()), count_at)


def _owners(chunks: _Chunks, marks: Vector) -> list[Vector]:
    """Return for each wide plane the mask of the values that own an item of it.

        mark          . . . h 3 2 1 0     bit p: the value owns an item of plane p; h: of the half plane
        topmost       3 2 1 0 . . . .     without h; 16-bit lanes are shifted, as there is no shift of bytes
        + topmost     2 1 0 . . . . .     one addition later plane 2 is in the topmost bit, and so on

    Topmost bits become a mask by one instruction (vpmovb2m), which needs no other operand.
    """
    builder = chunks.builder
    wide = marks & builder.sub(builder.shl(_number(1), chunks.n_wide), _number(1))
    topmost = (wide.seen_as(16) << (8 - WIDE)).seen_as(8)
    masks = []
    for _ in range(WIDE):  # from the last plane to the first
        masks.append(topmost.negative())
        topmost = topmost + topmost
    return masks[::-1]


def _half_owners(chunks: _Chunks, marks: Vector) -> Vector:
    """Return the mask of the values that own an item of the half plane, whose number is ``n_wide``."""
    return (marks & chunks.builder.shl(_number(1), chunks.n_wide)).compare("!=", 0)


def _generate_split(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that cuts 64 float32 into the items of their planes.

        values    s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm        four registers of 16
        tails     ........ s mmmmmmmmmmmmmmmmmmmmmmm        four registers of 16
        picked    ??333333 ??222222 ??111111 ??000000       a byte for each chunk, with what lies above it (?)
        parts     |0 0 0 0 ... |1 1 1 1 ... |2 2 ...        four registers of 64 bytes: chunk k of all values
        items     parts[k] of the values that own an item of plane k, one behind the other

    A half item is the upper part of the first chunk that the value has no wide item of. ``at(2, 8)`` is the address of
    ``items`` at the index argument that follows it, which is ``row``: one row in.
    """
    chunks = _Chunks(builder, at(8, 64), at(2, 8), args[3], at(4, 8))
    marks = look_up_bytes(builder, at(10, 8), load(builder, at(6, 8), 8, 64))
    picks = load(builder, builder.gep(at(8, 64), [_number(8 * PICKS)]), 8, 64)
    tails = [extract_tails(load(builder, builder.gep(at(0, 32), [_number(64 * k)]), 32, 16)) for k in range(4)]
    # One instruction cuts all chunks of two tails, and shuffles sort the bytes by chunk for all planes together.
    parts = deinterleave_bytes([pick_bits(picks, tail.seen_as(8)) for tail in tails])
    owners, following = _owners(chunks, marks), parts[0]
    for k, (part, mask) in enumerate(zip(parts, owners, strict=True)):
        with builder.if_then(builder.icmp_signed("<", _number(k), chunks.n_wide)):
            count_at, place = chunks.plane(_number(k))
            move("compress", part, mask).store(place)
            chunks.advance(count_at, mask)
        if k + 1 < WIDE:  # levels keep the first chunks: an item of chunk k means that chunk k + 1 may follow
            following = mask.choose(parts[k + 1], following)
    with builder.if_then(chunks.has_half):
        count_at, place = chunks.plane(chunks.n_wide)
        mask = _half_owners(chunks, marks)
        move("compress", (following.seen_as(16) >> chunks.half).seen_as(8), mask).store(place)
        chunks.advance(count_at, mask)


#: split_chunks_32(values, i, items, row, n_items, 0, symbols, j, chunks, 0, mark_of, 0): append the items of 64 float32
#: to the ``n_items`` that each plane has, which are counted on. ``values``: uint32; ``items``: uint8, rows of ``row``
#: bytes; ``n_items``: int64[8]; ``chunks``: int64[12]; ``mark_of``: uint8[256]. Bits above an item in its byte have no
#: meaning; :func:`narrow.pack_bytes` cuts them off.
split_chunks_32 = intrinsic_step(types.void, 12, _generate_split)


def _unpack(a: Vector, b: Vector) -> list[Vector]:
    """Interleave the lanes of two registers within each 128 bits: first the lower halves, then the upper ones.

        a           a0 a1 a2 a3 | a4 ...          b           b0 b1 b2 b3 | b4 ...
        result 0    a0 b0 a1 b1 | a4 ...          result 1    a2 b2 a3 b3 | a6 ...

    (Four lanes to 128 bits, as if they had 32.) Unpacking within 128 bits is the cheapest of all shuffles.
    """
    n = 128 // a.bits
    return [
        a.pick([lane + k // 2 + k % 2 * a.n for lane in range(start, a.n, n) for k in range(n)], b)
        for start in (0, n // 2)
    ]


#: Where each group of four bytes of a register goes before its bytes are unpacked to words and these to values, so that
#: values are in order after that. In fours of values (0: values 0 ... 3), for one of the four 128-bit lanes, L:
#:
#:     bytes       L       4+L      8+L      12+L      of the register; lane 0 has those of values 0, 16, 32 and 48 on
#:     words       L       4+L     |8+L      12+L      two registers: _unpack's lower and upper halves
#:     values      L      |4+L     |8+L     |12+L      four registers, the first of which has values 0 ... 15 in order
_FOURS = [4 * (k % 4) + k // 4 for k in range(16)]


def _generate_merge(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that joins items and heads to 64 float32.

        parts 0, 1      ..000000 ..111111                    bytes, joined by a product with factors and a sum
        parts 2, 3      ..222222 ..333333
        upper, lower    .... s mmmmmmmmmmm    .... mmmmmmmmmmmm      12 bits of the tail each, in 16-bit lanes
        low             uuuu llllllllllll     the value's lower 16 bits: four of ``upper``, and ``lower``
        high            s eeeeeeee mmmmmmm    the value's upper 16 bits: the other eight of ``upper``, and the head
        value           high low              unpacked to 32-bit lanes

    Products make a shift by another amount in each lane, and the sum that joins two of them, one instruction.
    """
    chunks = _Chunks(builder, at(8, 64), at(2, 8), args[3], at(4, 8))
    marks, symbols = load(builder, at(10, 8), 8, 64), load(builder, at(6, 8), 8, 64)
    zeros = symbols ^ symbols
    # A zero has no items, so that without a head all its bits are 0.
    head = symbols.compare("!=", 0).choose(look_up_bytes(builder, at(12, 8), symbols) + args[14], zeros)
    # Variables of a step lie in stack slots where a branch may change them; LLVM keeps them in registers.
    slot = slot_for(builder, zeros.value)
    with builder.if_then(chunks.has_half):
        count_at, place = chunks.plane(chunks.n_wide)
        mask = _half_owners(chunks, marks)
        halves = (move("expand", load(builder, place, 8, 64), mask).seen_as(16) << chunks.half).seen_as(8)
        builder.store(halves.value, slot)
        chunks.advance(count_at, mask)
    halves, parts = Vector(builder, builder.load(slot)), []
    for k, mask in enumerate(_owners(chunks, marks)):
        # A half item is the upper part of the first chunk that the value has no wide item of: it fills the lanes that
        # expanding leaves, and is gone from them for all further chunks.
        slot = slot_for(builder, halves.value)
        with builder.if_then(builder.icmp_signed("<", _number(k), chunks.n_wide)):
            count_at, place = chunks.plane(_number(k))
            builder.store(move("expand", load(builder, place, 8, 64), mask, halves).value, slot)
            chunks.advance(count_at, mask)
        parts.append(Vector(builder, builder.load(slot)))
        halves = mask.choose(halves, zeros)
    *parts, head = [part.seen_as(32).pick(_FOURS).seen_as(8) for part in (*parts, head)]
    uppers, lowers = (
        [pairs.multiply_pairs(splat(builder, chunks.number(FACTORS + k), 16, 32)) for pairs in _unpack(first, second)]
        for k, (first, second) in enumerate((parts[:2], parts[2:]))
    )
    #     upper     .... s mmmmmmm mmmm      bits 11 ... 0: sign, the mantissa's upper 7 bits, the 4 next
    #     lower     .... mmmmmmmmmmmm        its lower 12 bits
    #     high      s eeeeeeee mmmmmmm       bit 11 to 15 (<< 4); bits 10 ... 4 to 6 ... 0 (>> 4)
    #     low       mmmm mmmmmmmmmmmm        << 12 leaves just the 4 bits of `upper` in 16
    for k, (upper, lower, exponent) in enumerate(zip(uppers, lowers, _unpack(head, zeros), strict=True)):
        low = (upper << 12) | lower
        high = ((upper << 4) & 0x8000) | (exponent.seen_as(16) << 7) | ((upper >> 4) & 0x7F)
        for m, words in enumerate(_unpack(low, high)):
            words.store(builder.gep(at(0, 32), [_number(64 * (2 * k + m))]))


#: merge_chunks_32(out, i, items, row, n_items, 0, symbols, j, chunks, 0, marks, j, head_of, 0, base): join 64 float32,
#: the inverse of split_chunks_32: takes the items that follow the ``n_items`` used so far. ``out``: uint32; ``marks``:
#: uint8, of each value; ``head_of``: uint8[256], relative heads by symbol; ``base``: the head these are relative to.
#: Items must have zeros above them in their bytes.
merge_chunks_32 = intrinsic_step(types.void, 15, _generate_merge)
