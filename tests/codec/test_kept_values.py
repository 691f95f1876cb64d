"""Fill values under lossy modes, and what every lossy mode does with values that have a meaning of their own."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.dtypes import BY_NAME
from gcodec.plan.kept_values import CONVENTIONAL, fill_values
from tests.support import laws

FILL_VALUES = (1e20, -9999.0, -32767.0, -999.0, 9.969209968386869e36, -9999.9)
TYPES = ("float16", "bfloat16", "float32", "float64")


def bits_of(numbers, name):
    """Return numbers as bits of a type, rounded as gcodec rounds them."""
    with np.errstate(over="ignore"):
        if name == "bfloat16":
            wide = np.asarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
            return (wide + 0x7FFF + (wide >> 16 & 1) >> 16).astype(np.uint16)
        return np.asarray(numbers).astype(name).view(BY_NAME[name].uint)


def floats_of(bits, name):
    return (bits.astype(np.uint32) << 16).view(np.float32) if name == "bfloat16" else bits.view(name)


def decoded(bits, name, **options):
    frame = gcodec.encode(bits, dtype=name, **options)
    assert frame == gcodec.encode(bits, dtype=name, threads=1, **options)
    laws.check_agreement(frame)
    return np.asarray(gcodec.decode(frame, like="numpy")).view(BY_NAME[name].uint)


@pytest.mark.parametrize(
    ("fill", "mantissa_bits", "name"), list(product(FILL_VALUES, (7, 10, 12), ("float32", "float64")))
)
def test_fill_values_come_back_as_they_are_and_no_other_value_becomes_one(fill, mantissa_bits, name):
    rng = np.random.default_rng(0)
    values = rng.normal(280, 20, (300, 200))
    missing = rng.random(values.shape) < 0.3
    values[missing] = fill
    beside = np.flatnonzero(~missing)[:100]
    bits = bits_of(values, name)
    bits.reshape(-1)[beside] = bits_of(fill, name) + np.arange(1, 101, dtype=bits.dtype)  # next to the fill value
    back = decoded(bits, name, mantissa_bits=mantissa_bits, keep=fill)
    assert np.array_equal(back == bits_of(fill, name), missing)
    exact, near = floats_of(bits, name).astype(np.float64), floats_of(back, name).astype(np.float64)
    assert (np.abs(near - exact) <= 2.0 ** -(mantissa_bits + 1) * np.abs(exact)).all()


def test_an_array_without_the_fill_value_is_encoded_as_without_keep():
    values = np.random.default_rng(0).normal(280, 20, 50_000).astype(np.float32)
    plain = gcodec.encode(values, mantissa_bits=7)
    assert gcodec.encode(values, mantissa_bits=7, keep=[1e20, np.nan, 0, np.inf]) == plain
    values[:] = -999
    assert (np.asarray(gcodec.decode(gcodec.encode(values, mantissa_bits=7, keep=-999))) == -999).all()


SPECIAL = ("zero", "denormal", "least normal", "largest finite", "infinite", "payload", "any")


@st.composite
def special_arrays(draw):
    """Draw an array of a type whose values are of every special kind, and how many bits to keep."""
    name = draw(st.sampled_from(TYPES))
    dtype = BY_NAME[name]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    low, infinity = (1 << dtype.mantissa_bits) - 1, dtype.infinity
    bits = bits_of(rng.normal(size=draw(st.integers(1, 3000))), name)
    for kind in draw(st.lists(st.sampled_from(SPECIAL), unique=True)):
        places = rng.random(len(bits)) < draw(st.sampled_from([0.003, 0.1, 0.6]))
        drawn = rng.integers(0, 1 << dtype.bits - 1, len(bits), dtype=np.uint64)
        values = {
            "zero": drawn & 0,
            "denormal": drawn & low,
            "least normal": (drawn & 1) + low,
            "largest finite": infinity - 1 - (drawn & 1),
            "infinite": (drawn & 0) + infinity,
            "payload": (drawn & low | 1) + infinity,
            "any": drawn,
        }[kind]
        signs = rng.integers(0, 2, len(bits), dtype=np.uint64) << np.uint64(dtype.bits - 1)
        bits[places] = (values.astype(np.uint64) | signs).astype(bits.dtype)[places]
    return name, bits, draw(st.integers(1, dtype.mantissa_bits))


def check_meanings(bits, back, name, prunes):
    """Check that what is infinite, NaN, finite or zero is so afterwards, with its sign."""
    dtype = BY_NAME[name]
    magnitudes, found = (array & dtype.uint.type((1 << dtype.bits - 1) - 1) for array in (bits, back))
    infinity = dtype.infinity
    assert np.array_equal(magnitudes > infinity, found > infinity), "NaN stay NaN, and nothing becomes one"
    assert np.array_equal(magnitudes == infinity, found == infinity), "the largest finite value stays finite"
    small = magnitudes < 1 << dtype.mantissa_bits  # zeros and denormals
    assert np.array_equal((bits >> dtype.bits - 1)[~small], (back >> dtype.bits - 1)[~small])
    if prunes:
        assert (found[small] <= magnitudes[small]).all()
    else:
        assert np.array_equal(bits[magnitudes == 0], back[magnitudes == 0]), "-0 stays -0"
        assert np.array_equal(bits >> dtype.bits - 1, back >> dtype.bits - 1)


@given(special_arrays(), st.sampled_from(["nearest", "truncate"]), st.lists(st.integers(0, 2999), max_size=5))
def test_rounding_keeps_what_values_mean(drawn, rounding, kept):
    name, bits, mantissa_bits = drawn
    check_meanings(bits, decoded(bits, name, mantissa_bits=mantissa_bits, rounding=rounding), name, prunes=False)
    keep = floats_of(bits[[place % len(bits) for place in kept]], name)
    keep = keep[np.isfinite(keep) & (keep != 0)].astype(np.float64)
    back = decoded(bits, name, mantissa_bits=mantissa_bits, rounding=rounding, keep=keep)
    check_meanings(bits, back, name, prunes=False)
    patterns = bits_of(keep, name)
    assert np.array_equal(bits[np.isin(bits, patterns)], back[np.isin(bits, patterns)])
    assert not np.isin(back[~np.isin(bits, patterns)], patterns).any()


@given(special_arrays(), st.sampled_from(["fine", "paper"]), st.integers(0, 2**32))
def test_levels_keep_what_values_mean(drawn, ladder, seed):
    name, bits, _ = drawn
    options = gcodec.EncoderOptions(ladder=ladder)
    levels = np.random.default_rng(seed).integers(0, 4, len(bits)).astype(np.uint8)
    back = decoded(bits, name, levels=levels, options=options)
    check_meanings(bits, back, name, prunes=True)
    dtype = BY_NAME[name]
    not_finite = (bits & dtype.uint.type(dtype.infinity)) == dtype.infinity
    assert np.array_equal(bits[not_finite], back[not_finite]), "payloads of NaN, too: such values are of level 0"


def test_frequent_values_are_found():
    rng = np.random.default_rng(0)
    for name in TYPES:
        values = bits_of(rng.normal(size=(400, 300)), name)
        values[rng.random(values.shape) < 0.02] = bits_of(-12345.678, name)
        found = bits_of(fill_values(values, BY_NAME[name], (None, 7.0)), name)
        some = -12345.678, 7.0, CONVENTIONAL[0], -CONVENTIONAL[0]
        assert {int(bits_of(value, name)) for value in some} <= set(found.tolist())


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n_missing", [1, 5, 100])
@pytest.mark.parametrize("other", [None, -999.0, np.nan, np.inf])
def test_a_rare_value_far_from_all_others_is_found(name, n_missing, other):
    rng = np.random.default_rng(0)
    fills = (-54321.5, 12345.678, -1e30) if name not in ("float16",) else (-54321.5, 12345.678)
    for fill in fills:
        values = rng.normal(280, 20, 120_000)
        if other is not None:
            values[rng.random(len(values)) < 0.3] = other
        values[rng.choice(len(values), n_missing, replace=False)] = fill
        bits = bits_of(values, name)
        keep = fill_values(bits.reshape(300, 400), BY_NAME[name])
        assert int(bits_of(fill, name)) in bits_of(keep, name).tolist()
        back = decoded(bits, name, mantissa_bits=3, keep=keep)
        assert np.array_equal(back == bits_of(fill, name), bits == bits_of(fill, name))


def test_many_values_far_from_others_are_measurements():
    plain = len(fill_values(bits_of(np.zeros(0), "float32"), BY_NAME["float32"]))
    for values in (
        np.exp(np.random.default_rng(0).normal(0, 5, 100_000)),
        np.random.default_rng(0).normal(size=100_000),
    ):
        assert len(fill_values(bits_of(values, "float32"), BY_NAME["float32"])) == plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 1e20}, "keep was given without mantissa_bits"),
        ({"keep": -9999, "levels": np.zeros(100, np.uint8)}, "keep was given without mantissa_bits"),
        ({"keep": "nothing", "mantissa_bits": 7}, "keep must be a number"),
        ({"keep": [[1], [2, 3]], "mantissa_bits": 7}, "keep must be a number"),
        ({"keep": object(), "mantissa_bits": 7}, "keep must be a number"),
    ],
)
def test_wrong_values_to_keep(options, message):
    with pytest.raises(gcodec.InvalidArgument, match=message):
        gcodec.encode(np.ones(100, np.float32), **options)


def test_values_to_keep_change_nothing_where_all_bits_are_kept():
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    frame = gcodec.encode(values, mantissa_bits=23, keep=-9999)
    assert gcodec.inspect(frame).mode == "lossless"
