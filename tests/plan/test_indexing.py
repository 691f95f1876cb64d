"""The laws of indexed blocks as the encoder makes them: arrays of few values, and quantized weights, take about what
the quantized numbers take, and nothing changes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec import EncoderOptions
from gcodec.format.codebook import limited_lengths
from gcodec.format.modes import lossless
from gcodec.frame.encode import encode_values
from gcodec.plan.indexing import find_indexing
from gcodec.plan.plan import make_indexed_plan
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import values_of
from tests.plan.test_prediction import flushing_denormals
from tests.support import laws
from tests.support.bit_patterns import KINDS, Array, Bits, from_floats, gaussian, noise, specials, typed
from tests.support.covering import each_pair

NOT_INDEXED = EncoderOptions(indexed=False)
SHORT = ("float32", "bfloat16", "float16")  # types whose values may be products
NORMAL_FLOAT4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])  # fmt: skip
SIGNED_TABLE = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0])  # GGUF's IQ4_NL
FP4 = np.array([sign * size for sign in (-1, 1) for size in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])


class Quantized(NamedTuple):
    """Weights that were quantized.

    Attributes:
        numbers: What they were quantized to, float64[n_groups, n].
        scales: The scale of each group, float64[n_groups, 1].
        shape: The shape of the weights.
    """

    numbers: Array
    scales: Array
    shape: tuple[int, ...]

    def bits(self, dtype: str) -> Bits:
        """Return what dequantizing makes of them: products in float32, rounded to the type, ties to even."""
        products = self.numbers.astype(np.float32) * self.scales.astype(np.float32)
        if dtype != "bfloat16":
            return from_floats(KINDS[dtype], products).reshape(self.shape)
        wide = products.view(np.uint32)
        even = wide + np.uint32(0x7FFF) + (wide >> np.uint32(16) & np.uint32(1))
        return (even >> np.uint32(16)).astype(np.uint16).reshape(self.shape)

    def bound(self) -> float:
        """Return the bits that numbers and scales take: the entropy of the numbers, and 32 for each scale."""
        counts = np.unique(self.numbers, return_counts=True)[1]
        return float(-(counts * np.log2(counts / self.numbers.size)).sum()) + 32 * self.scales.size


def weights(shape: tuple[int, int], group: int) -> Array:
    return (0.02 * np.random.default_rng(group).standard_normal(shape)).reshape(-1, group)


def by_integers(shape: tuple[int, int], group: int, largest: int) -> Quantized:
    """Quantize weights to integers up to ``largest``, with a scale for each ``group``, the largest of which has it."""
    groups = weights(shape, group)
    scales = (np.abs(groups).max(1, keepdims=True) / largest).astype(np.float32)
    return Quantized(np.rint(groups / scales), scales, shape)


def rounded(ratios: Array, n_bits: int) -> Array:
    """Return numbers with significands of so many bits, as fp8 has, and fewer below 2**-6."""
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(ratios), 2.0**-6))) - n_bits + 1)
    return np.rint(ratios / unit) * unit


def by_fp8(shape: tuple[int, int], group: int, n_bits: int = 4, largest: int = 448) -> Quantized:
    groups = weights(shape, group)
    scales = (np.abs(groups).max(1, keepdims=True) / largest).astype(np.float32)
    return Quantized(rounded(groups / scales, n_bits), scales, shape)


def by_fp8_squares(shape: tuple[int, int], side: int) -> Quantized:
    """Quantize weights as :func:`by_fp8` does, with a scale for each square of ``side`` values."""
    squares = weights(shape, side).reshape(shape[0] // side, side, shape[1] // side, side)
    scales = (np.abs(squares).max((1, 3), keepdims=True) / 448).astype(np.float32)
    numbers = rounded(squares / scales, 4).reshape(-1, side)
    return Quantized(numbers, np.broadcast_to(scales, squares.shape)[..., :1].reshape(-1, 1), shape)


def by_table(shape: tuple[int, int], group: int, table: Array) -> Quantized:
    """Quantize weights to the nearest numbers of a table, the largest of which a group's largest value has."""
    groups = weights(shape, group)
    scales = (np.abs(groups).max(1, keepdims=True) / table.max()).astype(np.float32)
    return Quantized(table[np.abs((groups / scales)[..., None] - table).argmin(-1)], scales, shape)


