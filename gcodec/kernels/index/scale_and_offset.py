"""Find the scale and the offset of a segment of values that may be integers times a scale, plus an offset, as weights
are whose least value was stored beside the scale.

Then the values lie on a grid, whose ends are the least and the largest of them, nearly: rounding may have moved them.

    least                                              largest
      |-----|-----|-----|-----|-----|-----|-----|-----|            of 8 steps: all others lie on lines
      v           v     v                       v     v
      |---------|---------|---------|---------|-------|            of 5 steps: three do not

The first grid that fits tells the integer q of each value; and each value, rounded from what lies between two bounds,
says

    below <= scale * q + offset <= above

All of that together leaves a thin polygon of scales and offsets. How far the largest of the lower bounds of the offset
lies above the smallest of the upper ones is a convex function of the scale, whose slope is the difference of the two
integers. So a scale of few bits is found as by Newton's method: from one that leaves no room for an offset, the next is
the one where these two bounds do.

Values that lie on no line are left out, as long as they are few; so may be the least and the largest ones.

Of 8 bits in bfloat16, rounding moves the ends by as much as lines are apart. But values near zero were moved by far
less, and it is they that tell the distance of lines:

    least             zero              largest
      |-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-|
      v  v  v v v v v v v v v v v  v v  v v             rounded to as many bits, wherever they lie
               v v v v v v v                            of these, a grid is found; then, of more and more of them
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import I32, I64, U16, U32, U64
from ..core.unaligned import bits_of_double, bits_of_float, double_from_bits, float_from_bits, subarray, width_of
from ..predict.residuals import BFLOAT16, FLOAT16, FLOAT32
from .guesses import N_FACTORS
from .matches import NO_MATCH
from .products import sum_of
from .rounding_bounds import half_unit, least_half_unit, power_of, rounded_from
from .segment_scales import magnitude_of

MAX_LOOKED_AT = 1024  #: values of a segment that its scale and offset are found from
MAX_INTEGER = N_FACTORS - 1
N_KNOWN = 4  #: grids of earlier segments, which are tried first
_AT_ONCE = 8  #: numbers of values that loops are made for are multiples of it
_N_FIRST, _FIRST_LOST = 16, 4  #: values that a grid is held against before all; and how many of them may lie on no line
_SHARE_LOST = 8  #: one in so many values may lie on no line
_SHARE_LOST_LEARNT = 4  #: and of a segment of which others learn how many steps its grid has
_SURELY_MET = 16  #: segments with the most frequent grid, beyond whose size no other is tried then
N_TURNS = 6  #: pairs of values that the ends of a grid may be: see :func:`_ends`
_HALF_UNITS = 0.7  #: of the distance of a value's two bounds, it is less than that away from either
_SURE = 0.25  #: distances of lines that rounding moves a value by, at most, if it tells something of the lines
_MAX_TURNS, _MAX_UP = 10, 4  #: scales that are tried, and those of them above the first that leaves room
_MAX_SHIFT = 16  #: how many integers may lie below that of the least value
_TO_INTEGER = 1.5 * 2.0**52  #: adding and subtracting it rounds a float64 to an integer
_LOW_BITS = 0xFF  #: of a float64, which an integer takes the place of
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF  #: the bits of a float64 but its sign
#: The least scale, and what lies beyond the largest one: products are far from what processors take for zero.
_MIN_SCALE, _SCALES_END = 2.0**-100, 2.0**100
_OFFSETS_END = 2.0**127  #: rounded to few bits, smaller offsets are finite
_MANY_BITS = 16  #: of a scale, with which its products are rounded in float32
#: Steps of a search that goes on to more grids than the first, as ``PairSearch.work`` counts them: at first, and more
#: for each value.
_MOST_WORK_FIRST, _MOST_WORK = 1 << 13, 8
#: Of values near zero: up to which share of the largest one they lie, and how many times as far those that a grid is
#: then held against; how many there must be; and how many lines a grid of them has at most.
_NEAR_ZERO, _WIDER, _MIN_NEAR, _N_LINES = 0.125, 4.0, 8, 63
_MIN_LINES = 6  #: that values near zero must lie on
_MIN_MOVED = 0.2  #: distances of lines that rounding moves the farthest value by, at least
#: Distances of lines: no value is taken to be nearer to where it was before it was rounded; one farther from its bounds
#: says nothing; and so far from a line a value may lie that is on it, beside what rounding does, while lines become
#: more and more exact.
_LEAST_ERROR, _UNTOLD, _OFF_FIRST, _OFF_NEXT, _OFF_LAST = 1 / 64, 0.7, 0.15, 0.04, 0.015
MAX_NEAR = 256  #: values of a segment, at most, among which those near zero are looked for
_ENOUGH = 128  #: one in so many values need not be met where values near zero tell the grid
_SHARE_NEAR = 4  #: one in so many segments must have a grid of values near zero, of those of which it was looked for
_MAX_DROPPED = 4  #: least or largest values that are left out where there are too many lines between them
_WORK_OF_FIT = 4  #: steps for each value that is fitted to a grid; to hold one against a grid is one


class PairSearch(NamedTuple):
    """Memory of the search for scales and offsets.

    Attributes:
        bits: uint32[MAX_LOOKED_AT], those of the values.
        exact: float64[MAX_LOOKED_AT], values; NaN for those that are no numbers, and behind the last.
        below: float64[MAX_LOOKED_AT], the smallest numbers that the type rounds to them.
        above: float64[MAX_LOOKED_AT], likewise the largest.
        numbers: float64[MAX_LOOKED_AT], their integers.
        least: float64[MAX_LOOKED_AT], as ``below``, but of no weight for values that lie on no line.
        most: float64[MAX_LOOKED_AT], as ``above``, likewise.
        known: int64[N_KNOWN], steps of the grids that most segments have, falling; 0 where there is none.
        n_met: int32[N_FACTORS], how many segments have a grid of so many steps.
        near: float64[3 * MAX_NEAR], the values near zero, and what the type rounds to these, as above.
        n_near: int64[2], how many segments have a grid that was found from such values alone; and of how many it was
            looked for.
        work: int64[2], how many values were held against grids, several times as many where most lie on one, but for
            the first grid of each segment; and how many values there were.
    """

    bits: np.ndarray
    exact: np.ndarray
    below: np.ndarray
    above: np.ndarray
    numbers: np.ndarray
    least: np.ndarray
    most: np.ndarray
    known: np.ndarray
    n_met: np.ndarray
    near: np.ndarray
    n_near: np.ndarray
    work: np.ndarray


@kernel
def _number(bits, width, dtype_code):
    """Return a value as float32, given its bits; 0 for what is no number, or what a processor may take for zero."""
    sign = U32(U32(bits >> U32(width - 1)) << U32(31))
    return float_from_bits(U32(magnitude_of(bits, width, dtype_code) | sign))


@kernel
def _read_exact(values, step, dtype_code, bits, exact):
    """Read values, ``step`` apart."""
    width = width_of(values)
    for i in range(len(bits)):
        value = U32(values[i * step])
        bits[i] = value
        #     float16     s 11111 ..........          0x7C00, which a magnitude has to be below
        #     bfloat16    s 11111111 .......          0xFF << 7
        #     float32     s 11111111 ................ 0xFF << 23
        magnitude = U32(value & U32((1 << (width - 1)) - 1))
        # Of float16, what is no number has the bits of one beyond the largest.
        is_number = magnitude < U32(0x7C00 if dtype_code == FLOAT16 else 0xFF << (width - 9))
        exact[i] = np.float64(_number(value, width, dtype_code)) if is_number else np.nan


@kernel
def _find_bounds(exact, dtype_code, below, above):
    """Find between which numbers those lie that the type rounds to values."""
    for i in range(len(exact)):
        size = abs(exact[i])
        least, most = rounded_from(size, dtype_code)
        below[i] = least if exact[i] > 0 else -most
        above[i] = most if exact[i] > 0 else -least
        # What is 0 may be a product that a processor would take for zero, or of float16 one that is rounded to 0.
        near_zero = least_half_unit(dtype_code) if dtype_code == FLOAT16 else 2.0**-126
        below[i] = below[i] if size > 0 else -near_zero
        above[i] = above[i] if size > 0 else near_zero


@inlined
def _read(values, step, dtype_code, search, n, n_padded):
    """Read the first values of a segment, ``step`` apart, and what the type rounds to them."""
    bits, exact = subarray(search.bits, 0, n), subarray(search.exact, 0, n)
    if step == 1:  # this loop becomes vectors
        _read_exact(values, 1, dtype_code, bits, exact)
    else:
        _read_exact(values, step, dtype_code, bits, exact)
    for i in range(n, n_padded):
        search.bits[i], search.exact[i] = U32(0), np.nan
    padded = subarray(search.exact, 0, n_padded)
    _find_bounds(padded, dtype_code, subarray(search.below, 0, n_padded), subarray(search.above, 0, n_padded))


@kernel
def _ordered(number):
    """Return an integer for a float64: integers are in the order of the numbers, and loops over them become vectors."""
    #     number      sign exponent mantissa
    #     positive    0    as it is: larger numbers have larger bits
    #     negative    1    the others inverted: the larger the size, the smaller the integer
    #
    # `bits >> 63` is -1 of a negative number, and 0 of others.
    bits = I64(bits_of_double(number))
    return I64(bits ^ I64(I64(bits >> I64(63)) & I64(_MAGNITUDE)))


@kernel
def _number_of(ordered):
    """Return the float64 that an integer of :func:`_ordered` stands for."""
    return double_from_bits(U64(I64(ordered ^ I64(I64(ordered >> I64(63)) & I64(_MAGNITUDE)))))


@kernel
def _next_ends(exact, above, below):
    """Return the least of the values above a number, and the largest of those below another one; infinite where there
    are none."""
    low, high = _ordered(np.inf), _ordered(-np.inf)
    for i in range(len(exact)):  # this loop becomes vectors
        low = min(low, _ordered(exact[i] if exact[i] > above else np.inf))
        high = max(high, _ordered(exact[i] if exact[i] < below else -np.inf))
    return _number_of(low), _number_of(high)


@kernel
def _half_of(value, dtype_code):
    """Return half a unit in a value's last place, as the type has it."""
    return max(power_of(abs(value)) * half_unit(dtype_code), least_half_unit(dtype_code))


