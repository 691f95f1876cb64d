"""From blocks in slots to frames: where everything goes, preludes, and the blocks' way there."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..block.header import BLOCK_HEADER, CODED, RAW
from ..core.scalar import I32, U32, U64, lesser
from .grid import THREADS, N, block_number, gpu_function, gpu_kernel, scan, weighed
from .launch_tables import (
    BARE,
    BOOK,
    FIRST_BLOCK,
    LIMIT,
    N_BLOCKS,
    N_VALUES,
    PLACE,
    PRELUDE,
    ROOM,
    SLOT,
    START,
    START_WORDS,
)
from .values import BLOCK, BLOCK_LOG2, block_in_frame, values_of_block, write_header, write_raw
from .words import BlockSlot

HOLE = I32(10)  #: first of the two words of a prelude that hold its checksum
SIZE = I32(4)  #: first of the two that hold the frame's size


@gpu_function
def raw_block_bytes(n, width):
    """Return the bytes of a raw block of ``n`` values of ``width`` bits: uint32."""
    return U32(U32(BLOCK_HEADER) + U32(U32(U32(n) * U32(width >> U32(3))) + U32(7)) & ~U32(7))


@gpu_function
def size_of(out, rows, f, b, coding, bare):
    """Return the bytes of block ``b`` of frame ``f``: uint32.

    Args:
        out: Results of :func:`encode.encode_blocks`.
        rows: Table of frames to encode, see :mod:`launch_tables`.
        f: Number of the frame.
        b: Number of the block in it, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        bare: Whether the frame goes without its codebook, so that coded blocks become raw.
    """
    g = I32(I32(rows[f, FIRST_BLOCK]) + b)
    if bare and out.kinds[g] == CODED:
        start = U64(U64(b) << U64(BLOCK_LOG2))
        return raw_block_bytes(lesser(U64(U64(rows[f, N_VALUES]) - start), U64(BLOCK)), coding.width)
    return U32(out.sizes[g])


@gpu_kernel
def seal_frames(rows, parts, coding, out, starts, places, results, target):
    """Seal a frame's prelude and find where its blocks go, with one block of the grid for each frame.

    A frame of coded blocks that is longer than one of raw blocks without a codebook is put together as the latter.

        frame     start (fixed, codebook) | block sizes, padded to 8 bytes | block 0 | block 1 | ...
                  ^ size, checksum        ^ index                          ^ prefix sums of the sizes

    Args:
        rows: Table of frames to encode, int64[n_frames, 8], see :mod:`launch_tables`.
        parts: Table of frames to put together, int64[n_frames, 8], see :mod:`launch_tables`.
        coding: :class:`launch_tables.ValueCoding`.
        out: Results of :func:`encode.encode_blocks`.
        starts: uint32: what comes before the indexes, sizes and checksums left zero.
        places: int64[n_blocks], results: word of ``target`` at which a block begins; -1 where there is no frame, for
            lack of room or for a fault.
        results: int64[n_frames, 2], results: bytes of the frame, 0 where there is none; whether it has gone without its
            codebook.
        target: uint32, results: all frames are reached from their places on.
    """
    cells = cuda.shared.array(THREADS, np.uint64)
    total = cuda.shared.array(1, np.uint64)
    lane, f = I32(cuda.threadIdx.x), block_number()
    n, first = I32(parts[f, N_BLOCKS]), I32(rows[f, FIRST_BLOCK])
    if lane == 0:
        total[0] = U64(0)
    cuda.syncthreads()
    share = U64(0)
    for b in range(lane, n, N):
        share = U64(share + U64(out.sizes[I32(first + b)]))
    cuda.atomic.add(total, 0, share)
    cuda.syncthreads()
    bare = rows[f, BOOK] >= 0 and U64(U64(parts[f, PRELUDE]) + U64(total[0])) > U64(parts[f, LIMIT])
    prelude = U64(parts[f, BARE]) if bare else U64(parts[f, PRELUDE])
    n_words = I32(parts[f, START_WORDS])
    start = U64(U64(parts[f, START]) + (U64(n_words) if bare else U64(0)))
    cuda.syncthreads()
    if lane == 0:
        total[0] = U64(0)
    cuda.syncthreads()
    share = U64(0)
    for b in range(lane, n, N):
        share = U64(share + U64(size_of(out, rows, f, b, coding, bare)))
    cuda.atomic.add(total, 0, share)
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
            bytes_ = size_of(out, rows, f, b, coding, bare)
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
        target[at] = U32(0)  # no magic number
    if lane == 0 and fits:
        target[at + U64(HOLE)] = U32(U64(total[0]) & U64(0xFFFFFFFF))
        target[at + U64(HOLE) + U64(1)] = U32(U64(total[0]) >> U64(32))


@gpu_kernel
def move_blocks(tensors, coding, tables, out, places, results, target):
    """Move a block from its slot to its frame.

    Of a frame that has gone without its codebook, coded blocks are made anew, as raw ones.

    Args:
        tensors: As for :func:`encode.encode_blocks`.
        coding: As for :func:`encode.encode_blocks`.
        tables: As for :func:`encode.encode_blocks`.
        out: Results of :func:`encode.encode_blocks`.
        places: As :func:`seal_frames` leaves them.
        results: As :func:`seal_frames` leaves them.
        target: uint32, results: all frames are reached from their places on.
    """
    totals = cuda.shared.array(1, np.uint64)
    g = block_number()
    place = places[g]
    if place < 0:
        return
    f, b = block_in_frame(tensors)
    goal = BlockSlot(target, U64(place))
    if results[f, 1] and out.kinds[g] == CODED:
        block = values_of_block(tensors, f, b, coding, tables.drops)
        total = write_raw(block, goal)
        write_header(RAW, 0, block.n, b, total, totals, goal)
        return
    raw_words = U32(U32(BLOCK_HEADER >> 2) + U32(U32(U32(BLOCK) * coding.width) >> U32(5)))
    slot = U64(U64(tensors.rows[f, SLOT]) + U64(U64(b) * U64(raw_words)))
    for i in range(I32(cuda.threadIdx.x), I32(U32(out.sizes[g]) >> U32(2)), N):
        target[goal.at + U64(i)] = out.slots[slot + U64(i)]
