"""Rule out most factors that a large value of a segment may have, before the segment's scale is narrowed by any.

If the large value has the factor f, another value v has f times the ratio of v to it. That is a factor, too, but for
what rounding has changed both values by: a margin of f times some share. So a few small values, whose margins are the
narrowest, rule out most f. Of integers, 16 are held against a ratio at a time, in 65536ths and modulo 1:

    ratio        0.2361                                       in 65536ths: 15473
    2 x ratio    0.4722    0.47 from an integer               more than 2 margins: not 2
    ...
    17 x ratio   4.0137    0.01 from an integer               less than 17 margins: it may be 17
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import I32, I64, U8, U16, U32, lesser, wrap
from ..core.unaligned import bits_of_float, float_from_bits, load_u64, subarray
from .rounding_bounds import half_unit, least_half_unit, power_of

N_FACTORS = 256
N_SMALL, _AMONG = 16, 64  #: small magnitudes that are looked at, at most, and the first of a segment that they are of
LANES = 16  #: integers that are held against a ratio together
MAX_KNOWN = 32  #: factors of earlier segments, which are tried first: a multiple of LANES
_SHARE_MET = 16  #: those that are not met in one of so many as the most frequent are not among them
_MORE_COARSE = 4  #: how much more often one is met than one more than twice as large that is left out for it
_ONE, _MARGIN = 65536.0, 1.6  #: of ratios; and what rounding changes a ratio and a margin by, of each factor
_NO_NUMBER = 0xFFFFFFFF
#: Bits 20 ... 31 of a float32 are its exponent and the upper bits of a significand of 4.
HALF_SIGNIFICAND, SIGNIFICAND = 1 << 19, 0xFFF00000


@kernel
def find_small(magnitudes, dtype_code, bits, small, halves):
    """Write some small magnitudes of a segment: the smallest of those that are ``len(small)`` apart.

    Args:
        magnitudes: float32[n], those of the segment.
        bits: uint32[N_SMALL], scratch.
        small: float64[n_small], result; infinite where all are 0.
        halves: float64[n_small], result: half a unit in their last places, as the type has it.

    Returns:
        The smallest of them.
    """
    n_small, smallest = len(small), U32(_NO_NUMBER)
    for j in range(N_SMALL):
        bits[j] = U32(_NO_NUMBER)
    for first in range(0, min(len(magnitudes), _AMONG) - n_small + 1, n_small):
        part = subarray(magnitudes, first, n_small)
        for j in range(n_small):  # less 1, so that 0 is the largest
            bits[j] = lesser(bits[j], U32(bits_of_float(part[j]) - U32(1)))
    half, least = half_unit(dtype_code), least_half_unit(dtype_code)
    for j in range(n_small):
        smallest = lesser(smallest, bits[j])
        magnitude = np.float64(float_from_bits(U32(bits[j] + U32(1))))
        small[j] = magnitude if magnitude > 0 else np.inf
        halves[j] = max(power_of(magnitude) * half, least)
    return float_from_bits(U32(smallest + U32(1)))


@kernel
def find_ratios(largest, small, halves, last, dtype_code, ratios, margins, most):
    """Write the ratios of small magnitudes to a large one, and how much rounding may have changed them, in 65536ths.

    Both are 0 where that tells nothing; where a magnitude is too small for any factor, the ratio is 1, without a
    margin, which contradicts all.

    Args:
        largest: uint32, bits of the large magnitude, not 0.
        small: float64[n_small].
        halves: float64[n_small], as :func:`find_small` writes them.
        last: The largest factor that the large magnitude may have, as float64.
        ratios: int32[n_small], result.
        margins: int32[n_small], result.
        most: int32[n_small], result: larger factors than that count as that, so that products stay below 65536.
    """
    value = np.float64(float_from_bits(largest))
    half = max(power_of(value) * half_unit(dtype_code), least_half_unit(dtype_code))
    inverse, least_inverse = _ONE / value, _ONE / (value - half)
    for j in range(len(small)):
        # If the large magnitude, in error by `half` at most, has the factor f, the small one has f * ratio, and its own
        # error and that of the large one, which grows with the ratio, make the margin of each unit of f.
        ratio = small[j] * inverse
        margin = (halves[j] + ratio * (half / _ONE)) * least_inverse + _MARGIN
        is_telling = (ratio <= 2 * _ONE) & (margin < 0.5 * _ONE)
        is_tiny = (ratio + margin) * last < 0.9 * _ONE
        ratio, margin = 1.0 if is_tiny else ratio + 0.5, 0.0 if is_tiny else margin
        ratios[j] = I32(ratio if is_telling else 0.0)
        margins[j] = I32(margin if is_telling else 0.0)
        most[j] = I32(min((_ONE - 1) / max(margin, 1.0), np.float64(N_FACTORS)))


@kernel
def _contradicts(factor, ratio, margin, most):
    """Return 1 if a factor times a ratio is no integer, whatever the ratio's error is, else 0; all are uint16."""
    # In 65536ths, and in 16 bits: what is left of the product is its distance above an integer, and its negative that
    # below the next one. The lesser of the two, unsigned, is how far the product is from any integer.
    above = wrap(factor * ratio, factor)
    away = lesser(above, wrap(-above, above))
    return wrap(1, factor) if away > wrap(lesser(factor, most) * margin, factor) else wrap(0, factor)


