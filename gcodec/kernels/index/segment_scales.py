"""Find the scale of a segment of values that may be products of one scale and a few factors, as quantized weights are.

A value says between which bounds the scale lies, once it is known which factor is the value's: rounding moved the
product by half a unit in the last place at most. The largest value of a segment has one of a few factors. With each of
these in turn, the bounds that it gives say which factors the other values have, and those narrow them, or contradict:

    largest value is 127 s      lo |-----------------------------| hi
    another must be 31 s              |-----------|
    another must be 90 s                   |---|                        a scale in here makes all of them
    largest value is 126 s      lo' |-----------------------------| hi'
    another is between 30 s and 31 s                                    no such scale

All values of a segment are held against the bounds of the largest, and meet only then, so that loops become vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import I32, I64, U8, U16, U32, U64, lesser, wrap
from ..core.unaligned import (
    bits_of_double,
    bits_of_float,
    double_from_bits,
    float_from_bits,
    load_u64,
    subarray,
    width_of,
)
from ..predict.residuals import BFLOAT16, FLOAT16, as_float
from .products import product_of, without_denormal

N_FACTORS = 256
N_MATCHES, NO_MATCH = 1 + 2 * N_FACTORS, 0  #: what is known of a value: see :func:`match_products`
N_BOUNDED, N_SMALL, _MAX_LOST, _FEW_KNOWN, _UNIT = 64, 16, 4, 2, 65536.0
_SHARE_MET, TRUST = 16, 8
MOST_WORK_FIRST, MOST_WORK = 1 << 12, 8  #: steps of a search, as ``ScaleSearch.work`` counts them, and for each value
_TO_INTEGER = 1.5 * 2.0**52
MAX_LOOKED_AT, MAX_COMPARED = 1024, 1 << 16  #: values that narrow a segment's scale, and that its largest is one of
MAX_LARGEST, _FEW = 4, 64  #: how many of the largest may be the one whose factor is guessed, half of them of a few
MAX_KNOWN = 32  #: factors of earlier segments
_MAX_SMALLEST = 8  #: the largest factor that is looked for in a segment's smallest value
#: One in so many values may contradict a scale, but no more than a few of the first: most guesses are wrong.
_SHARE_LOST, _LOST_AT_ONCE, _N_FIRST, _N_SHORT = 16, 2, 8, 64
ONE = 0x3F800000  #: the bits of 1, the scale of segments in which nothing tells it
_EXPONENT = 0x7F800000
_WIDE_FROM = 64  #: the factor from which on a value of bfloat16 may be as near to the next one: see :func:`_narrow`
#: A share of half a unit in the last place: less than what products differ by, and more than the error of a bound.
_A_BIT = 2.0**-26


class Factors(NamedTuple):
    """Factors that values may have, but for their signs.

    Attributes:
        values: float64[N_FACTORS], rising from 0; what follows the last is infinite.
        middles: float64[N_FACTORS], halfway from each to the next; infinite from the last on.
        largest: float64[n], those that the largest value of a segment may have, rising. They are tried in this order,
            by which of scales that fit the largest is found, but those of earlier segments before the others.
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


class ScaleSearch(NamedTuple):
    """Memory of the search for scales.

    Attributes:
        bits: uint32[MAX_LOOKED_AT], of values without their signs.
        magnitudes: float32[MAX_LOOKED_AT], of these.
        numbers: uint16[MAX_LOOKED_AT], of the factors nearest to their ratios to a scale.
        factors: float32[MAX_LOOKED_AT], those factors.
        below: float64[N_BOUNDED], the smallest numbers that the type rounds to the first magnitudes.
        above: float64[N_BOUNDED], likewise the largest.
        smallest: uint32[N_SMALL], one less than the bits of some small magnitudes.
        small: float64[N_SMALL], these magnitudes; infinite where there are none.
        halves: float64[N_SMALL], half of a unit in their last places.
        ratios: int32[N_SMALL], theirs to a large one, in 65536ths.
        margins: int32[N_SMALL], by how much these ratios may be wrong.
        steps: uint16[MAX_KNOWN + N_FACTORS], the factors that earlier segments' largest values had, and 1 ... N_FACTORS.
        lost: uint16[N_FACTORS], how many small magnitudes contradict each factor of a large one.
        fits: uint8[N_FACTORS], 1 for each that few contradict.
        tried: uint8[MAX_LARGEST * N_FACTORS], numbers of the factors to try for each of the largest magnitudes, rising.
        n_tried: int64[MAX_LARGEST], how many these are.
        queue: uint16[MAX_LARGEST * N_FACTORS], what is tried next: 256 k + the number of a factor, of the k-th largest.
        largest: uint32[MAX_LARGEST], bits of the largest magnitudes of a segment, as float32.
        known: int64[1 + MAX_KNOWN], numbers of the factors that earlier segments' largest values had, rising; how many
            come first.
        n_met: int32[N_FACTORS], in how many segments each factor was that of a large magnitude.
        before: uint32[1], bits of the scale of the segment before.
        trust: int64[1], how often more it is tried in vain.
        work: int64[2], how many values were held against the bounds of a scale, or 16 factors against a small value;
            and how many values there were.
    """

    bits: np.ndarray
    magnitudes: np.ndarray
    numbers: np.ndarray
    factors: np.ndarray
    below: np.ndarray
    above: np.ndarray
    smallest: np.ndarray
    small: np.ndarray
    halves: np.ndarray
    ratios: np.ndarray
    margins: np.ndarray
    steps: np.ndarray
    lost: np.ndarray
    fits: np.ndarray
    tried: np.ndarray
    n_tried: np.ndarray
    queue: np.ndarray
    largest: np.ndarray
    known: np.ndarray
    n_met: np.ndarray
    before: np.ndarray
    trust: np.ndarray
    work: np.ndarray


