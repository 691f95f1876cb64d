"""The laws of the codec over the table of cases (:mod:`tests.support.cases`), and the arguments that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from functools import cache
from linecache import getline
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcodec
from gcodec import FINE_LADDER, LITERAL_GCOMP, PAPER_LADDER, EncoderOptions, InvalidArgument, Ladder, LimitExceeded
from gcodec.format import modes as bit_layouts
from gcodec.frame import encode
from gcodec.frame.encode import encode_values, plan_for
from gcodec.plan.plan import FramePlan
from gcodec.plan.request import EncodeRequest, FixedCodebooks
from gcodec.tensors import values_of
from tests.support import laws, reference
from tests.support.cases import (
    BITS_ONLY,
    CASES,
    KINDS,
    LARGE,
    MULTIPLES,
    SHORT,
    Case,
    block_of,
    every_case,
    every_case_and_mode,
    from_floats,
    gaussian,
    levels_at_random,
    modes,
    multiples,
    noise,
    promised,
    specials,
)
from tests.support.frame_builder import Draft, build_frame
from tests.support.paths import ROOT

short_cases = pytest.mark.parametrize("which", [which for which in CASES if which.name in SHORT], ids=str)
every_multiple = pytest.mark.parametrize("which", MULTIPLES, ids=str)
predicted_types = pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.predicted])
large_cases = pytest.mark.parametrize("which", LARGE, ids=str)
with_tail = pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.T])


def rng_of(which: Case) -> Random:
    """Return a generator that draws the same numbers for a case in every run."""
    return Random(zlib.crc32(str(which).encode()))


# The laws

@every_case_and_mode
def test_every_case_in_every_mode_round_trips_agrees_and_does_not_expand(which, mode):
    arguments = mode.arguments(which)
    want = promised(which.kind, which.bits, arguments)
    frame = laws.check_round_trip(which.array(), want, **arguments)
    laws.check_agreement(frame)
    laws.check_no_expansion(which.bits.shape, which.dtype, frame)


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
@every_case_and_mode
def test_truncated_frames_and_flipped_bits_of_every_case_are_refused(which, mode):
    frame = gcodec.encode(which.array(), **mode.arguments(which))
    laws.check_truncation(frame, rng_of(which), at_most=400)
    laws.check_bit_flips(frame, rng_of(which), at_most=1000)


# Predicted blocks

@every_multiple
def test_predicted_rows_round_trip_agree_and_do_not_expand(which):
    for mode in modes(which.dtype)[:4]:
        arguments = mode.arguments(which)
        frame = laws.check_round_trip(which.array(), promised(which.kind, which.bits, arguments), **arguments)
        laws.check_agreement(frame)
        laws.check_no_expansion(which.bits.shape, which.dtype, frame)


@every_multiple
def test_predicted_rows_obey_the_laws_of_buffers_threads_and_random_access(which):
    x = which.array()
    frame = gcodec.encode(x, **which.options)
    laws.check_encode_buffers(x, frame, **which.options)
    laws.check_decode_buffers(frame)
    laws.check_random_access(frame, rng_of(which))
    laws.check_threads(x, frame, **which.options)


@every_multiple
def test_truncated_frames_and_flipped_bits_of_predicted_rows_are_refused(which):
    frame = gcodec.encode(which.array(), **which.options)
    laws.check_truncation(frame, rng_of(which), at_most=300)
    laws.check_bit_flips(frame, rng_of(which), at_most=100)


def kinds_of(frame: bytes) -> set[int]:
    """Return the kinds of the blocks of a frame."""
    return {block[0] for block in Draft.of(frame, laws.SHIPPED).blocks}


def test_the_cases_of_predicted_rows_are_predicted():
    """All natures of rows are predicted in some type, and blocks of every kind stand next to each other."""
    found = {which: kinds_of(gcodec.encode(which.array(), **which.options)) for which in MULTIPLES}
    assert {which.name for which, kinds in found.items() if 3 in kinds} == {which.name for which in MULTIPLES}
    assert {0, 1, 2, 3} in found.values()


@every_multiple
def test_prediction_by_templates_can_be_turned_off(which):
    with_it, without = (gcodec.encode(which.array(), options=EncoderOptions(prediction=prediction), **which.options)
                        for prediction in (True, False))
    assert with_it == gcodec.encode(which.array(), **which.options)
    assert 3 not in kinds_of(without)
    assert without[14] == 0
    assert not Draft.of(without, laws.SHIPPED).templates
    laws.assert_same_bits(gcodec.decode(without), which.bits)
    # Of the same head: a wide one, which is slower, has to save a little more than prediction does.
    usual = (gcodec.encode(which.array(), **which.options,
                           options=EncoderOptions(prediction=prediction, wide_heads=False))
             for prediction in (True, False))
    assert len(next(usual)) <= len(next(usual))
    assert len(with_it) <= 1.008 * len(without)


@predicted_types
@pytest.mark.parametrize("shape", [(300, 33), (100, 128), (3, 40, 300), (40, 5000), (8, 20, 64)], ids=str)
def test_multiples_of_a_row_cost_little(dtype, shape):
    """Besides template and scales a value takes less than 2 bits, and where a value has more mantissa bits than a
    scale, the bits that the scale does not tell."""
    kind = KINDS[dtype]
    bits = multiples(kind, np.random.default_rng(1), shape)
    frame = gcodec.encode(as_type(bits, dtype), dtype=dtype)
    n_rows = bits.size // shape[-1]
    beside = 4 * shape[-1] + 3 * (n_rows + len(Draft.of(frame, {}).blocks)) + 256
    assert kinds_of(frame) == {3}
    assert 8 * (len(frame) - beside) <= (2 + max(0, kind.M - 15)) * bits.size
    other = bits.reshape(-1)
    assert 3 not in kinds_of(gcodec.encode(as_type(other, dtype), dtype=dtype))         # flat, it has no rows


def test_rounded_multiples_of_a_row_are_predicted_exactly():
    """The rounding errors of bfloat16 rows average out in a template, so that next to no value is missed. Beside scales
    and template, 1 bit per value is the least that a code can take."""
    rng = np.random.default_rng(7)
    row, scales = rng.standard_normal(256).astype(np.float32), rng.uniform(0.5, 2, (4096, 1)).astype(np.float32)
    frame = gcodec.encode(from_floats(KINDS["bfloat16"], scales * row), dtype="bfloat16")
    assert kinds_of(frame) == {3}
    assert 8 * (len(frame) - 3 * 4096 - 4 * 256) <= 1.1 * scales.size * row.size


@predicted_types
def test_predicted_blocks_have_no_say_in_the_codebooks_of_others(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(8)
    n = block_of(kind)
    others = np.concatenate([gaussian(kind, rng, n, scale=float(scale)) for scale in (1, 2, 8, 2)])
    records = []
    for exponent in (0, 3):
        rows = multiples(kind, rng, (16 * n // 128, 128), exponent=exponent)
        both = as_type(np.concatenate([others, rows.reshape(-1)]), dtype)
        frame = gcodec.encode(both, dtype=dtype, shapes=[others.shape, rows.shape])
        draft = Draft.of(frame, laws.SHIPPED)
        assert [block[0] for block in draft.blocks] == [2] * 4 + [3] * 16
        records.append(draft.records)
    assert records[0] == records[1]


@predicted_types
def test_frames_of_zeros_and_predicted_blocks_carry_no_codebook(dtype):
    kind = KINDS[dtype]
    n = block_of(kind)
    rows = multiples(kind, np.random.default_rng(9), (n // 64, 64))
    both = as_type(np.concatenate([np.zeros(n, kind.container), rows.reshape(-1)]), dtype)
    draft = Draft.of(gcodec.encode(both, dtype=dtype, shapes=[(n,), rows.shape]), laws.SHIPPED)
    assert [block[0] for block in draft.blocks] == [0, 3]
    assert not draft.records


@predicted_types
def test_a_bucket_encoded_with_the_shapes_of_its_tensors_is_smaller(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(2)
    tensors = [gaussian(kind, rng, 500), multiples(kind, rng, (120, 300)),
               gaussian(kind, rng, 40_000).reshape(200, 200), np.zeros((0, 5), kind.container),
               multiples(kind, rng, (4, 60, 160)), gaussian(kind, rng, 1)]
    flat, shapes = np.concatenate([bits.reshape(-1) for bits in tensors]), [bits.shape for bits in tensors]
    frame = laws.check_round_trip(as_type(flat, dtype), flat, dtype=dtype, shapes=shapes)
    laws.check_agreement(frame)
    laws.check_threads(as_type(flat, dtype), frame, dtype=dtype, shapes=shapes)
    assert len(Draft.of(frame, laws.SHIPPED).templates) == 2
    assert len(frame) < 0.9 * len(gcodec.encode(as_type(flat, dtype), dtype=dtype))
    whole = [bits for bits in tensors if bits.ndim > 1 and len(bits)]
    for bits in whole:      # the shape of the array itself, said or not
        x = as_type(bits, dtype)
        assert gcodec.encode(x, dtype=dtype, shapes=[bits.shape]) == gcodec.encode(x, dtype=dtype)


FLUSHING = """
import sys
import numpy as np
import torch
import gcodec
if torch.set_flush_denormal(True):
    print("flushing")
    for name in sys.argv[2:]:
        frame = open(f"{sys.argv[1]}/{name}", "rb").read()
        gcodec.decode(frame, like="numpy", threads=1).tofile(f"{sys.argv[1]}/{name}.out")
