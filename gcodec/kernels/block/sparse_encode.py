"""Find what differs in blocks, and write them as sparse ones (docs/format.md section 9)."""

from __future__ import annotations

import numpy as np

from ..core.checksum import partial_checksum
from ..core.jit import inlined, kernel
from ..core.masks import class_of, count_ones, differences, lowest_one, reach_group, reach_group_by_top
from ..core.scalar import U32, U64, wrap
from ..core.unaligned import subarray, subarray_if_any, width_of
from ..entropy.changes import (
    OTHER,
    SHORT_GAPS,
    category_of,
    fill_short_gaps,
    finish_bits,
    ordered,
    step_kind,
    step_symbol,
    write_gaps,
    write_number,
    write_step,
)
from .class_ranks import WINDOW, fetch_ahead, have_tops, rank_groups, rank_of
from .header import (
    BLOCK_HEADER,
    CODED_HEADER,
    SparseHeader,
    min_and_width,
    pack_numbers,
    seal_block,
    store_raw,
    write_sparse,
)
from .sparse_types import GROUP, copy_tail, first_values

CLASS_MARGIN = 48  #: room of a class besides a sub-stream's values: classes a page apart would share cache lines
_SURE_PLACES = 3  #: that are noted of a group whether or not there are so many


@kernel
def count_tops(values, base, begins, length, shift, counts):
    """Count predictions in parts of an array by the highest bits of their magnitude, and of them those that differ.

    Args:
        values: uintW[n].
        base: uintW[n], the predictions.
        begins: int64[n_parts], where the parts begin.
        length: Values of a part; one at the end of the array may have fewer.
        shift: Number of lower bits that are left away.
        counts: int64[2, 2, n_tops], to which are added: all predictions, and those that differ, of values at even and
            at odd places. Most are of a few tops, and one addition to a count waits for the one before.
    """
    # n_tops is a power of two: the mask also cuts off the sign, which no class depends on.
    mask = counts.shape[2] - 1
    for k in range(len(begins)):
        n = min(length, len(values) - begins[k])
        new, old = subarray(values, begins[k], n), subarray(base, begins[k], n)
        for i in range(n):
            top = np.int64(U64(old[i]) >> U64(shift)) & mask
            counts[0, i & 1, top] += 1
            if new[i] != old[i]:
                counts[1, i & 1, top] += 1


@kernel
def _step_from(values, base, place):
    """Return the step from a prediction to its value, modulo 2**W; without a base, the value."""
    if base is None:
        return values[place]
    # o(v) - o(p) modulo 2**W (docs/format.md section 8): a small number for values that are close, across zero, too.
    sign_bit = wrap(U64(U64(1) << U64(width_of(values) - 1)), values[place])
    return wrap(U64(ordered(values[place], sign_bit)) - U64(ordered(base[place], sign_bit)), values[place])


@inlined
def _note_places(changed, first, places, at):
    """Append the places that a mask marks, and return the number of places then.

    A few are written in any case, so that no branch hangs on whether there are one, two or none.
    """
    #     changed     0 1 0 0 1 0 ...       bit 0 first
    #     places      first + 1, first + 4, first + 64
    #
    # The third is of no bit: it is written over by the next group.
    #
    # `left & (left - 1)` clears the lowest set bit, and leaves 0 as it is, whose lowest bit counts as number 64.
    left, n = changed, count_ones(changed)
    for k in range(_SURE_PLACES):
        places[at + k] = first + lowest_one(left)
        left = U64(left & U64(left - U64(1)))
    for k in range(_SURE_PLACES, n):
        places[at + k] = first + lowest_one(left)
        left = U64(left & U64(left - U64(1)))
    return at + n