@kernel
def _n_off_lines(exact, below, above, grid):
    """Return how many values lie on no line of a grid.

    Args:
        exact: float64[n].
        below: float64[n].
        above: float64[n].
        grid: (line 0, 1 over the distance of lines, the last line, how much rounding moved the ends).
    """
    (first, inverse, last, margin), n_off = grid, I64(0)
    for i in range(len(exact)):  # this loop becomes vectors
        ratio = (exact[i] - first) * inverse
        line = (ratio + _TO_INTEGER) - _TO_INTEGER
        # `line` is the nearest integer: numbers of the size of that sum are 1 apart, so that it was rounded to one.
        away = abs(ratio - line) - ((above[i] - below[i]) * _HALF_UNITS + margin) * inverse
        # Not turned around: what is no number gives a NaN, with which no comparison holds, and so is off.
        n_off += I64(not ((away <= 0) & (line >= 0) & (line <= last)))
    return n_off


@kernel
def _find_lines(exact, below, above, grid, extra, numbers, least, most):
    """Write which lines of a grid values lie on, and bounds, which allow anything for those on none; these count as on
    line 0. Return (how many lie on none, on line 1, and so near to a line that it tells something). Arguments as of
    :func:`_n_off_lines`; ``extra`` widens bounds."""
    (first, inverse, last, margin), n_off, n_ones, n_sure = grid, I64(0), I64(0), I64(0)
    for i in range(len(exact)):  # this loop becomes vectors
        ratio = (exact[i] - first) * inverse
        line = (ratio + _TO_INTEGER) - _TO_INTEGER
        away = abs(ratio - line) - ((above[i] - below[i]) * _HALF_UNITS + margin) * inverse
        is_on = (away <= 0) & (line >= 0) & (line <= last)
        n_off += I64(not is_on)
        n_ones += I64(is_on & (line == 1.0))
        n_sure += I64(((above[i] - below[i]) * _HALF_UNITS + margin) * inverse < _SURE)
        numbers[i] = line if is_on else 0.0
        least[i] = below[i] - extra if is_on else -np.inf
        most[i] = above[i] + extra if is_on else np.inf
    return n_off, n_ones, n_sure


