"""Find the scale of a segment of values that may be products of one scale and a few factors, as quantized weights are.

A value says between which bounds the scale lies, once it is known which factor is the value's: rounding moved the
product by half a unit in the last place at most. The largest value of a segment has one of a few factors. With each of
these that :mod:`guesses` does not rule out, the bounds that it gives say which factors the other values have, and those
narrow them, or contradict:

    largest value is 127 s      lo |-----------------------------| hi
    another must be 31 s              |-----------|
    another must be 90 s                   |---|                        a scale in here makes all of them
    largest value is 126 s      lo' |-----------------------------| hi'
    another is between 30 s and 31 s                                    no such scale

The first values of a segment are held against the bounds of the largest, and meet only then, so that loops become
vectors. Most of the others have the same products with both bounds that those leave.

Of integers, that is what follows where :mod:`small_values` finds no scale, which it does many times as fast.

A segment that has no scale costs more than one that has. So steps are counted, and a search that has taken more than
so many for each value goes on only with what is tried first. Passing a search to a function that is not inlined takes
longer than many of its steps: it is dozens of arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import I32, I64, U16, U32, U64
from ..core.unaligned import (
    bits_of_double,
    bits_of_float,
    double_from_bits,
    float_from_bits,
    subarray,
    width_of,
)
from ..predict.residuals import BFLOAT16, as_float
from .bound_steps import AT_ONCE
from .guesses import (
    HALF_SIGNIFICAND,
    LANES,
    MAX_KNOWN,
    N_FACTORS,
    find_ratios,
    find_small,
    fitting_integers,
    learn,
    n_contradicting,
)
from .lane_steps import LARGEST, SCALE, SEGMENTS, transpose_16
from .products import product_of
from .rounding_bounds import float_from, float_to, half_unit, rounded_from, shortest_between
from .small_values import scale_of_largest, scale_of_small, scales_of_largest, scales_of_small

MAX_LOOKED_AT, MAX_COMPARED = 1024, 1 << 16  #: values that narrow a segment's scale, and that its largest is one of
#: Values that narrow it first; of bfloat16, so few before all others; and how many are held against bounds at a time.
N_BOUNDED, _N_BEFORE, _AT_ONCE = 64, 32, 64
_FEW_LEFT = 2  #: of segments that are searched at once: so few are searched one by one
MAX_SHORT = 256  #: values of segments of which some are searched at once
MAX_LARGEST, _FEW = 4, 64  #: how many of the largest may be the one whose factor is guessed, half of them of a few
_MAX_SMALLEST = 8  #: the largest factor that is looked for in a segment's smallest value
#: One in so many values may contradict a scale, but no more than a few of the first, or of the small ones.
_SHARE_LOST, _LOST_AT_ONCE, _MAX_SMALL_LOST = 16, 2, 4
_FEW_KNOWN = 2  #: factors of earlier segments that are tried before any are ruled out
TRUST, _MORE_TRUST = 8, 3  #: how often the scale before is tried in vain, and how often more after a success
#: Steps of a search that is not given up, as ``ScaleSearch.work`` counts them: at first, and more for each value.
MOST_WORK_FIRST, MOST_WORK = 1 << 14, 12
#: Likewise where most segments have a scale that their small values tell: few more are found.
MOST_WORK_FIRST_BESIDE, VALUES_FOR_WORK_BESIDE = 1 << 12, 8
_MOST_LIKELY = 4  #: how often the factor of a segment's largest value is tried in vain before others have had it again
ONE = 0x3F800000  #: the bits of 1, the scale of segments in which nothing tells it
_EXPONENT = 0x7F800000
_WIDE_FROM = 64  #: the factor from which on a value of bfloat16 may be as near to the next one: see :func:`_narrow`
_TO_INTEGER = 1.5 * 2.0**52  #: adding and subtracting it rounds a float64 to an integer


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
_FIRST_SIGNIFICAND = (127 - 20) << 3  #: bits 20 ... 31 of 2**-20 as float32: its exponent and the upper mantissa bits


class ScaleSearch(NamedTuple):
    """Memory of the search for scales.

    Attributes:
        bits: uint32[MAX_LOOKED_AT], of values without their signs.
        magnitudes: float32[MAX_LOOKED_AT], of these.
        numbers: uint16[MAX_LOOKED_AT], of the factors nearest to their ratios to a scale.
        factors: float32[MAX_LOOKED_AT], those factors.
        exact: float64[N_BOUNDED], the first of these magnitudes.
        below: float64[N_BOUNDED], the smallest numbers that the type rounds to them.
        above: float64[N_BOUNDED], likewise the largest.
        small_bits: uint32[N_SMALL], scratch of :func:`guesses.find_small`.
        small: float64[N_SMALL], small magnitudes of a segment.
        halves: float64[N_SMALL], half a unit in their last places.
        ratios: int32[N_SMALL], theirs to a large one, as :func:`guesses.find_ratios` writes them.
        margins: int32[N_SMALL], likewise.
        most: int32[N_SMALL], likewise.
        integers: uint16[MAX_KNOWN + N_FACTORS], the factors that are known, and 1 ... N_FACTORS.
        lost: uint16[N_FACTORS], scratch of :func:`guesses.fitting_integers`.
        fits: uint8[N_FACTORS], likewise.
        left: uint8[MAX_LARGEST * N_FACTORS], for each of the largest magnitudes the numbers of factors that were not
            ruled out and not tried, rising.
        n_left: int64[MAX_LARGEST], how many these are.
        queue: uint16[MAX_LARGEST * N_FACTORS], what is tried next: N_FACTORS times the number of one of the largest
            magnitudes, plus that of a factor.
        largest: uint32[MAX_LARGEST], bits of the largest magnitudes of a segment, as float32.
        known: int64[1 + MAX_KNOWN], numbers of the factors that earlier segments' largest values had, rising; how many
            come first.
        n_met: int32[N_FACTORS], in how many segments each factor was found.
        before: uint32[1], bits of the scale of the segment before.
        trust: int64[1], how often it is still tried.
        rows: float32[SEGMENTS * MAX_SHORT], the magnitudes of segments that are searched at once.
        columns: float32[SEGMENTS * MAX_SHORT], likewise, the first of all segments first.
        lanes: uint32[N_ROWS * SEGMENTS], what is known of these segments: see :mod:`lane_steps`.
        bounds: float64[N_BOUNDS * SEGMENTS], likewise.
        ends: int64[4], scratch of :func:`small_values.scale_of_small`.
        n_small: int64[2], in how many segments that found a scale, and in how many none.
        of_largest: int64[2], the factor of the last segment's largest value, and how far it is trusted to be the next
            one's.
        small_work: int64[2], how many values it held against bounds or a factor, a segment at a time, and of SEGMENTS
            at once, which takes a part of the time.
        work: int64[2], how many values were held against the bounds of a scale, or LANES factors against a ratio; and
            how many values there were.
    """

    bits: np.ndarray
    magnitudes: np.ndarray
    numbers: np.ndarray
    factors: np.ndarray
    exact: np.ndarray
    below: np.ndarray
    above: np.ndarray
    small_bits: np.ndarray
    small: np.ndarray
    halves: np.ndarray
    ratios: np.ndarray
    margins: np.ndarray
    most: np.ndarray
    integers: np.ndarray
    lost: np.ndarray
    fits: np.ndarray
    left: np.ndarray
    n_left: np.ndarray
    queue: np.ndarray
    largest: np.ndarray
    known: np.ndarray
    n_met: np.ndarray
    before: np.ndarray
    trust: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    lanes: np.ndarray
    bounds: np.ndarray
    ends: np.ndarray
    n_small: np.ndarray
    of_largest: np.ndarray
    small_work: np.ndarray
    work: np.ndarray


@kernel
def magnitude_of(bits, width, dtype_code):
    """Return the bits of a value's magnitude as float32; 0 where that is infinite, NaN, or what a processor may take
    for zero. (Of float16, such values count as numbers beyond the largest.)"""
    bits = bits_of_float(as_float(U32(U32(bits) & U32((1 << (width - 1)) - 1)), dtype_code))
    exponent = U32(bits & U32(_EXPONENT))
    return bits if exponent != 0 and exponent != _EXPONENT else U32(0)


@kernel
def read_magnitudes(values, step, dtype_code, bits, magnitudes):
    """Write values without their signs and their magnitudes, ``step`` apart, as many as there is room for; return the
    bits of the largest magnitude."""
    width, largest = width_of(values), U32(0)
    low_bits = U32((1 << (width - 1)) - 1)
    if step == 1:  # this loop becomes vectors
        for i in range(len(magnitudes)):
            bits[i] = U32(U32(values[i]) & low_bits)
            magnitude = magnitude_of(values[i], width, dtype_code)
            magnitudes[i] = float_from_bits(magnitude)
            largest = max(largest, magnitude)
    else:
        for i in range(len(magnitudes)):
            bits[i] = U32(U32(values[i * step]) & low_bits)
            magnitude = magnitude_of(values[i * step], width, dtype_code)
            magnitudes[i] = float_from_bits(magnitude)
            largest = max(largest, magnitude)
    return largest


@kernel
def find_nearest(magnitudes, inverse, factors, numbers, nearest):
    """Find the factors that are nearest to the ratios of magnitudes to a scale, given its inverse."""
    if factors.form == INTEGERS:
        last = np.float32(factors.last)
        for i in range(len(magnitudes)):
            # The least of both first, and then the integer: of a number that int32 does not hold, LLVM may make
            # anything.
            number = I32(min(np.float32(magnitudes[i] * inverse) + np.float32(0.5), last))
            numbers[i] = number
            nearest[i] = number
    elif factors.form == SIGNIFICANDS:
        for i in range(len(magnitudes)):
            bits = bits_of_float(np.float32(magnitudes[i] * inverse))
            #     ratio       0 eeeeeeee mmm 1 mmmmmmm...
            #     >> 20       0 eeeeeeee MMM                   rounded to 4 bits, as in guesses.n_contradicting
            #
            # This rises by 1 from one such number to the next, whatever its exponent. Less that of 2**-20, and 1 more,
            # it is the number of the factor; that of 0 is 0.
            number = I32(U32(bits + U32(HALF_SIGNIFICAND)) >> U32(20)) - I32(_FIRST_SIGNIFICAND - 1)
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
                # How many middles a ratio is beyond is the number of the nearest factor. A loop over values for each
                # factor becomes vectors, which a search for each value would not.
                numbers[i] += U16(np.float32(magnitudes[i] * inverse) > middle)
        for i in range(len(magnitudes)):
            nearest[i] = factors.values[numbers[i]]


@kernel
def _meet(exact, nearest, below, above, limit, low, high, factors):
    """Hold values up to a limit against the bounds of a scale, given the factors that are nearest to them; integers are
    found here.

    Args:
        exact: float64[n], the magnitudes.
        nearest: float32[n], the factors, but of integers.
        below: float64[n], the smallest numbers that are rounded to the magnitudes; 0 or less where those are 0.
        above: float64[n], likewise the largest.
        limit: Larger values are left out.
        low: The lower bound of the scale.
        high: The upper bound.
        factors: :class:`Factors`.

    Returns:
        (n_met, n_lost, low, high): how many of them are not 0, how many of those contradict the bounds, and between
        which bounds all others want the scale to be: none, if low is above high.
    """
    # Numbers above 0 are in the order of their bits, of which the largest is found in vectors. Masks are of 64 bits.
    n_met, n_fit, lowest, highest = I64(0), I64(0), I64(bits_of_double(low)), I64(bits_of_double(high))
    if factors.form == INTEGERS:
        inverse, last = 2.0 / (low + high), np.float64(factors.last)
        for i in range(len(below)):
            # A float64 of 1.5 * 2**52 has no bits below 1: the sum is rounded to an integer, which the difference
            # leaves.
            factor = (exact[i] * inverse + _TO_INTEGER) - _TO_INTEGER
            #     scales that make the value of this factor       least |-----------------| most
            #     scales that are possible by now                           low |--------------| high
            #     they fit if they overlap, and then leave                      |---------| lowest, highest
            #
            # Of all that fit, lowest is the largest lower bound and highest the smallest upper one: in any order, so as
            # vectors.
            reciprocal = 1.0 / (factor if factor < last else last)  # of 0, it is infinite, and does not fit
            least, most = below[i] * reciprocal, above[i] * reciprocal
            is_met = (below[i] > 0) & (exact[i] <= limit)
            fits = is_met & (least <= high) & (most >= low)
            n_met += I64(is_met)
            n_fit += I64(fits)
            lowest = max(lowest, I64(bits_of_double(least if fits else low)))
            highest = min(highest, I64(bits_of_double(most if fits else high)))
    else:
        for i in range(len(below)):
            reciprocal = 1.0 / np.float64(nearest[i])
            least, most = below[i] * reciprocal, above[i] * reciprocal
            is_met = (below[i] > 0) & (exact[i] <= limit)
            fits = is_met & (least <= high) & (most >= low)
            n_met += I64(is_met)
            n_fit += I64(fits)
            lowest = max(lowest, I64(bits_of_double(least if fits else low)))
            highest = min(highest, I64(bits_of_double(most if fits else high)))
    return n_met, n_met - n_fit, double_from_bits(U64(lowest)), double_from_bits(U64(highest))


@kernel
def _narrow_in_turn(magnitudes, nearest, below, above, low, high, allowed):
    """Narrow the bounds of a scale by one value after another, where some contradict each other; return (n_lost, low,
    high), or zeros if more than ``allowed`` of them contradict those before them."""
    n_met, n_lost = I64(0), I64(0)
    for i in range(len(below)):
        factor = np.float64(nearest[i])
        if magnitudes[i] > 0:
            n_met += 1
            if factor > 0 and below[i] <= high * factor and above[i] >= low * factor:
                low, high = max(low, below[i] / factor), min(high, above[i] / factor)
            else:
                n_lost += 1
                if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
                    return I64(0), 0.0, 0.0
    return n_lost, low, high


@inlined
def _narrow(search, n, largest, factor, factors):
    """Return the bounds of the scale with which a value has a factor, narrowed by others; (0, 0) if too many of them
    contradict it.

    Args:
        search: The values.
        n: How many of them there are.
        largest: The value's magnitude, as float64.
        factor: The factor, as float64.
        factors: All that the others may have.
    """
    allowed, n_met, n_lost = n // _SHARE_LOST, I64(0), I64(0)
    # The value is factor * scale, rounded: what is rounded to it, divided by the factor, is where the scale may be.
    smallest, greatest = rounded_from(largest, factors.dtype_code)
    low, high = smallest / factor, greatest / factor
    # Of bfloat16, bounds are too wide to tell large factors from the next, until smaller ones have narrowed them.
    is_wide = factors.dtype_code == BFLOAT16 and factor >= _WIDE_FROM
    # Turn 0 takes values up to half of this one: their factors are at most half of its, and lie farther apart in
    # proportion.
    for turn in range(0 if is_wide else 1, 2):
        count = min(n, N_BOUNDED if turn else _N_BEFORE)
        limit, inverse = np.inf if turn else low * factor * 0.5, 2.0 / (low + high)
        magnitudes, nearest = subarray(search.magnitudes, 0, count), subarray(search.factors, 0, count)
        below, above = subarray(search.below, 0, count), subarray(search.above, 0, count)
        numbers = subarray(search.numbers, 0, count)
        if factors.form != INTEGERS:
            find_nearest(magnitudes, np.float32(inverse), factors, numbers, nearest)
        exact = subarray(search.exact, 0, count)
        n_met, n_lost, lowest, highest = _meet(exact, nearest, below, above, limit, low, high, factors)
        search.work[0] += count
        if n_lost > (min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST) if turn else allowed):
            return 0.0, 0.0
        # Each fits the bounds, but not all fit one another: in turn, those that contradict the ones before are left
        # out.
        if lowest > highest:
            find_nearest(magnitudes, np.float32(inverse), factors, numbers, nearest)
            n_lost, lowest, highest = _narrow_in_turn(magnitudes, nearest, below, above, low, high, allowed)
            if highest == 0:
                return 0.0, 0.0
        low, high = lowest, highest
    if n > N_BOUNDED:
        return _narrow_by_others(search, n, n_met, n_lost, low, high, factors)
    return low, high


@kernel
def _narrow_by_others(search, n, n_met, n_lost, low, high, factors):
    """Narrow the bounds of a scale by the other values than the first, of which ``n_met`` were met and ``n_lost``
    contradict it; see :func:`_narrow`."""
    allowed, code = n // _SHARE_LOST, factors.dtype_code
    for first in range(N_BOUNDED, n, _AT_ONCE):
        count = min(n - first, _AT_ONCE)
        magnitudes, numbers = subarray(search.magnitudes, first, count), subarray(search.numbers, first, count)
        nearest, bits = subarray(search.factors, first, count), subarray(search.bits, first, count)
        # A product rises with the scale: what both ends of the bounds make of a factor, all scales between make, so a
        # value that is equal to that narrows nothing. Most are, and none of them is looked at one by one.
        least, most, n_same = float_from(low), float_to(high), 0
        if least > most:
            return 0.0, 0.0
        search.work[0] += count
        n_met += count
        find_nearest(magnitudes, np.float32(2.0 / (low + high)), factors, numbers, nearest)
        for i in range(count):  # this loop becomes vectors
            is_same = product_of(least, nearest[i], code) == bits[i]
            n_same += I32(is_same & (product_of(most, nearest[i], code) == bits[i]))
        if n_same == count:
            continue
        for i in range(count):
            factor = np.float64(nearest[i])
            if magnitudes[i] > 0:
                below, above = rounded_from(np.float64(magnitudes[i]), code)
                if factor > 0 and below <= high * factor and above >= low * factor:
                    low = below / factor if below > low * factor else low
                    high = above / factor if above < high * factor else high
                else:
                    n_lost += 1
        if n_lost > min(allowed, _LOST_AT_ONCE + n_met // _SHARE_LOST):
            return 0.0, 0.0
    return low, high


@kernel
def _common_divisor(exact, below, above, low, high):
    """Return the greatest common divisor of the integers that values have between two bounds of a scale; of 32 bits,
    which are divided sooner."""
    # Euclid's algorithm; the middle of the bounds tells the integers, of which those that contradict do not count.
    divisor, inverse = I32(0), 2.0 / (low + high)
    for i in range(len(exact)):
        number = I32(exact[i] * inverse + 0.5)
        if number and below[i] <= high * number and above[i] >= low * number:
            while number:
                divisor, number = number, I32(divisor % number)
            if divisor == 1:
                break
    return I64(divisor)


@kernel
def _number_of(largest, scale_bits, factors):
    """Return which of the factors of largest values such a value has with a scale; -1 if it has none."""
    ratio = float_from_bits(largest) / np.float64(float_from_bits(scale_bits))
    close = 2 * half_unit(factors.dtype_code) * ratio  # the scale is made from such a value
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
            magnitude = magnitude_of(values[i], width, dtype_code)
            largest = max(largest, magnitude if magnitude < limit else U32(0))
    else:
        for i in range(0, len(values), step):
            magnitude = magnitude_of(values[i], width, dtype_code)
            largest = max(largest, magnitude if magnitude < limit else U32(0))
    return largest


@inlined
def _rule_out(search, k, n_small, allowed, factors, if_known):
    """Find which factors the k-th of the largest magnitudes may have, of all or of those that are known."""
    code, n_factors = factors.dtype_code, len(factors.largest)
    small, halves = subarray(search.small, 0, n_small), subarray(search.halves, 0, n_small)
    left, n_left = subarray(search.left, k * N_FACTORS, N_FACTORS), 0
    if factors.form == INTEGERS:
        ratios, margins = subarray(search.ratios, 0, n_small), subarray(search.margins, 0, n_small)
        most, scratch = subarray(search.most, 0, n_small), (search.lost, search.fits)
        find_ratios(search.largest[k], small, halves, np.float64(n_factors), code, ratios, margins, most)
        n_some = search.known[0] if if_known else n_factors
        #     integers    0 ... MAX_KNOWN - 1     MAX_KNOWN ...
        #                 those that are known    1, 2 ... N_FACTORS
        #
        # Whole vectors of them, also where that takes some more than are asked for: these are left out at the end.
        n = (n_some + LANES - 1) // LANES * LANES
        integers = subarray(search.integers, 0 if if_known else MAX_KNOWN, n)
        n_left = fitting_integers(integers, n_some, ratios, margins, most, allowed, scratch, left)
        search.work[0] += n_small * n // LANES
    else:
        search.work[0] += n_small
        for number in range(n_factors):
            is_left = search.n_met[number] > 0 or not if_known
            if is_left and factors.form == SIGNIFICANDS:
                is_left = n_contradicting(factors.largest[number], search.largest[k], small, halves, code) <= allowed
            if is_left:
                left[n_left] = number
                n_left += 1
    search.n_left[k] = n_left


@inlined
def _queue_before(search, factors):
    """Queue what the scale before says of the largest value, and what earlier segments' largest values had if that is
    one factor or two; return how many these are, and whether the first is of the scale before."""
    known, n_queued = search.known, 0
    number = _number_of(search.largest[0], search.before[0], factors)
    is_before = number >= 0 and search.trust[0] > 0 and known[0] > 0 and number <= known[known[0]]
    if is_before:
        search.trust[0] -= 1
        search.queue[0] = number
        n_queued = 1
    if known[0] <= _FEW_KNOWN:
        for turn in range(known[0]):
            search.queue[n_queued] = known[1 + turn]
            n_queued += 1
    return n_queued, is_before


@inlined
def _queue_left(search, k, limit):
    """Queue the factors below a limit that the k-th of the largest values may have, and leave the others; return how
    many are queued."""
    left, n_left, n_queued = subarray(search.left, k * N_FACTORS, N_FACTORS), 0, 0
    for i in range(search.n_left[k]):
        number = left[i]
        if number < limit:
            search.queue[n_queued] = k * N_FACTORS + number
            n_queued += 1
        else:
            left[n_left] = number
            n_left += 1
    search.n_left[k] = n_left
    return n_queued


@inlined
def _queue_all_left(search, n_largest):
    """Queue all factors that any of the largest values may have, the smallest first; return how many."""
    n_queued = 0
    for k in range(n_largest):
        for i in range(search.n_left[k]):
            number, place = search.left[k * N_FACTORS + i], n_queued
            # By the factor alone, so that of scales which fit the coarsest is found, whichever value it is found by.
            while place > 0 and search.queue[place - 1] % N_FACTORS > number:
                search.queue[place] = search.queue[place - 1]
                place -= 1
            search.queue[place] = k * N_FACTORS + number
            n_queued += 1
    return n_queued


@inlined
def _try_queued(search, n, n_queued, stage, n_largest, factors):
    """Narrow a segment's scale by one queued guess after another; beyond the first stage, until the search has worked
    enough.

    Returns:
        (bits, number, at): of the scale that fits, 0 if there is none; of the factor that it was found by; and its
        place in the queue.
    """
    for at in range(n_queued):
        if stage and _is_spent(search, factors):
            break
        k, number = I64(search.queue[at]) // N_FACTORS, I64(search.queue[at]) % N_FACTORS
        value = np.float64(float_from_bits(search.largest[k]))
        low, high = _narrow(search, n, value, np.float64(factors.largest[number]), factors)
        if high > 0 and factors.form == INTEGERS and stage <= n_largest:  # others were not tried before it
            n_first = min(n, N_BOUNDED)
            exact, below = subarray(search.exact, 0, n_first), subarray(search.below, 0, n_first)
            divisor = _common_divisor(exact, below, search.above, low, high)
            # The factors have this divisor in common: a scale so many times as large has smaller ones.
            if divisor > 1 and (number + 1) % divisor == 0:
                number, low, high = (number + 1) // divisor - 1, low * divisor, high * divisor
        bits = shortest_between(low, high) if high > 0 else U32(0)
        if bits:
            return bits, number, I64(at)
    return U32(0), I64(-1), I64(n_queued)


@inlined
def _is_spent(search, factors):
    """Return True if the search has done as much work as its values are worth."""
    if factors.form == INTEGERS and search.n_small[0] >= search.n_small[1]:  # most scales are found without it
        return search.work[0] > MOST_WORK_FIRST_BESIDE + search.work[1] // VALUES_FOR_WORK_BESIDE
    return search.work[0] > MOST_WORK_FIRST + MOST_WORK * search.work[1]


@inlined
def _fit(values, n, factors, search):
    """Return the bits of a segment's scale, 0 if there is none.

    Any of the largest values may be no product at all. Of long segments many may be, and so the last that are tried are
    the largest of a few values. What they may have is tried in stages, each of which is a queue of guesses; here, of
    the K = 3 largest values:

                                                    127.0    113.2    98.1    the largest values
        what the scale before says, and the
        only factor or two that are known             0
        factors of earlier segments                   1        2        3
        up to twice as large ones, with which
        the smallest value has a small one            4        5        6
        all up to twice as large ones                 7
        all others, the smallest first                8        8        8

    The factors of stages 1 to 3 are ruled out first (:func:`_rule_out`), and again, of all, those of stages 4 to 6.
    Of integers, a fine scale fits wherever a coarse one does, and one that is fine enough fits any value.
    """
    known, code, n_factors = search.known, factors.dtype_code, len(factors.largest)
    n_largest, allowed = min(MAX_LARGEST, 1 + n // _SHARE_LOST), min(n // _SHARE_LOST, _MAX_SMALL_LOST)
    n_small = (8 if code == BFLOAT16 else 4) << (1 if allowed > 1 else 0)
    n_likely = min(2 * (known[known[0]] + 1), n_factors) if known[0] else 0
    magnitudes, exact, below, above = subarray(search.magnitudes, 0, n), search.exact, search.below, search.above
    for i in range(min(n, N_BOUNDED)):
        exact[i] = magnitudes[i]
        below[i], above[i] = rounded_from(exact[i], code)
    stage, smallest = 0, np.float32(0)
    n_queued, is_before = _queue_before(search, factors)
    while True:
        bits, number, at = _try_queued(search, n, n_queued, stage, n_largest, factors)
        if bits or stage > 2 * n_largest + 1 or (stage and _is_spent(search, factors)):
            break
        stage += 1
        n_queued = 0
        if stage <= n_largest:
            k = stage - 1
            if k == 0:
                small, halves = subarray(search.small, 0, n_small), subarray(search.halves, 0, n_small)
                smallest = find_small(magnitudes, code, search.small_bits, small, halves)
            else:
                search.largest[k] = _next_largest(values, k, search.largest, code)
                if search.largest[k] == 0:  # there are no more
                    n_largest, stage = k, k
                    continue
            if known[0] > (_FEW_KNOWN if k == 0 else 0):
                _rule_out(search, k, n_small, allowed, factors, True)
                n_queued = _queue_left(search, k, n_factors)
        elif stage <= 2 * n_largest:
            k, limit = stage - 1 - n_largest, I64(0)
            _rule_out(search, k, n_small, allowed, factors, False)
            if factors.form == INTEGERS and n_likely:
                ratio = np.float64(float_from_bits(search.largest[k])) / np.float64(smallest)
                limit = min(n_likely, I64(min((_MAX_SMALLEST + 0.5) * ratio, np.float64(N_FACTORS))))
            n_queued = _queue_left(search, k, limit)
        elif stage == 2 * n_largest + 1:
            n_queued = _queue_left(search, 0, n_likely)
        else:
            n_queued = _queue_all_left(search, n_largest)
    if bits:
        if is_before and stage == 0 and at == 0:
            search.trust[0] = min(search.trust[0] + _MORE_TRUST, TRUST)
        _learn_from(search, bits, number, stage, n_largest, factors)
    return bits


@inlined
def _learn_from(search, bits, number, stage, n_largest, factors):
    """Remember which factor a segment's largest value has, given the scale that was found, and in which stage."""
    if stage == 2 * n_largest + 2:  # of the largest product, not of one below it
        for other in range(n_largest):
            number = _number_of(search.largest[other], bits, factors)
            if number >= 0:
                break
    if number >= 0:
        search.n_met[number] += 1
        if stage > n_largest or search.n_met[number] == 1:
            learn(search.known, search.n_met, search.integers, number)