"""


def test_frames_decode_the_same_on_a_processor_that_flushes_denormals(tmp_path):
    """The mode is the thread's, so frames are decoded in a process of their own."""
    pytest.importorskip("torch")
    wanted = {}
    for seed in range(12):
        built = build_frame(Random(f"flush {seed}"), dtype=1 + seed % 3, n_values=1500, n_codebooks=0,
                            kinds=["predicted"], with_base=False)
        wanted[f"built-{seed}"] = built.frame, built.bits
    for i, which in enumerate(MULTIPLES):
        if which.name in ("multiples: denormal products", "multiples: zero rows and corners among them"):
            wanted[f"case-{i}"] = gcodec.encode(which.array(), **which.options), which.bits.reshape(-1)
    for name, (frame, _) in wanted.items():
        (tmp_path / name).write_bytes(frame)
    done = subprocess.run([sys.executable, "-c", FLUSHING, str(tmp_path), *wanted], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "flushing" not in done.stdout:
        pytest.skip("this processor has no such mode")
    for name, (_, bits) in wanted.items():
        found = np.frombuffer((tmp_path / f"{name}.out").read_bytes(), bits.dtype)
        assert np.array_equal(found, bits), name


@with_tail
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_fixed_mantissa_bits_keep_their_bound(dtype, rounding):
    kind, rng = KINDS[dtype], np.random.default_rng(1)
    largest = from_floats(kind, np.array([1.0])) * 0 + specials(kind)[9]       # just below infinity
    steps = np.arange(0, 300, dtype=kind.container)
    bits = np.concatenate([specials(kind), gaussian(kind, rng, 2000), largest - steps, steps,
                           rng.integers(0, 1 << 16, 2000).astype(kind.container) << kind.container.type(kind.W - 16)])
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


@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "bfloat16"]), st.integers(2, 12),
       st.sampled_from([None, 1, 5, 9, 14]), st.integers(1, 255), st.booleans())
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
    arguments = {"levels": levels_at_random(bits, len(drops)), "ladder": ladder, "dtype": dtype,
                 "rounding": data.draw(st.sampled_from(["nearest", "truncate"]))}
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    frame = laws.check_round_trip(x, promised(kind, bits, arguments), **arguments)
    laws.check_agreement(frame)