@kernel
def _common_divisor(numbers):
    """Return the greatest common divisor of integers, by Euclid's algorithm."""
    divisor = I64(0)
    for i in range(len(numbers)):
        number = I64(numbers[i])
        while number:
            divisor, number = number, divisor % number
        if divisor == 1:
            break
    return divisor


@kernel
def _offsets_between(least, most, numbers, scale):
    """Return the largest lower bound and the smallest upper bound of the offset with a scale, and the integers of the
    values whose bounds those are."""
    low, high = _ordered(-np.inf), _ordered(np.inf)
    for i in range(len(least)):  # this loop becomes vectors
        # The lowest 8 bits have the integer, so that the larger of two bounds brings its own along.
        #     63 ................................ 8 7 ........... 0
        #     the bound, as an integer in its order | integer of the value
        number = I64(I64(bits_of_double(numbers[i] + _TO_INTEGER)) & I64(_LOW_BITS))
        product = numbers[i] * scale
        low = max(low, I64(I64(_ordered(least[i] - product) & I64(~_LOW_BITS)) | number))
        high = min(high, I64(I64(_ordered(most[i] - product) & I64(~_LOW_BITS)) | number))
    return _number_of(low), _number_of(high), I64(low & I64(_LOW_BITS)), I64(high & I64(_LOW_BITS))


