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

from ..core.jit import kernel
from ..core.scalar import I32, I64, U16, U32, U64
from ..core.unaligned import bits_of_double, bits_of_float, double_from_bits, float_from_bits, subarray, width_of
from ..predict.residuals import BFLOAT16, FLOAT16, as_float

N_FACTORS = 256
MAX_LOOKED_AT, MAX_COMPARED = 1024, 1 << 16  #: values that narrow a segment's scale, and that its largest is one of
MAX_LARGEST, _FEW = 4, 64  #: how many of the largest may be the one whose factor is guessed, half of them of a few
MAX_KNOWN = 16  #: factors of earlier segments
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
        magnitudes: float64[MAX_LOOKED_AT], of values.
        numbers: uint16[MAX_LOOKED_AT], of the factors nearest to their ratios to a scale.
        factors: float64[MAX_LOOKED_AT], those factors.
        largest: uint32[MAX_LARGEST], bits of the largest magnitudes of a segment.
        known: int64[1 + MAX_KNOWN], numbers of the factors that earlier segments' largest values had, rising; how many
            come first.
    """

    magnitudes: np.ndarray
    numbers: np.ndarray
    factors: np.ndarray
    largest: np.ndarray
    known: np.ndarray


@kernel
def _magnitude(bits, width, dtype_code):
    """Return the bits of a value's magnitude as float32; 0 where that is infinite, NaN, or what a processor may take
    for zero. (Of float16, such values count as numbers beyond the largest.)"""
    bits = bits_of_float(as_float(U32(U32(bits) & U32((1 << (width - 1)) - 1)), dtype_code))
    exponent = U32(bits & U32(_EXPONENT))
    return bits if exponent != 0 and exponent != _EXPONENT else U32(0)


@kernel
def read_magnitudes(values, step, dtype_code, magnitudes):
    """Write the magnitudes of values, ``step`` apart, as many as there is room for."""
    width = width_of(values)
    if step == 1:  # this loop becomes vectors
        for i in range(len(magnitudes)):
            magnitudes[i] = float_from_bits(_magnitude(values[i], width, dtype_code))
    else:
        for i in range(len(magnitudes)):
            magnitudes[i] = float_from_bits(_magnitude(values[i * step], width, dtype_code))


@kernel
def find_nearest(magnitudes, inverse, factors, search):
    """Find the factors that are nearest to the ratios of magnitudes to a scale, given its inverse."""
    if factors.form == INTEGERS:
        last = np.float64(factors.last)
        for i in range(len(magnitudes)):
            number = U32(min(magnitudes[i] * inverse + 0.5, last))
            search.numbers[i] = number
            search.factors[i] = number
    elif factors.form == SIGNIFICANDS:
        for i in range(len(magnitudes)):
            bits = bits_of_float(np.float32(magnitudes[i] * inverse))
            number = I32(U32(bits + U32(_HALF_SIGNIFICAND)) >> U32(20)) - I32(_FIRST_SIGNIFICAND - 1)
            number = min(max(number, I32(0)), I32(factors.last))
            bits = U32(U32(number + I32(_FIRST_SIGNIFICAND - 1)) << U32(20))
            search.numbers[i] = number
            search.factors[i] = float_from_bits(bits if number > 0 else U32(0))
    else:
        for i in range(len(magnitudes)):
            search.numbers[i] = 0
        for k in range(factors.last):
            for i in range(len(magnitudes)):
                search.numbers[i] += U16(magnitudes[i] * inverse > factors.middles[k])
        for i in range(len(magnitudes)):
            search.factors[i] = factors.values[search.numbers[i]]


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
def _meet(magnitudes, limit, low, high, dtype_code, search):
    """Hold values up to a limit against the bounds of a scale, given the factors that they have if it is right.

    Returns:
        (n_met, n_lost, low, high): how many of them are not 0, how many of those contradict the bounds, and between
        which bounds all others want the scale to be: none, if low is above high.
    """
    n_met, n_lost, lowest, highest = I64(0), I64(0), bits_of_double(low), bits_of_double(high)
    for i in range(len(magnitudes)):
        magnitude, factor = magnitudes[i], search.factors[i]
        below, above = _rounded_from(magnitude, dtype_code)
        inverse = 1.0 / factor
        least, most = below * inverse, above * inverse
        is_met = (magnitude > 0) & (magnitude <= limit)
        fits = is_met & (factor > 0) & (least <= high) & (most >= low)
        n_met += I64(is_met)
        n_lost += I64(is_met & (not fits))
        # Numbers above 0 are in the order of their bits, of which the largest is found in vectors.
        lowest = max(lowest, bits_of_double(least if fits else low))
        highest = min(highest, bits_of_double(most if fits else high))
    return n_met, n_lost, double_from_bits(lowest), double_from_bits(highest)


@kernel
def _narrow_in_turn(magnitudes, low, high, factors, allowed, search):
    """Narrow the bounds of a scale by one value after another, where some contradict each other; return (low, high), or
    (0, 0) if more than ``allowed`` of them contradict those before them."""
    n_met, n_lost = 0, 0
    for i in range(len(magnitudes)):
        magnitude, factor = magnitudes[i], search.factors[i]
        if magnitude > 0:
            n_met += 1
            below, above = _rounded_from(magnitude, factors.dtype_code)
            if factor > 0 and below <= high * factor and above >= low * factor:
                low, high = max(low, below / factor), min(high, above / factor)
            else:
                n_lost += 1
                if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
                    return 0.0, 0.0
    return low, high


@kernel
def _narrow(magnitudes, largest, factor, factors, n_first, search):
    """Return the bounds of the scale with which a value has a factor, narrowed by others; (0, 0) if too many of them
    contradict it, or of the first ``n_first``."""
    allowed = len(magnitudes) // _SHARE_LOST
    below, above = _rounded_from(largest, factors.dtype_code)
    low, high = below / factor, above / factor
    # Of bfloat16, bounds are too wide to tell large factors from the next, until smaller ones have narrowed them.
    is_wide = factors.dtype_code == BFLOAT16 and factor >= _WIDE_FROM
    for turn in range(0 if is_wide else 1, 2):
        limit = low * factor * 0.5 if turn == 0 else np.inf
        inverse, n_met, n_lost, lowest, highest, first = 2.0 / (low + high), I64(0), I64(0), low, high, 0
        while first < len(magnitudes):
            stop = len(magnitudes) if first else min(len(magnitudes), n_first)
            part, of_part = subarray(magnitudes, first, stop - first), _part_of(search, first, stop - first)
            find_nearest(part, inverse, factors, of_part)
            met_in_part, lost_in_part, least, most = _meet(part, limit, low, high, factors.dtype_code, of_part)
            n_met += met_in_part
            n_lost += lost_in_part
            if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
                return 0.0, 0.0
            lowest, highest, first = max(lowest, least), min(highest, most), stop
        if lowest > highest:
            return _narrow_in_turn(magnitudes, low, high, factors, allowed, search)
        low, high = lowest, highest
    return low, high


@kernel
def _part_of(search, first, count):
    """Return a part of the memory."""
    return ScaleSearch(
        subarray(search.magnitudes, first, count),
        subarray(search.numbers, first, count),
        subarray(search.factors, first, count),
        search.largest,
        search.known,
    )


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
def _fit(values, magnitudes, largest, factors, search):
    """Return the bits of a segment's scale, 0 if there is none.

    Any of the largest values may be no product at all. Of long segments many may be, and so the last that are tried are
    the largest of a few values. Factors that earlier segments had are tried first, then what the smallest value speaks
    for. Of others, the smallest comes first: of integers, a fine scale fits wherever a coarse one does, and one that is
    fine enough fits any value.
    """
    candidates = search.largest[: min(MAX_LARGEST, 1 + len(magnitudes) // _SHARE_LOST)]
    n_first = len(magnitudes) if len(magnitudes) <= _N_SHORT else _N_FIRST
    n_likely = min(2 * (search.known[search.known[0]] + 1), len(factors.largest)) if search.known[0] else 0
    for k in range(len(candidates)):
        candidates[k] = largest if k == 0 else _next_largest(values, k, candidates, factors.dtype_code)
        bits = _scale_of_known(magnitudes, largest, factors, n_first, search) if k == 0 else U32(0)
        if bits:
            return bits
        n_first = _N_FIRST if n_likely else n_first
        bits = _scale_by_smallest(magnitudes, candidates[k], n_likely, factors, search)
        if bits:
            _learn(candidates[k : k + 1], bits, factors, search.known)
            return bits
    for number in range(n_likely):
        bits = _scale_from(magnitudes, largest, number, factors, n_first, search)
        if bits:
            _learn(candidates[:1], bits, factors, search.known)
            return bits
    for k in range(1, len(candidates)):
        bits = _scale_of_known(magnitudes, candidates[k], factors, n_first, search)
        if bits:
            return bits
    for number in range(len(factors.largest)):
        for k in range(len(candidates)):
            bits = _scale_from(magnitudes, candidates[k], number, factors, n_first, search)
            if bits:
                _learn(candidates, bits, factors, search.known)
                return bits
    return U32(0)


@kernel
def _scale_of_known(magnitudes, largest, factors, n_first, search):
    """Return the bits of a scale with which one of the largest has a factor that earlier segments had, else 0."""
    for turn in range(search.known[0]):
        bits = _scale_from(magnitudes, largest, search.known[1 + turn], factors, n_first, search)
        if bits:
            return bits
        n_first = _N_FIRST
    return U32(0)


@kernel
def _scale_by_smallest(magnitudes, largest, n_likely, factors, search):
    """Return the bits of a scale with which the smallest magnitude has one of the first factors, of integers, and a
    largest one of the first ``n_likely``; 0 if there is none. The coarsest comes first.

    Given the factor of the smallest value, the ratio of both tells that of the largest: of float32, if there is one at
    all, and of bfloat16 to one or two.
    """
    if factors.form != INTEGERS or largest == 0 or n_likely == 0:
        return U32(0)
    smallest = np.inf
    for i in range(len(magnitudes)):
        smallest = min(smallest, magnitudes[i] if magnitudes[i] > 0 else np.inf)
    ratio = np.float64(float_from_bits(largest)) / smallest
    for factor in range(1, _MAX_SMALLEST + 1):
        of_largest, error = factor * ratio, 2 * _half_unit(factors.dtype_code) * factor * ratio
        first = I64(min(of_largest - error, np.float64(N_FACTORS)))
        for number in range(max(first - 1, 0), n_likely):
            if factors.largest[number] > of_largest + error:
                break
            if factors.largest[number] >= of_largest - error:
                bits = _scale_from(magnitudes, largest, number, factors, _N_FIRST, search)
                if bits:
                    return bits
    return U32(0)


@kernel
def _scale_as(before, magnitudes, largest, factors, search):
    """Return the bits of a segment's scale if it is about that of the one before, which may be of the same row, and the
    largest value's factor no larger than those that are known; else 0."""
    number = _number_of(largest, before, factors)
    if number < 0 or search.known[0] == 0 or number > search.known[search.known[0]]:
        return U32(0)
    return _scale_from(magnitudes, largest, number, factors, _N_FIRST, search)


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
def _scale_from(magnitudes, largest, number, factors, n_first, search):
    """Return the bits of the scale with which one of the largest values has this factor; 0 if the others contradict."""
    if largest == 0:
        return U32(0)
    value, factor = np.float64(float_from_bits(largest)), factors.largest[number]
    low, high = _narrow(magnitudes, value, factor, factors, n_first, search)
    bits = _shortest_between(low, high) if high > 0 else U32(0)
    return bits if low <= float_from_bits(bits) and float_from_bits(bits) <= high else U32(0)


