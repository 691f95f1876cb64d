"""Match values with products of their segment's scale and one of a few factors."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U16, U32
from ..core.unaligned import subarray, width_of
from .products import product_of, without_denormal
from .segment_scales import MAX_LOOKED_AT, N_FACTORS, find_nearest, read_magnitudes

N_MATCHES, NO_MATCH = 1 + 2 * N_FACTORS, 0  #: what is known of a value: see :func:`match_products`


@kernel
def match_products(values, segment, skipped, scales, factors, search, matches, counts):
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
def number_matches(matches, index_of, indices):
    """Write the index that stands for each match.

    Args:
        matches: uint16[n] of :func:`match_products`.
        index_of: uint8[N_MATCHES].
        indices: uint8[n], result.
    """
    for i in range(len(matches)):
        indices[i] = index_of[matches[i]]


@kernel
def _match(values, scale, factors, search, matches):
    """Find the factors of at most MAX_LOOKED_AT values of one scale; see :func:`match_products`."""
    width = width_of(values)
    sign_bit = U32(1 << (width - 1))
    magnitudes = subarray(search.magnitudes, 0, len(values))
    read_magnitudes(values, 1, factors.dtype_code, magnitudes)
    find_nearest(magnitudes, 1.0 / np.float64(scale), factors, search)
    for i in range(len(values)):
        made = product_of(scale, np.float32(search.factors[i]), factors.dtype_code)
        bits = U32(values[i])
        match = U16(U32(search.numbers[i] + 1) + U32(N_FACTORS if bits & sign_bit else 0))
        matches[i] = match if made == U32(bits & ~sign_bit) else U16(NO_MATCH)
