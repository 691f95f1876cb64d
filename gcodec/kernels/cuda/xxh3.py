"""Kernels for XXH3 of 64 bits, the hash of tensors in archives and in versions of weights.

Of more than 240 bytes, XXH3 makes eight accumulators. What a block of 1,024 bytes adds to them does not depend on them,
so all blocks are summed at once; from block to block they are scrambled, one after the other, and that takes a
sixteenth of the bytes. Many hashes are chained at once, each by a block of the grid.

    bytes     0 ... 1023 | 1024 ... 2047 | ... | the rest, and the last 64 bytes once more
    sums      8 words    | 8 words       | ... | 8 words                                       sum_hash_blocks
    chain     + scramble | + scramble    | ... | +                                             chain_hash_blocks
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..core.scalar import I32, U64, lesser
from .grid import N, block_number, gpu_function, gpu_kernel

BLOCK_BYTES = 1024  #: between two scrambles
STRIPE_BYTES = 64  #: a word of it for each accumulator
N_LANES = 8  #: accumulators
BLOCKS_PER_SUM = 16  #: blocks that a block of the grid sums
#: Where the words of :func:`gcodec.gpu.hashing.hash_words` begin: those of the secret, of which the last eight are for
#: scrambling; those for the last 64 bytes; the accumulators as they begin.
SCRAMBLE, LAST, START, N_WORDS = 16, 24, 32, 40

_STAGED = 64  #: blocks whose sums are brought to shared memory at a time
_SUMMED, _CHAINED = BLOCKS_PER_SUM * N_LANES, _STAGED * N_LANES
_PRIME = np.uint64(0x9E3779B1)
_LOW = np.uint64(0xFFFFFFFF)


@gpu_function
def product_of(key):
    """Return the product of the two halves of a word."""
    return U64(U64(key & _LOW) * U64(key >> U64(32)))


@gpu_function
def last_word(data, n_bytes, i):
    """Return word ``i`` of the last 64 bytes, which may begin anywhere."""
    at, word = U64(U64(n_bytes - U64(STRIPE_BYTES)) + U64(8 * i)), U64(0)
    for k in range(I32(8)):
        word = U64(word | U64(U64(data[U64(at + U64(k))]) << U64(8 * k)))
    return word


@gpu_kernel
def sum_hash_blocks(words, data, n_bytes, fixed, first, sums):
    """Sum what blocks of a tensor add to the accumulators of its hash.

    Args:
        words: uint64, the tensor's whole words.
        data: uint8, the tensor's bytes.
        n_bytes: Their number, uint64, above 240.
        fixed: uint64[N_WORDS], as :func:`gcodec.gpu.hashing.hash_words` returns them.
        first: Element of ``sums`` at which those of the tensor begin, uint64.
        sums: uint64, results: eight for each block, and eight for the rest.
    """
    own = cuda.shared.array(_SUMMED, np.uint64)
    others = cuda.shared.array(_SUMMED, np.uint64)  # on a line of its own: the simulator tells them apart by that
    lane, g = I32(cuda.threadIdx.x), block_number()
    n_full = U64(U64(n_bytes - U64(1)) // U64(BLOCK_BYTES))
    start = U64(U64(g) * U64(BLOCKS_PER_SUM))
    n = I32(lesser(U64(U64(n_full + U64(1)) - start), U64(BLOCKS_PER_SUM)) * U64(N_LANES))
    for j in range(lane, n, N):
        block, i = U64(start + U64(j >> I32(3))), I32(j & I32(7))
        n_stripes = I32(16)
        if block == n_full:
            n_stripes = I32(U64(U64(n_bytes - U64(1)) - U64(n_full * U64(BLOCK_BYTES))) // U64(STRIPE_BYTES))
        at, products, plain = U64(U64(block * U64(BLOCK_BYTES // 8)) + U64(i)), U64(0), U64(0)
        for s in range(n_stripes):
            word = U64(words[U64(at + U64(8 * s))])
            products = U64(products + product_of(U64(word ^ U64(fixed[I32(s + i)]))))
            plain = U64(plain + word)
        if block == n_full:
            word = last_word(data, n_bytes, i)
            products = U64(products + product_of(U64(word ^ U64(fixed[I32(LAST + i)]))))
            plain = U64(plain + word)
        own[j], others[I32(j ^ I32(1))] = products, plain  # a word is added to the accumulator beside its own
    cuda.syncthreads()
    for j in range(lane, n, N):
        sums[U64(U64(first + U64(start * U64(N_LANES))) + U64(j))] = U64(U64(own[j]) + U64(others[j]))


@gpu_kernel
def chain_hash_blocks(sums, firsts, n_fulls, fixed, results):
    """Make the accumulators of hashes from the sums of their blocks.

    Args:
        sums: uint64, the results of :func:`sum_hash_blocks`.
        firsts: int64[n], the element of ``sums`` at which those of each hash begin.
        n_fulls: int64[n], blocks after which each hash is scrambled: all but the rest.
        fixed: As in :func:`sum_hash_blocks`.
        results: uint64[8 n], results.
    """
    cells = cuda.shared.array(_CHAINED, np.uint64)
    state = cuda.shared.array(N_LANES, np.uint64)
    lane, g = I32(cuda.threadIdx.x), block_number()
    first, n_full, at = U64(firsts[g]), U64(n_fulls[g]), U64(0)
    for i in range(lane, I32(N_LANES), N):
        state[i] = U64(fixed[I32(START + i)])
    while at <= n_full:
        n_blocks = I32(lesser(U64(U64(n_full + U64(1)) - at), U64(_STAGED)))
        for j in range(lane, I32(n_blocks * I32(N_LANES)), N):
            cells[j] = U64(sums[U64(U64(first + U64(at * U64(N_LANES))) + U64(j))])
        cuda.syncthreads()
        n_scrambled = I32(lesser(U64(n_full - at), U64(n_blocks)))
        for i in range(lane, I32(N_LANES), N):
            total, key = U64(state[i]), U64(fixed[I32(SCRAMBLE + i)])
            for k in range(n_scrambled):
                total = U64(total + U64(cells[I32(k * I32(N_LANES) + i)]))
                total = U64(U64(U64(total ^ U64(total >> U64(47))) ^ key) * _PRIME)
            if n_scrambled < n_blocks:
                total = U64(total + U64(cells[I32(n_scrambled * I32(N_LANES) + i)]))
            state[i] = total
        cuda.syncthreads()
        at = U64(at + U64(_STAGED))
    for i in range(lane, I32(N_LANES), N):
        results[I32(I32(g * I32(N_LANES)) + i)] = U64(state[i])
