"""From counted symbols to a codebook's symbols, and what codebooks cost on counted symbols.

Histograms are those of :mod:`code_costs`: zero, outside, then one bin per (level, relative head).

    bin      0      1         2 ... 2 + window       ... 2 + 2 * window
             zero   outside   heads of level 0       heads of level 1
    span                          [lo     hi)          [lo  hi)             bins that get a symbol each
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.bundles import Books
from ..core.jit import allocating, kernel
from ..core.scalar import U8, U16, U32
from ..core.unaligned import store_u16, subarray
from ..sample.code_costs import choose_codebooks, cluster, cost_of, has_few_bins, rows_in_use
from .code_tables import fill_encoders
from .prefix_code import ESCAPE, MAX_LENGTH, huffman, package_merge

RECORD_BYTES = 4 + 4 * 16 + 128  #: max bytes of an inline record
NO_COST = 1_000_000  #: bits, where a codebook has no code for a bin
MAX_FEW_HEADS = 6  #: different heads, zero among them, that are few


class FitRules(NamedTuple):
    """The numbers by which codebooks are made.

    Attributes:
        n_levels: Levels of a codebook.
        window: Bins of a level.
        center: Bin of a level for head 0.
        head_bits: Bits of a head.
        max_books: max codebooks of a frame.
        max_clustered: max blocks whose distributions are compared to make several.
        table_cost: What a codebook costs in the frame, in 1/256 bits, if all values are counted.
        max_symbols: max symbols of a codebook besides zero and the escape.
        max_length: max bits of a code.
        escape_threshold: GComp's n_theta: symbols whose Huffman code is longer are left to the escape; 0 for no such
            rule.
    """

    n_levels: int
    window: int
    center: int
    head_bits: int
    max_books: int
    max_clustered: int
    table_cost: int
    max_symbols: int
    max_length: int
    escape_threshold: int


class ShippedBooks(NamedTuple):
    """The codebooks that come with gcodec for a value type and number of levels; none of the arrays may have rows.

    Attributes:
        costs: uint32[n, n_bins], bits of each bin.
        record_bits: uint64[n], bits of the records.
        ranges: int64[n, n_levels, 2], (first, count) of relative heads.
        lengths: uint8[n, 256], bits of codes.
        records: uint8[n, record_bytes], the records that name them.
    """

    costs: np.ndarray
    record_bits: np.ndarray
    ranges: np.ndarray
    lengths: np.ndarray
    records: np.ndarray


class MadeBooks(NamedTuple):
    """The codebooks of a frame, results; the arrays may have more rows than there are codebooks.

    Attributes:
        ranges: int64[n, n_levels, 2], (first, count) of relative heads.
        lengths: uint8[n, 256], bits of each symbol's code.
        records: uint8[n, RECORD_BYTES], the records that frames carry.
        ends: int64[n], bytes of each record.
        costs: uint32[n, n_bins], bits that each bin costs.
    """

    ranges: np.ndarray
    lengths: np.ndarray
    records: np.ndarray
    ends: np.ndarray
    costs: np.ndarray


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
                #     bins        . . 3 0 0 9 8 2 0 1 . .
                #     span            |-------------|
                #
                # The end on the left is 3 and the two zeros behind it, gap 3; on the right 1 and the zero before it,
                # gap 2.
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
    pairs, parent = np.empty(2 * max_symbols, np.int64), np.empty(2 * max_symbols, np.int64)
    native = np.empty(max_symbols, np.int64)
    for k in range(n_books):
        n, used = n_weights[k], 0
        row = weights[k, :n]
        for i in range(n):
            used += row[i] > 0
        if used < 2:  # a code has two symbols at least
            used += row[n - 1] == 0
            row[n - 1] = max(row[n - 1], 1)
            row[0] = row[0] if used > 1 else 1
        # Huffman's code is optimal, too, and sooner found; most often no code is too long.
        huffman(row, order, pairs, parent, native)
        longest = 0
        for i in range(n):
            longest = max(longest, native[i])
            row_lengths[i] = native[i]
        if longest > limit:
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
        # Symbol i is number i + 1 of the lengths, behind those of zero and the escape:
        #
        #     byte           at           at + 1       at + 2
        #     nibbles        esc | zero   2 | 1        4 | 3         upper | lower
        for i in range(1, n_symbols + 1):
            record[at + ((i + 1) >> 1)] |= U8(lengths[k, i] << (4 if i & 1 == 0 else 0))
        # n_symbols + 2 lengths, two in a byte, rounded up; then up to a multiple of 4.
        ends[k] = (at + ((n_symbols + 3) >> 1) + 3) & ~3


@kernel
def fill_bin_costs(ranges, lengths, head_bits, window, center, costs):
    """Find the bits that each bin costs under codebooks, :data:`NO_COST` where one has no code.

    Args:
        ranges: int64[n, n_levels, 2] of (first, count).
        lengths: uint8[n, 256].
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
def _block_costs(row, cost, tail_bits):
    """Return the bits that counted values of a block take, and their number.

    Args:
        row: uint32[n_bins].
        cost: uint32[n_bins], bits of a bin's symbol.
        tail_bits: Bits of the tail that each value other than 0 has besides.
    """
    total, number = np.int64(0), np.int64(0)
    for i in range(len(row)):
        count = np.int64(row[i])
        total += count * np.int64(cost[i])
        number += count
    return total + (number - np.int64(row[0])) * tail_bits, number


