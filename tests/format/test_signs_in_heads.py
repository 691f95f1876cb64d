"""The laws of the codec over arrays whose signs are in their heads, and what that saves."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import EncoderOptions
from gcodec.dtypes import BY_CODE
from tests.support import laws
from tests.support.bit_patterns import KINDS, Array, Bits, from_floats, gaussian, noise, specials, typed
from tests.support.frame_builder import Coded, Draft

SIGNED = {"bfloat16": 16, "float32": 17, "float16": 18, "float64": 19}  # codes of section 2 of docs/format.md
FINE = {"bfloat16": 20, "float32": 21}
NOT_INDEXED = EncoderOptions(indexed=False)  # 16 bits have few different values near 1
USUAL_HEADS = EncoderOptions(wide_heads=False, indexed=False)
signed_types = pytest.mark.parametrize("dtype", SIGNED)


def check(dtype: str, bits: Bits, **options: Any) -> bytes:
    """Check all laws of one array, whatever the encoder makes of it; return the frame."""
    x, options = typed(dtype, bits), {"dtype": dtype, "options": NOT_INDEXED, **options}
    frame = laws.check_round_trip(x, bits, **options)
    laws.check_agreement(frame)
    laws.check_threads(x, frame, **options)
    laws.check_random_access(frame, Random(bits.size))
    laws.check_no_expansion(bits.shape, dtype, frame)
    assert gcodec.inspect(frame).dtype == dtype
    return frame


def positive(dtype: str, rng: np.random.Generator, shape: Any) -> Bits:
    """Return squares of normally distributed values, as second moments are."""
    return from_floats(KINDS[dtype], rng.standard_normal(shape) ** 2)


@signed_types
@pytest.mark.parametrize("n", [4096, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 100_003])
def test_values_of_one_sign_take_a_bit_less(dtype, n):
    bits = positive(dtype, np.random.default_rng(n), n)
    frame, usual = check(dtype, bits), gcodec.encode(typed(dtype, bits), dtype=dtype, options=USUAL_HEADS)
    assert frame[5] == SIGNED[dtype] and BY_CODE[usual[5]] is BY_CODE[usual[5]].narrow
    assert len(frame) <= len(usual) - 0.95 * n / 8 + 64
    minus = bits | KINDS[dtype].container.type(1 << KINDS[dtype].W - 1)
    assert abs(len(check(dtype, minus)) - len(frame)) <= 64


@signed_types
def test_signs_that_follow_from_exponents_are_saved(dtype):
    x = np.random.default_rng(1).standard_normal(1 << 16)
    bits = from_floats(KINDS[dtype], np.where(x > 0, x, x / 4096))
    frame = check(dtype, bits)
    assert BY_CODE[frame[5]].fine_bits
    assert len(frame) <= len(gcodec.encode(typed(dtype, bits), dtype=dtype, options=USUAL_HEADS)) - 0.8 * len(bits) / 8


@signed_types
def test_random_signs_stay_in_the_tail(dtype):
    bits = gaussian(KINDS[dtype], np.random.default_rng(2), 1 << 16)
    assert not BY_CODE[check(dtype, bits)[5]].fine_bits


@signed_types
@pytest.mark.parametrize("n", [4096, (5 << 14) + 700])
def test_arrays_with_signs_in_heads_obey_the_laws(dtype, n):
    """With NaN, infinities, denormals, both zeros and anything at all among them; zeros, alone and in runs; and blocks
    that are raw or constant."""
    kind, rng = KINDS[dtype], np.random.default_rng(n)
    bits = positive(dtype, rng, n)
    odd = rng.random(n) < 0.003
    bits[odd] = rng.choice([*specials(kind), *noise(kind, rng, 20)], odd.sum())
    assert check(dtype, bits)[5] == SIGNED[dtype]
    bits[rng.random(n) < 0.3] = 0
    bits[500:1300] = 0
    frame = check(dtype, bits)
    assert frame[5] == SIGNED[dtype]
    if n > 1 << 15:
        bits[: 1 << 14] = bits[1 << 14] | 1
        bits[5 << 14 :] = noise(kind, rng, 700)
        frame = check(dtype, bits)
        assert BY_CODE[frame[5]].fine_bits
        assert [block[0] for block in Draft.of(frame, laws.SHIPPED).blocks] == [0, 2, 2, 2, 2, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_references_keep_the_signs_apart(dtype):
    """Rows and columns of very different scales: references of sub-streams and columns are even, so that no symbol
    means a positive head in one place and a negative one in another; so half of them have no code."""
    rng, kind = np.random.default_rng(3), KINDS[dtype]
    reach = 5 if dtype == "float16" else 20
    x = rng.standard_normal((256, 512)) ** 2 * np.exp2(rng.integers(-reach, reach, (256, 1)))
    frame = check(dtype, from_floats(kind, x * np.exp2(rng.integers(-4, 4, 512))))
    draft = Draft.of(frame, laws.SHIPPED)
    assert frame[5] == SIGNED[dtype]
    coded = [Coded.of(block, draft.stream_log2) for block in draft.blocks]
    assert any(any(block.references) for block in coded)
    assert not any(reference & 1 for block in coded for reference in (block.base, *block.references))


@pytest.mark.parametrize("dtype", FINE)
def test_activations_take_mantissa_bits_into_the_head_as_well(dtype):
    """GELU's and SiLU's outputs, and weights of norms near 1."""
    rng = np.random.default_rng(4)
    x: Array = rng.standard_normal(1 << 17)
    for values, saved in ((x / (1 + np.exp(-x)), 0.6), (x / (1 + np.exp(-1.702 * x)), 0.6), (1 + 0.02 * x, 2)):
        bits = from_floats(KINDS[dtype], values)
        frame = check(dtype, bits)
        usual = gcodec.encode(typed(dtype, bits), dtype=dtype, options=USUAL_HEADS)
        assert frame[5] == FINE[dtype]
        assert len(frame) <= len(usual) - saved * len(bits) / 8
        assert gcodec.inspect(frame).planes == {"bfloat16": (4,), "float32": (16, 4)}[dtype]


@pytest.mark.parametrize("dtype", FINE)
def test_arrays_with_mantissa_bits_in_heads_obey_the_laws(dtype):
    kind, rng, n = KINDS[dtype], np.random.default_rng(5), 70_003
    bits = from_floats(kind, 1 + 0.02 * rng.standard_normal(n))
    odd = rng.random(n) < 0.003
    bits[odd] = rng.choice(specials(kind), odd.sum())
    bits[1000:1200] = noise(kind, rng, 200)
    assert check(dtype, bits)[5] == FINE[dtype]
    bits[rng.random(n) < 0.3] = 0
    bits[500:1300] = 0
    bits[-37:] = 0
    assert check(dtype, bits)[5] == FINE[dtype]


SMALLEST = EncoderOptions(smallest=True)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("n", [1, 100, 5000, 70_001])
def test_the_smallest_way_obeys_the_laws_and_is_never_larger(dtype, n):
    rng, kind = np.random.default_rng(n), KINDS[dtype]
    for bits in (gaussian(kind, rng, n), from_floats(kind, rng.standard_normal(n) ** 2), noise(kind, rng, n)):
        frame = check(dtype, bits, options=SMALLEST)
        assert len(frame) <= len(gcodec.encode(typed(dtype, bits), dtype=dtype))


@pytest.mark.parametrize(("dtype", "bits"), [*((dtype, None) for dtype in KINDS), ("bfloat16", 3), ("float64", 3)])
def test_where_samples_mislead_the_smallest_way_is_not_larger_either(dtype, bits):
    """Values of a few kinds or of two scales take other sizes than samples promise."""
    kind = KINDS[dtype]
    for seed in range(4):
        rng = np.random.default_rng(seed)
        normal, masked = rng.standard_normal((2, 4103)), np.arange(98_304) % 16 / 8
        masked[rng.random(len(masked)) < 0.17] = -0.0
        for x in (np.maximum(normal[0], 0), np.cumsum(normal[0]), np.concatenate([normal[0], normal[1] ** 2]), masked):
            values = typed(dtype, from_floats(kind, x))
            frame = gcodec.encode(values, dtype=dtype, mantissa_bits=bits, options=SMALLEST)
            assert len(frame) <= len(gcodec.encode(values, dtype=dtype, mantissa_bits=bits))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_take_less_where_size_is_all_that_counts(dtype):
    bits = gaussian(KINDS[dtype], np.random.default_rng(7), 1 << 18)
    frame, usual = check(dtype, bits, options=SMALLEST), check(dtype, bits)
    assert frame[5] == FINE[dtype]
    assert len(frame) <= 0.998 * len(usual)


@signed_types
def test_rounded_values_have_the_usual_head(dtype):
    bits = positive(dtype, np.random.default_rng(6), 9000)
    frame = gcodec.encode(typed(dtype, bits), dtype=dtype, mantissa_bits=3)
    assert BY_CODE[frame[5]] is BY_CODE[frame[5]].narrow


@pytest.mark.parametrize("dtype", FINE)
@pytest.mark.parametrize("seed", range(4))
def test_mantissa_bits_are_in_the_head_only_where_that_is_smaller(dtype, seed):
    """A small sample misses most of the symbols where each thousand values lie elsewhere, close together."""
    rng, n, run = np.random.default_rng(seed), 200_000, 1000
    places = np.exp(rng.uniform(-2, 2, n // run)) * rng.choice([-1, 1], n // run)
    values = typed(dtype, from_floats(KINDS[dtype], np.repeat(places, run) * (1 + 0.01 * rng.standard_normal(n))))
    usual = gcodec.encode(values, dtype=dtype, options=EncoderOptions(wide_heads=False))
    assert len(gcodec.encode(values, dtype=dtype)) <= 1.002 * len(usual)