@kernel
def _magnitude(bits, width, dtype_code):
    """Return the bits of a value's magnitude as float32; 0 where that is infinite, NaN, or what a processor may take
    for zero. (Of float16, such values count as numbers beyond the largest.)"""
    bits = bits_of_float(as_float(U32(U32(bits) & U32((1 << (width - 1)) - 1)), dtype_code))
    exponent = U32(bits & U32(_EXPONENT))
    return bits if exponent != 0 and exponent != _EXPONENT else U32(0)


@kernel
def _read(values, step, dtype_code, bits, magnitudes):
    """Write values without their signs and their magnitudes, ``step`` apart, as many as there is room for; return the
    bits of the largest magnitude."""
    width, largest = width_of(values), U32(0)
    low_bits = U32((1 << (width - 1)) - 1)
    if step == 1:  # this loop becomes vectors
        for i in range(len(magnitudes)):
            bits[i] = U32(U32(values[i]) & low_bits)
            magnitude = _magnitude(values[i], width, dtype_code)
            magnitudes[i] = float_from_bits(magnitude)
            largest = max(largest, magnitude)
    else:
        for i in range(len(magnitudes)):
            bits[i] = U32(U32(values[i * step]) & low_bits)
            magnitude = _magnitude(values[i * step], width, dtype_code)
            magnitudes[i] = float_from_bits(magnitude)
            largest = max(largest, magnitude)
    return largest


@kernel
def _find_nearest(magnitudes, inverse, factors, numbers, nearest):
    """Find the factors that are nearest to the ratios of magnitudes to a scale, given its inverse."""
    if factors.form == INTEGERS:
        last = np.float32(factors.last)
        for i in range(len(magnitudes)):
            number = I32(min(np.float32(magnitudes[i] * inverse) + np.float32(0.5), last))
            numbers[i] = number
            nearest[i] = number
    elif factors.form == SIGNIFICANDS:
        for i in range(len(magnitudes)):
            bits = bits_of_float(np.float32(magnitudes[i] * inverse))
            number = I32(U32(bits + U32(_HALF_SIGNIFICAND)) >> U32(20)) - I32(_FIRST_SIGNIFICAND - 1)
            number = min(max(number, I32(0)), I32(factors.last))
            bits = U32(U32(number + I32(_FIRST_SIGNIFICAND - 1)) << U32(20))
            numbers[i] = number
            nearest[i] = float_from_bits(bits if number > 0 else U32(0))
    else:
        for i in range(len(magnitudes)):
            numbers[i] = 0
        for k in range(factors.last):
            middle = np.float32(factors.middles[k])
            for i in range(len(magnitudes)):
                numbers[i] += U16(np.float32(magnitudes[i] * inverse) > middle)
        for i in range(len(magnitudes)):
            nearest[i] = factors.values[numbers[i]]


@kernel
def _half_unit(dtype_code):
    """Return half a unit in the last place of 1: what rounding changes a number by, at most, as a share of it."""
    return 2.0**-8 if dtype_code == BFLOAT16 else 2.0**-11 if dtype_code == FLOAT16 else 2.0**-24