@kernel
def add_costs(counts, costs, choice, tail_bits, bits, numbers):
    """Add up, by block, the bits that counted values take, and their number.

    Args:
        counts: uint32[n_blocks, n_bins].
        costs: uint32[n_codebooks, n_bins], bits of a bin's symbol.
        choice: int64[n_blocks], codebooks.
        tail_bits: Bits of the tail that each value other than 0 has besides.
        bits: int64[n_blocks], result.
        numbers: int64[n_blocks], result.
    """
    for b in range(len(counts)):
        bits[b], numbers[b] = _block_costs(counts[b], costs[choice[b]], tail_bits)


@kernel
def expect_bits(counts, costs, choice, tail_bits, every, stream_bits, expected):
    """Estimate the bits that each block takes, by a sample of its values.

    Args:
        counts: As of :func:`add_costs`, like the others.
        costs: Bits of a bin's symbol.
        choice: Codebooks.
        every: One piece in ``every`` was counted.
        stream_bits: What sub-streams take besides, for each value.
        expected: float64[n_blocks], result.

    Returns:
        The bits of all blocks.
    """
    total = 0.0
    for b in range(len(counts)):
        bits, number = _block_costs(counts[b], costs[choice[b]], tail_bits)
        expected[b] = every * (bits + number * stream_bits)
        total += expected[b]
    return total


@allocating
def _leave_out_long(weights, n_weights, threshold):
    """Leave symbols whose Huffman code is longer than ``threshold`` bits to the escape (GComp's n_theta), for a
    codebook per row of weights; arguments as of :func:`find_lengths`."""
    n_books, max_symbols = weights.shape
    order, native = np.empty(max_symbols, np.int64), np.empty(max_symbols, np.int64)
    weight, parent = np.empty(2 * max_symbols, np.int64), np.empty(2 * max_symbols, np.int64)
    for k in range(n_books):
        last = n_weights[k] - 1
        huffman(weights[k, : last + 1], order, weight, parent, native)
        for i in range(last):
            if native[i] > threshold:
                weights[k, last] += weights[k, i]
                weights[k, i] = 0


@allocating
def make_books(histograms, exact, rules, made):
    """Make the codebooks that suit histograms, one for each row.

    Args:
        histograms: int64[n, n_bins].
        exact: Whether what was counted is all that will occur.
        rules: :class:`FitRules`.
        made: :class:`MadeBooks`, result; the lengths zero before.
    """
    n = len(histograms)
    spans, n_weights = np.empty((n, rules.n_levels, 2), np.int64), np.empty(n, np.int64)
    weights = np.zeros((n, rules.max_symbols + 2), np.int64)
    choose_symbols(histograms, rules.window, exact, spans, weights, n_weights)
    if rules.escape_threshold:
        _leave_out_long(weights, n_weights, rules.escape_threshold)
    find_lengths(weights, n_weights, rules.max_length, made.lengths)
    mask = (np.int64(1) << rules.head_bits) - 1
    write_records(spans, made.lengths, rules.center, mask, made.ranges, made.records, made.ends)


@allocating
def _groups_of(counts, used, every, rules):
    """Return the histograms of groups of similar blocks, a codebook for each: int64[n_groups, n_bins].

    Args:
        counts: uint32[n_blocks, n_bins], histograms of blocks.
        used: int64[n_used], the blocks that have a say, one at least.
        every: One piece in ``every`` was counted.
        rules: :class:`FitRules`.
    """
    (n_rows, n_bins), n_used, n = counts.shape, len(used), 1
    if n_used == 1:
        alone = np.empty((1, n_bins), np.int64)
        for i in range(n_bins):
            alone[0, i] = counts[used[0], i]
        return alone
    some, groups = np.empty((n_used, n_bins), np.uint32), np.zeros((min(rules.max_books, n_used), n_bins), np.uint32)
    for k in range(n_used):
        for i in range(n_bins):
            some[k, i] = counts[used[k], i]
    if len(groups) > 1:
        # What a codebook costs is for all values; what it saves is counted of a share of them only, by which the cost
        # is cut down, too.
        n = cluster(some, np.uint64(rules.table_cost * (n_used / n_rows / every)), groups)
    else:
        for k in range(n_used):
            for i in range(n_bins):
                groups[0, i] += some[k, i]
    histograms, n_groups = np.zeros((n, n_bins), np.int64), 0
    for k in range(n):
        any_count = np.uint32(0)
        for i in range(n_bins):
            histograms[n_groups, i] = groups[k, i]
            any_count |= groups[k, i]
        # A group whose blocks have all left it for others is written over by the next one.
        n_groups += any_count != 0 or n == 1
    return histograms[:n_groups]


