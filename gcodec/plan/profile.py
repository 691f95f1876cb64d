"""Tell by some of an array's values what it is like, and which ways to encode it are worth a closer look."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..kernels.core.specialized import Specialized
from ..kernels.sample import look as kernels
from ..memory import acquire, release
from ..tensors import Values

_APART = 27146  #: in 2**16: the share of an array by which the places of a sample lie apart, √2 - 1
#: Short and very short values have so many low bits that are zero; by chance, one value in 16 and one in 128 has.
SHORT_BITS, VERY_SHORT_BITS = 4, 7
_MIN_VALUES = 64  #: of an array whose low bits are worth a search
MIN_MIXED = 1 << 12  #: of an array that may have levels of values with more low bits that are zero, and of others
SHORT_SHARE, VERY_SHORT_SHARE = 8, 24  #: one value in so many must be short, or very short, for levels
#: A mask that arrays are multiplied by leaves -0 for half of what it takes away: one value in so many. In types with
#: longer heads than this, -0, infinity and NaN lie too far from others to have codes.
_MASKED_SHARE, CODED_HEAD_BITS = 64, 8
_SPECIAL_SHARE = 32  #: one value in so many must be infinite or NaN to matter
#: Share of values other than zero up to which sparse blocks are looked for, with what a sample may be off.
_MAX_NONZERO = 0.43
_look_at = Specialized(kernels.look_at)


class Profile(NamedTuple):
    """Holds what some values of an array are like, and what that makes worth a closer look.

    Attributes:
        n_seen: How many values were looked at; the following are of these.
        n_low_zeros: How many low bits are zero in all; 64 if all are zeros.
        n_zero: How many are +0,
        n_minus_zero: -0,
        n_special: infinite or NaN,
        n_short: other than zero, with SHORT_BITS low bits that are zero beyond those left out of account,
        n_very_short: likewise with VERY_SHORT_BITS,
        n_like_first: equal to the array's first value.
        may_be_constant: True if nothing shows that values differ.
        may_be_sparse: True if so many values are zero that sparse blocks may be smaller.
        may_drop_bits: True if low bits may be zero in all values, beyond those left out of account.
        may_have_levels: True if many values have low bits that are zero, and others have not.
        has_many_special: True if a part of the values is infinite or NaN, and their heads have codes: where
            the mean of a block or sub-stream lies says then how many are, not where the others lie.
    """

    n_seen: int
    n_low_zeros: int
    n_zero: int
    n_minus_zero: int
    n_special: int
    n_short: int
    n_very_short: int
    n_like_first: int
    may_be_constant: bool
    may_be_sparse: bool
    may_drop_bits: bool
    may_have_levels: bool
    has_many_special: bool


def profile_of(values: Values, drop: int = 0) -> Profile:
    """Look at some values of an array.

    Args:
        values: The array, one value at least.
        drop: How many low bits are zero in all of them.
    """
    bits, dtype = values.bits, values.dtype
    n, form = len(bits), _form_of(dtype, drop)
    memory = acquire(form.key, form.new_memory)
    step = step_between(n) if n > kernels.N_PLACES else 1
    _look_at((form.key, bits.flags.aligned), bits, step, form.compared, *memory)
    n_seen, merged, n_zero, n_minus_zero, n_special, n_short, n_very_short, n_like_first = memory.counts.tolist()
    release(form.key, memory)
    n_low_zeros = (merged & -merged).bit_length() - 1 if merged else 64
    n_nonzero, tail_bits = n_seen - n_zero, dtype.tail_bits
    return Profile(
        n_seen,
        n_low_zeros,
        n_zero,
        n_minus_zero,
        n_special,
        n_short,
        n_very_short,
        n_like_first,
        n_like_first == n_seen,
        n_nonzero <= _MAX_NONZERO * n_seen,
        n_low_zeros > drop and n >= _MIN_VALUES and tail_bits > 0,
        n >= MIN_MIXED
        and tail_bits > 0
        and (
            n_short * SHORT_SHARE > n_nonzero
            or (drop + VERY_SHORT_BITS < tail_bits and n_very_short * VERY_SHORT_SHARE > n_nonzero)
            or (form.has_codes and n_minus_zero * _MASKED_SHARE >= n_seen)
        ),
        form.has_codes and n_special * _SPECIAL_SHARE >= n_seen,
    )


class _Memory(NamedTuple):
    some: np.ndarray
    counts: np.ndarray


class _Form:
    """Holds what looking at an array takes that depends on its type and on the bits left out of account alone.

    Args:
        dtype: The type.
        drop: How many low bits are left out.

    Attributes:
        key: What the memory is kept by.
        compared: uintW[4], what the kernel compares values with.
        has_codes: True if heads of -0, infinities and NaN may have codes.
    """

    def __init__(self, dtype: DType, drop: int) -> None:
        masks = [(1 << min(drop + n_bits, dtype.bits - 1)) - 1 for n_bits in (SHORT_BITS, VERY_SHORT_BITS)]
        self.key, self._uint = ("profile", dtype.bits), dtype.uint
        self.has_codes = dtype.head_bits == CODED_HEAD_BITS and dtype.tail_bits > 0
        self.compared = np.array([dtype.infinity, 1 << dtype.bits - 1, *masks], dtype.uint)

    def new_memory(self) -> _Memory:
        """Return memory for the values that are looked at, and for what is counted."""
        return _Memory(np.empty(kernels.N_PLACES, self._uint), np.empty(kernels.N_COUNTS, np.int64))


_form_of = lru_cache(64)(_Form)


@lru_cache(1024)
def step_between(n_values: int) -> int:
    """Return how far apart the places of an array lie that a sample of it looks at: √2 - 1 of it, or a little more, so
    that no place is met twice.

    A step of a fixed number of values would see a matrix of a power of two along a diagonal only, and so one side of a
    causal mask.
    """
    step = n_values * _APART >> 16 | 1
    while gcd(step, n_values) > 1:
        step += 2
    return step


def spread_sample(bits: np.ndarray, n: int) -> np.ndarray:
    """Return ``n`` values of an array, or all, whose places repeat no pattern of rows and columns."""
    return bits if len(bits) <= n else bits[spread_places(len(bits), n)]


def spread_places(n_values: int, n: int) -> np.ndarray:
    """Return ``n`` places of an array, or all, that repeat no pattern of rows and columns: uint64[n]."""
    if n_values <= n:
        return np.arange(n_values, dtype=np.uint64)
    result: np.ndarray = np.arange(n, dtype=np.uint64) * np.uint64(step_between(n_values)) % np.uint64(n_values)
    return result
