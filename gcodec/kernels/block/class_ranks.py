"""Ranks of values within their classes: how many of the same class come before a value (docs/format.md section 9).

Both directions walk the predictions in windows of 32,768 values, 512 groups of 64. Masks say which values of each group
are of which class, and running sums how many of a class come before each group:

    class 0      members   1 0 0 1 0 1 ...  |  0 1 1 0 0 0 ...  |  ...
                 before    0                |  23               |  41
    class 1      members   0 1 0 0 1 0 ...  |  1 0 0 0 0 1 ...  |  ...
                 before    0                |  38               |  79

To find the rank of a value is to count bits below its own; to find the value of a rank is to look for the last sum that
is not larger. Neither looks at values that do not change one by one.
"""

from __future__ import annotations

from ..core.jit import inlined, kernel
from ..core.masks import (
    N_COUNTED,
    ROW_COUNTS,
    ROW_GROUPS,
    ROW_MASKS,
    count_ones,
    count_up_to,
    place_of_one,
    rank_members,
    reach_group,
    reach_group_by_top,
)
from ..core.scalar import U16, U64
from ..core.unaligned import prefetch, width_of
from .sparse_types import ALL, GROUP, copy_tail, first_values

WINDOW = ROW_GROUPS * GROUP  #: values whose ranks are known at a time
_AHEAD = 8192  #: bytes by which memory is fetched ahead: its own guesses end at every page
_EIGHT = 8  #: groups that are counted at a time
_NO_GROUP = U16(0xFFFF)  #: more than any sum


@inlined
def fetch_ahead(values, first):
    """Have the group fetched that lies ``_AHEAD`` bytes behind the one from value ``first`` on; None has none."""
    if values is not None:
        width = width_of(values) // 8
        for line in range(0, GROUP * width, 64):
            prefetch(values, first * width + _AHEAD + line)


@kernel
def have_tops(base, thresholds):
    """Return True if :func:`masks.reach_group_by_top` does for these thresholds."""
    shift = width_of(base) - 9
    have = shift > 0
    for c in range(len(thresholds) - 1):
        # Nine bits are the sign, which a magnitude does not have, and eight others: a byte (bfloat16's and float32's
        # exponent).
        low = U64(thresholds[c]) & U64((1 << max(shift, 0)) - 1)
        have &= low == 0 and thresholds[c] != 0
    return have


@kernel
def reach_groups(base, n, thresholds, scratch):
    """Compare the whole groups of a window with the thresholds.

    Args:
        base: uintW[n], the predictions.
        n: Number of values.
        thresholds: Tuple of uintW: the magnitude at which each class ends; the last one's is not looked at.
        scratch: A :class:`sparse_types.SparseScratch`.
    """
    if have_tops(base, thresholds):
        for g in range(n // GROUP):
            fetch_ahead(base, g * GROUP)
            reach_group_by_top(base, g * GROUP, thresholds, scratch.members, g)
    else:
        for g in range(n // GROUP):
            fetch_ahead(base, g * GROUP)
            reach_group(base, g * GROUP, thresholds, scratch.members, g)


@kernel
def rank_groups(base, n, thresholds, scratch):
    """Find the members of all classes in a window, and count them; arguments as for :func:`reach_groups`, which has
    compared the whole groups."""
    members, n_groups = scratch.members, n // GROUP
    # Rows are "reaches class c": all values reach class 0, none the class behind the last. Class c is what reaches it
    # but not the next: `row c & ~row c + 1`, which rank_members takes in place, rising.
    #
    #     row 0     1 1 1 1 1 1        class 0     1 0 0 1 0 1
    #     row 1     0 1 1 0 1 0        class 1     0 1 0 0 1 0
    #     row 2     0 0 1 0 0 0        class 2     0 0 1 0 0 0
    #     row 3     0 0 0 0 0 0
    for g in range(n_groups):
        members[g] = ALL
    if n > n_groups * GROUP:
        copy_tail(base, n_groups * GROUP, scratch.tail, GROUP)
        reach_group(scratch.tail, GROUP, thresholds, members, n_groups)
        members[n_groups] = ALL
        for c in range(len(thresholds)):
            members[c * ROW_MASKS + n_groups] &= first_values(n - n_groups * GROUP)
        n_groups += 1
    # Rows have room for 520 groups, of which at most 512 are used; so the last eight are always whole.
    while n_groups % _EIGHT:
        for c in range(len(thresholds)):
            members[c * ROW_MASKS + n_groups] = U64(0)
        n_groups += 1
    for g in range(n_groups):  # of the class behind the last
        members[len(thresholds) * ROW_MASKS + g] = U64(0)
    for c in range(len(thresholds)):
        scratch.totals[c] = rank_members(members, scratch.before, c, n_groups)
        for k in range(N_COUNTED):
            scratch.before[c * ROW_COUNTS + n_groups + k] = _NO_GROUP


@inlined
def rank_of(place, c, scratch):
    """Return the number of members of class ``c``, one of which is the value at ``place`` of the window, before it."""
    g = place // GROUP
    #     members     m m m m m m m m       of the group
    #     below       1 1 1 1 0 0 0 0       place % 64 = 4: whose bits are counted, and those of earlier groups added
    below = U64(U64(U64(1) << U64(place % GROUP)) - U64(1))
    return scratch.before[c * ROW_COUNTS + g] + count_ones(U64(scratch.members[c * ROW_MASKS + g] & below))


@inlined
def find_rank(rank, c, g, scratch):
    """Find the member of class ``c`` that has ``rank`` others before it.

    Args:
        rank: Below the number of members in the window.
        g: A group that is not behind the member's.
        scratch: A :class:`sparse_types.SparseScratch`.

    Returns:
        (its place in the window, its group).
    """
    # Sums rise, so those that are at most `rank` come first, and the last of them is that of the member's group:
    #
    #     before     0  3  3  7  9 ...      rank = 3: three sums are at most 3, so it is in group 2; group 1 has none
    #
    # That all 32 are at most `rank` leaves open which it is; then the last one is looked at again as the first.
    count = count_up_to(scratch.before, c * ROW_COUNTS + g, rank)
    while count == N_COUNTED:
        g += N_COUNTED - 1
        count = count_up_to(scratch.before, c * ROW_COUNTS + g, rank)
    g += count - 1
    k = rank - scratch.before[c * ROW_COUNTS + g]
    return g * GROUP + place_of_one(scratch.members[c * ROW_MASKS + g], k), g
