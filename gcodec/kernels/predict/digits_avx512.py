"""Part 64 residuals into the items of their planes, and join them again, for CPUs with AVX-512: vector steps of
:mod:`predicted`, which draws words, planes and symbols."""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import INDEX, Vector, load, load_lane, move
from ..core.simd_avx512 import look_up_bytes

_GROUP = 64


def _number(value: int) -> Any:
    return ir.Constant(INDEX, value)


def _next_items(builder: Any, items: Any, row: Any, n_items: Any, plane: int, owned: Vector) -> Any:
    """Return where the next items of a plane lie, and count on by those that are owned."""
    counted = builder.gep(n_items, [_number(8 * plane)])
    n = load_lane(builder, counted, 64)
    builder.store(builder.add(n, owned.count()), builder.bitcast(counted, INDEX.as_pointer()))
    return builder.gep(items, [builder.add(builder.mul(row, _number(plane)), n)])


def _owned(marks: Vector, plane: int) -> Vector:
    return (marks & (1 << plane)).compare("!=", 0)


def _generate_split(n_planes: int, builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that cuts words into items.

    word       a | . f | e d | c b     in hexadecimal
    plane      3     2     1     0     of four; its bytes are kept where values own items, and moved together
    """
    words, marks = load(builder, at(0, 32), 32, _GROUP), load(builder, at(2, 8), 8, _GROUP)
    for plane in range(n_planes):
        owned = _owned(marks, plane)
        item = (words >> (28 if plane == n_planes - 1 else 8 * plane)).to(8)
        place = _next_items(builder, at(4, 8), args[6], at(7, 64), plane, owned)
        move("compress", item, owned).store(place)


def _generate_merge(n_planes: int, builder: Any, args: list[Any], at: Any) -> None:
    """Generate the inverse, from items and symbols to residuals, in lanes of the values' width.

    planes 0 ... n_planes - 2       . . . . e d c b       shifted left by 4 where there is an odd digit
    the last plane                                  a     below them
    the symbol                          f                 above them, shifted left by 4 for each other digit
    """
    width = 8 * n_planes
    symbols, marks = load(builder, at(2, 8), 8, _GROUP), load(builder, at(4, 8), 8, _GROUP)
    first, shift, odd = (
        look_up_bytes(builder, builder.gep(at(9, 8), [_number(256 * row)]), symbols, 64 if n_planes == 2 else 256)
        .to(width) for row in (1, 2, 3)
    )  # fmt: skip
    word = first ^ first
    for plane in range(n_planes):
        owned = _owned(marks, plane)
        place = _next_items(builder, at(6, 8), args[8], at(11, 64), plane, owned)
        item = move("expand", load(builder, place, 8, _GROUP), owned).to(width)
        # The last plane comes last: only when all bytes are in place does the odd digit, where there is one, move them
        # up by 4 bits (`odd` is 4 or 0) and go below them.
        word = (word << odd) | item if plane == n_planes - 1 else word | (item << 8 * plane)
    (word | (first << shift)).to(32).store(at(0, 32))


#: split_digits_*(words, i, marks, j, items, 0, row, n_items, 0): append the items of 64 values of 16 or 32 bits to the
#: ``n_items`` (int64[8]) that each plane has, which are counted on. ``words``: uint32, as :func:`residuals.digits`
#: leaves them; ``marks``: uint8; ``items``: uint8, rows of ``row`` bytes with 64 of margin.
split_digits_16, split_digits_32 = (
    intrinsic_step(types.void, 9, partial(_generate_split, n_planes)) for n_planes in (2, 4)
)
#: merge_digits_*(words, i, symbols, j, marks, k, items, 0, row, tables, 0, n_items, 0): the inverse; ``words`` become
#: residuals. ``tables``: uint8[4, 256], as of ``block.predicted.PredictionSources.digit_tables``.
merge_digits_16, merge_digits_32 = (
    intrinsic_step(types.void, 13, partial(_generate_merge, n_planes)) for n_planes in (2, 4)
)
