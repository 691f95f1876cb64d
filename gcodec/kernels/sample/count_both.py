"""Count the heads of a sample of float32 values for the usual head and for a wide one at once.

A wide head is the usual one and the mantissa bit below it, so that counts of usual heads are sums of pairs:

    wide      ...  2 h  | 2 h + 1 | 2 h + 2 | 2 h + 3  ...
    usual     ...       h         |       h + 1        ...
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U32, U64, mean_of
from ..core.unaligned import subarray
from ..heads.means import mean_head
from .code_costs import weigh_references
from .compared_heads import count_compared, may_be_compared, mean_found, survey_heads
from .count import PART, add_rotated, count_heads, fetch_next, n_pieces, place_of_piece


@kernel
def _add_pairs(wide_counts, low, high, stream_counts, block_counts):
    """Turn counts of wide heads ``low ... high`` of a sub-stream into counts of usual ones, and add these to their
    block's. Counts just outside of the range are set to 0."""
    #     wide        ... | low - 1   low | ... | high   high + 1 | ...      low odd, high even
    #                       0                            0
    #
    # Pairs at both ends may reach beyond what was counted. The two counters there may hold counts of an earlier
    # sub-stream: count_heads and count_compared leave them as they were.
    if low & 1:
        wide_counts[low - 1] = U32(0)
    if not high & 1:
        wide_counts[high + 1] = U32(0)
    for head in range(low >> 1, (high >> 1) + 1):
        count = U32(wide_counts[2 * head] + wide_counts[2 * head + 1])
        stream_counts[head] = count
        block_counts[head] += count


@kernel
def _count_block(values, b, end, narrow, wide, scratch, streams, blocks):
    """Count a sample of a block relative to its sub-streams' means, and by its heads as they are.

    Args:
        values: uint32[n_values], the array.
        b: Number of the block.
        end: Number of the value behind its last.
        narrow: See :class:`bundles.SampleSpec`, of the usual head.
        scratch: See :class:`bundles.SampleScratch`.
        streams: uint32[n_bins] twice, results for both heads, added to.
        blocks: uint32[PART] twice, results: heads as they are.

    Returns:
        The sums of both heads' means, each times the number of values; the number of values that are not zero; and the
        min and max wide head.
    """
    bins, parts = subarray(scratch.bins, 0, wide.stream_len), subarray(scratch.parts, 0, 4 * PART)
    wide_counts = subarray(scratch.stream_counts, 0, PART)
    # Nothing else is counted in these rows meanwhile.
    narrow_counts = subarray(scratch.counts, 0, PART)
    narrow_zero, wide_zero = narrow.head_mask + 1, wide.head_mask + 1
    first, narrow_total, wide_total, n_nonzero, min_head, max_head = b * wide.block, 0, 0, 0, wide.head_mask, 0
    for piece in range(n_pieces(first, end, wide.every, wide.piece)):
        place = place_of_piece(piece, b, first, end, wide.every, wide.piece)
        fetch_next(values, piece, b, first, end, wide)
        stop = min(place + wide.piece, end)
        for start in range(place, stop, wide.stream_len):
            part = subarray(values, start, min(stop - start, wide.stream_len))
            is_compared = may_be_compared(part, wide.head_mask, 0) and survey_heads(
                part, wide.head_shift, wide.head_mask, scratch
            )
            if is_compared:
                mean, number = mean_found(narrow.head_mask, 0, scratch.means)
                wide_mean, _ = mean_found(wide.head_mask, 0, scratch.means)
            else:
                mean, number = mean_head(part, narrow.head_shift, narrow.head_mask)
                wide_mean, _ = mean_head(part, wide.head_shift, wide.head_mask)
            if number == 0:  # a run takes no bits, but what it repeats has to have a code
                blocks[0][narrow_zero] += U32(1)
                blocks[1][wide_zero] += U32(1)
                streams[0][0] += U32(1)
                streams[1][0] += U32(1)
                continue
            if is_compared:
                low, high = count_compared(len(part), wide.head_mask, scratch, blocks[1])
            else:
                low, high = count_heads(part, wide.head_shift, wide.head_mask, bins, parts, wide_counts, blocks[1])
            _add_pairs(wide_counts, low, high, narrow_counts, blocks[0])
            # Zeros are counted behind the last head, of which there are half as many here.
            narrow_counts[narrow_zero] = wide_counts[wide_zero]
            blocks[0][narrow_zero] += wide_counts[wide_zero]
            add_rotated(narrow_counts, low >> 1, high >> 1, mean, narrow, streams[0])
            add_rotated(wide_counts, low, high, wide_mean, wide, streams[1])
            narrow_total += mean * number
            wide_total += wide_mean * number
            n_nonzero += number
            min_head, max_head = min(min_head, low), max(max_head, high)
    return narrow_total, wide_total, n_nonzero, min_head, max_head


