"""Tell by some of an array's values what it is like, and which ways to encode it are worth a closer look."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np

from ..dtypes import DType
from ..kernels.core.specialized import Specialized
from ..kernels.sample import look as kernels
from ..kernels.sample.look import SHORT_BITS, VERY_SHORT_BITS
from ..tensors import Values

_APART = 27146  #: in 2**16: the share of an array by which the places of a sample lie apart, √2 - 1
#: In types with longer heads than this, -0, infinity and NaN lie too far from others to have codes.
CODED_HEAD_BITS = 8
look_at = Specialized(kernels.look_at)


def profile_of(values: Values, drop: int = 0) -> int:
    """Look at some values of an array.

    Args:
        values: The array, one value at least.
        drop: How many low bits are zero in all of them, which are left out of account.

    Returns:
        The array's profile: the sum of the flags that hold, ``MAY_BE_CONSTANT`` and the others of
        ``kernels.sample.look``.
    """
    bits, dtype, _, _ = values
    n = len(bits)
    flags: int = look_at[dtype.bits, bits.flags.aligned](bits, look_step(n), rules_of(dtype, drop))
    return flags


@lru_cache(64)
def rules_of(dtype: DType, drop: int) -> kernels.LookRules:
    """Return what looking at an array takes that depends on its type and on the bits left out of account alone.

    Args:
        drop: How many low bits are left out.
    """
    tail_bits = dtype.tail_bits
    low = [(1 << min(drop + n_bits, dtype.bits - 1)) - 1 for n_bits in (SHORT_BITS, VERY_SHORT_BITS, 1)]
    compared = np.array([dtype.infinity, 1 << dtype.bits - 1, *low], dtype.uint)
    has_codes = dtype.head_bits == CODED_HEAD_BITS and tail_bits > 0
    return kernels.LookRules(compared, tail_bits > 0, drop + VERY_SHORT_BITS < tail_bits, has_codes)


def look_step(n_values: int) -> int:
    """Return how far apart the places of an array lie that are looked at."""
    return step_between(n_values) if n_values > kernels.N_PLACES else 1


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
