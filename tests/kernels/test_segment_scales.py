"""The laws of finding scales and factors: what is no number has none, and no processor's mode has a say."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.dtypes import BY_NAME
from gcodec.kernels.index.segment_scales import N_FACTORS, N_MATCHES, NO_MATCH, find_scales, match_products
from gcodec.plan import indexing
from tests.support.bit_patterns import KINDS, infinity

SHORT = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("number_of_set", range(3))
def test_infinities_and_nans_are_no_products_and_nothing_is_read_beyond_the_factors(dtype, number_of_set):
    """Behind the factors stand numbers that would match, were they read."""
    kind = KINDS[dtype]
    inf = infinity(kind)
    values = np.array([sign | bits for sign in (0, 1 << kind.W - 1)
                       for bits in (inf + 1, inf | 1 << kind.M - 1, (1 << kind.W - 1) - 1)], kind.container)
    factors = indexing._factor_sets(BY_NAME[dtype])[number_of_set]
    for number in (np.nan, np.inf, 1.0):
        room = np.full(3 * N_FACTORS, number)
        room[N_FACTORS : 2 * N_FACTORS] = factors.values
        surrounded = factors._replace(values=room[N_FACTORS : 2 * N_FACTORS])
        matches, counts = np.full(len(values), 7, np.uint16), np.zeros(N_MATCHES, np.int64)
        match_products(values, len(values), 0, np.array([0x3F800000], np.uint32), surrounded, matches, counts)
        assert not (matches != NO_MATCH).any()
        assert counts[NO_MATCH] == counts.sum() == len(values)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_denormal_values_and_scales_count_as_none(dtype):
    """Some processors take them for zero, and others would find other scales."""
    kind, factors = KINDS[dtype], indexing._factor_sets(BY_NAME[dtype])[0]
    tiny = np.arange(1, 128, dtype=kind.container)
    scales = np.full(1, 7, np.uint32)
    assert find_scales(tiny, len(tiny), 0, factors, scales) == 0
    assert scales[0] == 0x3F800000  # as for zeros
    low = np.array([1 << kind.M, 3 << kind.M - 1], kind.container)  # 2 and 3 times half the smallest normal number
    assert find_scales(low, len(low), 0, factors._replace(largest=np.array([3.0])), scales) == 1
    assert scales[0] == 0
