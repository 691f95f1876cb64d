"""From values to planes and back, by the kernels of their layout.

``dense``, ``lone``, ``seven``, ``items``, ``general`` and ``bare`` are the scratch arrays of these names; the one that
is there (not None, which the compiler knows) says which layout it is.
"""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import BY_CLASSES, HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U32, U64
from ..core.unaligned import subarray, width_of
from ..core.vector import clear_8, count_64
from ..entropy.encode_streams import STREAM_PAD
from . import general as planes_general
from . import narrow, whole_tail, wide_head

if HAS_AVX512:
    from .narrow_steps_avx512 import mark_64

if BY_CLASSES:
    from .class_tables import NUMBER, find_classes
    from .classes_ssse3 import count_classes, merge_classes, split_classes


@kernel
def _has_classes(mark_of, shift, heads, planes, scratch):
    """Whether a block's planes are those of :mod:`classes_ssse3`, whose tables are then in ``scratch.chunk``."""
    if width_of(scratch.shifted) != 32:
        return False
    return find_classes(mark_of, shift, heads, planes.widths, planes.uniform, planes.n, scratch.chunk) > 0


@kernel
def split_planes(
    values, n, stream_len, tail_bits, mark_of, shift, planes, dense, lone, seven, items, general, scratch, out, at
):
    """All planes of a block. Returns the end."""
    if general is not None:
        for p in range(planes.n):
            at = planes_general.split_general_plane(
                values, scratch.symbols, n, stream_len, tail_bits, mark_of, p, shift[p], planes.widths[p], out, at
            )
        return at
    if items is not None:
        if BY_CLASSES and _has_classes(mark_of, shift, None, planes, scratch):
            return split_classes(
                values,
                scratch.symbols,
                n,
                stream_len,
                planes,
                scratch.chunk,
                scratch.words,
                items,
                scratch.n_items,
                out,
                at,
            )
        return narrow.split_narrow(
            values,
            scratch.symbols,
            n,
            stream_len,
            planes.n,
            planes.widths,
            mark_of,
            shift,
            planes.uniform,
            planes.chunks,
            scratch.marks,
            scratch.words,
            scratch.bytes,
            items,
            scratch.n_items,
            out,
            at,
        )
    if dense is not None:
        return whole_tail.split_24(values, scratch.symbols, n, stream_len, scratch.words, dense, out, at)
    if lone is not None:
        return whole_tail.split_8(values, scratch.symbols, n, stream_len, lone, out, at)
    if seven is not None:
        if planes.n == 1:
            return wide_head.split_7(values, scratch.symbols, n, stream_len, seven, out, at)
        return wide_head.split_23(values, scratch.symbols, n, stream_len, seven, out, at)
    return at


@kernel
def count_items(symbols, n, stream_len, n_planes, mark_of, marks, n_items):
    """Number of items of every plane: ``n_items``: int64[8], result; with ``marks`` also the marks of all values."""
    n_items[:] = 0
    if marks is not None and not HAS_AVX512:
        narrow.find_marks(symbols, n, stream_len, mark_of, marks)
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        for i in range(count, (count + 63) & ~63):
            symbols[place + i] = 0
            if marks is not None:
                marks[place + i] = 0
        if marks is not None and HAS_AVX512:
            for i in range(place, place + count, 64):
                if count_64(symbols, i, 255):
                    mark_64(mark_of, 0, symbols, i, marks, i, n_items, 0)
                else:
                    clear_8(marks, i)
            continue
        for p in range(n_planes):
            if marks is not None:
                for i in range(0, count, 64):
                    n_items[p] += count_64(marks, place + i, 1 << p)
            else:
                some, total = subarray(symbols, place, count), U32(0)
                for i in range(count):
                    total += U32((mark_of[some[i]] >> U8(p)) & U8(1))
                n_items[p] += np.int64(total)


