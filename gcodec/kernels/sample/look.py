"""Look at some values of an array, from which the planner tells what the array is like.

Up to :data:`N_PLACES` places are looked at: all of a short array, in a long one places that repeat no pattern of rows
and columns. They lie √2 - 1 of the array apart, around and around:

    array    |0.......................................|........n
    place     0               1               2      |
                    4               5              6 |  3 is beyond the end, and goes on from the start
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.unaligned import subarray

N_PLACES = 1024  #: max values that are looked at
#: What is counted, by place in the result; the planner's ``Profile`` says more.
N_SEEN, LOW_BITS, N_ZERO, N_MINUS_ZERO, N_SPECIAL, N_SHORT, N_VERY_SHORT, N_LIKE_FIRST, N_COUNTS = range(9)


@kernel
def look_at(values, step, form, some, counts):
    """Count what some values are like.

    Args:
        values: uintW[n], at least one.
        step: how far apart the places lie, which has no divisor in common with n; 1 where all values are looked at.
        form: uintW[4]: the bits of infinity and of -0, then the low bits of which short values have none, then those
            of which very short ones have none.
        some: uintW[N_PLACES], the values that were looked at, result.
        counts: int64[N_COUNTS], results. Zeros are +0; special values are infinite or NaN; short and very short values
            are not zeros.
    """
    n, n_seen, place = len(values), min(len(values), N_PLACES), 0
    seen = subarray(some, 0, n_seen)
    if step == 1:
        for k in range(n_seen):
            seen[k] = values[k]
    else:
        for k in range(n_seen):
            seen[k] = values[place]
            place += step
            place -= n if place >= n else 0
    infinity, minus_zero, short, very_short = form[0], form[1], form[2], form[3]
    first, merged, none = seen[0], seen[0], seen[0] ^ seen[0]
    n_zero, n_minus_zero, n_special, n_short, n_very_short, n_like_first = 0, 0, 0, 0, 0, 0
    for k in range(n_seen):
        bits = seen[k]
        merged |= bits
        n_zero += bits == none
        n_minus_zero += bits == minus_zero
        n_special += bits & infinity == infinity
        n_short += bits & short == none
        n_very_short += bits & very_short == none
        n_like_first += bits == first
    counts[N_SEEN], counts[LOW_BITS], counts[N_LIKE_FIRST] = n_seen, np.int64(merged), n_like_first
    counts[N_ZERO], counts[N_MINUS_ZERO], counts[N_SPECIAL] = n_zero, n_minus_zero, n_special
    counts[N_SHORT], counts[N_VERY_SHORT] = n_short - n_zero, n_very_short - n_zero
