"""Find low mantissa bits that are zero in every value, or in many, as where values were of a shorter type before: a
lossless frame need not store them (docs/format.md section 4, "Planes and levels")."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.codebook import MAX_SYMBOLS
from ..format.modes import lossless_at
from ..kernels.core.specialized import Specialized
from ..kernels.levels.low_zeros import levels_by_zeros
from .codebooks import MAX_SPREAD_LEVELS, have_codes, window_of
from .cuts import cheapest_ranges
from .request import EncodeRequest

_levels_by_zeros = Specialized(levels_by_zeros)

_MIN_VALUES = 64  #: of fewer, the bits are not worth the search
_QUICK_SAMPLE = 64  #: values that rule out most arrays: those that the kernel which plans small frames looks at
MIN_MIXED, _MIXED_SAMPLE = 1 << 12, 1 << 12  #: so many values of an array are needed, and looked at, to find levels
#: Either so many bits must be zero (first) in one of so many of few values (second), then of more (third). By chance,
#: four bits are zero in one of 16 values, and seven in one of 128. Fewer than one in _SHORT_SHARE is seen at once.
_SHORT, _SHORT_SHARE = ((4, 6, 6), (7, 40, 12)), 16
#: A mask that arrays are multiplied by leaves -0 for half of what it takes away. One value in _MIN_MASKED must be -0,
#: which is looked for where one in _SHORT_SHARE has zeros; in float64, its head is too far from others to have a code.
_MASKED_SAMPLE, _MIN_MASKED, _MASKED_HEAD_BITS = 1 << 10, 32, 8
_APART = 27146  #: in 2**16: the share of an array by which the places of a sample lie apart, √2 - 1, around and around
_SPECIAL_SAMPLE, _MIN_SPECIAL = 256, 32  #: one of so many (second) must be infinite or NaN to matter
#: How many levels there may be: few, where heads have many codes, as many as let heads lie as far apart as those of one
#: level, or more; and what each must save per value.
_N_LEVELS, _LEVEL_BITS = (2, MAX_SPREAD_LEVELS, 6), 0.05
#: One value in so many may have fewer zeros than the others of its head; and of how many values one must be of a head,
#: for it to say how many zeros those of higher heads have.
_STRAY_SHARE, _RARE_SHARE = 32, 256
#: Ranges of zeros times heads of which the cost is estimated: of more heads, the rare ones are taken for one.
_MAX_COSTS = 1 << 16
_N_NEARBY, _FAR_SHARE = 64, 512  #: parts of a sample, of which each has a mean; values of which one may be far from it
_MIN_SAVED_BITS = 0.5  #: what levels must save per value, what they cost in symbols taken off
_CHUNK = 1 << 16  #: values that are looked at together, while they are in the cache


def drop_unused_bits(request: EncodeRequest) -> EncodeRequest:
    """Return a lossless request with a layout that leaves out bits that are zero, in all values or in those of a level;
    any other as it is.

    Nothing is lost: what a level drops is zero in every value of the level.

    Args:
        request: The array and how to encode it.

    Returns:
        The same request, or one with another layout and the levels of its values.
    """
    request = drop_common_zeros(request)
    bits, dtype, _, _ = request.values
    if not request.bit_layout.lossy and dtype.tail_bits and len(bits) >= MIN_MIXED:
        drop = request.bit_layout.drops[0]
        quick = _with_codes(spread_sample(bits, _QUICK_SAMPLE), dtype)
        if _is_mixed(bits, quick, dtype, drop) and len((levels := _levels_for(bits, dtype, drop)).drops) > 1:
            layout = lossless_at(dtype, levels.drops, request.bit_layout.mode)
            return request._replace(bit_layout=layout, levels=_levels(bits, dtype, levels))
    return request


def drop_common_zeros(request: EncodeRequest) -> EncodeRequest:
    """Return a lossless request with a layout of one level that leaves out low bits that are zero in all values; any
    other as it is.

    Args:
        request: The array and how to encode it, in one level if it is lossless.
    """
    bits, dtype, _, _ = request.values
    if request.bit_layout.lossy or dtype.tail_bits == 0 or len(bits) < _MIN_VALUES:
        return request
    if int(np.bitwise_or.reduce(spread_sample(bits, _QUICK_SAMPLE))) & 1:  # most arrays
        return request
    drop = _common_zeros(bits, dtype)
    return request._replace(bit_layout=lossless_at(dtype, (drop,), request.bit_layout.mode)) if drop else request


def spread_sample(bits: np.ndarray, n: int) -> np.ndarray:
    """Return ``n`` values of an array, or all, whose places repeat no pattern of rows and columns."""
    return bits if len(bits) <= n else bits[spread_places(len(bits), n)]


def spread_places(n_values: int, n: int) -> np.ndarray:
    """Return ``n`` places of an array of so many values, or all, that repeat no pattern of rows and columns: uint64[n].

    An odd step apart, matrices of a power of two would be seen along a diagonal, on one side of which a causal mask is.
    """
    if n_values <= n:
        return np.arange(n_values, dtype=np.uint64)
    step = n_values * _APART >> 16 | 1
    while n > _QUICK_SAMPLE and gcd(step, n_values) > 1:  # else the same places would be met again and again
        step += 2
    result: np.ndarray = np.arange(n, dtype=np.uint64) * np.uint64(step) % np.uint64(n_values)
    return result


def has_many_special(bits: np.ndarray, dtype: DType) -> bool:
    """Return True if a part of an array is infinite or NaN whose heads have codes as others do: uintW[n]."""
    if dtype.head_bits != _MASKED_HEAD_BITS or not dtype.tail_bits:
        return False
    some, infinity = spread_sample(bits, _SPECIAL_SAMPLE), bits.dtype.type(dtype.infinity)
    return int(np.count_nonzero(some & infinity == infinity)) * _MIN_SPECIAL >= max(len(some), 1)


def _with_codes(some: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the values whose heads may have codes, and zeros; -0, infinities and NaN of float64 are too far from the
    others, and are escaped, which is of level 0."""
    if dtype.head_bits <= _MASKED_HEAD_BITS:
        return some
    infinity = some.dtype.type(dtype.infinity)
    exponents = some & infinity
    return some[((exponents != 0) | (some == 0)) & (exponents != infinity)]