@kernel
def _learn(candidates, scale_bits, factors, known):
    """Add the factor that the largest product has to those that are known, of which the last makes room."""
    for k in range(len(candidates)):
        number = _number_of(candidates[k], scale_bits, factors)
        if number >= 0:
            _insert(known, number)
            return


@kernel
def _insert(known, number):
    """Add a number to those that are known, if it is not."""
    for turn in range(known[0]):
        if known[1 + turn] == number:
            return
    at = min(known[0], MAX_KNOWN - 1)
    while at > 0 and known[at] > number:
        known[1 + at] = known[at]
        at -= 1
    known[1 + at] = number
    known[0] = min(known[0] + 1, MAX_KNOWN)


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
    before, n_without = U32(ONE), 0
    for s in range(len(scales)):
        begin = max(s * segment - skipped, 0)
        part = subarray(values, begin, min((s + 1) * segment - skipped, len(values)) - begin)
        scales[s] = before
        step = _step_between(len(part), MAX_COMPARED)
        largest = _largest_below(part, step, U32(_EXPONENT), factors.dtype_code)
        if largest == 0:
            continue
        step = _step_between(len(part), MAX_LOOKED_AT)
        magnitudes = subarray(search.magnitudes, 0, (len(part) + step - 1) // step)
        read_magnitudes(part, step, factors.dtype_code, magnitudes)
        bits = _scale_as(before, magnitudes, largest, factors, search)
        if not bits:
            bits = _fit(part, magnitudes, largest, factors, search)
        exponent = U32(bits & U32(_EXPONENT))
        if exponent == 0 or exponent == _EXPONENT:
            scales[s] = U32(0)
            n_without += 1
        else:
            scales[s] = before = bits
    return n_without