# Streams, and codebooks that have become stale: an escape covers what a codebook does not know

def as_type(bits, dtype):
    """Return what to give to ``encode``, with ``dtype``."""
    return bits if dtype in BITS_ONLY else bits.view(dtype)


def named_in(frame, carried):
    """Return the codebooks that a frame names by id, out of the records that earlier ones carried."""
    kind = reference.DTYPES[frame[5]]
    hashes = {reference.checksum(record, kind.H): record for record in carried}
    names = [frame[at + 4 : at + 16] for at in range(48, len(frame) - 16) if frame[at : at + 4] == b"\x01\0\0\0"]
    found = ((int.from_bytes(name[:4], "little"), int.from_bytes(name[4:], "little")) for name in names)
    return {name: hashes[name[1]] for name in found if name[1] in hashes}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("ladder", [False, True], ids=["lossless", "near-lossless"])
def test_stale_codebooks_of_a_stream_code_every_value(dtype, ladder):
    kind, rng = KINDS[dtype], np.random.default_rng(5)
    if ladder and not kind.T:
        return
    encoder, decoder = gcodec.Encoder(interval=10**9, trigger=1e9), gcodec.Decoder()
    typical = gaussian(kind, rng, 5000, zeros=0.1)
    mixed = np.concatenate([typical[:3000], gaussian(kind, rng, 200, scale=30.0), specials(kind)])
    arrays = [typical, gaussian(kind, rng, 3000, zeros=0.3, scale=0.02), mixed, noise(kind, rng, 700),
              np.zeros(300, kind.container), specials(kind), typical]
    carried: list[bytes] = []
    frames = []
    for bits in arrays:
        arguments = {"dtype": dtype}
        if ladder:
            levels = np.where(np.arange(len(bits)) % 20, 5, levels_at_random(bits, 8)).astype(np.uint8)
            arguments |= {"levels": levels, "ladder": FINE_LADDER[dtype]}
        frame = encoder.encode(as_type(bits, dtype), **arguments)
        frames.append(frame)
        known = named_in(frame, carried)
        laws.check_agreement(frame, known)
        carried += [record for record in Draft.of(frame, laws.SHIPPED | known).records if record[0] == 0]
        want = promised(kind, bits, arguments)
        laws.assert_kept(decoder.decode(frame), want, bits)
        laws.check_no_expansion(bits.shape, dtype, frame)
    assert len(carried) == 1                        # the first frame's, for all
    assert named_in(frames[-1], carried)
    assert len(frames[-1]) <= len(frames[0])
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(frames[-1]))
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.Decoder().decode(frames[-1]))


@pytest.mark.parametrize("dtype", KINDS)
def test_a_streams_codebook_suits_more_arrays_of_its_distribution(dtype):
    kind, rng, encoder = KINDS[dtype], np.random.default_rng(6), gcodec.Encoder()
    sizes = [len(encoder.encode(as_type(gaussian(kind, rng, 6000, zeros=0.1), dtype), dtype=dtype)) for _ in range(6)]
    assert max(sizes[1:]) <= 1.03 * sizes[0]


