"""The laws of the steps that hold 32 values against a scale: what they say is what exact numbers say."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from gcodec.dtypes import BY_NAME
from gcodec.kernels.index.bound_steps import (
    AT_ONCE,
    SHARE_LOST,
    TRIED_AT_ONCE,
    fitting_factors,
    meet_bfloat16,
    meet_float16,
    meet_float32,
)
from gcodec.kernels.index.products import product_of
from gcodec.kernels.index.rounding_bounds import half_unit, rounded_from

SHORT = ("float32", "bfloat16", "float16")
LAST = 255.0


def bits_32(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


@njit
def _bfloat16(magnitudes, limit, low, high, last, result):
    meet_bfloat16(magnitudes, 0, limit, low, high, last, result, 0)


@njit
def _float16(magnitudes, limit, low, high, last, result):
    meet_float16(magnitudes, 0, limit, low, high, last, result, 0)


@njit
def _float32(magnitudes, limit, low, high, last, result):
    meet_float32(magnitudes, 0, limit, low, high, last, result, 0)


@njit
def _fitting(magnitudes, inverse, share, of_power, most, factor):
    return fitting_factors(magnitudes, 0, inverse, share, of_power, most, factor)


def met(dtype, magnitudes, limit, low, high):
    """Return what the step of a type says: (lowest, highest, n_met, n_lost)."""
    result, is_wide = np.zeros(4, np.int64), dtype == "float32"
    step = {"bfloat16": _bfloat16, "float16": _float16, "float32": _float32}[dtype]
    given_bits = [int(np.float64(x).view(np.uint64)) if is_wide else bits_32(x) for x in (limit, low, high, LAST)]
    step(magnitudes, *given_bits, result)
    ends = result[:2].view(np.float64) if is_wide else result[:2].astype(np.uint32).view(np.float32)
    return float(ends[0]), float(ends[1]), int(result[2]), int(result[3])


def products(dtype, rng, scale, n):
    """Return integers times a scale, rounded to the type, as float32s, a few zeros among them; and the integers."""
    code, numbers = BY_NAME[dtype].code, rng.integers(0, 61, n)
    bits = np.array([product_of(np.float32(scale), np.float32(k), code) for k in numbers], np.uint32)
    if dtype == "bfloat16":
        bits <<= np.uint32(16)
    if dtype == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32), numbers
    return bits.view(np.float32), numbers


@pytest.mark.parametrize("dtype", SHORT)
@given(st.floats(2.0**-12, 1.0, width=32), st.integers(0, 2**32 - 1))
def test_bounds_of_products_close_around_their_scale(dtype, scale, seed):
    """All fit, and what is left is where all of them want it, but for ties and a few units in the last place."""
    magnitudes, numbers = products(dtype, np.random.default_rng(seed), scale, AT_ONCE)
    half = half_unit(BY_NAME[dtype].code)
    low, high = scale * (1 - half / 64), scale * (1 + half / 64)
    lowest, highest, n_met, n_lost = met(dtype, magnitudes, np.inf, low, high)
    assert (n_met, n_lost) == (np.count_nonzero(magnitudes), 0)
    around = [(k, rounded_from(float(v), BY_NAME[dtype].code)) for k, v in zip(numbers, magnitudes, strict=True) if v]
    exact = (max([Fraction(low), *(Fraction(b) / int(k) for k, (b, _) in around)]),
             min([Fraction(high), *(Fraction(a) / int(k) for k, (_, a) in around)]))  # fmt: skip
    ulps = 2.0**-48 if dtype == "float32" else 2.0**-19
    assert lowest * (1 - ulps) <= scale <= highest * (1 + ulps)
    assert abs(lowest / float(exact[0]) - 1) <= ulps
    assert abs(highest / float(exact[1]) - 1) <= ulps


@pytest.mark.parametrize("dtype", SHORT)
def test_what_contradicts_is_lost_and_narrows_nothing_and_a_limit_leaves_values_out(dtype):
    magnitudes = np.zeros(AT_ONCE, np.float32)
    magnitudes[:5] = 1, 2, 3.5, 7, 200
    assert met(dtype, magnitudes, np.inf, 0.9999, 1.0001)[2:] == (5, 1)
    assert met(dtype, magnitudes, 5.0, 0.9999, 1.0001)[2:] == (3, 1)
    without = magnitudes.copy()
    without[2] = 0
    assert met(dtype, magnitudes, np.inf, 0.9999, 1.0001)[:2] == met(dtype, without, np.inf, 0.9999, 1.0001)[:2]
    beyond = np.full(AT_ONCE, 300, np.float32)  # no factor is that large
    assert met(dtype, beyond, np.inf, 0.9999, 1.0001)[2:] == (AT_ONCE, AT_ONCE)


@given(st.integers(1, 3 * TRIED_AT_ONCE), st.integers(0, 2**32 - 1))
def test_factors_of_a_value_fit_if_few_others_contradict_them(number, seed):
    """Of 12, given others that are integers: as many fit as have an integer ratio, if those are most."""
    rng = np.random.default_rng(seed)
    magnitudes = rng.choice([4.0, 8.0, 12.0, 20.0], AT_ONCE).astype(np.float32)
    magnitudes[:3], magnitudes[3] = (4.0, 8.0, 20.0), 12.0
    fits = _fitting(magnitudes, bits_32(1 / 12), bits_32(2.0**-21), 0, bits_32(LAST + 0.5), bits_32(number))
    for k in range(TRIED_AT_ONCE):
        ratios = magnitudes * (number + k) / 12
        n_fit = int((np.abs(ratios - np.rint(ratios)) < 1e-4).sum())
        n_fit -= int((np.rint(ratios) == 0).sum())
        expected = n_fit if (AT_ONCE - n_fit) * SHARE_LOST <= AT_ONCE else 0
        assert fits >> 8 * k & 0xFF == expected
