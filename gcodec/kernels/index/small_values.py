"""Find the scale of a segment of integers times a scale from its smallest values, which have small factors.

The smallest of 32 values is 1 to 16 times the scale, hardly ever more, and what rounding changed it by is a small share
of it. So each of these factors says between which bounds the scale lies, the coarsest first; and the other values tell
whether it is there, and narrow the bounds, for all others of them that do not contradict:

    smallest value is 1 s     lo |---------------------| hi        others are 2.4 s, 3.6 s: contradict
    smallest value is 2 s     lo |----------| hi                   others are 4.8 s, 7.2 s: contradict
    smallest value is 5 s     lo |---| hi                          others are 12 s, 18 s: fit

Values far above the smallest fit any bounds as wide as these, and so are met only when others have narrowed them. Most
values that are no products are large, and keep no scale from being found.

Short segments are searched 16 at once (:func:`scales_of_small`) in the way in which most scales are found, and those
that are left one by one (:func:`scale_of_small`).

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
from .lane_steps import (
    EXACT_HIGH,
    EXACT_LOW,
    HIGH,
    HIGHEST,
    INVERSE,
    LARGEST,
    LOW,
    LOWEST,
    N_LOST,
    N_MET,
    NUMBER,
    OF_POWER,
    SCALE,
    SEGMENTS,
    SHARE,
    SMALL,
    fit_lanes,
    fit_short_lanes,
    least_lanes,
    meet_bfloat16_lanes,
    meet_float16_lanes,
    meet_float32_lanes,
)
from .rounding_bounds import float_from, float_to, half_unit, rounded_from, shortest_between

N_FACTORS_TRIED, _N_TRIED_LATER = 16, 8  #: factors that the smallest value may have, and others
_N_LOOKED_AT = 64  #: values that the smallest is one of
_ERROR = 2.0**-21  #: of ratios as float32, as a share of them; more than the rounding of values of float32
_BY_CHANCE = 2  #: values of a type of 16 bits that fit a finer scale, and are no products
_MUCH_FINER = 8  #: a scale than the one before, if the smallest value may be no product
_N_FITTED = 16  #: values of segments that are searched at once which a factor is held against
_FEW_LEFT = 2  #: of these segments: for so few, no more is tried at once
#: Of these, one in so many values may contradict a scale that is far finer than the one before; if more do, it may be
#: so much finer.
_FEW, _CLEARLY_FEW, _FINER = 6, 20, 2
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
def _meet_lanes(columns, n, limit, last, dtype_code, lanes, bounds):
    """Hold the first ``n`` values of 16 segments against the bounds of their scales, LOW and HIGH, which LOWEST and
    HIGHEST then are within; see :func:`_meet`."""
    most = _bits(np.float64(last))
    if dtype_code == FLOAT32:
        meet_float32_lanes(columns, 0, n, _bits(limit), most, lanes, 0, bounds, 0)
        return
    exact_low, exact_high = (
        subarray(bounds, EXACT_LOW * SEGMENTS, SEGMENTS),
        subarray(bounds, EXACT_HIGH * SEGMENTS, SEGMENTS),
    )
    low, high = subarray(bounds, LOW * SEGMENTS, SEGMENTS), subarray(bounds, HIGH * SEGMENTS, SEGMENTS)
    lowest, highest = subarray(bounds, LOWEST * SEGMENTS, SEGMENTS), subarray(bounds, HIGHEST * SEGMENTS, SEGMENTS)
    for j in range(SEGMENTS):  # rounded away from what is between them, as in _meet
        exact_low[j], exact_high[j] = low[j], high[j]
        low[j], high[j] = float_to(low[j]), float_from(high[j])
    if dtype_code == BFLOAT16:
        meet_bfloat16_lanes(columns, 0, n, _bits(limit), most, lanes, 0, bounds, 0)
    else:
        meet_float16_lanes(columns, 0, n, _bits(limit), most, lanes, 0, bounds, 0)
    for j in range(SEGMENTS):
        low[j], high[j] = exact_low[j], exact_high[j]
        lowest[j], highest[j] = max(lowest[j], low[j]), min(highest[j], high[j])


@kernel
def scales_of_small(columns, n, before, last, dtype_code, lanes, bounds, work):
    """Find the scales of 16 segments at once, in the way in which most are found: by the first factor of the smallest
    value that fits, and with which few values contradict the scale.

    Args:
        columns: float32[n * SEGMENTS], the magnitudes: value i of all segments, then value i + 1.
        n: Number of values of a segment, a multiple of SEGMENTS.
        before: Bits of the scale of the segment before.
        last: The largest integer that a value may be of the scale.
        lanes: uint32[N_ROWS * SEGMENTS]; in SCALE, the result: bits of scales, 0 where it takes :func:`scale_of_small`.
        bounds: float64[N_BOUNDS * SEGMENTS], scratch.
        work: int64[1], to which it is added how many values were held against bounds or a factor.
    """
    scales, numbers = subarray(lanes, SCALE * SEGMENTS, SEGMENTS), subarray(lanes, NUMBER * SEGMENTS, SEGMENTS)
    n_met, n_lost = subarray(lanes, N_MET * SEGMENTS, SEGMENTS), subarray(lanes, N_LOST * SEGMENTS, SEGMENTS)
    low, high = subarray(bounds, LOW * SEGMENTS, SEGMENTS), subarray(bounds, HIGH * SEGMENTS, SEGMENTS)
    lowest, highest = subarray(bounds, LOWEST * SEGMENTS, SEGMENTS), subarray(bounds, HIGHEST * SEGMENTS, SEGMENTS)
    least_lanes(columns, 0, min(n, _N_LOOKED_AT), lanes, 0)
    _fit_lanes(columns, min(n, _N_FITTED), last, dtype_code, lanes, bounds, work)
    _narrow_lanes(columns, n, last, dtype_code, lanes, bounds, work)
    n_open = 0
    for j in range(SEGMENTS):
        fits = numbers[j] != 0 and n_lost[j] * _FEW <= n_met[j]
        scales[j] = _scale_between(lowest[j], highest[j], dtype_code) if fits else U32(0)
        # A finer scale fits more values by chance.
        finer = np.float32(_MUCH_FINER if n_lost[j] * _CLEARLY_FEW <= n_met[j] else _FINER)
        scales[j] = scales[j] if float_from_bits(scales[j]) * finer >= float_from_bits(before) else U32(0)
        numbers[j] = U32(1) if fits and lowest[j] > highest[j] else U32(0)
        n_open += I64(numbers[j])
    if n_open <= _FEW_LEFT:
        return
    # Of many values, some are no products, and yet fit: those of small factors first, then part by part, as _narrowed
    # does.
    _meet_lanes(columns, n, _LOW_LIMIT, last, dtype_code, lanes, bounds)
    _narrow_open_lanes(numbers, bounds)
    _meet_lanes(columns, n, np.inf, last, dtype_code, lanes, bounds)
    work[0] += 2 * SEGMENTS * n
    n_open = 0
    for j in range(SEGMENTS):
        n_open += I64((numbers[j] != 0) & (lowest[j] > highest[j]))
    _narrow_open_lanes(numbers, bounds)
    if n_open > _FEW_LEFT:
        for first in range(0, n, AT_ONCE):
            count = min(n - first, AT_ONCE)
            part = subarray(columns, first * SEGMENTS, count * SEGMENTS)
            _meet_lanes(part, count, np.inf, last, dtype_code, lanes, bounds)
            _narrow_open_lanes(numbers, bounds)
        work[0] += SEGMENTS * n
    for j in range(SEGMENTS):
        if numbers[j] and (lowest[j] <= highest[j] or n_open > _FEW_LEFT):
            bits = _scale_between(low[j], high[j], dtype_code)
            scales[j] = bits if float_from_bits(bits) * np.float32(_FINER) >= float_from_bits(before) else U32(0)


@kernel
def _narrow_open_lanes(numbers, bounds):
    """Make of the bounds of scales, LOW and HIGH, those that values leave, LOWEST and HIGHEST, where they leave any and
    ``numbers`` are not 0."""
    low, high = subarray(bounds, LOW * SEGMENTS, SEGMENTS), subarray(bounds, HIGH * SEGMENTS, SEGMENTS)
    lowest, highest = subarray(bounds, LOWEST * SEGMENTS, SEGMENTS), subarray(bounds, HIGHEST * SEGMENTS, SEGMENTS)
    for j in range(SEGMENTS):
        narrows = (numbers[j] != 0) & (lowest[j] <= highest[j])
        least, most = lowest[j] if narrows else low[j], highest[j] if narrows else high[j]
        low[j], high[j] = least, most


@kernel
def _fit_lanes(columns, n, last, dtype_code, lanes, bounds, work):
    """Find factors that the smallest values of 16 segments, SMALL, may have, and write the bounds that these give
    scales, LOW and HIGH; other arguments as of :func:`scales_of_small`."""
    share, most = 0.0 if dtype_code == FLOAT32 else half_unit(dtype_code), _bits(np.float64(last) + 0.5)
    low, high = subarray(bounds, LOW * SEGMENTS, SEGMENTS), subarray(bounds, HIGH * SEGMENTS, SEGMENTS)
    numbers = subarray(lanes, NUMBER * SEGMENTS, SEGMENTS)
    for j in range(SEGMENTS):
        bits = U32(lanes[SMALL * SEGMENTS + j])
        base = np.float64(float_from_bits(bits)) if bits else 1.0
        inverse, (lowest, highest) = 1.0 / base, rounded_from(base, dtype_code)
        lanes[INVERSE * SEGMENTS + j] = bits_of_float(np.float32(inverse)) if bits else U32(0)
        lanes[SHARE * SEGMENTS + j] = bits_of_float(
            np.float32((highest - base) * inverse + _ERROR if share else _ERROR)
        )
        lanes[OF_POWER * SEGMENTS + j] = bits_of_float(np.float32(share * inverse))
        numbers[j] = U32(0)
        low[j], high[j] = lowest, highest
    for number in range(1, 1 + N_FACTORS_TRIED, TRIED_AT_ONCE):
        if dtype_code == FLOAT32:
            fit_lanes(columns, 0, n, _bits(number), most, lanes, 0)
        else:
            fit_short_lanes(columns, 0, n, _bits(number), most, lanes, 0)
        work[0] += SEGMENTS * n * TRIED_AT_ONCE
        n_left = 0
        for j in range(SEGMENTS):
            n_left += I64(numbers[j] == 0)
        if n_left <= _FEW_LEFT:
            break
    for j in range(SEGMENTS):
        number = float_from_bits(numbers[j])
        part = 1.0 / np.float64(number if number > 0 else np.float32(1))
        low[j], high[j] = low[j] * part, high[j] * part


@kernel
def _narrow_lanes(columns, n, last, dtype_code, lanes, bounds, work):
    """Narrow the bounds of 16 scales, LOW and HIGH, by all values; arguments as of :func:`scales_of_small`."""
    if dtype_code == BFLOAT16:
        _meet_lanes(columns, min(n, AT_ONCE), _LIMIT, last, dtype_code, lanes, bounds)
        work[0] += SEGMENTS * min(n, AT_ONCE)
        for j in range(SEGMENTS):
            lowest, highest = bounds[LOWEST * SEGMENTS + j], bounds[HIGHEST * SEGMENTS + j]
            narrows = lowest <= highest
            bounds[LOW * SEGMENTS + j] = lowest if narrows else bounds[LOW * SEGMENTS + j]
            bounds[HIGH * SEGMENTS + j] = highest if narrows else bounds[HIGH * SEGMENTS + j]
    _meet_lanes(columns, n, np.inf, last, dtype_code, lanes, bounds)
    work[0] += SEGMENTS * n


@kernel
def scales_of_largest(columns, n, factor, last, dtype_code, lanes, bounds, work):
    """Find the scales of 16 segments at once whose largest values, LARGEST, have a factor that is known, as
    :func:`scale_of_largest` does; return in how many any value contradicts it. Arguments as of :func:`scales_of_small`.
    """
    for j in range(SEGMENTS):
        bits, part = U32(lanes[LARGEST * SEGMENTS + j]), 1.0 / factor
        low, high = rounded_from(np.float64(float_from_bits(bits)) if bits else 1.0, dtype_code)
        bounds[LOW * SEGMENTS + j], bounds[HIGH * SEGMENTS + j] = low * part, high * part
    _narrow_lanes(columns, n, last, dtype_code, lanes, bounds, work)
    n_left = 0
    for j in range(SEGMENTS):
        lowest, highest = bounds[LOWEST * SEGMENTS + j], bounds[HIGHEST * SEGMENTS + j]
        fits = lanes[LARGEST * SEGMENTS + j] != 0 and lanes[N_LOST * SEGMENTS + j] == 0
        lanes[SCALE * SEGMENTS + j] = _scale_between(lowest, highest, dtype_code) if fits else U32(0)
        n_left += I64(lanes[SCALE * SEGMENTS + j] == 0)
    return n_left


@kernel
def scale_of_largest(magnitudes, largest, factor, last, dtype_code, ends, work):
    """Find the scale of a segment whose largest value has a factor that is known: of weights that were divided by the
    largest of a group, all have the same.

    Args:
        magnitudes: float32[n], n a multiple of AT_ONCE.
        largest: The largest, as float64.
        factor: The factor, likewise.
        last: The largest integer that a value may be of the scale.
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