def by_signed_scales(shape: tuple[int, int], group: int, table: Array) -> Quantized:
    """Quantize weights to the nearest numbers of a table, the smallest of which a group's largest value has: its scale
    is negative where that value is positive."""
    groups = weights(shape, group)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
    scales = (largest / table.min()).astype(np.float32)
    return Quantized(table[np.abs((groups / scales)[..., None] - table).argmin(-1)], scales, shape)


def from_zero_point(shape: tuple[int, int], group: int, zero_point: int) -> Quantized:
    """Quantize weights, most of which are positive, to 0 ... 255, less a zero point."""
    groups = weights(shape, group) + 0.05
    scales = (np.abs(groups).max(1, keepdims=True) / (255 - zero_point)).astype(np.float32)
    return Quantized(np.clip(np.rint(groups / scales), -zero_point, 255 - zero_point), scales, shape)


def from_zero_points(shape: tuple[int, int], group: int) -> Quantized:
    """Quantize weights to 0 ... 255 between the least and the largest of a group, less the number that stands for 0."""
    groups = weights(shape, group)
    least, largest = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    scales = ((largest - least) / 255).astype(np.float32)
    zero_points = np.rint(-least / scales)
    return Quantized(np.clip(np.rint(groups / scales), -zero_points, 255 - zero_points), scales, shape)


def by_channels(shape: tuple[int, ...]) -> Quantized:
    """Quantize the weights of a convolution, with a scale for each output channel."""
    n = int(np.prod(shape[1:]))
    quantized = by_integers((shape[0], n), n, 127)
    return quantized._replace(shape=shape)


def by_fp4_and_short_scales(shape: tuple[int, int]) -> Quantized:
    """Quantize weights as NVFP4 does: to FP4, with a scale for each 16 that is an fp8 number times one for the tensor;
    there are no more than 256 different values."""
    groups = weights(shape, 16)
    of_tensor = np.float32(np.abs(groups).max() / (6 * 448))
    scales = rounded(np.abs(groups).max(1, keepdims=True) / 6 / of_tensor, 4).astype(np.float32) * of_tensor
    return Quantized(FP4[np.abs((groups / scales)[..., None] - FP4).argmin(-1)], scales, shape)


def by_integers_and_short_scales(shape: tuple[int, int], group: int, largest: int) -> Quantized:
    """Quantize weights as GGUF's Q6_K does: to integers, with scales that are integers times one for 16 groups."""
    groups = weights(shape, group)
    scales = np.abs(groups).max(1, keepdims=True) / largest
    of_many = scales.reshape(-1, 16, 1).max(1, keepdims=True).astype(np.float16) / np.float16(127)
    scales = (np.rint(scales.reshape(-1, 16, 1) / of_many) * of_many).reshape(-1, 1).astype(np.float32)
    return Quantized(np.clip(np.rint(groups / scales), -largest - 1, largest), scales, shape)


