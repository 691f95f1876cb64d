"""Looking at the data before coding it: histograms of symbols per block, and which blocks share a codebook.

Histograms count relative heads in bins: bin 0 is zero, bin 1 all that lies outside the window, and bin
``2 + level * window + relative head + center`` the rest, where window and center are :data:`WINDOW` and
:data:`CENTER` for one level and :data:`LADDER_WINDOW` and :data:`LADDER_CENTER` for several.
"""

from __future__ import annotations

import numpy as np

from .blocks import mean_head
from .columns import fill_columns, remove_columns
from .jit import kernel
from .memory import view, view_if_any, width_of
from .scalar import U16, U32, U64, log2_fixed

WINDOW, CENTER = 256, 128
LADDER_WINDOW, LADDER_CENTER = 64, 44
PIECE = 512  #: values that are looked at together


@kernel
def find_bins(values, levels, origin, head_shift, head_mask, window, center, bins):
    """The bin of each value in a histogram of heads relative to ``origin``: ``bins``: uint16[n], result."""
    n = len(values)
    result, half = view(bins, 0, n), U32((head_mask + 1) >> 1)
    lift = U32(half - U32(origin))
    lowest, mask, size = U32(np.int64(half) - center), U32(head_mask), U32(window)
    if width_of(values) == 64:
        for i in range(n):
            word = U64(values[i])
            there = U32(U32(U32(U32(word >> U64(head_shift)) + lift) & mask) - lowest)
            outside = U32(1) if there >= size else U32(there + U32(2))
            result[i] = U16(outside if word else U32(0))
    else:
        for i in range(n):
            bits = U32(values[i])
            place = U32(U32(U32(U32(bits >> U32(head_shift)) + lift) & mask) - lowest)
            found = U32(1) if place >= size else U32(place + U32(2))
            result[i] = U16(found if bits else U32(0))
    if levels is not None:
        for i in range(n):
            result[i] += U16(window * levels[i]) if result[i] > U16(1) else U16(0)


@kernel
def count_heads(values, levels, base, reference, head_shift, head_mask, window, center, bins, counts):
    """Count values in two histograms, of heads relative to ``base`` and to ``reference``. ``bins``: uint16[2 n],
    scratch; ``counts``: uint32[4, n_bins], each histogram in two parts, so that one addition need not wait for the
    last."""
    n = len(values)
    first, second = view(bins, 0, n), view(bins, n, n)
    find_bins(values, levels, base, head_shift, head_mask, window, center, first)
    find_bins(values, levels, reference, head_shift, head_mask, window, center, second)
    for i in range(0, n - 1, 2):
        counts[0, first[i]] += U32(1)
        counts[1, first[i + 1]] += U32(1)
        counts[2, second[i]] += U32(1)
        counts[3, second[i + 1]] += U32(1)
    if n & 1:
        counts[0, first[n - 1]] += U32(1)
        counts[2, second[n - 1]] += U32(1)


@kernel
def survey(
    values,
    levels,
    n_values,
    block,
    stream,
    every,
    step,
    begin,
    stop,
    head_shift,
    head_mask,
    window,
    center,
    columns,
    infinity,
    scratch,
    bases,
    by_block,
    by_stream,
):
    """Histograms of blocks ``begin * step``, ``(begin + 1) * step`` ... before ``stop * step``, from every
    ``every``-th piece of each; the pieces are the same for all ``stream`` up to PIECE values.

    ``values``: uintW[n_values]; ``levels``: uint8[n_values], or None (all of level 0); ``columns``: of which
    references are removed first; ``scratch``: a :class:`parameters.Surveying`; results, a row for each block:
    ``bases``: int64, mean head of what was seen, -1 where that was zeros only; ``by_block``, ``by_stream``:
    uint32[n_rows, n_bins], relative to the block's mean head and to each sub-stream's own.
    """
    piece = max(stream, PIECE)
    means, numbers, moved, counts = scratch.means, scratch.numbers, scratch.moved, scratch.counts
    for row in range(begin, stop):
        b = row * step
        end = min(n_values, (b + 1) * block)
        first = b * block + (b % every) * piece
        if first >= end:
            first = b * block
        total, number, s = 0, 0, 0
        for place in range(first, end, every * piece):
            for start in range(place, min(place + piece, end), stream):
                count = min(end - start, stream)
                some, less = view(values, start, count), view(scratch.shifted, s * stream, count)
                moved[s] = (
                    len(columns.spans) > 0
                    and fill_columns(columns.spans, columns.heads, start, count, scratch.own)
                    and remove_columns(some, count, scratch.own, head_shift, head_mask, infinity, less)
                )
                means[s], numbers[s] = mean_head(less if moved[s] else some, head_shift, head_mask)
                total += means[s] * numbers[s]
                number += numbers[s]
                s += 1
        base = total // number if number else -1
        for k in range(4):
            for i in range(by_block.shape[1]):
                counts[k, i] = U32(0)
        s = 0
        for place in range(first, end, every * piece):
            for start in range(place, min(place + piece, end), stream):
                count = min(end - start, stream)
                if numbers[s] == 0:  # a run takes no bits, but what it repeats has to have a code
                    counts[0, 0] += U32(1)
                    counts[2, 0] += U32(1)
                else:
                    count_heads(
                        view(scratch.shifted, s * stream, count) if moved[s] else view(values, start, count),
                        view_if_any(levels, start, count),
                        base,
                        means[s],
                        head_shift,
                        head_mask,
                        window,
                        center,
                        scratch.bins,
                        counts,
                    )
                s += 1
        bases[row] = base
        for i in range(by_block.shape[1]):
            by_block[row, i] = counts[0, i] + counts[1, i]
            by_stream[row, i] = counts[2, i] + counts[3, i]


