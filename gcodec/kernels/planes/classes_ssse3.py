"""Several planes of float32 whose items are parts of digits (:mod:`class_tables`), in groups of 64 values, for CPUs
with SSSE3 but not AVX-512: what :mod:`narrow` does, with the same bytes. The last group may have fewer; it passes
through a scratch array.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.unaligned import load_value, store_u64, store_value
from ..core.vector import count_64
from ..entropy.encode_streams import STREAM_PAD
from .class_steps_ssse3 import (
    classes_64,
    compress_owned,
    count_owners,
    digits_64,
    expand_owned,
    gather_64,
    join_64,
    spread_64,
)
from .class_tables import DIGIT, LAST, LEFT, NO_DIGIT, NUMBER, OWNERS, PARTS, TABLE_BYTES, TAKEN
from .narrow import pack_bytes, unpack_bytes

REST = TABLE_BYTES // 4  #: where in ``tables``, in values, the last group lies if it has fewer than 64
ITEMS, CLASSES = 256, 320  #: where in ``rows``, in bytes, items of a plane lie, and classes of 64 values


@kernel
def _split_64(values, i, symbols, j, planes, tables, rows, items, n_items):
    classes_64(symbols, j, tables, 0, rows, CLASSES, np.int64(tables[NUMBER]))
    digits_64(values, i, rows, 0)
    row = items.shape[1]
    for p in range(planes.n):
        digit = np.int64(tables[DIGIT + p])
        source = 64 * digit
        if digit == NO_DIGIT:
            source = ITEMS
            gather_64(rows, 0, rows, CLASSES, tables, PARTS + 64 * p, rows, ITEMS, np.int64(tables[LEFT + p]))
        place = p * row + n_items[p]
        n_items[p] += compress_owned(rows, source, rows, CLASSES, tables, OWNERS + 16 * p, items, place)


@kernel
def split_classes(values, symbols, n, stream_len, planes, tables, rows, items, n_items, out, at):
    """All planes; returns the end. ``tables``: uint8[CLASS_BYTES], filled by :func:`class_tables.find_classes`;
    ``rows``: uint32[128], ``items``: uint8[8, n + 64], ``n_items``: int64[8], scratch."""
    n_items[:] = 0
    whole = n & ~63
    for i in range(0, whole, 64):
        j = i + i // stream_len * STREAM_PAD
        if count_64(symbols, j, 255):  # rows of zeros have no items
            _split_64(values, i, symbols, j, planes, tables, rows, items, n_items)
    if whole < n:
        for i in range(whole, n):
            store_value(tables, 4 * (REST + i - whole), values[i])
        j = whole + whole // stream_len * STREAM_PAD
        _split_64(tables, REST, symbols, j, planes, tables, rows, items, n_items)
    for p in range(planes.n):
        at = pack_bytes(items[p], n_items[p], planes.widths[p], out, at)
    return at


@kernel
def count_classes(symbols, n, stream_len, n_planes, tables, classes, n_items):
    """Number of items of every plane: ``n_items``: int64[8], result, and the classes of all values, laid out like
    ``symbols``, which become 0 behind the last."""
    n_items[:] = 0
    for i in range(0, n, 64):
        j = i + i // stream_len * STREAM_PAD
        for k in range(n - i, 64):
            symbols[j + k] = 0
        classes_64(symbols, j, tables, 0, classes, j, np.int64(tables[NUMBER]))
        for p in range(n_planes):
            n_items[p] += count_owners(classes, j, tables, OWNERS + 16 * p)


@kernel
def _clear(array, start, n_bytes):
    for k in range(start, start + n_bytes, 8):
        store_u64(array, k, 0)


@kernel
def _expand(p, target, classes, j, tables, rows, items, n_items):
    """A plane's items of 64 values to a row, zero where there is none."""
    place = p * items.shape[1] + n_items[p]
    n_items[p] += expand_owned(items, place, classes, j, tables, OWNERS + 16 * p, rows, target)


@kernel
def _merge_64(out, i, symbols, classes, j, planes, base, tables, rows, items, n_items):
    for row in range(5):  # digits that are no plane's, and items, of which there may be none
        if not (tables[TAKEN] >> row) & 1:
            _clear(rows, 64 * row, 64)
    for p in range(planes.n):
        if tables[DIGIT + p] != NO_DIGIT:
            _expand(p, 64 * np.int64(tables[DIGIT + p]), classes, j, tables, rows, items, n_items)
    last = np.int64(tables[LAST])
    for p in range(last + 1):
        if tables[DIGIT + p] == NO_DIGIT:
            _expand(p, ITEMS, classes, j, tables, rows, items, n_items)
            if p < last:
                spread_64(rows, ITEMS, classes, j, tables, PARTS + 64 * p, rows, 0, np.int64(tables[LEFT + p]))
    left = np.int64(tables[LEFT + last])
    join_64(rows, 0, symbols, j, classes, j, tables, 0, out, i, PARTS + 64 * last, left, base)


@kernel
def merge_classes(data, at, symbols, classes, n, stream_len, planes, bases, tables, rows, items, n_items, out):
    """Inverse of :func:`split_classes`. ``classes`` and ``n_items`` of :func:`count_classes`; ``data`` has 64 bytes of
    margin behind the planes; ``bases``: uint16[n_streams], reference heads."""
    for p in range(planes.n):
        unpack_bytes(data, at, n_items[p], planes.widths[p], items[p])
        at += (n_items[p] * planes.widths[p] + 7) >> 3
    n_items[:] = 0
    whole = n & ~63
    for i in range(0, whole, 64):
        s = i // stream_len
        j = i + s * STREAM_PAD
        if count_64(symbols, j, 255):
            _merge_64(out, i, symbols, classes, j, planes, np.int64(bases[s]), tables, rows, items, n_items)
        else:
            _clear(out, 4 * i, 256)
    if whole < n:
        s = whole // stream_len
        j = whole + s * STREAM_PAD
        _merge_64(tables, REST, symbols, classes, j, planes, np.int64(bases[s]), tables, rows, items, n_items)
        for i in range(whole, n):
            out[i] = load_value(tables, 4 * (REST + i - whole), out)