@kernel
def _rounded_from(magnitude, dtype_code):
    """Return the smallest and the largest number that a type rounds to a magnitude, as float64.

    They are half a unit in the last place away; below a power of two, half of that. Numbers halfway to the next are
    rounded to the even one: to others, what is a bit nearer. (Products of scales and small factors often lie halfway.)
    """
    mantissa_bits = 7 if dtype_code == BFLOAT16 else 10 if dtype_code == FLOAT16 else 23
    bits = bits_of_double(magnitude)
    power = double_from_bits(U64(bits & U64(0x7FF << 52)))
    half = power * _half_unit(dtype_code)
    least = 2.0**-25 if dtype_code == FLOAT16 else 0.0  # where its numbers are denormal
    below = 0.5 * half if magnitude == power and half > least else half
    is_odd = U64(bits >> U64(52 - mantissa_bits)) & U64(1)
    share = 1 - _A_BIT if is_odd else 1 + _A_BIT
    return magnitude - share * max(below, least), magnitude + share * max(half, least)


@kernel
def _meet(magnitudes, nearest, below, above, inverse, limit, low, high, factors):
    """Hold values up to a limit against the bounds of a scale, given the factors that they have if it is right, or for
    integers the scale's inverse.

    Returns:
        (n_met, n_lost, low, high): how many of them are not 0, how many of those contradict the bounds, and between
        which bounds all others want the scale to be: none, if low is above high.
    """
    n_met, n_lost, lowest, highest = I64(0), I64(0), bits_of_double(low), bits_of_double(high)
    if factors.form == INTEGERS:
        last = np.float64(factors.last)
        for i in range(len(below)):
            magnitude = np.float64(magnitudes[i])
            factor = (magnitude * inverse + _TO_INTEGER) - _TO_INTEGER
            factor = factor if factor < last else last
            reciprocal = 1.0 / factor
            least, most = below[i] * reciprocal, above[i] * reciprocal
            is_met = (magnitude > 0) & (magnitude <= limit)
            fits = is_met & (factor > 0) & (least <= high) & (most >= low)
            n_met += I64(is_met)
            n_lost += I64(is_met & (not fits))
            # Numbers above 0 are in the order of their bits, of which the largest is found in vectors.
            lowest = max(lowest, bits_of_double(least if fits else low))
            highest = min(highest, bits_of_double(most if fits else high))
    else:
        for i in range(len(below)):
            magnitude, factor = np.float64(magnitudes[i]), np.float64(nearest[i])
            reciprocal = 1.0 / factor
            least, most = below[i] * reciprocal, above[i] * reciprocal
            is_met = (magnitude > 0) & (magnitude <= limit)
            fits = is_met & (factor > 0) & (least <= high) & (most >= low)
            n_met += I64(is_met)
            n_lost += I64(is_met & (not fits))
            lowest = max(lowest, bits_of_double(least if fits else low))
            highest = min(highest, bits_of_double(most if fits else high))
    return n_met, n_lost, double_from_bits(lowest), double_from_bits(highest)


@kernel
def _narrow_in_turn(search, n, low, high, allowed):
    """Narrow the bounds of a scale by one value after another, where some contradict each other; return (low, high), or
    (0, 0) if more than ``allowed`` of them contradict those before them."""
    n_met, n_lost = 0, 0
    for i in range(n):
        factor, below, above = np.float64(search.factors[i]), search.below[i], search.above[i]
        if search.magnitudes[i] > 0:
            n_met += 1
            if factor > 0 and below <= high * factor and above >= low * factor:
                low, high = max(low, below / factor), min(high, above / factor)
            else:
                n_lost += 1
                if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
                    return I64(n_lost), 0.0, 0.0
    return I64(n_lost), low, high


@inlined
def _narrow(search, n, largest, factor, factors):
    """Return the bounds of the scale with which a value has a factor, narrowed by others; (0, 0) if too many of them
    contradict it.

    Args:
        search: The values.
        n: How many of them there are.
        largest: The value's magnitude.
        factor: The factor.
        factors: All that the others may have.
    """
    n_first = min(n, N_BOUNDED)
    allowed = n // _SHARE_LOST
    magnitudes, numbers = subarray(search.magnitudes, 0, n_first), subarray(search.numbers, 0, n_first)
    nearest = subarray(search.factors, 0, n_first)
    below, above = subarray(search.below, 0, n_first), subarray(search.above, 0, n_first)
    smallest, greatest = _rounded_from(largest, factors.dtype_code)
    low, high = smallest / factor, greatest / factor
    n_met, n_lost = I64(0), I64(0)
    # Of bfloat16, bounds are too wide to tell large factors from the next, until smaller ones have narrowed them.
    is_wide = factors.dtype_code == BFLOAT16 and factor >= _WIDE_FROM
    for turn in range(0 if is_wide else 1, 2):
        limit = low * factor * 0.5 if turn == 0 else np.inf
        inverse = 2.0 / (low + high)
        if factors.form != INTEGERS:
            _find_nearest(magnitudes, np.float32(inverse), factors, numbers, nearest)
        n_met, n_lost, lowest, highest = _meet(magnitudes, nearest, below, above, inverse, limit, low, high, factors)
        search.work[0] += n_first
        if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
            return 0.0, 0.0
        if lowest > highest:
            _find_nearest(magnitudes, np.float32(inverse), factors, numbers, nearest)
            n_lost, lowest, highest = _narrow_in_turn(search, n_first, low, high, allowed)
            if highest == 0:
                return 0.0, 0.0
        low, high = lowest, highest
    if n > n_first:
        return _narrow_by_others(search, n, n_met, n_lost, low, high, factors)
    return low, high


