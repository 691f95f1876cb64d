"""Choose levels by how many low mantissa bits of values are zero (docs/format.md section 4, "Planes and levels")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.codebook import MAX_SYMBOLS
from ..kernels.core.specialized import Specialized
from ..kernels.levels.low_zeros import levels_by_zeros
from .codebooks import MAX_SPREAD_LEVELS, have_codes, window_of
from .cuts import cheapest_ranges

#: How many levels there may be: few, where heads have many codes, as many as let heads lie as far apart as those of one
#: level, or more; and what each must save per value.
_N_LEVELS, _LEVEL_BITS = (2, MAX_SPREAD_LEVELS, 6), 0.05
#: What levels must save per value, what they cost in symbols taken off; and of float64, which takes three times as long
#: with levels.
_MIN_SAVED_BITS, _MIN_SAVED_OF_64 = 0.5, 2.0
#: One value in so many may have fewer zeros than the others of its head; and of how many values one must be of a head,
#: for it to say how many zeros those of higher heads have.
_STRAY_SHARE, _RARE_SHARE = 32, 256
#: Ranges of zeros times heads of which the cost is estimated: of more heads, the rare ones are taken for one.
_MAX_COSTS = 1 << 16
_N_NEARBY, _FAR_SHARE = 64, 512  #: parts of a sample, of which each has a mean; values of which one may be far from it

_levels_by_zeros = Specialized(levels_by_zeros)


class ZeroLevels(NamedTuple):
    """Levels by how many low bits of a value are zero.

    Attributes:
        drops: How many are zero in the values of each level, rising.
        ends: For each level but the first, the heads from which on it has no values, falling.
    """

    drops: tuple[int, ...]
    ends: tuple[int, ...]


def choose_levels(some: np.ndarray, n_values: int, dtype: DType, drop: int) -> ZeroLevels:
    """Return the levels that save most by a sample.

    Where values are multiples of one number, such as integers, larger ones have fewer bits that must be zero. Some have
    more by chance, and had better be of the level of their head's other values: then the head alone says the level.

        4 ... 7     1.00 1.01 1.10 1.11     all but two bits of the mantissa are dropped
        2, 3        1.0  1.1                all but one

    Elsewhere, as in differences of weights, values are of the level that drops most of their bits.

    Args:
        some: Values of an array that are not zero, in the order of their places: uint64[n], at least one.
        n_values: Number of the array's values.
        drop: How many low bits are zero in all values, which are those of level 0.
    """
    n_zeros = dtype.tail_bits - drop
    # The lowest bit set, less 1, has as many ones as there are zeros; a bit is set above those that may be dropped.
    marked = some | np.uint64(1 << dtype.tail_bits - 1)
    zeros = np.bitwise_count((marked & (~marked + np.uint64(1))) - np.uint64(1)).astype(np.int64) - drop
    every_head = (some >> np.uint64(dtype.head_shift)).astype(np.int64) & dtype.head_mask
    heads, rows = _distinct(every_head)
    counts = _counted(rows, zeros, n_zeros)
    limits, all_have_codes = _limits(counts), _all_have_codes(heads, counts)
    ways = [(heads, counts, False)]  # and whether a head's limit holds
    if limits.any():
        ways.append((heads, _counted(rows, np.minimum(zeros, limits[rows]), n_zeros), True))
    if not all_have_codes:  # blocks have the better of both: heads, or relative to those nearby
        relative, relative_rows = _relative(every_head)
        ways.append((relative, _counted(relative_rows, zeros, n_zeros), False))
    # A frame of the whole array has codes for more symbols than one of the sample would have.
    scale = 0 if all_have_codes else n_values // len(some)
    best, least = ZeroLevels((drop,), ()), np.inf
    min_saved = (_MIN_SAVED_BITS if dtype.bits < 64 else _MIN_SAVED_OF_64) * len(some)
    for some_heads, some_counts, is_limited in ways:
        begins, n_bits, of_one = _cheapest(some_heads, some_counts, dtype, drop, scale)
        if begins and n_bits < min(least, of_one - min_saved):
            ends = _ends(heads, limits, begins) if is_limited else (dtype.head_mask + 1,) * len(begins)
            best, least = ZeroLevels((drop, *(drop + begin for begin in begins)), ends), n_bits
    return best


def _cheapest(
    heads: np.ndarray, counts: np.ndarray, dtype: DType, drop: int, scale: int
) -> tuple[list[int], float, float]:
    """Return the numbers of zeros, less ``drop``, with which the levels but the first begin that take the fewest bits,
    none if no others take fewer than one level; these bits; and those that one level takes.

    Args:
        heads: int64[n_heads], rising.
        counts: int64[n_heads, n_zeros], values of each head by their zeros.
        drop: How many zeros all values have.
        scale: How many values of the array each stands for; 0 if all have codes, whatever the levels.
    """
    seen = counts.sum(axis=0)
    n_values = int(seen.sum())
    seen[0] += 1  # level 0 is for all values
    steps = np.flatnonzero(seen)
    cost = _range_bits(counts[:, steps], dtype.tail_bits - drop - steps)
    of_one = float(cost[0, -1]) + (_escape_bits(heads, counts, [], dtype, scale) if scale else 0.0)
    best, least = list[int](), of_one
    for n_levels in _N_LEVELS[scale == 0 :]:
        cuts, n_bits = cheapest_ranges(cost, n_levels, _LEVEL_BITS * n_values)
        begins: list[int] = steps[cuts].tolist()
        if begins and scale and n_bits < least:
            n_bits += _escape_bits(heads, counts, begins, dtype, scale)
        if begins and n_bits < least:
            best, least = begins, n_bits
    return best, least, of_one


def _all_have_codes(heads: np.ndarray, counts: np.ndarray) -> bool:
    """Return True if heads are so few, and near their mean, that nearly all values have a code in however many levels;
    arguments as for :func:`_escape_bits`."""
    window, center = window_of(_N_LEVELS[-1])
    by_head = counts.sum(axis=1)
    total = int(by_head.sum())
    relative = heads - float(heads @ by_head) / total
    is_near = (relative > -center) & (relative + 1 < window - center)
    near = heads[is_near]
    n_far = int(by_head[~is_near].sum())
    return n_far * _FAR_SHARE <= total and int(near[-1] - near[0] + 1) * _N_LEVELS[-1] <= MAX_SYMBOLS


def _relative(heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads that there are, rising, relative to the mean of those nearby, and where in them each value's is.

    Args:
        heads: int64[n], of values in the order of their places.
    """
    groups = np.arange(len(heads)) * _N_NEARBY // len(heads)
    means = np.bincount(groups, heads, _N_NEARBY) / np.maximum(np.bincount(groups, minlength=_N_NEARBY), 1)
    relative = heads - np.rint(means).astype(np.int64)[groups]
    least = int(relative.min())
    distinct, rows = _distinct(relative - least)
    return distinct + least, rows