@kernel
def _nearest_short(number, n_bits):
    """Return the number of so many mantissa bits that is nearest to a float64."""
    dropped = U64(52 - n_bits)
    # Half of the last bit that is kept is added, and the rest cut off. Where that carries out of the mantissa, the
    # exponent is one more and the mantissa 0, which is the next number, too.
    bits = U64(bits_of_double(number) + U64(U64(1) << U64(dropped - U64(1))))
    return double_from_bits(U64(U64(bits >> dropped) << dropped))


@kernel
def _next_short(number, n_bits, up):
    """Return the next larger or smaller number of so many mantissa bits, which has as many."""
    unit = U64(U64(1) << U64(52 - n_bits))
    bits = bits_of_double(number)
    # Over the end of the mantissa the bits go on with the exponent, as the numbers do.
    return double_from_bits(U64(bits + unit) if up else U64(bits - unit))


@kernel
def _n_met(bits, numbers, shift, scale, offset, dtype_code):
    """Return how many values are the sum of a product and an offset, bit by bit, given their integers."""
    n_met = I32(0)
    for i in range(len(bits)):  # this loop becomes vectors
        n_met += I32(sum_of(scale, np.float32(numbers[i] + shift), offset, dtype_code) == bits[i])
    return I64(n_met)


@kernel
def _try_scale(bits, n_on, numbers, steps, scale, between, n_bits, dtype_code):
    """Try offsets of few bits with a scale; return (how many values are met, offset, the largest integer) of the best.

    Args:
        bits: uint32[n], the values.
        n_on: How many of them lie on lines: no more can be met but by chance.
        numbers: float64[n], their integers, of which the least is 0.
        steps: (the largest integer, how many others may be the least).
        between: (lower bound of the offset, upper one, the least value).
        n_bits: How many mantissa bits an offset may have.
    """
    (last, n_shifts), (low, high, first) = steps, between
    most, best_offset, best_last = I64(0), 0.0, I64(0)
    if n_bits > _MANY_BITS and low <= first <= high and abs(first) < _OFFSETS_END:
        # What is added to a product of 0 is the offset itself, to its last bit.
        most, best_offset, best_last = (
            _n_met(bits, numbers, 0.0, np.float32(scale), np.float32(first), dtype_code),
            first,
            last,
        )
        if most >= n_on:
            return most, best_offset, best_last
    for shift in range(n_shifts):
        moved = shift * scale
        wanted = 0.5 * (low + high) - moved
        offset = 0.0 if abs(wanted) < _MIN_SCALE else _nearest_short(wanted, n_bits)
        is_inside = (low - moved <= offset) & (offset <= high - moved)
        if (is_inside or most == 0) and abs(offset) < _OFFSETS_END:
            met = _n_met(bits, numbers, np.float64(shift), np.float32(scale), np.float32(offset), dtype_code)
            if met > most:
                most, best_offset, best_last = met, offset, I64(last + shift)
            if is_inside and met >= n_on:
                break
    return most, best_offset, best_last


