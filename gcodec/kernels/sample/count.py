"""Count the heads of a sample of an array, for the planner: histograms of blocks, in the bins of :mod:`code_costs`.

A sample is one piece of many of each block. Which one differs from block to block, so that no column of a matrix is met
by all, and from each ``every`` pieces to the next, so that pieces of values which come in turns, such as interleaved
tensors, are met by all blocks:

    block 0    |####................|............####....|........####........|    every = 5
    block 1    |....####............|................####|............####....|
    block 2    |........####........|####................|................####|

Heads are counted relative to the mean of their block, to that of their sub-stream, or to both, as a coded block will
have them (docs/format.md section 7). Where values have one level and at most 9 head bits, each sub-stream is counted
once, by its heads as they are: its histogram relative to any head is the same row of numbers, rotated
(:func:`add_rotated`). Most are counted by comparisons (:mod:`compared_heads`). :func:`scalar.bin_of` says which bin a
value is in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import U16, U32, U64, bin_of, bin_of_head, bin_of_level, head_of, mean_of
from ..core.unaligned import fetch_values, subarray, subarray_if_any, width_of
from ..heads.column_references import fill_columns, remove_columns
from ..heads.means import reference_head
from ..heads.sign_in_head import turn_values
from .code_costs import N_SPECIAL, weigh_references
from .compared_heads import count_compared, may_be_compared, mean_found, survey_heads

PIECE = 512  #: min number of values that are counted together: a sub-stream may be longer
TURN = 3  #: each piece lies so many pieces later in its turn than the piece before
MAX_HEADS = 512  #: max number of different heads that are counted as they are
PART = MAX_HEADS + 32  #: counters of a part of such counts: one for each head, one for zero
#: A histogram is counted in four parts, so that one addition need not wait for the last; two histograms in eight.
PARTS, BOTH = 4, 8


class SampleCounts(NamedTuple):
    """Histograms of a sample, a row for each block; one that the spec does not ask for may have no bins.

    Attributes:
        bases: int64[n_rows], mean head of what was counted, -1 where that was zeros only.
        by_block: uint32[n_rows, n_bins], heads relative to ``bases``.
        by_stream: uint32[n_rows, n_bins], heads relative to each sub-stream's mean.
    """

    bases: np.ndarray
    by_block: np.ndarray
    by_stream: np.ndarray


class BlockCounts(NamedTuple):
    """Histograms of one block: a row of :class:`SampleCounts`.

    Attributes:
        by_block: uint32[n_bins], heads relative to the block's mean.
        by_stream: uint32[n_bins], heads relative to each sub-stream's mean.
    """

    by_block: np.ndarray
    by_stream: np.ndarray


@kernel
def find_bins(values, levels, n_levels, origin, spec, bins):
    """Find the bin of each value in a histogram of heads relative to one head.

    Args:
        values: uintW[n].
        levels: uint8[n], or None (all of level 0). They may be beyond ``n_levels``: nobody has checked them before.
        origin: The head that is relative head 0.
        spec: See :class:`bundles.SampleSpec`.
        bins: uint16[n], result.
    """
    n = len(values)
    result, origin = subarray(bins, 0, n), U32(origin)
    mask, window, center = U32(spec.head_mask), U32(spec.window), U32(spec.center)
    if width_of(values) == 64:
        shift = U64(spec.head_shift)
        for i in range(n):
            # Cut to 32 bits once the head is at the bottom; whether the value is zero is known from all 64.
            word = U64(values[i])
            bin_if_nonzero = bin_of_head(U32(word >> shift), origin, mask, window, center)
            result[i] = U16(bin_if_nonzero if word else U32(0))
    else:
        for i in range(n):
            result[i] = U16(bin_of(U32(values[i]), origin, U32(spec.head_shift), mask, window, center))
    if levels is not None:  # each level's window lies behind that of the level before
        max_level = U16(n_levels - 1)
        for i in range(n):
            result[i] = bin_of_level(result[i], levels[i], max_level, window)


@kernel
def count_bins(values, levels, origin, spec, bins, counts, first):
    """Count values in a histogram of heads relative to one head, in four parts.

        values      v0  v1  v2  v3  v4  v5 ...
        part        0   1   2   3   0   1            equal bins in a row are counted in different places

    Args:
        values: uintW[n].
        levels: uint8[n], or None (all of level 0).
        origin: The head that is relative head 0.
        spec: See :class:`bundles.SampleSpec`.
        bins: uint16[n], scratch.
        counts: uint32[BOTH, n_bins], of which rows ``first`` to ``first + 3`` are added to.
        first: The first of these rows.
    """
    n, size = len(values), counts.shape[1]
    # Bins first, in a loop that becomes one of vectors, and then the counting, which cannot.
    value_bins = subarray(bins, 0, n)
    a, b = subarray(counts, first * size, size), subarray(counts, (first + 1) * size, size)
    c, d = subarray(counts, (first + 2) * size, size), subarray(counts, (first + 3) * size, size)
    find_bins(values, levels, (size - N_SPECIAL) // spec.window, origin, spec, value_bins)
    # Neighbors are often equal. A counter that is added to twice in a row waits for its own store; these four do not.
    whole = n & ~3
    for i in range(0, whole, 4):
        a[value_bins[i]] += U32(1)
        b[value_bins[i + 1]] += U32(1)
        c[value_bins[i + 2]] += U32(1)
        d[value_bins[i + 3]] += U32(1)
    for i in range(whole, n):
        a[value_bins[i]] += U32(1)


@kernel
def sum_parts(counts, first, result):
    """Add up the four parts that :func:`count_bins` has counted in, rows ``first`` to ``first + 3`` of ``counts``, into
    ``result``: uint32[n_bins]."""
    size = len(result)
    a, b = subarray(counts, first * size, size), subarray(counts, (first + 1) * size, size)
    c, d = subarray(counts, (first + 2) * size, size), subarray(counts, (first + 3) * size, size)
    for i in range(size):
        result[i] = (a[i] + b[i]) + (c[i] + d[i])


@kernel
def count_heads(values, head_shift, head_mask, bins, parts, stream_counts, block_counts):
    """Count the heads of a sub-stream as they are, and zeros in the counter behind the last head.

        parts            four of    0 ....... min #### max ....... mask | zeros       counted in, and cleared
        stream_counts    sum        0         min #### max         mask | zeros       only these counters are read

    Args:
        values: uintW[n], of at most 32 bits.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has; below MAX_HEADS.
        bins: uint16[n], scratch.
        parts: uint16[4 * PART], four parts of the counts, all zero before and after.
        stream_counts: uint32[head_mask + 2], result; but for heads below the min and above the max, which are left as
            they were.
        block_counts: uint32[head_mask + 2], what the result is added to.

    Returns:
        The min and the max head of values that are not zero.
    """
    # Parts are of 16 bits, which cannot overflow: a sub-stream has 4096 values at most.
    n, counters, mask = len(values), subarray(bins, 0, len(values)), U32(head_mask)
    min_head, max_head, zero = mask, U32(0), head_mask + 1
    for i in range(n):
        bits = U32(values[i])
        head = head_of(bits, head_shift, mask)
        # Without a branch on zeros, so that the loop becomes vectors.
        max_head = max(max_head, head)  # a zero's head is 0, which changes no max
        min_head = min(min_head, head if bits else mask)
        counters[i] = U16(head if bits else U32(mask + U32(1)))
    a, b, c, d = (
        subarray(parts, 0, PART),
        subarray(parts, PART, PART),
        subarray(parts, 2 * PART, PART),
        subarray(parts, 3 * PART, PART),
    )
    whole = n & ~3
    for i in range(0, whole, 4):
        a[counters[i]] += U16(1)
        b[counters[i + 1]] += U16(1)
        c[counters[i + 2]] += U16(1)
        d[counters[i + 3]] += U16(1)
    for i in range(whole, n):
        a[counters[i]] += U16(1)
    # Only the counters between min and max are read and cleared: the heads of a sub-stream lie close together.
    low, size = np.int64(min_head), np.int64(max_head) - np.int64(min_head) + 1
    stream_counts[zero] = U32(a[zero]) + U32(b[zero]) + U32(c[zero]) + U32(d[zero])
    block_counts[zero] += stream_counts[zero]
    a[zero], b[zero], c[zero], d[zero] = U16(0), U16(0), U16(0), U16(0)
    a, b, c, d = subarray(a, low, size), subarray(b, low, size), subarray(c, low, size), subarray(d, low, size)
    target, sums = subarray(stream_counts, low, size), subarray(block_counts, low, size)
    for k in range(size):
        target[k] = U32(a[k]) + U32(b[k]) + U32(c[k]) + U32(d[k])
        sums[k] += target[k]
    for k in range(size):
        a[k] = U16(0)
        b[k] = U16(0)
        c[k] = U16(0)
        d[k] = U16(0)
    return low, low + size - 1


@kernel
def _add_one_by_one(head_counts, min_head, max_head, origin, spec, target):
    """Add counts as :func:`add_rotated` does, wherever their bins lie; arguments as there."""
    head_mask, window, center = U32(spec.head_mask), U32(spec.window), U32(spec.center)
    for head in range(min_head, max_head + 1):
        target[bin_of_head(U32(head), U32(origin), head_mask, window, center)] += head_counts[head]


@inlined
def add_rotated(head_counts, min_head, max_head, origin, spec, target):
    """Add counts of heads as they are to a histogram of heads relative to ``origin``.

        head_counts    0 ............ min #### max ........ mask | zeros
        target         zeros | outside | 2 ......... #### ...... window + 1
                                                     place of min: 2 + low

    Args:
        head_counts: uint32[head_mask + 2], zeros last.
        min_head: First head that counts anything.
        max_head: Last head that does.
        origin: The head that is relative head 0.
        spec: See :class:`bundles.SampleSpec`.
        target: uint32[n_bins], added to.
    """
    # As bin_of_head does it for one head: relative, as a number with sign from -half to half - 1, counted from the
    # center. The other heads of the row follow in order, unless some of them lie beyond the window or wrap around from
    # half - 1.
    half, size = (spec.head_mask + 1) >> 1, max_head - min_head + 1
    low = ((min_head - origin + half) & spec.head_mask) - half + spec.center
    if low >= 0 and low + size <= min(spec.window, spec.center + half):  # one row of bins, which does not wrap around
        counts, bins = subarray(head_counts, min_head, size), subarray(target, N_SPECIAL + low, size)
        for k in range(size):
            bins[k] += counts[k]
    else:
        _add_one_by_one(head_counts, min_head, max_head, origin, spec, target)
    target[0] += head_counts[spec.head_mask + 1]


@kernel
def count_stream(values, spec, scratch, by_stream):
    """Count a sub-stream: in its block's counts of heads as they are, and relative to its own mean.

    Args:
        values: uintW[n], of at most 32 bits.
        spec: See :class:`bundles.SampleSpec`.
        scratch: See :class:`bundles.SampleScratch`; ``block_counts`` is added to.
        by_stream: uint32[n_bins], added to if the spec asks for it.

    Returns:
        The mean head of values that are not zero, their number, and their min and max head.
    """
    mask = spec.head_mask
    bins, parts = subarray(scratch.bins, 0, spec.stream_len), subarray(scratch.parts, 0, 4 * PART)
    stream_counts, block_counts = subarray(scratch.stream_counts, 0, PART), subarray(scratch.block_counts, 0, PART)
    min_head, max_head = mask, 0
    is_compared = may_be_compared(values, mask, spec.fine_bits) and survey_heads(values, spec.head_shift, mask, scratch)
    if is_compared:
        mean, n_nonzero = mean_found(mask, spec.fine_bits, scratch.means)
    else:
        mean, n_nonzero = reference_head(values, spec.head_shift, mask, spec.fine_bits)
    if n_nonzero == 0:  # a run takes no bits, but what it repeats has to have a code
        block_counts[mask + 1] += U32(1)
        if spec.by_stream:
            by_stream[0] += U32(1)
    else:
        if is_compared:
            min_head, max_head = count_compared(len(values), mask, scratch, block_counts)
        else:
            min_head, max_head = count_heads(values, spec.head_shift, mask, bins, parts, stream_counts, block_counts)
        if spec.by_stream:
            add_rotated(stream_counts, min_head, max_head, mean, spec, by_stream)
    return mean, n_nonzero, min_head, max_head


@kernel
def place_of_piece(number, b, first, end, every, piece):
    """Return where piece ``number`` of the sample of a block begins; at ``end`` or later if there is none.

    Args:
        first: Number of the block's first value.
        end: Number of the value behind its last.
        every: One piece in so many is sampled.
        piece: Values of a piece.
    """
    #     pieces      | every of them     | every of them     | ...      one of each, in turn number 0, 1 ...
    #     taken           b % every           (b + 3) % every
    place = first + (number * every + (b + TURN * number) % every) * piece
    return first if number == 0 and place >= end else place  # in a last block that is shorter than where it would begin


@kernel
def fetch_next(values, number, b, first, end, spec):
    """Have the piece fetched that follows piece ``number`` of a block: pieces lie too far apart for the processor to
    guess. Arguments as of :func:`place_of_piece`."""
    # Of the block's next piece, or, after the last, of the first piece of the next block that is sampled.
    ahead = place_of_piece(number + 1, b, first, end, spec.every, spec.piece)
    if ahead >= end:
        b += spec.step
        ahead = place_of_piece(0, b, b * spec.block, (b + 1) * spec.block, spec.every, spec.piece)
    fetch_values(values, ahead, spec.piece)


@kernel
def n_pieces(first, end, every, piece):
    """Return how many pieces a block's sample has at most; arguments as of :func:`place_of_piece`."""
    return (end - first + every * piece - 1) // (every * piece)


