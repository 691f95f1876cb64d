"""The laws of finding scales and factors: what is no number has none, and no processor's mode has a say."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.dtypes import BY_NAME
from gcodec.kernels.index.guesses import N_FACTORS
from gcodec.kernels.index.matches import N_MATCHES, NO_MATCH, count_matches, match_products
from gcodec.kernels.index.products import product_of
from gcodec.kernels.index.rounding_bounds import shortest_between
from gcodec.kernels.index.segment_scales import find_scales
from gcodec.plan import indexing
from gcodec.plan.indexing import factor_sets
from tests.support.bit_patterns import KINDS, infinity

SHORT = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("number_of_set", range(3))
def test_infinities_and_nans_are_no_products_and_nothing_is_read_beyond_the_factors(dtype, number_of_set):
    """Behind the factors stand numbers that would match, were they read."""
    kind = KINDS[dtype]
    inf = infinity(kind)
    values = np.array(
        [
            sign | bits
            for sign in (0, 1 << kind.W - 1)
            for bits in (inf + 1, inf | 1 << kind.M - 1, (1 << kind.W - 1) - 1)
        ],
        kind.container,
    )
    factors = factor_sets(BY_NAME[dtype])[number_of_set]
    for number in (np.nan, np.inf, 1.0):
        room = np.full(3 * N_FACTORS, number)
        room[N_FACTORS : 2 * N_FACTORS] = factors.values
        surrounded = factors._replace(values=room[N_FACTORS : 2 * N_FACTORS])
        matches, counts = np.full(len(values), 7, np.uint16), np.zeros(N_MATCHES, np.int64)
        one, search = np.array([0x3F800000], np.uint32), indexing._new_search()
        match_products(values, len(values), 0, one, surrounded, search, matches)
        count_matches(matches, counts)
        assert not (matches != NO_MATCH).any()
        assert counts[NO_MATCH] == counts.sum() == len(values)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_denormal_values_and_scales_count_as_none(dtype):
    """Some processors take them for zero, and others would find other scales."""
    kind, factors = KINDS[dtype], factor_sets(BY_NAME[dtype])[0]
    tiny = np.arange(1, 128, dtype=kind.container)
    scales = np.full(1, 7, np.uint32)
    assert find_scales(tiny, len(tiny), 0, factors, indexing._new_search(), scales) == 0
    assert scales[0] == 0x3F800000  # as for zeros
    low = np.array([1 << kind.M, 3 << kind.M - 1], kind.container)  # 2 and 3 times half the smallest normal number
    of_three = factors._replace(largest=np.array([3.0]))
    assert find_scales(low, len(low), 0, of_three, indexing._new_search(), scales) == 1
    assert scales[0] == 0


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("number_of_set", range(3))
def test_products_of_any_scale_are_matched_all_where_many_lie_halfway_between_two_numbers(dtype, number_of_set):
    """A scale of few bits times a factor often does, and so does another scale that nearly all values allow."""
    rng, code, n = np.random.default_rng(number_of_set), BY_NAME[dtype].code, 64
    factors = factor_sets(BY_NAME[dtype])[number_of_set]
    usual = factors.values[(factors.values >= 1 / 16) & (factors.values <= 15)]
    n_bits = KINDS[dtype].M + 1
    scales = np.ldexp(rng.integers(1 << n_bits - 1, 1 << n_bits, 300), -n_bits - 3).astype(np.float32)
    for scale in scales:
        chosen = np.append(usual[-1], rng.choice(usual, n - 1)).astype(np.float32)
        bits = np.array([product_of(scale, factor, code) for factor in chosen], KINDS[dtype].container)
        found, matches, counts = np.empty(1, np.uint32), np.empty(n, np.uint16), np.zeros(N_MATCHES, np.int64)
        assert find_scales(bits, n, 0, factors, indexing._new_search(), found) == 0
        match_products(bits, n, 0, found, factors, indexing._new_search(), matches)
        count_matches(matches, counts)
        assert not counts[NO_MATCH]


def n_stored(bits: np.ndarray) -> np.ndarray:
    """Return how many bytes a frame stores of scales, given their bits as float32."""
    return np.where(bits & 0xFFFF == 0, 2, np.where(bits & 0xFF == 0, 3, 4))


def test_a_scale_has_as_few_bytes_as_any_number_between_its_bounds():
    rng = np.random.default_rng(0)
    for width in (0, 1, 2, 5, 255, 256, 257, 700, 1 << 16, 100_000):
        lows = rng.integers(0x3A000000, 0x3C000000, 40).astype(np.uint32)
        lows[::4] &= np.uint32(0xFFFFFF00)  # bounds that are short themselves are not between them
        lows[::8] &= np.uint32(0xFFFF0000)
        for low in lows:
            between = np.arange(low + 1, low + 1 + width, dtype=np.uint32)
            high = np.uint32(low + 1 + width).view(np.float32)
            found = np.array([shortest_between(float(low.view(np.float32)), float(high))], np.uint32)
            if width:
                assert found[0] in between
                assert n_stored(found)[0] == n_stored(between).min()


@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_scales_of_float16_are_found_in_three_bytes(group):
    """They are often just where a product is rounded up or down, and one longer scale lengthens all of a block."""
    rng, n_groups = np.random.default_rng(group), 2000
    numbers = np.rint(rng.standard_normal((n_groups, group)) * 40).clip(-127, 127)
    numbers[:, 0] = 127
    scales = (0.02 / 127 * np.exp(rng.standard_normal((n_groups, 1)) / 2)).astype(np.float16).astype(np.float32)
    bits = (numbers * scales).astype(np.float16).view(np.uint16).reshape(-1)
    found = np.empty(n_groups, np.uint32)
    factors = factor_sets(BY_NAME["float16"])[0]
    assert find_scales(bits, group, 0, factors, indexing._new_search(), found) == 0
    assert n_stored(found).max() <= 3