#: Ways to quantize, and how many bits more than numbers and scales the values of a frame may take.
WAYS: dict[str, tuple[Callable[[], Quantized], float]] = {
    "int8, a scale for the tensor": (lambda: by_integers((150, 300), 45_000, 127), 0.15),
    "int8, a scale for a row": (lambda: by_integers((60, 1000), 1000, 127), 0.15),
    "int8, rows longer than a block": (lambda: by_integers((2, 70_000), 70_000, 127), 0.15),
    "int8, a scale for 128 values": (lambda: by_integers((60, 1024), 128, 127), 0.15),
    "int8, a scale for 64 values": (lambda: by_integers((60, 1024), 64, 127), 0.15),
    "int8, a scale for 32 values": (lambda: by_integers((60, 1024), 32, 127), 0.2),
    "6 bits, short scales for 16 values": (lambda: by_integers_and_short_scales((64, 1024), 16, 31), 0.15),
    "fp4, short scales for 16 values": (lambda: by_fp4_and_short_scales((64, 1024)), 0.15),
    "int8 without a sign": (lambda: by_integers((60, 1024), 1024, 120), 0.15),
    "uint8 and a zero point": (lambda: from_zero_point((60, 1024), 1024, 128), 0.35),
    "uint8 and a zero point, for 128 values": (lambda: from_zero_points((60, 1024), 128), 0.6),
    "int4, a scale for 64 values": (lambda: by_integers((60, 1024), 64, 7), 0.15),
    "int4, a scale for 32 values": (lambda: by_integers((60, 1024), 32, 8), 0.15),
    "fp4, a scale for 32 values": (lambda: by_table((60, 1024), 32, FP4), 0.15),
    "4 bits by a table, scales of either sign": (lambda: by_signed_scales((60, 1024), 32, SIGNED_TABLE), 0.15),
    "int8, a scale for a channel of a convolution": (lambda: by_channels((96, 75, 3, 3)), 0.15),
    "fp8, a scale for a row": (lambda: by_fp8((60, 1024), 1024), 0.2),
    "fp8 (e5m2), a scale for a row": (lambda: by_fp8((60, 1024), 1024, 3, 57344), 0.2),
    "fp8, a scale for a square": (lambda: by_fp8_squares((256, 256), 128), 0.35),
    "nf4, a scale for 64 values": (lambda: by_table((60, 1024), 64, NORMAL_FLOAT4), 0.15),
}


def request_for(dtype: str, bits: Bits) -> EncodeRequest:
    """Return the request to encode an array losslessly."""
    values = values_of(typed(dtype, bits), dtype)
    return EncodeRequest(values, lossless(values.dtype), np.zeros(0, np.uint8), EncoderOptions(), threads=1,
                         shapes=(bits.shape,), standalone=True)  # fmt: skip


def kinds_of(frame: bytes) -> set[str]:
    return {kind for kind, count in gcodec.inspect(frame).kinds.items() if count}


def check(dtype: str, bits: Bits, **options: Any) -> bytes:
    """Check all laws of one array, whatever the encoder makes of it; return the frame."""
    x, options = typed(dtype, bits), {"dtype": dtype, **options}
    frame = laws.check_round_trip(x, bits, **options)
    laws.check_threads(x, frame, **options)
    laws.check_random_access(frame, Random(bits.size))
    laws.check_no_expansion(bits.shape, dtype, frame)
    assert len(frame) <= len(gcodec.encode(x, dtype=dtype, options=NOT_INDEXED))
    return frame


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("way", WAYS)
def test_quantized_weights_take_what_their_numbers_and_scales_take(way, dtype):
    quantize, more = WAYS[way]
    quantized = quantize()
    frame = check(dtype, quantized.bits(dtype))
    laws.check_agreement(frame)
    assert kinds_of(frame) == {"indexed"}
    assert 8 * len(frame) <= quantized.bound() + more * quantized.numbers.size + 8 * 2000


@pytest.mark.parametrize("dtype", SHORT)
def test_values_that_are_no_products_are_exceptions(dtype):
    quantized, rng = by_integers((64, 1024), 128, 7), np.random.default_rng(1)
    bits = quantized.bits(dtype)
    pure = check(dtype, bits)
    odd = rng.random(bits.shape) < 0.005
    bits[odd] = noise(KINDS[dtype], rng, int(odd.sum()))
    frame = check(dtype, bits)
    laws.check_agreement(frame)
    assert kinds_of(frame) == {"indexed"}
    assert len(frame) <= len(pure) + odd.sum() * (KINDS[dtype].W + 16) / 8


