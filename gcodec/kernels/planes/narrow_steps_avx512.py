"""Split and merge several narrow planes of 64 values at a time, for CPUs with AVX-512: vector steps of
:mod:`narrow_avx512`.

Rows of ``items``, one for each plane, grow by what 64 values own:

    lane            0    1    2    3    4   ...  63
    marks           011  001  000  011  001              bit p: the value owns an item of plane p
    plane 0         i0   i1        i3   i4               compressed: i0 i1 i3 i4, appended to row 0
    plane 1         k0             k3                    compressed: k0 k3, appended to row 1

Their law is :mod:`general`, whose loops call :func:`scalar.tail_of` and :func:`scalar.value_of`.

Steps take pairs of array and index, and then numbers (:func:`intrinsics.intrinsic_step`): ``at(n, bits)`` is the
address of argument n at the index that follows it, ``args[n]`` is argument n; the comment on a step lists them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.jit import kernel
from ..core.scalar import U8
from ..core.simd import Vector, for_range, load, move, pick_bits, slot_for
from ..core.simd_avx512 import deinterleave_bytes, look_up_bytes
from ..core.value_parts import extract_tails, join_values

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _masked(marks: Vector, plane: Any) -> Vector:
    """Return the mask of the values that own an item of a plane."""
    return (marks & marks.builder.shl(_number(1), plane)).compare("!=", 0)


def _generate_mark(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that finds and counts marks: topmost bits become a mask whose bits are counted.

    mark           7 6 5 4 3 2 1 0      topmost bit: plane 7
    + mark         6 5 4 3 2 1 0 .      added to itself: plane 6, and so on
    """
    marks = look_up_bytes(builder, at(0, 8), load(builder, at(2, 8), 8, 64))
    marks.store(at(4, 8))
    for plane in range(7, -1, -1):  # topmost bits become a mask by one instruction (vpmovb2m), without a constant
        count_at = builder.bitcast(builder.gep(at(6, 64), [_number(8 * plane)]), _INDEX.as_pointer())
        builder.store(builder.add(builder.load(count_at), marks.negative().count()), count_at)
        marks = marks + marks


#: mark_64(mark_of, 0, symbols, i, marks, j, n_items, 0): find the marks of 64 symbols, and add how many have each of
#: the eight bits to ``n_items``, int64[8]. ``mark_of``: uint8[256]; ``symbols``, ``marks``: uint8.
mark_64 = intrinsic_step(types.void, 8, _generate_mark)


def _plane(builder: Any, args: list[Any], at: Any, plane: Any) -> tuple[Any, Any, Any]:
    """Return the addresses of a plane's number of items and of its next item, and the shift that all its items share
    (-1: it depends on the symbol), from the arguments that the steps below begin with."""
    count_at = builder.bitcast(builder.gep(at(4, 8), [builder.shl(plane, _number(3))]), _INDEX.as_pointer())
    rows = builder.mul(builder.sub(plane, _number(1)), args[3])  # at(2) is one row in
    place = builder.add(rows, builder.load(count_at))
    uniform_at = builder.gep(at(10, 8), [builder.shl(plane, _number(3))])
    shared = builder.load(builder.bitcast(uniform_at, _INDEX.as_pointer()))
    return count_at, builder.gep(at(2, 8), [place]), shared


def _shifts(builder: Any, at: Any, plane: Any, symbols: Vector) -> Vector:
    """Return how far left in its tail each value's item of a plane lies, by symbol."""
    table = builder.gep(at(8, 8), [builder.shl(plane, _number(8))])
    return look_up_bytes(builder, table, symbols)


def _advance(builder: Any, count_at: Any, mask: Vector) -> None:
    """Add the number of lanes in a mask to a plane's number of items."""
    builder.store(builder.add(builder.load(count_at), mask.count()), count_at)


def _split_plane(builder: Any, args: list[Any], at: Any, plane: Any, items: Vector, marks: Vector) -> None:
    """Append those of 64 items to a plane whose values own them."""
    count_at, place, _ = _plane(builder, args, at, plane)
    mask = _masked(marks, plane)
    move("compress", items, mask).store(place)
    _advance(builder, count_at, mask)


def _cut(builder: Any, args: list[Any], at: Any, plane: Any, tail: Vector, symbols: Vector) -> Vector:
    """Return the items that values have, or would have, of a plane: a byte each, with what lies above them.

    tail      ....iiiiii.........      shifted right, all lanes by one amount or each by its own
    item           ??iiiiii            cut to a byte
    """
    _, _, shared = _plane(builder, args, at, plane)
    # A branch for 64 values, the same way for all groups of a frame: where all of a plane's items begin at one bit, a
    # shift by one amount takes no look-up by symbol.
    slot = slot_for(builder, ir.Constant(ir.VectorType(ir.IntType(8), 64), None))
    with builder.if_else(builder.icmp_signed(">=", shared, _number(0))) as (uniform, varying):
        with uniform:
            builder.store((tail >> shared).to(8).value, slot)
        with varying:
            builder.store((tail >> _shifts(builder, at, plane, symbols).to(tail.bits)).to(8).value, slot)
    return Vector(builder, builder.load(slot))


