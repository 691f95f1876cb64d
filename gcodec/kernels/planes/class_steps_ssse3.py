"""Steps on 64 values by the classes of their symbols (:mod:`class_tables`), for CPUs with SSSE3 but not AVX-512.

Split and merge of :mod:`classes_ssse3` are made of these steps. All of them read and write whole groups of 64, 16 at a
time. ``rows`` are rows of 64 bytes, a byte for each value:

    row 0 ... 3     digits 0 ... 3 of the tails, in the lowest six bits of each byte
    row 4           items of one plane

Steps take pairs of array and index, and then numbers (:func:`intrinsics.intrinsic_step`): ``at(n, bits)`` is the
address of argument n at the index that follows it, ``args[n]`` is argument n; the comment on a step lists them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import Vector, call, for_range, load, slot_for, splat
from ..core.vector_ssse3 import move_8, shuffle, sums
from .class_tables import HEADS, STARTS

_INDEX, _BYTE, _WORD = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_SIXTEEN = ir.VectorType(_BYTE, 16)


def _address(builder: Any, start: Any, offset: int) -> Any:
    """Return the address so many bytes behind ``start``."""
    return builder.gep(start, [ir.Constant(_INDEX, offset)])


def _four(builder: Any, start: Any) -> list[Vector]:
    """Load 64 bytes as four registers of 16."""
    return [load(builder, _address(builder, start, k), 8, 16) for k in range(0, 64, 16)]


def _store_four(builder: Any, registers: list[Vector], start: Any) -> None:
    """Store four registers of 16 bytes."""
    for k, register in enumerate(registers):
        register.store(_address(builder, start, 16 * k))


def _generate_classes(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that finds classes: a symbol's class is how many classes end before it.

        symbols         0    1    2    3    4    5    6          class 0 ends with symbol 0, class 1 with symbol 3
        above 0         0   -1   -1   -1   -1   -1   -1          comparisons give all ones, which is -1
        above 3         0    0    0    0   -1   -1   -1
        - sum           0    1    1    1    2    2    2
    """
    symbols = [part ^ 128 for part in _four(builder, at(0, 8))]  # ordered as signed numbers, as the tables are
    slots = [slot_for(builder, (part ^ part).value) for part in symbols]
    starts = _address(builder, at(2, 8), STARTS)
    with for_range(builder, builder.sub(args[6], ir.Constant(_INDEX, 1))) as index:
        start = load(builder, builder.gep(starts, [builder.shl(index, ir.Constant(_INDEX, 4))]), 8, 16)
        for part, slot in zip(symbols, slots, strict=True):
            classes = Vector(builder, builder.load(slot))
            builder.store((classes - part.above(start).widened(8)).value, slot)
    _store_four(builder, [Vector(builder, builder.load(slot)) for slot in slots], at(4, 8))


#: classes_64(symbols, i, tables, 0, classes, j, n_classes): find the classes of 64 symbols. ``symbols``, ``classes``:
#: uint8; ``tables``: uint8[TABLE_BYTES].
classes_64 = intrinsic_step(types.void, 7, _generate_classes)


def _masks(builder: Any, owners: Any, classes: Any) -> list[Any]:
    """Return which of 64 values own an item of a plane, as four masks of 16 bits.

        classes      2    0    1    2   ...     16 bytes
        shuffled    128   0    0   128  ...     owners[class]
        mask         1    0    0    1   ...     topmost bits (pmovmskb), value 0 in the lowest

    ``owners`` is the address of the plane's row of ``tables[OWNERS ...]``.
    """
    table, name = load(builder, owners, 8, 16), "llvm.x86.sse2.pmovmskb.128"
    return [call(builder, name, _WORD, [shuffle(table, part).value]) for part in _four(builder, classes)]


