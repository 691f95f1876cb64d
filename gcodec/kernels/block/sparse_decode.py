"""Check sparse blocks, and read what they change (docs/format.md section 9)."""

from __future__ import annotations

import numpy as np

from ..core.checksum import partial_checksum
from ..core.jit import inlined, kernel
from ..core.scalar import U32, U64, wrap
from ..core.unaligned import load_u16, load_u32, load_u64, prefetch, subarray, subarray_if_any, width_of
from ..entropy.changes import OTHER, STEP_OF_KIND, ordered, read_number, read_step
from ..entropy.prefix_code import TABLE_SIZE
from .class_ranks import WINDOW, find_rank, rank_groups, reach_groups
from .header import (
    BAD_FIELD,
    BAD_SIZE,
    BAD_STREAM,
    CHANGE_RESERVED,
    CODEBOOK,
    CODED_HEADER,
    N_VALUES,
    NO_BASE,
    OK,
    SPARSE,
    check_block,
    is_zero,
    read_sparse,
)

MAX_LENGTH_WIDTH = 24
_PLACES_AHEAD = 24
_NEVER = U32(0xFFFFFFFF)  #: the gap behind the last change of a class: no sub-stream is so long


@kernel
def _changed_value(base, place, step, like):
    """Return the value that a step leads to; without a base, 0."""
    if base is None:
        return wrap(0, like)
    # v with o(v) = o(p) + step (docs/format.md section 9); o is its own inverse, so it is taken twice.
    sign_bit = wrap(U64(U64(1) << U64(width_of(base) - 1)), like)
    return ordered(wrap(U64(ordered(base[place], sign_bit)) + U64(step), like), sign_bit)


@kernel
def _read_class(data, bit, last_bit, table, steps_table, count, gaps, steps):
    """Read the changes of one class, followed by one that never comes.

    Args:
        data: uint8, the frame.
        bit: Where they begin.
        last_bit: Behind the last bit of the sub-stream.
        table: uint32[4096], the class's of ``ChangeTables.classes``.
        steps_table: ``ChangeTables.steps``.
        count: Number of changes.
        gaps: uint32[count + 1], result.
        steps: uintW[count + 1], result.

    Returns:
        The bit behind them, -1 if there is a fault.
    """
    for i in range(count):
        gap, kind, bit = read_number(data, bit, table)
        step = STEP_OF_KIND[kind]
        if kind == OTHER and bit >= 0:
            step, bit = read_step(data, bit, steps_table)
        if bit < 0 or bit > last_bit:
            return -1
        gaps[i], steps[i] = U32(gap), wrap(step, steps[i])
    gaps[count] = _NEVER
    return bit


@kernel
def _read_changes(reading, start, size, n, n_classes):
    """Read the changes of a sub-stream of ``size`` bytes at ``start``, which has ``n`` values; return whether there is
    no fault."""
    scratch, tables, data = reading.scratch, reading.tables, reading.data
    bit, last_bit, at = 8 * start, 8 * (start + size), 0
    for c in range(n_classes):
        count = 0
        if not tables.is_empty[c]:
            count, _, bit = read_number(data, bit, tables.counts)
            # `at` counts one more for each class before, the gap that never comes: so this says that there are no more
            # changes than values. It bounds what is written to gaps and steps, which have room for n + 17, before
            # anything is.
            if bit < 0 or bit > last_bit or at + count > n + c:
                return False
        table = subarray(tables.classes, c * TABLE_SIZE, TABLE_SIZE)
        gaps, steps = subarray(scratch.gaps, at, count + 1), subarray(scratch.steps, at, count + 1)
        bit = _read_class(data, bit, last_bit, table, tables.steps, count, gaps, steps)
        if bit < 0:
            return False
        #     gaps        g g g NEVER | g NEVER | NEVER       of three classes, the third without changes
        #     after       0             4         6           number of the next change
        #     numbers           3         5       6           number of the gap that never ends
        scratch.passed[c], scratch.after[c], scratch.numbers[c] = np.int64(scratch.gaps[at]), at, at + count
        at += count + 1
    # It must end in its last byte (section 9).
    return (bit + 7) >> 3 == start + size


