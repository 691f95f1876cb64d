"""Find the factors of values whose segments have scales, count them, and try both on some segments of an array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import I32, U16, U32
from ..core.unaligned import float_from_bits, subarray, width_of
from .guesses import N_FACTORS
from .products import product_of, without_denormal
from .segment_scales import INTEGERS, MAX_LOOKED_AT, find_nearest, find_scales, magnitude_of, read_magnitudes

N_MATCHES, NO_MATCH = 1 + 2 * N_FACTORS, 0  #: what is known of a value: see :func:`match_products`
N_TRIED_FIRST = 4  #: segments of a sample after which the rest may be known to be in vain


@kernel
def match_products(values, segment, skipped, scales, factors, search, matches):
    """Find the factor of each value, where its product with the segment's scale is exactly the value.

    Args:
        values: uintW[n].
        segment: Values of a segment.
        skipped: How many of the first segment's values lie before ``values``.
        scales: uint32[n_segments], bits of the scales, 0 where there is none.
        factors: :class:`segment_scales.Factors`.
        search: :class:`segment_scales.ScaleSearch`, scratch.
        matches: uint16[n], result: 1 plus the number of the factor, and N_FACTORS more if the value has a minus sign;
            NO_MATCH where there is none.
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


@kernel
def count_matches(matches, counts):
    """Count matches.

    Args:
        matches: uint16[n] of :func:`match_products`.
        counts: int64[N_MATCHES], result: how often each is found is added.
    """
    for i in range(len(matches)):
        counts[matches[i]] += 1


class SegmentSample(NamedTuple):
    """Some segments of an array, and memory to look at them.

    Attributes:
        starts: int64[n_segments], where they begin.
        places: int64[n_places], which of their values are looked at.
        part: uintW[n_places], scratch.
        matches: uint16[n_places], scratch.
        scale: uint32[1], scratch.
        union: uint32[1], takes the bits that any scale has.
    """

    starts: np.ndarray
    places: np.ndarray
    part: np.ndarray
    matches: np.ndarray
    scale: np.ndarray
    union: np.ndarray


@kernel
def try_segments(values, sample, max_unmatched, factors, search, counts):
    """Find the scales of some segments, and the factors that some of their values have.

    Args:
        values: uintW[n].
        sample: :class:`SegmentSample`.
        max_unmatched: More values without a factor than that end the search, as do the first few segments if most of
            their values have none.
        factors: :class:`segment_scales.Factors`.
        search: :class:`segment_scales.ScaleSearch`, scratch, to which nothing is known.
        counts: int64[N_MATCHES], result: how often each factor is found is added.
    """
    part, n_places = sample.part, len(sample.places)
    for s in range(len(sample.starts)):
        for i in range(n_places):
            part[i] = values[sample.starts[s] + sample.places[i]]
        find_scales(part, n_places, 0, factors, search, sample.scale)
        sample.union[0] |= sample.scale[0]
        match_products(part, n_places, 0, sample.scale, factors, search, sample.matches)
        count_matches(sample.matches, counts)
        n_seen = (s + 1) * n_places
        if counts[NO_MATCH] > max_unmatched or (s + 1 == N_TRIED_FIRST and 2 * counts[NO_MATCH] > n_seen):
            break


@kernel
def number_matches(matches, index_of, indices):
    """Write the index that stands for each match, or for each index among others.

    Args:
        matches: uint16[n] of :func:`match_products`, or uint8[n].
        index_of: uint8[N_MATCHES], or uint8[256].
        indices: uint8[n], result; it may be ``matches``.
    """
    for i in range(len(matches)):
        indices[i] = index_of[matches[i]]


@kernel
def _match_integers(values, scale, last, dtype_code, matches):
    """Find the integers of values of one scale; see :func:`match_products`."""
    width, inverse, most = width_of(values), np.float32(1.0 / np.float64(scale)), np.float32(last)
    low_bits = U32((1 << (width - 1)) - 1)
    for i in range(len(values)):  # this loop becomes vectors
        bits = U32(U32(values[i]) & low_bits)
        magnitude = float_from_bits(magnitude_of(values[i], width, dtype_code))
        number = I32(min(np.float32(magnitude * inverse) + np.float32(0.5), most))
        made = product_of(scale, np.float32(number), dtype_code)
        # The law of section 10 has the last word, bit by bit: whatever was estimated before, a match decodes to this
        # value.
        #     match      0      1 ... N_FACTORS     N_FACTORS + 1 ... 2 * N_FACTORS
        #     stands for none   factor 0, 1 ...     factor 0, 1 ... with a minus sign
        sign = U32(U32(values[i]) >> U32(width - 1))
        match = U32(U32(U32(number) + U32(1)) + U32(sign * U32(N_FACTORS)))
        matches[i] = U16(match if made == bits else U32(NO_MATCH))


@inlined
def _match(values, scale, factors, search, matches):
    """Find the factors of at most MAX_LOOKED_AT values of one scale; see :func:`match_products`."""
    width, n = width_of(values), len(values)
    sign_bit = U32(1 << (width - 1))
    if factors.form == INTEGERS:
        _match_integers(values, scale, factors.last, factors.dtype_code, matches)
        return
    bits, magnitudes = subarray(search.bits, 0, n), subarray(search.magnitudes, 0, n)
    numbers, nearest = subarray(search.numbers, 0, n), subarray(search.factors, 0, n)
    read_magnitudes(values, 1, factors.dtype_code, bits, magnitudes)
    find_nearest(magnitudes, np.float32(1.0 / np.float64(scale)), factors, numbers, nearest)
    for i in range(n):
        # The law of section 10 has the last word, bit by bit: whatever was estimated before, a match decodes to this
        # value.
        made = product_of(scale, nearest[i], factors.dtype_code)
        match = U16(U32(numbers[i] + 1) + U32(N_FACTORS if U32(values[i]) & sign_bit else 0))
        matches[i] = match if made == bits[i] else U16(NO_MATCH)
