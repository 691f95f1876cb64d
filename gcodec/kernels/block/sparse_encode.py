"""Find what differs in a block, and write it as a sparse one (docs/format.md section 9)."""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.masks import count_group, count_ones, differences, lowest_one
from ..core.scalar import U8, U32, U64, wrap
from ..core.unaligned import subarray, subarray_if_any, width_of
from ..entropy.changes import OTHER, category_of, finish_bits, ordered, step_symbol, write_number, write_step
from .header import CODED_HEADER, SparseHeader, min_and_width, pack_numbers, seal_block, store_raw, write_sparse
from .sparse_types import ALL, GROUP, copy_tail, first_values


@kernel
def _step_from(values, base, place):
    """Return the step from a prediction to its value, modulo 2**W; without a base, the value."""
    if base is None:
        return values[place]
    sign_bit = wrap(U64(U64(1) << U64(width_of(values) - 1)), values[place])
    return wrap(U64(ordered(values[place], sign_bit)) - U64(ordered(base[place], sign_bit)), values[place])


@inlined
def _note_changes(values, base, first, changed, c, scratch):
    """Note the changes of class ``c`` in the group from ``first`` on, of whose values it has been counted already."""
    at, after, members = scratch.state[0], scratch.after[c], scratch.members[c]
    before = scratch.passed[c] - count_ones(members)
    left = U64(members & changed)
    while left:
        place = lowest_one(left)
        rank = before + count_ones(U64(members & U64(U64(U64(1) << U64(place)) - U64(1))))
        scratch.classes[at] = U8(c)
        scratch.gaps[at] = U32(rank - after)
        scratch.steps[at] = _step_from(values, base, first + place)
        after = rank + 1
        at += 1
        left = U64(left & U64(left - U64(1)))
    scratch.numbers[c] += at - scratch.state[0]
    scratch.after[c], scratch.state[0] = after, at


@kernel
def _find_in_groups(values, base, n_groups, valid, thresholds, scratch):
    """Note the changes of groups, of each of which the mask ``valid`` says which values there are."""
    for first in range(0, n_groups * GROUP, GROUP):
        changed = U64(differences(values, base, first) & valid)
        classes = count_group(base, first, valid, thresholds, changed, scratch.passed, scratch.members)
        while classes:
            c = lowest_one(classes)
            _note_changes(values, base, first, changed, c, scratch)
            classes = U64(classes & U64(classes - U64(1)))


@kernel
def _find_in_stream(values, base, thresholds, scratch):
    """Note the changes of a sub-stream, in the order of groups; ``scratch.state[0]`` is their number."""
    n = len(values)
    scratch.state[0] = 0
    for c in range(len(thresholds)):
        scratch.passed[c], scratch.after[c], scratch.numbers[c] = 0, 0, 0
    whole = n & -GROUP
    _find_in_groups(values, base, n // GROUP, ALL, thresholds, scratch)
    if whole < n:
        copy_tail(values, whole, scratch.tail, 0)
        copy_tail(base, whole, scratch.tail, GROUP)
        tail, valid = subarray(scratch.tail, 0, GROUP), first_values(n - whole)
        if base is None:
            _find_in_groups(tail, None, 1, valid, thresholds, scratch)
        else:
            _find_in_groups(tail, subarray(scratch.tail, GROUP, GROUP), 1, valid, thresholds, scratch)


@kernel
def _sort_changes(scratch, counts, found, at):
    """Append the changes of a sub-stream to those of the block, by class, and count their symbols."""
    with_steps = counts.classes.shape[1] > len(counts.counts)
    place = at
    for c in range(len(counts.classes)):
        scratch.after[c] = place
        place += scratch.numbers[c]
    for i in range(scratch.state[0]):
        c = np.int64(scratch.classes[i])
        place = scratch.after[c]
        scratch.after[c] = place + 1
        found.gaps[place], found.steps[place] = scratch.gaps[i], scratch.steps[i]
        category = category_of(np.int64(scratch.gaps[i]))
        if with_steps:
            symbol = step_symbol(scratch.steps[i])
            kind = symbol - 1 if 1 <= symbol <= 2 else OTHER
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
    for s in range((n + stream_len - 1) // stream_len):
        start = s * stream_len
        length = min(stream_len, n - start)
        predictions = subarray_if_any(base, start, length)
        _find_in_stream(subarray(values, start, length), predictions, thresholds, scratch)
        if at + scratch.state[0] >= max_changes:
            return max_changes
        _sort_changes(scratch, counts, found, at)
        at += scratch.state[0]
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
                    kind = symbol - 1 if 1 <= symbol <= 2 else OTHER
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
