"""The laws of the steps that search 16 segments at once: each lane says what the steps for one segment say of it."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from gcodec.dtypes import BY_NAME
from gcodec.kernels.index import bound_steps, lane_steps
from gcodec.kernels.index.bound_steps import AT_ONCE, TRIED_AT_ONCE
from gcodec.kernels.index.lane_steps import (
    HIGH,
    HIGHEST,
    INVERSE,
    LOW,
    LOWEST,
    N_BOUNDS,
    N_LOST,
    N_MET,
    N_ROWS,
    NUMBER,
    OF_POWER,
    SEGMENTS,
    SHARE,
    SMALL,
)
from gcodec.kernels.index.rounding_bounds import half_unit, rounded_from
from tests.support.bit_patterns import KINDS, from_floats
from tests.support.bit_patterns import Array as Values

SHORT = ("float32", "bfloat16", "float16")
LAST, ERROR = 255.0, 2.0**-21


@njit
def _transposed(rows, first, n, columns):
    lane_steps.transpose_16(rows, first, n, columns, 0)


@njit
def _least(columns, n, lanes):
    lane_steps.least_lanes(columns, 0, n, lanes, 0)


@njit
def _fit(columns, n, factor, most, lanes):
    lane_steps.fit_lanes(columns, 0, n, factor, most, lanes, 0)


@njit
def _fit_short(columns, n, factor, most, lanes):
    lane_steps.fit_short_lanes(columns, 0, n, factor, most, lanes, 0)


@njit
def _fitting_one(magnitudes, inverse, share, of_power, most, factor):
    return bound_steps.fitting_factors(magnitudes, 0, inverse, share, of_power, most, factor)


@njit
def _bfloat16(columns, n, limit, last, lanes, bounds):
    lane_steps.meet_bfloat16_lanes(columns, 0, n, limit, last, lanes, 0, bounds, 0)


@njit
def _float16(columns, n, limit, last, lanes, bounds):
    lane_steps.meet_float16_lanes(columns, 0, n, limit, last, lanes, 0, bounds, 0)


@njit
def _float32(columns, n, limit, last, lanes, bounds):
    lane_steps.meet_float32_lanes(columns, 0, n, limit, last, lanes, 0, bounds, 0)


@njit
def _one_bfloat16(magnitudes, limit, low, high, last, ends):
    bound_steps.meet_bfloat16(magnitudes, 0, limit, low, high, last, ends, 0)


@njit
def _one_float16(magnitudes, limit, low, high, last, ends):
    bound_steps.meet_float16(magnitudes, 0, limit, low, high, last, ends, 0)


@njit
def _one_float32(magnitudes, limit, low, high, last, ends):
    bound_steps.meet_float32(magnitudes, 0, limit, low, high, last, ends, 0)


MEETING = {
    "bfloat16": (_bfloat16, _one_bfloat16),
    "float16": (_float16, _one_float16),
    "float32": (_float32, _one_float32),
}


def bits_32(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


def magnitudes_of(dtype: str, seed: int, n: int = AT_ONCE) -> Values:
    """Return segments of integers times a scale, some of whose values are others, and some 0: float32[SEGMENTS, n]."""
    rng = np.random.default_rng(seed)
    scales = 1e-3 * np.exp(rng.standard_normal((SEGMENTS, 1)))
    values = np.abs(np.rint(rng.standard_normal((SEGMENTS, n)) * rng.choice([3, 40, 90])) * scales)
    values = np.where(
        rng.random(values.shape) < rng.choice([0, 0.1, 0.3]), np.abs(rng.standard_normal(values.shape)), values
    )
    values[rng.integers(0, SEGMENTS)] = 0
    bits = from_floats(KINDS[dtype], values.reshape(-1)).astype(np.uint32)
    wide = bits << 16 if dtype == "bfloat16" else bits
    floats = bits.astype(np.uint16).view(np.float16) if dtype == "float16" else wide.astype(np.uint32).view(np.float32)
    return floats.astype(np.float32).reshape(values.shape)


def columns_of(magnitudes: Values) -> Values:
    return np.ascontiguousarray(magnitudes.T).reshape(-1)


@pytest.mark.parametrize("n", [16, 48])
def test_rows_become_columns(n):
    rows, columns = np.arange(SEGMENTS * n, dtype=np.float32), np.zeros(SEGMENTS * 16, np.float32)
    for first in range(0, n, 16):
        _transposed(rows, first, n, columns)
        assert (columns.reshape(16, SEGMENTS) == rows.reshape(SEGMENTS, n)[:, first : first + 16].T).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_least_value_of_each_segment_is_found(seed):
    magnitudes, lanes = magnitudes_of("float32", seed), np.zeros(N_ROWS * SEGMENTS, np.uint32)
    _least(columns_of(magnitudes), AT_ONCE, lanes)
    least = lanes.reshape(N_ROWS, SEGMENTS)[SMALL].view(np.float32)
    for row, found in zip(magnitudes, least, strict=True):
        assert found == (row[row > 0].min() if row.any() else 0)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("seed", range(8))
def test_factors_of_the_least_values_are_those_of_one_segment(dtype, seed):
    magnitudes, lanes = magnitudes_of(dtype, seed), np.zeros((N_ROWS, SEGMENTS), np.uint32)
    code, by_chance = BY_NAME[dtype].code, 0 if dtype == "float32" else 2
    share = 0.0 if dtype == "float32" else half_unit.py_func(code)
    arguments, first = [], 1 + 4 * (seed % 2)
    for row in magnitudes:
        base = float(row[row > 0].min()) if row.any() else 1.0
        most = rounded_from(base, code)[1]
        arguments.append((1 / base, (most - base) / base + ERROR if share else ERROR, share / base))
    for place, numbers in zip((INVERSE, SHARE, OF_POWER), zip(*arguments, strict=True), strict=True):
        lanes[place] = np.array(numbers, np.float32).view(np.uint32)
    fit = _fit if dtype == "float32" else _fit_short
    fit(columns_of(magnitudes), AT_ONCE, bits_32(first), bits_32(LAST + 0.5), lanes.reshape(-1))
    for row, given, found in zip(magnitudes, arguments, lanes[NUMBER].view(np.float32), strict=True):
        fitting = int(_fitting_one(row, *map(bits_32, given), bits_32(LAST + 0.5), bits_32(first)))
        best, most_fit = 0, 0
        for k in range(TRIED_AT_ONCE):
            n_fit = fitting >> 8 * k & 0xFF
            if n_fit > most_fit + (by_chance if most_fit else 0):
                best, most_fit = first + k, n_fit
        assert found == best


@pytest.mark.parametrize("dtype", SHORT)
def test_a_factor_that_was_found_stays(dtype):
    magnitudes, lanes = magnitudes_of(dtype, 1), np.zeros((N_ROWS, SEGMENTS), np.uint32)
    lanes[NUMBER] = bits_32(7.0)
    lanes[INVERSE] = bits_32(1e3)
    _fit_short(columns_of(magnitudes), AT_ONCE, bits_32(1.0), bits_32(LAST), lanes.reshape(-1))
    assert (lanes[NUMBER] == bits_32(7.0)).all()


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [8.0, 32.0, np.inf])
def test_bounds_of_16_scales_are_those_of_one(dtype, seed, limit):
    magnitudes, rng = magnitudes_of(dtype, seed), np.random.default_rng(seed)
    lanes, bounds = np.zeros((N_ROWS, SEGMENTS), np.uint32), np.zeros((N_BOUNDS, SEGMENTS))
    middle = np.float32(1e-3) * np.exp(rng.standard_normal(SEGMENTS)).astype(np.float32)
    width = np.float32(2.0**-8) * rng.random(SEGMENTS).astype(np.float32)
    bounds[LOW], bounds[HIGH] = middle * (1 - width), middle * (1 + width)
    of_lanes, of_one = MEETING[dtype]
    of_lanes(columns_of(magnitudes), AT_ONCE, bits_32(limit), bits_32(LAST), lanes.reshape(-1), bounds.reshape(-1))
    is_wide = dtype == "float32"
    for k, row in enumerate(magnitudes):
        ends = np.zeros(4, np.int64)
        numbers = limit, bounds[LOW, k], bounds[HIGH, k], LAST
        of_one(row, *[int(np.float64(x).view(np.uint64)) if is_wide else bits_32(x) for x in numbers], ends)
        floats = ends[:2].view(np.float64) if is_wide else ends[:2].astype(np.uint32).view(np.float32)
        assert (bounds[LOWEST, k], bounds[HIGHEST, k]) == (floats[0], floats[1])
        assert (lanes[N_MET, k], lanes[N_LOST, k]) == (ends[2], ends[3])
