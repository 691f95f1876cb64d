"""Products of scales and factors, and sums of these and offsets, rounded as docs/format.md section 10 says, on every
machine alike.

They are what dequantization makes of weights: a quantized number as float32, times a scale, rounded to the type that
the weights have. As in :mod:`gcodec.kernels.predict.residuals`, what a processor may take for zero is zero here.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, float_from_bits
from ..predict.residuals import BFLOAT16, FLOAT16

HALF = 0x3F000000  #: the bits of 0.5
SIGN, TINY = 0x80000000, 0x01000000  #: a float32's sign bit, and the smallest magnitude no processor takes for zero


@kernel
def without_denormal(bits):
    """Return a float32, given its bits; 0 of the same sign if it is denormal."""
    return float_from_bits(bits if bits & U32(0x7F800000) else U32(bits & U32(SIGN)))


@kernel
def to_even_half(bits):
    """Return the bits of the float16 nearest to a float32 that is neither denormal nor NaN, ties to even.

    float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    float16   s    eeeee mmmmmmmmmm                 exponent - 112, and the mantissa rounded at bit 13;
              s    00000 000001mmmm                 denormal: a multiple of 2**-24, the last place of 0.5 + itself
    """
    magnitude = U32(bits & U32(0x7FFFFFFF))
    odd = U32(U32(magnitude >> U32(13)) & U32(1))
    normal = U32(U32(U32(magnitude - U32(0x38000000)) + U32(U32(0xFFF) + odd)) >> U32(13))
    small = U32(bits_of_float(np.float32(float_from_bits(magnitude) + np.float32(0.5))) - U32(HALF))
    result = small if magnitude < U32(0x38800000) else normal
    result = result if magnitude < U32(0x477FF000) else U32(0x7C00)
    return U32(result | U32(U32(bits >> U32(16)) & U32(0x8000)))


@kernel
def without_tiny(bits):
    """Return the bits of a float32; those of 0 of the same sign where it depends on the processor: where it is
    denormal, and where rounding may have made the smallest normal number of it."""
    return bits if U32(bits & U32(0x7FFFFFFF)) >= U32(TINY) else U32(bits & U32(SIGN))


@kernel
def rounded_to(bits, dtype_code):
    """Return the bits of the value of a type that is nearest to a float32, given its bits, ties to even, as uint32."""
    if dtype_code == BFLOAT16:
        #     bits        s eeeeeeee mmmmmmL rrrrrrrrrrrrrrrr
        #
        # 0x7FFF + L is added: r above one half carries into L, and one half itself only where L is 1, to the even one.
        return U32(U32(bits + U32(U32(0x7FFF) + U32(U32(bits >> U32(16)) & U32(1)))) >> U32(16))
    if dtype_code == FLOAT16:
        return to_even_half(bits)
    return bits


@kernel
def product_of(scale, factor, dtype_code):
    """Return the bits of a product in the type of the values, as uint32.

    Args:
        scale: float32, finite, not denormal.
        factor: float32, likewise.
        dtype_code: The values' type: that of float32, bfloat16 or float16 in docs/format.md section 2.
    """
    return rounded_to(without_tiny(bits_of_float(np.float32(scale * factor))), dtype_code)


@kernel
def sum_of(scale, factor, offset, dtype_code):
    """Return the bits of a product plus an offset, a float32 that is finite and not denormal; see
    :func:`product_of`."""
    product = float_from_bits(without_tiny(bits_of_float(np.float32(scale * factor))))
    return rounded_to(without_tiny(bits_of_float(np.float32(product + offset))), dtype_code)
