"""Find low mantissa bits that are zero in every value, or in many, as where values were of a shorter type before: a
lossless frame need not store them (docs/format.md section 4, "Planes and levels")."""

from __future__ import annotations

from math import gcd

import numpy as np

from ..dtypes import DType
from ..format.modes import lossless_at
from .request import EncodeRequest
from .zero_levels import ZeroLevels, choose_levels, levels_of

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
            return request._replace(bit_layout=layout, levels=levels_of(bits, dtype, levels))
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


def _levels_for(bits: np.ndarray, dtype: DType, drop: int) -> ZeroLevels:
    """Return the levels that save most by a sample of uintW[n], where all values have ``drop`` zeros."""
    some = _with_codes(bits[np.sort(spread_places(len(bits), _MIXED_SAMPLE))], dtype)
    some = some[some != 0].astype(np.uint64)
    return choose_levels(some, len(bits), dtype, drop) if len(some) else ZeroLevels((drop,), ())


def total_entropy(counts: np.ndarray) -> float:
    """Return the order-0 entropy in bits, of all symbols together, given how often each is met."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())
