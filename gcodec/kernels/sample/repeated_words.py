"""Find out whether parts of some bytes occur again: what Zstandard is good at, and coding values one by one is not.

Pairs of neighboring words are picked by what they are, not by where they lie, so that where a pair is picked each
repetition of it is, too:

    words     w0  w1  w2  w3  w4 ...
    hashes      h0  h1  h2  h3 ...        h = w * FACTOR + next w * OTHER, modulo 2**32
    picked          h1                    h < limit: one pair in 2**32 / limit
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U32, U64
from ..core.unaligned import subarray

MAX_PICKED = 1 << 12  #: pairs that are picked at most
_WANTED = 1 << 10  #: pairs that are wanted, of words that do not repeat
#: Odd factors, of which the highest bits of products are well mixed: those of the golden ratio and of pi.
_FACTOR, _OTHER = U32(0x9E3779B1), U32(0x243F6A89)
_RUN = 64  #: words whose least hash is found together, by vector steps


@kernel
def _hash_of(word, following):
    """Return the hash of a pair of words: uint32."""
    return U32(U32(word * _FACTOR) + U32(following * _OTHER))


@kernel
def _least_hash(words, following):
    """Return the least hash of _RUN pairs."""
    least = U32(0xFFFFFFFF)
    for i in range(_RUN):
        found = _hash_of(words[i], following[i])
        least = found if found < least else least
    return least


@kernel
def _pick_pairs(words, limit, picked, n_picked):
    """Append the pairs whose hash is below a limit, but for zeros, which every way to code values makes small.

    Args:
        words: uint32[n].
        limit: uint32.
        picked: uint64[MAX_PICKED], the pairs.
        n_picked: How many there are already.

    Returns:
        How many there are now; no more are added where there is no room.
    """
    for run in range((len(words) - 1) // _RUN):
        first, following = subarray(words, run * _RUN, _RUN), subarray(words, run * _RUN + 1, _RUN)
        # Most runs have no pair to pick: the least of 64 hashes, found by vectors, says so, and only others are looked
        # through.
        if _least_hash(first, following) < limit:
            for i in range(_RUN):
                pair = U64(first[i]) << U64(32) | U64(following[i])
                if _hash_of(first[i], following[i]) < limit and pair != 0:
                    if n_picked == len(picked):
                        return n_picked
                    picked[n_picked] = pair
                    n_picked += 1
    return n_picked


def share_repeated(data: np.ndarray, step: int) -> float:
    """Return the share of the picked pairs of words that have been picked before.

    Args:
        data: uint8[n].
        step: Bytes between places where words may begin: 1, 2 or 4.
    """
    n_pairs = max(data.size // step, 1)
    limit = U32(min((_WANTED << 32) // n_pairs, (1 << 32) - 1))
    picked, n_picked = np.empty(MAX_PICKED, np.uint64), 0
    for phase in range(0, 4, step):
        words = data[phase : phase + (data.size - phase) // 4 * 4].view(np.uint32)
        words = np.require(words, requirements="A")  # in one type for the kernel; a copy in three phases of four
        n_picked = _pick_pairs(words, limit, picked, n_picked)
    pairs = np.sort(picked[:n_picked])
    return int(np.count_nonzero(pairs[1:] == pairs[:-1])) / max(n_picked, 1)
