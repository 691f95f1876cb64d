"""Find the scale of a segment of integers times a scale from its smallest values, which have small factors.

The smallest of 32 values is 1 to 16 times the scale, hardly ever more, and what rounding changed it by is a small share
of it. So each of these factors says between which bounds the scale lies, the coarsest first; and the other values tell
whether it is there, and narrow the bounds, for all others of them that do not contradict:

    smallest value is 1 s     lo |---------------------| hi        others are 2.4 s, 3.6 s: contradict
    smallest value is 2 s     lo |----------| hi                   others are 4.8 s, 7.2 s: contradict
    smallest value is 5 s     lo |---| hi                          others are 12 s, 18 s: fit

Values far above the smallest fit any bounds as wide as these, and so are met only when others have narrowed them. Most
values that are no products are large, and keep no scale from being found.

Bounds are float32s of types of 16 bits, and float64s of float32, of which float32s rule most factors out before.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import I64, U32, U64, lesser
from ..core.unaligned import bits_of_double, bits_of_float, double_from_bits, float_from_bits, subarray
from ..predict.residuals import BFLOAT16, FLOAT32
from .bound_steps import (
    AT_ONCE,
    SHARE_LOST,
    TRIED_AT_ONCE,
    fitting_factors,
    meet_bfloat16,
    meet_float16,
    meet_float32,
)
from .rounding_bounds import float_from, float_to, half_unit, rounded_from, shortest_between

N_FACTORS_TRIED, _N_TRIED_LATER = 16, 8  #: factors that the smallest value may have, and others
_N_LOOKED_AT = 64  #: values that the smallest is one of
_ERROR = 2.0**-21  #: of ratios as float32, as a share of them; more than the rounding of values of float32
_BY_CHANCE = 2  #: values of a type of 16 bits that fit a finer scale, and are no products
_MUCH_FINER = 8  #: a scale than the one before, if the smallest value may be no product
_N_NARROWED = 3  #: how many scales are narrowed by all values
#: The ratios below which bounds of bfloat16 tell one factor from the next; and fewer, if some values contradict each
#: other.
_LIMIT, _LOW_LIMIT = 32.0, 8.0


@kernel
def _meet(magnitudes, limit, low, high, last, dtype_code, ends):
    """Hold values against the bounds of a scale.

    Args:
        magnitudes: float32[n], n a multiple of AT_ONCE.
        limit: Values of this ratio to the scale and above are left out.
        low: The lower bound of the scale, as float64.
        high: The upper bound.
        last: The largest factor.
        dtype_code: The type of the values.
        ends: int64[4], scratch.

    Returns:
        (n_met, n_lost, low, high): how many of them are not 0, how many of those contradict the bounds, and between
        which bounds all others want the scale to be: none, if low is above high.
    """
    n_met, n_lost, lowest, highest = I64(0), I64(0), low, high
    for first in range(0, len(magnitudes), AT_ONCE):
        if dtype_code == FLOAT32:
            meet_float32(magnitudes, first, _bits_64(limit), _bits_64(low), _bits_64(high), _bits_64(last), ends, 0)
            lowest, highest = max(lowest, _from_64(ends[0])), min(highest, _from_64(ends[1]))
        else:
            # Rounded away from what is between them: the scale itself is often at a bound.
            low_bits, high_bits = _bits(float_to(low)), _bits(float_from(high))
            if dtype_code == BFLOAT16:
                meet_bfloat16(magnitudes, first, _bits(limit), low_bits, high_bits, _bits(last), ends, 0)
            else:
                meet_float16(magnitudes, first, _bits(limit), low_bits, high_bits, _bits(last), ends, 0)
            lowest, highest = max(lowest, _from(ends[0])), min(highest, _from(ends[1]))
        n_met += ends[2]
        n_lost += ends[3]
    return n_met, n_lost, lowest, highest


@kernel
def _bits(number):
    """Return the bits of a number as float32, as the steps take them."""
    return I64(bits_of_float(np.float32(number)))


@kernel
def _bits_64(number):
    """Return the bits of a float64, likewise."""
    return I64(bits_of_double(number))


@kernel
def _from(bits):
    """Return the float32 with these bits, as float64."""
    return np.float64(float_from_bits(U32(bits)))


@kernel
def _from_64(bits):
    """Return the float64 with these bits."""
    return double_from_bits(U64(bits))


@kernel
def _smallest(magnitudes):
    """Return the smallest magnitude that is not 0; infinity if there is none."""
    least = U32(0xFFFFFFFF)
    for i in range(len(magnitudes)):
        least = lesser(least, U32(bits_of_float(magnitudes[i]) - U32(1)))  # less 1, so that 0 is the largest
    return float_from_bits(U32(least + U32(1))) if least != U32(0xFFFFFFFF) else np.float32(np.inf)


@kernel
def _narrowed(magnitudes, low, high, last, dtype_code, ends, work):
    """Return the bounds of a scale, narrowed by all values; zeros if too many contradict them."""
    if dtype_code == BFLOAT16:
        some = subarray(magnitudes, 0, AT_ONCE)
        _, _, lowest, highest = _meet(some, _LIMIT, low, high, last, dtype_code, ends)
        work[0] += AT_ONCE
        if lowest <= highest:
            low, high = lowest, highest
    n_met, n_lost, lowest, highest = _meet(magnitudes, np.inf, low, high, last, dtype_code, ends)
    work[0] += len(magnitudes)
    if n_lost * SHARE_LOST > n_met:
        return 0.0, 0.0
    if lowest > highest:  # not all fit one another: those of small factors first, which few others fit by chance
        _, _, lowest, highest = _meet(magnitudes, _LOW_LIMIT, low, high, last, dtype_code, ends)
        work[0] += len(magnitudes)
        if lowest <= highest:
            low, high = lowest, highest
            _, _, lowest, highest = _meet(magnitudes, np.inf, low, high, last, dtype_code, ends)
            work[0] += len(magnitudes)
    if lowest <= highest:
        return lowest, highest
    # Some are no products, and yet fit; those that are met with them narrow nothing, then.
    for first in range(0, len(magnitudes), AT_ONCE):
        part = subarray(magnitudes, first, AT_ONCE)
        _, _, lowest, highest = _meet(part, np.inf, low, high, last, dtype_code, ends)
        if lowest <= highest:
            low, high = lowest, highest
    work[0] += len(magnitudes)
    return low, high


@kernel
def _scale_between(low, high, dtype_code):
    """Return the bits of a short scale between bounds; 0 if there is none."""
    bits = shortest_between(low, high) if high > 0 and low <= high else U32(0)
    # Values of 8 bits leave room for three bytes, but for chance fits; one longer scale lengthens a block's.
    #     31 30 ...... 23 22 ......... 8 7 .... 0
    #      s  exponent    mantissa, kept  + 0x80, half of what is cut off: rounded to the nearest
    return U32(U32(bits + U32(0x80)) & U32(0xFFFFFF00)) if dtype_code == BFLOAT16 else bits


@kernel
def scale_of_largest(magnitudes, largest, factor, last, dtype_code, ends, work):
    """Find the scale of a segment whose largest value has a factor that is known: of weights that were divided by the
    largest of a group, all have the same.

    Args:
        magnitudes: float32[n], n a multiple of AT_ONCE.
        largest: The largest, as float64.
        factor: The factor, likewise.
        last: The largest integer that a value may be of the scale.
        dtype_code: The type of the values.
        ends: int64[4], scratch.
        work: int64[1], to which it is added how many values were held against bounds.

    Returns:
        The bits of the scale; 0 if any value contradicts it.
    """
    low, high = rounded_from(largest, dtype_code)
    low, high = low * (1.0 / factor), high * (1.0 / factor)
    work[0] += len(magnitudes)
    if dtype_code == BFLOAT16:  # the largest alone leaves open which factors other large ones have
        _, _, low, high = _meet(subarray(magnitudes, 0, AT_ONCE), _LIMIT, low, high, last, dtype_code, ends)
        work[0] += AT_ONCE
        if low > high:
            return U32(0)
    _, n_lost, low, high = _meet(magnitudes, np.inf, low, high, last, dtype_code, ends)
    return _scale_between(low, high, dtype_code) if n_lost == 0 else U32(0)


@kernel
def scale_of_small(magnitudes, n, before, last, dtype_code, ends, work):
    """Find the scale of a segment whose smallest value has a small factor.

    Args:
        magnitudes: float32[a multiple of AT_ONCE], those of the values, and zeros.
        n: Number of values.
        before: Bits of the scale of the segment before.
        last: The largest integer that a value may be of the scale.
        dtype_code: The type of the values.
        ends: int64[4], scratch.
        work: int64[1], to which it is added how many values were held against bounds or a factor.

    Returns:
        The bits of the scale; 0 if none was found.
    """
    n_narrowed, largest = 0, np.float64(last)
    # The smallest may be no product: so that of each quarter is tried, the smallest first. Of none, it is infinite.
    quarter, most = (min(n, _N_LOOKED_AT) + 3) // 4, _bits(largest + 0.5)
    a, b = _smallest(subarray(magnitudes, 0, quarter)), _smallest(subarray(magnitudes, quarter, quarter))
    c, d = _smallest(subarray(magnitudes, 2 * quarter, quarter)), _smallest(subarray(magnitudes, 3 * quarter, quarter))
    # A network of five comparisons:
    #
    #     a  b  c  d
    #     a<=b  c<=d               pairs in order
    #     first = min(a, c)        fourth = max(b, d)       and the two that are left
    a, b, c, d = min(a, b), max(a, b), min(c, d), max(c, d)
    first, fourth, b, c = min(a, c), max(b, d), min(max(a, c), min(b, d)), max(max(a, c), min(b, d))
    share = 0.0 if dtype_code == FLOAT32 else half_unit(dtype_code)
    fine, by_chance = U32(0), 0 if dtype_code == FLOAT32 else _BY_CHANCE
    for turn in range(4):
        base = np.float64(first if turn == 0 else b if turn == 1 else c if turn == 2 else fourth)
        if base == np.inf:
            break
        is_found, inverse, (lowest, highest) = False, 1.0 / base, rounded_from(base, dtype_code)
        of_base = _bits((highest - base) * inverse + _ERROR if share else _ERROR)
        for number in range(1, 1 + (_N_TRIED_LATER if turn else N_FACTORS_TRIED), TRIED_AT_ONCE):
            work[0] += AT_ONCE * TRIED_AT_ONCE
            fitting = fitting_factors(
                magnitudes, 0, _bits(inverse), of_base, _bits(share * inverse), most, _bits(np.float64(number))
            )
            while fitting:
                # A byte for each factor that was tried, the first one lowest: how many values fit it, 0 for a factor
                # that is out.
                # The one that clearly most fit; of others, which are multiples for the most part, the coarsest scale.
                k, most_fit = 0, I64(0)
                for other in range(TRIED_AT_ONCE):
                    n_fit = fitting >> 8 * other & 0xFF
                    k, most_fit = (other, n_fit) if n_fit > most_fit + (by_chance if most_fit else 0) else (k, most_fit)
                fitting &= ~(0xFF << 8 * k)
                part = 1.0 / (number + k)
                low, high = _narrowed(magnitudes, lowest * part, highest * part, largest, dtype_code, ends, work)
                bits = _scale_between(low, high, dtype_code)
                if bits and (turn or float_from_bits(bits) * np.float32(_MUCH_FINER) >= float_from_bits(before)):
                    return bits if float_from_bits(bits) > float_from_bits(fine) else fine
                n_narrowed += 1
                if bits:  # as if the value were none of the others': it comes first only if those tell no coarser one
                    fine, fitting, is_found = bits, I64(0), True
                if n_narrowed == _N_NARROWED:
                    return fine
            if is_found:
                break
    return fine
