"""From blocks in slots to frames: where everything goes, preludes, and the blocks' way there."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..block.header import BLOCK_HEADER, CODED
from ..core.scalar import I32, U32, U64, lesser
from .grid import THREADS, N, block_number, gpu_function, gpu_kernel, scan, weighed
from .launch_tables import (
    BARE,
    BOOK,
    FIRST_BLOCK,
    LEVELS,
    LIMIT,
    N_BLOCKS,
    N_VALUES,
    PLACE,
    PRELUDE,
    ROOM,
    SLOT,
    START,
    START_WORDS,
    VALUES,
)
from .values import BLOCK, BLOCK_LOG2, write_header, write_raw

HOLE = I32(10)  #: first of the two words of a prelude that hold its checksum
SIZE = I32(4)  #: first of the two that hold the frame's size


@gpu_function
def raw_block_bytes(n, width):
    """Size of a raw block."""
    return U32(U32(BLOCK_HEADER) + U32(U32(U32(n) * U32(width >> U32(3))) + U32(7)) & ~U32(7))


@gpu_function
def size_of(out, frames, f, b, coding, bare):
    """Bytes of a frame's block; where it is ``bare``, without codebooks, coded ones become raw."""
    g = I32(I32(frames[f, FIRST_BLOCK]) + b)
    if bare and out.kinds[g] == CODED:
        start = U64(U64(b) << U64(BLOCK_LOG2))
        return raw_block_bytes(lesser(U64(U64(frames[f, N_VALUES]) - start), U64(BLOCK)), coding.width)
    return U32(out.sizes[g])


@gpu_kernel
def seal_frames(frames, parts, coding, out, starts, places, results, target):
    """Seal a frame's prelude and find where its blocks go, with one block of the grid for each frame.

    ``parts``: int64[n_frames, 8], see :mod:`launch_tables`; ``starts``: uint32, what comes before the indexes, sizes
    and checksums left zero; results: ``places``: int64[n_blocks], word of ``target`` at which a block begins, -1 where
    there is no frame, for lack of room or for a fault; ``results``: int64[n_frames, 2], bytes of the frame, 0 where
    there is none, and whether it has gone without its codebook; ``target``: uint32, all frames are reached from their
    places on.
    """
    cells = cuda.shared.array(THREADS, np.uint64)
    total = cuda.shared.array(1, np.uint64)
    lane, f = I32(cuda.threadIdx.x), block_number()
    n, first = I32(parts[f, N_BLOCKS]), I32(frames[f, FIRST_BLOCK])
    if lane == 0:
        total[0] = U64(0)
    cuda.syncthreads()
    own = U64(0)
    for b in range(lane, n, N):
        own = U64(own + U64(out.sizes[I32(first + b)]))
    cuda.atomic.add(total, 0, own)
    cuda.syncthreads()
    bare = frames[f, BOOK] >= 0 and U64(U64(parts[f, PRELUDE]) + U64(total[0])) > U64(parts[f, LIMIT])
    prelude = U64(parts[f, BARE]) if bare else U64(parts[f, PRELUDE])
    n_words = I32(parts[f, START_WORDS])
    start = U64(U64(parts[f, START]) + (U64(n_words) if bare else U64(0)))
    cuda.syncthreads()
    if lane == 0:
        total[0] = U64(0)
    cuda.syncthreads()
    own = U64(0)
    for b in range(lane, n, N):
        own = U64(own + U64(size_of(out, frames, f, b, coding, bare)))
    cuda.atomic.add(total, 0, own)
    cuda.syncthreads()
    size = U64(prelude + U64(total[0]))
    fits = size <= U64(parts[f, ROOM]) and out.faults[f] == 0
    cuda.syncthreads()
    if lane == 0:
        total[0] = U64(0)
        results[f, 0] = np.int64(size) if fits else np.int64(0)
        results[f, 1] = np.int64(1) if bare else np.int64(0)
    cuda.syncthreads()
    at = U64(parts[f, PLACE])
    index_words = I32(I32(n + I32(1)) & ~I32(1))
    index = I32(I32(prelude >> U64(2)) - index_words)
    checked, position = U64(0), U64(at + U64(prelude >> U64(2)))
    for tile in range(I32(0), n, N):
        b, bytes_ = I32(tile + lane), U32(0)
        if b < n:
            bytes_ = size_of(out, frames, f, b, coding, bare)
        cells[lane] = U64(bytes_)
        scan(cells)
        if b < n:
            word = U64(position + U64(U64(U64(cells[lane]) - U64(bytes_)) >> U64(2)))
            places[I32(first + b)] = np.int64(word) if fits else np.int64(-1)
            checked = U64(checked + weighed(bytes_, I32(index + b)))
            if fits:
                target[at + U64(I32(index + b))] = bytes_
        position = U64(position + U64(U64(cells[N - I32(1)]) >> U64(2)))
        cuda.syncthreads()
    for i in range(lane, index, N):
        word = U32(0)
        if i < n_words:
            word = U32(starts[start + U64(i)])
        if i == SIZE:
            word = U32(size & U64(0xFFFFFFFF))
        if i == SIZE + I32(1):
            word = U32(size >> U64(32))
        if i != HOLE and i != HOLE + I32(1):
            checked = U64(checked + weighed(word, i))
            if fits:
                target[at + U64(i)] = word
    if lane == 0 and fits and index_words > n:
        target[at + U64(I32(index + n))] = U32(0)
    cuda.atomic.add(total, 0, checked)
    cuda.syncthreads()
    if lane == 0 and not fits:
        target[at] = U32(0)
    if lane == 0 and fits:
        target[at + U64(HOLE)] = U32(U64(total[0]) & U64(0xFFFFFFFF))
        target[at + U64(HOLE) + U64(1)] = U32(U64(total[0]) >> U64(32))


@gpu_kernel
def move_blocks(values, levels, frames, owner, coding, tables, out, places, results, target):
    """Each block from its slot to its frame. Of a frame that has gone without its codebook, coded blocks are stored
    raw. Arguments as of :func:`encode.encode_blocks` and :func:`seal_frames`."""
    totals = cuda.shared.array(1, np.uint64)
    g = block_number()
    f = owner[g]
    place = places[g]
    if place < 0:
        return
    b, goal = I32(g - I32(frames[f, FIRST_BLOCK])), U64(place)
    start = U64(U64(b) << U64(BLOCK_LOG2))
    if results[f, 1] and out.kinds[g] == CODED:
        n = I32(lesser(U64(U64(frames[f, N_VALUES]) - start), U64(BLOCK)))
        at, level_at = U64(U64(frames[f, VALUES]) + start), U64(U64(frames[f, LEVELS]) + start)
        total = write_raw(values, levels, at, level_at, n, coding, tables.drops, target, U64(goal + U64(4)))
        write_header(1, 0, 0, n, b, total, totals, target, goal)
        return
    raw_words = U32(U32(BLOCK_HEADER >> 2) + U32(U32(U32(BLOCK) * coding.width) >> U32(5)))
    slot = U64(U64(frames[f, SLOT]) + U64(U64(b) * U64(raw_words)))
    for i in range(I32(cuda.threadIdx.x), I32(U32(out.sizes[g]) >> U32(2)), N):
        target[goal + U64(i)] = out.slots[slot + U64(i)]
