"""From counted symbols to a codebook's symbols, and what codebooks cost on counted symbols.

Histograms are those of :mod:`code_costs`: zero, outside, then one bin per (level, relative head).

    bin      0      1         2 ... 2 + window       ... 2 + 2 * window
             zero   outside   heads of level 0       heads of level 1
    span                          [lo     hi)          [lo  hi)             bins that get a symbol each
"""

from __future__ import annotations

import numpy as np

from ..core.jit import allocating, kernel
from ..core.scalar import U8, U16, U32
from ..core.unaligned import store_u16, subarray
from ..sample.code_costs import cost_of
from .prefix_code import ESCAPE, package_merge

RECORD_BYTES = 4 + 4 * 16 + 128  #: max bytes of an inline record
NO_COST = 1_000_000  #: bits, where a codebook has no code for a bin


@allocating
def choose_symbols(histograms, window, exact, spans, weights, n_weights):
    """Choose which bins get a symbol, and the weight of each, for a codebook per row.

    Args:
        histograms: int64[n, 2 + n_levels * window].
        window: Bins of a level.
        exact: True if what was counted is all that will occur.
        spans: int64[n, n_levels, 2], result: bins [lo, hi) of every level.
        weights: int64[n, budget + 2], result: of zero, of the bins of the spans, of the escape. The budget is the max
            symbols besides zero and the escape.
        n_weights: int64[n], result: how many weights there are.
    """
    n_levels, budget = spans.shape[1], weights.shape[1] - 2
    for k in range(len(histograms)):
        n_weights[k] = _choose_in_row(histograms[k], n_levels, window, budget, exact, spans[k], weights[k])


@kernel
def _choose_in_row(histogram, n_levels, window, budget, exact, spans, weights):
    """Choose symbols and weights for one row; return the number of weights."""
    # Spans from the first bin of a level that occurs to the last.
    total, n_counted = 0, np.int64(0)
    for i in range(len(histogram)):
        n_counted += histogram[i]
    for level in range(n_levels):
        row = 2 + level * window
        lo, hi = 0, window
        while lo < hi and histogram[row + lo] == 0:
            lo += 1
        while hi > lo and histogram[row + hi - 1] == 0:
            hi -= 1
        spans[level, 0] = lo if hi > lo else 0
        spans[level, 1] = hi if hi > lo else 0
        total += hi - lo
    # Every span begins and ends with a bin that occurs; drop the end that is worth least while that pays.
    while True:
        best, best_level, best_side, best_gap = np.int64(0), -1, 0, 0
        for level in range(n_levels):
            lo, hi = spans[level, 0], spans[level, 1]
            row = 2 + level * window
            for side in range(2 if hi > lo else 0):
                gap = 1
                place = row + (hi - 1 if side else lo)
                step = -1 if side else 1
                while gap < hi - lo and histogram[place + step * gap] == 0:
                    gap += 1
                # An escape costs some 8 bits more than a code; a place in the table costs 4 bits, and a code of 12 bits
                # leaves less room for all others: log2(1 / (1 - 2**-12)) of a bit for each value.
                gain = 4 * gap + (n_counted * 3 >> 13) - 8 * histogram[place]
                if best_level < 0 or gain > best:
                    best, best_level, best_side, best_gap = gain, level, side, gap
        if best_level < 0 or (best <= 0 and total <= budget):
            break
        total -= best_gap
        if best_side:
            spans[best_level, 1] -= best_gap
        else:
            spans[best_level, 0] += best_gap
    # Two bins more on either side where there is room, for heads that a sample has missed; what the spans leave out is
    # escaped.
    room = budget - total
    counted, coded = histogram[1], 0
    n = 1
    weights[0] = histogram[0]
    for level in range(n_levels):
        lo, hi = spans[level, 0], spans[level, 1]
        if hi > lo and room >= 4 and not exact:
            spans[level, 0], spans[level, 1] = max(lo - 2, 0), min(hi + 2, window)
            room -= (spans[level, 1] - spans[level, 0]) - (hi - lo)
            lo, hi = spans[level, 0], spans[level, 1]
        row = 2 + level * window
        for i in range(window):
            counted += histogram[row + i]
        for i in range(lo, hi):
            weights[n] = histogram[row + i]
            coded += histogram[row + i]
            n += 1
    weights[n] = counted - coded
    n += 1
    for i in range(n):  # an eighth of a count for each bin that may occur, though the sample has none of it
        weights[i] = weights[i] * 8 + (0 if exact else 1)
    return n


@allocating
def find_lengths(weights, n_weights, limit, lengths):
    """Find optimal code lengths for a codebook per row.

    Args:
        weights: int64[n, budget + 2] of :func:`choose_symbols`.
        n_weights: int64[n], how many of each row there are, likewise.
        limit: Max bits of a code.
        lengths: uint8[n, 256], result, zero before: bits of each symbol's code, by the symbol's number.
    """
    n_books, max_symbols = weights.shape
    row_lengths = np.empty(max_symbols, np.uint8)
    order, weight = np.empty(max_symbols, np.int64), np.empty((2, 2 * max_symbols), np.uint64)
    is_leaf, n_items = np.empty((limit, 2 * max_symbols), np.uint8), np.empty(limit, np.int64)
    for k in range(n_books):
        n, used = n_weights[k], 0
        row = weights[k, :n]
        for i in range(n):
            used += row[i] > 0
        if used < 2:  # a code has two symbols at least
            used += row[n - 1] == 0
            row[n - 1] = max(row[n - 1], 1)
            row[0] = row[0] if used > 1 else 1
        package_merge(row, limit, order, weight, is_leaf, n_items, row_lengths)
        for i in range(n - 1):
            lengths[k, i] = row_lengths[i]
        lengths[k, ESCAPE] = row_lengths[n - 1]  # the last weight is the escape's, whose number is 255


