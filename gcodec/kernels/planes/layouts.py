"""From a block's values to planes and back: sign and mantissa bits, one packed array per plane (docs/format.md sections
4 and 7).

    value     s hhhhhhhh mmmmmmmmmmmmmmmmmmmmmmm      here float32 on a ladder in steps of six bits
    tail               s mmmmm mmmmmm mmmmmm ......   dropped bits are 0
    items              |--p0-| |-p1-| |-p2-|          of planes 0, 1 and 2, which this value's level owns
    plane p   item of the first value that owns one, item of the second, ...: packed bits

Encoding cuts each value's kept bits into items ("split"), decoding joins items, heads and signs into values ("merge").
There are pairs of kernels for several layouts (:mod:`layout_types`), all with the same bytes; the type of
``scratch.layout`` says which pair it is, and it is chosen when the calling kernel is compiled.

Symbols of a sub-stream lie in ``scratch.symbols`` at a stride of ``stream_len + STREAM_PAD`` bytes; behind the last,
shorter sub-stream up to the next multiple of 64 the symbols are 0. Which items a value owns follows from its symbol, by
:class:`PlaneTables`: symbols have levels, and levels own planes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.intrinsics import BY_CLASSES, HAS_AVX512
from ..core.jit import chosen_by_types, inlined, kernel
from ..core.scalar import U8, U32
from ..core.unaligned import subarray, width_of
from ..core.vector import clear_8, count_64
from ..entropy.encode_streams import STREAM_PAD
from . import general, narrow, whole_tail, wide_head
from .layout_types import GeneralPlanes, LongTails, NarrowPlanes, NoPlanes, ShortTails, Tails8, Tails24

if HAS_AVX512:
    from .narrow_steps_avx512 import mark_64

if BY_CLASSES:
    from .class_tables import NUMBER, find_classes
    from .classes_shuffles import count_classes, merge_classes, split_classes


class PlaneTables(NamedTuple):
    """Tables by symbol of one codebook: which planes its values own items of, and where.

    Attributes:
        mark_of: uint8[256], by symbol: its mark: bit p set where a value of this symbol owns an item of plane p.
        shift: uint8[8, 256], by plane and symbol: bits between the tail's lowest and that item's lowest.
        head_of: uint16[256], by symbol: relative head; to decode.
        narrow_head_of: uint8[256], by symbol: its low byte; to decode.
    """

    mark_of: np.ndarray
    shift: np.ndarray
    head_of: np.ndarray
    narrow_head_of: np.ndarray


@inlined
def plane_tables(books, c):
    """Return the :class:`PlaneTables` of codebook ``c`` of a frame's."""
    return PlaneTables(books.mark_of[c], books.shift[c], books.head_of[c], books.narrow_head_of[c])


@kernel
def _has_classes(tables, heads, planes, scratch):
    """Return whether :mod:`classes_shuffles` can do a block's planes, whose tables are then in ``scratch.chunk``.

    ``heads``: uint8[256], relative heads by symbol, or None to encode.
    """
    # `shifted` is asked for its type alone, which is the values'; to decode it has no elements.
    if width_of(scratch.shifted) != 32:
        return False
    return find_classes(tables.mark_of, tables.shift, heads, planes.widths, planes.uniform, planes.n, scratch.chunk) > 0


@kernel
def _split_narrow(values, stream_len, tables, planes, scratch, out, at):
    """Write several planes of at most 8 bits, by classes of symbols where that is faster and possible."""
    if BY_CLASSES and _has_classes(tables, None, planes, scratch):
        return split_classes(values, stream_len, planes, scratch, out, at)
    return narrow.split_narrow(values, stream_len, tables, planes, scratch, out, at)


@kernel
def _merge_narrow(data, at, stream_len, tables, planes, scratch, out):
    """Read several planes of at most 8 bits, by classes of symbols if :func:`_count_narrow` has found some."""
    if BY_CLASSES and width_of(out) == 32 and scratch.chunk[NUMBER]:
        merge_classes(data, at, stream_len, planes, scratch, out)
    else:
        narrow.merge_narrow(data, at, stream_len, tables, planes, scratch, out)


