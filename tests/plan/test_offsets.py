"""The laws of weights that have an offset beside their scale: they take about what the quantized numbers, the scales
and the offsets take, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec.plan import indexing, offsets
from tests.plan.test_indexing import NOT_INDEXED, SHORT, WAYS, check, kinds_of
from tests.plan.test_prediction import flushing_denormals
from tests.support import laws
from tests.support.bit_patterns import KINDS, Array, Bits, from_floats, noise, specials, typed
from tests.support.frame_builder import Draft

SHAPE = (96, 1024)
FACTORS, WITH_OFFSETS = 1, 3  # forms of dictionaries (docs/format.md section 5)


class Affine(NamedTuple):
    """Weights that were quantized to ``numbers``, with a scale and an offset for each group: float64[n_groups, n]."""

    numbers: Array
    scales: Array
    offsets: Array

    def bits(self, dtype: str, n_columns: int = SHAPE[1]) -> Bits:
        """Return what dequantizing makes of them: products and sums in float32, rounded to the type."""
        with np.errstate(over="ignore"):
            products = self.numbers.astype(np.float32) * self.scales.astype(np.float32)
            return rounded(dtype, (products + self.offsets.astype(np.float32)).reshape(-1, n_columns))

    def bound(self, of_pair: float) -> float:
        """Return the bits that numbers, scales and offsets take, given those of a scale and an offset."""
        counts = np.unique(self.numbers, return_counts=True)[1]
        entropy = -(counts * np.log2(counts / self.numbers.size)).sum()
        return float(entropy) + of_pair * self.scales.size


def rounded(dtype: str, values: Array) -> Bits:
    """Return float32 values in a type, rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return from_floats(KINDS[dtype], values)
    wide = values.astype(np.float32).view(np.uint32)
    return ((wide + np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def weights(group: int) -> Array:
    rng = np.random.default_rng(group)
    return (0.02 * rng.standard_normal(SHAPE) * np.exp(rng.standard_normal((SHAPE[0], 1)) / 2)).reshape(-1, group)


def by_least(group: int, largest: int, kind: type = np.float16) -> Affine:
    """Quantize to 0 ... ``largest`` from a group's least value on, which is stored beside the scale, as Q4_1 does."""
    groups = weights(group)
    least = groups.min(1, keepdims=True)
    scales, least = (
        (each).astype(kind).astype(np.float64) for each in ((groups.max(1, keepdims=True) - least) / largest, least)
    )
    return Affine(np.clip(np.rint((groups - least) / scales), 0, largest), scales, least)


def by_super_blocks(group: int, largest: int, n_bits: int) -> Affine:
    """Quantize as llama.cpp does in blocks of 256: scales and minima are integers of few bits, times a float16."""
    groups = weights(group)
    minima = np.maximum(-groups.min(1, keepdims=True), 0)
    scales = (groups.max(1, keepdims=True) + minima) / largest
    most = (1 << n_bits) - 1

    def shortened(each: Array) -> Array:
        in_blocks = each.reshape(-1, 256 // group)
        unit = (in_blocks.max(1, keepdims=True) / most).astype(np.float16).astype(np.float64)
        return (np.clip(np.rint(in_blocks / unit), 0, most) * unit).reshape(-1, 1)

    scales, minima = shortened(scales), shortened(minima)
    numbers = np.rint((groups + minima) / np.where(scales == 0, 1, scales))
    return Affine(np.clip(numbers, 0, largest), scales, -minima)


#: Ways to quantize; how many bits a scale and an offset may take; and how many more each value.
WITH_LEAST: dict[str, tuple[Callable[[], Affine], float, float]] = {
    "4 bits, float16, 32 values": (lambda: by_least(32, 15), 30, 0.1),  # Q4_1
    "5 bits, float16, 32 values": (lambda: by_least(32, 31), 30, 0.1),  # Q5_1
    "4 bits, blocks of 256, 32 values": (lambda: by_super_blocks(32, 15, 6), 43, 0.2),  # Q4_K
    "5 bits, blocks of 256, 32 values": (lambda: by_super_blocks(32, 31, 6), 43, 0.2),  # Q5_K
    "2 bits, blocks of 256, 16 values": (lambda: by_super_blocks(16, 3, 4), 40, 0.2),  # Q2_K
    "4 bits, float32, 64 values": (lambda: by_least(64, 15, np.float32), 60, 0.2),
    "3 bits, float32, 128 values": (lambda: by_least(128, 7, np.float32), 60, 0.2),
}


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("way", WITH_LEAST)
def test_weights_take_what_their_numbers_scales_and_offsets_take(way, dtype):
    quantize, of_pair, more = WITH_LEAST[way]
    quantized = quantize()
    frame = check(dtype, quantized.bits(dtype))
    laws.check_agreement(frame)
    assert kinds_of(frame) == {"indexed"}
    assert 8 * len(frame) <= quantized.bound(of_pair) + more * quantized.numbers.size + 8 * 2000


@pytest.mark.parametrize("dtype", SHORT)
def test_four_bits_take_a_third_of_16_bits_and_a_sixth_of_32(dtype):
    for quantized in by_least(32, 15), by_super_blocks(32, 15, 6):
        bits = quantized.bits(dtype)
        frame = gcodec.encode(typed(dtype, bits), dtype=dtype)
        assert len(frame) <= (0.17 if dtype == "float32" else 0.335) * bits.nbytes
        assert form_of(frame) == WITH_OFFSETS


def form_of(frame: bytes) -> int | None:
    """Return the form of a frame's dictionary; None if it has none."""
    draft = Draft.of(frame, laws.SHIPPED)
    return draft.records[-1][1] if draft.n_dictionaries else None


def less_a_zero(group: int, largest: int, seed: int, *, short: bool) -> tuple[Bits, float]:
    """Return what ``(q - zero) * scale`` is in bfloat16, with a zero that is no integer, as HQQ makes weights, and the
    entropy of the numbers q.

    Args:
        group: Weights that share a scale and a zero.
        largest: The largest number.
        seed: Draws the weights.
        short: Whether scales, zeros and differences are rounded to bfloat16, too, or float32.
    """
    groups = (0.02 * np.random.default_rng([group, seed]).standard_normal(SHAPE)).reshape(-1, group)
    least, most = groups.min(1, keepdims=True), groups.max(1, keepdims=True)

    def cast(values: Array) -> Array:
        wide = rounded("bfloat16", values).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32) if short else values.astype(np.float32)

    scales = cast((most - least) / largest)
    zeros = cast(-least / scales)
    numbers = np.clip(np.rint(groups / scales + zeros), 0, largest)
    bits = rounded("bfloat16", cast(cast(numbers - zeros) * scales)).reshape(SHAPE)
    return bits, Affine(numbers, scales, zeros).bound(0)


@pytest.mark.parametrize("seed", [0, 6, 10, 17])
def test_numbers_less_a_zero_that_is_no_integer_are_found(seed):
    """Some look like many multiples of a small scale at first."""
    bits, _ = less_a_zero(64, 15, seed, short=True)
    frame = check("bfloat16", bits)
    assert form_of(frame) == WITH_OFFSETS
    assert len(frame) <= 0.37 * bits.nbytes


@pytest.mark.parametrize(("group", "more"), [(64, 1.1), (128, 0.7), (256, 0.5), (1024, 0.4)])
def test_eight_bits_and_an_offset_are_found_in_bfloat16_though_rounding_moves_the_ends_by_half_a_step(group, more):
    for seed in range(2):
        bits, entropy = less_a_zero(group, 255, seed, short=False)
        frame = check("bfloat16", bits)
        laws.check_agreement(frame)
        assert form_of(frame) == WITH_OFFSETS
        assert 8 * len(frame) <= entropy + more * bits.size + 8 * 2000


@pytest.mark.parametrize("share", [0.003, 0.01])
def test_a_few_other_values_among_eight_bits_are_exceptions(share):
    rng, (bits, entropy) = np.random.default_rng(1), less_a_zero(256, 255, 0, short=False)
    others = rounded("bfloat16", 0.03 * rng.standard_normal(bits.shape))
    bits = np.where(rng.random(bits.shape) < share, others, bits)
    frame = check("bfloat16", bits)
    assert form_of(frame) == WITH_OFFSETS
    assert 8 * len(frame) <= entropy + (0.6 + 180 * share) * bits.size + 8 * 2000


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("way", ["int4, a scale for 32 values", "uint8 and a zero point", "fp8, a scale for a row"])
def test_weights_that_have_scales_alone_get_no_offsets(way, dtype):
    bits = WAYS[way][0]().bits(dtype)
    assert form_of(gcodec.encode(typed(dtype, bits), dtype=dtype)) == FACTORS


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("share", [0.003, 0.01, 0.03])
def test_a_few_other_values_are_exceptions(share, dtype):
    rng, quantized = np.random.default_rng(1), by_least(32, 15)
    bits = quantized.bits(dtype)
    others = rounded(dtype, 0.05 * rng.standard_normal(bits.shape))
    bits = np.where(rng.random(bits.shape) < share, others, bits)
    frame = check(dtype, bits)
    # Of a group whose least or largest value is another one, all may be exceptions.
    of_others = 12 * share * bits.size * KINDS[dtype].W
    assert form_of(frame) == WITH_OFFSETS
    assert 8 * len(frame) <= quantized.bound(30) + 0.2 * bits.size + of_others + 8 * 2000


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("group", [16, 64])
def test_one_other_value_in_a_hundred_leaves_scales_their_few_bits(group, dtype):
    for seed in (1, 2):
        rng, quantized = np.random.default_rng(seed), by_least(group, 15)
        bits = quantized.bits(dtype)
        others = rounded(dtype, 0.05 * rng.standard_normal(bits.shape))
        bits = np.where(rng.random(bits.shape) < 0.01, others, bits)
        frame = check(dtype, bits)
        assert 8 * len(frame) <= quantized.bound(30) + 3 * 0.01 * bits.size * KINDS[dtype].W


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("way", ["4 bits, float16, 32 values", "4 bits, blocks of 256, 32 values"])
def test_other_values_in_nearly_every_group_mislead_no_search(way, dtype):
    """Of 32 values, 6 in a hundred are two. A grid that a few values lie on by chance is nothing to learn from."""
    for seed in range(3):
        rng, bits = np.random.default_rng(seed), np.tile(WITH_LEAST[way][0]().bits(dtype), (4, 1))
        others = rounded(dtype, 0.05 * rng.standard_normal(bits.shape))
        x = typed(dtype, np.where(rng.random(bits.shape) < 0.06, others, bits))
        frame = gcodec.encode(x, dtype=dtype, threads=1)
        assert form_of(frame) == WITH_OFFSETS
        assert len(frame) <= 0.86 * len(gcodec.encode(x, dtype=dtype, threads=1, options=NOT_INDEXED))


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("seed", range(16))
def test_any_scales_and_offsets_stay_as_they_are(seed, dtype):
    """Numbers of 1 to 8 bits, of any group, from denormal to infinite, with up to a tenth of others."""
    rng = np.random.default_rng(seed)
    group, largest = int(rng.choice([16, 32, 64, 128, 1024])), int(rng.choice([1, 3, 7, 15, 31, 100, 255]))
    n_groups = SHAPE[0] * SHAPE[1] // group
    exponents = rng.integers(-140, 120, (n_groups, 1)) if seed % 4 == 0 else rng.integers(-14, 4, (n_groups, 1))
    numbers = rng.integers(0, largest + 1, (n_groups, group)).astype(np.float64)
    scales = np.ldexp(1 + rng.random((n_groups, 1)).astype(np.float16).astype(np.float64), exponents)
    least = -scales * np.rint(rng.random((n_groups, 1)) * largest * 64) / 64
    bits = Affine(numbers, scales, least).bits(dtype)
    special = rng.random(bits.shape) < rng.choice([0, 0.01, 0.1])
    others = np.where(rng.random(bits.shape) < 0.5, rng.choice(specials(KINDS[dtype]), bits.shape),
                      noise(KINDS[dtype], rng, bits.size).reshape(bits.shape))  # fmt: skip
    check(dtype, np.where(special, others, bits))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scales_that_processors_may_take_for_zero_are_not_found(dtype):
    """Others of the array are; values of the small ones are large enough to be numbers."""
    rng = np.random.default_rng(2)
    exponents = np.where(rng.random(384) < 0.1, rng.integers(-131, -95, 384), -8)[:, None]
    scales = np.ldexp(1 + rng.integers(0, 1024, (384, 1)) / 1024, exponents)
    numbers = rng.integers(0, 32, (384, 256)).astype(np.float64)
    frame = check(dtype, Affine(numbers, scales, np.where(exponents == -8, -7.3 * scales, 0)).bits(dtype))
    laws.check_agreement(frame)
    assert form_of(frame) == WITH_OFFSETS


@pytest.mark.parametrize(
    ("group", "n_groups"), [(32, 512), (32, 2047), (32, 2049), (160, 600), (1000, 132), (2040, 70)]
)
def test_blocks_and_segments_may_end_anywhere(group, n_groups):
    quantized = by_least(32, 15)
    numbers = np.resize(quantized.numbers, (n_groups, group))
    numbers[:, :2] = 0, 15
    pairs = (np.resize(each, (n_groups, 1)) for each in (quantized.scales, quantized.offsets))
    bits = Affine(numbers, *pairs).bits("float32", group)
    frame = check("float32", bits)
    laws.check_agreement(frame)
    assert form_of(frame) == WITH_OFFSETS


@pytest.mark.parametrize("dtype", SHORT)
def test_a_group_of_one_value_or_of_none_that_is_a_number_has_an_offset_too(dtype):
    bits = by_least(32, 15).bits(dtype).reshape(-1, 32)
    kind = KINDS[dtype]
    for k, value in enumerate(specials(kind)):
        bits[7 * k % len(bits)] = value
    bits[1::97] = bits[1::97, :1]
    check(dtype, bits.reshape(SHAPE))


@pytest.mark.parametrize("dtype", SHORT)
def test_a_processor_that_takes_denormals_for_zero_makes_the_same_frames(dtype):
    for quantized in by_least(32, 15), by_super_blocks(16, 3, 4):
        bits = quantized.bits(dtype)
        bits.reshape(-1)[::100] = np.resize(specials(KINDS[dtype]), len(bits.reshape(-1)[::100]))
        x = typed(dtype, bits)
        frame = gcodec.encode(x, dtype=dtype, threads=1)
        with flushing_denormals():
            assert gcodec.encode(x, dtype=dtype, threads=1) == frame
            laws.assert_same_bits(gcodec.decode(frame, threads=1), bits)


#: How many values are held against grids for each value, beyond the first grid of each group.
MOST_STEPS = 10


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("share", [0, 0.01, 0.03, 0.1])
def test_a_search_takes_few_steps_for_each_value(share, dtype, monkeypatch):
    steps, rng, find = [0], np.random.default_rng(0), offsets._find_pairs

    def counted(types, values, segment, skipped, n_bits, code, search, *result):
        find(types, values, segment, skipped, n_bits, code, search, *result)
        # Of a call that tries what is known alone, the number begins with one that ends all others.
        steps[0] += int(search.work[0]) % (1 << 40)

    monkeypatch.setattr(offsets, "_find_pairs", counted)
    for quantize, _, _ in WITH_LEAST.values():
        bits = np.tile(quantize().bits(dtype), (4, 1))
        others = rounded(dtype, 0.05 * rng.standard_normal(bits.shape))
        bits = np.where(rng.random(bits.shape) < share, others, bits)
        steps[0] = 0
        x = typed(dtype, bits)
        frame = gcodec.encode(x, dtype=dtype, threads=1)
        assert len(frame) <= len(gcodec.encode(x, dtype=dtype, threads=1, options=NOT_INDEXED))
        assert steps[0] <= MOST_STEPS * bits.size


def test_arrays_without_repeats_are_not_searched(monkeypatch):
    def refused(*_: object) -> None:
        raise AssertionError("a search where nothing repeats")

    monkeypatch.setattr(indexing, "way_of_sums", refused)
    for dtype in SHORT:
        gcodec.encode(typed(dtype, rounded(dtype, np.random.default_rng(0).standard_normal(SHAPE))), dtype=dtype)