@each_pair(dtype=SHORT, group=[32, 128], size=[0.002, 0.06])
def test_one_value_in_a_hundred_may_be_another(dtype, group, size):
    """Of 16 values, some have two such, whatever of 32 or 128 has a scale."""
    for seed in range(4):
        quantized, rng = by_integers((256, 1024), group, 7), np.random.default_rng(seed)
        bits = quantized.bits(dtype)
        odd = rng.random(bits.shape) < 0.01
        bits[odd] = from_floats(KINDS[dtype], size * rng.standard_normal(int(odd.sum())))
        frame = check(dtype, bits)
        assert kinds_of(frame) == {"indexed"}
        assert 8 * len(frame) <= quantized.bound() + 2.5 * bits.size


@pytest.mark.parametrize("dtype", SHORT)
def test_scales_of_long_rows_are_found_beside_many_larger_values(dtype):
    quantized, rng = by_integers((4, 40_000), 40_000, 100), np.random.default_rng(2)
    bits = quantized.bits(dtype)
    pure = check(dtype, bits)
    odd = rng.random(bits.shape) < 0.002
    bits[odd] = from_floats(KINDS[dtype], 1 + rng.random(int(odd.sum())))
    frame = check(dtype, bits)
    assert kinds_of(frame) == {"indexed"}
    assert len(frame) <= len(pure) + odd.sum() * (KINDS[dtype].W + 16) / 8


def test_rows_with_many_larger_values_take_scales_of_their_parts():
    """Whole rows have no scale then, as a sample of their values does not show."""
    quantized, rng = by_integers((256, 1024), 1024, 7), np.random.default_rng(3)
    bits = quantized.bits("float32")
    odd = rng.random(bits.shape) < 0.01
    bits[odd] = from_floats(KINDS["float32"], 0.2 * rng.standard_normal(int(odd.sum())))
    assert 8 * len(check("float32", bits)) <= quantized.bound() + 6 * bits.size


@pytest.mark.parametrize("dtype", SHORT)
def test_special_values_stay_as_they_are(dtype):
    """Infinities, NaN and -0, and segments of zeros, of denormals and of numbers whose products overflow."""
    kind, bits = KINDS[dtype], by_integers((64, 1024), 128, 7).bits(dtype).reshape(-1)
    others = specials(kind)
    bits[:: len(bits) // len(others)][: len(others)] = others
    bits[5000:5600] = 0
    bits[6000:6300] = 1 << kind.W - 1
    bits[7000:7300] = np.arange(300)
    bits[8000:8300] = (1 << kind.W - 1) - 1 - np.arange(300)
    laws.check_agreement(check(dtype, bits))


@pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.T])
@pytest.mark.parametrize("n_values", [2, 3, 16, 255, 256])
def test_few_different_values_take_their_entropy(dtype, n_values):
    kind, rng = KINDS[dtype], np.random.default_rng(n_values)
    values = np.unique(noise(kind, rng, n_values))
    shares = rng.dirichlet(np.ones(len(values)))
    bits = rng.choice(values, 70_000, p=shares)
    frame = check(dtype, bits)
    laws.check_agreement(frame)
    counts = np.unique(bits, return_counts=True)[1]
    codes = np.maximum(-np.log2(counts / bits.size), 1)  # no code is shorter than a bit
    assert 8 * len(frame) <= (counts * codes).sum() + 0.15 * bits.size + 8 * (1000 + 9 * n_values)


