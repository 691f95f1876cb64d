"""The arithmetic that decides bytes, one value at a time; the same functions compile for the CPU and for CUDA.

Every intermediate result is cast back to its width: compiled numba widens ``uint32 op uint32`` to 64 bits where the
CUDA simulator wraps, and only a cast makes the two agree.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I32, I64 = np.int8, np.int32, np.int64


@kernel
def word_multiplier(index):
    """m(i) of docs/format.md section 3 for the 32-bit word at position ``index``; an odd uint32."""
    return U32(U32(U32(index + 1) * U32(0x9E3779B1)) | U32(1))


@kernel
def round_magnitude(bits, drop, infinity, nearest):
    """Drop ``drop`` low bits of a magnitude (a float's bits without its sign).

    ``bits``, ``infinity``: uint64, ``infinity`` being the bits of +inf of this type; ``drop``: 0 ... mantissa bits;
    ``nearest``: round to nearest even, else truncate. Infinity stays; a NaN stays a NaN (the lowest kept
    mantissa bit is set where dropping would leave none); rounding never carries into infinity.
    """
    low = U64((U64(1) << U64(drop)) - U64(1))
    kept = U64(bits & ~low)
    if bits >= infinity:
        if bits > infinity and kept == infinity:
            kept = U64(kept | U64(low + U64(1)))
        return kept
    if nearest and drop > 0:
        half = U64(low >> U64(1))
        odd = U64(U64(bits >> U64(drop)) & U64(1))
        rounded = U64(U64(bits + U64(half + odd)) & ~low)
        if rounded < infinity:
            return rounded
    return kept


@kernel
def log2_fixed(count):
    """log2 of a positive integer in 1/256 bits, rounded down, by integer operations only."""
    mantissa = U64(count)
    exponent = 0
    while mantissa >= U64(1 << 16):
        mantissa = U64(mantissa >> U64(1))
        exponent += 1
    while mantissa < U64(1 << 15):
        mantissa = U64(mantissa << U64(1))
        exponent -= 1
    result = (15 + exponent) << 8
    for bit in range(7, -1, -1):
        mantissa = U64(U64(mantissa * mantissa) >> U64(15))
        if mantissa >= U64(1 << 16):
            mantissa = U64(mantissa >> U64(1))
            result += 1 << bit
    return result