@kernel
def count_single(symbols, n, stream_len, n_items):
    """The same for a single plane of which all values but zeros own an item."""
    total = 0
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        for i in range(count, (count + 63) & ~63):
            symbols[place + i] = 0
        total += whole_tail.count_marked(symbols, place, count)
    n_items[0] = total


@kernel
def count_plane_items(
    n, stream_len, mark_of, shift, narrow_head_of, planes, dense, lone, seven, items, general, scratch
):
    """Number of items of every plane into ``scratch.n_items``, by the layout's kernels; and what else those of
    :func:`merge_planes` want to find."""
    if dense is not None:
        count_single(scratch.symbols, n, stream_len, scratch.n_items)
    if lone is not None:
        count_single(scratch.symbols, n, stream_len, scratch.n_items)
    if seven is not None:
        count_single(scratch.symbols, n, stream_len, scratch.n_items)
        scratch.n_items[1] = scratch.n_items[0]
    if items is not None:
        by_class = False
        if BY_CLASSES:
            by_class = _has_classes(mark_of, shift, narrow_head_of, planes, scratch)
            if by_class:
                count_classes(scratch.symbols, n, stream_len, planes.n, scratch.chunk, scratch.marks, scratch.n_items)
        if not by_class:
            count_items(scratch.symbols, n, stream_len, planes.n, mark_of, scratch.marks, scratch.n_items)
    if general is not None:
        count_items(scratch.symbols, n, stream_len, planes.n, mark_of, None, scratch.n_items)


@kernel
def merge_planes(
    data,
    at,
    n,
    stream_len,
    float_bits,
    mark_of,
    shift,
    head_of,
    narrow_head_of,
    planes,
    dense,
    lone,
    seven,
    items,
    general,
    bare,
    scratch,
    out,
):
    """All values of a block from its planes and symbols."""
    head_mask = (1 << float_bits.head_bits) - 1
    symbols, bases, n_items = scratch.symbols, scratch.bases, scratch.n_items
    if general is not None:
        for i in range(n):
            general[i] = U64(0)
        for p in range(planes.n):
            planes_general.merge_general_plane(
                data, at, symbols, n, stream_len, mark_of, p, shift[p], planes.widths[p], general
            )
            at += (n_items[p] * planes.widths[p] + 7) >> 3
        planes_general.merge_general_values(
            general, symbols, n, stream_len, head_of, bases, float_bits.head_shift, head_mask, float_bits.tail_bits, out
        )
    if items is not None:
        if BY_CLASSES and width_of(out) == 32 and scratch.chunk[NUMBER]:
            merge_classes(
                data,
                at,
                symbols,
                scratch.marks,
                n,
                stream_len,
                planes,
                bases,
                scratch.chunk,
                scratch.words,
                items,
                n_items,
                out,
            )
            return
        narrow.merge_narrow(
            data,
            at,
            symbols,
            scratch.marks,
            n,
            stream_len,
            planes.n,
            planes.widths,
            narrow_head_of,
            shift,
            planes.uniform,
            planes.chunks,
            bases,
            scratch.words,
            scratch.bytes,
            items,
            n_items,
            out,
        )
    if dense is not None:
        whole_tail.merge_24(data, at, symbols, n, stream_len, np.int64(head_of[1]), bases, scratch.words, dense, out)
    if lone is not None:
        whole_tail.merge_8(data, at, symbols, n, stream_len, np.int64(head_of[1]), bases, lone, out)
    if seven is not None:
        first_head = np.int64(head_of[1])
        if planes.n == 1:
            wide_head.merge_7(
                data, at, n_items[0], symbols, n, stream_len, first_head, bases, scratch.tails, seven, out
            )
        else:
            wide_head.merge_23(data, at, n_items[0], symbols, n, stream_len, first_head, bases, seven, out)
    if bare is not None:
        planes_general.merge_general_values(
            None, symbols, n, stream_len, head_of, bases, float_bits.head_shift, head_mask, 0, out
        )
