"""The laws of looking up what indices stand for: groups of 64 at once give what one after another gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from gcodec.kernels.core.intrinsics import HAS_AVX512
from gcodec.kernels.index.products import product_of, sum_of
from gcodec.kernels.index.value_tables import (
    N_ENTRIES,
    fill_planes,
    fill_product_planes,
    fill_sum_planes,
    look_up_all,
    look_up_groups,
)
from gcodec.kernels.predict.residuals import BFLOAT16, FLOAT16, FLOAT32


@njit
def _looked_up(table, n_entries, planes, indices, n, out):
    fill_planes(table, n_entries, planes)
    look_up_all(table, planes, indices, n, out)


@njit
def _products(factors, n_entries, scale_bits, dtype_code, planes, indices, n, out):
    fill_product_planes(factors, n_entries, scale_bits, dtype_code, planes)
    return look_up_groups(planes, indices, n, out)


@njit
def _sums(factors, n_entries, scale_bits, offset_bits, dtype_code, planes, indices, n, out):
    fill_sum_planes(factors, n_entries, scale_bits, offset_bits, dtype_code, planes)
    return look_up_groups(planes, indices, n, out)


@njit
def _sums_one_by_one(factors, scale, offset, dtype_code, out):
    for k in range(len(factors)):
        out[k] = sum_of(scale, factors[k], offset, dtype_code)


@njit
def _one_by_one(factors, scale, dtype_code, out):
    for k in range(len(factors)):
        out[k] = product_of(scale, factors[k], dtype_code)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@given(st.integers(1, 256), st.integers(0, 300), st.integers(0, 130), st.integers(0, 2**32 - 1))
def test_values_are_those_of_the_table(bits, n_entries, n, n_behind, seed):
    rng, word = np.random.default_rng(seed), np.dtype(f"u{bits // 8}")
    table = rng.integers(0, 1 << bits, N_ENTRIES, word)
    indices = rng.integers(0, n_entries, n + n_behind).astype(np.uint8)
    out = np.zeros(n + n_behind + 100, word)
    planes = table if bits == 8 else np.empty(8 * N_ENTRIES, np.uint8)
    _looked_up(table, n_entries, planes, indices, n, out[: n + n_behind])
    assert np.array_equal(out[:n], table[indices[:n]])
    assert not out[n + n_behind :].any()


#: Factors of which products are zero, denormal, at a tie, or infinite, in one type or another.
CORNERS = np.array(
    [
        0.0,
        -0.0,
        1.0,
        -1.0,
        1.00390625,
        1.01171875,
        1.00048828125,
        65504.0,
        65520.0,
        65519.99,
        3.4e38,
        -3.4e38,
        2.0**-126,
        2.0**-125,
        2.0**-24,
        2.0**-25,
        3 * 2.0**-26,
        6.1e-5,
        5.96e-8,
        1e-30,
        -1e-38,
        448.0,
    ],
    np.float32,
)


def drawn_factors(rng, random):
    """Draw factors that are not denormal, so large a share of them at random; the others are of CORNERS."""
    factors = rng.choice(CORNERS, N_ENTRIES)
    is_random = rng.random(N_ENTRIES) < random
    factors[is_random] = (rng.standard_normal(N_ENTRIES) * 10.0 ** rng.integers(-40, 38, N_ENTRIES))[is_random]
    factors[np.abs(factors) < np.finfo(np.float32).tiny] *= 0
    return factors


@pytest.mark.parametrize("dtype_code", [FLOAT32, BFLOAT16, FLOAT16])
@given(
    st.sampled_from([1.0, -1.0, 0.0, -0.0, 0.5, 3.0, 2.0**-60, 1e-20, -1e30, 2.0**-14, 0.001, 1.0009765625]),
    st.floats(0, 1),
    st.integers(1, 256),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
)
def test_products_of_a_group_are_those_of_one_factor_after_another(dtype_code, scale, random, n_entries, n, seed):
    rng, word = np.random.default_rng(seed), np.uint32 if dtype_code == FLOAT32 else np.uint16
    factors = drawn_factors(rng, random)
    table = np.zeros(N_ENTRIES, np.uint32)
    _one_by_one(factors, np.float32(scale), dtype_code, table)
    indices, out = rng.integers(0, n_entries, n).astype(np.uint8), np.zeros(n, word)
    bits, planes = int(np.float32(scale).view(np.uint32)), np.empty(4 * N_ENTRIES, np.uint8)
    n_done = _products(factors, n_entries, bits, dtype_code, planes, indices, n, out)
    assert n_done == (n // 64 * 64 if HAS_AVX512 else 0)
    assert np.array_equal(out[:n_done], table[indices[:n_done]])


@pytest.mark.parametrize("dtype_code", [FLOAT32, BFLOAT16, FLOAT16])
@given(
    st.sampled_from([1.0, 0.0, -0.0, 0.5, 2.0**-60, 1e-20, -1e30, 2.0**-14, 1.0009765625]),
    st.sampled_from([0.0, -0.0, -1.0, 1.0, 448.0, -(2.0**-126), 2.0**-125, -6.1e-5, 3e38, -3e38, 2.0**-25]),
    st.floats(0, 1),
    st.integers(1, 256),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
)
def test_sums_of_a_group_are_those_of_one_factor_after_another(dtype_code, scale, offset, random, n_entries, n, seed):
    rng, word = np.random.default_rng(seed), np.uint32 if dtype_code == FLOAT32 else np.uint16
    factors, table = drawn_factors(rng, random), np.zeros(N_ENTRIES, np.uint32)
    _sums_one_by_one(factors, np.float32(scale), np.float32(offset), dtype_code, table)
    indices, out = rng.integers(0, n_entries, n).astype(np.uint8), np.zeros(n, word)
    bits = (int(np.float32(number).view(np.uint32)) for number in (scale, offset))
    n_done = _sums(factors, n_entries, *bits, dtype_code, np.empty(4 * N_ENTRIES, np.uint8), indices, n, out)
    assert n_done == (n // 64 * 64 if HAS_AVX512 else 0)
    assert np.array_equal(out[:n_done], table[indices[:n_done]])
