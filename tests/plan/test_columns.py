"""The laws of column references: columns of different scales take about what they take one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gcodec
from tests.support.bit_patterns import BITS_ONLY, KINDS, from_floats


def size(dtype: str, values: np.ndarray) -> int:
    """Return the bytes of the frame of some values, of which it was checked that it decodes to the same bits."""
    bits = from_floats(KINDS[dtype], values.reshape(-1)).reshape(values.shape)
    frame = gcodec.encode(bits if dtype in BITS_ONLY else bits.view(dtype), dtype=dtype)
    assert gcodec.decode(frame, like="numpy").tobytes() == bits.tobytes()
    return len(frame)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("n_columns", [2, 3, 7, 16, 31])
def test_few_columns_take_what_they_take_one_after_another(dtype, n_columns):
    rng = np.random.default_rng(n_columns)
    scales = np.exp2(rng.permutation(n_columns) * (10 / n_columns) - 5)
    values = rng.standard_normal(((1 << 18) // n_columns, n_columns)) * scales
    assert size(dtype, values) <= 1.01 * size(dtype, values.T)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_points_of_a_batch_are_tables_of_few_columns(dtype):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4, 20_000, 3)) * np.array([100.0, 1.0, 0.01])
    assert size(dtype, values) <= 1.01 * size(dtype, values.reshape(-1, 3).T)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_head_of_a_cache_has_columns_of_its_own_scales(dtype):
    rng = np.random.default_rng(1)
    values = rng.standard_normal((8, 1024, 64)) * np.exp2(3 * rng.standard_normal((8, 1, 64)))
    apart = sum(size(dtype, head) for head in values)
    assert size(dtype, values) <= 1.005 * apart


def test_matrices_with_the_same_scales_share_their_references():
    rng = np.random.default_rng(2)
    values = rng.standard_normal((32, 64, 256)) * np.exp2(3 * rng.standard_normal(256))
    assert size("float32", values) <= 1.001 * size("float32", values.reshape(-1, 256))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spread", [1.0, 1.5])
def test_column_references_that_pay_with_the_usual_head_alone_are_not_taken_with_others(dtype, spread):
    """Outputs of SiLU: a head with sign and mantissa bits says more than a column does."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((256, 256)) + spread * rng.standard_normal(256)
    outputs = (inputs / (1 + np.exp(-inputs))).astype(np.float32).view(np.uint32)
    values = (outputs >> 16).astype(np.uint16) if dtype == "bfloat16" else outputs

    def frame_bytes(**options: Any) -> int:
        return len(gcodec.encode(values, dtype=dtype, options=gcodec.EncoderOptions(**options)))

    assert frame_bytes(wide_heads=False) < frame_bytes(wide_heads=False, columns=False)
    assert frame_bytes() <= frame_bytes(columns=False)
