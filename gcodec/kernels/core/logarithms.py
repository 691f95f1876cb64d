"""Logarithms by integer operations only, so that every machine finds the same."""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .scalar import I64, U32, U64
from .unaligned import leading_zeros


def _fractions() -> np.ndarray:
    """Return log2 of 1 + k / 2**15 in 1/256, rounded down, uint8[2**15]: bit after bit, highest first, by squaring.
    Where the square of a mantissa from 1 to 2 is 2 or more, the next bit of its logarithm is 1, and it is halved."""
    mantissa = np.arange(1 << 15, 1 << 16, dtype=np.uint64)
    result = np.zeros(len(mantissa), np.uint8)
    for bit in range(7, -1, -1):
        # Numbers have 15 bits behind the point, and a square, which takes 32 bits at most, has 30.
        mantissa = mantissa * mantissa >> np.uint64(15)
        above = mantissa >= 1 << 16
        mantissa = np.where(above, mantissa >> np.uint64(1), mantissa)
        result |= (above << bit).astype(np.uint8)
    return result


FRACTIONS = _fractions()


@kernel
def log2_fixed(count):
    """Return log2 of a positive integer, of its first 16 bits, in 1/256 bits, rounded down.

    count      0 0 0 ... 0 1 x x x x x x x x x x x x x x x y y ...      63 - zeros is the integral part
               |-zeros-|   |-- 15 bits, k of FRACTIONS --|
    """
    # leading_zeros is of 32 bits: those of the upper half, or, if that is 0, 32 and those of the lower one.
    upper = U32(U64(count) >> U64(32))
    zeros = I64(leading_zeros(upper)) if upper else 32 + I64(leading_zeros(U32(count)))
    mantissa = U64(U64(count) << U64(zeros)) >> U64(48)
    return ((63 - zeros) << 8) + I64(FRACTIONS[mantissa & U64(0x7FFF)])