@pytest.mark.parametrize("dtype", SHORT)
def test_an_index_is_the_same_symbol_in_all_blocks(dtype):
    """However the indices of a block are on average: here in the middle between two whole numbers."""
    kind, rng = KINDS[dtype], np.random.default_rng(11)
    values = np.unique(noise(kind, rng, 400))[:256]
    shares = np.full(256, 0.002 / 254)
    shares[255] = (10.5 - 0.002 * 87) / 215
    shares[40] += 1 - shares.sum()
    bits = rng.choice(values, 1 << 19, p=shares)
    frame = check(dtype, bits)
    counts = np.unique(bits, return_counts=True)[1]
    assert 8 * len(frame) <= (counts * limited_lengths(counts)).sum() + 0.05 * bits.size + 8 * 4000


@pytest.mark.parametrize("dtype", SHORT)
def test_frequent_values_at_both_ends_of_a_dictionary_have_codes(dtype):
    """Symbols reach 127 indices far; the mean index is 130, and the values with indices 2 and 3 are frequent."""
    kind, rng = KINDS[dtype], np.random.default_rng(14)
    values = np.unique(noise(kind, rng, 400))[:230]
    shares = np.full(230, 0.1 / 224)
    shares[1:5], shares[229] = 0.096, 0.516
    bits = rng.choice(values, 1 << 15, p=shares / shares.sum())
    counts = np.unique(bits, return_counts=True)[1]
    assert 8 * len(check(dtype, bits)) <= (counts * limited_lengths(counts)).sum() + 0.05 * bits.size + 8 * 1200


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("n", [1 << 14, 1 << 18])
def test_a_dictionary_has_no_entries_that_cost_more_than_they_save(dtype, n):
    """One value is frequent, and each other one is met a few times at most: a bit for each, and the others beside."""
    kind, rng = KINDS[dtype], np.random.default_rng(12)
    bits = from_floats(kind, np.where(rng.random(n) < 0.95, 1.1, rng.standard_normal(n)))
    n_others = n - int(np.unique(bits, return_counts=True)[1].max())
    assert 8 * len(check(dtype, bits)) <= 1.04 * n + n_others * kind.W + 8 * 200


@pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.T])
def test_a_few_other_values_than_a_dictionary_holds_are_exceptions(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(5)
    bits = rng.choice(noise(kind, rng, 100), 70_000)
    few = check(dtype, bits)
    bits[::300] = noise(kind, rng, len(bits[::300]))
    frame = check(dtype, bits)
    laws.check_agreement(frame)
    assert kinds_of(frame) == {"indexed"}
    assert len(frame) <= len(few) + len(bits[::300]) * (kind.W + 16) / 8


@pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.T])
def test_other_arrays_are_encoded_as_if_there_were_no_indexed_blocks(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(6)
    for bits in (gaussian(kind, rng, 1 << 16), noise(kind, rng, 1 << 16), np.zeros(1 << 16, kind.container)):
        x = typed(dtype, bits)
        assert gcodec.encode(x, dtype=dtype) == gcodec.encode(x, dtype=dtype, options=NOT_INDEXED)


def tempting(rng: np.random.Generator, n_rows: int) -> Iterator[tuple[str, Array]]:
    """Yield numbers that may be indexed, and may be smaller otherwise, by name: float64[n_rows, 1024]."""
    shape = n_rows, 1024
    normal, few = rng.standard_normal(shape), rng.integers(-7, 8, shape).astype(np.float64)
    scales = np.exp(rng.standard_normal((n_rows, 1)))
    blocks = np.repeat(np.arange(n_rows) // 16 % 5, 1024).reshape(shape)
    yield "sorted", np.sort(normal, axis=None).reshape(shape)
    yield "smooth", np.cos(np.arange(normal.size) * 0.001).reshape(shape)
    yield "smooth in steps", np.rint(100 * np.cos(np.arange(normal.size) * 0.001)).reshape(shape)
    yield "few values", few
    yield "few values in runs", np.sort(few, axis=None).reshape(shape)
    yield "few factors of scales", few * scales
    yield "few factors, and others", np.where(rng.random(shape) < 0.1, normal, few * scales)
    yield "rows that are multiples of one", few[:1] * scales
    yield "blocks that are constant beside others", np.where(blocks < 2, 1.5, few * scales)
    yield "blocks that are rows' multiples beside others", np.where(blocks < 2, few[:1] * scales, few * scales)
    yield "mostly zeros", np.where(rng.random(shape) < 0.7, 0, few * scales)
    yield "short ones beside others", np.where(rng.random(shape) < 0.4, np.rint(normal * 4) / 4, normal)
    yield "one value and others", np.where(rng.random(shape) < 0.95, 1.1, normal)
    yield "infinities beside others", np.where(rng.random(shape) < 0.95, -np.inf, normal)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("n_rows", [16, 97, 1040])
def test_no_frame_is_larger_than_without_a_search_for_few_values(dtype, n_rows):
    """Of more than 2**20 values, one frame is made, by estimates that may be off by a hundredth."""
    for name, numbers in tempting(np.random.default_rng(13), n_rows):
        x = typed(dtype, from_floats(KINDS[dtype], numbers))
        without = len(gcodec.encode(x, dtype=dtype, options=NOT_INDEXED))
        assert len(gcodec.encode(x, dtype=dtype)) <= (1.01 if n_rows > 1024 else 1) * without, name


@pytest.mark.parametrize("dtype", SHORT)
def test_frames_take_no_more_than_indices_were_estimated_to_take(dtype):
    """Else another way to encode would be left for one that is larger. Sub-streams take a bit in thirty values."""
    for name, numbers in tempting(np.random.default_rng(15), 97):
        request = request_for(dtype, from_floats(KINDS[dtype], numbers))
        found, plan = find_indexing(request), make_indexed_plan(request)
        if found is not None and plan is not None:
            bits = 8 * len(encode_values(request, plan))
            assert bits <= 1.05 * found.bits(KINDS[dtype].W) + 0.05 * numbers.size + 8 * 500, name


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("zeros", [0.7, 0.9, 0.95])
def test_scales_do_not_repeat_what_the_few_values_between_zeros_are(dtype, zeros):
    """Where a segment has one value or two that are not zero, some scale always fits: that takes long, and saves
    little."""
    kind, rng = KINDS[dtype], np.random.default_rng(7)
    bits = gaussian(kind, rng, 1 << 16)
    gone = rng.random(bits.shape) < zeros
    bits[gone] = bits[gone] >> (kind.W - 1) << (kind.W - 1)  # as a mask leaves them, 0 or -0
    frame = check(dtype, bits)
    usual = gcodec.encode(typed(dtype, bits), dtype=dtype, options=NOT_INDEXED)
    assert "indexed" not in kinds_of(frame) or len(frame) <= 0.95 * len(usual)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_processor_that_takes_denormals_for_zero_makes_the_same_frames(dtype):
    """Of values and scales around the smallest normal number."""
    arrays = []
    for exponent in (-140, -133, -127, -126, -125, -120):
        for quantized in (by_integers((64, 1024), 128, 7), by_fp8((64, 1024), 128)):
            scales = np.ldexp(quantized.scales / quantized.scales.max(), exponent)
            arrays.append(quantized._replace(scales=scales).bits(dtype))
    bits = by_integers((64, 1024), 128, 7).bits(dtype)
    bits.reshape(-1)[::150] = np.arange(bits.size // 150 + 1)
    arrays.append(bits)
    usual = [gcodec.encode(typed(dtype, bits), dtype=dtype) for bits in arrays]
    assert [kinds_of(frame) for frame in usual[-3:]] == [{"indexed"}] * 3
    for bits, frame in zip(arrays, usual, strict=True):
        laws.assert_same_bits(gcodec.decode(frame, like="numpy"), bits)
    with flushing_denormals():
        assert [gcodec.encode(typed(dtype, bits), dtype=dtype) for bits in arrays] == usual
        for bits, frame in zip(arrays, usual, strict=True):
            laws.assert_same_bits(gcodec.decode(frame, like="numpy"), bits)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scales_may_be_as_large_as_numbers_are(dtype):
    for quantized in (by_integers((64, 1024), 128, 1), by_integers((64, 1024), 128, 7), by_fp8((64, 1024), 128)):
        largest = np.log2(quantized.numbers.max())
        for exponent in (120, 126, 127, 128 - 2.0**-9):
            scales = quantized.scales / quantized.scales.max() * np.exp2(exponent - largest)
            check(dtype, quantized._replace(scales=scales).bits(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_numbers_of_few_bits_get_no_dictionary_that_saves_nothing(dtype):
    """Exponents have codes, and other bits that are zero are dropped anyway."""
    kind = KINDS[dtype]
    dropped = kind.container.type((1 << kind.M - 4) - 1)
    bits = gaussian(kind, np.random.default_rng(10), 1 << 16) & ~dropped
    assert find_indexing(request_for(dtype, bits)) is None
    check(dtype, bits)


@pytest.mark.parametrize("dtype", SHORT)
def test_long_arrays_of_constant_blocks_are_not_larger_with_a_dictionary(dtype):
    """Estimates do not know of constant blocks."""
    bits = np.full(21 << 16, from_floats(KINDS[dtype], np.array([0.7]))[0])
    bits[:30_000] = gaussian(KINDS[dtype], np.random.default_rng(8), 30_000)
    x = typed(dtype, bits)
    assert len(gcodec.encode(x, dtype=dtype)) <= len(gcodec.encode(x, dtype=dtype, options=NOT_INDEXED))


@pytest.mark.parametrize("dtype", SHORT)
def test_quantized_weights_stay_exact_where_bits_may_be_dropped(dtype):
    """That is smaller."""
    bits = by_integers((64, 1024), 128, 7).bits(dtype)
    frame = gcodec.encode(typed(dtype, bits), dtype=dtype, mantissa_bits=3)
    laws.assert_same_bits(gcodec.decode(frame, like="numpy"), bits)
    assert gcodec.inspect(frame).mode == "fixed"


@pytest.mark.parametrize("n", [(1 << 14) - 1, 1 << 14, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 16])
def test_blocks_may_end_anywhere(n):
    bits = by_integers((1, n), n, 7).bits("float32").reshape(-1)
    frame = check("float32", bits)
    laws.check_agreement(frame)
    assert n < 1 << 14 or kinds_of(frame) - {"constant"} == {"indexed"}


def test_an_archive_of_quantized_weights_restores_them(tmp_path):
    tensors = {way: typed("float32", quantize().bits("float32")) for way, (quantize, _) in WAYS.items()}
    gcodec.save_file(tensors, tmp_path / "weights.gc")
    for name, tensor in gcodec.load_file(tmp_path / "weights.gc").items():
        assert tensor.tobytes() == tensors[name].tobytes()


def of_other_values() -> Bits:
    """A scale for all values, some of which are others: two dictionaries are compared."""
    bits = by_integers((1024, 1024), 1 << 20, 100).bits("float32").reshape(-1)
    bits[::400] = noise(KINDS["float32"], np.random.default_rng(9), len(bits[::400]))
    return bits


def of_signed_scales() -> Bits:
    return by_signed_scales((1024, 1024), 32, SIGNED_TABLE).bits("float32")


@pytest.mark.parametrize(
    "bits", [of_other_values, lambda: by_fp8((1024, 1024), 16).bits("float32"), of_signed_scales],
    ids=["few values", "many scales", "scales of either sign"],
)  # fmt: skip
def test_the_search_takes_a_few_bytes_for_each_value(bits):
    """Those of the indices of one dictionary or two, of scales, and of what products are counted from."""
    x = bits()
    request = request_for("float32", x)
    assert find_indexing(request) is not None
    tracemalloc.start()
    try:
        find_indexing(request)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 5 * x.size
