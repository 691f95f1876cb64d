"""Find low mantissa bits that are zero in every value, or in many, as where values were of a shorter type before: a
lossless frame need not store them (docs/format.md section 4, "Planes and levels")."""

from __future__ import annotations

import numpy as np

from ..dtypes import DType
from ..format.modes import lossless_at
from ..kernels.sample.look import (
    MAY_DROP_BITS,
    MAY_HAVE_LEVELS,
    SHORT_BITS,
    SHORT_SHARE,
    VERY_SHORT_BITS,
    VERY_SHORT_SHARE,
)
from .profile import CODED_HEAD_BITS, profile_of, spread_places, spread_sample
from .request import EncodeRequest
from .zero_levels import ZeroLevels, choose_levels, levels_of

_LEVEL_SAMPLE = 1 << 12  #: values that levels are chosen by
_CHUNK = 1 << 16  #: values that are looked at together, while they are in the cache


def drop_unused_bits(request: EncodeRequest, profile: int) -> EncodeRequest:
    """Return a lossless request with a layout that leaves out bits that are zero, in all values or in those of a level;
    any other as it is.

    Nothing is lost: what a level drops is zero in every value of the level.

    Args:
        request: The array and how to encode it.
        profile: What the array is like, as :func:`profile_of` returns it.

    Returns:
        The same request, or one with another layout and the levels of its values.
    """
    layout = request.bit_layout
    if layout.lossy or not profile & (MAY_DROP_BITS | MAY_HAVE_LEVELS):  # most arrays
        return request
    request = drop_common_zeros(request, profile)
    bits, dtype, _, _ = request.values
    drop = request.bit_layout.drops[0]
    if drop:
        profile = profile_of(request.values, drop)
    if not profile & MAY_HAVE_LEVELS:
        return request
    if dtype.head_bits > CODED_HEAD_BITS and not _have_codes_and_are_short(bits, dtype, drop):
        return request
    levels = _levels_for(bits, dtype, drop)
    if len(levels.drops) == 1:
        return request
    return request._replace(
        bit_layout=lossless_at(dtype, levels.drops, layout.mode), levels=levels_of(bits, dtype, levels)
    )


def drop_common_zeros(request: EncodeRequest, profile: int | None = None) -> EncodeRequest:
    """Return a lossless request with a layout of one level that leaves out low bits that are zero in all values; any
    other as it is.

    Args:
        request: The array and how to encode it, in one level if it is lossless.
        profile: What the array is like, if that is known.
    """
    bits, dtype, _, _ = request.values
    if request.bit_layout.lossy or not len(bits):
        return request
    if not (profile_of(request.values) if profile is None else profile) & MAY_DROP_BITS:  # most arrays
        return request
    drop = _common_zeros(bits, dtype)
    return request._replace(bit_layout=lossless_at(dtype, (drop,), request.bit_layout.mode)) if drop else request


def _with_codes(some: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the values whose heads may have codes, and zeros; -0, infinities and NaN of float64 are too far from the
    others, and are escaped, which is of level 0."""
    if dtype.head_bits <= CODED_HEAD_BITS:
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


def _have_codes_and_are_short(bits: np.ndarray, dtype: DType, drop: int) -> bool:
    """Return True if many values whose heads have codes are short: uintW[n] of a type where those of -0, infinities and
    NaN have none."""
    some = _with_codes(spread_sample(bits, _LEVEL_SAMPLE), dtype)
    n_zero = len(some) - int(np.count_nonzero(some))
    for n_bits, share in ((SHORT_BITS, SHORT_SHARE), (VERY_SHORT_BITS, VERY_SHORT_SHARE)):
        n_short = len(some) - int(np.count_nonzero(some & some.dtype.type((1 << drop + n_bits) - 1))) - n_zero
        if drop + n_bits < dtype.tail_bits and n_short * share > len(some) - n_zero:
            return True
    return False


def _levels_for(bits: np.ndarray, dtype: DType, drop: int) -> ZeroLevels:
    """Return the levels that save most by a sample of uintW[n], where all values have ``drop`` zeros."""
    some = _with_codes(bits[np.sort(spread_places(len(bits), _LEVEL_SAMPLE))], dtype)
    some = some[some != 0].astype(np.uint64)
    return choose_levels(some, len(bits), dtype, drop) if len(some) else ZeroLevels((drop,), ())