@inlined
def _find_short(search, n, n_padded, n_on, grid, n_bits, dtype_code):
    """Find a scale and an offset of few bits for the values that lie on the lines of a grid; return (how many values
    are met, scale, offset, the largest integer)."""
    bits, numbers = subarray(search.bits, 0, n), subarray(search.numbers, 0, n)
    padded, least = subarray(search.numbers, 0, n_padded), subarray(search.least, 0, n_padded)
    most, last, n_shifts = subarray(search.most, 0, n_padded), I64(grid[2]), I64(1)
    for k in range(N_KNOWN):
        n_shifts = max(n_shifts, min(search.known[k] - last, I64(_MAX_SHIFT)) + 1)
    best = I64(0), 0.0, 0.0, I64(0)
    scale, lower, upper = _nearest_short(1 / grid[1], n_bits), _MIN_SCALE, _SCALES_END
    start, goes_up = 0.0, True  # from the first scale that leaves room on, first up, then down
    steps, tried, between = (last, n_shifts), 0.0, (0.0, 0.0, 0.0)
    n_up = 0
    for _ in range(_MAX_TURNS):
        if start > 0 and goes_up and (scale >= upper or n_up > _MAX_UP):
            goes_up, scale = False, _next_short(start, n_bits, False)
        if not lower < scale < upper:
            break
        low, high, of_low, of_high = _offsets_between(least, most, padded, scale)
        # Each bound of the offset is that of a value, less the value's integer times the scale:
        #
        #     low  = least - of_low  * scale
        #     high = most  - of_high * scale           low - high changes by of_high - of_low with the scale
        gap, slope = low - high, np.float64(of_high - of_low)
        #     gap          \
        #      |            \       other values, other slopes
        #      |             \___
        #     -+--------------.--\------.---- scale        a gap of 0 and less leaves room
        #                         \____/
        tried, between = scale, (low, high, grid[0])
        if gap <= 0:
            met, offset, largest = _try_scale(bits, n_on, numbers, steps, scale, between, n_bits, dtype_code)
            best = (met, scale, offset, largest) if met > best[0] else best
            if met >= n_on:
                break
            start = start if start > 0 else scale
            n_up += goes_up
            scale = _next_short(scale, n_bits, goes_up)
        elif start > 0:
            if not goes_up:
                break
            goes_up, scale = False, _next_short(start, n_bits, False)
        elif slope == 0:
            break
        else:
            # With all scales up to this one, the gap is above 0: none that leaves room is passed over.
            near = scale - gap / slope
            lower, upper = (scale, upper) if slope < 0 else (lower, scale)
            if not lower < near < upper:
                break
            scale = _nearest_short(near, n_bits)
            if slope < 0 and scale < near:
                scale = _next_short(scale, n_bits, True)
            elif slope > 0 and scale > near:
                scale = _next_short(scale, n_bits, False)
    if best[0] == 0 and tried > 0:  # none leaves room for all values: one that is near meets some
        met, offset, largest = _try_scale(bits, n_on, numbers, steps, tried, between, n_bits, dtype_code)
        best = met, tried, offset, largest
    return best


@inlined
def _fit_grid(search, n, n_padded, ends, last, allowed, n_bits, dtype_code):
    """Hold a segment's values against the grid of so many steps between two ends; see :func:`_find_short`."""
    exact, numbers = subarray(search.exact, 0, n_padded), subarray(search.numbers, 0, n_padded)
    below, above = subarray(search.below, 0, n_padded), subarray(search.above, 0, n_padded)
    spread, margin = ends[1] - ends[0], max(_half_of(ends[0], dtype_code), _half_of(ends[1], dtype_code))
    # Products of scales of many bits are rounded, too.
    extra = spread * 2.0**-24 if n_bits > _MANY_BITS and dtype_code == FLOAT32 else 0.0
    grid = ends[0], np.float64(last) / spread, np.float64(last), margin + extra
    allowed += n_padded - n  # what lies behind the last value is no number
    # Most grids that do not fit are ruled out by a few values.
    n_first = min(_N_FIRST, n_padded)
    search.work[0] += n_first
    if _n_off_lines(subarray(exact, 0, n_first), below, above, grid) > min(allowed, _FIRST_LOST):
        return I64(0), 0.0, 0.0, I64(0)
    least, most = subarray(search.least, 0, n_padded), subarray(search.most, 0, n_padded)
    n_off, n_ones, n_sure = _find_lines(exact, below, above, grid, extra, numbers, least, most)
    search.work[0] += n_padded
    if n_off > allowed or 2 * n_sure < n:
        return I64(0), 0.0, 0.0, I64(0)
    search.work[0] += (_WORK_OF_FIT - 1) * n_padded
    if not n_ones:
        divisor = _common_divisor(numbers)
        if divisor > 1:
            # A scale so many times as large makes the same of smaller integers.
            for i in range(n_padded):
                numbers[i] = numbers[i] / divisor
            grid = grid[0], grid[1] / divisor, grid[2] / divisor, grid[3]
    return _find_short(search, n, n_padded, n_padded - n_off, grid, n_bits, dtype_code)


