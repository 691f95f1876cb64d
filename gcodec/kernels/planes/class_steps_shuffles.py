"""Steps on 64 values by the classes of their symbols (:mod:`class_tables`), for CPUs with SSSE3 but not AVX-512.

Split and merge of :mod:`classes_shuffles` are made of these steps. All of them read and write whole groups of 64, 16
or, with AVX2, 32 at a time. ``rows`` are rows of 64 bytes, a byte for each value:

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
from ..core.vector_shuffles import LANE_BYTES, LANES, load_table, move_8, shuffle, sums, zip_lanes
from .class_tables import HEADS, STARTS

_INDEX, _WORD = ir.IntType(64), ir.IntType(32)
GROUP = 64  #: values of a step


def _address(builder: Any, start: Any, offset: int) -> Any:
    """Return the address so many bytes behind ``start``."""
    return builder.gep(start, [ir.Constant(_INDEX, offset)])


def _tables(builder: Any, start: Any) -> list[Vector]:
    """Load four tables of 16 bytes, one behind the other."""
    return [load_table(builder, _address(builder, start, k)) for k in range(0, 64, 16)]


def _row(builder: Any, start: Any) -> list[Vector]:
    """Load 64 bytes as two or four registers."""
    return [load(builder, _address(builder, start, k), 8, LANES) for k in range(0, GROUP, LANES)]


def _store_row(builder: Any, registers: list[Vector], start: Any) -> None:
    """Store 64 bytes."""
    for k, register in enumerate(registers):
        register.store(_address(builder, start, LANES * k))


def _generate_classes(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that finds classes: a symbol's class is how many classes end before it.

    symbols         0    1    2    3    4    5    6          class 0 ends with symbol 0, class 1 with symbol 3
    above 0         0   -1   -1   -1   -1   -1   -1          comparisons give all ones, which is -1
    above 3         0    0    0    0   -1   -1   -1
    - sum           0    1    1    1    2    2    2
    """
    symbols = [part ^ 128 for part in _row(builder, at(0, 8))]  # ordered as signed numbers, as the tables are
    slots = [slot_for(builder, (part ^ part).value) for part in symbols]
    starts = _address(builder, at(2, 8), STARTS)
    with for_range(builder, builder.sub(args[6], ir.Constant(_INDEX, 1))) as index:
        start = load_table(builder, builder.gep(starts, [builder.shl(index, ir.Constant(_INDEX, 4))]))
        for part, slot in zip(symbols, slots, strict=True):
            classes = Vector(builder, builder.load(slot))
            builder.store((classes - part.above(start).widened(8)).value, slot)
    _store_row(builder, [Vector(builder, builder.load(slot)) for slot in slots], at(4, 8))


#: classes_64(symbols, i, tables, 0, classes, j, n_classes): find the classes of 64 symbols. ``symbols``, ``classes``:
#: uint8; ``tables``: uint8[TABLE_BYTES].
classes_64 = intrinsic_step(types.void, 7, _generate_classes)


def _masks(builder: Any, owners: Any, classes: Any) -> list[Any]:
    """Return which of 64 values own an item of a plane, as a mask for each register.

        classes      2    0    1    2   ...     16 or 32 bytes
        shuffled    128   0    0   128  ...     owners[class]
        mask         1    0    0    1   ...     topmost bits (pmovmskb), value 0 in the lowest

    ``owners`` is the address of the plane's row of ``tables[OWNERS ...]``.
    """
    table = load_table(builder, owners)
    name = {16: "llvm.x86.sse2.pmovmskb.128", 32: "llvm.x86.avx2.pmovmskb"}[LANES]
    return [call(builder, name, _WORD, [shuffle(table, part).value]) for part in _row(builder, classes)]


def _mask(builder: Any, owners: Any, classes: Any) -> Any:
    """Return which of 64 values own an item of a plane, as one mask of 64 bits."""
    masks = [builder.zext(mask, _INDEX) for mask in _masks(builder, owners, classes)]
    lanes = LANES
    while len(masks) > 1:
        pairs = zip(masks[::2], masks[1::2], strict=True)
        masks = [builder.or_(low, builder.shl(high, ir.Constant(_INDEX, lanes))) for low, high in pairs]
        lanes *= 2
    return masks[0]


#: owners_of(classes, i, tables, owners) -> which of 64 values own an item of plane p, as a mask (value 0 in the lowest
#: bit). ``classes``: uint8; ``tables``: uint8[TABLE_BYTES]; ``owners``: OWNERS + 16 * p.
owners_of = intrinsic_step(types.intp, 4, lambda builder, args, at: _mask(builder, at(2, 8), at(0, 8)))


def _mover(verb: str) -> Any:
    """Make the step that compresses or expands 64 bytes by a mask, eight at a time (``move_8``)."""

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        eights = [builder.and_(builder.lshr(args[2], ir.Constant(_INDEX, k)), ir.Constant(_INDEX, 255))
                  for k in range(0, GROUP, 8)]  # fmt: skip
        return move_8(builder, verb, at(0, 8), eights, at(3, 8))

    return intrinsic_step(types.intp, 5, generate)


#: compress_64(src, i, mask, dst, k) -> number moved: write the bytes that are marked in a mask of 64, one behind the
#: other; up to eight bytes behind them are written, too.
compress_64 = _mover("compress")
#: expand_64(src, i, mask, dst, k) -> number taken: its inverse, zero where a byte is not marked.
expand_64 = _mover("expand")