def _distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers that there are, rising, and where in them each is; they are small and not negative."""
    distinct = np.flatnonzero(np.bincount(numbers))
    places = np.zeros(int(distinct[-1]) + 1, np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[numbers]


def _counted(rows: np.ndarray, zeros: np.ndarray, n_zeros: int) -> np.ndarray:
    """Return how many values of a row have each number of zeros: int64[n_rows, n_zeros]."""
    n_rows = int(rows.max()) + 1
    return np.bincount(rows * n_zeros + zeros, minlength=n_rows * n_zeros).reshape(n_rows, n_zeros)


def _limits(counts: np.ndarray) -> np.ndarray:
    """Return how many zeros nearly all values of a head have, or more: int64[n_heads], falling.

    Args:
        counts: int64[n_heads, n_zeros], values of each head by their zeros.
    """
    n_values = counts.sum(axis=1, keepdims=True)
    fewer = np.cumsum(counts, axis=1) - counts
    is_met = fewer * _STRAY_SHARE <= n_values  # true of no zeros, then false from some number on
    limits = is_met.sum(axis=1) - 1
    is_rare = n_values[:, 0] * _RARE_SHARE < n_values.sum()
    limits[is_rare] = counts.shape[1] - 1
    result: np.ndarray = np.minimum.accumulate(limits)
    return result


def _ends(heads: np.ndarray, limits: np.ndarray, zeros: list[int]) -> tuple[int, ...]:
    """Return for each of some numbers of zeros the head behind the last one whose values have so many; ``limits`` as
    :func:`_limits` returns them for ``heads``, which rise."""
    reached = (np.flatnonzero(limits >= number) for number in zeros)
    return tuple(int(heads[found[-1]]) + 1 if len(found) else 0 for found in reached)


def _escape_bits(heads: np.ndarray, counts: np.ndarray, cuts: list[int], dtype: DType, scale: int) -> float:
    """Return the bits that values take besides, whose level and head get no code: there are few codes, of heads near
    their mean.

    Args:
        heads: int64[n_heads], rising.
        counts: int64[n_heads, n_zeros], values of each head by their zeros.
        cuts: The zeros from which on each level but the first has values.
        scale: How many values of the array each stands for.
    """
    begins = [0, *cuts]
    window, center = window_of(len(begins))
    by_head = counts.sum(axis=1)
    places = heads - round(float(heads @ by_head) / by_head.sum()) + center
    if window >> dtype.head_bits:  # all heads have a place
        places &= window - 1
    is_near = (places >= 0) & (places < window)
    by_level = np.add.reduceat(counts, begins, axis=1)
    is_coded, places = np.zeros(by_level.shape, np.bool_), places[is_near]
    if int(np.ptp(places) + 1 if len(places) else 0) * len(begins) <= MAX_SYMBOLS:
        is_coded[is_near] = True
    else:
        near = np.zeros((window, len(begins)), np.int64)
        near[places] = by_level[is_near]
        is_coded[is_near] = have_codes((near * scale).T).T[places]
    escaped = np.where(is_coded, 0, by_level)
    # The whole value is stored; but the code of the escape, as frequent as all of them, is shorter than theirs.
    own, total = escaped[escaped > 0], int(escaped.sum())
    shorter = total * np.log2(max(total, 1)) - float(own @ np.log2(own))
    return float(escaped.sum(axis=0) @ (dtype.head_bits + np.array(begins))) - shorter


def _range_bits(counts: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return what a level takes whose values have some range of zeros: float64[n_steps + 1, n_steps + 1], at [j, k] one
    of steps j ... k - 1; infinite where j >= k.

    Args:
        counts: int64[n_heads, n_steps], values of each head by their zeros.
        kept: int64[n_steps], bits that are stored of values with as many zeros as the step.
    """
    n_steps = counts.shape[1]
    max_heads = _MAX_COSTS // n_steps**2
    if len(counts) > max_heads:
        order = np.argsort(counts.sum(axis=1), kind="stable")
        rare = counts[order[: 1 - max_heads]].sum(axis=0, keepdims=True)
        counts = np.concatenate([rare, counts[order[1 - max_heads :]]])
    up_to = np.concatenate([np.zeros((len(counts), 1), np.int64), np.cumsum(counts, axis=1)], axis=1).T
    in_range = (up_to[None, :] - up_to[:, None]).clip(0)  # [j, k, head]
    bits = _information(in_range, int(counts.sum())) + in_range.sum(axis=2) * np.append(kept, 0)[:, None]
    numbers = np.arange(n_steps + 1)
    result: np.ndarray = np.where(numbers[:, None] < numbers, bits, np.inf)
    return result


def _information(counts: np.ndarray, total: int) -> np.ndarray:
    """Return the bits that symbols take, summed over the last axis, of which each is met so often among ``total``."""
    logs = np.log2(np.arange(1, total + 1))
    result: np.ndarray = (counts * (logs[-1] - logs[counts - (counts > 0)])).sum(axis=2)
    return result


def levels_of(bits: np.ndarray, dtype: DType, levels: ZeroLevels) -> np.ndarray:
    """Return the level of each value: uint8[n]."""
    kind, result = bits.dtype.type, np.empty(len(bits), np.uint8)
    masks = np.array([(1 << drop) - 1 for drop in levels.drops[1:]], kind)
    largest = (1 << dtype.bits - 1) - 1
    ends = np.array([min(end << dtype.head_shift, largest + 1) for end in levels.ends], kind)
    _levels_by_zeros((kind, bits.flags.aligned), bits, masks, ends, result)
    return result