def _splitter(bits: int) -> Any:
    """Make the step that cuts 64 values of 32 or 16 bits into items.

    values     s hhhhhhhh mmmmmmm...
    tails               s mmmmmmm...     from there plane by plane, by _cut
    picked     dddddddd cccccccc bbbbbbbb aaaaaaaa      float32, planes 0 ... 3: eight bits of the tail for each,
                                                        from where its items begin; what is above has no meaning
    by plane   |a a a a ... |b b b b ... |c ... |d ...  four registers of 64 bytes
    """

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        symbols = load(builder, at(6, 8), 8, 64)
        marks = look_up_bytes(builder, at(12, 8), symbols)
        if bits == 16:
            values = load(builder, at(0, 16), 16, 64)
            tail, first = (values & 0x7F) | ((values >> 8) & 0x80), 0
        else:
            # One instruction cuts the items of the first four planes from two tails, if they begin at the same bit in
            # all values; shuffles sort their bytes by plane. A plane whose items begin elsewhere by symbol is cut anew.
            tail, first = extract_tails(load(builder, at(0, 32), 32, 64)), _PICKED_PLANES
            picks = load(builder, at(15, 8), 8, 64)
            quarters = [pick_bits(picks, tail.part(k, 16).seen_as(8)) for k in range(4)]
            for k, items in enumerate(deinterleave_bytes(quarters)):
                plane = _number(k)
                with builder.if_then(builder.icmp_signed("<", plane, args[14])):
                    slot = slot_for(builder, items.value)
                    _, _, shared = _plane(builder, args, at, plane)
                    with builder.if_then(builder.icmp_signed("<", shared, _number(0)), likely=False):
                        builder.store(_cut(builder, args, at, plane, tail, symbols).value, slot)
                    _split_plane(builder, args, at, plane, Vector(builder, builder.load(slot)), marks)
        with for_range(builder, args[14], first) as plane:
            _split_plane(builder, args, at, plane, _cut(builder, args, at, plane, tail, symbols), marks)

    return intrinsic_step(types.void, 17, generate)


_PICKED_PLANES = 4  #: the first planes of float32, which are cut together
#: split_narrow_32(values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, n_planes, picks, 0):
#: append the items of 64 float32 to the ``n_items`` that each plane has, which are counted on. ``items``: uint8, rows
#: of ``row`` bytes; ``n_items``: int64[8]; ``shift``: uint8[8, 256]; ``uniform``: int64[8]; ``mark_of``: uint8[256];
#: ``picks``: uint8[64] of :func:`picks_for`. Bits above an item in its byte have no meaning. split_narrow_16: of values
#: of 16 bits, which makes no use of ``picks``.
split_narrow_32, split_narrow_16 = _splitter(32), _splitter(16)


@kernel
def picks_for(uniform, picks):
    """Find where items of the first four planes begin in two tails in a row, as ``pick_bits`` wants it.

        bits       63 ........... 32 31 ............ 0      two tails of 24 bits in 32-bit lanes
        picks      u3+32 u2+32 u1+32 u0+32 u3 u2 u1 u0      of eight bytes, the last one on the left; u: ``uniform``

    Args:
        uniform: int64[8], the bit of the tail at which all items of a plane begin, or -1.
        picks: uint8[64], result.
    """
    for i in range(64):
        picks[i] = U8(max(uniform[i & 3], 0) + 32 * ((i >> 2) & 1))


def _merger(bits: int) -> Any:
    """Make the step that joins heads and items to 64 values of 32 or 16 bits, the inverse of the splitter's.

    items of plane p    iiiiii           expanded to the lanes of the values that own one, 0 in all others
    tail                ......iiiiii...  shifted left to where they lie, ORed over all planes
    value               s hhhhhhhh mmm   the tail's sign and mantissa, and the head between them
    """

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        symbols, marks = load(builder, at(6, 8), 8, 64), load(builder, at(12, 8), 8, 64)
        zeros = symbols ^ symbols
        # A zero has no items, so that without a head all its bits are 0.
        head = symbols.compare("!=", 0).choose(look_up_bytes(builder, at(14, 8), symbols) + args[16], zeros)
        slot = slot_for(builder, zeros.to(bits).value)
        with for_range(builder, args[17]) as index:
            count_at, items, shared = _plane(builder, args, at, index)
            mask = _masked(marks, index)
            item = move("expand", load(builder, items, 8, 64), mask).to(bits)
            tail = Vector(builder, builder.load(slot))
            with builder.if_else(builder.icmp_signed(">=", shared, _number(0))) as (uniform, varying):
                with uniform:
                    builder.store((tail | (item << shared)).value, slot)
                with varying:
                    shifts = _shifts(builder, at, index, symbols).to(bits)
                    builder.store((tail | (item << shifts)).value, slot)
            _advance(builder, count_at, mask)
        join_values(head.to(bits), Vector(builder, builder.load(slot)), bits).store(at(0, bits))

    return intrinsic_step(types.void, 18, generate)


#: merge_narrow_32(out, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, marks, k, head_of, 0, base,
#: n_planes): join 64 float32 from the items that follow the ``n_items`` used so far, which must have zeros above them.
#: ``out``: uint32; ``marks``: uint8, of each value; ``head_of``: uint8[256], relative heads by symbol; ``base``: the
#: head that these are counted from. merge_narrow_16: values of 16 bits.
merge_narrow_32, merge_narrow_16 = _merger(32), _merger(16)