def _generate_count(builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that counts owners: four masks of 16 bits become one of 64, whose bits are counted at once."""
    a, b, c, d = (builder.zext(mask, _INDEX) for mask in _masks(builder, at(2, 8), at(0, 8)))
    left, right = (builder.or_(low, builder.shl(high, ir.Constant(_INDEX, 16))) for low, high in ((a, b), (c, d)))
    whole = builder.or_(left, builder.shl(right, ir.Constant(_INDEX, 32)))
    return call(builder, "llvm.ctpop.i64", _INDEX, [whole])


#: count_owners(classes, i, tables, owners) -> how many of 64 values own an item of plane p, ``owners`` being
#: OWNERS + 16 * p.
count_owners = intrinsic_step(types.intp, 4, _generate_count)


def _mover(verb: str) -> Any:
    """Make the step that compresses or expands bytes by the classes of their values, eight at a time (``move_8``)."""

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        masks = []
        for mask in _masks(builder, at(4, 8), at(2, 8)):
            masks += [builder.and_(mask, ir.Constant(_WORD, 255)), builder.lshr(mask, ir.Constant(_WORD, 8))]
        return move_8(builder, verb, at(0, 8), [builder.zext(mask, _INDEX) for mask in masks], at(6, 8))

    return intrinsic_step(types.intp, 8, generate)


#: compress_owned(src, i, classes, j, tables, owners, dst, k) -> number moved: write those of 64 bytes whose values own
#: an item, one behind the other; up to eight bytes behind them are written, too. ``owners`` as of count_owners.
compress_owned = _mover("compress")
#: expand_owned(src, i, classes, j, tables, owners, dst, k) -> number taken: its inverse, zero where there is no item.
expand_owned = _mover("expand")


def _generate_digits(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that cuts the tails of 64 float32 into digits of six bits.

        value      s eeeeeeee mmmmm mmmmmm mmmmmm mmmmmm
        digit 0    . .......s mmmmm                           bits 22 ... 18, and bit 31 above them
        digit 1               ...?? mmmmmm                    bits 17 ... 12; what lies above (?) stays
        digit 2                     ....?? mmmmmm             bits 11 ... 6
        digit 3                            ....?? mmmmmm      bits 5 ... 0
    """
    for k in range(0, 64, 16):
        bits = load(builder, _address(builder, at(0, 32), 4 * k), 32, 16)
        upper = ((bits >> 18) & 0x1F) | ((bits >> 26) & 0x20)
        for q, digit in enumerate((upper, bits >> 12, bits >> 6, bits)):
            digit.to(8).store(_address(builder, at(2, 8), 64 * q + k))


#: digits_64(values, i, rows, 0): cut the tails of 64 float32 into digits. All but the first digit have bits without
#: meaning above their six.
digits_64 = intrinsic_step(types.void, 4, _generate_digits)


def _generate_gather(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that finds a plane's items where the digit they are a part of depends on the class.

        digit 0      aaaaaa      & parts[0][class]: 000000
        digit 1      bbbbbb      & parts[1][class]: 111111
        OR of all    bbbbbb
        item         ...bbb      shifted right by ``left``, here 3
    """
    parts = _four(builder, at(4, 8))
    for k, classes in enumerate(_four(builder, at(2, 8))):
        items = classes ^ classes
        for q in range(4):
            digit = load(builder, _address(builder, at(0, 8), 64 * q + 16 * k), 8, 16)
            items = items | (digit & shuffle(parts[q], classes))
        # There is no shift of bytes: what comes from the byte above lies above the item, and is cut off in packing.
        (items.seen_as(16) >> args[8]).seen_as(8).store(_address(builder, at(6, 8), 16 * k))


#: gather_64(rows, 0, classes, j, tables, parts, items, k, left): cut the items of plane p of 64 values from their
#: digits, a byte each. ``parts``: PARTS + 64 * p; ``left``: ``tables[LEFT + p]``. Bits above an item have no meaning.
gather_64 = intrinsic_step(types.void, 9, _generate_gather)


def _generate_spread(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the inverse of gathering: items, shifted left, go to the digit they are a part of, by class."""
    parts = _four(builder, at(4, 8))
    for k, classes in enumerate(_four(builder, at(2, 8))):
        items = (load(builder, _address(builder, at(0, 8), 16 * k), 16, 8) << args[8]).seen_as(8)
        for q in range(4):
            place = _address(builder, at(6, 8), 64 * q + 16 * k)
            (load(builder, place, 8, 16) | (items & shuffle(parts[q], classes))).store(place)


#: spread_64(items, i, classes, j, tables, parts, rows, 0, left): OR the items of 64 values into their digits, the
#: inverse of gather_64. Items must have zeros above them in their bytes.
spread_64 = intrinsic_step(types.void, 9, _generate_spread)


def _generate_join(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that joins heads and digits to 64 float32.

        upper     ..... 00000 111111      digits 0 and 1 in 16-bit lanes: 64 * digit 0 + digit 1
        lower     .... 222222 333333      digits 2 and 3: 64 * digit 2 + digit 3
        tail      ......... 00000111111222222333333      4096 * upper + lower, in 32-bit lanes, without the sign
        top       .......s eeeeeeee       16-bit lanes: the head in the lower byte, the sign above it
        value     s eeeeeeee 00000111111222222333333     top << 23 | tail

    Multiplying pairs and adding them up shifts and joins two lanes by one instruction.
    """
    base, heads = splat(builder, args[12], 8, 16), load(builder, _address(builder, at(6, 8), HEADS), 8, 16)
    parts = _four(builder, builder.gep(at(6, 8), [args[10]]))
    for k in range(0, 64, 16):
        digits = [load(builder, _address(builder, at(0, 8), 64 * q + k), 8, 16) for q in range(4)]
        symbols, classes = (load(builder, _address(builder, at(i, 8), k), 8, 16) for i in (2, 4))
        items = (load(builder, _address(builder, at(0, 8), 256 + k), 16, 8) << args[11]).seen_as(8)
        digits = [digit | (items & shuffle(part, classes)) for digit, part in zip(digits, parts, strict=True)]
        # A zero has no items, so that without a head all its bits are 0.
        nonzero = symbols.compare("==", 0).widened(8) ^ -1
        head = (symbols + shuffle(heads, classes) + base) & nonzero
        sign = (digits[0] >> 5) & 1
        digits[0] = digits[0] & 31
        for half in range(2):
            pick = [i for lane in range(8 * half, 8 * half + 8) for i in (lane, 16 + lane)]
            top = head.pick(pick, sign).seen_as(16)
            upper, lower = (sums(digits[q + 1].pick(pick, digits[q]), 64) for q in (0, 2))
            for quarter in (0, 4):
                lanes = list(range(quarter, quarter + 4))
                tail = sums(lower.pick([i for lane in lanes for i in (lane, 8 + lane)], upper), 4096)
                value = (top.pick(lanes).to(32) << 23) | tail
                value.store(_address(builder, at(8, 32), 4 * (k + 8 * half + quarter)))


#: join_64(rows, 0, symbols, j, classes, j, tables, 0, out, i, parts, left, base): join 64 float32 from heads and the
#: digits of their tails, after the items in row 4 have been spread as spread_64 does (which saves storing the digits
#: and loading them again). ``out``: uint32; ``base``: the head that relative heads are counted from.
join_64 = intrinsic_step(types.void, 13, _generate_join)