@kernel
def _narrow_by_others(search, n, n_met, n_lost, low, high, factors):
    """Narrow the bounds of a scale by the other values than the first; see :func:`_narrow`.

    Most of them have the same products with both bounds, and so with all between.
    """
    allowed = n // _SHARE_LOST
    for first in range(N_BOUNDED, n, N_BOUNDED):
        count = min(n - first, N_BOUNDED)
        magnitudes, numbers = subarray(search.magnitudes, first, count), subarray(search.numbers, first, count)
        nearest, bits = subarray(search.factors, first, count), subarray(search.bits, first, count)
        _find_nearest(magnitudes, np.float32(2.0 / (low + high)), factors, numbers, nearest)
        least, most = _float_from(low), _float_to(high)
        search.work[0] += count
        if least > most:
            return 0.0, 0.0
        n_other = 0
        for i in range(count):
            same = product_of(least, nearest[i], factors.dtype_code) == bits[i]
            n_other += I32(not (same & (product_of(most, nearest[i], factors.dtype_code) == bits[i])))
        n_met += count
        if n_other == 0:
            continue
        for i in range(count):
            factor = np.float64(nearest[i])
            if magnitudes[i] > 0:
                below, above = _rounded_from(np.float64(magnitudes[i]), factors.dtype_code)
                if factor > 0 and below <= high * factor and above >= low * factor:
                    if below > low * factor:
                        low = below / factor
                    if above < high * factor:
                        high = above / factor
                else:
                    n_lost += 1
        if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
            return 0.0, 0.0
    return low, high


@kernel
def _common_divisor(magnitudes, below, above, n, low, high):
    """Return the greatest common divisor of the integers that values have between two bounds of a scale."""
    divisor, inverse = I64(0), 2.0 / (low + high)
    for i in range(n):
        number = I64(magnitudes[i] * inverse + 0.5)
        if number and below[i] <= high * number and above[i] >= low * number:
            while number:
                divisor, number = number, divisor % number
            if divisor == 1:
                break
    return divisor


@kernel
def _float_from(low):
    """Return the smallest float32 that is not below a number above 0."""
    near = np.float32(low)
    return near if near >= low else float_from_bits(U32(bits_of_float(near) + U32(1)))


@kernel
def _float_to(high):
    """Return the largest float32 that is not above a number above 0."""
    near = np.float32(high)
    return near if near <= high else float_from_bits(U32(bits_of_float(near) - U32(1)))


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
def _number_of(largest, scale_bits, factors):
    """Return which of the factors of largest values such a value has with a scale; -1 if it has none."""
    ratio = float_from_bits(largest) / np.float64(float_from_bits(scale_bits))
    close = 2 * _half_unit(factors.dtype_code) * ratio  # the scale is made from such a value
    if factors.form == INTEGERS:
        number = I64(min(ratio + 0.5, np.float64(len(factors.largest)))) - 1
        return number if number >= 0 and abs(ratio - factors.largest[number]) <= close else I64(-1)
    for number in range(len(factors.largest)):
        if abs(ratio - factors.largest[number]) <= close:
            return I64(number)
    return I64(-1)


@kernel
def _next_largest(values, k, candidates, dtype_code):
    """Return the bits of the largest magnitude below that of candidate ``k - 1``; the second half of the candidates are
    of a few values, if those are many."""
    of_few = k >= MAX_LARGEST // 2 and len(values) > MAX_LOOKED_AT
    limit = U32(_EXPONENT) if of_few and k == MAX_LARGEST // 2 else candidates[k - 1]
    return _largest_below(values, _step_between(len(values), _FEW if of_few else MAX_COMPARED), limit, dtype_code)