@allocating
def _cheaper_shipped(counts, made, shipped):
    """Return the number of the shipped codebook that takes fewer bits than a made one with its record, or -1; arguments
    as of :func:`fit_books`, where ``made`` has costs."""
    n = len(shipped.costs)
    of_made, of_shipped = np.zeros(1, np.uint64), np.zeros(n, np.uint64)
    spent(counts, made.costs[:1], of_made)
    spent(counts, shipped.costs, of_shipped)
    # A made codebook takes its record with it, as a shipped one does the 16 bytes that name it.
    best, least = -1, of_made[0] + np.uint64(8 * made.ends[0])
    for k in range(n):
        total = of_shipped[k] + shipped.record_bits[k]
        if total < least:
            best, least = k, total
    return best


class FitMemory(NamedTuple):
    """The memory that codebooks are made in.

    Attributes:
        made: The codebooks, with room for as many as a frame may have.
        tables: Their tables to encode with.
    """

    made: MadeBooks
    tables: Books


@kernel
def _take_shipped(shipped, best, made):
    """Put a shipped codebook in the place of the first of those that were made."""
    for level in range(made.ranges.shape[1]):
        made.ranges[0, level, 0] = shipped.ranges[best, level, 0]
        made.ranges[0, level, 1] = shipped.ranges[best, level, 1]
    for i in range(made.lengths.shape[1]):
        made.lengths[0, i] = shipped.lengths[best, i]
    for i in range(made.costs.shape[1]):
        made.costs[0, i] = shipped.costs[best, i]
    made.ends[0] = shipped.records.shape[1]
    for i in range(made.ends[0]):
        made.records[0, i] = shipped.records[best, i]


@allocating
def fit_books(counts, every, exact, rules, shipped, planes, memory, choice):
    """Make the codebooks of a frame, choose the one of each block, and fill the tables to encode with.

    Args:
        counts: uint32[n_blocks, n_bins], a histogram of each block.
        every: One piece in ``every`` was counted.
        exact: Whether no other values than the counted occur.
        rules: :class:`FitRules`.
        shipped: :class:`ShippedBooks` that may take the place of a single codebook.
        planes: Marks and shifts, see ``code_tables.fill_tables``.
        memory: :class:`FitMemory`, results.
        choice: int64[n_blocks or more], result: the codebook of each block.

    Returns:
        (n_books, number): how many codebooks there are, none if blocks count nothing but zeros and heads outside of the
        window; and the number of the shipped one that is the only one, or -1.
    """
    n_rows, (made, tables), (marks, shifts) = len(counts), memory, planes
    made.lengths[:] = 0
    used = np.empty(n_rows, np.int64)
    n_used, best = rows_in_use(counts, used), -1
    if n_used == 0:
        return 0, best
    if n_used > rules.max_clustered and not (exact and has_few_bins(counts, MAX_FEW_HEADS)):
        # Blocks that lie evenly apart have a say for all.
        exact, apart = False, (n_used - 1) / (rules.max_clustered - 1)
        for k in range(rules.max_clustered - 1):
            used[k] = used[np.int64(k * apart)]
        used[rules.max_clustered - 1] = used[n_used - 1]
        n_used = rules.max_clustered
    histograms = _groups_of(counts, used[:n_used], every, rules)
    make_books(histograms, exact, rules, made)
    n = len(histograms)
    fill_bin_costs(made.ranges[:n], made.lengths, rules.head_bits, rules.window, rules.center, made.costs)
    if n == 1 and len(shipped.costs):
        best = _cheaper_shipped(counts, made, shipped)
    if best >= 0:
        _take_shipped(shipped, best, made)
    if n > 1:
        choose_codebooks(counts, made.costs[:n], choice)
    else:
        for b in range(n_rows):
            choice[b] = 0
    following, codes = np.empty(MAX_LENGTH + 1, np.uint32), np.empty(ESCAPE + 1, np.uint32)
    fill_encoders(made.ranges, made.lengths[:n], rules.head_bits, marks, shifts, following, codes, tables)
    return n, best
