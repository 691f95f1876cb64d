"""Several narrow planes of 64 values at a time, for CPUs with AVX-512: vector steps of :mod:`narrow_avx512`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ..core.intrinsics import intrinsic_step
from ..core.jit import kernel
from ..core.scalar import U8
from ..core.simd import Vector, load, move, pick_bits
from ..core.simd_avx512 import deinterleave_bytes, extract_tails, join_values, look_up_bytes

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _masked(marks: Vector, plane: Any) -> Vector:
    return (marks & marks.builder.shl(_number(1), plane)).compare("!=", 0)


def _generate_mark(builder: Any, args: list[Any], at: Any) -> None:
    marks = look_up_bytes(builder, at(0, 8), load(builder, at(2, 8), 8, 64))
    marks.store(at(4, 8))
    for plane in range(7, -1, -1):  # the topmost bit of a byte is the fastest to ask for
        count_at = builder.bitcast(builder.gep(at(6, 64), [_number(8 * plane)]), _INDEX.as_pointer())
        builder.store(builder.add(builder.load(count_at), marks.negative().count()), count_at)
        marks = marks + marks


#: mark_64(mark_of, 0, symbols, i, marks, j, n_items, 0): marks of 64 symbols, and how many have each of the eight bits
#: added to ``n_items``: int64[8].
mark_64 = intrinsic_step(types.void, 8, _generate_mark)


def _plane(builder: Any, args: list[Any], at: Any, plane: Any) -> tuple[Any, Any, Any]:
    """Address of a plane's number of items, of where the next one lies, and the shift that all its items share."""
    count_at = builder.bitcast(builder.gep(at(4, 8), [builder.shl(plane, _number(3))]), _INDEX.as_pointer())
    rows = builder.mul(builder.sub(plane, _number(1)), args[3])  # at(2) is one row in
    place = builder.add(rows, builder.load(count_at))
    uniform_at = builder.gep(at(10, 8), [builder.shl(plane, _number(3))])
    shared = builder.load(builder.bitcast(uniform_at, _INDEX.as_pointer()))
    return count_at, builder.gep(at(2, 8), [place]), shared


def _shifts(builder: Any, at: Any, plane: Any, symbols: Vector) -> Vector:
    table = builder.gep(at(8, 8), [builder.shl(plane, _number(8))])
    return look_up_bytes(builder, table, symbols)


def _advance(builder: Any, count_at: Any, mask: Vector) -> None:
    builder.store(builder.add(builder.load(count_at), mask.count()), count_at)


def _split_plane(builder: Any, args: list[Any], at: Any, plane: Any, items: Vector, marks: Vector) -> None:
    """Append what a plane gets of 64 values."""
    count_at, place, _ = _plane(builder, args, at, plane)
    mask = _masked(marks, plane)
    move("compress", items, mask).store(place)
    _advance(builder, count_at, mask)


def _cut(builder: Any, args: list[Any], at: Any, plane: Any, tail: Vector, symbols: Vector) -> Vector:
    """The items of a plane, whatever lies above them: a byte each."""
    _, _, shared = _plane(builder, args, at, plane)
    slot = cgutils.alloca_once(builder, ir.VectorType(ir.IntType(8), 64))
    with builder.if_else(builder.icmp_signed(">=", shared, _number(0))) as (same, differs):
        with same:
            builder.store((tail >> shared).to(8).value, slot)
        with differs:
            builder.store((tail >> _shifts(builder, at, plane, symbols).to(tail.bits)).to(8).value, slot)
    return Vector(builder, builder.load(slot))


def _splitter(bits: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        symbols = load(builder, at(6, 8), 8, 64)
        marks = look_up_bytes(builder, at(12, 8), symbols)
        if bits == 16:
            values = load(builder, at(0, 16), 16, 64)
            tail, first = (values & 0x7F) | ((values >> 8) & 0x80), 0
        else:
            # Where they are the same for all values, items of the first four planes are picked from pairs of tails,
            # and their bytes sorted by planes, all four at once.
            tail, first = extract_tails(load(builder, at(0, 32), 32, 64)), _TOGETHER
            picks = load(builder, at(15, 8), 8, 64)
            quarters = [pick_bits(picks, tail.part(k, 16).seen_as(8)) for k in range(4)]
            for k, items in enumerate(deinterleave_bytes(quarters)):
                plane = _number(k)
                with builder.if_then(builder.icmp_signed("<", plane, args[14])):
                    slot = cgutils.alloca_once(builder, items.value.type)
                    builder.store(items.value, slot)
                    _, _, shared = _plane(builder, args, at, plane)
                    with builder.if_then(builder.icmp_signed("<", shared, _number(0)), likely=False):
                        builder.store(_cut(builder, args, at, plane, tail, symbols).value, slot)
                    _split_plane(builder, args, at, plane, Vector(builder, builder.load(slot)), marks)
        with cgutils.for_range_slice(builder, _number(first), args[14], _number(1), inc=True) as (plane, _):
            _split_plane(builder, args, at, plane, _cut(builder, args, at, plane, tail, symbols), marks)

    return intrinsic_step(types.void, 17, generate)


_TOGETHER = 4  #: planes of float32 that are cut together
#: split_narrow_32(values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, n_planes, picks, 0):
#: the items of 64 float32 behind the ``n_items`` that each plane has; ``items``: rows of ``row`` bytes; ``picks``:
#: uint8[64] of :func:`picks_for`. split_narrow_16: of 16 bits.
split_narrow_32, split_narrow_16 = _splitter(32), _splitter(16)


@kernel
def picks_for(uniform, picks):
    """Find where items of the first four planes begin in two tails in a row: the lowest bit of each, uint8[64]."""
    for i in range(64):
        picks[i] = U8(max(uniform[i & 3], 0) + 32 * ((i >> 2) & 1))


def _merger(bits: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        symbols, marks = load(builder, at(6, 8), 8, 64), load(builder, at(12, 8), 8, 64)
        none = symbols ^ symbols
        # A zero has no items, so that without a head all its bits are 0.
        head = symbols.compare("!=", 0).choose(look_up_bytes(builder, at(14, 8), symbols) + args[16], none)
        slot = cgutils.alloca_once(builder, none.to(bits).value.type)
        builder.store(none.to(bits).value, slot)
        with cgutils.for_range(builder, args[17]) as loop:
            count_at, items, shared = _plane(builder, args, at, loop.index)
            mask = _masked(marks, loop.index)
            item = move("expand", load(builder, items, 8, 64), mask).to(bits)
            so_far = Vector(builder, builder.load(slot))
            with builder.if_else(builder.icmp_signed(">=", shared, _number(0))) as (same, differs):
                with same:
                    builder.store((so_far | (item << shared)).value, slot)
                with differs:
                    shifts = _shifts(builder, at, loop.index, symbols).to(bits)
                    builder.store((so_far | (item << shifts)).value, slot)
            _advance(builder, count_at, mask)
        join_values(head.to(bits), Vector(builder, builder.load(slot)), bits).store(at(0, bits))

    return intrinsic_step(types.void, 18, generate)


#: merge_narrow_32(out, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, marks, k, head_of, 0, base,
#: n_planes): inverse; ``marks``: of the values, ``head_of``: uint8[256]. merge_narrow_16: of 16 bits.
merge_narrow_32, merge_narrow_16 = _merger(32), _merger(16)
