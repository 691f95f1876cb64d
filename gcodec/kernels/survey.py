"""What counted symbols take, and which blocks share a codebook.

Histograms count relative heads in bins: bin 0 is zero, bin 1 all that lies outside the window, and bin
``2 + level * window + relative head + center`` the rest, where window and center are :data:`WINDOW` and
:data:`CENTER` for one level and :data:`LADDER_WINDOW` and :data:`LADDER_CENTER` for several.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .logarithms import log2_fixed
from .scalar import U64

WINDOW, CENTER = 256, 128
LADDER_WINDOW, LADDER_CENTER = 64, 44


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
    (``by_stream``, both uint32[n_blocks, n_bins]), the number of heads and how many are not of zeros: of the rows that
    are marked in ``some`` (bool[n_blocks])."""
    plain, relative, number, others = U64(0), U64(0), U64(0), U64(0)
    for b in range(by_block.shape[0]):
        if some[b]:
            row = by_block[b]
            plain += entropy_bits(row)
            relative += entropy_bits(by_stream[b])
            counted = U64(0)
            for i in range(1, len(row)):
                counted += U64(row[i])
            others += counted
            number += counted + U64(row[0])
    return plain, relative, number, others


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