@kernel
def count_items(symbols, n, stream_len, n_planes, mark_of, marks, n_items, n_shuffles):
    """Count the items of every plane.

    Args:
        symbols: uint8, strided; become 0 behind the last value up to a multiple of 64.
        n: Number of values.
        stream_len: Values per sub-stream.
        mark_of: uint8[256], marks by symbol.
        marks: uint8, laid out like ``symbols``, result: the mark of each value; or None: not wanted.
        n_items: int64[8], result.
        n_shuffles: All symbols are below 16 times that.
    """
    n_items[:] = 0
    if marks is not None and not HAS_AVX512:
        narrow.find_marks(symbols, n, stream_len, mark_of, marks, n_shuffles)
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        # Vector steps take 64 symbols at a time, of which those behind the last value must own nothing. STREAM_PAD is
        # 64, so that they lie before the next sub-stream.
        for i in range(count, (count + 63) & ~63):
            symbols[place + i] = 0
            if marks is not None:
                marks[place + i] = 0
        if marks is not None and HAS_AVX512:
            for i in range(place, place + count, 64):
                if count_64(symbols, i, 255):  # groups of zeros are as common as costly
                    mark_64(mark_of, 0, symbols, i, marks, i, n_items, 0)
                else:
                    clear_8(marks, i)
            continue
        for p in range(n_planes):
            if marks is not None:
                for i in range(0, count, 64):
                    n_items[p] += count_64(marks, place + i, 1 << p)
            else:
                # In 32 bits, which a sub-stream of up to 4096 values cannot overflow: vectors of them have twice the
                # lanes of int64.
                row, total = subarray(symbols, place, count), U32(0)
                for i in range(count):
                    total += U32((mark_of[row[i]] >> U8(p)) & U8(1))
                n_items[p] += np.int64(total)


@kernel
def _count_whole(n, stream_len, scratch):
    """Count the items where every value other than zero owns one of each plane, of which there are at most two."""
    symbols, total = scratch.symbols, 0
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        for i in range(count, (count + 63) & ~63):
            symbols[place + i] = 0
        total += whole_tail.count_marked(symbols, place, count)
    # One item of each plane for a value, so the second plane, if there is one, has as many.
    scratch.n_items[0] = total
    scratch.n_items[1] = total


@kernel
def _count_narrow(n, stream_len, tables, planes, scratch):
    """Count items of planes of at most 8 bits, and find classes or marks of all values, in ``layout.marks``."""
    if BY_CLASSES and _has_classes(tables, tables.narrow_head_of, planes, scratch):
        count_classes(n, stream_len, planes, scratch)
    else:
        marks = scratch.layout.marks
        count_items(scratch.symbols, n, stream_len, planes.n, tables.mark_of, marks, scratch.n_items, 16)


@kernel
def _count_general(n, stream_len, tables, planes, scratch):
    """Count items of any planes."""
    count_items(scratch.symbols, n, stream_len, planes.n, tables.mark_of, None, scratch.n_items, 16)


#: By layout: from values to planes, with the arguments of :func:`split_planes`.
_SPLIT: dict[type, Any] = {
    NoPlanes: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: at,
    Tails24: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: whole_tail.split_24(
        values, stream_len, scratch, out, at
    ),
    Tails8: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: whole_tail.split_8(
        values, stream_len, scratch, out, at
    ),
    ShortTails: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: wide_head.split_short(
        values, stream_len, float_bits.tail_bits, scratch, out, at
    ),
    LongTails: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: wide_head.split_long(
        values, stream_len, float_bits.tail_bits, scratch, out, at
    ),
    NarrowPlanes: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: _split_narrow(
        values, stream_len, tables, planes, scratch, out, at
    ),
    GeneralPlanes: lambda values, stream_len, float_bits, tables, planes, scratch, out, at: general.split_general(
        values, stream_len, float_bits, tables, planes, scratch, out, at
    ),
}

