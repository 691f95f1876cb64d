"""Fused steps on 64 values with levels, as :mod:`groups`: rounding, joint symbols, and several narrow planes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from .groups import float_of, look_up, move, tail_of
from .lanes import Lanes, load, splat
from .steps import intrinsic_step

_INDEX = ir.IntType(64)


def _number(value: int) -> Any:
    return ir.Constant(_INDEX, value)


def _finite(values: Lanes, infinity: Any) -> Lanes:
    return (values & ((1 << (values.bits - 1)) - 1)).compare("<", infinity)


def _rounder(bits: int) -> Any:
    sign_bit = 1 << (bits - 1)

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        values, infinity = load(builder, at(0, bits), bits, 64), args[8]
        levels = load(builder, at(2, 8), 8, 64)
        magnitude = values & (sign_bit - 1)
        finite = magnitude.compare("<", infinity)
        drop = look_up(builder, at(4, 8), finite.choose(levels, levels ^ levels), 64).to(bits)
        unit = splat(builder, _number(1), bits, 64) << drop
        low = unit - 1
        kept = magnitude - (magnitude & low)
        bump = low.compare("!=", 0).choose((low >> 1) + ((magnitude >> drop) & 1), low)
        rounded = magnitude + (bump & builder.neg(args[10]))
        rounded = rounded - (rounded & low)
        usable = Lanes(builder, builder.and_(finite.value, rounded.compare("<", infinity).value))
        above = magnitude.compare(">", infinity).value
        lost = Lanes(builder, builder.and_(above, kept.compare("==", infinity).value))
        result = lost.choose(kept | unit, usable.choose(rounded, kept)) | (values & sign_bit)
        magnitude.compare("<", args[9]).choose(result ^ result, result).store(at(6, bits))

    return intrinsic_step(types.void, 11, generate)


#: round_32(values, i, levels, j, drops, 0, out, k, infinity, least, nearest): 64 float32 rounded by level; those below
#: ``least`` become +0; ``nearest``: 1, or 0 to truncate. round_16: of 16 bits.
round_32, round_16 = _rounder(32), _rounder(16)


def _joint(bits: int, head_shift: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        values, levels, ranges = load(builder, at(0, bits), bits, 64), load(builder, at(2, 8), 8, 64), at(4, 8)
        levels = _finite(values, args[8]).choose(levels, levels ^ levels)
        origin, count, number = (
            look_up(builder, builder.gep(ranges, [_number(256 * k)]), levels, 64) for k in range(3)
        )
        offset = (values >> head_shift).to(8) - args[9] - origin
        escape = splat(builder, _number(255), 8, 64)
        symbols = offset.compare("<", count).choose(offset + number, escape)
        values.compare("==", 0).choose(0, symbols).store(at(6, 8))

    return intrinsic_step(types.void, 10, generate)


#: joint_32(values, i, levels, j, ranges, 0, symbols, k, infinity, reference): symbols of 64 float32 with levels;
#: ``ranges``: uint8[3, 256] as in ``parameters.Books``. joint_16: of 16 bits.
joint_32, joint_16 = _joint(32, 23), _joint(16, 7)


def _masked(marks: Lanes, plane: Any) -> Lanes:
    return (marks & marks.builder.shl(_number(1), plane)).compare("!=", 0)


def _plane(builder: Any, args: list[Any], at: Any, plane: Any) -> tuple[Any, Any, Any]:
    """Address of a plane's number of items, of where the next one lies, and the shift that all its items share."""
    count_at = builder.bitcast(builder.gep(at(4, 8), [builder.shl(plane, _number(3))]), _INDEX.as_pointer())
    rows = builder.mul(builder.sub(plane, _number(1)), args[3])  # at(2) is one row in
    place = builder.add(rows, builder.load(count_at))
    uniform_at = builder.gep(at(10, 8), [builder.shl(plane, _number(3))])
    shared = builder.load(builder.bitcast(uniform_at, _INDEX.as_pointer()))
    return count_at, builder.gep(at(2, 8), [place]), shared


def _shifts(builder: Any, at: Any, plane: Any, symbols: Lanes) -> Lanes:
    table = builder.gep(at(8, 8), [builder.shl(plane, _number(8))])
    return look_up(builder, table, symbols).to(32)


def _advance(builder: Any, count_at: Any, mask: Lanes) -> None:
    builder.store(builder.add(builder.load(count_at), mask.count()), count_at)


def _splitter(bits: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        values, symbols = load(builder, at(0, bits), bits, 64), load(builder, at(6, 8), 8, 64)
        tail = tail_of(values) if bits == 32 else ((values & 0x7F) | ((values >> 8) & 0x80)).to(32)
        marks = look_up(builder, at(12, 8), symbols)
        slot = cgutils.alloca_once(builder, ir.VectorType(ir.IntType(8), 64))
        with cgutils.for_range(builder, args[14]) as loop:
            count_at, items, shared = _plane(builder, args, at, loop.index)
            with builder.if_else(builder.icmp_signed(">=", shared, _number(0))) as (same, differs):
                with same:
                    builder.store((tail >> shared).to(8).value, slot)
                with differs:
                    builder.store((tail >> _shifts(builder, at, loop.index, symbols)).to(8).value, slot)
            mask = _masked(marks, loop.index)
            move("compress", Lanes(builder, builder.load(slot)), mask).store(items)
            _advance(builder, count_at, mask)

    return intrinsic_step(types.void, 15, generate)


#: split_narrow_32(values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, n_planes): the items
#: of 64 float32 behind the ``n_items`` that each plane has; ``items``: rows of ``row`` bytes. split_narrow_16: of 16
#: bits.
split_narrow_32, split_narrow_16 = _splitter(32), _splitter(16)


def _merger(bits: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        symbols, marks = load(builder, at(6, 8), 8, 64), load(builder, at(12, 8), 8, 64)
        zero = symbols.to(32) ^ symbols.to(32)
        slot = cgutils.alloca_once(builder, zero.value.type)
        builder.store(zero.value, slot)
        with cgutils.for_range(builder, args[17]) as loop:
            count_at, items, shared = _plane(builder, args, at, loop.index)
            mask = _masked(marks, loop.index)
            item = move("expand", load(builder, items, 8, 64), mask).to(32)
            so_far = Lanes(builder, builder.load(slot))
            with builder.if_else(builder.icmp_signed(">=", shared, _number(0))) as (same, differs):
                with same:
                    builder.store((so_far | (item << shared)).value, slot)
                with differs:
                    builder.store((so_far | (item << _shifts(builder, at, loop.index, symbols))).value, slot)
            _advance(builder, count_at, mask)
        tail = Lanes(builder, builder.load(slot))
        head = (look_up(builder, at(14, 8), symbols) + args[16]).to(32)
        values = float_of(head, tail, bits).to(bits)
        symbols.compare("!=", 0).choose(values, values ^ values).store(at(0, bits))

    return intrinsic_step(types.void, 18, generate)


#: merge_narrow_32(out, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, marks, k, head_of, 0, base,
#: n_planes): inverse; ``marks``: of the values, ``head_of``: uint8[256]. merge_narrow_16: of 16 bits.
merge_narrow_32, merge_narrow_16 = _merger(32), _merger(16)