@kernel
def entropy_bits(histogram):
    """Total bits, in 1/256, of coding a histogram's events at its own entropy."""
    total = U64(0)
    bits = U64(0)
    for i in range(len(histogram)):
        if histogram[i]:
            total += U64(histogram[i])
            bits += U64(histogram[i]) * U64(log2_fixed(histogram[i]))
    return total * U64(log2_fixed(total)) - bits if total else U64(0)


@kernel
def _cost_table(counts, cost):
    """Bits (1/256) per event under a code fitted to ``counts`` with a pseudo-count of 1/8 for every bin."""
    total = U64(0)
    for i in range(len(counts)):
        total += U64(counts[i]) * U64(8) + U64(1)
    whole = log2_fixed(total)
    for i in range(len(counts)):
        cost[i] = whole - log2_fixed(U64(counts[i]) * U64(8) + U64(1))


@kernel
def _assign(histograms, n_clusters, cost, choice, spent):
    """Cheapest cluster of every block (lowest number on ties); returns the total in 1/256 bits."""
    total = U64(0)
    for b in range(histograms.shape[0]):
        for k in range(n_clusters):
            spent[k] = 0
        for i in range(histograms.shape[1]):
            count = U64(histograms[b, i])
            if count:
                for k in range(n_clusters):
                    spent[k] += count * U64(cost[k, i])
        best = 0
        for k in range(1, n_clusters):
            if spent[k] < spent[best]:
                best = k
        choice[b] = best
        total += spent[best]
    return total


@kernel
def _sum_clusters(histograms, n_clusters, choice, sums):
    for k in range(n_clusters):
        for i in range(sums.shape[1]):
            sums[k, i] = 0
    for b in range(histograms.shape[0]):
        for i in range(histograms.shape[1]):
            sums[choice[b], i] += histograms[b, i]


@kernel
def cluster(histograms, max_clusters, table_cost, choice, sums, cost, spent, own):
    """Group blocks by distribution: start with one group and split off the worst-served block while it pays.

    ``histograms``: uint32[n_blocks, n_bins]; ``table_cost``: 1/256 bits that one more codebook costs, in units of
    what was counted; ``choice``: int64[n_blocks], result; ``sums``: uint32[max_clusters + 1, n_bins], result, the
    groups' histograms; ``cost``: int64[max_clusters + 1, n_bins], ``spent``: uint64[max_clusters + 1] and ``own``:
    uint64[n_blocks], scratch. Returns the number of groups. Integer arithmetic only: the result is the same on every
    machine.
    """
    n_blocks = histograms.shape[0]
    for b in range(n_blocks):
        choice[b] = 0
        own[b] = entropy_bits(histograms[b])
    n = np.int64(1)  # typed: a literal would compile what it is passed to once more
    _sum_clusters(histograms, n, choice, sums)
    _cost_table(sums[0], cost[0])
    total = _assign(histograms, n, cost, choice, spent)
    while n < max_clusters and n < n_blocks:
        worst, excess = -1, U64(0)
        for b in range(n_blocks):
            mine = U64(0)
            for i in range(histograms.shape[1]):
                mine += U64(histograms[b, i]) * U64(cost[choice[b], i])
            if mine > own[b] and mine - own[b] > excess:
                worst, excess = b, mine - own[b]
        if worst < 0 or excess * U64(n_blocks) < table_cost:
            break
        for i in range(histograms.shape[1]):
            sums[n, i] = histograms[worst, i]
        _cost_table(sums[n], cost[n])
        for _ in range(2):
            _assign(histograms, n + 1, cost, choice, spent)
            _sum_clusters(histograms, n + 1, choice, sums)
            for k in range(n + 1):
                _cost_table(sums[k], cost[k])
        now = _assign(histograms, n + 1, cost, choice, spent)
        if now + table_cost >= total:
            _assign(histograms, n, cost, choice, spent)
            _sum_clusters(histograms, n, choice, sums)
            break
        total = now
        n += 1
    return n


@kernel
def compare_references(by_block, by_stream, some):
    """Entropies, in 1/256 bits, of heads relative to each block's mean (``by_block``) and to each sub-stream's
    (``by_stream``, both uint32[n_blocks, n_bins]), and the number of heads: of the rows that are marked in ``some``
    (bool[n_blocks])."""
    plain, relative, number = U64(0), U64(0), U64(0)
    for b in range(by_block.shape[0]):
        if some[b]:
            plain += entropy_bits(by_block[b])
            relative += entropy_bits(by_stream[b])
            for i in range(by_block.shape[1]):
                number += U64(by_block[b, i])
    return plain, relative, number


@kernel
def rows_in_use(counts, used):
    """Rows of uint32[n_blocks, n_bins] that count anything but zeros and outsiders: their number, and which in
    ``used`` (int64[n_blocks])."""
    n = 0
    for b in range(counts.shape[0]):
        for i in range(2, counts.shape[1]):
            if counts[b, i]:
                used[n] = b
                n += 1
                break
    return n


@kernel
def choose(histograms, costs, choice):
    """The cheapest codebook of every block. ``costs``: uint32[n_codebooks, n_bins], bits; ``choice``:
    int64[n_blocks], result."""
    for b in range(histograms.shape[0]):
        best = U64(0)
        for k in range(costs.shape[0]):
            spent = U64(0)
            for i in range(costs.shape[1]):
                spent += U64(histograms[b, i]) * U64(costs[k, i])
            if k == 0 or spent < best:
                best = spent
                choice[b] = k