@kernel
def fitting_integers(integers, n_some, ratios, margins, most, allowed, scratch, numbers):
    """Write the numbers of integers that few ratios contradict, rising; return how many.

    Args:
        integers: uint16[n], rising, where n is a multiple of LANES.
        n_some: How many of them to look at.
        ratios: int32[n_small], as :func:`find_ratios` writes them.
        margins: int32[n_small], likewise.
        most: int32[n_small], likewise.
        allowed: How many ratios may contradict one, below 256.
        scratch: (uint16[n], uint8[n]).
        numbers: uint8[n_some], result: one less than each integer.
    """
    (lost, fits), n_found = scratch, 0
    for i in range(len(integers)):
        lost[i] = 0
    for first in range(0, len(ratios), 4):
        # Four ratios a turn, so that a pass over the factors reads and writes `lost` once for four.
        r0, r1, r2, r3 = U16(ratios[first]), U16(ratios[first + 1]), U16(ratios[first + 2]), U16(ratios[first + 3])
        m0, m1, m2, m3 = U16(margins[first]), U16(margins[first + 1]), U16(margins[first + 2]), U16(margins[first + 3])
        l0, l1, l2, l3 = U16(most[first]), U16(most[first + 1]), U16(most[first + 2]), U16(most[first + 3])
        for i in range(len(integers)):  # this loop becomes vectors
            factor = integers[i]
            two = wrap(_contradicts(factor, r0, m0, l0) + _contradicts(factor, r1, m1, l1), factor)
            others = wrap(_contradicts(factor, r2, m2, l2) + _contradicts(factor, r3, m3, l3), factor)
            lost[i] = wrap(lost[i] + wrap(two + others, two), two)
    for i in range(len(integers)):
        fits[i] = U8(1) if lost[i] <= U16(allowed) else U8(0)
    for first in range(0, n_some, 8):
        # Eight flags at once: most factors are ruled out. What lies behind `n_some`, up to a multiple of LANES, is not
        # asked.
        if load_u64(fits, first):
            for i in range(first, min(first + 8, n_some)):
                numbers[n_found] = integers[i] - 1
                n_found += fits[i]
    return n_found


@kernel
def n_contradicting(factor, largest, small, halves, dtype_code):
    """Return how many small magnitudes contradict that a large one has a factor, where factors are significands of 4
    bits times powers of two.

    Args:
        factor: The factor, as float64.
        largest: uint32, bits of the large magnitude, not 0.
        small: float64[n_small].
        halves: float64[n_small], as :func:`find_small` writes them.
    """
    value, n_lost = np.float64(float_from_bits(largest)), 0
    half = max(power_of(value) * half_unit(dtype_code), least_half_unit(dtype_code))
    of_factor, least_of_factor = factor / value, factor / (value - half)
    for j in range(len(small)):
        ratio = small[j] * of_factor
        margin = (halves[j] + small[j] / value * half) * least_of_factor + ratio * 2.0**-22
        #     ratio       0 eeeeeeee mmm 1 mmmmmmm...
        #     + half      . ........ ... 1 .......         half of the lowest bit that is kept
        #     near        0 eeeeeeee MMM 0 0000000...      a significand of 4 bits, with the 1 that is not stored
        near = U32(U32(bits_of_float(np.float32(ratio)) + U32(HALF_SIGNIFICAND)) & U32(SIGNIFICAND))
        is_other = (ratio < 2.0**-22) | (abs(ratio - float_from_bits(near)) > margin)  # below, there is none
        n_lost += I64((small[j] < np.inf) & is_other)
    return n_lost


@kernel
def learn(known, n_met, integers, number):
    """Add the number of a factor to those that are known, which rise.

    Those that are rare beside the most frequent one are taken out, and the rarest if there are too many; and those more
    than twice as large as others that are far more frequent, because a finer scale fits wherever a coarser one does.

    Args:
        known: int64[1 + MAX_KNOWN], how many are known, and these.
        n_met: int32[N_FACTORS], in how many segments each was found.
        integers: uint16[MAX_KNOWN], result: one more than each that is known.
    """
    # Compacted in place: those that stay move down to place `left`; the number itself is taken out, to be put in again.
    most, left = n_met[number], 0
    for turn in range(known[0]):
        most = max(most, n_met[known[1 + turn]])
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
    # Put in where it belongs, as insertion sort does: those above move up by one.
    if left < MAX_KNOWN and n_met[number] * _SHARE_MET >= most:
        at = left
        while at > 0 and known[at] > number:
            known[1 + at] = known[at]
            at -= 1
        known[1 + at] = number
        left += 1
    # Built up once more: known[0] counts those that stay, so that each is held against the smaller ones that stay.
    known[0] = 0
    for turn in range(left):
        other, is_fine = known[1 + turn], False
        for smaller in range(known[0]):
            coarse = known[1 + smaller]
            is_fine = is_fine or (other > 2 * coarse + 1 and n_met[coarse] >= _MORE_COARSE * n_met[other])
        known[1 + known[0]] = other
        integers[known[0]] = other + 1
        known[0] += not is_fine
