"""Counting heads before anything is coded: histograms of blocks, in the bins of :mod:`code_costs`.

Where values have one level and at most 9 head bits, each sub-stream is counted once, by its heads as they are: what
counts them relative to one head or another is the same row of numbers, turned.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import NARROW, U16, U32, U64
from ..core.unaligned import fetch_values, view, view_if_any, width_of
from ..heads.column_references import fill_columns, remove_columns
from ..heads.means import mean_head

PIECE = 512  #: values that are looked at together
MAX_HEADS = 512  #: that are counted as they are
PART = MAX_HEADS + 32  #: counters of a part: one per head, one for zero
PARTS, BOTH = 4, 8  #: in which a histogram of bins is counted, and two


@kernel
def find_bins(values, levels, n_levels, origin, head_shift, head_mask, window, center, bins):
    """The bin of each value in a histogram of heads relative to ``origin``: ``bins``: uint16[n], result. Levels may be
    beyond ``n_levels``, as nobody has looked at them before."""
    n = len(values)
    result, half = view(bins, 0, n), U32((head_mask + 1) >> 1)
    lift = U32(half - U32(origin))
    lowest, mask, size = U32(np.int64(half) - center), U32(head_mask), U32(window)
    shift = U32(head_shift) & NARROW
    if width_of(values) == 64:
        for i in range(n):
            word = U64(values[i])
            there = U32(U32(U32(U32(word >> U64(head_shift)) + lift) & mask) - lowest)
            outside = U32(1) if there >= size else U32(there + U32(2))
            result[i] = U16(outside if word else U32(0))
    else:
        for i in range(n):
            bits = U32(values[i])
            place = U32(U32(U32(U32(bits >> shift) + lift) & mask) - lowest)
            found = U32(1) if place >= size else U32(place + U32(2))
            result[i] = U16(found if bits else U32(0))
    if levels is not None:
        most = U16(n_levels - 1)
        for i in range(n):
            result[i] += U16(U16(window) * min(U16(levels[i]), most)) if result[i] > U16(1) else U16(0)


@kernel
def count_bins(values, levels, origin, spec, bins, counts, first):
    """Count values in the histogram of heads relative to ``origin``: in four parts, ``counts[first ...]``, so that one
    addition need not wait for the last. ``bins``: uint16[n], scratch."""
    n, size = len(values), counts.shape[1]
    found = view(bins, 0, n)
    a, b = view(counts, first * size, size), view(counts, (first + 1) * size, size)
    c, d = view(counts, (first + 2) * size, size), view(counts, (first + 3) * size, size)
    n_levels = (size - 2) // spec.window
    find_bins(values, levels, n_levels, origin, spec.head_shift, spec.head_mask, spec.window, spec.center, found)
    whole = n & ~3
    for i in range(0, whole, 4):
        a[found[i]] += U32(1)
        b[found[i + 1]] += U32(1)
        c[found[i + 2]] += U32(1)
        d[found[i + 3]] += U32(1)
    for i in range(whole, n):
        a[found[i]] += U32(1)


@kernel
def sum_parts(counts, first, result):
    """What :func:`count_bins` has counted."""
    size = len(result)
    a, b = view(counts, first * size, size), view(counts, (first + 1) * size, size)
    c, d = view(counts, (first + 2) * size, size), view(counts, (first + 3) * size, size)
    for i in range(size):
        result[i] = (a[i] + b[i]) + (c[i] + d[i])


@kernel
def count_heads(values, head_shift, head_mask, bins, parts, counted, total):
    """Count heads as they are, zeros after the last: ``counted``: uint32[head_mask + 2], result, also added to
    ``total``. Returns the least and the greatest head of values that are not zero; others of ``counted`` are left as
    they were, but for that of zeros. ``bins``: uint16[n], scratch; ``parts``: uint16[4 * PART], four parts of the
    counts, all zero before and after."""
    n, found, shift, mask = len(values), view(bins, 0, len(values)), U32(head_shift) & NARROW, U32(head_mask)
    least, most, zero = mask, U32(0), head_mask + 1
    for i in range(n):
        bits = U32(values[i])
        head = U32(U32(bits >> shift) & mask)
        most = max(most, head)
        least = min(least, head if bits else mask)
        found[i] = U16(head if bits else U32(mask + U32(1)))
    a, b, c, d = view(parts, 0, PART), view(parts, PART, PART), view(parts, 2 * PART, PART), view(parts, 3 * PART, PART)
    whole = n & ~3
    for i in range(0, whole, 4):
        a[found[i]] += U16(1)
        b[found[i + 1]] += U16(1)
        c[found[i + 2]] += U16(1)
        d[found[i + 3]] += U16(1)
    for i in range(whole, n):
        a[found[i]] += U16(1)
    low, size = np.int64(least), np.int64(most) - np.int64(least) + 1
    counted[zero] = U32(a[zero]) + U32(b[zero]) + U32(c[zero]) + U32(d[zero])
    total[zero] += counted[zero]
    a[zero], b[zero], c[zero], d[zero] = U16(0), U16(0), U16(0), U16(0)
    a, b, c, d = view(a, low, size), view(b, low, size), view(c, low, size), view(d, low, size)
    own, sums = view(counted, low, size), view(total, low, size)
    for k in range(size):
        own[k] = U32(a[k]) + U32(b[k]) + U32(c[k]) + U32(d[k])
        sums[k] += own[k]
    for k in range(size):
        a[k] = U16(0)
        b[k] = U16(0)
        c[k] = U16(0)
        d[k] = U16(0)
    return low, low + size - 1


@kernel
def add_rotated(counted, least, most, head_mask, origin, window, center, target):
    """Add counts of heads as they are, from the least to the most and of zeros, to a histogram of heads relative to
    ``origin``."""
    half, size = (head_mask + 1) >> 1, most - least + 1
    low = ((least - origin + half) & head_mask) - half + center
    if low >= 0 and low + size <= min(window, center + half):  # one row of bins
        some, own = view(counted, least, size), view(target, 2 + low, size)
        for k in range(size):
            own[k] += some[k]
    else:
        for head in range(least, most + 1):
            place = ((head - origin + half) & head_mask) - half + center
            target[2 + place if 0 <= place < window else 1] += counted[head]
    target[0] += counted[head_mask + 1]


@kernel
def count_stream(values, spec, bins, parts, counted, whole, by_stream):
    """Add a sub-stream to the block's counts of heads as they are and to its histogram relative to each sub-stream's
    mean. Returns the mean head of values that are not zero, their number, and the least and the greatest head."""
    mask = spec.head_mask
    mean, number = mean_head(values, spec.head_shift, mask)
    least, most = mask, 0
    if number == 0:  # a run takes no bits, but what it repeats has to have a code
        whole[mask + 1] += U32(1)
        if spec.by_stream:
            by_stream[0] += U32(1)
    else:
        least, most = count_heads(values, spec.head_shift, mask, bins, parts, counted, whole)
        if spec.by_stream:
            add_rotated(counted, least, most, mask, mean, spec.window, spec.center, by_stream)
    return mean, number, least, most


@kernel
def fetch_next(values, place, end, spec):
    """Have what is looked at next fetched: pieces lie too far apart for the processor to guess."""
    ahead = place + spec.every * spec.piece
    if ahead >= end:  # in the next block, where they begin a piece later
        ahead += spec.piece
    fetch_values(values, ahead, spec.piece)


@kernel
def count_block_in_one_pass(values, first, end, spec, columns, scratch, by_block, by_stream):
    """Histograms of one block, values ``first ... end`` of which one in ``spec.every`` pieces is looked at. Returns the
    mean head, -1 if all are zeros."""
    # Views, which nobody counts the users of: counting takes longer than the work on a sub-stream.
    bins, parts = view(scratch.bins, 0, spec.stream), view(scratch.parts, 0, 4 * PART)
    counted, whole = view(scratch.counted, 0, PART), view(scratch.whole, 0, PART)
    own, less = view(scratch.own, 0, spec.piece), view(scratch.shifted, 0, spec.piece)
    spans, heads = view(columns.spans, 0, len(columns.spans)), view(columns.heads, 0, len(columns.heads))
    for i in range(spec.head_mask + 2):
        whole[i] = U32(0)
    total, number, least, most = 0, 0, spec.head_mask, 0
    for place in range(first, end, spec.every * spec.piece):
        fetch_next(values, place, end, spec)
        size = min(spec.piece, end - place)
        some = view(values, place, size)
        if (
            len(spans)
            and fill_columns(spans, heads, place, size, own)
            and remove_columns(some, size, own, spec.head_shift, spec.head_mask, spec.infinity, less)
        ):
            some = view(less, 0, size)
        for start in range(0, size, spec.stream):
            n = min(size - start, spec.stream)
            mean, others, low, high = count_stream(view(some, start, n), spec, bins, parts, counted, whole, by_stream)
            total += mean * others
            number += others
            least, most = min(least, low), max(most, high)
    base = total // number if number else -1
    if spec.by_block:
        add_rotated(whole, least, most, spec.head_mask, base, spec.window, spec.center, by_block)
    return base


@kernel
def count_block_in_two_passes(values, levels, first, end, spec, columns, scratch, by_block, by_stream):
    """The same for any type and levels."""
    means, numbers, moved, counts, stream = scratch.means, scratch.numbers, scratch.moved, scratch.counts, spec.stream
    total, number, s = 0, 0, 0
    for place in range(first, end, spec.every * spec.piece):
        fetch_next(values, place, end, spec)
        if levels is not None:
            fetch_next(levels, place, end, spec)
        for start in range(place, min(place + spec.piece, end), stream):
            n = min(end - start, stream)
            some, less = view(values, start, n), view(scratch.shifted, s * stream, n)
            moved[s] = (
                len(columns.spans) > 0
                and fill_columns(columns.spans, columns.heads, start, n, scratch.own)
                and remove_columns(some, n, scratch.own, spec.head_shift, spec.head_mask, spec.infinity, less)
            )
            means[s], numbers[s] = mean_head(less if moved[s] else some, spec.head_shift, spec.head_mask)
            total += means[s] * numbers[s]
            number += numbers[s]
            s += 1
    base = total // number if number else -1
    clear = view(counts, 0, BOTH * len(by_stream if spec.by_stream else by_block))
    for i in range(len(clear)):
        clear[i] = U32(0)
    s = 0
    for place in range(first, end, spec.every * spec.piece):
        for start in range(place, min(place + spec.piece, end), stream):
            n = min(end - start, stream)
            if numbers[s] == 0:
                counts[0, 0] += U32(1)
                counts[PARTS, 0] += U32(1)
            else:
                some = view(scratch.shifted, s * stream, n) if moved[s] else view(values, start, n)
                own = view_if_any(levels, start, n)
                if spec.by_block:
                    count_bins(some, own, base, spec, scratch.bins, counts, 0)
                if spec.by_stream:
                    count_bins(some, own, means[s], spec, scratch.bins, counts, PARTS)
            s += 1
    if spec.by_block:
        sum_parts(counts, 0, by_block)
    if spec.by_stream:
        sum_parts(counts, PARTS, by_stream)
    return base


@kernel
def count_sample(values, levels, spec, columns, scratch, begin, stop, bases, by_block, by_stream):
    """Histograms of blocks ``begin * step``, ``(begin + 1) * step`` ... before ``stop * step``, from every
    ``every``-th piece of each; the pieces are the same for all ``stream`` up to PIECE values.

    ``values``: uintW[n_values]; ``levels``: uint8[n_values], or None (all of level 0); ``spec``: a
    :class:`bundles.SampleSpec`; ``columns``: of which references are removed first; ``scratch``: a
    :class:`bundles.SampleScratch`; results, a row for each block: ``bases``: int64, mean head of what was seen, -1
    where that was zeros only; ``by_block``, ``by_stream``: uint32[n_rows, n_bins], zeroed, relative to the block's
    mean head and to each sub-stream's own; one that the spec does not ask for may have no bins.
    """
    n_bins = max(by_block.shape[1], by_stream.shape[1])
    for row in range(begin, stop):
        b = row * spec.step
        end = min(len(values), (b + 1) * spec.block)
        first = b * spec.block + (b % spec.every) * spec.piece
        if first >= end:
            first = b * spec.block
        own, others = view(by_block, row * n_bins, n_bins), view(by_stream, row * n_bins, n_bins)
        if levels is None:
            if width_of(values) <= 32:
                bases[row] = count_block_in_one_pass(values, first, end, spec, columns, scratch, own, others)
            else:
                bases[row] = count_block_in_two_passes(values, None, first, end, spec, columns, scratch, own, others)
        else:
            bases[row] = count_block_in_two_passes(values, levels, first, end, spec, columns, scratch, own, others)