@inlined
def _place_changes(scratch, base, c, thresholds, first, changed):
    """Put the changes of class ``c`` that lie in a window, which begins at place ``first``, into ``changed``."""
    k, rank, at, g, total = scratch.after[c], scratch.passed[c], scratch.state[0], 0, scratch.totals[c]
    # The gap behind the last change, 2**32 - 1, ends this loop in every window: no more than 2**20 values are taken off
    # it, window by window, so it stays larger than any. Targets beyond the last value stay ahead in the same way, which
    # `_place_in_stream` notices.
    while rank < total:
        place = rank
        if base is not None and len(thresholds) > 1:
            place, g = find_rank(rank, c, g, scratch)
        step = scratch.steps[k]
        changed.places[at] = U32(first + place)
        changed.values[at] = _changed_value(base, place, step, step)
        # A step of 0 changes nothing and is dropped, by writing the next change to its place.
        at += np.int64(step != 0)
        k += 1
        rank += 1 + np.int64(scratch.gaps[k])
    scratch.passed[c], scratch.after[c], scratch.state[0] = rank - total, k, at


@kernel
def _place_in_stream(scratch, base, n, thresholds, changed, place_of_first):
    """Put the changes of a sub-stream of ``n`` values into ``changed``; return whether all are for values that there
    are."""
    for first in range(0, n, WINDOW):
        length = min(WINDOW, n - first)
        predictions = subarray_if_any(base, first, length)
        scratch.totals[0] = length
        if base is not None and len(thresholds) > 1:
            reach_groups(predictions, length, thresholds, scratch)
            rank_groups(predictions, length, thresholds, scratch)
        for c in range(len(thresholds)):
            _place_changes(scratch, predictions, c, thresholds, place_of_first + first, changed)
    n_missing = 0
    for c in range(len(thresholds)):
        n_missing += scratch.numbers[c] - scratch.after[c]
    return n_missing == 0


@kernel
def _find_streams(data, at, n_streams, header, stream_bytes):
    """Read the lengths of sub-streams; return whether they add up to symbol_bytes."""
    total, mask = 0, U64((1 << header.length_width) - 1)
    for s in range(n_streams):
        bit = s * header.length_width
        # 7 + 24 bits at most (MAX_LENGTH_WIDTH), of 57.
        packed = U64(load_u64(data, at + (bit >> 3)) >> U64(bit & 7))
        length = np.int64(packed & mask) + header.min_stream_bytes
        stream_bytes[s] = U32(length)
        total += length
    return total == header.symbol_bytes


@kernel
def check_sparse(data, at, size, n, b, rules):
    """Return the status of a sparse block, as far as its header says it.

    Args:
        data: uint8, the frame.
        at: Where the block begins.
        size: Its bytes.
        n: Values that it must have.
        b: Its number.
        rules: A :class:`sparse_types.SparseRules`.
    """
    status = check_block(data, at, size, b)
    if status != OK:
        return status
    if size < CODED_HEADER or load_u32(data, at + N_VALUES) != n or load_u16(data, at + CHANGE_RESERVED):
        return BAD_FIELD
    header, c = read_sparse(data, at), np.int64(data[at + CODEBOOK]) - rules.first_book
    if c < 0 or c >= len(rules.n_classes) or header.inner_bytes & 7:
        return BAD_FIELD
    if rules.n_classes[c]:
        if header.template >= len(rules.is_base) or not rules.is_base[header.template] or header.inner_bytes:
            return BAD_FIELD
    elif header.template != NO_BASE:
        return BAD_FIELD
    if header.length_width > MAX_LENGTH_WIDTH or header.stream_log2 < 6 or header.stream_log2 > rules.block_log2:
        return BAD_FIELD
    n_streams = (n + (1 << header.stream_log2) - 1) >> header.stream_log2
    # int64 sums of fields of at most 32 bits do not wrap around.
    body = CODED_HEADER + header.inner_bytes + header.symbol_bytes + ((n_streams * header.length_width + 7) >> 3)
    if (body + 7) & ~7 != size:
        return BAD_SIZE
    if not is_zero(data, at + body, at + size):
        return BAD_FIELD
    return OK