@kernel
def _take_near(exact, below, above, farthest, near, near_below, near_above):
    """Copy the values that are at most so far from zero, and their bounds; return how many they are."""
    n = I64(0)
    for i in range(len(exact)):
        if abs(exact[i]) <= farthest:  # not so of what is no number
            near[n], near_below[n], near_above[n] = exact[i], below[i], above[i]
            n += 1
    return n


@kernel
def _n_different_lines(near, grid):
    """Return how many lines of a grid of at most 63 steps values lie on."""
    lines = U64(0)
    for i in range(len(near)):
        line = I64(min(max((near[i] - grid[0]) * grid[1] + 0.5, 0.0), 63.0))
        lines |= U64(U64(1) << U64(line))
    n = I64(0)
    while lines:
        lines &= U64(lines - U64(1))
        n += 1
    return n


@kernel
def _fit_line(exact, below, above, farthest, first, step, off_line):
    """Return line 0 and the distance of lines that are nearest to the values at most so far from zero: by least
    squares, weighted by how far rounding moved them.

    Args:
        exact: float64[n].
        below: float64[n].
        above: float64[n].
        farthest: How far from zero.
        first: Line 0, about.
        step: The distance of lines, about.
        off_line: Distances of lines by which values that are on one may be off, beside what rounding does.
    """
    total, lines, squares, errors, products = 0.0, 0.0, 0.0, 0.0, 0.0
    inverse, least = 1 / step, _LEAST_ERROR * step
    for i in range(len(exact)):
        ratio = (exact[i] - first) * inverse
        line = (ratio + _TO_INTEGER) - _TO_INTEGER
        error, unit = exact[i] - (first + line * step), above[i] - below[i]
        if abs(exact[i]) <= farthest and abs(error) <= unit * _HALF_UNITS + off_line * step:
            weight = 1 / (unit * unit + least * least)
            total += weight
            lines += weight * line
            squares += weight * line * line
            errors += weight * error
            products += weight * line * error
    determinant = total * squares - lines * lines
    if not determinant > 0:
        return first, step
    wider = (total * products - lines * errors) / determinant
    return first + (errors - wider * lines) / total, step + wider


@kernel
def _ends_of_lines(exact, first, step):
    """Return the lines of the least and the largest value, but for a few that are too far from the others."""
    low, high = _next_ends(exact, -np.inf, np.inf)
    for _ in range(_MAX_DROPPED):
        if high - low <= (MAX_INTEGER + 0.5) * step:
            break
        if high + low > 0:
            _, high = _next_ends(exact, -np.inf, high)
        else:
            low, _ = _next_ends(exact, low, np.inf)
    of_low, of_high = (low - first) / step, (high - first) / step
    return (of_low + _TO_INTEGER) - _TO_INTEGER, (of_high + _TO_INTEGER) - _TO_INTEGER


@kernel
def _forget_untold(below, above, farthest, least, most):
    """Allow anything for values whose bounds are so far apart."""
    for i in range(len(below)):  # this loop becomes vectors
        is_told = above[i] - below[i] < farthest
        least[i] = least[i] if is_told else -np.inf
        most[i] = most[i] if is_told else np.inf


