"""Integers in blocks: kernels give the bits of a definition in numpy, whatever the values are."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gcodec.compressors.block_integers import dequantize_in_blocks, offsets_of, quantize_in_blocks
from gcodec.errors import Corruption
from gcodec.kernels.quantize.scaled_blocks import DEPTH, FittingScratch, Integers, sum_in_halves

LEAST = 2.0**-133  #: the least bfloat16
KINDS = (
    "any bits",
    "finite bits",
    "normal",
    "heavy",
    "sparse",
    "ties",
    "huge",
    "scales turn denormal",
    "denormal",
    "zero",
)


# The definition


def quantized(values: np.ndarray, block: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers, int16[n], and the scales of their blocks: bfloat16's bits, uint16."""
    top, n_blocks = 2 ** (bits - 1) - 1, -(-len(values) // block)
    rows = np.zeros((n_blocks, block), np.float32)
    rows.reshape(-1)[: len(values)] = values
    greatest = np.abs(rows).max(axis=1)
    fitted = (1 / top * np.ones(n_blocks)).astype(np.float32)
    shares = rows / np.where(greatest > 0, greatest, 1)[:, None]
    for _ in range(3 if bits < 4 else 0):
        found = nearest(shares, fitted, top)
        squares = np.square(found.astype(np.int64)).sum(axis=1).astype(np.float32)
        fitted = sum_of((shares * found).T) / np.maximum(squares, 1)
    distances = fitted * greatest if bits < 4 else greatest / np.float32(top)
    scales = scales_of(distances, greatest, top)
    of_scale = nearest(rows, floats_of(scales), top)
    integers = np.where((scales >= 0x80)[:, None], found, of_scale) if bits < 4 else of_scale
    usable = (scales > 0) & (scales < 0x7F80)
    return np.where(usable[:, None], integers, 0).reshape(-1)[: len(values)].astype(np.int16), scales


def nearest(rows: np.ndarray, distances: np.ndarray, top: int) -> np.ndarray:
    """The nearest integers of values over each row's distance, float32."""
    return np.clip(np.rint(rows / distances[:, None]), -top, top)


def sum_of(columns: np.ndarray) -> np.ndarray:
    """The sum over the first axis in the order in which numpy adds up numbers that lie side by side."""
    n = len(columns)
    if n > 128:
        half = n // 2 - n // 2 % 8
        return sum_of(columns[:half]) + sum_of(columns[half:])
    eights = columns[: n - n % 8].reshape(n // 8, 8, columns.shape[1])
    a, b, c, d, e, f, g, h = reduce(np.add, eights, np.zeros((8, columns.shape[1]), np.float32))
    return reduce(np.add, columns[n - n % 8 :], ((a + b) + (c + d)) + ((e + f) + (g + h)))


def scales_of(distances: np.ndarray, greatest: np.ndarray, top: int) -> np.ndarray:
    """Distances as bfloat16's bits: the nearest, of denormal ones the next above, uint16."""
    bits = distances.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.where(bits < 0x800000, 0xFFFF, 0x8000).astype(np.uint64)) >> np.uint64(16)
    end = int((np.finfo(np.float32).max / np.float32(top)).view(np.uint32)) >> 16
    scales = np.where(greatest > 0, np.clip(rounded, 1, end), 0)
    return np.where(np.isfinite(greatest), scales, 0x7FC0).astype(np.uint16)


def floats_of(scales: np.ndarray) -> np.ndarray:
    """bfloat16's bits as float32."""
    return (scales.astype(np.uint32) << 16).view(np.float32)


def values_at(integers: np.ndarray, scales: np.ndarray, block: int) -> np.ndarray:
    """What integers stand for, float32[n]."""
    return integers.astype(np.float32) * floats_of(np.repeat(scales, block)[: len(integers)])


# The laws


def values_of(kind: str, n: int, seed: int) -> np.ndarray:
    """Values of a kind, float32[n]."""
    random = np.random.default_rng(seed)
    bits, normal = random.integers(0, 1 << 32, n, dtype=np.uint32), random.standard_normal(n)
    with np.errstate(all="ignore"):
        values = {
            "any bits": lambda: bits.view(np.float32),
            "finite bits": lambda: np.where(bits & 0x7F800000 == 0x7F800000, bits & 0x80FFFFFF, bits).view(np.float32),
            "normal": lambda: normal,
            "heavy": lambda: normal / random.random(n) ** 2,
            "sparse": lambda: normal * (random.random(n) < 0.03),
            "ties": lambda: random.integers(-260, 261, n) / 2,
            "huge": lambda: normal * 3e38,
            "scales turn denormal": lambda: normal * 2.0 ** random.integers(-135, -117),
            "denormal": lambda: (bits & np.uint32(1 << 31 | 0x7FFFFF >> int(random.integers(0, 23)))).view(np.float32),
            "zero": lambda: np.where(bits & 1, 0.0, -0.0),
        }[kind]()
    return np.asarray(values).astype(np.float32)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether floats have the same bits, but for those of NaN."""
    kind = np.uint32 if a.dtype == np.float32 else np.uint64
    return a.dtype == b.dtype and bool(((a.view(kind) == b.view(kind)) | (np.isnan(a) & np.isnan(b))).all())


blocks = st.sampled_from([1, 2, 7, 8, 31, 127, 128, 129, 200, 1000])
seeds = st.integers(0, 2**32 - 1)


@given(st.sampled_from(KINDS), st.integers(0, 2500), blocks, st.integers(2, 8), st.booleans(), seeds)
@np.errstate(all="ignore")
def test_codes_and_scales_are_those_of_the_definition(kind, n, block, bits, signed, seed):
    values, integers = values_of(kind, n, seed), Integers(block, 2 ** (bits - 1) - 1, bits < 4, signed)
    wanted, wanted_scales = quantized(values, block, bits)
    sent, wide = np.empty(n, np.float32), np.empty(n, np.float64)
    for out in (None, sent, wide):
        codes, scales = quantize_in_blocks(values, integers, out)
        assert np.array_equal(scales, wanted_scales)
        assert np.array_equal(codes, np.abs(wanted) | (wanted < 0) << 7 if signed else wanted + integers.top)
        assert np.array_equal(offsets_of(codes, integers), wanted + integers.top)
    found = np.empty(n, np.float32)
    dequantize_in_blocks(codes, scales, integers, found)
    for result in (sent, found, wide.astype(np.float32)):
        assert equal(result, values_at(wanted, wanted_scales, block))


@given(st.integers(1, 3000), seeds)
def test_numbers_are_added_up_in_halves(n, seed):
    numbers = np.random.default_rng(seed).standard_normal(n).astype(np.float32)
    scratch = FittingScratch(numbers, numbers, np.empty(DEPTH, np.int64), np.empty(DEPTH, np.float32))
    assert np.float32(sum_in_halves(numbers, scratch)) == sum_of(numbers[:, None])[0]


@given(st.integers(0, 700), blocks, st.integers(2, 8), st.booleans(), st.sampled_from([np.float32, np.float64]), seeds)
@np.errstate(all="ignore")
def test_codes_are_decoded_and_added_with_any_scales(n, block, bits, signed, kind, seed):
    random, top = np.random.default_rng(seed), 2 ** (bits - 1) - 1
    scales = random.integers(0, 1 << 16, -(-n // block)).astype(np.uint16)
    numbers = random.integers(-top, top + 1, n).astype(np.int16)
    codes = (np.abs(numbers) | (numbers < 0) << 7 if signed else numbers + top).astype(np.uint8)
    integers, wanted = Integers(block, top, bits < 4, signed), values_at(numbers, scales, block)
    written, total = np.empty(n, kind), random.standard_normal(n).astype(kind)
    before = total.copy()
    dequantize_in_blocks(codes, scales, integers, written)
    dequantize_in_blocks(codes, scales, integers, total, add=True)
    assert equal(written, wanted.astype(kind))
    assert equal(total, before + wanted)


@pytest.mark.parametrize("n", [1, 63, 64, 300])
@pytest.mark.parametrize("bits", range(2, 9))
def test_an_integer_beyond_the_greatest_is_refused_wherever_it_is(bits, n):
    top = 2 ** (bits - 1) - 1
    for signed, bad in ((True, top + 1), (True, 128 + top + 1), (False, 2 * top + 1)):
        if (bad & 127 if signed else bad) == 0:
            continue  # 8 bits: -0, which is a zero
        for at in {0, n // 2, n - 1}:
            codes, scales = np.full(n, 0 if signed else top, np.uint8), np.ones(-(-n // 128), np.uint16)
            codes[at] = bad
            with pytest.raises(Corruption):
                dequantize_in_blocks(codes, scales, Integers(128, top, bits < 4, signed), np.empty(n, np.float32))


@given(st.integers(-150, -110), st.integers(2, 8), blocks, seeds)
def test_values_keep_what_the_least_scales_leave_of_them(exponent, bits, block, seed):
    """Whatever the exponents are, denormal ones too: with 4 bits or more no value is off by more than half a level,
    which is the max magnitude's or the least; with fewer a block's error never exceeds the block."""
    values = (np.random.default_rng(seed).standard_normal(1500) * 2.0**exponent).astype(np.float32)
    sent, top = np.empty(1500, np.float32), 2 ** (bits - 1) - 1
    quantize_in_blocks(values, Integers(block, top, bits < 4, False), sent)
    for begin in range(0, 1500, block):
        part = values[begin : begin + block].astype(np.float64)
        error, greatest = np.abs(sent[begin : begin + block] - part), np.abs(part).max()
        assert np.linalg.norm(error) <= np.linalg.norm(part) * (1 + 1e-6)
        if bits >= 4:
            assert error.max() <= max(greatest / top * (1 + 2.0**-8) / 2, greatest / top / 2 + LEAST / 2) * (1 + 1e-6)


@pytest.mark.parametrize("bits", range(2, 9))
def test_no_value_grows_where_a_processor_takes_denormal_numbers_for_zero(bits):
    values = np.concatenate(
        [values_of("denormal", 640, 1), *(values_of("scales turn denormal", 640, i) for i in range(9))]
    )
    values[::3] = 0
    integers, sent = Integers(128, 2 ** (bits - 1) - 1, bits < 4, False), np.empty_like(values)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor always computes with them")
    try:
        codes, scales = quantize_in_blocks(values, integers)
    finally:
        torch.set_flush_denormal(False)
    dequantize_in_blocks(codes, scales, integers, sent)
    assert bool((np.abs(sent) <= 2 * np.abs(values).reshape(-1, 128).max(axis=1).repeat(128)).all())
    assert not sent[values == 0].any()
