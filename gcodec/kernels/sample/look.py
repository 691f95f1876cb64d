"""Look at some values of an array, from which the planner tells what the array is like.

Up to :data:`N_PLACES` places are looked at: all of a short array, in a long one places that repeat no pattern of rows
and columns. They lie √2 - 1 of the array apart, around and around:

    array    |0.......................................|........n
    place     0               1               2      |
                    4               5              6 |  3 is beyond the end, and goes on from the start
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import allocating, kernel
from ..core.unaligned import subarray

N_PLACES = 1024  #: max values that are looked at
#: What is counted, by place in the result.
N_SEEN, LOW_BITS, N_ZERO, N_MINUS_ZERO, N_SPECIAL, N_SHORT, N_VERY_SHORT, N_LIKE_FIRST, N_COUNTS = range(9)
#: Short and very short values have so many low bits that are zero; by chance, one value in 16 and one in 128 has.
SHORT_BITS, VERY_SHORT_BITS = 4, 7
MIN_VALUES = 64  #: of an array whose low bits are worth a search
MIN_MIXED = 1 << 12  #: of an array that may have levels of values with more low bits that are zero, and of others
SHORT_SHARE, VERY_SHORT_SHARE = 8, 24  #: one value in so many must be short, or very short, for levels
#: A mask that arrays are multiplied by leaves -0 for half of what it takes away: one value in so many.
MASKED_SHARE = 64
SPECIAL_SHARE = 32  #: one value in so many must be infinite or NaN to matter
#: Share of values other than zero up to which sparse blocks are looked for, with what a sample may be off.
MAX_NONZERO = 0.43

MAY_BE_CONSTANT = 1  #: nothing shows that values differ
MAY_BE_SPARSE = 2  #: so many values are zero that sparse blocks may be smaller
MAY_DROP_BITS = 4  #: low bits may be zero in all values, beyond those left out of account
MAY_HAVE_LEVELS = 8  #: many values have low bits that are zero, and others have not
#: A part of the values is infinite or NaN, and their heads have codes: where the mean of a block or sub-stream lies
#: says then how many are, not where the others lie.
HAS_MANY_SPECIAL = 16


class LookRules(NamedTuple):
    """Holds what looking at an array takes that depends on its type, and on the low bits left out of account.

    Attributes:
        compared: uintW[5]: the bits of infinity and of -0, then the low bits of which short values have none, then
            those of which very short ones have none, then those left out of account and the next.
        has_tail: Whether values have low bits that a level may leave out.
        has_very_short: Whether a level may leave out as many as very short values have.
        has_codes: Whether heads of -0, infinities and NaN may have codes.
    """

    compared: np.ndarray
    has_tail: bool
    has_very_short: bool
    has_codes: bool


@kernel
def count_some(values, step, compared, some, counts):
    """Count what some values are like.

    Args:
        values: uintW[n], at least one.
        step: How far apart the places lie, which has no divisor in common with n; 1 where all values are looked at.
        compared: See :class:`LookRules`.
        some: uintW[N_PLACES], the values that were looked at, result.
        counts: int64[N_COUNTS], results. Zeros are +0; special values are infinite or NaN; short and very short values
            are not zeros, and their low bits are beyond those left out of account.
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
            # Around the end: as the step has no divisor in common with n, no value is met twice.
            place -= n if place >= n else 0
    # The values were gathered first: here they lie side by side, and no count has a branch.
    infinity, minus_zero, short, very_short = compared[0], compared[1], compared[2], compared[3]
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


@allocating
def look_at(values, step, rules):
    """Look at some values, and return what that makes worth a closer look: the sum of the flags ``MAY_BE_CONSTANT`` ...
    ``HAS_MANY_SPECIAL`` that hold.

    Args:
        values: uintW[n], at least one.
        step: As of :func:`count_some`.
        rules: :class:`LookRules`.
    """
    n, counts = len(values), np.empty(N_COUNTS, np.int64)
    count_some(values, step, rules.compared, np.empty(N_PLACES, values.dtype), counts)
    n_seen, n_nonzero, flags = counts[N_SEEN], counts[N_SEEN] - counts[N_ZERO], 0
    if counts[N_LIKE_FIRST] == n_seen:
        flags |= MAY_BE_CONSTANT
    if n_nonzero <= MAX_NONZERO * n_seen:
        flags |= MAY_BE_SPARSE
    if rules.has_tail and n >= MIN_VALUES and counts[LOW_BITS] & np.int64(rules.compared[4]) == 0:
        flags |= MAY_DROP_BITS
    if (
        rules.has_tail
        and n >= MIN_MIXED
        and (
            counts[N_SHORT] * SHORT_SHARE > n_nonzero
            or (rules.has_very_short and counts[N_VERY_SHORT] * VERY_SHORT_SHARE > n_nonzero)
            or (rules.has_codes and counts[N_MINUS_ZERO] * MASKED_SHARE >= n_seen)
        )
    ):
        flags |= MAY_HAVE_LEVELS
    if rules.has_codes and counts[N_SPECIAL] * SPECIAL_SHARE >= n_seen:
        flags |= HAS_MANY_SPECIAL
    return flags