@kernel
def _fit_near_zero(search, n, n_padded, n_bits, dtype_code):
    """Find scale and offset of a segment from its values near zero, as :func:`_fit` does from the least and largest."""
    exact, numbers = subarray(search.exact, 0, n_padded), subarray(search.numbers, 0, n_padded)
    below, above = subarray(search.below, 0, n_padded), subarray(search.above, 0, n_padded)
    least, most = subarray(search.least, 0, n_padded), subarray(search.most, 0, n_padded)
    best, n_some = (I64(0), 0.0, 0.0, I64(0)), min(n_padded, I64(MAX_NEAR))
    low, high = _next_ends(exact, -np.inf, np.inf)
    farthest = max(high, -low) * _NEAR_ZERO
    near, near_below = subarray(search.near, 0, n_some), subarray(search.near, MAX_NEAR, n_some)
    near_above, some = subarray(search.near, 2 * MAX_NEAR, n_some), subarray(exact, 0, n_some)
    n_near = _take_near(some, below, above, farthest, near, near_below, near_above) if low < high else I64(0)
    if n_near < _MIN_NEAR:
        return best
    near = subarray(near, 0, n_near)
    low, high = _next_ends(near, -np.inf, np.inf)
    if not low < high:
        return best
    margin, n_first = max(_half_of(low, dtype_code), _half_of(high, dtype_code)), min(I64(_N_FIRST), n_near)
    # Lines farther apart than that are found from the ends.
    fewest = I64(_MIN_MOVED * (high - low) / _half_of(farthest / _NEAR_ZERO, dtype_code))
    for last in range(max(fewest, I64(1)), _N_LINES + 1):
        grid = low, np.float64(last) / (high - low), np.float64(last), margin
        if margin * grid[1] >= _SURE:
            break
        n_off = _n_off_lines(subarray(near, 0, n_first), near_below, near_above, grid)
        if n_off > _FIRST_LOST or n_off * _SHARE_LOST > n_near:
            continue
        if _n_off_lines(near, near_below, near_above, grid) * _SHARE_LOST > n_near:
            continue
        if _n_different_lines(near, grid) < _MIN_LINES:  # few values lie on many grids
            continue
        first, step = _fit_line(near, near_below, near_above, farthest, low, (high - low) / last, _OFF_FIRST)
        if step > 0:
            first, step = _fit_line(some, below, above, farthest * _WIDER, first, step, _OFF_NEXT)
        if not step > 0:
            continue
        begin, end = _ends_of_lines(exact, first, step)
        if not end - begin <= MAX_INTEGER:
            continue
        whole = first + begin * step, 1 / step, end - begin, _OFF_LAST * step
        n_off, _, _ = _find_lines(exact, below, above, whole, 0.0, numbers, least, most)
        n_on = I64(n_padded - n_off)
        if (n - n_on) * _SHARE_LOST > n:
            continue
        _forget_untold(below, above, _UNTOLD * step, least, most)
        enough = n_on - n_on // _ENOUGH  # a few may be on the next line
        found = _find_short(search, n, n_padded, enough, whole, n_bits, dtype_code)
        best = found if found[0] > best[0] else best
        if (n - best[0]) * _SHARE_LOST <= n:
            break
    return best


@kernel
def _ends(exact, turn):
    """Return which of the least and of the largest values are the ends of a grid in a turn: those that lie farther
    inside are for segments whose least or largest values lie on no line.

    turn         0   1   2   3   4   5
    least        1   1   2   2   1   3      the k-th that differs from those before
    largest      1   2   1   2   3   1
    """
    low, high = _next_ends(exact, -np.inf, np.inf)
    for _ in range(2 if turn == 5 else 1 if turn == 2 or turn == 3 else 0):
        low, _ = _next_ends(exact, low, np.inf)
    for _ in range(2 if turn == 4 else 1 if turn == 1 or turn == 3 else 0):
        _, high = _next_ends(exact, -np.inf, high)
    return low, high


