"""Values of a block as they are to be coded, and blocks that hold them as they are."""

from __future__ import annotations

from numba import cuda

from ..block.header import CHECKSUM, N_VALUES
from ..core.scalar import I32, U32, U64, round_value
from .grid import N, gpu_function, seed_of, weighed

BLOCK_LOG2 = 14  #: values per block, for all types that are encoded here
BLOCK = 1 << BLOCK_LOG2


@gpu_function
def value_at(values, levels, at, level_at, i, coding, drops):
    """Value ``i`` of a block as it is to be coded, and its level."""
    bits, level = U32(values[at + U64(i)]), U32(0)
    if coding.n_levels > U32(1):
        level = U32(levels[level_at + U64(i)])
        level = U32(level & U32(15)) if U32(bits & U32(coding.sign - U32(1))) < coding.infinity else U32(0)
    if coding.lossy:
        drop, first = drops[level], drops[0]
        bits = U32(round_value(bits, drop, first, coding.sign, coding.infinity, coding.smallest_normal, coding.nearest,
                               coding.prune))
    return bits, level


@gpu_function
def write_raw(values, levels, at, level_at, n, coding, drops, out, place):
    """A raw block's values and padding, from word ``place`` (uint64) of ``out``. Returns this thread's share of the
    checksum."""
    total, per_word = U64(0), I32(U32(32) // coding.width)
    n_words = I32(U32(U32(I32(n + per_word) - I32(1)) // U32(per_word)) + U32(1)) & ~I32(1)
    for j in range(I32(cuda.threadIdx.x), n_words, N):
        word = U32(0)
        for k in range(per_word):
            i = I32(I32(j * per_word) + k)
            if i < n:
                bits, _ = value_at(values, levels, at, level_at, i, coding, drops)
                word = U32(word | U32(bits << U32(U32(k) * coding.width)))
        out[place + U64(j)] = word
        total = U64(total + weighed(word, U32(j + I32(4))))
    return total


@gpu_function
def write_header(kind, c, base, n, b, total, sums, out, place):
    """A block's first four words, once all threads have added up their shares, ``total``, in ``sums[0]`` (shared,
    uint64[1])."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[0] = seed_of(b)
    cuda.syncthreads()
    cuda.atomic.add(sums, 0, U64(total))
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        first = U32(U32(kind) | U32(U32(U32(c) << U32(8)) | U32(U32(base) << U32(16))))
        found = U64(U64(sums[0]) + U64(weighed(first, 0) + weighed(U32(n), 1)))
        out[place] = first
        out[place + U64(N_VALUES >> 2)] = U32(n)
        out[place + U64(CHECKSUM >> 2)] = U32(found & U64(0xFFFFFFFF))
        out[place + U64((CHECKSUM >> 2) + 1)] = U32(found >> U64(32))
