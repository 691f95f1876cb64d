"""The law of values that occur again in one tensor: an archive is no larger than Zstandard makes them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import zstandard

import gcodec

RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal(1 << 18).astype(np.float32)
#: Bytes of an archive besides the tensor's: header, index, footer, a checksum.
OVERHEAD = 400


def sines() -> np.ndarray:
    """Return the basis of a Fourier transform: each row occurs again, with the other sign, or backwards."""
    k, n = np.ogrid[0:129, 0:256]
    angle = 2 * np.pi * k * n / 256
    return np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    "values",
    [
        np.repeat(WEIGHTS[: 1 << 16].reshape(8, 1, -1), 4, axis=1),
        np.tile(WEIGHTS[: 1 << 15], 5),
        np.tile(WEIGHTS[: 1 << 10], 40),
        sines(),
    ],
    ids=["heads of grouped queries", "far apart", "close together", "sines"],
)
def test_a_tensor_that_repeats_itself_is_no_larger_than_with_zstandard(values, dtype):
    values, stream = values.astype(dtype), io.BytesIO()
    gcodec.save_file({"w": values}, stream)
    assert len(stream.getvalue()) <= len(zstandard.compress(values.tobytes(), 3)) + OVERHEAD
    stream.seek(0)
    assert np.array_equal(gcodec.load_file(stream, like="numpy")["w"], values)