def steps_that_carry(encoder, scales):
    """Return the steps of a stream whose frames carry a codebook; all frames must decode."""
    kind, rng, decoder = KINDS["float32"], np.random.default_rng(1), gcodec.Decoder()
    found: list[int] = []
    carried: list[bytes] = []
    for step, scale in enumerate(scales):
        bits = np.concatenate([gaussian(kind, rng, 3000, scale=scale), gaussian(kind, rng, 3000, scale=0.01)])
        frame = encoder.encode(bits.view(np.float32))
        laws.assert_same_bits(decoder.decode(frame), bits)
        (record,) = Draft.of(frame, laws.SHIPPED | named_in(frame, carried)).records
        if record[0] == 0:
            found.append(step)
            carried.append(record)
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@given(st.integers(0, 2**32), st.integers(1, 130), st.sampled_from([0.0, 0.2, 0.9]))
def test_small_arrays_stored_without_a_plan_would_not_be_shorter_with_one(dtype, seed, n, zeros):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) if seed & 1 else 2.0 ** rng.integers(-2, 1, n)).astype(dtype)
    x[rng.random(n) < zeros] = 0
    frame = gcodec.encode(x)
    with patch.object(encode, "_MAX_BITS_TO_COUNT", 0):
        assert len(frame) <= len(gcodec.encode(x))


def test_streams_refresh_their_codebook():
    assert steps_that_carry(gcodec.Encoder(interval=3, trigger=1e9), [0.01] * 8) == [0, 3, 6]
    carrying = steps_that_carry(gcodec.Encoder(interval=1000, trigger=0.2), [0.01] * 3 + [1e-4] * 4)
    assert carrying[0] == 0
    assert 3 <= carrying[1] <= 4
    assert len(carrying) == 2


@pytest.mark.parametrize("types", [("float32", "bfloat16", "float32"), ("float64", "float32")], ids=", ".join)
def test_streams_may_change_type_and_mode(types):
    encoder, decoder = gcodec.Encoder(), gcodec.Decoder()
    rng = np.random.default_rng(2)
    for dtype in types:
        kind = KINDS[dtype]
        bits = gaussian(kind, rng, 2000)
        for arguments in ({}, {"mantissa_bits": 3}, {"levels": levels_at_random(bits, 8)}, {}):
            frame = encoder.encode(as_type(bits, dtype), dtype=dtype, **arguments)
            laws.assert_kept(decoder.decode(frame), promised(kind, bits, arguments), bits)


def test_streams_may_hold_empty_arrays_and_zeros():
    encoder, decoder = gcodec.Encoder(), gcodec.Decoder()
    for x in (np.zeros(0, np.float32), np.zeros(100, np.float32), np.zeros((), np.float32),
              np.linspace(0, 1, 4000, dtype=np.float32), np.zeros(100, np.float32), np.zeros((3, 0), np.float32)):
        laws.assert_same_bits(decoder.decode(encoder.encode(x)), x.view(np.uint32))


def test_streams_take_output_buffers_threads_rounding_and_limits():
    encoder = gcodec.Encoder(threads=1, rounding="truncate")
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    buffer = bytearray(gcodec.max_encoded_size(1000, "float32"))
    written = encoder.encode(x, mantissa_bits=5, out=buffer)
    out = np.empty(1000, np.float32)
    assert gcodec.Decoder().decode(written, out=out) is out
    assert (np.abs(out) <= np.abs(x)).all()
    laws.check_refused(LimitExceeded, lambda: gcodec.Decoder(max_output_bytes=3999).decode(bytes(written)))
    assert gcodec.Decoder(max_output_bytes=4000, like="numpy").decode(bytes(written)).size == 1000


def planned(bits: np.ndarray, dtype: str, options: EncoderOptions | None = None,
            given: FixedCodebooks | None = None) -> tuple[bytes, FramePlan]:
    """Return a lossless frame and the plan it was made by."""
    values = values_of(as_type(bits, dtype), dtype)
    steps, no_levels = bit_layouts.lossless(values.dtype), np.zeros(0, np.uint8)
    request = EncodeRequest(values, steps, no_levels, options or EncoderOptions(), threads=1, fixed=given)
    plan = plan_for(request)
    return bytes(encode_values(request, plan)), plan


def test_a_codebook_without_escape_falls_back_to_raw_blocks():
    rng = np.random.default_rng(6)
    kind = KINDS["float32"]
    few = np.resize(np.array([1.0, 2.0, 4.0, 2.0], np.float32), 1 << 11).view(np.uint32) + rng.integers(
        0, 1 << 20, 1 << 11, np.uint32)
    _, plan = planned(few, "float32")
    assert plan.codebooks
    assert not any(codebook.has_escape for codebook in plan.codebooks)      # all values were seen
    given = FixedCodebooks(plan.codebooks, plan.records, plan.references)
    other = np.concatenate([few, gaussian(kind, rng, 100, scale=1e10)])
    frame, _ = planned(other, "float32", given=given)
    laws.assert_same_bits(gcodec.decode(frame), other)
    laws.check_agreement(frame)


# What is promised besides

def test_the_same_call_gives_the_same_bytes():
    x = gaussian(KINDS["float32"], np.random.default_rng(7), 70_000).view(np.float32)
    assert len({gcodec.encode(x.copy()) for _ in range(3)}) == 1
    blocks = [frame[int.from_bytes(frame[32:40], "little") :] for frame in
              (gcodec.encode(x), gcodec.encode(x.reshape(700, 100)))]
    assert blocks[0] == blocks[1]


