"""Several planes of at most 8 bits in groups of 64 values, for CPUs with AVX-512: what :mod:`narrow` does, with
the same bytes. The last group may have fewer; it passes through a scratch array.
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
def _split_chunks(values, symbols, n, stream_len, mark_of, chunks, words, items, n_items):
    whole, row = n & ~63, items.shape[1]
    for i in range(0, whole, 64):
        j = i + i // stream_len * STREAM_PAD
        if count_64(symbols, j, 255):  # rows of zeros have no items
            split_chunks_32(values, i, items, row, n_items, 0, symbols, j, chunks, 0, mark_of, 0)
    if whole < n:
        for i in range(whole, n):
            words[i - whole] = values[i]
        j = whole + whole // stream_len * STREAM_PAD
        split_chunks_32(words, 0, items, row, n_items, 0, symbols, j, chunks, 0, mark_of, 0)


@kernel
def _merge_chunks(symbols, marks, n, stream_len, head_of, chunks, bases, words, items, n_items, out):
    whole, row = n & ~63, items.shape[1]
    for i in range(0, whole, 64):
        s = i // stream_len
        j, base = i + s * STREAM_PAD, np.int64(bases[s])
        if count_64(symbols, j, 255):
            merge_chunks_32(out, i, items, row, n_items, 0, symbols, j, chunks, 0, marks, j, head_of, 0, base)
        else:
            clear_32(out, i)
    if whole < n:
        s = whole // stream_len
        j, base = whole + s * STREAM_PAD, np.int64(bases[s])
        merge_chunks_32(words, 0, items, row, n_items, 0, symbols, j, chunks, 0, marks, j, head_of, 0, base)
        for i in range(whole, n):
            out[i] = words[i - whole]


@inlined
def _split_64(values, i, symbols, j, n_planes, mark_of, shift, uniform, picks, items, n_items, like):
    row = items.shape[1]
    if width_of(like) == 32:
        split_narrow_32(
            values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, n_planes, picks, 0
        )
    else:
        split_narrow_16(
            values, i, items, row, n_items, 0, symbols, j, shift, 0, uniform, 0, mark_of, 0, n_planes, picks, 0
        )


@kernel
def split_groups(
    values, symbols, n, stream_len, n_planes, mark_of, shift, uniform, chunks, words, picks, items, n_items
):
    """The items of all planes, a byte each and not packed: ``items``: uint8[8, n + 64], ``n_items``: int64[8], zeros,
    results; ``words``: uint32[64], ``picks``: uint8[64], scratch."""
    if width_of(values) == 32 and chunks[N_WIDE]:
        _split_chunks(values, symbols, n, stream_len, mark_of, chunks, words, items, n_items)
        return
    picks_for(uniform, picks)
    whole, value_bytes = n & ~63, width_of(values) // 8
    for i in range(0, whole, 64):
        j = i + i // stream_len * STREAM_PAD
        if count_64(symbols, j, 255):  # rows of zeros have no items
            _split_64(values, i, symbols, j, n_planes, mark_of, shift, uniform, picks, items, n_items, values)
    if whole < n:
        for i in range(whole, n):
            store_value(words, (i - whole) * value_bytes, values[i])
        j = whole + whole // stream_len * STREAM_PAD
        _split_64(words, 0, symbols, j, n_planes, mark_of, shift, uniform, picks, items, n_items, values)


@inlined
def _merge_64(out, i, symbols, j, marks, n_planes, head_of, shift, uniform, base, items, n_items, like):
    row = items.shape[1]
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
    if width_of(like) == 32:
        clear_32(out, i)
    else:
        clear_16(out, i)


@kernel
def merge_groups(
    symbols, marks, n, stream_len, n_planes, head_of, shift, uniform, chunks, bases, words, items, n_items, out
):
    """Inverse of :func:`split_groups`; ``n_items``: zeros."""
    if width_of(out) == 32 and chunks[N_WIDE]:
        _merge_chunks(symbols, marks, n, stream_len, head_of, chunks, bases, words, items, n_items, out)
        return
    whole, value_bytes = n & ~63, width_of(out) // 8
    for i in range(0, whole, 64):
        s = i // stream_len
        j, base = i + s * STREAM_PAD, np.int64(bases[s])
        if count_64(symbols, j, 255):
            _merge_64(out, i, symbols, j, marks, n_planes, head_of, shift, uniform, base, items, n_items, out)
        else:
            _clear_64(out, i, out)
    if whole < n:
        s = whole // stream_len
        j, base = whole + s * STREAM_PAD, np.int64(bases[s])
        if count_64(symbols, j, 255):
            _merge_64(words, 0, symbols, j, marks, n_planes, head_of, shift, uniform, base, items, n_items, out)
        else:
            _clear_64(words, 0, out)
        for i in range(whole, n):
            out[i] = load_value(words, (i - whole) * value_bytes, out)
