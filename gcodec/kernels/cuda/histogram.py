"""Counting the symbols of whole arrays, for a fresh codebook."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..core.scalar import I32, U32, U64, bin_of, lesser
from .block_symbols import STREAMS, find_means
from .grid import N, block_number, gpu_kernel
from .launch_tables import FIRST_BLOCK, LEVELS, N_VALUES, STREAM_LOG2, VALUES
from .values import BLOCK, BLOCK_LOG2

MOST_BINS = 2 + 16 * 64


@gpu_kernel
def count_symbols(values, levels, frames, owner, coding, drops, window, center, counts):
    """Add a block of the grid's block of a frame to its histogram of heads relative to each sub-stream's mean. Of a
    sub-stream of zeros one value is counted, as :func:`count.count_sample` does.

    ``window``, ``center``: uint32, see :mod:`code_costs`; ``coding``: that of a lossless frame: what there is before
    rounding counts; ``counts``: uint32[n_frames, 2 + n_levels * window], result, zeroed; other arguments as of
    :func:`encode.encode_blocks`.
    """
    bins = cuda.shared.array(MOST_BINS, np.uint32)
    heads = cuda.shared.array(STREAMS, np.uint32)
    numbers = cuda.shared.array(STREAMS, np.uint32)
    sums = cuda.shared.array(8, np.uint32)
    lane, g = I32(cuda.threadIdx.x), block_number()
    f = owner[g]
    start = U64(U64(I32(g - I32(frames[f, FIRST_BLOCK]))) << U64(BLOCK_LOG2))
    at, level_at = U64(U64(frames[f, VALUES]) + start), U64(U64(frames[f, LEVELS]) + start)
    n, log2 = I32(lesser(U64(U64(frames[f, N_VALUES]) - start), U64(BLOCK))), I32(frames[f, STREAM_LOG2])
    n_bins = I32(counts.shape[1])
    for i in range(lane, n_bins, N):
        bins[i] = U32(0)
    for s in range(lane, I32(STREAMS), N):
        heads[s], numbers[s] = U32(0), U32(0)
    cuda.syncthreads()
    find_means(values, levels, at, level_at, n, log2, coding, drops, heads, numbers, sums)
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    for i in range(lane, n, N):
        s = I32(i >> log2)
        bits, number = U32(values[at + U64(i)]), U32(numbers[s])
        if number:
            found = bin_of(bits, U32(U32(heads[s]) // number), shift, mask, window, center)
            if coding.n_levels > U32(1) and found > U32(1):
                found = U32(found + U32(window * lesser(U32(levels[level_at + U64(i)]), U32(coding.n_levels - U32(1)))))
            cuda.atomic.add(bins, found, U32(1))
        elif I32(s << log2) == i:
            cuda.atomic.add(bins, 0, U32(1))
    cuda.syncthreads()
    for i in range(lane, n_bins, N):
        if bins[i]:
            cuda.atomic.add(counts, (f, i), U32(bins[i]))