def test_frames_record_their_mode_and_container():
    x = np.linspace(-1, 1, 500, dtype=np.float32)
    levels = np.ones(500, np.uint8)
    assert [frame[6] for frame in (gcodec.encode(x), gcodec.encode(x, mantissa_bits=9), gcodec.encode(x, levels=levels))
            ] == [0, 1, 2]
    assert gcodec.encode(x)[7] == 0


@pytest.mark.parametrize("dtype", KINDS)
def test_frames_have_the_default_block_and_stream_sizes_of_the_page(dtype):
    kind = KINDS[dtype]
    frame = gcodec.encode(np.zeros(3, kind.container) if dtype in BITS_ONLY else np.zeros(3, dtype), dtype=dtype)
    assert 1 << frame[9] == block_of(kind)
    assert 1 << frame[10] == 256


def test_levels_of_non_finite_values_are_those_of_level_0():
    x = np.array([np.nan, np.inf, -np.inf, 1 + 2**-23, 0.0], np.float32)
    x.view(np.uint32)[0] = 0x7F800001
    rounded = EncoderOptions(exact_if_smaller=False)
    frame = gcodec.encode(x, levels=np.full(5, 3, np.uint8), ladder=PAPER_LADDER["float32"], options=rounded)
    decoded = gcodec.decode(frame)
    assert decoded.view(np.uint32).tolist() == [0x7F800001, 0x7F800000, 0xFF800000, 0x3F800000, 0]


def test_near_lossless_mode_prunes_denormals_and_other_modes_do_not():
    x = np.array([-0.0, 1e-45, -1e-39, 0.0, 1.0], np.float32)
    rounded = EncoderOptions(exact_if_smaller=False)
    kept = gcodec.decode(gcodec.encode(x, levels=np.zeros(5, np.uint8), options=rounded))
    assert kept.view(np.uint32).tolist() == [0, 0, 0, 0, 0x3F800000]
    for frame in (gcodec.encode(x), gcodec.encode(x, mantissa_bits=22)):
        assert np.signbit(gcodec.decode(frame)).tolist() == [True, False, True, False, False]


def test_encode_with_an_optimizer_uses_the_levels_of_its_rule():
    from gcodec.truncation.optimizers import levels_for, view_from_dump

    rng = np.random.default_rng(8)
    param, grad, buf = (rng.standard_normal((30, 50)).astype(np.float32) * scale for scale in (1, 1e-4, 1e-3))
    known = view_from_dump("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum_buffer": buf})
    for ladder in (None, PAPER_LADDER["float32"]):
        levels = levels_for(known, param, grad, ladder=ladder)
        assert len(np.unique(levels)) > 2
        frame = gcodec.encode(grad, optimizer=known, param=param, ladder=ladder)
        assert frame == gcodec.encode(grad, levels=levels, ladder=ladder)
        bits = grad.view(np.uint32)
        want = promised(KINDS["float32"], bits, {"levels": levels, "ladder": ladder})
        laws.assert_kept(gcodec.decode(frame), want, bits)


def test_encode_with_a_live_optimizer_is_lossy_within_bounds_and_changes_no_state():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(40, 30))
    optimizer = torch.optim.AdamW([param], lr=1e-3)
    for _ in range(3):
        param.grad = torch.randn(40, 30) * 1e-3
        optimizer.step()
    grad = torch.randn(40, 30) * 1e-3
    before = [t.clone() for t in (param, grad, *optimizer.state[param].values())]
    decoded = gcodec.decode(gcodec.encode(grad, optimizer=optimizer, param=param))
    assert all(torch.equal(a, b) for a, b in zip(before, (param, grad, *optimizer.state[param].values()), strict=True))
    assert decoded.shape == grad.shape
    assert ((decoded - grad).abs() <= grad.abs() / 4 * 1.0001).all()
    assert len(gcodec.encode(grad, optimizer=optimizer, param=param)) < len(gcodec.encode(grad))


def test_max_encoded_size_is_hardly_more_than_the_values():
    for dtype, kind in KINDS.items():
        for shape in (0, 1, 1000, (), (3, 0), (5, 7), (2**40,), (2**20, 2**20)):
            n = int(np.prod(shape, dtype=np.int64))
            size = gcodec.max_encoded_size(shape, dtype)
            assert n * kind.W // 8 <= size <= 1.0015 * n * kind.W // 8 + 256
    assert gcodec.max_encoded_size(10, "float32") == gcodec.max_encoded_size((10,), "float32")
    laws.check_refused(InvalidArgument, lambda: gcodec.max_encoded_size(10, "int32"))


# What is refused

X = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
LEVELS = np.zeros((2, 3), np.uint8)
BYTES = np.zeros(3, np.uint8)
READ_ONLY = np.zeros(1000, np.uint8)
READ_ONLY.setflags(write=False)


@cache
def frame_of_x():
    """Return the frame of ``X``."""
    return gcodec.encode(X)


def _view():
    from gcodec.truncation.optimizers import view_from_dump

    return view_from_dump("SGD", {"lr": 0.1}, {})