@kernel
def mean_base(total, n_nonzero, fine_bits):
    """Return the mean head of a block's sample, -1 if it has nothing but zeros.

    Args:
        total: Sum of its sub-streams' means, each times how many of its values are not zero.
        n_nonzero: How many values are not zero.
        fine_bits: Low bits of the head that references leave as they are, and that are 0 in the result.
    """
    return np.int64(mean_of(U64(total), U64(n_nonzero))) >> fine_bits << fine_bits if n_nonzero else np.int64(-1)


@kernel
def count_block_in_one_pass(values, b, end, spec, columns, scratch, target):
    """Count a sample of a block of one level, at most 32 bits and few heads; arguments and result as of
    :func:`count_block_in_two_passes`.

    Each sub-stream is counted by its heads as they are, as soon as it has been read; only at the end, when the block's
    mean is known, its counts become a histogram relative to that.
    """
    # Views, which nobody counts the users of: counting takes longer than the work on a sub-stream.
    references, shifted = subarray(scratch.references, 0, spec.piece), subarray(scratch.shifted, 0, spec.piece)
    turned = subarray(scratch.shifted, spec.piece, spec.piece)  # not in place, which LLVM makes no vectors of
    spans, heads = subarray(columns.spans, 0, len(columns.spans)), subarray(columns.heads, 0, len(columns.heads))
    block_counts = subarray(scratch.block_counts, 0, PART)
    for i in range(spec.head_mask + 2):
        block_counts[i] = U32(0)
    first, total, n_nonzero, min_head, max_head = b * spec.block, 0, 0, spec.head_mask, 0
    for number in range(n_pieces(first, end, spec.every, spec.piece)):
        place = place_of_piece(number, b, first, end, spec.every, spec.piece)
        fetch_next(values, number, b, first, end, spec)
        if place >= end:
            continue
        size = min(spec.piece, end - place)
        piece = subarray(values, place, size)
        if spec.fine_bits:
            turn_values(piece, spec.head_shift, turned)
            piece = subarray(turned, 0, size)
        if (
            len(spans)
            and fill_columns(spans, heads, place, size, references)
            and remove_columns(piece, size, references, spec.head_shift, spec.head_mask, spec.infinity, shifted)
        ):
            piece = subarray(shifted, 0, size)
        for start in range(0, size, spec.stream_len):
            n = min(size - start, spec.stream_len)
            mean, n_counted, low, high = count_stream(subarray(piece, start, n), spec, scratch, target.by_stream)
            # The block's mean is that of its sub-streams' means, each of which counts as often as it has values.
            total += mean * n_counted
            n_nonzero += n_counted
            min_head, max_head = min(min_head, low), max(max_head, high)
    base = mean_base(total, n_nonzero, spec.fine_bits)
    if spec.by_block:
        add_rotated(block_counts, min_head, max_head, base, spec, target.by_block)
    return base


