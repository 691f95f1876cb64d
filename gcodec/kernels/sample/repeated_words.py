"""Find out whether parts of some bytes occur again: what Zstandard is good at, and coding values one by one is not.

Pairs of neighboring words are picked by what they are, not by where they lie, so that where a pair is picked each
repetition of it is, too:

    words     w0  w1  w2  w3  w4 ...
    hashes      h0  h1  h2  h3 ...        h = w * FACTOR + next w * OTHER, modulo 2**32
    picked          h1                    h < limit: one pair in 2**32 / limit
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.jit import kernel
from ..core.masks import lowest_one
from ..core.scalar import U32, U64
from ..core.simd import INDEX, load, splat
from ..core.specialized import Specialized

MAX_PICKED = 1 << 12  #: pairs that are picked at most
_WANTED = 1 << 10  #: pairs that are wanted, of words that do not repeat
#: Odd factors, of which the highest bits of products are well mixed: those of the golden ratio and of pi.
_FACTOR, _OTHER = 0x9E3779B1, 0x243F6A89
_TABLE_LOG2 = 13
_TABLE = 1 << _TABLE_LOG2  #: places of a table that has all pairs that are picked
_SPREAD = 0x9E3779B97F4A7C15  #: likewise, of 64 bits
_RUN = 64  #: pairs whose hashes are found together


def _generate_below(builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that hashes _RUN pairs of words."""
    address = at(0, 32)
    first, following = (load(builder, builder.gep(address, [INDEX(4 * k)]), 32, _RUN) for k in range(2))
    return (first * _FACTOR + following * _OTHER).compare("<", splat(builder, args[2], 32, _RUN)).number()


#: _pairs_below(words, i, limit) -> which of _RUN pairs from word i on have a hash below the limit, a bit for each:
#: uint64.
_pairs_below = intrinsic_step(types.uint64, 3, _generate_below)


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
    for start in range(0, (len(words) - 1) // _RUN * _RUN, _RUN):
        below = _pairs_below(words, start, limit)
        while below:
            i = start + lowest_one(below)
            pair = U64(words[i]) << U64(32) | U64(words[i + 1])
            if pair != 0:
                if n_picked == len(picked):
                    return n_picked
                picked[n_picked] = pair
                n_picked += 1
            # Its lowest bit is done with, and cleared.
            below &= U64(below - U64(1))
    return n_picked


@kernel
def _n_repeated(picked, n_picked, table):
    """Return how many of the first ``n_picked`` pairs are like an earlier one.

    Args:
        picked: uint64[n_picked or more], none of them 0.
        n_picked: How many there are.
        table: uint64[_TABLE], scratch: each pair at the first free place from that of its hash on.
    """
    n_repeated = 0
    for place in range(_TABLE):
        table[place] = U64(0)
    for k in range(n_picked):
        pair = picked[k]
        # The highest bits of the product: all bits of the pair have a part in them. There are twice as many places as
        # pairs at most, so that a free one is always found.
        place = np.int64((pair * U64(_SPREAD)) >> U64(64 - _TABLE_LOG2))
        while table[place] != U64(0) and table[place] != pair:
            place = place + 1 & _TABLE - 1
        n_repeated += table[place] == pair
        table[place] = pair
    return n_repeated


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
        if not words.flags.aligned:  # in three phases of four; aligned ones are of one type for the kernel
            words = words.copy()
        n_picked = _pick[None](words, limit, picked, n_picked)
    n_repeated: int = _count[None](picked, n_picked, np.empty(_TABLE, np.uint64))
    return n_repeated / max(n_picked, 1)


_pick, _count = Specialized(_pick_pairs), Specialized(_n_repeated)