@kernel
def _find_small(magnitudes, n_small, dtype_code, smallest, small, halves):
    """Write some small magnitudes, infinite where there are none, and half of a unit in their last places: the smallest
    of every ``n_small``-th of the first. Return the smallest of all."""
    for j in range(N_SMALL):
        smallest[j] = 0xFFFFFFFF
    for first in range(0, min(len(magnitudes), N_BOUNDED) - n_small + 1, n_small):
        part = subarray(magnitudes, first, n_small)
        for j in range(n_small):  # less 1, 0 is the largest
            smallest[j] = lesser(smallest[j], U32(bits_of_float(part[j]) - U32(1)))
    half, least, of_all = _half_unit(dtype_code), _least_unit(dtype_code), U32(0xFFFFFFFF)
    for j in range(n_small):
        of_all = lesser(of_all, smallest[j])
        bits = U32(smallest[j] + U32(1))
        magnitude = np.float64(float_from_bits(bits if bits else U32(_EXPONENT)))
        small[j] = magnitude
        halves[j] = max(_power_of(magnitude) * half, least)
    return float_from_bits(U32(of_all + U32(1)))


@kernel
def _least_unit(dtype_code):
    """Return half a unit in the last place of a type's smallest numbers, if it has denormal ones that count."""
    return 2.0**-25 if dtype_code == FLOAT16 else 0.0


@kernel
def _power_of(magnitude):
    """Return the power of two at or below a number."""
    return double_from_bits(U64(bits_of_double(magnitude) & U64(0x7FF << 52)))