def _generate_digits(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that cuts the tails of 64 float32 into digits of six bits.

    value      s eeeeeeee mmmmm mmmmmm mmmmmm mmmmmm
    digit 0    . .......s mmmmm                           bits 22 ... 18, and bit 31 above them
    digit 1               ...?? mmmmmm                    bits 17 ... 12; what lies above (?) stays
    digit 2                     ....?? mmmmmm             bits 11 ... 6
    digit 3                            ....?? mmmmmm      bits 5 ... 0
    """
    for k in range(0, GROUP, LANES):
        bits = load(builder, _address(builder, at(0, 32), 4 * k), 32, LANES)
        # Bit 31, the sign, goes to bit 5 (>> 26), above the five bits that 23 mantissa bits leave of the first digit.
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
    parts = _tables(builder, at(4, 8))
    for k, classes in enumerate(_row(builder, at(2, 8))):
        items = classes ^ classes
        for q in range(4):
            digit = load(builder, _address(builder, at(0, 8), 64 * q + LANES * k), 8, LANES)
            items = items | (digit & shuffle(parts[q], classes))
        # There is no shift of bytes: what comes from the byte above lies above the item, and is cut off in packing.
        (items.seen_as(16) >> args[8]).seen_as(8).store(_address(builder, at(6, 8), LANES * k))


#: gather_64(rows, 0, classes, j, tables, parts, items, k, left): cut the items of plane p of 64 values from their
#: digits, a byte each. ``parts``: PARTS + 64 * p; ``left``: ``tables[LEFT + p]``. Bits above an item have no meaning.
gather_64 = intrinsic_step(types.void, 9, _generate_gather)


def _generate_part(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(0, GROUP, LANES):
        digits = load(builder, _address(builder, at(0, 8), k), 16, LANES // 2)
        (digits >> args[4]).seen_as(8).store(_address(builder, at(2, 8), k))


#: part_64(rows, digit, items, k, left): cut the items of 64 values from one digit, a byte each, as gather_64 does where
#: it depends on the class which digit that is. ``digit``: where that row begins.
part_64 = intrinsic_step(types.void, 5, _generate_part)


def _generate_add(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(0, GROUP, LANES):
        items = (load(builder, _address(builder, at(0, 8), k), 16, LANES // 2) << args[4]).seen_as(8)
        place = _address(builder, at(2, 8), k)
        (load(builder, place, 8, LANES) | items).store(place)


#: add_64(items, i, rows, digit, left): OR the items of 64 values into one digit, the inverse of part_64.
add_64 = intrinsic_step(types.void, 5, _generate_add)


def _generate_spread(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the inverse of gathering: items, shifted left, go to the digit they are a part of, by class."""
    parts = _tables(builder, at(4, 8))
    for k, classes in enumerate(_row(builder, at(2, 8))):
        items = (load(builder, _address(builder, at(0, 8), LANES * k), 16, LANES // 2) << args[8]).seen_as(8)
        for q in range(4):
            place = _address(builder, at(6, 8), 64 * q + LANES * k)
            (load(builder, place, 8, LANES) | (items & shuffle(parts[q], classes))).store(place)


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
    base, heads = splat(builder, args[12], 8, LANES), load_table(builder, _address(builder, at(6, 8), HEADS))
    parts = _tables(builder, builder.gep(at(6, 8), [args[10]]))
    for k in range(0, GROUP, LANES):
        digits = [load(builder, _address(builder, at(0, 8), 64 * q + k), 8, LANES) for q in range(4)]
        symbols, classes = (load(builder, _address(builder, at(i, 8), k), 8, LANES) for i in (2, 4))
        items = (load(builder, _address(builder, at(0, 8), 256 + k), 16, LANES // 2) << args[11]).seen_as(8)
        digits = [digit | (items & shuffle(part, classes)) for digit, part in zip(digits, parts, strict=True)]
        # A zero has no items, so that without a head all its bits are 0.
        nonzero = symbols.compare("==", 0).widened(8) ^ -1
        head = (symbols + shuffle(heads, classes) + base) & nonzero
        sign = (digits[0] >> 5) & 1
        # The sign goes to the top by itself: in the tail it would be bit 23, where the head begins.
        digits[0] = digits[0] & 31
        for half in range(2):
            top = zip_lanes(head, sign, half)
            upper, lower = (sums(zip_lanes(digits[q + 1], digits[q], half).seen_as(8), 64) for q in (0, 2))
            for quarter in range(2):
                tail = sums(zip_lanes(lower, upper, quarter).seen_as(16), 4096)
                value = (zip_lanes(top, top ^ top, quarter) << 23) | tail
                for lane in range(LANES // LANE_BYTES):
                    place = k + LANE_BYTES * lane + 8 * half + 4 * quarter
                    value.part(lane, 4).store(_address(builder, at(8, 32), 4 * place))


#: join_64(rows, 0, symbols, j, classes, j, tables, 0, out, i, parts, left, base): join 64 float32 from heads and the
#: digits of their tails, after the items in row 4 have been spread as spread_64 does (which saves storing the digits
#: and loading them again). ``out``: uint32; ``base``: the head that relative heads are counted from.
join_64 = intrinsic_step(types.void, 13, _generate_join)