@inlined
def _integer_scale(all_magnitudes, n, largest, factors, search):
    """Return the bits of the scale of a segment of integers, by the factor that its largest value is likely to have, or
    else by its smallest values; 0 if there is none."""
    last, code, ends, work = factors.last, factors.dtype_code, search.ends, search.small_work
    n_padded, likely = (n + AT_ONCE - 1) // AT_ONCE * AT_ONCE, search.of_largest
    for i in range(n, n_padded):
        all_magnitudes[i] = 0
    magnitudes, bits = subarray(all_magnitudes, 0, n_padded), U32(0)
    if likely[1] > 0:
        bits = scale_of_largest(magnitudes, largest, np.float64(likely[0]), np.float64(last), code, ends, work)
        # likely[0] is the factor, and likely[1] how far it is trusted: up to a limit by one more where it is right, by
        # one less where it is not; from the beginning again where small values tell another one.
        likely[1] += 1 if bits and likely[1] < _MOST_LIKELY else 0 if bits else -1
    if not bits:
        bits = scale_of_small(magnitudes, n, search.before[0], last, code, ends, work)
        factor = I64(largest / np.float64(float_from_bits(bits)) + 0.5) if bits else I64(0)
        if factor:
            likely[1] = min(likely[1] + 1, _MOST_LIKELY) if factor == likely[0] else I64(0)
            likely[0] = factor
    return bits


