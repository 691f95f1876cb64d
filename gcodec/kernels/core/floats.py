"""Floats of 16 bits as float32, exactly: one at a time, and arrays of them."""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .scalar import U32
from .unaligned import bits_of_float, float_from_bits

_INFINITE = 0x7C00  #: the bits of an infinite float16, which are those of NaN, too
_MIN_NORMAL_HALF = np.float32(2.0**-14)  #: the smallest float16 that is not denormal


@kernel
def from_bfloat16(bits):
    """Return the float32 equal to a bfloat16, given its bits, a uint32.

    bfloat16   s eeeeeeee mmmmmmm
    float32    s eeeeeeee mmmmmmm0000000000000000
    """
    return float_from_bits(U32(bits << U32(16)))


@kernel
def from_half(bits):
    """Return the float32 equal to a finite float16, given its bits, a uint32.

        float16    s    eeeee mmmmmmmmmm
        float32    s (e + 112) mmmmmmmmmm0000000000000      e > 0
        denormal   s (0 + 113) mmmmmmmmmm0000000000000      less the 1 above the mantissa that this has too much, 2**-14

    Both are computed and one is chosen, so that loops become vectors. No float32 on the way is denormal, which a
    processor might take for zero.
    """
    magnitude = U32(U32(bits & U32(0x7FFF)) << U32(13))
    # 0x38000000 is 112 << 23, by which the biases of the exponents differ: 127 of float32 less 15. Of denormals, which
    # have no 1 in front of the mantissa, and the exponent of the smallest normal numbers, it is one more.
    normal = float_from_bits(U32(magnitude + U32(0x38000000)))
    denormal = float_from_bits(U32(magnitude + U32(0x38800000))) - _MIN_NORMAL_HALF
    # 1 << 23: below that the exponent is 0.
    size = normal if magnitude >= U32(0x800000) else denormal
    return float_from_bits(U32(bits_of_float(size) | U32(U32(bits & U32(0x8000)) << U32(16))))


@kernel
def widen_bfloat16(bits, out):
    """Write the float32 equal to each bfloat16.

    Args:
        bits: uint16[n].
        out: float32[n], result.
    """
    for i in range(len(bits)):
        out[i] = from_bfloat16(U32(bits[i]))


@kernel
def widen_half(bits, out):
    """Write the float32 equal to each float16, infinities and NaN included.

    Args:
        bits: uint16[n].
        out: float32[n], result.
    """
    for i in range(len(bits)):
        half = U32(bits[i])
        # Their exponent, 31 of 5 bits, has become 143, and has to be 255: all its bits are set; sign and mantissa stay.
        special = U32(0x7F800000) if half & U32(_INFINITE) == U32(_INFINITE) else U32(0)
        out[i] = float_from_bits(U32(bits_of_float(from_half(half)) | special))
