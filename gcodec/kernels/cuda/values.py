"""Values of a block as they are to be coded, and blocks that hold them as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda

from ..block.header import CHECKSUM
from ..block.header import N_VALUES as VALUES_FIELD
from ..core.scalar import I32, U32, U64, lesser, level_of, round_value
from .grid import N, block_number, gpu_function, seed_of, weighed
from .launch_tables import FIRST_BLOCK, LEVELS, N_VALUES, VALUES

BLOCK_LOG2 = 14  #: values per block, for all types that are encoded here
BLOCK = 1 << BLOCK_LOG2


class BlockValues(NamedTuple):
    """The values of one block of a tensor, and what is kept of them.

    Attributes:
        values: Values of all tensors of a launch, uintW.
        levels: Their levels, uint8; of no meaning where there is one level.
        at: Where the block begins in ``values``, uint64.
        level_at: Where it begins in ``levels``, uint64.
        n: Number of its values, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        drops: Mantissa bits to drop by level, uint32[16].
    """

    values: Any
    levels: Any
    at: Any
    level_at: Any
    n: Any
    coding: Any
    drops: Any


@gpu_function
def block_in_frame(tensors):
    """Return the row of this grid block's tensor, and the number of the block in it (int32)."""
    g = block_number()
    f = tensors.owner[g]
    return f, I32(g - I32(tensors.rows[f, FIRST_BLOCK]))


@gpu_function
def values_of_block(tensors, f, b, coding, drops):
    """Return the :class:`BlockValues` of a tensor's block.

    Args:
        tensors: The launch's :class:`launch_tables.Tensors`.
        f: Row of the tensor.
        b: Number of the block in it, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        drops: Mantissa bits to drop by level, uint32[16].
    """
    start = U64(U64(b) << U64(BLOCK_LOG2))
    at, level_at = U64(U64(tensors.rows[f, VALUES]) + start), U64(U64(tensors.rows[f, LEVELS]) + start)
    n = I32(lesser(U64(U64(tensors.rows[f, N_VALUES]) - start), U64(BLOCK)))
    return BlockValues(tensors.values, tensors.levels, at, level_at, n, coding, drops)


@gpu_function
def value_at(block, i):
    """Return value ``i`` of a block as it is to be coded, and its level; both uint32.

    A level that the ladder lacks does no harm here: there are always 16 drops. Infinities and NaNs have level 0.
    """
    bits, level, coding = U32(block.values[block.at + U64(i)]), U32(0), block.coding
    if coding.n_levels > U32(1):
        level = U32(U32(block.levels[block.level_at + U64(i)]) & U32(15))
        level = U32(level_of(bits, level, coding.sign, coding.infinity))
    if coding.lossy:
        drop, first = block.drops[level], block.drops[0]
        bits = U32(round_value(bits, drop, first, coding.sign, coding.infinity, coding.smallest_normal, coding.nearest,
                               coding.prune))
    return bits, level


@gpu_function
def write_raw(block, slot):
    """Write a raw block's values and padding, after its header.

        float32     | v0                | v1                | ...             a word is one thread's
        16 bits     | v0       v1       | v2       v3       | ... 0 0         padded to an even number of words

    Args:
        block: The :class:`BlockValues`.
        slot: Where the block goes, a :class:`words.BlockSlot`.

    Returns:
        This thread's share of the checksum, uint64.
    """
    total, per_word = U64(0), I32(U32(32) // block.coding.width)
    n_words = I32(U32(U32(I32(block.n + per_word) - I32(1)) // U32(per_word)) + U32(1)) & ~I32(1)
    for j in range(I32(cuda.threadIdx.x), n_words, N):
        word = U32(0)
        for k in range(per_word):
            i = I32(I32(j * per_word) + k)
            if i < block.n:
                bits, _ = value_at(block, i)
                word = U32(word | U32(bits << U32(U32(k) * block.coding.width)))
        slot.words[U64(slot.at + U64(4)) + U64(j)] = word
        total = U64(total + weighed(word, U32(j + I32(4))))
    return total


@gpu_function
def write_header(kind, base, n, b, total, sums, slot):
    """Write a block's first four words, once all threads have added up the checksum; its codebook is number 0.

    Args:
        kind: Block kind.
        base: Reference head of a coded block, else 0.
        n: Number of values.
        b: Number of the block in its frame.
        total: This thread's share of the checksum of all other words.
        sums: Cell to add the shares up in: shared, uint64[1].
        slot: Where the block goes, a :class:`words.BlockSlot`.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[0] = seed_of(b)
    cuda.syncthreads()
    cuda.atomic.add(sums, 0, U64(total))
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        first = U32(U32(kind) | U32(U32(base) << U32(16)))
        checksum = U64(U64(sums[0]) + U64(weighed(first, 0) + weighed(U32(n), 1)))
        slot.words[slot.at] = first
        slot.words[slot.at + U64(VALUES_FIELD >> 2)] = U32(n)
        slot.words[slot.at + U64(CHECKSUM >> 2)] = U32(checksum & U64(0xFFFFFFFF))
        slot.words[slot.at + U64((CHECKSUM >> 2) + 1)] = U32(checksum >> U64(32))
