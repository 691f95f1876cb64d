"""Counting the symbols of whole arrays, for a fresh codebook."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..core.scalar import I32, U32, U64, bin_of, bin_of_level, mean_of
from .block_symbols import STREAMS, find_means
from .grid import N, gpu_kernel
from .launch_tables import STREAM_LOG2
from .values import block_in_frame, values_of_block

MAX_BINS = 2 + 16 * 64


@gpu_kernel
def count_symbols(tensors, coding, drops, window, center, counts):
    """Add a block of the grid's block of a tensor to its histogram of heads relative to each sub-stream's mean.

    Of a sub-stream of zeros one value is counted, as :func:`count.count_sample` does.

    Args:
        tensors: :class:`launch_tables.Tensors`.
        coding: The :class:`launch_tables.ValueCoding` of a lossless frame: values are counted before rounding.
        drops: Mantissa bits that each level loses, uint32[16].
        window: Bins of each level, uint32, see :mod:`code_costs`.
        center: Bin of a relative head of 0, uint32, see :mod:`code_costs`.
        counts: uint32[n_frames, 2 + n_levels * window], results, zeroed::

            bin    0       1               2 ... window + 1    window + 2 ... 2 window + 1    ...
            of     zero    outside all     level 0             level 1                        ...
    """
    bins = cuda.shared.array(MAX_BINS, np.uint32)
    heads = cuda.shared.array(STREAMS, np.uint32)
    numbers = cuda.shared.array(STREAMS, np.uint32)
    sums = cuda.shared.array(8, np.uint32)
    lane = I32(cuda.threadIdx.x)
    f, b = block_in_frame(tensors)
    block = values_of_block(tensors, f, b, coding, drops)
    log2, n_bins = I32(tensors.rows[f, STREAM_LOG2]), I32(counts.shape[1])
    for i in range(lane, n_bins, N):
        bins[i] = U32(0)
    for s in range(lane, I32(STREAMS), N):
        heads[s], numbers[s] = U32(0), U32(0)
    cuda.syncthreads()
    find_means(block, log2, heads, numbers, sums)
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    for i in range(lane, block.n, N):
        s = I32(i >> log2)
        bits, number = U32(block.values[block.at + U64(i)]), U32(numbers[s])
        if number:
            place = U32(bin_of(bits, U32(mean_of(U32(heads[s]), number)), shift, mask, window, center))
            if coding.n_levels > U32(1):
                level = U32(block.levels[block.level_at + U64(i)])
                place = U32(bin_of_level(place, level, U32(coding.n_levels - U32(1)), window))
            cuda.atomic.add(bins, place, U32(1))
        elif I32(s << log2) == i:
            cuda.atomic.add(bins, 0, U32(1))
    cuda.syncthreads()
    for i in range(lane, n_bins, N):
        if bins[i]:
            cuda.atomic.add(counts, (f, i), U32(bins[i]))