def _common_zeros(bits: np.ndarray, dtype: DType) -> int:
    """Return how many low mantissa bits are zero in all values, at most those that need not be stored; 0 if all values
    are zero."""
    merged = 0
    for begin in range(0, len(bits), _CHUNK):
        merged |= int(np.bitwise_or.reduce(bits[begin : begin + _CHUNK]))
        if merged & 1:
            return 0
    return min((merged & -merged).bit_length() - 1, dtype.tail_bits - 1) if merged else 0


def _is_mixed(bits: np.ndarray, some: np.ndarray, dtype: DType, drop: int) -> bool:
    """Return True if many values that are not zero have further zeros beyond the lowest ``drop`` bits.

    Args:
        bits: uintW[n], the array.
        some: Some of its values.
        dtype: Its type.
        drop: How many bits are zero in all values.
    """
    if _n_short(some, drop + _SHORT[0][0]) * _SHORT_SHARE <= len(some):  # most arrays
        return False
    minus_zero = some.dtype.type(1 << dtype.bits - 1)
    if dtype.head_bits == _MASKED_HEAD_BITS and (some == minus_zero).any():
        more = bits[:: max(len(bits) // _MASKED_SAMPLE, 1) | 1]
        if int(np.count_nonzero(more == minus_zero)) * _MIN_MASKED >= len(more):
            return True
    # Of few values, more have zeros by chance now and then.
    ways = _SHORT if drop + _SHORT[1][0] < dtype.tail_bits else _SHORT[:1]
    found = [(n_bits, share) for n_bits, few, share in ways if _are_many_short(some, drop + n_bits, few)]
    if not found:
        return False
    more = _with_codes(spread_sample(bits, _MASKED_SAMPLE), dtype)
    return any(_are_many_short(more, drop + n_bits, share) for n_bits, share in found)


def _n_short(some: np.ndarray, n_bits: int) -> int:
    """Return how many values have so many low bits that are zero."""
    return len(some) - int(np.count_nonzero(some & some.dtype.type((1 << n_bits) - 1)))


def _are_many_short(some: np.ndarray, n_bits: int, share: int) -> bool:
    """Return True if one in ``share`` of the values that are not zero has so many low bits that are zero."""
    n_zero = len(some) - int(np.count_nonzero(some))
    return (_n_short(some, n_bits) - n_zero) * share > len(some) - n_zero


class ZeroLevels(NamedTuple):
    """Levels by how many low bits of a value are zero.

    Attributes:
        drops: How many are zero in the values of each level, rising.
        ends: For each level but the first, the heads from which on it has no values, falling.
    """

    drops: tuple[int, ...]
    ends: tuple[int, ...]


def _levels_for(bits: np.ndarray, dtype: DType, drop: int) -> ZeroLevels:
    """Return the levels that save most by a sample.

    Where values are multiples of one number, such as integers, larger ones have fewer bits that must be zero. Some have
    more by chance, and had better be of the level of their head's other values: then the head alone says the level.

        4 ... 7     1.00 1.01 1.10 1.11     all but two bits of the mantissa are dropped
        2, 3        1.0  1.1                all but one

    Elsewhere, as in differences of weights, values are of the level that drops most of their bits.

    Args:
        bits: uintW[n], the array.
        dtype: Its type.
        drop: How many low bits are zero in all values, which are those of level 0.
    """
    one_level = ZeroLevels((drop,), ())
    some = _with_codes(bits[np.sort(spread_places(len(bits), _MIXED_SAMPLE))], dtype)
    some = some[some != 0].astype(np.uint64)
    if not len(some):
        return one_level
    max_drop = dtype.tail_bits - 1
    # The lowest bit set, less 1, has as many ones as there are zeros; bit max_drop is set so that no more are counted.
    marked = some | np.uint64(1 << max_drop)
    zeros = np.bitwise_count((marked & (~marked + np.uint64(1))) - np.uint64(1)).astype(np.int64) - drop
    every_head = (some >> np.uint64(dtype.head_shift)).astype(np.int64) & dtype.head_mask
    heads, rows = np.unique(every_head, return_inverse=True)
    counts = _counted(rows, zeros, max_drop - drop + 1)
    limits = _limits(counts)
    # A frame of the whole array has codes for more symbols than one of the sample would have.
    scale, all_have_codes = len(bits) // len(some), _all_have_codes(heads, counts)
    best, least, bounds = one_level, np.inf, list[float]()
    for is_limited in (False, True):
        if is_limited:
            zeros = np.minimum(zeros, limits[rows])
            counts = _counted(rows, zeros, max_drop - drop + 1)
        tables = [(heads, counts)]
        if not (all_have_codes or is_limited):  # blocks have the better of both: heads, or relative to those nearby
            relative, relative_rows = _relative(every_head)
            tables.append((relative, _counted(relative_rows, zeros, max_drop - drop + 1)))
        for number, table in enumerate(tables):
            seen = table[1].sum(axis=0)
            seen[0] += 1  # level 0 is for all values
            steps = np.flatnonzero(seen)
            cost = _range_bits(table[1][:, steps], dtype.tail_bits - drop - steps)
            if not is_limited:
                escape_bits = 0.0 if all_have_codes else _escape_bits(*table, [], dtype, scale)
                bounds.append(cost[0, -1] + escape_bits - _MIN_SAVED_BITS * len(some))
            for n_levels in _N_LEVELS[all_have_codes:]:
                cuts, n_bits = cheapest_ranges(cost, n_levels, _LEVEL_BITS * len(some))
                begins = steps[cuts].tolist()
                if begins and not all_have_codes and n_bits < min(least, bounds[number]):
                    n_bits += _escape_bits(*table, begins, dtype, scale)
                if begins and n_bits < min(least, bounds[number]):
                    ends = _ends(heads, limits, begins) if is_limited else (dtype.head_mask + 1,) * len(begins)
                    best, least = ZeroLevels((drop, *(drop + begin for begin in begins)), ends), n_bits
    return best


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
    return np.unique(relative, return_inverse=True)


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
        dtype: The value type.
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


def total_entropy(counts: np.ndarray) -> float:
    """Return the order-0 entropy in bits, of all symbols together, given how often each is met."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def _levels(bits: np.ndarray, dtype: DType, levels: ZeroLevels) -> np.ndarray:
    """Return the level of each value: uint8[n]."""
    kind, result = bits.dtype.type, np.empty(len(bits), np.uint8)
    masks = np.array([(1 << drop) - 1 for drop in levels.drops[1:]], kind)
    largest = (1 << dtype.bits - 1) - 1
    ends = np.array([min(end << dtype.head_shift, largest + 1) for end in levels.ends], kind)
    _levels_by_zeros((kind, bits.flags.aligned), bits, masks, ends, result)
    return result
