"""Fused steps on 64 values and the classes of their symbols (:mod:`class_tables`), for CPUs with SSSE3 but not AVX-512.

All of them read and write whole groups. ``rows`` are rows of 64 bytes: digits 0 to 3, and items.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from ..core.intrinsics import intrinsic_step
from ..core.simd import Vector, call, load, splat
from ..core.vector_ssse3 import move_8, shuffle, sums
from .class_tables import HEADS, STARTS

_INDEX, _BYTE, _WORD = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_SIXTEEN = ir.VectorType(_BYTE, 16)


def _address(builder: Any, start: Any, offset: int) -> Any:
    return builder.gep(start, [ir.Constant(_INDEX, offset)])


def _four(builder: Any, start: Any) -> list[Vector]:
    return [load(builder, _address(builder, start, k), 8, 16) for k in range(0, 64, 16)]


def _store_four(builder: Any, lanes: list[Vector], start: Any) -> None:
    for k, one in enumerate(lanes):
        one.store(_address(builder, start, 16 * k))


def _generate_classes(builder: Any, args: list[Any], at: Any) -> None:
    symbols = [one ^ 128 for one in _four(builder, at(0, 8))]
    slots = [cgutils.alloca_once_value(builder, (one ^ one).value) for one in symbols]
    starts = _address(builder, at(2, 8), STARTS)
    with cgutils.for_range(builder, builder.sub(args[6], ir.Constant(_INDEX, 1))) as loop:
        start = load(builder, builder.gep(starts, [builder.shl(loop.index, ir.Constant(_INDEX, 4))]), 8, 16)
        for one, slot in zip(symbols, slots, strict=True):
            so_far = Vector(builder, builder.load(slot))
            builder.store((so_far - one.above(start).widened(8)).value, slot)
    _store_four(builder, [Vector(builder, builder.load(slot)) for slot in slots], at(4, 8))


#: classes_64(symbols, i, tables, 0, classes, j, n_classes): the classes of 64 symbols.
classes_64 = intrinsic_step(types.void, 7, _generate_classes)


def _masks(builder: Any, owners: Any, classes: Any) -> list[Any]:
    """Return which of 64 values own an item, as four masks of 16 bits."""
    table, name = load(builder, owners, 8, 16), "llvm.x86.sse2.pmovmskb.128"
    return [call(builder, name, _WORD, [shuffle(table, one).value]) for one in _four(builder, classes)]


def _generate_count(builder: Any, args: list[Any], at: Any) -> Any:
    a, b, c, d = (builder.zext(mask, _INDEX) for mask in _masks(builder, at(2, 8), at(0, 8)))
    left, right = (builder.or_(low, builder.shl(high, ir.Constant(_INDEX, 16))) for low, high in ((a, b), (c, d)))
    whole = builder.or_(left, builder.shl(right, ir.Constant(_INDEX, 32)))
    return call(builder, "llvm.ctpop.i64", _INDEX, [whole])


#: count_owners(classes, i, tables, owners) -> how many of 64 values own an item of the plane whose row this is.
count_owners = intrinsic_step(types.intp, 4, _generate_count)


def _mover(verb: str) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        masks = []
        for mask in _masks(builder, at(4, 8), at(2, 8)):
            masks += [builder.and_(mask, ir.Constant(_WORD, 255)), builder.lshr(mask, ir.Constant(_WORD, 8))]
        return move_8(builder, verb, at(0, 8), [builder.zext(mask, _INDEX) for mask in masks], at(6, 8))

    return intrinsic_step(types.intp, 8, generate)


#: compress_owned(src, i, classes, j, tables, owners, dst, k) -> number moved: of 64 bytes those that are items.
compress_owned = _mover("compress")
#: expand_owned(src, i, classes, j, tables, owners, dst, k) -> number taken: inverse, zero where there is none.
expand_owned = _mover("expand")


def _generate_digits(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(0, 64, 16):
        bits = load(builder, _address(builder, at(0, 32), 4 * k), 32, 16)
        first = ((bits >> 18) & 0x1F) | ((bits >> 26) & 0x20)
        for q, digit in enumerate((first, bits >> 12, bits >> 6, bits)):
            digit.to(8).store(_address(builder, at(2, 8), 64 * q + k))


#: digits_64(values, i, rows, 0): digits of the tails of 64 float32, whatever is in the two upper bits of all but the
#: first.
digits_64 = intrinsic_step(types.void, 4, _generate_digits)


def _generate_gather(builder: Any, args: list[Any], at: Any) -> None:
    parts = _four(builder, at(4, 8))
    for k, classes in enumerate(_four(builder, at(2, 8))):
        found = classes ^ classes
        for q in range(4):
            digit = load(builder, _address(builder, at(0, 8), 64 * q + 16 * k), 8, 16)
            found = found | (digit & shuffle(parts[q], classes))
        # What comes from the byte above lies above the item, and is cut off where items are packed.
        (found.seen_as(16) >> args[8]).seen_as(8).store(_address(builder, at(6, 8), 16 * k))


#: gather_64(rows, 0, classes, j, tables, parts, items, k, left): the items of a plane, the parts of digits that
#: ``tables[parts ...]`` says.
gather_64 = intrinsic_step(types.void, 9, _generate_gather)


def _generate_spread(builder: Any, args: list[Any], at: Any) -> None:
    parts = _four(builder, at(4, 8))
    for k, classes in enumerate(_four(builder, at(2, 8))):
        items = (load(builder, _address(builder, at(0, 8), 16 * k), 16, 8) << args[8]).seen_as(8)
        for q in range(4):
            place = _address(builder, at(6, 8), 64 * q + 16 * k)
            (load(builder, place, 8, 16) | (items & shuffle(parts[q], classes))).store(place)


#: spread_64(items, i, classes, j, tables, parts, rows, 0, left): inverse, ORs the items to the digits.
spread_64 = intrinsic_step(types.void, 9, _generate_spread)


def _generate_join(builder: Any, args: list[Any], at: Any) -> None:
    base, heads = splat(builder, args[12], 8, 16), load(builder, _address(builder, at(6, 8), HEADS), 8, 16)
    parts = _four(builder, builder.gep(at(6, 8), [args[10]]))
    for k in range(0, 64, 16):
        digits = [load(builder, _address(builder, at(0, 8), 64 * q + k), 8, 16) for q in range(4)]
        symbols, classes = (load(builder, _address(builder, at(i, 8), k), 8, 16) for i in (2, 4))
        items = (load(builder, _address(builder, at(0, 8), 256 + k), 16, 8) << args[11]).seen_as(8)
        digits = [digit | (items & shuffle(part, classes)) for digit, part in zip(digits, parts, strict=True)]
        some = symbols.compare("==", 0).widened(8) ^ -1
        head = (symbols + shuffle(heads, classes) + base) & some
        sign = (digits[0] >> 5) & 1
        digits[0] = digits[0] & 31
        for half in range(2):
            pick = [i for lane in range(8 * half, 8 * half + 8) for i in (lane, 16 + lane)]
            top = head.pick(pick, sign).seen_as(16)
            upper, lower = (sums(digits[q + 1].pick(pick, digits[q]), 64) for q in (0, 2))
            for quarter in (0, 4):
                own = list(range(quarter, quarter + 4))
                tail = sums(lower.pick([i for lane in own for i in (lane, 8 + lane)], upper), 4096)
                value = (top.pick(own).to(32) << 23) | tail
                value.store(_address(builder, at(8, 32), 4 * (k + 8 * half + quarter)))


#: join_64(rows, 0, symbols, j, classes, j, tables, 0, out, i, parts, left, base): 64 float32 from the digits of their
#: tails; first as :func:`spread_64` does with the items.
join_64 = intrinsic_step(types.void, 13, _generate_join)
