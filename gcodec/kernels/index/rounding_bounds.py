"""Between which numbers those lie that a type rounds to one of its own, and float32s between such bounds."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U32, U64
from ..core.unaligned import bits_of_double, bits_of_float, double_from_bits, float_from_bits
from ..predict.residuals import BFLOAT16, FLOAT16

#: A share of half a unit in the last place: less than what products differ by, and more than the error of a bound.
_A_BIT = 2.0**-26


@kernel
def half_unit(dtype_code):
    """Return half a unit in the last place of 1: what rounding changes a number by, at most, as a share of it."""
    return 2.0**-8 if dtype_code == BFLOAT16 else 2.0**-11 if dtype_code == FLOAT16 else 2.0**-24


@kernel
def least_half_unit(dtype_code):
    """Return half a unit in the last place of a type's smallest numbers: of float16, whose denormal ones count."""
    return 2.0**-25 if dtype_code == FLOAT16 else 0.0


@kernel
def power_of(magnitude):
    """Return the power of two at or below a magnitude, as float64."""
    return double_from_bits(U64(bits_of_double(magnitude) & U64(0x7FF << 52)))


@kernel
def rounded_from(magnitude, dtype_code):
    """Return the smallest and the largest number that a type rounds to a magnitude, as float64.

    They are half a unit in the last place away; below a power of two, half of that. Numbers halfway to the next are
    rounded to the even one: to others, what is a bit nearer. (Products of scales and small factors often lie halfway.)
    """
    mantissa_bits = 7 if dtype_code == BFLOAT16 else 10 if dtype_code == FLOAT16 else 23
    power, least = power_of(magnitude), least_half_unit(dtype_code)
    half = power * half_unit(dtype_code)
    below = 0.5 * half if magnitude == power and half > least else half
    # The unit of a float16 that is denormal is that of the smallest normal one, 2**-14.
    normal = magnitude + 2.0**-14 if dtype_code == FLOAT16 and magnitude < 2.0**-14 else magnitude
    is_odd = U64(bits_of_double(normal) >> U64(52 - mantissa_bits)) & U64(1)
    share = 1 - _A_BIT if is_odd else 1 + _A_BIT
    return magnitude - share * max(below, least), magnitude + share * max(half, least)


@kernel
def float_from(low):
    """Return the smallest float32 that is not below a number above 0."""
    near = np.float32(low)
    return near if near >= low else float_from_bits(U32(bits_of_float(near) + U32(1)))


@kernel
def float_to(high):
    """Return the largest float32 that is not above a number above 0."""
    near = np.float32(high)
    return near if near <= high else float_from_bits(U32(bits_of_float(near) - U32(1)))


@kernel
def shortest_between(low, high):
    """Return the bits of a float32 between bounds, in as few bytes as they leave room for, and about in their middle; 0
    where there is none, or where that, its inverse, or rounding to it depends on whether the processor takes denormal
    numbers for zero."""
    if low + high < 2.0**-124 or low + high > 2.0**126:
        return U32(0)
    bits = bits_of_float(np.float32(0.5 * (low + high)))
    #     float32       b3 b2 b1 b0
    #     two           b3 b2 00 00      two bytes are stored (docs/format.md section 10), rounded to the nearest
    #     three         b3 b2 b1 00      three
    #
    # Where only one such number is between the bounds, it may be next to one of them, as far from the middle as another
    # that is outside: so the ones below the middle are made, too. All are made and one is chosen: of branches, many
    # would be mispredicted. At a bound itself, a tie may be rounded the other way.
    two, three = U32(U32(bits + U32(0x8000)) & U32(0xFFFF0000)), U32(U32(bits + U32(0x80)) & U32(0xFFFFFF00))
    two_below, three_below = U32(bits & U32(0xFFFF0000)), U32(bits & U32(0xFFFFFF00))
    is_two, is_two_below = _is_between(low, two, high), _is_between(low, two_below, high)
    is_three, is_three_below = _is_between(low, three, high), _is_between(low, three_below, high)
    is_whole = (low <= float_from_bits(bits)) & (float_from_bits(bits) <= high)
    in_three = three if is_three else three_below if is_three_below else bits if is_whole else U32(0)
    return two if is_two else two_below if is_two_below else in_three


@kernel
def _is_between(low, bits, high):
    """Return True if the float32 with these bits is between two bounds, and neither of them."""
    return (low < float_from_bits(bits)) & (float_from_bits(bits) < high)