@kernel
def count_block_in_two_passes(values, levels, b, end, spec, columns, scratch, target):
    """Count a sample of a block of any type and levels: the first pass finds means, the second counts.

    Args:
        values: uintW[n_values], the array.
        levels: uint8[n_values], or None (all of level 0).
        b: Number of the block.
        end: Number of the value behind its last.
        spec: See :class:`bundles.SampleSpec`.
        columns: Column references, which are removed first.
        scratch: See :class:`bundles.SampleScratch`.
        target: Histograms, result, zeroed before.

    Returns:
        The mean head of what was counted, -1 if that was zeros only.
    """
    means, numbers, is_shifted, counts = scratch.means, scratch.numbers, scratch.is_shifted, scratch.counts
    stream_len = spec.stream_len
    first, total, n_nonzero, s = b * spec.block, 0, 0, 0
    for number in range(n_pieces(first, end, spec.every, spec.piece)):
        place = place_of_piece(number, b, first, end, spec.every, spec.piece)
        fetch_next(values, number, b, first, end, spec)
        if levels is not None:
            fetch_next(levels, number, b, first, end, spec)
        for start in range(place, min(place + spec.piece, end), stream_len):
            n = min(end - start, stream_len)
            part, shifted = subarray(values, start, n), subarray(scratch.shifted, s * stream_len, n)
            if spec.fine_bits:
                turned = subarray(scratch.shifted, spec.block, n)
                turn_values(part, spec.head_shift, turned)
                part = turned
            is_shifted[s] = (
                len(columns.spans) > 0
                and fill_columns(columns.spans, columns.heads, start, n, scratch.references)
                and remove_columns(part, n, scratch.references, spec.head_shift, spec.head_mask, spec.infinity, shifted)
            )
            # Turned values are kept for the second pass: where they were made, the next sub-stream's will be.
            if spec.fine_bits and not is_shifted[s]:
                for i in range(n):
                    shifted[i] = part[i]
                is_shifted[s] = True
            means[s], numbers[s] = reference_head(
                shifted if is_shifted[s] else part, spec.head_shift, spec.head_mask, spec.fine_bits
            )
            total += means[s] * numbers[s]
            n_nonzero += numbers[s]
            s += 1
    base = mean_base(total, n_nonzero, spec.fine_bits)
    # Rows 0 to 3 are the parts of counts by block, rows 4 to 7 those by sub-stream.
    used = subarray(counts, 0, BOTH * len(target.by_stream if spec.by_stream else target.by_block))
    for i in range(len(used)):
        used[i] = U32(0)
    s = 0
    for number in range(n_pieces(first, end, spec.every, spec.piece)):
        place = place_of_piece(number, b, first, end, spec.every, spec.piece)
        for start in range(place, min(place + spec.piece, end), stream_len):
            n = min(end - start, stream_len)
            if numbers[s] == 0:  # a run takes no bits, but what it repeats has to have a code
                counts[0, 0] += U32(1)
                counts[PARTS, 0] += U32(1)
            else:
                part = subarray(scratch.shifted, s * stream_len, n) if is_shifted[s] else subarray(values, start, n)
                part_levels = subarray_if_any(levels, start, n)
                if spec.by_block:
                    count_bins(part, part_levels, base, spec, scratch.bins, counts, 0)
                if spec.by_stream:
                    count_bins(part, part_levels, means[s], spec, scratch.bins, counts, PARTS)
            s += 1
    if spec.by_block:
        sum_parts(counts, 0, target.by_block)
    if spec.by_stream:
        sum_parts(counts, PARTS, target.by_stream)
    return base