#: By layout: from planes to values, with the arguments of :func:`merge_planes`.
_MERGE: dict[type, Any] = {
    NoPlanes: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: general.merge_without_planes(
        stream_len, float_bits, tables, scratch, out
    ),
    Tails24: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: whole_tail.merge_24(
        data, at, stream_len, np.int64(tables.head_of[1]), scratch, out
    ),
    Tails8: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: whole_tail.merge_8(
        data, at, stream_len, np.int64(tables.head_of[1]), scratch, out
    ),
    ShortTails: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: wide_head.merge_short(
        data, at, stream_len, float_bits.tail_bits, np.int64(tables.head_of[1]), scratch, out
    ),
    LongTails: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: wide_head.merge_long(
        data, at, stream_len, float_bits.tail_bits, np.int64(tables.head_of[1]), scratch, out
    ),
    NarrowPlanes: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: _merge_narrow(
        data, at, stream_len, tables, planes, scratch, out
    ),
    GeneralPlanes: lambda data, at, stream_len, float_bits, tables, planes, scratch, out: general.merge_general(
        data, at, stream_len, float_bits, tables, planes, scratch, out
    ),
}

#: By layout: the number of items of every plane, with the arguments of :func:`count_plane_items`. Of all layouts that
#: are not here a value other than zero owns one item of every plane.
_COUNT: dict[type, Any] = {
    NoPlanes: lambda n, stream_len, tables, planes, scratch: None,
    NarrowPlanes: lambda n, stream_len, tables, planes, scratch: _count_narrow(n, stream_len, tables, planes, scratch),
    GeneralPlanes: lambda n, stream_len, tables, planes, scratch: _count_general(
        n, stream_len, tables, planes, scratch
    ),
}


def _layout_of(scratch: Any) -> type:
    """Return the layout from numba's type of a Scratch."""
    layout: type = scratch.types[scratch.fields.index("layout")].instance_class
    return layout


# Overloads are numba's way to choose a function by the types of its arguments. ``inline="always"`` makes them a part of
# the kernel that calls them, which has the flags of all kernels (:mod:`jit`); compiled on their own they would count
# references.


def split_planes(values, stream_len, float_bits, tables, planes, scratch, out, at):
    """Write all planes of a block.

    Args:
        values: uintW[n].
        stream_len: Values per sub-stream.
        float_bits: See :class:`bundles.FloatBits`.
        tables: The codebook's :class:`PlaneTables`.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols`` are known; the type of ``layout`` says which kernels it is; ``layout``, ``n_items`` and
            ``chunk`` are overwritten.
        out: uint8, result, with 72 bytes of margin behind the planes.
        at: Byte at which plane 0 begins.

    Returns:
        The byte behind the last plane.
    """
    raise NotImplementedError("of compiled kernels only")


@chosen_by_types(split_planes)
def _split_planes(values, stream_len, float_bits, tables, planes, scratch, out, at):
    return _SPLIT[_layout_of(scratch)]


def count_plane_items(n, stream_len, tables, planes, scratch):
    """Count the items of every plane into ``scratch.n_items``, and find what else :func:`merge_planes` needs.

    Args:
        n: Number of values.
        stream_len: Values per sub-stream.
        tables: The codebook's :class:`PlaneTables`.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols`` are known, and become 0 behind the last value up to a multiple of 64; ``n_items`` is the
            result, and for several narrow planes also ``layout.marks`` and ``chunk``.
    """
    raise NotImplementedError("of compiled kernels only")


@chosen_by_types(count_plane_items)
def _count_plane_items(n, stream_len, tables, planes, scratch):
    return _COUNT.get(
        _layout_of(scratch), lambda n, stream_len, tables, planes, scratch: _count_whole(n, stream_len, scratch)
    )


def merge_planes(data, at, stream_len, float_bits, tables, planes, scratch, out):
    """Join a block's planes and symbols into values.

    Args:
        data: uint8, readable 72 bytes past the planes.
        at: Byte at which plane 0 begins.
        stream_len: Values per sub-stream.
        float_bits: See :class:`bundles.FloatBits`.
        tables: The codebook's :class:`PlaneTables`.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols``, what :func:`count_plane_items` has found, and ``bases``, uint16[n_streams]: the heads that
            relative heads of each sub-stream are counted from.
        out: uintW[n], result.
    """
    raise NotImplementedError("of compiled kernels only")


@chosen_by_types(merge_planes)
def _merge_planes(data, at, stream_len, float_bits, tables, planes, scratch, out):
    return _MERGE[_layout_of(scratch)]