@kernel
def read_sparse_blocks(reading, blocks, begin, end, base, out, out_first):
    """Read blocks that follow each other, as many before ``end`` as are sparse and of one codebook.

    Args:
        reading: A :class:`sparse_types.Reading`; the changed values of all blocks together are filled in, or those of
            the last one if there is ``out``. Each block's part of the base is hashed, which brings it into the cache.
        blocks: A :class:`bundles.FrameBlocks`.
        begin: First block, a sparse one.
        base: uintW[n_values], or None if the codebook has none.
        out: uintW, takes values; or None.
        out_first: The frame's value that ``out`` begins with.

    Returns:
        (status, the first block that is not read, number of changes in ``reading``).
    """
    rules, words, data, n_changes = reading.rules, reading.words, reading.data, 0
    block = 1 << rules.block_log2
    book = data[blocks.offsets[begin] + CODEBOOK]
    for b in range(begin, end):
        at, first, place = blocks.offsets[b], b * block, (b - begin) * block
        n = min(block, rules.n_values - first)
        # Not a fault: blocks of other kinds and codebooks are the work of other kernels, and read with other tables.
        if data[at] != SPARSE or data[at + CODEBOOK] != book:
            return OK, b, n_changes
        if len(words.sums):
            width = width_of(reading.changed.values)
            words.sums[b - begin] = partial_checksum(words.data, words.first + (place * width >> 5), n * width >> 5)
        status = check_sparse(data, at, blocks.sizes[b], n, b, rules)
        if status != OK:
            return status, b, n_changes
        predictions = subarray_if_any(base, first, n)
        if out is not None:
            # Where values are written at once, changes are those of one block: places count from its first value.
            place, n_changes = 0, 0
        status, n_changes = _read_sparse_block(reading, at, n, predictions, place, n_changes)
        if status != OK:
            return status, b, n_changes
        if out is not None:
            target = subarray(out, first - out_first, n)
            for i in range(n):
                target[i] = predictions[i]
            apply_patch(target, reading.changed, n_changes)
    return OK, end, n_changes


@kernel
def _read_sparse_block(reading, at, n, base, place_of_first, n_changes):
    """Append the changes of a sparse block that :func:`check_sparse` has passed to ``n_changes`` others.

    Args:
        reading: A :class:`sparse_types.Reading`.
        at: Where the block begins.
        n: Its values.
        base: uintW[n], the predictions, or None for zeros.
        place_of_first: What places begin with.
        n_changes: Number of changes before.

    Returns:
        (status, number of changes).
    """
    data, stream_bytes, thresholds = reading.data, reading.scratch.stream_bytes, reading.thresholds
    header = read_sparse(data, at)
    n_streams = (n + (1 << header.stream_log2) - 1) >> header.stream_log2
    place = at + CODED_HEADER + header.inner_bytes
    # Lengths that add up to symbol_bytes, none of them negative, keep every sub-stream inside the block.
    if not _find_streams(data, place + header.symbol_bytes, n_streams, header, stream_bytes):
        return BAD_STREAM, 0
    scratch = reading.scratch
    scratch.state[0] = n_changes
    for s in range(n_streams):
        first = s << header.stream_log2
        length = min(1 << header.stream_log2, n - first)
        size = np.int64(stream_bytes[s])
        if size:
            predictions = subarray_if_any(base, first, length)
            if not _read_changes(reading, place, size, length, len(thresholds)):
                return BAD_STREAM, 0
            if not _place_in_stream(scratch, predictions, length, thresholds, reading.changed, place_of_first + first):
                return BAD_STREAM, 0
        place += size
    return OK, scratch.state[0]


@kernel
def apply_patch(out, changed, count):
    """Write the first ``count`` of some :class:`sparse_types.ChangedValues` to their places in ``out`` (uintW)."""
    width, last = width_of(out) // 8, count - 1
    for i in range(count):
        # Each place is in a cache line of its own, as good as always: many of them are fetched at the same time.
        prefetch(out, np.int64(changed.places[min(i + _PLACES_AHEAD, last)]) * width)
        out[changed.places[i]] = changed.values[i]