@kernel
def _find_places(values, base, thresholds, scratch):
    """Find the places in a window where values differ, and the members of all classes; return how many places."""
    # One pass over values and predictions does both: what differs, and which predictions are of which class. The
    # comparison is the same for all groups, so it is chosen outside of the loops.
    n, at = len(values), 0
    with_classes = base is not None and len(thresholds) > 1
    if with_classes and have_tops(base, thresholds):
        for g in range(n // GROUP):
            fetch_ahead(values, g * GROUP)
            at = _note_places(differences(values, base, g * GROUP), g * GROUP, scratch.places, at)
            reach_group_by_top(base, g * GROUP, thresholds, scratch.members, g)
    else:
        for g in range(n // GROUP):
            fetch_ahead(values, g * GROUP)
            at = _note_places(differences(values, base, g * GROUP), g * GROUP, scratch.places, at)
            if with_classes:
                reach_group(base, g * GROUP, thresholds, scratch.members, g)
    # The last group may not be whole: it is copied to where 64 values can be read, and what the copy holds behind its
    # end, left by earlier groups, is masked out.
    whole = n & -GROUP
    if whole < n:
        valid = first_values(n - whole)
        copy_tail(values, whole, scratch.tail, 0)
        copy_tail(base, whole, scratch.tail, GROUP)
        predictions = subarray_if_any(base, 0, 0) if base is None else subarray(scratch.tail, GROUP, GROUP)
        changed = differences(subarray(scratch.tail, 0, GROUP), predictions, 0)
        at = _note_places(U64(changed & valid), whole, scratch.places, at)
    if with_classes:
        rank_groups(base, n, thresholds, scratch)
    return at


@kernel
def _note_changes(values, base, thresholds, n_found, stride, scratch):
    """Append the changes at the places that were found to those of their classes, each of which has room for
    ``stride``."""
    #     values of class c     . . # . # . . #          # differs; values of other classes do not count
    #     rank                      2   4     7          gaps 2, 1, 2
    #     after[c]              0     3   5     8        one behind the last change
    if base is None or len(thresholds) == 1:  # without classes, ranks are places, and what is kept fits into registers
        at, after = scratch.numbers[0], scratch.after[0]
        for i in range(n_found):
            place = np.int64(scratch.places[i])
            scratch.gaps[at + i] = U32(place - after)
            scratch.steps[at + i] = _step_from(values, base, place)
            after = place + 1
        scratch.numbers[0], scratch.after[0] = at + n_found, after
        return
    for i in range(n_found):
        place = np.int64(scratch.places[i])
        c = class_of(base[place], thresholds)
        rank = rank_of(place, c, scratch)
        at = scratch.numbers[c]
        scratch.numbers[c] = at + 1
        scratch.gaps[c * stride + at] = U32(rank - scratch.after[c])
        scratch.steps[c * stride + at] = _step_from(values, base, place)
        scratch.after[c] = rank + 1


@kernel
def _find_in_stream(values, base, thresholds, stride, scratch):
    """Find the changes of a sub-stream, by class, and return their number."""
    n, n_changes = len(values), 0
    for c in range(len(thresholds)):
        scratch.after[c], scratch.numbers[c] = 0, 0
    for first in range(0, n, WINDOW):
        length = min(WINDOW, n - first)
        part, predictions = subarray(values, first, length), subarray_if_any(base, first, length)
        scratch.totals[0] = length
        n_found = _find_places(part, predictions, thresholds, scratch)
        _note_changes(part, predictions, thresholds, n_found, stride, scratch)
        n_changes += n_found
        for c in range(len(thresholds)):
            scratch.after[c] -= scratch.totals[c]  # ranks begin anew with each window
    return n_changes


@kernel
def _count_changes(scratch, stride, n_classes, counts, found, at):
    """Append the changes of a sub-stream to those of the block, by class, and count their symbols."""
    # 3 * MAX_CATEGORIES symbols a class with a base, MAX_CATEGORIES without one.
    if counts.classes.shape[1] == len(counts.counts):
        _count_gaps(scratch, counts.classes[0], found, at)
        return
    for c in range(n_classes):
        for i in range(c * stride, c * stride + scratch.numbers[c]):
            gap, step = scratch.gaps[i], scratch.steps[i]
            found.gaps[at], found.steps[at] = gap, step
            at += 1
            category, symbol = category_of(np.int64(gap)), step_symbol(step)
            kind = step_kind(symbol)
            counts.classes[c, 3 * category + kind] += 1
            if kind == OTHER:
                counts.steps[symbol] += 1


@kernel
def _count_gaps(scratch, counts, found, at):
    """Append the changes of a sub-stream without a base to those of the block, and count the categories of their
    gaps."""
    n, last = scratch.numbers[0], U32(SHORT_GAPS - 1)
    gaps, steps = subarray(found.gaps, at, n), subarray(found.steps, at, n)
    for i in range(n):
        gaps[i], steps[i] = scratch.gaps[i], scratch.steps[i]
    # Most gaps are of a few sizes, and one addition to a count waits for the one before: so there are two counts of
    # each, and the last is of all that are not short.
    short_gaps = scratch.short_gaps
    short_gaps[:] = U64(0)
    for i in range(0, n & -2, 2):
        short_gaps[min(gaps[i], last)] += U64(1)
        short_gaps[SHORT_GAPS + min(gaps[i + 1], last)] += U64(1)
    if n & 1:
        short_gaps[min(gaps[n - 1], last)] += U64(1)
    for gap in range(SHORT_GAPS - 1):
        counts[category_of(np.int64(gap))] += np.int64(short_gaps[gap] + short_gaps[SHORT_GAPS + gap])
    if short_gaps[SHORT_GAPS - 1] | short_gaps[2 * SHORT_GAPS - 1]:
        for i in range(n):
            if gaps[i] >= last:
                counts[category_of(np.int64(gaps[i]))] += 1


@kernel
def find_differences(values, base, words, search):
    """Find what differs in blocks that follow each other, and count the symbols of its codes.

    Args:
        values: uintW[n], the blocks.
        base: uintW[n], the predictions, or None for zeros.
        words: A :class:`sparse_types.BaseWords`: each block's part of the base is hashed, which brings it into the
            cache.
        search: A :class:`sparse_types.Search`; :func:`count_numbers` counts the symbols that this does not.

    Returns:
        The number of changes, at least ``max_changes`` if there are too many.
    """
    n_changes, block, width, found = 0, 1 << search.sizes.block_log2, width_of(values), search.found
    for k in range(len(found.ends)):
        start = k * block
        length = min(block, len(values) - start)
        if len(words.sums):
            first, n_words = words.first + (start * width >> 5), length * width >> 5
            words.sums[k] = partial_checksum(words.data, first, n_words)
        part, predictions = subarray(values, start, length), subarray_if_any(base, start, length)
        n_changes = _find_in_block(part, predictions, k, n_changes, search)
        if n_changes >= search.max_changes:
            return search.max_changes
        found.ends[k] = n_changes
    return n_changes


@kernel
def _find_in_block(values, base, k, n_changes, search):
    """Append what differs in block ``k`` to the ``n_changes`` before it, and return the number of changes then; other
    arguments as for :func:`find_differences`."""
    (block_log2, stream_log2), found, scratch = search.sizes, search.found, search.scratch
    n, stream_len, n_classes = len(values), 1 << stream_log2, len(search.thresholds)
    # All blocks but the last are whole, so that sub-streams are numbered through without gaps.
    before = k << block_log2 - stream_log2
    stride = min(stream_len, n) + CLASS_MARGIN
    for s in range((n + stream_len - 1) // stream_len):
        start = s * stream_len
        length = min(stream_len, n - start)
        part, predictions = subarray(values, start, length), subarray_if_any(base, start, length)
        n_more = _find_in_stream(part, predictions, search.thresholds, stride, scratch)
        # Before they are appended: `found` has room for no more than max_changes.
        if n_changes + n_more >= search.max_changes:
            return search.max_changes
        _count_changes(scratch, stride, n_classes, search.counts, found, n_changes)
        n_changes += n_more
        for c in range(n_classes):
            found.counts[before + s, c] = U32(scratch.numbers[c])
    return n_changes


@kernel
def gather_differences(values, base, places, found):
    """Note the values that differ from others, and where they are; return their number.

    Args:
        values: uintW[n].
        base: uintW[n].
        places: uint32[n + 3], result; what lies behind the last is overwritten, too.
        found: uintW[n], result.
    """
    n, at = len(values), 0
    for g in range(n // GROUP):
        fetch_ahead(values, g * GROUP)
        at = _note_places(differences(values, base, g * GROUP), g * GROUP, places, at)
    for i in range(n & -GROUP, n):
        places[at] = i
        # Written in any case; without a branch, the next one writes over it if it does not count.
        at += np.int64(values[i] != base[i])
    for k in range(at):
        found[k] = values[places[k]]
    return at


@kernel
def count_numbers(found, is_empty, counts):
    """Count the numbers of changes that sub-streams begin with.

    Args:
        found: :class:`sparse_types.Differences` of their blocks.
        is_empty: bool[n_classes], classes that have no changes in the whole frame.
        counts: int64[MAX_CATEGORIES], to which they are added.
    """
    for s in range(len(found.counts)):
        if _any_change(found, s):
            for c in range(len(is_empty)):
                if not is_empty[c]:
                    counts[category_of(np.int64(found.counts[s, c]))] += 1


@kernel
def _any_change(found, s):
    total = 0
    for c in range(found.counts.shape[1]):
        total += np.int64(found.counts[s, c])
    return total > 0


@kernel
def _write_stream(found, s, at, codes, table, out, stop):
    """Write a sub-stream from byte ``stop`` of ``out`` on.

    Args:
        found: :class:`sparse_types.Differences` of its block and others.
        s: Number of the sub-stream in them.
        at: Number of its first change in them.
        codes: The :class:`changes.ChangeCodes`.
        table: uint64[SHORT_GAPS], of the only class without a base, as ``fill_short_gaps`` writes it.
        out: uint8, with 8 bytes of margin.
        stop: Where it begins.

    Returns:
        (number of the change behind its last, byte behind it).
    """
    waiting, n_waiting, place = U64(0), 0, stop
    for c in range(len(codes.is_empty)):
        if not codes.is_empty[c]:
            count = np.int64(found.counts[s, c])
            category = category_of(count)
            waiting, n_waiting, place = write_number(
                waiting, n_waiting, place, count, category, codes.counts[category], out
            )  # fmt: skip
            if codes.n_kinds == 1:
                waiting, n_waiting, place = write_gaps(
                    waiting, n_waiting, place, found.gaps, at, at + count, (codes.classes[c], table), out
                )  # fmt: skip
                at += count
                continue
            for i in range(at, at + count):
                gap, step = np.int64(found.gaps[i]), found.steps[i]
                category, symbol = category_of(gap), step_symbol(step)
                kind = step_kind(symbol)
                entry = codes.classes[c, codes.n_kinds * category + kind]
                waiting, n_waiting, place = write_number(waiting, n_waiting, place, gap, category, entry, out)
                if kind == OTHER:
                    entry = codes.steps[symbol]
                    waiting, n_waiting, place = write_step(waiting, n_waiting, place, symbol, step, entry, out)
            at += count
    return at, finish_bits(waiting, n_waiting, place, out)


@kernel
def write_sparse_blocks(writing, found, first, begin, end, at, inner_bytes):
    """Write blocks that follow each other: as sparse ones, or raw where that is smaller; return their end.

    Args:
        writing: A :class:`sparse_types.SparseWriting`.
        found: :class:`sparse_types.Differences` of these blocks, and of others.
        first: Number of the block with which they begin.
        begin: First of the blocks in ``found`` to write.
        end: End of the blocks in ``found`` to write.
        at: Where the first block begins.
        inner_bytes: Bytes of its inner block, which is written already; 0 if blocks have none.
    """
    values, form, out = writing.values, writing.form, writing.out
    block, width = 1 << form.sizes.block_log2, width_of(values) // 8
    for k in range(begin, end):
        b = first + k
        n = min(block, form.n_values - b * block)
        # What it takes is known only when it is written; `out` has room for it, and raw values then overwrite it.
        stop = _write_sparse_block(writing, found, b, k, n, at, inner_bytes)
        if stop - at > BLOCK_HEADER + (n * width + 7 & ~7):
            stop = seal_block(out, at, store_raw(out, at, subarray(values, b * block, n), n, width), n, b)
        writing.block_bytes[b] = U32(stop - at)
        at = stop
    return at


@kernel
def _write_sparse_block(writing, found, b, k, n, at, inner_bytes):
    """Write block ``b``, which has ``n`` values and is number ``k`` of those in ``found``, and return its end; other
    arguments as for :func:`write_sparse_blocks`."""
    form, out, stream_bytes = writing.form, writing.out, writing.scratch.stream_bytes
    block_log2, stream_log2 = form.sizes
    n_streams, before = (n + (1 << stream_log2) - 1) >> stream_log2, k << block_log2 - stream_log2
    n_changes = found.ends[k - 1] if k else 0
    inner_end = at + CODED_HEADER + inner_bytes
    stop, table = inner_end, subarray(writing.scratch.short_gaps, 0, SHORT_GAPS)
    if writing.codes.n_kinds == 1:
        fill_short_gaps(writing.codes.classes[0], table)
    for s in range(n_streams):
        start = stop
        if _any_change(found, before + s):
            n_changes, stop = _write_stream(found, before + s, n_changes, writing.codes, table, out, stop)
        stream_bytes[s] = U32(stop - start)
    # A sub-stream without a change has no bytes at all, not even its counts (docs/format.md section 9): so the width is
    # that of the longest, and min_bytes 0, as soon as one is empty.
    min_bytes, length_width = min_and_width(stream_bytes, n_streams)
    header = SparseHeader(form.template, stop - inner_end, min_bytes, length_width, stream_log2, inner_bytes)
    write_sparse(out, at, form.codebook, header)
    stop = pack_numbers(stream_bytes, n_streams, min_bytes, length_width, out, stop)
    return seal_block(out, at, stop, n, b)
