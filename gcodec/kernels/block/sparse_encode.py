"""Find what differs in a block, and write it as a sparse one (docs/format.md section 9)."""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.masks import class_of, count_ones, differences, lowest_one, reach_group, reach_group_by_top
from ..core.scalar import U32, U64, wrap
from ..core.unaligned import subarray, subarray_if_any, width_of
from ..entropy.changes import (
    OTHER,
    category_of,
    finish_bits,
    ordered,
    step_kind,
    step_symbol,
    write_number,
    write_step,
)
from .class_ranks import WINDOW, fetch_ahead, have_tops, rank_groups, rank_of
from .header import CODED_HEADER, SparseHeader, min_and_width, pack_numbers, seal_block, store_raw, write_sparse
from .sparse_types import GROUP, copy_tail, first_values

CLASS_MARGIN = 48  #: room of a class besides a sub-stream's values: classes a page apart would share cache lines
_SURE_PLACES = 3  #: that are noted of a group whether or not there are so many


@kernel
def count_tops(values, base, shift, counts):
    """Count predictions by the highest bits of their magnitude, and of them those that differ.

    Args:
        values: uintW[n].
        base: uintW[n], the predictions.
        shift: Number of lower bits that are left away.
        counts: int64[2, n_tops], to which all predictions and those that differ are added.
    """
    mask = counts.shape[1] - 1
    for i in range(len(values)):
        top = np.int64(U64(base[i]) >> U64(shift)) & mask
        counts[0, top] += 1
        counts[1, top] += np.int64(values[i] != base[i])


@kernel
def _step_from(values, base, place):
    """Return the step from a prediction to its value, modulo 2**W; without a base, the value."""
    if base is None:
        return values[place]
    sign_bit = wrap(U64(U64(1) << U64(width_of(values) - 1)), values[place])
    return wrap(U64(ordered(values[place], sign_bit)) - U64(ordered(base[place], sign_bit)), values[place])


@inlined
def _note_places(changed, first, places, at):
    """Append the places that a mask marks, and return the number of places then.

    A few are written in any case, so that no branch hangs on whether there are one, two or none.
    """
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
    for i in range(n_found):
        place, c = np.int64(scratch.places[i]), 0
        rank = place
        if base is not None and len(thresholds) > 1:
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
    with_steps = counts.classes.shape[1] > len(counts.counts)
    for c in range(n_classes):
        for i in range(c * stride, c * stride + scratch.numbers[c]):
            gap, step = scratch.gaps[i], scratch.steps[i]
            found.gaps[at], found.steps[at] = gap, step
            at += 1
            category = category_of(np.int64(gap))
            if with_steps:
                symbol = step_symbol(step)
                kind = step_kind(symbol)
                counts.classes[c, 3 * category + kind] += 1
                if kind == OTHER:
                    counts.steps[symbol] += 1
            else:
                counts.classes[c, category] += 1


@kernel
def find_differences(values, base, thresholds, stream_len, scratch, found, counts, max_changes):
    """Find what differs in a block, and count the symbols of its codes.

    Args:
        values: uintW[n], the block.
        base: uintW[n], the predictions, or None for zeros.
        thresholds: Tuple of uintW: the magnitude at which each class ends; the last one's is not looked at.
        stream_len: Values per sub-stream.
        scratch: A :class:`sparse_types.SparseScratch`.
        found: A :class:`sparse_types.Differences`, result, with room for a change of every value.
        counts: A :class:`sparse_types.Counts`, to which symbols are added, but those that :func:`count_numbers` counts.
        max_changes: Number of changes at which to give up.

    Returns:
        The number of changes, at least ``max_changes`` if there are too many.
    """
    n, at = len(values), 0
    stride = min(stream_len, n) + CLASS_MARGIN
    for s in range((n + stream_len - 1) // stream_len):
        start = s * stream_len
        length = min(stream_len, n - start)
        predictions = subarray_if_any(base, start, length)
        part = subarray(values, start, length)
        n_changes = _find_in_stream(part, predictions, thresholds, stride, scratch)
        if at + n_changes >= max_changes:
            return max_changes
        _count_changes(scratch, stride, len(thresholds), counts, found, at)
        at += n_changes
        for c in range(len(thresholds)):
            found.counts[s, c] = U32(scratch.numbers[c])
    return at


@kernel
def count_numbers(found, is_empty, counts):
    """Count the numbers of changes that a block's sub-streams begin with.

    Args:
        found: :class:`sparse_types.Differences` of the block.
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
def _write_stream(found, s, at, codes, out, stop):
    """Write a sub-stream from byte ``stop`` of ``out`` on.

    Args:
        found: :class:`sparse_types.Differences` of the block.
        s: Number of the sub-stream.
        at: Number of its first change in the block.
        codes: The :class:`changes.ChangeCodes`.
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
            for i in range(at, at + count):
                gap, step = np.int64(found.gaps[i]), found.steps[i]
                category, symbol, kind = category_of(gap), 0, 0
                if codes.n_kinds > 1:
                    symbol = step_symbol(step)
                    kind = step_kind(symbol)
                entry = codes.classes[c, codes.n_kinds * category + kind]
                waiting, n_waiting, place = write_number(waiting, n_waiting, place, gap, category, entry, out)
                if kind == OTHER:
                    entry = codes.steps[symbol]
                    waiting, n_waiting, place = write_step(waiting, n_waiting, place, symbol, step, entry, out)
            at += count
    return at, finish_bits(waiting, n_waiting, place, out)


@kernel
def write_sparse_block(found, codes, form, scratch, out, at, inner_end):
    """Write a sparse block at ``at``; return its end.

    Args:
        found: :class:`sparse_types.Differences` of the block.
        codes: The :class:`changes.ChangeCodes` of its codebook.
        form: A :class:`sparse_types.SparseForm`.
        scratch: A :class:`sparse_types.SparseScratch`.
        out: uint8, with 8 bytes of margin.
        at: Where the block begins.
        inner_end: Where its inner block ends, which is written already; ``at + CODED_HEADER`` if it has none.
    """
    n_streams = (form.n_values + (1 << form.stream_log2) - 1) >> form.stream_log2
    n_changes, stop = 0, inner_end
    for s in range(n_streams):
        start = stop
        if _any_change(found, s):
            n_changes, stop = _write_stream(found, s, n_changes, codes, out, stop)
        scratch.stream_bytes[s] = U32(stop - start)
    min_bytes, length_width = min_and_width(scratch.stream_bytes, n_streams)
    inner_bytes = inner_end - (at + CODED_HEADER)
    header = SparseHeader(form.template, stop - inner_end, min_bytes, length_width, form.stream_log2, inner_bytes)
    write_sparse(out, at, form.codebook, header)
    stop = pack_numbers(scratch.stream_bytes, n_streams, min_bytes, length_width, out, stop)
    return seal_block(out, at, stop, form.n_values, form.number)


@kernel
def write_raw_block(values, b, out, at):
    """Write block number ``b`` as it is, and return its end."""
    n = len(values)
    return seal_block(out, at, store_raw(out, at, values, n, width_of(values) // 8), n, b)
