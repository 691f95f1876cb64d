"""Split and merge several planes of at most 8 bits in groups of 64 values, for CPUs with AVX-512.

The bytes are those of :mod:`narrow` (docs/format.md sections 4 and 7). A group passes once through registers for all of
its planes, by the steps of :mod:`narrow_steps_avx512` or, where items are chunks of the tail, :mod:`chunks_avx512`. The
last group, which may have fewer values, passes through a scratch array.

``j`` is where the symbols of a group begin in ``scratch.symbols``, where sub-streams are ``stream_len + STREAM_PAD``
bytes apart.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.unaligned import load_value, store_value, width_of
from ..core.vector import clear_16, clear_32, count_64
from ..entropy.encode_streams import STREAM_PAD
from .chunks_avx512 import N_WIDE, merge_chunks_32, split_chunks_32
from .narrow_steps_avx512 import merge_narrow_16, merge_narrow_32, picks_for, split_narrow_16, split_narrow_32


@kernel
def _split_chunks(values, stream_len, tables, planes, scratch):
    """Cut float32 whose items are chunks of the tail; see :mod:`chunks_avx512`."""
    symbols, words, items, n_items = scratch.symbols, scratch.layout.words, scratch.layout.items, scratch.n_items
    n, chunks, mark_of = len(values), planes.chunks, tables.mark_of
    # Sub-streams have 64 values or a multiple of it (docs/format.md section 4: stream_log2 is 6 at least), so that no
    # group lies in two of them, and i // stream_len is the sub-stream of all 64.
    whole, row = n & ~63, items.shape[1]
    for i in range(0, whole, 64):
        j = i + i // stream_len * STREAM_PAD
        if count_64(symbols, j, 255):  # rows of zeros have no items
            split_chunks_32(values, i, items, row, n_items, 0, symbols, j, chunks, 0, mark_of, 0)
    if whole < n:
        # The step loads 64 values, which the array may not have. What is left in the scratch behind these counts for
        # nothing: symbols are 0 there, and own no items.
        for i in range(whole, n):
            words[i - whole] = values[i]
        j = whole + whole // stream_len * STREAM_PAD
        split_chunks_32(words, 0, items, row, n_items, 0, symbols, j, chunks, 0, mark_of, 0)


@kernel
def _merge_chunks(stream_len, tables, planes, scratch, out):
    """Join float32 whose items are chunks of the tail: the inverse of :func:`_split_chunks`."""
    symbols, words, items, n_items = scratch.symbols, scratch.layout.words, scratch.layout.items, scratch.n_items
    n, chunks, marks, head_of = len(out), planes.chunks, scratch.layout.marks, tables.narrow_head_of
    whole, row = n & ~63, items.shape[1]
    for i in range(0, whole, 64):
        s = i // stream_len
        j, base = i + s * STREAM_PAD, np.int64(scratch.bases[s])
        if count_64(symbols, j, 255):
            merge_chunks_32(out, i, items, row, n_items, 0, symbols, j, chunks, 0, marks, j, head_of, 0, base)
        else:
            clear_32(out, i)
    # As above: the step writes 64 values, and the array has room for fewer.
    if whole < n:
        s = whole // stream_len
        j, base = whole + s * STREAM_PAD, np.int64(scratch.bases[s])
        merge_chunks_32(words, 0, items, row, n_items, 0, symbols, j, chunks, 0, marks, j, head_of, 0, base)
        for i in range(whole, n):
            out[i] = words[i - whole]


@inlined
def _split_64(values, i, j, tables, planes, scratch, like):
    """Cut 64 values, from number ``i`` of ``values`` on, into the items of their planes. They are of the type of
    ``like``: ``values`` may be scratch of another."""
    symbols, items, n_items, picks = scratch.symbols, scratch.layout.items, scratch.n_items, scratch.layout.bytes
    row, shift, uniform, mark_of = items.shape[1], tables.shift, planes.uniform, tables.mark_of
    if width_of(like) == 32:
        split_narrow_32(
            values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, planes.n, picks, 0
        )
    else:
        split_narrow_16(
            values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, planes.n, picks, 0
        )


@kernel
def split_groups(values, stream_len, tables, planes, scratch):
    """Cut values into the items of all planes, a byte each and not packed.

    Args:
        values: uintW[n].
        stream_len: Values per sub-stream.
        tables: See :class:`layouts.PlaneTables`.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols`` are known, ``n_items`` are zeros; ``n_items`` and ``layout.items`` are results.
    """
    if width_of(values) == 32 and planes.chunks[N_WIDE]:
        _split_chunks(values, stream_len, tables, planes, scratch)
        return
    n, symbols, words = len(values), scratch.symbols, scratch.layout.words
    # Once for all groups: where items begin does not depend on values.
    picks_for(planes.uniform, scratch.layout.bytes)
    whole, value_bytes = n & ~63, width_of(values) // 8
    for i in range(0, whole, 64):
        j = i + i // stream_len * STREAM_PAD
        if count_64(symbols, j, 255):  # rows of zeros have no items
            _split_64(values, i, j, tables, planes, scratch, values)
    # The last group is copied, as its step loads all of 64 values. Symbols are 0 behind the last, so that whatever the
    # scratch had there before owns no items.
    if whole < n:
        for i in range(whole, n):
            store_value(words, (i - whole) * value_bytes, values[i])
        j = whole + whole // stream_len * STREAM_PAD
        _split_64(words, 0, j, tables, planes, scratch, values)


@inlined
def _merge_64(out, i, j, s, tables, planes, scratch, like):
    """Join 64 values of sub-stream ``s``, from number ``i`` of ``out`` on. They are of the type of ``like``: ``out``
    may be scratch of another."""
    symbols, items, n_items, marks = scratch.symbols, scratch.layout.items, scratch.n_items, scratch.layout.marks
    row, shift, uniform, head_of = items.shape[1], tables.shift, planes.uniform, tables.narrow_head_of
    base, n_planes = np.int64(scratch.bases[s]), planes.n
    if width_of(like) == 32:
        merge_narrow_32(
            out, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, marks, j, head_of, 0, base, n_planes
        )
    else:
        merge_narrow_16(
            out, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, marks, j, head_of, 0, base, n_planes
        )


@kernel
def _clear_64(out, i, like):
    """Set 64 values of the type of ``like`` to zero."""
    if width_of(like) == 32:
        clear_32(out, i)
    else:
        clear_16(out, i)


@kernel
def merge_groups(stream_len, tables, planes, scratch, out):
    """Join heads and items into values: the inverse of :func:`split_groups`.

    Args:
        stream_len: Values per sub-stream.
        tables: See :class:`layouts.PlaneTables`.
        planes: See :class:`bundles.Planes`.
        scratch: ``symbols``, ``bases``, ``layout.marks`` and ``layout.items`` are known, ``n_items`` are zeros.
        out: uintW[n], result.
    """
    if width_of(out) == 32 and planes.chunks[N_WIDE]:
        _merge_chunks(stream_len, tables, planes, scratch, out)
        return
    n, symbols, words = len(out), scratch.symbols, scratch.layout.words
    whole, value_bytes = n & ~63, width_of(out) // 8
    for i in range(0, whole, 64):
        s = i // stream_len
        j = i + s * STREAM_PAD
        if count_64(symbols, j, 255):
            _merge_64(out, i, j, s, tables, planes, scratch, out)
        else:
            _clear_64(out, i, out)
    # Joined in the scratch, as a step stores 64 values, and copied as far as the array goes.
    if whole < n:
        s = whole // stream_len
        j = whole + s * STREAM_PAD
        if count_64(symbols, j, 255):
            _merge_64(words, 0, j, s, tables, planes, scratch, out)
        else:
            _clear_64(words, 0, out)
        for i in range(whole, n):
            out[i] = load_value(words, (i - whole) * value_bytes, out)