@pytest.mark.parametrize("call", [
    # types
    lambda: gcodec.encode(np.zeros(3, np.int32)),
    lambda: gcodec.encode(np.zeros(3, np.uint16)),
    lambda: gcodec.encode(np.zeros(3, bool)),
    lambda: gcodec.encode(np.zeros(3, np.complex64)),
    lambda: gcodec.encode(np.zeros(3, np.longdouble)),
    lambda: gcodec.encode(np.array(["a"])),
    lambda: gcodec.encode(np.array([None])),
    lambda: gcodec.encode(np.zeros(3, "f4,f4")),
    lambda: gcodec.encode("text"),
    lambda: gcodec.encode(b"bytes"),
    lambda: gcodec.encode(None),
    lambda: gcodec.encode([[1.0], [1.0, 2.0]]),
    lambda: gcodec.encode(np.zeros((1,) * 33, np.float32)),
    lambda: gcodec.encode(X, dtype="float64"),
    lambda: gcodec.encode(X, dtype="bfloat16"),
    lambda: gcodec.encode(X, dtype="int8"),
    lambda: gcodec.encode(X, dtype=""),
    lambda: gcodec.encode(np.zeros(3, np.uint32), dtype="bfloat16"),
    lambda: gcodec.encode(np.zeros(3, np.int16), dtype="bfloat16"),
    lambda: gcodec.encode(np.zeros(3, np.float16), dtype="bfloat16"),
    # modes
    lambda: gcodec.encode(X, mantissa_bits=0),
    lambda: gcodec.encode(X, mantissa_bits=-1),
    lambda: gcodec.encode(X, mantissa_bits=24),
    lambda: gcodec.encode(X, mantissa_bits=3.5),      # type: ignore[arg-type]
    lambda: gcodec.encode(X.astype(np.float16), mantissa_bits=11),
    lambda: gcodec.encode(X.astype(np.float64), mantissa_bits=53),
    lambda: gcodec.encode(np.zeros(3, np.uint16), dtype="bfloat16", mantissa_bits=8),
    lambda: gcodec.encode(np.zeros(3, np.uint8), dtype="float8_e5m2", mantissa_bits=1),
    lambda: gcodec.encode(np.zeros(3, np.uint8), dtype="float8_e5m2", levels=np.zeros(3, np.uint8)),
    lambda: gcodec.encode(BYTES, dtype="float8_e4m3fn", levels=BYTES, ladder=Ladder((0, 1))),
    lambda: gcodec.encode(X, rounding="up"),
    lambda: gcodec.encode(X, rounding=""),
    lambda: gcodec.encode(X, mantissa_bits=5, levels=LEVELS),
    lambda: gcodec.encode(X, mantissa_bits=5, optimizer=_view(), param=X),
    lambda: gcodec.encode(X, mantissa_bits=5, ladder=Ladder((0, 5))),
    lambda: gcodec.encode(X, ladder=Ladder((0, 5))),
    lambda: gcodec.encode(X, param=X),
    lambda: gcodec.encode(X, optimizer=_view()),
    lambda: gcodec.encode(X, optimizer=_view(), param=X, levels=LEVELS),
    lambda: gcodec.encode(X, optimizer=_view(), param=X[:1]),
    # levels
    lambda: gcodec.encode(X, levels=LEVELS[:1]),
    lambda: gcodec.encode(X, levels=np.zeros(7, np.uint8)),
    lambda: gcodec.encode(X, levels=LEVELS.astype(np.int64)),
    lambda: gcodec.encode(X, levels=LEVELS.astype(np.int8)),
    lambda: gcodec.encode(X, levels=LEVELS.astype(np.float32)),
    lambda: gcodec.encode(X, levels=LEVELS + 8),
    lambda: gcodec.encode(X, levels=LEVELS + 4, ladder=PAPER_LADDER["float32"]),
    lambda: gcodec.encode(X, levels=LEVELS + 1, ladder=Ladder((3,))),
    lambda: gcodec.encode(X, levels=LEVELS, ladder=Ladder((0, 24))),
    lambda: gcodec.encode(X, levels=LEVELS, ladder=Ladder((23,))),
    lambda: gcodec.encode(X, levels=LEVELS, ladder=Ladder(tuple(range(9)))),        # needs more planes than there are
    # options, threads, out
    lambda: gcodec.encode(X, shapes=[]),
    lambda: gcodec.encode(X, shapes=[(2, 2)]),
    lambda: gcodec.encode(X, shapes=[(2, 3), (1,)]),
    lambda: gcodec.encode(X, shapes=[(-2, -3)]),
    lambda: gcodec.encode(X, shapes=[(8,), (-2, 1)]),
    lambda: gcodec.encode(X, shapes=[(2**32, 2**32), (6,)]),
    lambda: EncoderOptions(max_length=1),
    lambda: EncoderOptions(max_length=13),
    lambda: EncoderOptions(max_codebooks=0),
    lambda: EncoderOptions(max_codebooks=256),
    lambda: EncoderOptions(escape_threshold=0),
    lambda: EncoderOptions(ladder="steep"),
    lambda: EncoderOptions(rounding="up"),
    lambda: gcodec.encode(X, threads=0),
    lambda: gcodec.encode(X, threads=-1),
    lambda: gcodec.encode(X, out=bytearray(10)),
    lambda: gcodec.encode(X, out=np.empty(0, np.uint8)),
    lambda: gcodec.encode(X, out=bytes(1000)),
    lambda: gcodec.encode(X, out=READ_ONLY),
    lambda: gcodec.encode(X, out=np.empty(2000, np.uint8)[::2]),
    lambda: gcodec.encode(X, out=[0] * 1000),
    lambda: gcodec.encode(X, out=1000),
    # decode
    lambda: gcodec.decode(frame_of_x(), threads=0),
    lambda: gcodec.decode(frame_of_x(), like="x"),
    lambda: gcodec.decode(frame_of_x(), like=""),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(5, np.float32)),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(7, np.float32)),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(6, np.float64)),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(6, np.int32)),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(6, np.uint32)),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(6, ">f4")),
    lambda: gcodec.decode(frame_of_x(), out=np.empty(12, np.float32)[::2]),
    lambda: gcodec.decode(frame_of_x(), out=np.empty((2, 3), np.float32, order="F")),
    lambda: gcodec.decode(frame_of_x(), out=READ_ONLY[:24].view(np.float32)),
    lambda: gcodec.decode(frame_of_x(), out=bytearray(24)),
    lambda: gcodec.decode(frame_of_x(), out=[0.0] * 6),
    lambda: gcodec.decode("text"),
    lambda: gcodec.decode(None),
    lambda: gcodec.decode(17),
    lambda: gcodec.decode([0] * 100),
    lambda: gcodec.decode(np.frombuffer(frame_of_x(), np.uint8)[::2]),
    lambda: gcodec.decode_range(frame_of_x(), -1, 2),
    lambda: gcodec.decode_range(frame_of_x(), 0, 7),
    lambda: gcodec.decode_range(frame_of_x(), 3, 2),
    lambda: gcodec.decode_range(frame_of_x(), 0, 2, like="x"),
    lambda: gcodec.decode_range(frame_of_x(), 0, 2, threads=0),
    lambda: gcodec.max_encoded_size(-1, "float32"),
    lambda: gcodec.max_encoded_size((2, -3), "float32"),
    lambda: gcodec.max_encoded_size((1,) * 33, "float32"),
    # streams
    lambda: gcodec.Encoder(rounding="up"),
    lambda: gcodec.Encoder(interval=0).encode(X),
    lambda: gcodec.Encoder(trigger=0.0).encode(X),
    lambda: gcodec.Encoder(threads=0).encode(X),
    lambda: gcodec.Encoder().encode(X, levels=LEVELS, mantissa_bits=3),
    lambda: gcodec.Encoder().encode(np.zeros(3, np.int32)),
    lambda: gcodec.Encoder().encode(X, out=bytearray(3)),
    lambda: gcodec.Decoder(like="x").decode(frame_of_x()),
    lambda: gcodec.Decoder().decode(frame_of_x(), out=bytearray(24)),
    lambda: gcodec.inspect("text"),
], ids=lambda call: getline(__file__, call.__code__.co_firstlineno).split("lambda: ")[1].split("  #")[0].strip(" ,\n"))
def test_senseless_arguments_raise_InvalidArgument(call):
    with pytest.raises(InvalidArgument):
        call()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_level_beyond_the_ladder_is_refused_wherever_it_stands(dtype):
    bits = {"float64": np.uint64, "float32": np.uint32}.get(dtype, np.uint16)
    n = (1 << 18) + 77
    x, levels = np.random.default_rng(3).integers(0, 1 << 14, n).astype(bits), np.ones(n, np.uint8)
    ladder = Ladder((0, 3, 6))
    for place in (0, 16384, n // 2, n - 1):
        for level in (3, 64, 255):
            levels[place] = level
            for threads in (1, 2):
                with pytest.raises(InvalidArgument, match=f"levels must be at most 2 in a ladder of 3, not {level}"):
                    gcodec.encode(x, dtype=dtype, levels=levels, ladder=ladder, threads=threads)
            levels[place] = 1
    some = gcodec.encode(x[:5], dtype=dtype, levels=levels[:5], ladder=ladder)
    assert gcodec.decode(some).size == 5
    with pytest.raises(InvalidArgument, match="levels must be at most 2 in a ladder of 3, not 3"):
        gcodec.encode(x[:5], dtype=dtype, levels=levels[:5] + 2, ladder=ladder)



def test_invalid_arguments_are_value_errors_and_all_errors_are_of_one_family():
    assert issubclass(InvalidArgument, ValueError)
    for kind in (InvalidArgument, gcodec.Corruption, gcodec.InsufficientData, gcodec.Unsupported, LimitExceeded):
        assert issubclass(kind, gcodec.GcodecError)


def test_an_error_leaves_the_output_of_encode_alone():
    out = bytearray(b"\xA5" * 1000)
    laws.check_refused(InvalidArgument, lambda: gcodec.encode(X, mantissa_bits=99, out=out))
    assert out == b"\xA5" * 1000


@pytest.mark.parametrize("limit", [0, 23])
def test_output_above_the_callers_limit_is_refused(limit):
    with pytest.raises(LimitExceeded):
        gcodec.decode(frame_of_x(), max_output_bytes=limit)
    with pytest.raises(LimitExceeded):
        gcodec.decode(frame_of_x(), max_output_bytes=limit, out=np.empty(6, np.float32))
    with pytest.raises(LimitExceeded):
        gcodec.decode_range(frame_of_x(), 0, 6, max_output_bytes=limit)
    assert np.array_equal(gcodec.decode(frame_of_x(), max_output_bytes=24), X)
    assert np.array_equal(gcodec.decode_range(frame_of_x(), 1, 3, max_output_bytes=8), X.reshape(-1)[1:3])


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    for start in (b"", b"\x89GCF", b"\x89GCF\x01\x01"):
        assert laws.outcome(start + data) in ("insufficient", "corruption", "unsupported")


@pytest.mark.parametrize("which", [
    Case("float32", "runs of equal sub-streams"), Case("bfloat16", "spread by block"), Case("float64", "empty"),
    Case("float8_e5m2", "0-d"), Case("float16", "blocks of zeros"),
    Case("bfloat16", "multiples: blocks of noise among them"),
], ids=str)
def test_inspect_describes_what_a_frame_holds(which):
    for mode in modes(which.dtype):
        frame = gcodec.encode(which.array(), **mode.arguments(which))
        draft, info = Draft.of(frame, laws.SHIPPED), gcodec.inspect(frame)
        assert (info.dtype, info.shape, info.n_values) == (which.dtype, which.bits.shape, which.bits.size)
        assert info.mode == ("lossless", "fixed", "near-lossless")[draft.mode]
        assert info.container == "numpy"
        assert info.frame_bytes == len(frame)
        assert info.value_bytes == which.bits.nbytes
        assert info.prelude_bytes == len(frame) - sum(map(len, draft.blocks))
        assert info.levels == tuple(drop for drop, _ in draft.levels)
        assert info.planes == draft.planes
        assert info.n_codebooks == len(draft.records)
        assert info.n_blocks == len(draft.blocks) == sum(info.kinds.values())
        for number, name in enumerate(("constant", "raw", "coded", "predicted", "sparse")):
            assert info.kinds[name] == sum(block[0] == number for block in draft.blocks)
        assert info.ratio == which.bits.nbytes / len(frame)
        assert gcodec.inspect(frame + b"more") == info
        described = json.loads(json.dumps(info.as_dict()))
        assert described["bits_per_value"] == info.bits_per_value


def test_inspect_refuses_what_is_no_frame():
    laws.check_refused(gcodec.InsufficientData, lambda: gcodec.inspect(frame_of_x()[:-1]))
    laws.check_refused(gcodec.Corruption, lambda: gcodec.inspect(b"x" * 100))


def test_warmup_takes_names_of_types_only():
    gcodec.warmup(["float32"])
    gcodec.warmup([])
    laws.check_refused(InvalidArgument, lambda: gcodec.warmup(["int8"]))


def test_literal_gcomp_brings_its_ladder_and_truncates():
    x = gaussian(KINDS["float32"], np.random.default_rng(9), 5000).view(np.float32)
    levels = levels_at_random(x.view(np.uint32), 4)
    frame = gcodec.encode(x, levels=levels, options=LITERAL_GCOMP)
    assert frame == gcodec.encode(x, levels=levels, options=LITERAL_GCOMP, ladder=PAPER_LADDER["float32"],
                                  rounding="truncate")
    assert gcodec.encode(x, mantissa_bits=5, options=LITERAL_GCOMP) == gcodec.encode(
        x, mantissa_bits=5, options=LITERAL_GCOMP, rounding="truncate")
    assert frame != gcodec.encode(x, levels=levels, options=LITERAL_GCOMP, rounding="nearest")


def test_literal_gcomp_has_one_codebook_of_short_codes():
    x = np.concatenate([gaussian(KINDS["float32"], np.random.default_rng(n), 1 << 14, scale=10.0**n) for n in range(4)])
    frame = gcodec.encode(x.view(np.float32), options=LITERAL_GCOMP)
    _, plan = planned(x, "float32", LITERAL_GCOMP)
    assert frame[11] == len(plan.codebooks) == 1
    assert max(plan.codebooks[0].lengths) <= 11
    assert not plan.references


@pytest.mark.parametrize("n_values", [100, 20_000, 600_000])
def test_encode_writes_nothing_behind_the_room_for_a_frame(n_values):
    mantissas = np.random.default_rng(1).integers(0, 1 << 32, n_values, np.uint32)  # hardly anything to save
    values = (mantissas & np.uint32(0xF8FFFFFF)).view(np.float32)
    room = gcodec.max_encoded_size(n_values, "float32")
    out = np.full(room + (1 << 19), 0xAB, np.uint8)
    for threads in (1, 2):
        frame = gcodec.encode(values, out=out, threads=threads)
        assert np.array_equal(gcodec.decode(frame).view(np.uint32), values.view(np.uint32))
        assert (out[room:] == 0xAB).all()
