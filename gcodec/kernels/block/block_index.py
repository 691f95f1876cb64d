"""The ends of a frame's prelude: its index of blocks and its checksum."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U8, U32, U64
from ..core.unaligned import load_u32, store_u32, store_u64
from ..entropy.encode_streams import checksum

FRAME_SIZE_AT, PRELUDE_BYTES_AT, CHECKSUM_AT = 16, 32, 40


@kernel
def seal_prelude(frame, start, index_at, prelude_bytes, frame_bytes, sizes):
    """Write a prelude.

        0       16            24      32              40         48          len(start)   index_at   ...   prelude_bytes
        start | frame_bytes | start | prelude_bytes | checksum | start ... | zeros      | index    | zeros

    Args:
        frame: uint8, of at least ``prelude_bytes``, result.
        start: uint8[n], what comes before the index.
        index_at: Byte where the index begins.
        prelude_bytes: Size of the prelude.
        frame_bytes: Size of the frame.
        sizes: uint32[n_blocks], the index: bytes of each block.
    """
    for i in range(len(start)):
        frame[i] = start[i]
    for i in range(len(start), prelude_bytes):
        frame[i] = U8(0)
    for b in range(len(sizes)):
        store_u32(frame, index_at + 4 * b, U32(sizes[b]))
    store_u64(frame, FRAME_SIZE_AT, U64(frame_bytes))
    store_u64(frame, PRELUDE_BYTES_AT, U64(prelude_bytes))
    # Last, for it is over all the rest; the place where it stands counts as 0.
    store_u64(frame, CHECKSUM_AT, U64(checksum(frame, 0, prelude_bytes >> 2, CHECKSUM_AT >> 2, U64(0))))


@kernel
def find_blocks(prelude, index_at, first, sizes, offsets):
    """Read an index.

    Args:
        prelude: uint8[n], the prelude or more.
        index_at: Byte where the index begins.
        first: Byte where the first block begins, which ends the prelude.
        sizes: int64[n_blocks], result: bytes of each block.
        offsets: int64[n_blocks], result: where each begins.

    Returns:
        The end of the last block, or -1 where a size is not a multiple of 8 or the padding after the index is not zero.
    """
    at = first
    for b in range(len(sizes)):
        size = np.int64(load_u32(prelude, index_at + 4 * b))
        sizes[b], offsets[b] = size, at
        # Below 2**63 whatever the sizes say: each has 32 bits, and there are no more of them than lie in the prelude.
        at += size
        if size & 7:
            return -1
    for i in range(index_at + 4 * len(sizes), first):
        if prelude[i]:
            return -1
    return at
