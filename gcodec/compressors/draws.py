"""Random numbers in kernels, each a function of its place in the sequence and of a key.

So no state is kept, loops run in any order, and every rank that has the key has the numbers. Integers only: no rank's
libm matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.core.jit import inlined, kernel

_U32, _U64 = np.uint32, np.uint64
_GOLDEN = 0x9E3779B97F4A7C15


@inlined
def draw32(place: Any, key: Any, other: Any) -> Any:
    """Return a uint32 that looks random, by place and two keys, all uint32.

    It takes two of murmur3's steps, with a key before each.
    """
    h = _U32(place + key)
    h = _U32(_U32(h ^ _U32(h >> _U32(16))) * _U32(0x85EBCA6B))
    h = _U32(_U32(h ^ _U32(h >> _U32(13))) + other)
    h = _U32(h * _U32(0xC2B2AE35))
    h = _U32(_U32(h ^ _U32(h >> _U32(16))) * _U32(0x7FEB352D))
    return _U32(h ^ _U32(h >> _U32(15)))


@kernel
def draw64(place: Any, key: Any) -> Any:
    """Return a uint64 that looks random, by place and key, both uint64.

    It is splitmix64's output function (Steele et al., OOPSLA 2014).
    """
    h = _U64(key + _U64(place * _U64(_GOLDEN)))
    h = _U64(_U64(h ^ _U64(h >> _U64(30))) * _U64(0xBF58476D1CE4E5B9))
    h = _U64(_U64(h ^ _U64(h >> _U64(27))) * _U64(0x94D049BB133111EB))
    return _U64(h ^ _U64(h >> _U64(31)))


@kernel
def below(drawn: Any, n: Any) -> Any:
    """Return a number below ``n``, uint64 and less than 2**32, from a random uint64.

    It is the high word of their product, which prefers no number by more than n / 2**64.
    """
    low = _U64(_U64(drawn & _U64(0xFFFFFFFF)) * n)
    high = _U64(_U64(drawn >> _U64(32)) * n)
    return _U64(_U64(high + _U64(low >> _U64(32))) >> _U64(32))
