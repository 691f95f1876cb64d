"""The laws of the codec over the table of cases (:mod:`tests.support.cases`), and over arrays drawn at random."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcodec
from gcodec import EncoderOptions, Ladder
from gcodec.frame import encode as encoding
from tests.support import laws
from tests.support.base_pairs import rng_of
from tests.support.bit_patterns import BITS_ONLY, KINDS, from_floats, gaussian, specials
from tests.support.cases import CASES, LARGE, SHORT
from tests.support.encode_modes import case_and_mode, every_case, levels_at_random, modes, promised
from tests.support.frame_builder import Draft

short_cases = pytest.mark.parametrize("which", [which for which in CASES if which.name in SHORT], ids=str)
large_cases = pytest.mark.parametrize("which", LARGE, ids=str)
with_tail = pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.T])


# The laws


def check_mode(which, mode):
    """Check that an array comes back as a mode promises, by both decoders, and that its frame is not too long."""
    arguments = mode.arguments(which)
    want = promised(which.kind, which.bits, arguments)
    frame = laws.check_round_trip(which.array(), want, **arguments)
    laws.check_agreement(frame)
    laws.check_no_expansion(which.bits.shape, which.dtype, frame)


@case_and_mode
def test_every_case_and_every_mode_round_trips_agrees_and_does_not_expand(which, mode):
    check_mode(which, mode)


@pytest.mark.slow
@every_case
def test_every_case_in_every_mode_round_trips_agrees_and_does_not_expand(which):
    for mode in modes(which.dtype):
        check_mode(which, mode)


@every_case
def test_frames_and_arrays_are_written_into_buffers_of_the_caller(which):
    x = which.array()
    frame = gcodec.encode(x, **which.options)
    laws.check_encode_buffers(x, frame, **which.options)
    laws.check_decode_buffers(frame)


@every_case
def test_decode_range_returns_any_part_of_the_values(which):
    laws.check_random_access(gcodec.encode(which.array(), **which.options), rng_of(which))


@large_cases
def test_large_arrays_are_coded_alike_by_any_number_of_threads(which):
    for mode in (modes(which.dtype)[0], modes(which.dtype)[-1]):
        arguments = mode.arguments(which)
        x = which.array()
        frame = laws.check_round_trip(x, promised(which.kind, which.bits, arguments), **arguments)
        laws.check_threads(x, frame, **arguments)
        laws.check_random_access(frame, rng_of(which))


@pytest.mark.slow
@large_cases
def test_both_decoders_agree_on_large_arrays(which):
    for mode in modes(which.dtype):
        arguments = mode.arguments(which)
        laws.check_agreement(gcodec.encode(which.array(), **arguments))


@short_cases
def test_every_truncation_of_a_frame_is_refused(which):
    for mode in modes(which.dtype)[:1] + modes(which.dtype)[-1:]:
        laws.check_truncation(gcodec.encode(which.array(), **mode.arguments(which)), rng_of(which))


@short_cases
def test_frames_with_any_bit_flipped_are_refused(which):
    for mode in modes(which.dtype)[:1] + modes(which.dtype)[-1:]:
        laws.check_bit_flips(gcodec.encode(which.array(), **mode.arguments(which)), rng_of(which), at_most=250)


@pytest.mark.slow
@every_case
def test_truncated_frames_and_flipped_bits_of_every_case_are_refused(which):
    for mode in modes(which.dtype):
        frame = gcodec.encode(which.array(), **mode.arguments(which))
        laws.check_truncation(frame, rng_of(which), at_most=400)
        laws.check_bit_flips(frame, rng_of(which), at_most=1000)


@with_tail
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_fixed_mantissa_bits_keep_their_bound(dtype, rounding):
    kind, rng = KINDS[dtype], np.random.default_rng(1)
    largest = from_floats(kind, np.array([1.0])) * 0 + specials(kind)[9]  # just below infinity
    steps = np.arange(0, 300, dtype=kind.container)
    bits = np.concatenate(
        [
            specials(kind),
            gaussian(kind, rng, 2000),
            largest - steps,
            steps,
            rng.integers(0, 1 << 16, 2000).astype(kind.container) << kind.container.type(kind.W - 16),
        ]
    )
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    options = {"dtype": dtype} if dtype in BITS_ONLY else {}
    rounded = EncoderOptions(exact_if_smaller=False)
    for mantissa_bits in sorted({1, 2, 3, kind.M // 2, kind.M - 1, kind.M}):
        frame = gcodec.encode(x, mantissa_bits=mantissa_bits, rounding=rounding, options=rounded, **options)
        laws.check_bound(dtype, bits, laws.bits_of(gcodec.decode(frame)), mantissa_bits, rounding)


# Properties


def arrays_of(dtype):
    """Return a strategy of bits of a type, from a few patterns and from anything."""
    kind = KINDS[dtype]
    patterns = st.sampled_from([int(bits) for bits in specials(kind)])
    anything = st.integers(0, (1 << kind.W) - 1)
    near_one = st.integers(0, 1 << kind.M).map(lambda tail: int(specials(kind)[8]) + tail & (1 << kind.W) - 1)
    values = st.lists(st.one_of(patterns, near_one, anything), max_size=40)
    repeats = st.lists(st.tuples(values, st.integers(1, 60)), max_size=4)
    return repeats.map(lambda parts: np.array([bit for some, n in parts for bit in some * n], kind.container))


def share_of_examples(n_types):
    """Return settings for a test that runs once for each of some types: together as many examples as others have."""
    return settings(max_examples=-(-settings().max_examples // n_types))


@pytest.mark.parametrize("dtype", KINDS)
@share_of_examples(len(KINDS))
@given(st.data())
def test_any_values_in_any_mode_are_decoded(dtype, data):
    bits = data.draw(arrays_of(dtype))
    mode = data.draw(st.sampled_from(modes(dtype)))
    arguments = mode.options | {"dtype": dtype}
    if "ladder" in arguments:
        arguments["levels"] = levels_at_random(bits, len(arguments["ladder"].drops))
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    frame = laws.check_round_trip(x, promised(KINDS[dtype], bits, arguments), **arguments)
    laws.check_agreement(frame)
    laws.check_no_expansion(bits.shape, dtype, frame)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(2, 12),
    st.sampled_from([None, 1, 5, 9, 14]),
    st.integers(1, 255),
    st.booleans(),
)
def test_any_encoder_options_give_frames_that_decode(
    seed, dtype, max_length, escape_threshold, max_codebooks, references
):
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    scales = np.exp2(rng.uniform(-30, 30, 8))
    bits = np.concatenate([gaussian(kind, rng, 250, zeros=rng.random(), scale=scale) for scale in scales])
    options = EncoderOptions(max_length, escape_threshold, max_codebooks, references)
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    frame = laws.check_round_trip(x, bits, options=options, dtype=dtype)
    laws.check_agreement(frame)
    draft = Draft.of(frame, laws.SHIPPED)
    assert len(draft.records) - draft.n_changes <= max_codebooks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@share_of_examples(3)
@given(st.integers(0, 2**32 - 1), st.data())
def test_levels_of_any_ladder_are_decoded(dtype, seed, data):
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    drops = data.draw(st.lists(st.integers(0, kind.M), min_size=1, max_size=7, unique=True).map(sorted))
    ladder, bits = Ladder(tuple(drops)), np.concatenate([specials(kind), gaussian(kind, rng, 500, zeros=0.2)])
    if drops[0] == kind.M:
        return
    arguments = {
        "levels": levels_at_random(bits, len(drops)),
        "ladder": ladder,
        "dtype": dtype,
        "rounding": data.draw(st.sampled_from(["nearest", "truncate"])),
    }
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    frame = laws.check_round_trip(x, promised(kind, bits, arguments), **arguments)
    laws.check_agreement(frame)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@given(st.integers(0, 2**32), st.integers(1, 130), st.sampled_from([0.0, 0.2, 0.9]))
def test_small_arrays_stored_without_a_plan_would_not_be_shorter_with_one(dtype, seed, n, zeros):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) if seed & 1 else 2.0 ** rng.integers(-2, 1, n)).astype(dtype)
    x[rng.random(n) < zeros] = 0
    frame = gcodec.encode(x)
    with patch.object(encoding, "_MAX_BYTES_TO_COUNT", 0):
        assert len(frame) <= len(gcodec.encode(x))
