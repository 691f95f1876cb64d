"""Rows that are predicted from a template: the laws of the codec, what prediction saves, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import numpy as np
import pytest

import gcodec
from gcodec import EncoderOptions
from tests.support import laws
from tests.support.base_pairs import rng_of
from tests.support.bit_patterns import KINDS, block_of, from_floats, gaussian, multiples, typed
from tests.support.cases import MULTIPLES
from tests.support.encode_modes import modes, promised
from tests.support.frame_builder import Draft, build_frame
from tests.support.paths import ROOT

every_multiple = pytest.mark.parametrize("which", MULTIPLES, ids=str)
predicted_types = pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.predicted])


@every_multiple
def test_predicted_rows_round_trip_agree_and_do_not_expand(which):
    for number, mode in enumerate(modes(which.dtype)[:4]):
        arguments = mode.arguments(which)
        frame = laws.check_round_trip(which.array(), promised(which.kind, which.bits, arguments), **arguments)
        if which.bits.size < 50_000 or (MULTIPLES.index(which) + number) % 4 == 0:  # each mode is long in some type
            laws.check_agreement(frame)
        laws.check_no_expansion(which.bits.shape, which.dtype, frame)


@pytest.mark.slow
@every_multiple
def test_both_decoders_agree_on_predicted_rows_in_every_mode(which):
    for mode in modes(which.dtype):
        laws.check_agreement(gcodec.encode(which.array(), **mode.arguments(which)))


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
    """Rows of every nature are predicted in some type, and blocks of every kind stand next to each other."""
    found = {which: kinds_of(gcodec.encode(which.array(), **which.options)) for which in MULTIPLES}
    assert {which.name for which, kinds in found.items() if 3 in kinds} == {which.name for which in MULTIPLES}
    assert {0, 1, 2, 3} in found.values()


@every_multiple
def test_prediction_by_templates_can_be_turned_off(which):
    with_it, without = (
        gcodec.encode(which.array(), options=EncoderOptions(prediction=prediction), **which.options)
        for prediction in (True, False)
    )
    assert with_it == gcodec.encode(which.array(), **which.options)
    assert 3 not in kinds_of(without)
    assert without[14] == 0
    assert not Draft.of(without, laws.SHIPPED).templates
    laws.assert_same_bits(gcodec.decode(without), which.bits)
    # Of the same head: a wide one, which is slower, has to save a little more than prediction does.
    usual = (
        gcodec.encode(which.array(), **which.options, options=EncoderOptions(prediction=prediction, wide_heads=False))
        for prediction in (True, False)
    )
    assert len(next(usual)) <= len(next(usual))
    assert len(with_it) <= 1.008 * len(without)


@predicted_types
@pytest.mark.parametrize("shape", [(300, 33), (100, 128), (3, 40, 300), (40, 5000), (8, 20, 64)], ids=str)
def test_multiples_of_a_row_cost_little(dtype, shape):
    """Besides template and scales a value takes less than 2 bits, and where a value has more mantissa bits than a
    scale, the bits that the scale does not tell."""
    kind = KINDS[dtype]
    bits = multiples(kind, np.random.default_rng(1), shape)
    frame = gcodec.encode(typed(dtype, bits), dtype=dtype)
    n_rows = bits.size // shape[-1]
    beside = 4 * shape[-1] + 3 * (n_rows + len(Draft.of(frame, {}).blocks)) + 256
    assert kinds_of(frame) == {3}
    assert 8 * (len(frame) - beside) <= (2 + max(0, kind.M - 15)) * bits.size
    other = bits.reshape(-1)
    assert 3 not in kinds_of(gcodec.encode(typed(dtype, other), dtype=dtype))  # flat, it has no rows


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
        both = typed(dtype, np.concatenate([others, rows.reshape(-1)]))
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
    both = typed(dtype, np.concatenate([np.zeros(n, kind.container), rows.reshape(-1)]))
    draft = Draft.of(gcodec.encode(both, dtype=dtype, shapes=[(n,), rows.shape]), laws.SHIPPED)
    assert [block[0] for block in draft.blocks] == [0, 3]
    assert not draft.records


@predicted_types
def test_a_bucket_encoded_with_the_shapes_of_its_tensors_is_smaller(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(2)
    tensors = [
        gaussian(kind, rng, 500),
        multiples(kind, rng, (120, 300)),
        gaussian(kind, rng, 40_000).reshape(200, 200),
        np.zeros((0, 5), kind.container),
        multiples(kind, rng, (4, 60, 160)),
        gaussian(kind, rng, 1),
    ]
    flat, shapes = np.concatenate([bits.reshape(-1) for bits in tensors]), [bits.shape for bits in tensors]
    frame = laws.check_round_trip(typed(dtype, flat), flat, dtype=dtype, shapes=shapes)
    laws.check_agreement(frame)
    laws.check_threads(typed(dtype, flat), frame, dtype=dtype, shapes=shapes)
    assert len(Draft.of(frame, laws.SHIPPED).templates) == 2
    assert len(frame) < 0.9 * len(gcodec.encode(typed(dtype, flat), dtype=dtype))
    whole = [bits for bits in tensors if bits.ndim > 1 and len(bits)]
    for bits in whole:  # the shape of the array itself, said or not
        x = typed(dtype, bits)
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
        built = build_frame(
            Random(f"flush {seed}"),
            dtype=1 + seed % 3,
            n_values=1500,
            n_codebooks=0,
            kinds=["predicted"],
            with_base=False,
        )
        wanted[f"built-{seed}"] = built.frame, built.bits
    for i, which in enumerate(MULTIPLES):
        if which.name in ("multiples: denormal products", "multiples: zero rows and corners among them"):
            wanted[f"case-{i}"] = gcodec.encode(which.array(), **which.options), which.bits.reshape(-1)
    for name, (frame, _) in wanted.items():
        (tmp_path / name).write_bytes(frame)
    done = subprocess.run(
        [sys.executable, "-c", FLUSHING, str(tmp_path), *wanted], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if "flushing" not in done.stdout:
        pytest.skip("this processor has no such mode")
    for name, (_, bits) in wanted.items():
        found = np.frombuffer((tmp_path / f"{name}.out").read_bytes(), bits.dtype)
        assert np.array_equal(found, bits), name
