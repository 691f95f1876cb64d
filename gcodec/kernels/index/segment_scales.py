"""Find the scale of a segment of values that may be products of one scale and a few factors, as quantized weights are.

A value says between which bounds the scale lies, once it is known which factor is the value's: rounding moved the
product by half a unit in the last place at most. The largest value of a segment has one of a few factors. With each of
these in turn, the bounds that it gives say which factors the other values have, and those narrow them, or contradict:

    largest value is 127 s      lo |-----------------------------| hi
    the next must be 31 s             |-----------|
    the next must be 90 s                  |---|                        a scale in here makes all of them
    largest value is 126 s      lo' |-----------------------------| hi'
    the next is between 30 s and 31 s                                   no such scale
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import kernel
from ..core.scalar import I64, U32
from ..core.unaligned import bits_of_float, float_from_bits, subarray, width_of
from ..predict.residuals import BFLOAT16, FLOAT16, as_float
from .products import product_of, without_denormal

N_FACTORS = 256
MAX_LOOKED_AT, MAX_COMPARED = 1024, 1 << 16  #: values that narrow a segment's scale, and that its largest is one of
MAX_LARGEST, _FEW = 4, 64  #: how many of the largest may be the one whose factor is guessed, half of them of a few
#: One in so many values may contradict a scale, but no more than a few of the first: most guesses are wrong.
_SHARE_LOST, _LOST_AT_ONCE = 16, 2
N_MATCHES, NO_MATCH = 1 + 2 * N_FACTORS, 0  #: what is known of a value: see :func:`match_products`
ONE = 0x3F800000  #: the bits of 1, the scale of segments in which nothing tells it


class Factors(NamedTuple):
    """Factors that values may have, but for their signs.

    Attributes:
        values: float64[N_FACTORS], rising from 0; what follows the last is infinite.
        middles: float64[N_FACTORS], halfway from each to the next; infinite from the last on.
        largest: float64[n], those that the largest value of a segment may have, rising, in the order in which they are
            tried: of scales that fit, the largest is found.
        last: Number of the last.
        form: How the nearest one is found: INTEGERS from 1 on, SIGNIFICANDS of 4 bits from 2**-20 on, or SEARCHED.
        dtype_code: The type of the values.
    """

    values: np.ndarray
    middles: np.ndarray
    largest: np.ndarray
    last: int
    form: int
    dtype_code: int


SEARCHED, INTEGERS, SIGNIFICANDS = range(3)
#: Bits 20 ... 31 of a float32 are its exponent and the upper bits of a significand of 4; these are those of 2**-20.
_FIRST_SIGNIFICAND, _HALF_SIGNIFICAND = (127 - 20) << 3, 1 << 19


@kernel
def _magnitude(bits, width, dtype_code):
    """Return the magnitude of a value as float32; 0 where that is infinite, NaN, or what a processor may take for
    zero. (Of float16, such values count as numbers beyond the largest.)"""
    bits = bits_of_float(as_float(U32(U32(bits) & U32((1 << (width - 1)) - 1)), dtype_code))
    exponent = U32(bits & U32(0x7F800000))
    return float_from_bits(bits if exponent != 0 and exponent != 0x7F800000 else U32(0))


@kernel
def _rounded_from(magnitude, dtype_code):
    """Return the smallest and the largest number that a type rounds to a magnitude, as float64.

    They are half a unit in the last place away; below a power of two, half of that.
    """
    power = np.float64(float_from_bits(U32(bits_of_float(magnitude) & U32(0x7F800000))))
    half = power * (2.0**-8 if dtype_code == BFLOAT16 else 2.0**-11 if dtype_code == FLOAT16 else 2.0**-24)
    below = 0.5 * half if magnitude == power else half
    if dtype_code == FLOAT16 and half < 2.0**-25:  # denormal
        half = below = 2.0**-25
    return magnitude - below, magnitude + half


@kernel
def _nearest(factors, ratio):
    """Return the number of the factor that is nearest to a ratio, which is not negative."""
    if factors.form == INTEGERS:
        return I64(min(ratio + 0.5, np.float64(factors.last)))
    if factors.form == SIGNIFICANDS:
        bits = U32(bits_of_float(np.float32(ratio)) + U32(_HALF_SIGNIFICAND)) >> U32(20)
        return min(max(I64(bits) - I64(_FIRST_SIGNIFICAND - 1), I64(0)), I64(factors.last))
    k = 0
    step = N_FACTORS >> 1
    while step:
        k += step if factors.middles[k + step - 1] < ratio else 0
        step >>= 1
    return k


@kernel
def _narrow(values, step, low, high, factors, allowed):
    """Narrow the bounds of a scale by some values, ``step`` apart; return (low, high), or (0, 0) if more than
    ``allowed`` of them contradict it."""
    width = width_of(values)
    n_met, n_lost, inverse = 0, 0, 2.0 / (low + high)
    for i in range(0, len(values), step):
        magnitude = _magnitude(values[i], width, factors.dtype_code)
        if magnitude > 0:
            n_met += 1
            factor = factors.values[_nearest(factors, magnitude * inverse)]
            below, above = _rounded_from(magnitude, factors.dtype_code)
            min_product, max_product = low * factor, high * factor
            if factor > 0 and below <= max_product and above >= min_product:
                if below > min_product or above < max_product:
                    low = below / factor if below > min_product else low
                    high = above / factor if above < max_product else high
                    inverse = 2.0 / (low + high)
            else:
                n_lost += 1
                if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
                    return 0.0, 0.0
    return low, high


@kernel
def _shortest_between(low, high):
    """Return the bits of a float32 between bounds, about in their middle, with as few bits as they leave room for; 0
    where that, or rounding to it, depends on whether the processor takes denormal numbers for zero."""
    if low + high < 2.0**-124:
        return U32(0)
    bits = bits_of_float(np.float32(0.5 * (low + high)))
    for shift in range(16, 0, -8):
        short = U32(U32(bits + U32(1 << (shift - 1))) & U32(0xFFFFFFFF << shift))
        value = float_from_bits(short)
        if low < value and value < high:  # at a bound itself, a tie may be rounded the other way
            return short
    return bits


@kernel
def _fit(values, step, factors, first, stop):
    """Return bounds of a segment's scale, and the number of its largest value's factor, among ``first ... stop - 1`` of
    those that it may have; bounds of 0 if none will do.

    Any of the largest values may be no product at all. Of long segments many may be, and so the last that are tried are
    the largest of a few values.
    """
    allowed = len(values) // step // _SHARE_LOST
    largest, step_between = np.float32(np.inf), _step_between(len(values), MAX_COMPARED)
    for k in range(MAX_LARGEST):
        if k == MAX_LARGEST // 2 and step > 1:
            largest, step_between = np.float32(np.inf), _step_between(len(values), _FEW)
        largest = _largest_below(values, step_between, largest, factors.dtype_code)
        if largest == 0:
            break
        below, above = _rounded_from(largest, factors.dtype_code)
        for number in range(first, stop):
            factor = factors.largest[number]
            low, high = _narrow(values, step, below / factor, above / factor, factors, allowed)
            if high > 0:
                return low, high, number
    return 0.0, 0.0, first


@kernel
def _step_between(n, n_some):
    """Return how far apart values lie of which at most some are looked at: an odd step, so that it falls in with no
    pattern."""
    return (n + n_some - 1) // n_some | 1


@kernel
def _largest_below(values, step, limit, dtype_code):
    """Return the largest magnitude below a limit, of some values, ``step`` apart; 0 if there is none."""
    width, largest = width_of(values), np.float32(0)
    for i in range(0, len(values), step):
        magnitude = _magnitude(values[i], width, dtype_code)
        largest = magnitude if magnitude > largest and magnitude < limit else largest
    return largest


@kernel
def find_scales(values, segment, skipped, factors, scales):
    """Find the scale of each segment.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        factors: :class:`Factors`.
        scales: uint32[n_segments], result: their bits; 0 where there is none. That of zeros is as the one before.

    Returns:
        In how many segments there is none.
    """
    guess = 0
    before = U32(ONE)
    n_without = 0
    for s in range(len(scales)):
        begin = max(s * segment - skipped, 0)
        part = subarray(values, begin, min((s + 1) * segment - skipped, len(values)) - begin)
        step = _step_between(len(part), MAX_LOOKED_AT)
        scales[s] = before
        if _largest_below(part, _step_between(len(part), MAX_COMPARED), np.float32(np.inf), factors.dtype_code) == 0:
            continue
        low, high, guess = _fit(part, step, factors, guess, guess + 1)
        if high == 0:
            low, high, guess = _fit(part, step, factors, 0, len(factors.largest))
        bits = _shortest_between(low, high) if high > 0 else U32(0)
        exponent = U32(bits & U32(0x7F800000))
        if exponent == 0 or exponent == 0x7F800000:
            scales[s] = U32(0)
            n_without += 1
        else:
            scales[s] = before = bits
    return n_without


@kernel
def match_products(values, segment, skipped, scales, factors, matches, counts):
    """Find the factor of each value, where its product with the segment's scale is exactly the value.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        scales: uint32[n_segments], bits of the scales, 0 where there is none.
        factors: :class:`Factors`.
        matches: uint16[n], result: 1 plus the number of the factor, and N_FACTORS more if the value has a minus sign;
            NO_MATCH where there is none.
        counts: int64[N_MATCHES], result: how often each is found is added.
    """
    width = width_of(values)
    sign_bit = U32(1 << (width - 1))
    for s in range(len(scales)):
        begin, end = max(s * segment - skipped, 0), min((s + 1) * segment - skipped, len(values))
        scale = without_denormal(scales[s])
        inverse = 1.0 / np.float64(scale)
        for i in range(begin, end):
            bits = U32(values[i])
            magnitude = _magnitude(bits, width, factors.dtype_code)
            k = _nearest(factors, magnitude * inverse) if scale > 0 else 0
            factor = np.float32(factors.values[k])
            made = product_of(scale, factor, factors.dtype_code)
            match = 1 + k + (N_FACTORS if bits & sign_bit else 0)
            match = match if made == U32(bits & ~sign_bit) else NO_MATCH
            matches[i] = match
            counts[match] += 1