@kernel
def _find_ratios(largest, small, halves, last, dtype_code, ratios, margins):
    """Write the ratios of small magnitudes to a large one, and how far they may be from those before rounding, in
    65536ths; 0 where that says nothing, and a ratio of 1 without a margin where a magnitude contradicts any factor."""
    value = np.float64(float_from_bits(largest))
    of_value = max(_power_of(value) * _half_unit(dtype_code), _least_unit(dtype_code))
    inverse, inverse_value = _UNIT / (value - of_value), _UNIT / value
    max_margin = np.float64(0xFFFF // I64(last))
    for j in range(len(small)):
        ratio = small[j] * inverse_value
        margin = (halves[j] + ratio * (of_value / _UNIT)) * inverse + 1.6
        is_telling = (ratio <= 2.0 * _UNIT) & (margin <= max_margin)
        is_tiny = ratio * last < 0.45 * _UNIT
        ratio = 1.0 if is_tiny else ratio + 0.5
        margin = 0.0 if is_tiny else margin
        ratios[j] = I32(ratio if is_telling else 0.0)
        margins[j] = I32(margin if is_telling else 0.0)


@kernel
def _contradicts(factor, ratio, margin):
    """Return 1 if a ratio times a factor is no integer, whatever the ratio's error is, else 0; all are uint16, ratios
    in 65536ths."""
    above = wrap(factor * ratio, factor)
    away = lesser(above, wrap(-above, above))
    return wrap(1, factor) if away > wrap(factor * margin, factor) else wrap(0, factor)


@kernel
def _find_fitting(steps, ratios, margins, most, lost, fits):
    """Write 1 for each factor that at most so many ratios contradict, else 0."""
    for i in range(len(steps)):
        lost[i] = 0
    for first in range(0, len(ratios), 4):
        r0, r1, r2, r3 = U16(ratios[first]), U16(ratios[first + 1]), U16(ratios[first + 2]), U16(ratios[first + 3])
        m0, m1, m2, m3 = U16(margins[first]), U16(margins[first + 1]), U16(margins[first + 2]), U16(margins[first + 3])
        for i in range(len(steps)):
            factor = steps[i]
            two = wrap(_contradicts(factor, r0, m0) + _contradicts(factor, r1, m1), factor)
            others = wrap(_contradicts(factor, r2, m2) + _contradicts(factor, r3, m3), factor)
            lost[i] = wrap(lost[i] + wrap(two + others, two), two)
    for i in range(len(steps)):
        fits[i] = U8(1) if lost[i] <= most else U8(0)


@inlined
def _sift(search, k, n_small, allowed, factors, if_known):
    """Write which factors the k-th of the largest magnitudes may have if few of the small ones contradict that.

    If it has the factor f, another magnitude v has v / largest * f. That is a factor, too, but for what rounding has
    changed both magnitudes by.
    """
    n_factors = len(factors.largest)
    tried, n_tried = subarray(search.tried, k * N_FACTORS, N_FACTORS), 0
    small, halves = subarray(search.small, 0, n_small), subarray(search.halves, 0, n_small)
    if factors.form == INTEGERS:
        ratios, margins = subarray(search.ratios, 0, n_small), subarray(search.margins, 0, n_small)
        _find_ratios(search.largest[k], small, halves, np.float64(n_factors), factors.dtype_code, ratios, margins)
        n_steps = (MAX_KNOWN if search.known[0] > 16 else 16) if if_known else (n_factors + 15) & ~15
        n_some = search.known[0] if if_known else n_factors
        steps = subarray(search.steps, 0 if if_known else MAX_KNOWN, n_steps)
        fits = subarray(search.fits, 0, n_steps)
        _find_fitting(steps, ratios, margins, U16(allowed), search.lost, fits)
        search.work[0] += n_small * n_steps // 16
        for first in range(0, n_some, 8):
            if load_u64(fits, first):
                for i in range(first, min(first + 8, n_some)):
                    tried[n_tried] = steps[i] - 1
                    n_tried += fits[i]
    else:
        value = np.float64(float_from_bits(search.largest[k]))
        of_value = max(_power_of(value) * _half_unit(factors.dtype_code), _least_unit(factors.dtype_code))
        search.work[0] += n_small
        for number in range(n_factors):
            n_lost, factor = 0, factors.largest[number]
            if factors.form == SIGNIFICANDS:
                for j in range(n_small):
                    ratio = small[j] / value * factor
                    margin = (halves[j] * factor + ratio * of_value) / (value - of_value)
                    bits = bits_of_float(np.float32(ratio))
                    near = float_from_bits(U32(U32(bits + U32(_HALF_SIGNIFICAND)) & U32(0xFFF00000)))
                    n_lost += I64((small[j] < np.inf) & (abs(ratio - near) > 1.001 * margin + ratio * 2.0**-22))
            if n_lost <= allowed and (search.n_met[number] or not if_known):
                tried[n_tried] = number
                n_tried += 1
    search.n_tried[k] = n_tried


@inlined
def _fit(values, before, n, factors, search):
    """Return the bits of a segment's scale, 0 if there is none.

    Any of the largest values may be no product at all. Of long segments many may be, and so the last that are tried are
    the largest of a few values. Factors that earlier segments had are tried first, then what the smallest value speaks
    for. Of others, the smallest comes first: of integers, a fine scale fits wherever a coarse one does, and one that is
    fine enough fits any value.
    """
    known, n_factors = search.known, len(factors.largest)
    n_largest, allowed = min(MAX_LARGEST, 1 + n // _SHARE_LOST), min(n // _SHARE_LOST, _MAX_LOST)
    n_small = 8 if factors.dtype_code == BFLOAT16 else 4
    n_small = n_small if allowed < 2 else 2 * n_small
    n_likely = min(2 * (known[known[0]] + 1), n_factors) if known[0] else 0
    stage, at, n_queued, bits, limit, smallest = 0, 0, 0, U32(0), I64(n_factors), np.float32(0)
    for i in range(min(n, N_BOUNDED)):
        search.below[i], search.above[i] = _rounded_from(np.float64(search.magnitudes[i]), factors.dtype_code)
    number = _number_of(search.largest[0], before, factors)
    if_before = number >= 0 and known[0] > 0 and search.trust[0] > 0
    if if_before and number <= known[known[0]]:
        search.trust[0] -= 1
        search.queue[0] = number
        n_queued = 1
    if known[0] <= _FEW_KNOWN:
        for turn in range(known[0]):
            search.queue[n_queued] = known[1 + turn]
            n_queued += 1
    while not bits:
        # What is tried first is tried always; more only while the search is worth it.
        if stage and search.work[0] > MOST_WORK_FIRST + MOST_WORK * search.work[1]:
            break
        if at < n_queued:
            k, number = search.queue[at] >> 8, search.queue[at] & 255
            at += 1
            value = np.float64(float_from_bits(search.largest[k]))
            low, high = _narrow(search, n, value, np.float64(factors.largest[number]), factors)
            if high > 0 and factors.form == INTEGERS and stage <= n_largest:
                divisor = _common_divisor(search.magnitudes, search.below, search.above, min(n, N_BOUNDED), low, high)
                if divisor > 1 and (number + 1) % divisor == 0:  # a coarser scale does as well
                    number = (number + 1) // divisor - 1
                    low, high = low * divisor, high * divisor
            bits = _shortest_between(low, high) if high > 0 else U32(0)
            bits = bits if low <= float_from_bits(bits) and float_from_bits(bits) <= high else U32(0)
            if bits:
                if if_before and stage == 0 and at == 1:  # scales repeat
                    search.trust[0] = min(search.trust[0] + 3, TRUST)
                learned = I64(number)
                if stage == 2 * n_largest + 2:
                    for other in range(n_largest):
                        learned = _number_of(search.largest[other], bits, factors)
                        if learned >= 0:
                            break
                if learned >= 0:
                    search.n_met[learned] += 1
                    if search.n_met[learned] == 1 or stage > n_largest:
                        _learn(known, search.n_met, search.steps, learned)
            continue
        stage += 1
        at = n_queued = 0
        if stage == 1:
            of_segment = subarray(search.magnitudes, 0, n)
            smallest = _find_small(
                of_segment, n_small, factors.dtype_code, search.smallest, search.small, search.halves
            )
        if_known = stage <= n_largest
        k = stage - 1 if if_known else stage - n_largest - 1 if stage <= 2 * n_largest else 0
        if if_known and k:
            search.largest[k] = _next_largest(values, k, search.largest, factors.dtype_code)
            if search.largest[k] == 0:
                n_largest = k
                stage -= 1
                continue
        if if_known and known[0] <= (_FEW_KNOWN if k == 0 else 0):
            continue
        if stage <= 2 * n_largest:
            _sift(search, k, n_small, allowed, factors, if_known)
            limit = I64(n_factors) if if_known else I64(0)
            if not if_known and factors.form == INTEGERS and n_likely:
                ratio = np.float64(float_from_bits(search.largest[k])) / np.float64(smallest)
                limit = min(n_likely, I64(min((_MAX_SMALLEST + 0.5) * ratio, 256.0)))
        elif stage == 2 * n_largest + 1:
            limit = I64(n_likely)
        if stage <= 2 * n_largest + 1:
            tried, left = subarray(search.tried, k * N_FACTORS, N_FACTORS), 0
            for i in range(search.n_tried[k]):
                number = tried[i]
                if number < limit:
                    search.queue[n_queued] = (k << 8) + number
                    n_queued += 1
                else:
                    tried[left] = number
                    left += 1
            search.n_tried[k] = left
        elif stage == 2 * n_largest + 2:
            for k in range(n_largest):
                for i in range(search.n_tried[k]):
                    number, place = search.tried[k * N_FACTORS + i], n_queued
                    while place > 0 and search.queue[place - 1] & 255 > number:
                        search.queue[place] = search.queue[place - 1]
                        place -= 1
                    search.queue[place] = (k << 8) + number
                    n_queued += 1
        else:
            break
    return bits


@kernel
def _learn(known, n_met, steps, number):
    """Add a number to those that are known, which rise, and take out those that are rare beside the most frequent; if
    there are too many, the rarest."""
    most = n_met[number]
    for turn in range(known[0]):
        most = max(most, n_met[known[1 + turn]])
    left = 0
    for turn in range(known[0]):
        other = known[1 + turn]
        known[1 + left] = other
        left += (n_met[other] * _SHARE_MET >= most) & (other != number)
    if left == MAX_KNOWN:
        rarest = 0
        for turn in range(1, left):
            rarest = turn if n_met[known[1 + turn]] < n_met[known[1 + rarest]] else rarest
        if n_met[known[1 + rarest]] < n_met[number]:
            for turn in range(rarest, left - 1):
                known[1 + turn] = known[2 + turn]
            left -= 1
    if left < MAX_KNOWN and n_met[number] * _SHARE_MET >= most:
        at = left
        while at > 0 and known[at] > number:
            known[1 + at] = known[at]
            at -= 1
        known[1 + at] = number
        left += 1
    while left > 1 and known[left] > 2 * known[1] + 1:
        left -= 1
    for turn in range(left):
        steps[turn] = known[1 + turn] + 1
    known[0] = left


@kernel
def _step_between(n, n_some):
    """Return how far apart values lie of which at most some are looked at: an odd step, so that it falls in with no
    pattern."""
    return (n + n_some - 1) // n_some | 1


@kernel
def _largest_below(values, step, limit, dtype_code):
    """Return the bits of the largest magnitude below a limit, of some values, ``step`` apart; 0 if there is none."""
    width, largest = width_of(values), U32(0)
    if step == 1:  # this loop becomes vectors
        for i in range(len(values)):
            magnitude = _magnitude(values[i], width, dtype_code)
            largest = max(largest, magnitude if magnitude < limit else U32(0))
    else:
        for i in range(0, len(values), step):
            magnitude = _magnitude(values[i], width, dtype_code)
            largest = max(largest, magnitude if magnitude < limit else U32(0))
    return largest


@kernel
def find_scales(values, segment, skipped, factors, search, scales):
    """Find the scale of each segment.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        factors: :class:`Factors`.
        search: :class:`ScaleSearch`, scratch, but for what is known, which later calls may go on with.
        scales: uint32[n_segments], result: their bits; 0 where there is none. That of zeros is as the one before.

    Returns:
        In how many segments there is none.
    """
    before, n_without = search.before[0], 0
    for s in range(len(scales)):
        begin = max(s * segment - skipped, 0)
        part = subarray(values, begin, min((s + 1) * segment - skipped, len(values)) - begin)
        scales[s] = before
        step = _step_between(len(part), MAX_LOOKED_AT)
        n = (len(part) + step - 1) // step
        largest = _read(part, step, factors.dtype_code, subarray(search.bits, 0, n), subarray(search.magnitudes, 0, n))
        if step > 1:
            step = _step_between(len(part), MAX_COMPARED)
            largest = _largest_below(part, step, U32(_EXPONENT), factors.dtype_code)
        search.work[1] += n
        if largest == 0:
            continue
        search.largest[0] = largest
        bits = _fit(part, before, n, factors, search)
        exponent = U32(bits & U32(_EXPONENT))
        if exponent == 0 or exponent == _EXPONENT:
            scales[s] = U32(0)
            n_without += 1
        else:
            scales[s] = before = bits
    search.before[0] = before
    return n_without


@kernel
def match_products(values, segment, skipped, scales, factors, search, matches, counts):
    """Find the factor of each value, where its product with the segment's scale is exactly the value.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        scales: uint32[n_segments], bits of the scales, 0 where there is none.
        factors: :class:`Factors`.
        search: :class:`ScaleSearch`, scratch.
        matches: uint16[n], result: 1 plus the number of the factor, and N_FACTORS more if the value has a minus sign;
            NO_MATCH where there is none.
        counts: int64[N_MATCHES], result: how often each is found is added.
    """
    for s in range(len(scales)):
        begin, end = max(s * segment - skipped, 0), min((s + 1) * segment - skipped, len(values))
        scale = without_denormal(scales[s])
        for first in range(begin, end, MAX_LOOKED_AT):
            count = min(end - first, MAX_LOOKED_AT)
            result = subarray(matches, first, count)
            if scale > 0:
                _match(subarray(values, first, count), scale, factors, search, result)
            else:
                result[:] = U16(NO_MATCH)
    for i in range(len(values)):
        counts[matches[i]] += 1


@kernel
def try_segments(values, starts, places, max_unmatched, factors, search, part, matches, scales, counts):
    """Find the scales of some segments, and the factors that some of their values have.

    Args:
        values: uintW[n].
        starts: int64[n_segments], where the segments begin.
        places: int64[n_places], which of their values are looked at.
        max_unmatched: So many values without a factor end the search.
        factors: :class:`Factors`.
        search: :class:`ScaleSearch`, scratch, to which nothing is known.
        part: uintW[n_places], scratch.
        matches: uint16[n_places], scratch.
        scales: uint32[1], scratch.
        counts: int64[N_MATCHES], result: how often each factor is found is added, as :func:`match_products` does.
    """
    n_places = len(places)
    for s in range(len(starts)):
        for i in range(n_places):
            part[i] = values[starts[s] + places[i]]
        find_scales(part, n_places, 0, factors, search, scales)
        match_products(part, n_places, 0, scales, factors, search, matches, counts)
        if counts[NO_MATCH] > max_unmatched or (s == 1 and counts[NO_MATCH] > n_places):
            break


@kernel
def number_matches(matches, index_of, indices):
    """Write the index that stands for each match.

    Args:
        matches: uint16[n] of :func:`match_products`.
        index_of: uint8[N_MATCHES].
        indices: uint8[n], result.
    """
    for i in range(len(matches)):
        indices[i] = index_of[matches[i]]


@inlined
def _match(values, scale, factors, search, matches):
    """Find the factors of at most MAX_LOOKED_AT values of one scale; see :func:`match_products`."""
    width, n = width_of(values), len(values)
    sign_bit = U32(1 << (width - 1))
    bits, magnitudes = subarray(search.bits, 0, n), subarray(search.magnitudes, 0, n)
    numbers, nearest = subarray(search.numbers, 0, n), subarray(search.factors, 0, n)
    _read(values, 1, factors.dtype_code, bits, magnitudes)
    _find_nearest(magnitudes, np.float32(1.0 / np.float64(scale)), factors, numbers, nearest)
    for i in range(n):
        made = product_of(scale, nearest[i], factors.dtype_code)
        match = U16(U32(numbers[i] + 1) + U32(N_FACTORS if U32(values[i]) & sign_bit else 0))
        matches[i] = match if made == bits[i] else U16(NO_MATCH)