@kernel
def count_sample(values, levels, spec, columns, scratch, begin, stop, counts):
    """Count a sample of blocks ``begin * step``, ``(begin + 1) * step`` ... before ``stop * step``.

    The pieces are the same for all lengths of sub-streams up to PIECE values.

    Args:
        values: uintW[n_values], the array.
        levels: uint8[n_values], or None (all of level 0).
        spec: See :class:`bundles.SampleSpec`.
        columns: Column references, which are removed first.
        scratch: See :class:`bundles.SampleScratch`.
        begin: First row of ``counts`` to fill.
        stop: Row behind the last.
        counts: Result.
    """
    n_bins = max(counts.by_block.shape[1], counts.by_stream.shape[1])
    for histograms, wanted in ((counts.by_block, spec.by_block), (counts.by_stream, spec.by_stream)):
        if wanted:
            some = subarray(histograms, begin * n_bins, (stop - begin) * n_bins)
            for i in range(len(some)):
                some[i] = U32(0)
    for row in range(begin, stop):
        b = row * spec.step
        end = min(len(values), (b + 1) * spec.block)
        target = BlockCounts(
            subarray(counts.by_block, row * n_bins, n_bins), subarray(counts.by_stream, row * n_bins, n_bins)
        )
        if levels is None:
            if width_of(values) <= 32 and spec.head_mask < MAX_HEADS:
                base = count_block_in_one_pass(values, b, end, spec, columns, scratch, target)
            else:
                base = count_block_in_two_passes(values, None, b, end, spec, columns, scratch, target)
        else:
            base = count_block_in_two_passes(values, levels, b, end, spec, columns, scratch, target)
        counts.bases[row] = base


@kernel
def weigh_sample(values, levels, spec, weights, columns, scratch, n_rows, counts):
    """Count a sample as :func:`count_sample` does, and find what it takes.

    Args:
        values: uintW[n_values], the array.
        levels: uint8[n_values], or None (all of level 0).
        spec: See :class:`bundles.SampleSpec`; both kinds of histograms are wanted.
        weights: See :class:`code_costs.Weights`.
        columns: Column references, which are removed first.
        scratch: See :class:`bundles.SampleScratch`.
        n_rows: Number of rows to fill.
        counts: :class:`SampleCounts`, result.

    Returns:
        The bits that the sample takes where heads are relative to each block's mean, and where to each sub-stream's.
    """
    count_sample(values, levels, spec, columns, scratch, np.int64(0), n_rows, counts)
    return weigh_references(counts.by_block, counts.by_stream, None, weights)
