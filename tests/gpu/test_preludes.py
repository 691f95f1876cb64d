"""Preludes of a batch, which are read all at once where they are alike."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.frame.encode import encode_values
from gcodec.gpu import preludes
from gcodec.gpu.encoder import SharedCodebook, plan_of
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import values_of
from tests.gpu.cuda_memory import HostMemory
from tests.gpu.native_laws.law_table import CODING

MEMORY: Any = HostMemory({})


def frames_of(n: int, n_frames: int, names_codebook: bool) -> list[np.ndarray]:
    """Return the frames that a device makes of equal tensors of ``n`` values with one codebook, carried or named."""
    rng, frames = np.random.default_rng(n), []
    for number in range(n_frames):
        values = values_of(rng.standard_normal(n).astype(np.float32) * 2.0**number)
        number_of_book, book = next(iter(shipped.fitting("float32", 1)))
        record = book.reference(number_of_book) if names_codebook else book.record
        plan = plan_of(values.dtype, -(-n >> 14), SharedCodebook(book, record, True))
        request = EncodeRequest(values, bit_layouts.lossless(values.dtype), np.zeros(0, np.uint8), CODING, True, 1)
        frames.append(np.frombuffer(bytearray(encode_values(request, plan)), np.uint8))
    return frames


def outcome(parsed: Any) -> Any:
    """Return what was parsed, or the error, so that it can be compared."""
    try:
        result = parsed()
    except gcodec.GcodecError as error:
        return type(error), str(error)
    return [(frame.prelude, frame.sizes.tolist(), frame.offsets.tolist()) for frame in result]


@pytest.mark.parametrize("names_codebook", [False, True])
@pytest.mark.parametrize("n", [1, 300, 40_000, 2_000_000])
def test_alike_preludes_are_read_as_each_one_alone(n: int, names_codebook: bool) -> None:
    frames = frames_of(n, 3, names_codebook)
    assert preludes._parse_alike(frames, frames, list(map(len, frames)), None)
    expected = outcome(lambda: [preludes.parse(MEMORY, [frame])[0] for frame in frames])
    assert outcome(lambda: preludes.parse(MEMORY, frames)) == expected


def test_damage_is_found_as_in_one_frame_alone() -> None:
    frames, rng, refused = frames_of(40_000, 4, False), Random(1), 0
    start = preludes.parse(MEMORY, frames)[0].prelude.prelude_bytes
    for at in [*range(start), *rng.choices(range(start, len(frames[0])), k=20)]:
        number = rng.randrange(len(frames))
        spoilt = [frame.copy() for frame in frames]
        spoilt[number][at] ^= 1 << rng.randrange(8)
        expected = outcome(lambda: [preludes.parse(MEMORY, [frame])[0] for frame in spoilt])  # noqa: B023 (runs now)
        assert outcome(lambda: preludes.parse(MEMORY, spoilt)) == expected, at  # noqa: B023 (runs now)
        refused += isinstance(expected, tuple)
    assert refused == start
    short = [*frames[:3], frames[3][:-8]]
    assert outcome(lambda: preludes.parse(MEMORY, short))[0] is gcodec.InsufficientData
