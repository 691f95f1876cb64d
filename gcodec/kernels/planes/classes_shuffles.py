"""Split and merge several planes of float32 whose items are parts of digits, for CPUs with SSSE3 but not AVX-512.

The bytes are those of :mod:`narrow` (docs/format.md sections 4 and 7); :mod:`class_tables` says what digits and classes
are, :mod:`class_steps_shuffles` has the vector steps. Values go in groups of 64; the last group, which may have fewer,
passes through a scratch array.

``tables`` here is ``scratch.chunk``, uint8[CLASS_BYTES], filled by :func:`class_tables.find_classes`; ``rows`` is
``scratch.layout.words`` seen as rows of 64 bytes; ``j`` is where the symbols of a group begin in ``scratch.symbols``:

    rows      | digit 0 | digit 1 | digit 2 | digit 3 | items of a plane | classes |
    byte      0         64        128       192       256                320       384
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.masks import count_ones
from ..core.scalar import U64
from ..core.unaligned import load_value, store_u64, store_value
from ..core.vector import clear_8, copy_64, count_64
from ..entropy.encode_streams import STREAM_PAD
from .class_steps_shuffles import (
    add_64,
    classes_64,
    compress_64,
    digits_64,
    expand_64,
    gather_64,
    join_64,
    owners_of,
    part_64,
    spread_64,
)
from .class_tables import DIGIT, LAST, LEFT, NO_DIGIT, NUMBER, OWNERS, PART_OF, PARTS, TABLE_BYTES, TAKEN
from .narrow import pack_bytes, unpack_bytes

REST = TABLE_BYTES // 4  #: where in ``tables``, in values of 32 bits, a last group of fewer than 64 lies
ALL = -1  #: the mask of 64 values that all own an item
ITEMS, CLASSES = 256, 320  #: where in ``rows``, in bytes, items of a plane lie, and classes of 64 values

# Steps of one group are given what they read, and not all of the scratch: they are called so often that passing dozens
# of arrays would take longer than the work.


@kernel
def _split_64(values, i, symbols, j, n_planes, tables, layout, n_items):
    """Append the items of 64 values to their planes.

    Args:
        values: Where the values are, uint32, or uint8 that hold such.
        i: Number of the first one.
        symbols: uint8, strided.
        j: Where the symbols of these values begin.
        tables: uint8[CLASS_BYTES].
        layout: Scratch, a :class:`layout_types.NarrowPlanes`; ``items`` are added to.
        n_items: int64[8], items of each plane so far, counted on.
    """
    rows, items = layout.words, layout.items
    classes_64(symbols, j, tables, 0, rows, CLASSES, np.int64(tables[NUMBER]))
    digits_64(values, i, rows, 0)
    row = items.shape[1]
    for p in range(n_planes):
        # Items that are a digit's lowest bits are moved from its row as it is; others are gathered in row 4 first.
        owners = owners_of(rows, CLASSES, tables, OWNERS + 16 * p)
        if owners == 0:
            continue
        digit = np.int64(tables[DIGIT + p])
        source = 64 * digit
        if digit == NO_DIGIT:
            source, left, part_of = ITEMS, np.int64(tables[LEFT + p]), np.int64(tables[PART_OF + p])
            if part_of == NO_DIGIT:
                gather_64(rows, 0, rows, CLASSES, tables, PARTS + 64 * p, rows, ITEMS, left)
            else:
                part_64(rows, 64 * part_of, rows, ITEMS, left)
        place = p * row + n_items[p]
        if owners == ALL:
            copy_64(rows, source, items, place)
            n_items[p] += 64
        else:
            n_items[p] += compress_64(rows, source, owners, items, place)


@kernel
def split_classes(values, stream_len, planes, scratch, out, at):
    """Write all planes; arguments and result as of :func:`layouts.split_planes`."""
    n, symbols, tables, layout, n_items = len(values), scratch.symbols, scratch.chunk, scratch.layout, scratch.n_items
    n_items[:] = 0
    whole = n & ~63
    for i in range(0, whole, 64):
        j = i + i // stream_len * STREAM_PAD
        if count_64(symbols, j, 255):  # rows of zeros have no items
            _split_64(values, i, symbols, j, planes.n, tables, layout, n_items)
    if whole < n:
        # A step loads 64 values, which the array may not have; symbols behind its end are 0 and own no items.
        for i in range(whole, n):
            store_value(tables, 4 * (REST + i - whole), values[i])
        j = whole + whole // stream_len * STREAM_PAD
        _split_64(tables, REST, symbols, j, planes.n, tables, layout, n_items)
    for p in range(planes.n):
        at = pack_bytes(layout.items[p], n_items[p], planes.widths[p], out, at)
    return at


@kernel
def count_classes(n, stream_len, planes, scratch):
    """Count the items of every plane, and find the classes of all values, before planes are merged.

    Args:
        stream_len: Values per sub-stream.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols`` are known, and become 0 behind the last up to a multiple of 64; ``chunk`` has the tables;
            ``n_items`` and ``layout.marks``, the classes, laid out like ``symbols``, are results.
    """
    symbols, tables, classes, n_items = scratch.symbols, scratch.chunk, scratch.layout.marks, scratch.n_items
    n_items[:] = 0
    for i in range(0, n, 64):
        j = i + i // stream_len * STREAM_PAD
        # Behind the last value lie symbols of a longer block, which the scratch had before. They would own items.
        for k in range(n - i, 64):
            symbols[j + k] = 0
        classes_64(symbols, j, tables, 0, classes, j, np.int64(tables[NUMBER]))
        for p in range(planes.n):
            n_items[p] += count_ones(U64(owners_of(classes, j, tables, OWNERS + 16 * p)))


@kernel
def _clear(array, start, n_bytes):
    """Set bytes to zero, eight at a time; ``n_bytes`` is a multiple of eight."""
    for k in range(start, start + n_bytes, 8):
        store_u64(array, k, 0)


@kernel
def _expand(p, target, classes, j, tables, rows, items, n_items):
    """Expand the next items of plane ``p`` to byte ``target`` of ``rows``, a byte for each of 64 values, zero where a
    value has none."""
    place = p * items.shape[1] + n_items[p]
    owners = owners_of(classes, j, tables, OWNERS + 16 * p)
    if owners == 0:
        clear_8(rows, target)
    elif owners == ALL:
        copy_64(items, place, rows, target)
        n_items[p] += 64
    else:
        n_items[p] += expand_64(items, place, owners, rows, target)


@kernel
def _find_digits(j, n_planes, tables, layout, n_items):
    """Find the digits of the tails of 64 values in rows 0 to 3.

    Items of the last plane without a digit of its own are left in row 4, for ``join_64`` to spread while it has the
    digits in registers.
    """
    rows, classes, items = layout.words, layout.marks, layout.items
    for row in range(5):  # digits that no plane fills as a whole, and row 4 where no plane needs it
        if not (tables[TAKEN] >> row) & 1:
            _clear(rows, 64 * row, 64)
    for p in range(n_planes):
        if tables[DIGIT + p] != NO_DIGIT:
            _expand(p, 64 * np.int64(tables[DIGIT + p]), classes, j, tables, rows, items, n_items)
    last = np.int64(tables[LAST])
    for p in range(last + 1):
        if tables[DIGIT + p] == NO_DIGIT:
            _expand(p, ITEMS, classes, j, tables, rows, items, n_items)
            left, part_of = np.int64(tables[LEFT + p]), np.int64(tables[PART_OF + p])
            # Row 4 serves one plane after another: each but the last is moved to its digits before the next is expanded
            # to it.
            if p < last and part_of == NO_DIGIT:
                spread_64(rows, ITEMS, classes, j, tables, PARTS + 64 * p, rows, 0, left)
            elif p < last:
                add_64(rows, ITEMS, rows, 64 * part_of, left)


@kernel
def _join(out, i, symbols, j, base, tables, layout):
    """Join heads and digits of 64 values of which the symbols begin at ``j``, into ``out[i ...]``; ``base``: the head
    that relative heads are counted from."""
    last = np.int64(tables[LAST])
    parts, left = PARTS + 64 * last, np.int64(tables[LEFT + last])
    join_64(layout.words, 0, symbols, j, layout.marks, j, tables, 0, out, i, parts, left, base)


@kernel
def merge_classes(data, at, stream_len, planes, scratch, out):
    """Join heads and planes into values: the inverse of :func:`split_classes`; arguments as of
    :func:`layouts.merge_planes`, and ``scratch.layout.marks`` are the classes of :func:`count_classes`."""
    n, symbols, tables, layout, n_items = len(out), scratch.symbols, scratch.chunk, scratch.layout, scratch.n_items
    for p in range(planes.n):
        unpack_bytes(data, at, n_items[p], planes.widths[p], layout.items[p])
        at += (n_items[p] * planes.widths[p] + 7) >> 3
    # From here on: how many items of each plane have been joined. How many there are in all was needed to unpack.
    n_items[:] = 0
    whole = n & ~63
    for i in range(0, whole, 64):
        s = i // stream_len
        j = i + s * STREAM_PAD
        if count_64(symbols, j, 255):
            _find_digits(j, planes.n, tables, layout, n_items)
            _join(out, i, symbols, j, np.int64(scratch.bases[s]), tables, layout)
        else:
            # A group of zeros: 64 values of 4 bytes.
            _clear(out, 4 * i, 256)
    if whole < n:
        s = whole // stream_len
        j = whole + s * STREAM_PAD
        _find_digits(j, planes.n, tables, layout, n_items)
        _join(tables, REST, symbols, j, np.int64(scratch.bases[s]), tables, layout)
        for i in range(whole, n):
            out[i] = load_value(tables, 4 * (REST + i - whole), out)
