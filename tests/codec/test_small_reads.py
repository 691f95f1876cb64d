"""The laws of decoding small frames with few calls: the same values, and the same errors, as step by step."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

import gcodec
from gcodec import codec
from gcodec.archive.arrays import as_bytes
from gcodec.dtypes import DTYPES
from gcodec.frame.small_reads import MAX_SMALL_VALUES, SmallFrame, small_frame
from tests.fuzz.frames import seal_block, seal_prelude
from tests.plan.test_frames_depend_on_arrays import arrays
from tests.support.bit_patterns import KINDS, from_floats

Outcome = tuple[type[Exception], str] | bytes
RNG = np.random.default_rng(5)


def outcome(frame: bytes | bytearray | memoryview) -> Outcome:
    """Return the bytes that a frame decodes to, or its error."""
    try:
        decoded = gcodec.decode(frame)
    except gcodec.GcodecError as error:
        return type(error), str(error)
    kind = f"{type(decoded)} {decoded.dtype} {tuple(decoded.shape)}"
    return kind.encode() + as_bytes(decoded)[2].tobytes()


def step_by_step(frame: bytes | bytearray) -> Outcome:
    """Return the outcome without the few calls."""
    with patch.object(codec, "small_frame", return_value=None):
        return outcome(frame)


def is_read_whole(frame: bytes | bytearray) -> bool:
    """Return True if a frame is decoded with few calls."""
    small = small_frame(frame)
    return small is not None and small.decode(np.empty(small.n_values, small.dtype.uint))


def frames_of_type(name: str, n: int) -> Iterator[bytes]:
    """Yield frames of a type, of which the most usual comes first."""
    kind = KINDS[name]
    for scale in (1.0, 1e-3):
        yield gcodec.encode(from_floats(kind, RNG.standard_normal(n) * scale), dtype=name)
    spread = RNG.standard_normal(n) * np.exp2(3 * (np.arange(n) >> 14) % 20)
    yield gcodec.encode(from_floats(kind, spread), dtype=name)
    yield gcodec.encode(from_floats(kind, np.where(RNG.random(n) < 0.3, 0, spread)), dtype=name)
    yield gcodec.encode(from_floats(kind, np.full(n, 1.5)), dtype=name)
    yield gcodec.encode(RNG.integers(0, 1 << min(kind.W, 63), n, np.uint64).astype(kind.container), dtype=name)


@pytest.mark.parametrize("n", [1, 8, 70, 300, 4096, 16_385, 100_003, MAX_SMALL_VALUES])
@pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES])
def test_values_are_those_of_decoding_step_by_step(name, n):
    for number, frame in enumerate(frames_of_type(name, n)):
        assert outcome(frame) == outcome(memoryview(frame)) == step_by_step(frame), number
        assert number or is_read_whole(frame)
        assert outcome(frame + b"behind it") == outcome(frame)


@pytest.mark.parametrize("n", [64, 100, 1000, 16_384, 100_003])
def test_frames_of_all_plans_of_float32_decode(n):
    for name, values in arrays(n):
        frame = gcodec.encode(values)
        out = np.empty_like(values)
        assert gcodec.decode(frame, out=out) is out and out.tobytes() == values.tobytes(), name
        assert gcodec.decode(frame).tobytes() == values.tobytes(), name
        assert gcodec.decode(frame, like="numpy", threads=2, max_output_bytes=4 * n).tobytes() == values.tobytes(), name


def test_codebooks_of_one_frame_are_not_taken_for_those_of_another():
    frames: list[tuple[bytes, np.ndarray]] = []
    for number in range(40):
        n = (300, 2000, 20_000)[number % 3]
        values = (RNG.standard_normal(n) * np.exp(RNG.standard_normal(n) * (number % 4))).astype(np.float32)
        halves = RNG.standard_normal(n).astype(np.float16)
        frames += [(gcodec.encode(values), values), (gcodec.encode(halves), halves)]
    for number in Random(1).choices(range(len(frames)), k=200):
        frame, values = frames[number]
        assert gcodec.decode(frame).tobytes() == values.tobytes()


def damaged(frame: bytes, dice: Random, n_values: int) -> Iterator[bytearray]:
    """Yield a frame with each byte of its prelude altered in up to ``n_values`` of three ways, and some of its blocks;
    all checksums are right again, but for some."""
    prelude_bytes = int.from_bytes(frame[32:40], "little")
    for at in range(prelude_bytes):
        values = sorted({0, frame[at] ^ 1, dice.randrange(256)} - {frame[at]})
        for value in dice.sample(values, min(n_values, len(values))):
            changed = bytearray(frame)
            changed[at] = value
            if at not in range(32, 48):  # a prelude of another size may have no place for a sum
                seal_prelude(changed, prelude_bytes)
            yield changed
    for at in dice.choices(range(prelude_bytes, len(frame)), k=40):
        changed = bytearray(frame)
        changed[at] ^= 1 << dice.randrange(8)
        if len(changed) < 16_000 and dice.random() < 0.8:  # one block
            changed[prelude_bytes:] = seal_block(changed[prelude_bytes:], 0)
        yield changed
    for n in (0, 7, 47, 48, 60, prelude_bytes - 1, prelude_bytes, len(frame) - 8, len(frame) - 1):
        yield bytearray(frame[:n])


@pytest.mark.parametrize("n_values", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [dtype.name for dtype in DTYPES])
def test_damaged_frames_have_the_outcome_of_decoding_step_by_step(name, n_values):
    for n in (3, 700, 17_000):
        for which, frame in enumerate(frames_of_type(name, n)):
            expected = outcome(frame)
            for number, changed in enumerate(damaged(frame, Random(f"{name} {n} {which}"), n_values)):
                assert outcome(changed) == step_by_step(changed), number
            assert outcome(frame) == expected


def test_arguments_are_checked_as_step_by_step():
    frame = gcodec.encode(np.ones(50, np.float32) * np.arange(50, dtype=np.float32))
    assert is_read_whole(frame)
    for arguments in (
        {"like": "jax"},
        {"threads": 0},
        {"max_output_bytes": 199},
        {"max_output_bytes": "many"},
        {"out": np.empty(49, np.float32)},
        {"out": np.empty(50)},
        {"out": [0.0] * 50},
    ):
        errors = []
        for small in (small_frame, lambda data: None):
            with patch.object(codec, "small_frame", small), pytest.raises(gcodec.GcodecError) as raised:
                gcodec.decode(frame, **arguments)
            errors.append((raised.type, str(raised.value)))
        assert errors[0] == errors[1]
    for data in ("text", None, 3, [1, 2], b""):
        with pytest.raises(gcodec.GcodecError):
            gcodec.decode(data)


def test_other_frames_are_left_to_the_steps():
    values = RNG.standard_normal((300, 200)).astype(np.float32)
    assert not is_read_whole(gcodec.encode(values, mantissa_bits=7))
    assert not is_read_whole(gcodec.encode(values.astype(np.float32), base=values))
    assert small_frame(gcodec.encode(np.zeros(MAX_SMALL_VALUES + 1, np.float32))) is None
    assert isinstance(small_frame(gcodec.encode(values[0])), SmallFrame)
