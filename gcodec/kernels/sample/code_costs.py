"""Estimate from histograms how many bits a code takes, and group blocks that can share a codebook.

All of it plans: what it chooses stands in the frame (docs/format.md sections 5 to 7), how it chooses does not. Bits are
integers in units of 1/256, so that all machines choose the same. Histograms count relative heads in bins, where window
and center are :data:`WINDOW` and :data:`CENTER` for one level and :data:`LADDER_WINDOW` and :data:`LADDER_CENTER` for
several:

    bin 2 + level * window + center + relative head

    bin        0     | 1             | 2         ...  2 + center  ...  window + 1 | window + 2  ...
    counts     zeros | heads outside | -center   ...  0           ...             | -center     ...
                     | of the window | relative heads of level 0                  | of level 1
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import allocating, kernel
from ..core.logarithms import log2_fixed
from ..core.scalar import U32, U64
from ..core.unaligned import subarray

WINDOW, CENTER = 256, 128
LADDER_WINDOW, LADDER_CENTER = 64, 44
N_SPECIAL = 2  #: bins before the windows: zeros, and all that lies outside


@kernel
def entropy_fixed(histogram):
    """Return the bits, in 1/256, of coding a histogram's events at its own entropy.

    That is n log2(n) - Σ c log2(c), with counts c that add up to n. ``histogram``: uint32[n_bins]; the result: uint64.
    """
    total = U64(0)
    bits = U64(0)
    for i in range(len(histogram)):
        if histogram[i]:
            total += U64(histogram[i])
            bits += U64(histogram[i]) * U64(log2_fixed(histogram[i]))
    # Never negative, although logarithms are rounded down: log2_fixed does not fall, so that c * log2(c) is at most
    # c * log2(total).
    return total * U64(log2_fixed(total)) - bits if total else U64(0)


@kernel
def _cost_table(counts, cost):
    """Find the bits, in 1/256, that an event of each bin takes under a code that is fitted to counts.

    A pseudo-count of 1/8 in every bin makes events that were not counted costly, but not impossible. ``counts``:
    uint32[n_bins]; ``cost``: uint32[n_bins], result.
    """
    total = U64(0)
    for i in range(len(counts)):
        # In eighths, of which the pseudo-count is one.
        total += U64(counts[i]) * U64(8) + U64(1)
    # log2(total / count): the length that an optimal code would give the bin, if lengths could be fractions.
    whole = log2_fixed(total)
    for i in range(len(counts)):
        cost[i] = whole - log2_fixed(U64(counts[i]) * U64(8) + U64(1))


@kernel
def cost_of(counts, cost):
    """Return the bits, in 1/256, that counted events take: Σ counts · cost, of uint32[n_bins] each, as uint64."""
    total = U64(0)
    for i in range(len(counts)):
        total += U64(counts[i]) * U64(cost[i])
    return total


@kernel
def _assign(histograms, n_clusters, cost, choice):
    """Find the cheapest cluster of every block, the first of equals.

    Args:
        histograms: uint32[n_blocks, n_bins].
        cost: uint32[n_clusters or more, n_bins], of each cluster as :func:`_cost_table` leaves it.
        choice: int64[n_blocks], result.

    Returns:
        The bits of all blocks together, in 1/256.
    """
    total, n_bins = U64(0), histograms.shape[1]
    for b in range(histograms.shape[0]):
        row, min_spent, best = subarray(histograms, b * n_bins, n_bins), U64(0), 0
        for k in range(n_clusters):
            spent = cost_of(row, subarray(cost, k * n_bins, n_bins))
            # Less, not as little: of clusters that cost the same the first one is kept, on every machine.
            if k == 0 or spent < min_spent:
                min_spent, best = spent, k
        choice[b] = best
        total += min_spent
    return total


@kernel
def _sum_clusters(histograms, n_clusters, choice, sums):
    """Add up the histograms of each cluster's blocks, into ``sums``, uint32[n_clusters or more, n_bins]; other
    arguments as of :func:`_assign`."""
    n_bins = histograms.shape[1]
    for k in range(n_clusters):
        for i in range(n_bins):
            sums[k, i] = 0
    for b in range(histograms.shape[0]):
        target, row = subarray(sums, choice[b] * n_bins, n_bins), subarray(histograms, b * n_bins, n_bins)
        for i in range(n_bins):
            target[i] += row[i]


@allocating
def _cluster(histograms, max_clusters, table_cost, sums):
    """Do the work of :func:`cluster`, for histograms whose bins all count something in some block.

    Args:
        histograms: uint32[n_blocks, n_bins].
        max_clusters: Max number of groups.
        table_cost: Bits, in 1/256, that one more codebook costs.
        sums: uint32[max_clusters + 1, n_bins], result: the groups' histograms.

    Returns:
        The number of groups.
    """
    n_blocks, n_bins = histograms.shape
    choice, entropy = np.zeros(n_blocks, np.int64), np.empty(n_blocks, np.uint64)
    cost = np.empty((max_clusters + 1, n_bins), np.uint32)
    # What a block takes with a codebook of its own does not depend on the groups.
    for b in range(n_blocks):
        entropy[b] = entropy_fixed(histograms[b])
    n = np.int64(1)  # typed: a literal would compile what it is passed to once more
    _sum_clusters(histograms, n, choice, sums)
    _cost_table(sums[0], cost[0])
    total = _assign(histograms, n, cost, choice)
    while n < max_clusters and n < n_blocks:
        # The block that is farthest from what a codebook of its own would take begins a group.
        worst, excess = -1, U64(0)
        for b in range(n_blocks):
            spent = cost_of(subarray(histograms, b * n_bins, n_bins), subarray(cost, choice[b] * n_bins, n_bins))
            if spent > entropy[b] and spent - entropy[b] > excess:
                worst, excess = b, spent - entropy[b]
        # Even if every block had as much to gain as the worst one, a codebook more would not pay.
        if worst < 0 or excess * U64(n_blocks) < table_cost:
            break
        for i in range(n_bins):
            sums[n, i] = histograms[worst, i]
        _cost_table(sums[n], cost[n])
        for _ in range(2):  # as k-means does: groups depend on tables, and tables on groups
            _assign(histograms, n + 1, cost, choice)
            _sum_clusters(histograms, n + 1, choice, sums)
            for k in range(n + 1):
                _cost_table(sums[k], cost[k])
        total_with_one_more = _assign(histograms, n + 1, cost, choice)
        if total_with_one_more + table_cost >= total:  # it does not pay: back to one group less
            _assign(histograms, n, cost, choice)
            _sum_clusters(histograms, n, choice, sums)
            break
        total = total_with_one_more
        n += 1
    return n


@kernel
def _live_bins(histograms, live):
    """Find the bins that count something in any row of uint32[n_rows, n_bins], in ``live`` (int64[n_bins], of which as
    many are filled as the result says). Returns their number."""
    n_live, (n_rows, n_bins) = 0, histograms.shape
    for i in range(n_bins):
        live[i] = 0
    for b in range(n_rows):
        row = subarray(histograms, b * n_bins, n_bins)
        for i in range(n_bins):
            live[i] |= np.int64(row[i])
    # In place: the number of a live bin goes where no bin is still to be looked at, as n_live is at most i.
    for i in range(n_bins):
        if live[i]:
            live[n_live] = i
            n_live += 1
    return n_live


@kernel
def _pick(row, live, picked):
    """Copy the bins of a row whose numbers are in ``live``, as many as ``picked`` holds."""
    for i in range(len(picked)):
        picked[i] = row[live[i]]


@allocating
def cluster(histograms, table_cost, groups):
    """Group blocks by distribution: start with one group and split off the worst-served block while it pays.

    Bins that count nothing anywhere, which are most of a window, are left out meanwhile.

    Args:
        histograms: uint32[n_blocks, n_bins].
        table_cost: Bits, in 1/256, that one more codebook costs, times the share of the values that was counted.
        groups: uint32[max_clusters, n_bins], result, zero before: the groups' histograms.

    Returns:
        The number of groups.
    """
    max_clusters, (n_blocks, n_bins) = len(groups), histograms.shape
    live = np.empty(n_bins, np.int64)
    n_live = _live_bins(histograms, live)
    dense, sums = np.empty((n_blocks, n_live), np.uint32), np.zeros((max_clusters + 1, n_live), np.uint32)
    for b in range(n_blocks):
        _pick(subarray(histograms, b * n_bins, n_bins), live, subarray(dense, b * n_live, n_live))
    n = _cluster(dense, max_clusters, table_cost, sums)
    for k in range(n):
        for i in range(n_live):
            groups[k, live[i]] = sums[k, i]
    return n


class Weights(NamedTuple):
    """The numbers by which :func:`weigh_references` weighs what a sample takes.

    Attributes:
        stream_log2: log2 of the values per sub-stream.
        n_streams: Sub-streams of a block that are sampled.
        head_bits: Bits of a head.
        tail_bits: Bits of a tail that are not zero in all values.
        stream_bits: Bits that the length of a sub-stream and the spare bits of its last byte take.
        empty_bits: Bits that a sub-stream of zeros takes.
        reference_bits: Bits that a sub-stream's reference takes.
    """

    stream_log2: int
    n_streams: int
    head_bits: int
    tail_bits: int
    stream_bits: float
    empty_bits: int
    reference_bits: int


@kernel
def weigh_references(by_block, by_stream, marked, weights):
    """Return the bits that sampled blocks take where heads are relative to each block's mean, and where to each
    sub-stream's.

    Args:
        by_block: uint32[n_rows, n_bins], heads relative to each block's mean.
        by_stream: uint32[n_rows, n_bins], relative to each sub-stream's.
        marked: bool[n_rows], the rows that are meant; or None: all.
        weights: :class:`Weights`.
    """
    n_rows, plain, relative, n_heads, n_tails = compare_references(by_block, by_stream, marked, weights.head_bits)
    # A sub-stream of zeros counts as one event (count.count_stream), so this is about how many hold anything else.
    n_streams = n_heads >> weights.stream_log2
    n_empty = max(n_rows * weights.n_streams - n_streams, 0)
    besides = weights.stream_bits * n_streams + weights.empty_bits * n_empty + weights.tail_bits * n_tails
    return plain / 256 + besides, relative / 256 + weights.reference_bits * n_streams + besides


@kernel
def compare_references(by_block, by_stream, marked, head_bits):
    """Compare the cost of heads relative to each block's mean and to each sub-stream's.

    Args:
        by_block: uint32[n_rows, n_bins], heads relative to each block's mean.
        by_stream: uint32[n_rows, n_bins], relative to each sub-stream's.
        marked: bool[n_rows], the rows to compare; or None: all.
        head_bits: Bits of a head, which follow an escape code, that of heads outside of the window.

    Returns:
        Of the marked rows: their number; what symbols take at their entropy, in 1/256 bits, in ``by_block`` and in
        ``by_stream``; the number of heads; and how many of those are not of zeros.
    """
    rows, plain, relative, number, n_nonzero = 0, U64(0), U64(0), U64(0), U64(0)
    n_bins = by_block.shape[1]
    for b in range(by_block.shape[0]):
        if marked is None or marked[b]:
            row = subarray(by_block, b * n_bins, n_bins)
            relative_row = subarray(by_stream, b * n_bins, n_bins)
            # Bin 1 counts heads outside of the window: all are escapes, so their heads follow, and entropy alone is too
            # little.
            plain += entropy_fixed(row) + U64(256 * head_bits) * U64(row[1])
            relative += entropy_fixed(relative_row) + U64(256 * head_bits) * U64(relative_row[1])
            counted = U64(0)
            for i in range(1, n_bins):
                counted += U64(row[i])
            n_nonzero += counted
            number += counted + U64(row[0])
            rows += 1
    return rows, np.int64(plain), np.int64(relative), np.int64(number), np.int64(n_nonzero)


@kernel
def _counts_any(row):
    """Return whether any bin of a row counts something."""
    # No way out in the middle, so that LLVM makes vectors of the loop.
    merged = U32(0)
    for i in range(len(row)):
        merged |= row[i]
    return merged != U32(0)


@kernel
def has_others(counts):
    """Return whether histograms, uint32[n_blocks, n_bins], count anything but zeros."""
    b, (n_blocks, n_bins) = 0, counts.shape
    # From bin 1 on: bin 0 counts zeros.
    while b < n_blocks and not _counts_any(subarray(counts, b * n_bins + 1, n_bins - 1)):
        b += 1
    return b < n_blocks


@allocating
def has_few_bins(counts, most):
    """Return whether histograms, uint32[n_blocks, n_bins], count something in ``most`` bins at most, all together."""
    n_rows, n_bins = counts.shape
    merged, step, b = np.zeros(n_bins, np.uint32), 16, 0
    while b < n_rows:  # most arrays have too many after a few rows, and the rest need not be read
        for k in range(b, min(b + step, n_rows)):
            row = subarray(counts, k * n_bins, n_bins)
            for i in range(n_bins):
                merged[i] |= row[i]
        n_live = 0
        for i in range(n_bins):
            n_live += merged[i] != 0
        if n_live > most:
            return False
        b += step
    return True


@kernel
def rows_in_use(counts, used):
    """Find the rows of uint32[n_blocks, n_bins] that count anything but zeros and heads outside of the window, in
    ``used`` (int64[n_blocks]). Returns their number."""
    n, n_bins = 0, counts.shape[1]
    for b in range(counts.shape[0]):
        if _counts_any(subarray(counts, b * n_bins + N_SPECIAL, n_bins - N_SPECIAL)):
            used[n] = b
            n += 1
    return n


@allocating
def choose_codebooks(histograms, costs, choice):
    """Find the cheapest codebook of every block (the first of equals).

    Args:
        histograms: uint32[n_blocks, n_bins].
        costs: uint32[n_codebooks, n_bins], bits of each bin's event under each codebook, in 1/256.
        choice: int64[n_blocks], result.
    """
    n_codebooks, n_bins = costs.shape
    live = np.empty(n_bins, np.int64)
    n_live = _live_bins(histograms, live)  # few bins of many count anything
    row, live_costs = np.empty(n_live, np.uint32), np.empty((n_codebooks, n_live), np.uint32)
    for k in range(n_codebooks):
        _pick(subarray(costs, k * n_bins, n_bins), live, subarray(live_costs, k * n_live, n_live))
    for b in range(histograms.shape[0]):
        _pick(subarray(histograms, b * n_bins, n_bins), live, row)
        best = U64(0)
        for k in range(n_codebooks):
            spent = cost_of(row, subarray(live_costs, k * n_live, n_live))
            if k == 0 or spent < best:
                best = spent
                choice[b] = k