@inlined
def _fit_ends(search, n, n_padded, n_bits, dtype_code):
    """Find scale and offset of a segment from its least and its largest values; return what :func:`_fit` does."""
    exact, known, allowed = subarray(search.exact, 0, n_padded), search.known, I64(n // _SHARE_LOST)
    best = I64(0), 0.0, 0.0, I64(0)
    work = search.work[0]
    n_turns = N_TURNS if allowed else 1
    for turn in range(2 * n_turns):
        is_known = turn < n_turns
        ends = _ends(exact, turn if is_known else turn - n_turns)
        if not ends[0] < ends[1]:
            break
        # Where values are missing at an end, a grid has fewer steps than the one that most have, hardly ever more.
        n_all = known[0] if search.n_met[known[0]] >= _SURELY_MET else I64(MAX_INTEGER)
        n_grids = I64(N_KNOWN) if is_known else n_all
        for k in range(n_grids):
            last = known[k] if is_known else I64(k + 1)
            if last == 0:
                break
            found = _fit_grid(search, n, n_padded, ends, last, allowed, n_bits, dtype_code)
            if turn == 0 and k == 0:
                search.work[0] = work
            best = found if found[0] > best[0] else best
            if best[0] >= n - allowed or search.work[0] > _MOST_WORK_FIRST + _MOST_WORK * search.work[1]:
                return best
    return best


@inlined
def _fit(search, n, n_padded, n_bits, dtype_code):
    """Find scale and offset of a segment; return (how many values are met, scale, offset, the largest integer, 0 if
    there is one value only, or the grid was found from values near zero)."""
    is_short, allowed, best = dtype_code == BFLOAT16, I64(n // _SHARE_LOST), (I64(0), 0.0, 0.0, I64(0))
    is_rare = search.n_near[1] >= _SURELY_MET and search.n_near[0] * _SHARE_NEAR < search.n_near[1]
    # From the ends first, unless most segments have none that tell a grid.
    ends_first = not is_short or is_rare or search.n_near[0] <= search.n_met[search.known[0]]
    for turn in range(2 if is_short and not is_rare else 1):
        if best[0] >= n - allowed or (turn == 1 and not ends_first and search.n_near[0] >= _SURELY_MET):
            break
        if (turn == 0) == ends_first:
            found = _fit_ends(search, n, n_padded, n_bits, dtype_code)
            best = found if found[0] > best[0] else best
        else:
            found = _fit_near_zero(search, n, n_padded, n_bits, dtype_code)
            search.n_near[1] += 1
            if found[0] > best[0]:
                best = found[0], found[1], found[2], I64(0)
                search.n_near[0] += 1
    return best


@inlined
def _learn(search, last):
    """Count a grid of so many steps, and keep those that are known in the order of their counts."""
    known, n_met = search.known, search.n_met
    n_met[last] += 1
    at = N_KNOWN - 1
    for k in range(N_KNOWN):
        at = k if known[k] == last else at
    if known[at] == last or n_met[last] >= n_met[known[at]]:
        known[at] = last
        while at > 0 and n_met[known[at]] > n_met[known[at - 1]]:
            known[at], known[at - 1] = known[at - 1], known[at]
            at -= 1


@kernel
def find_pairs(values, segment, skipped, n_bits, dtype_code, search, scales, offsets):
    """Find the scale and the offset of each segment.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        n_bits: How many mantissa bits scales and offsets may have.
        search: :class:`PairSearch`, scratch, but for what is known, which later calls may go on with.
        scales: uint32[n_segments], result: bits of scales. Where there is none, it is that of the segment before.
        offsets: uint32[n_segments], result: bits of offsets. Where there is no scale, it is the first value, rounded.

    Returns:
        How many of the values that were looked at are met.
    """
    n_met = I64(0)
    for s in range(len(scales)):
        begin = max(s * segment - skipped, 0)
        part = subarray(values, begin, min((s + 1) * segment - skipped, len(values)) - begin)
        step = (len(part) + MAX_LOOKED_AT - 1) // MAX_LOOKED_AT
        n = (len(part) + step - 1) // step
        n_padded = (n + _AT_ONCE - 1) // _AT_ONCE * _AT_ONCE
        _read(part, step, dtype_code, search, n, n_padded)
        search.work[1] += n
        met, scale, offset, last = _fit(search, n, n_padded, n_bits, dtype_code)
        if last and met >= n - n // _SHARE_LOST_LEARNT:  # of fewer values, a grid may be one by chance
            _learn(search, last)
        if met == 0:  # of one value, it is the offset
            scale = 0.0 if s == 0 else np.float64(float_from_bits(scales[s - 1]))
            # All numbers that are no floats of few bits compare as False.
            offset = search.exact[0] if abs(search.exact[0]) < _OFFSETS_END else 0.0
            offset = _nearest_short(offset, n_bits)
        n_met += met
        scales[s], offsets[s] = bits_of_float(np.float32(scale)), bits_of_float(np.float32(offset))
        if s > 0 and scales[s - 1] == 0 and scales[s] != 0:  # those before have none; one so far away took more bits
            for before in range(s):
                scales[before] = scales[s]
    return n_met


@kernel
def match_sums(values, segment, skipped, scales, offsets, dtype_code, matches):
    """Find the integer of each value, where the sum of its product and the offset is exactly the value.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        scales: uint32[n_segments], bits of scales.
        offsets: uint32[n_segments], bits of offsets.
        matches: uint16[n], result: 1 plus the integer; NO_MATCH where there is none.
    """
    width = width_of(values)
    for s in range(len(scales)):
        begin, end = max(s * segment - skipped, 0), min((s + 1) * segment - skipped, len(values))
        part, result = subarray(values, begin, end - begin), subarray(matches, begin, end - begin)
        scale, offset = float_from_bits(scales[s]), float_from_bits(offsets[s])
        inverse = np.float32(1.0 / np.float64(scale)) if scale > 0 else np.float32(0)
        for i in range(len(part)):  # this loop becomes vectors
            bits = U32(part[i])
            near = np.float32(np.float32(_number(bits, width, dtype_code) - offset) * inverse) + np.float32(0.5)
            number = I32(min(max(near, np.float32(0)), np.float32(MAX_INTEGER)))
            made = sum_of(scale, np.float32(number), offset, dtype_code)
            result[i] = U16(U32(U32(number) + U32(1)) if made == bits else U32(NO_MATCH))