@kernel
def write_records(spans, lengths, center, head_mask, ranges, records, ends):
    """Write the records that frames carry for codebooks (docs/format.md section 5, kind 0).

        byte 0   1          2   4                             at
        kind 0 | n_levels | 0 | first, count of each level  | lengths, two in a byte, the first in the lower half:
                                                              zero, escape, 1, 2 ... n_symbols

    Args:
        spans: int64[n, n_levels, 2] of :func:`choose_symbols`.
        lengths: uint8[n, 256] of :func:`find_lengths`.
        center: Bin of a level for head 0.
        head_mask: Bits of a head.
        ranges: int64[n, n_levels, 2], result: (first, count) of relative heads.
        records: uint8[n, RECORD_BYTES], result.
        ends: int64[n], result: bytes of each record.
    """
    n_levels = spans.shape[1]
    for k in range(len(spans)):
        record, n_symbols = subarray(records, k * RECORD_BYTES, RECORD_BYTES), 0
        for i in range(RECORD_BYTES):
            record[i] = U8(0)
        record[1] = U8(n_levels)
        for level in range(n_levels):
            count = spans[k, level, 1] - spans[k, level, 0]
            first = (spans[k, level, 0] - center) & head_mask if count else 0
            ranges[k, level, 0], ranges[k, level, 1] = first, count
            store_u16(record, 4 + 4 * level, U16(first))
            store_u16(record, 6 + 4 * level, U16(count))
            n_symbols += count
        at = 4 + 4 * n_levels
        record[at] = lengths[k, 0] | U8(lengths[k, ESCAPE] << 4)
        for i in range(1, n_symbols + 1):
            record[at + ((i + 1) >> 1)] |= U8(lengths[k, i] << (4 if i & 1 == 0 else 0))
        ends[k] = (at + ((n_symbols + 3) >> 1) + 3) & ~3


@kernel
def fill_bin_costs(ranges, lengths, head_bits, window, center, costs):
    """Find the bits that each bin costs under codebooks, :data:`NO_COST` where one has no code.

    Args:
        ranges: int64[n, n_levels, 2] of (first, count).
        lengths: uint8[n, 256].
        head_bits: Bits of a head.
        window: Bins of a level.
        center: Bin of a level for head 0.
        costs: uint32[n, n_bins], result.
    """
    half, mask = np.int64(1) << (head_bits - 1), (np.int64(1) << head_bits) - 1
    for k in range(len(ranges)):
        escape = U32(NO_COST)
        if lengths[k, ESCAPE]:
            escape = U32(lengths[k, ESCAPE] + head_bits)
        for i in range(costs.shape[1]):
            costs[k, i] = escape
        if lengths[k, 0]:
            costs[k, 0] = lengths[k, 0]
        number = 1
        for level in range(ranges.shape[1]):
            for j in range(ranges[k, level, 1]):
                # The head's bin: as a number with sign, counted from the window's center.
                place = ((ranges[k, level, 0] + j + half) & mask) - half + center
                if 0 <= place < window and lengths[k, number]:
                    costs[k, 2 + level * window + place] = lengths[k, number]
                number += 1


@kernel
def spent(histograms, costs, totals):
    """Add up the bits that all rows of histograms cost under each codebook.

    Args:
        histograms: uint32[n_blocks, n_bins].
        costs: uint32[n_codebooks, n_bins], by :func:`fill_bin_costs`.
        totals: uint64[n_codebooks], result, zero before.
    """
    n_codebooks, n_bins = costs.shape
    for b in range(histograms.shape[0]):
        row = subarray(histograms, b * n_bins, n_bins)
        for k in range(n_codebooks):
            totals[k] += cost_of(row, subarray(costs, k * n_bins, n_bins))


@kernel
def add_costs(counts, costs, choice, tail_bits, bits, numbers):
    """Add up, by block, the bits that counted values take, and their number.

    Args:
        counts: uint32[n_blocks, n_bins].
        costs: int64[n_codebooks, n_bins], bits of a bin's symbol.
        choice: int64[n_blocks], codebooks.
        tail_bits: Bits of the tail that each value other than 0 has besides.
        bits: int64[n_blocks], result.
        numbers: int64[n_blocks], result.
    """
    for b in range(len(counts)):
        row, cost = counts[b], costs[choice[b]]
        total, number = np.int64(0), np.int64(0)
        for i in range(len(row)):
            count = np.int64(row[i])
            total += count * np.int64(cost[i])
            number += count
        bits[b] = total + (number - np.int64(row[0])) * tail_bits
        numbers[b] = number