@kernel
def _find_at_once(values, segment, factors, search):
    """Write the bits of the scales of some short segments as SCALE of ``search.lanes``, 0 where there is none yet."""
    rows, columns, code = search.rows, search.columns, factors.dtype_code
    for j in range(SEGMENTS):
        part = subarray(values, j * segment, segment)
        bits, magnitudes = subarray(search.bits, 0, segment), subarray(rows, j * segment, segment)
        search.lanes[LARGEST * SEGMENTS + j] = read_magnitudes(part, 1, code, bits, magnitudes)
    for first in range(0, segment, SEGMENTS):
        transpose_16(rows, first, segment, columns, first * SEGMENTS)
    likely, lanes, bounds, work = search.of_largest, search.lanes, search.bounds, subarray(search.small_work, 1, 1)
    if likely[1] == _MOST_LIKELY:
        factor = np.float64(likely[0])
        if scales_of_largest(columns, segment, factor, factors.last, code, lanes, bounds, work) <= _FEW_LEFT:
            return
        likely[1] = 0
    scales_of_small(columns, segment, search.before[0], factors.last, code, lanes, bounds, work)


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
    n_without, at_once, are_short = (
        0,
        False,
        factors.form == INTEGERS and segment <= MAX_SHORT and segment % SEGMENTS == 0,
    )
    for s in range(len(scales)):
        begin = max(s * segment - skipped, 0)
        if s % SEGMENTS == 0:
            # The first of a search are searched one by one, which tells what the scales of the others are near to.
            is_whole = skipped == 0 and begin + SEGMENTS * segment <= len(values)
            at_once = are_short and is_whole and search.n_small[0] > 0
            if at_once:
                _find_at_once(subarray(values, begin, SEGMENTS * segment), segment, factors, search)
        if at_once:
            bits = search.lanes[SCALE * SEGMENTS + s % SEGMENTS]
            if bits:
                scales[s] = search.before[0] = bits
                search.work[1] += segment
                search.n_small[0] += 1
                continue
        part = subarray(values, begin, min((s + 1) * segment - skipped, len(values)) - begin)
        scales[s] = search.before[0]
        step = _step_between(len(part), MAX_LOOKED_AT)
        n = (len(part) + step - 1) // step
        largest = read_magnitudes(
            part, step, factors.dtype_code, subarray(search.bits, 0, n), subarray(search.magnitudes, 0, n)
        )
        if step > 1:
            step = _step_between(len(part), MAX_COMPARED)
            largest = _largest_below(part, step, U32(_EXPONENT), factors.dtype_code)
        search.work[1] += n
        if largest == 0:
            continue
        search.largest[0] = largest
        bits = U32(0)
        if factors.form == INTEGERS:
            bits = _integer_scale(search.magnitudes, n, np.float64(float_from_bits(largest)), factors, search)
            search.n_small[0 if bits else 1] += 1
        is_given_up = factors.form == INTEGERS and _is_spent(search, factors)
        if not bits and not is_given_up:
            bits = _fit(part, n, factors, search)
        exponent = U32(bits & U32(_EXPONENT))
        if exponent == 0 or exponent == _EXPONENT:
            scales[s] = U32(0)
            n_without += 1
        else:
            scales[s] = search.before[0] = bits
    return n_without
