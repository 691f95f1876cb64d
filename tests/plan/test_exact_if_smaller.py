"""The law of modes that may drop bits: their frames are never larger than lossless ones of the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import FINE_LADDER, EncoderOptions
from tests.support import laws
from tests.support.bit_patterns import BITS_ONLY, KINDS, Array, Bits, from_floats
from tests.support.encode_modes import promised

SHAPE = 192, 256
LEVEL_BYTES = 64  #: what the levels of a frame and their planes take in its prelude, and padding


def rank_one(rng: np.random.Generator, noise: float) -> Array:
    """Return rows that are multiples of one, as of the gradient of a language model's vocabulary early in training."""
    scales = np.exp(rng.normal(-7, 2, (SHAPE[0], 1)))
    return scales * rng.normal(0, 1, SHAPE[1]) * (1 + noise * rng.standard_normal(SHAPE))


GRADIENTS = {
    "rows of rank one": lambda rng: rank_one(rng, 0.0),
    "rows nearly of rank one": lambda rng: rank_one(rng, 1e-3),
    "rows of rank one below noise": lambda rng: np.concatenate([rank_one(rng, 1e-3)[:96], rng.normal(0, 1, (96, 256))]),
    "normal": lambda rng: rng.normal(0, 1e-2, SHAPE),
    "uniform": lambda rng: rng.uniform(-1, 1, SHAPE),
    "columns of different scale": lambda rng: rng.normal(0, 1e-2, SHAPE) * np.exp(rng.normal(0, 1, SHAPE[1])),
    "absent tokens": lambda rng: rng.normal(0, 1, SHAPE) * (rng.random((SHAPE[0], 1)) < 0.1),
    "zeros": lambda rng: np.zeros(SHAPE),
    "a few values": lambda rng: rng.normal(0, 1, (3, 5)),
}


def encoded(dtype: str, bits: Bits, **options: Any) -> bytes:
    """Return the frame, of which it was checked that it holds what was promised, or all bits."""
    return laws.check_round_trip(
        bits if dtype in BITS_ONLY else bits.view(dtype), promised(KINDS[dtype], bits, options), dtype=dtype, **options
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_dropping_bits_never_costs_any(dtype, name):
    kind, rng = KINDS[dtype], np.random.default_rng(1)
    bits = from_floats(kind, GRADIENTS[name](rng))
    limit = len(encoded(dtype, bits)) + LEVEL_BYTES
    for mean in (0.2, 2.5):
        levels = np.minimum(rng.poisson(mean, bits.shape), len(FINE_LADDER[dtype].drops) - 1).astype(np.uint8)
        assert len(encoded(dtype, bits, levels=levels)) <= limit
    for mantissa_bits in (kind.M - 1, kind.M // 2):
        assert len(encoded(dtype, bits, mantissa_bits=mantissa_bits)) <= limit


@pytest.mark.parametrize("mantissa_bits", [5, 6])
@pytest.mark.parametrize("seed", range(4))
def test_all_bits_are_kept_only_where_that_is_not_larger(mantissa_bits, seed):
    """Mantissa bits in the head take more than a sample promises, where the values of each block are others."""
    walk = from_floats(KINDS["bfloat16"], np.cumsum(np.random.default_rng(seed).standard_normal(200_000)))
    rounded = encoded("bfloat16", walk, mantissa_bits=mantissa_bits, options=EncoderOptions(exact_if_smaller=False))
    assert len(encoded("bfloat16", walk, mantissa_bits=mantissa_bits)) <= 1.005 * len(rounded)


def test_what_was_bfloat16_is_not_rounded_where_that_saves_nothing():
    short = from_floats(KINDS["bfloat16"], np.random.default_rng(0).normal(0, 1, 50_000))
    bits = short.astype(np.uint32) << np.uint32(16)
    exact = encoded("float32", bits)
    lossy: list[dict[str, Any]] = [{"mantissa_bits": 9}, {"levels": np.full(50_000, 2, np.uint8)}]
    for options in lossy:
        frame = encoded("float32", bits, **options)
        assert len(frame) == len(exact)
        assert gcodec.inspect(frame).mode != "lossless"


def test_whoever_needs_rounded_values_can_say_so():
    bits = from_floats(KINDS["float32"], rank_one(np.random.default_rng(2), 0.0))
    options: dict[str, Any] = {"mantissa_bits": 20, "options": EncoderOptions(exact_if_smaller=False)}
    frame = gcodec.encode(bits.view(np.float32), **options)
    laws.assert_same_bits(gcodec.decode(frame), promised(KINDS["float32"], bits, options))
    assert len(frame) > len(encoded("float32", bits, mantissa_bits=20))