@kernel
def count_both_heads(values, narrow, wide, scratch, in_narrow, in_wide):
    """Count a sample of all blocks, without column references; as :func:`count.count_sample` does for each head.

    Args:
        values: uint32[n_values], the array.
        narrow: See :class:`bundles.SampleSpec`, of the usual head; both kinds of histograms are wanted.
        wide: Of the wide one; else the same.
        scratch: See :class:`bundles.SampleScratch`.
        in_narrow: :class:`count.SampleCounts` of the usual head, results.
    """
    n_rows, n_bins = in_narrow.by_block.shape
    for counts in (in_narrow, in_wide):
        for histograms in (counts.by_block, counts.by_stream):
            every_bin = subarray(histograms, 0, n_rows * n_bins)
            for i in range(len(every_bin)):
                every_bin[i] = U32(0)
    narrow_block = subarray(scratch.counts, PART, PART)
    wide_block = subarray(scratch.block_counts, 0, PART)
    for row in range(n_rows):
        b = row * wide.step
        end = min(len(values), (b + 1) * wide.block)
        for i in range(PART):
            narrow_block[i], wide_block[i] = U32(0), U32(0)
        streams = subarray(in_narrow.by_stream, row * n_bins, n_bins), subarray(in_wide.by_stream, row * n_bins, n_bins)
        blocks = narrow_block, wide_block
        narrow_total, wide_total, n_nonzero, low, high = _count_block(
            values, b, end, narrow, wide, scratch, streams, blocks
        )
        base, wide_base = np.int64(-1), np.int64(-1)
        if n_nonzero:
            base = np.int64(mean_of(U64(narrow_total), U64(n_nonzero)))
            wide_base = np.int64(mean_of(U64(wide_total), U64(n_nonzero)))
        add_rotated(narrow_block, low >> 1, high >> 1, base, narrow, subarray(in_narrow.by_block, row * n_bins, n_bins))
        add_rotated(wide_block, low, high, wide_base, wide, subarray(in_wide.by_block, row * n_bins, n_bins))
        in_narrow.bases[row], in_wide.bases[row] = base, wide_base


@kernel
def weigh_both_heads(values, narrow, narrow_weights, wide, wide_weights, scratch, in_narrow, in_wide):
    """Count a sample as :func:`count_both_heads` does, and find what it takes.

    Args:
        values: uint32[n_values], the array.
        narrow: As of :func:`count_both_heads`, like the others.
        narrow_weights: See :class:`code_costs.Weights`, of the usual head.
        wide: See :class:`bundles.SampleSpec`.
        wide_weights: Of the wide head.
        scratch: See :class:`bundles.SampleScratch`.
        in_narrow: :class:`count.SampleCounts`, results.
        in_wide: Of the wide head.

    Returns:
        What :func:`code_costs.weigh_references` returns, of the usual head and of the wide one.
    """
    count_both_heads(values, narrow, wide, scratch, in_narrow, in_wide)
    return (
        weigh_references(in_narrow.by_block, in_narrow.by_stream, None, narrow_weights),
        weigh_references(in_wide.by_block, in_wide.by_stream, None, wide_weights),
    )
