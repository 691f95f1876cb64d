"""The laws of small frames: one kernel plans them, and the bytes are those of planning step by step."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

import gcodec
from gcodec.frame import encode as encoding
from gcodec.frame.small_frames import SmallFrameWriter, plan_small
from gcodec.plan.request import EncodeRequest
from gcodec.plan.unused_bits import spread_places

SIZES = (*range(1, 81), 100, 1000, 4095, 4096, 16_384, 16_385, 32_769, 100_003, 1 << 18)


def halves(name: str, n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of a type of 16 bits that are planned in different ways, as unsigned integers, by name."""
    rng = np.random.default_rng(n)
    for case, values in arrays(n):
        with np.errstate(all="ignore"):
            if name == "bfloat16":
                bits = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            else:
                bits = values.astype(np.float16).view(np.uint16)
        yield case, bits
    yield "any bits of 16", rng.integers(0, 1 << 16, n).astype(np.uint16)
    yield "short", rng.integers(0, 1 << 16, n).astype(np.uint16) & np.uint16(0xFFFC)
    yield "some short", np.where(rng.random(n) < 0.3, np.uint16(0x3C00), rng.integers(0, 1 << 16, n).astype(np.uint16))


def arrays(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of float32 that are planned in different ways, by name."""
    rng = np.random.default_rng(n)
    normal = rng.standard_normal(n, np.float32)
    yield "normal", normal
    yield "scales of sub-streams", normal * np.exp2(np.repeat(rng.integers(-9, 9, n // 256 + 1), 256)[:n]).astype("f4")
    yield "scales of blocks", normal * np.exp2(9 * (np.arange(n) >> 14) % 40).astype("f4")
    yield "a third of zeros", np.where(rng.random(n) < 0.3, 0, normal)
    yield "a half of zeros", np.where(np.arange(n) < n // 2, 0, normal)
    yield "uniform, which a wide head suits", rng.uniform(0.1, 0.9, n).astype("f4")
    yield "bfloat16", (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view("f4")
    yield "any bits", rng.integers(0, 1 << 32, n, np.uint64).astype(np.uint32).view("f4")
    yield "constant", np.full(n, 1.1, "f4")
    yield "zeros", np.zeros(n, "f4")
    chance = normal.view(np.uint32).copy()
    chance[spread_places(n, 64)[::2]] &= np.uint32(0xFFFFFFF0)
    yield "short by chance where one looks first", chance.view("f4")
    special = normal.copy()
    special[::7], special[3::101], special[5::97], special[1::31] = 1e30, np.nan, -np.inf, 1e-42
    yield "infinities, NaNs, denormals", special
    yield "mostly NaNs of odd bits, some short", np.where(
        rng.random(n) < 0.6, 0x7FC00001, normal.view("u4") & np.where(rng.random(n) < 0.3, 0xFFFFFF00, 0xFFFFFFFF)
    ).astype("u4").view("f4")


@pytest.mark.parametrize("n", SIZES)
def test_frames_are_the_same_as_planned_step_by_step(n):
    for name, values in arrays(n):
        with patch.object(encoding, "plan_small", return_value=None):
            expected = gcodec.encode(values)
        assert gcodec.encode(values) == expected, name
        assert gcodec.encode(values, options=gcodec.EncoderOptions()) == expected, name
        for room in (len(expected), gcodec.max_encoded_size(n, "float32"), 2 << 20):
            assert gcodec.encode(values, out=bytearray(room)) == expected, (name, room)
        decoded = gcodec.decode(expected)
        assert decoded.tobytes() == values.tobytes(), name


@pytest.mark.parametrize("n", [300_001, 1_700_000])  # of more blocks than codebooks are made from
def test_longer_frames_are_the_same_as_planned_step_by_step(n):
    for dtype in ("float32", "bfloat16", "float16"):
        for name, values in arrays(n) if dtype == "float32" else halves(dtype, n):
            values[100_000:180_000] = 0  # blocks of zeros among others
            values = values.view(np.float16) if dtype == "float16" else values
            with patch.object(encoding, "plan_small", return_value=None):
                expected = gcodec.encode(values, dtype=dtype)
            for threads in (1, 2):
                assert gcodec.encode(values, dtype=dtype, threads=threads) == expected, (dtype, name, threads)
            into = gcodec.encode(values, dtype=dtype, out=bytearray(len(expected)), threads=2)
            assert into == expected, (dtype, name)
            assert gcodec.decode(expected).tobytes() == values.tobytes(), (dtype, name)


@pytest.mark.parametrize("n", (*range(1, 33), 63, 64, 65, 100, 255, 256, 257, 512, 1000, 4095, 4096, *SIZES[-5:]))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_frames_of_16_bits_are_the_same_as_planned_step_by_step(dtype, n):
    for name, bits in halves(dtype, n):
        values = bits if dtype == "bfloat16" else bits.view(np.float16)
        with patch.object(encoding, "plan_small", return_value=None):
            expected = gcodec.encode(values, dtype=dtype)
        assert gcodec.encode(values, dtype=dtype) == expected, name
        assert gcodec.encode(values, dtype=dtype, out=bytearray(len(expected))) == expected, name
        assert gcodec.decode(expected).tobytes() == values.tobytes(), name


@pytest.mark.parametrize("n", [65, 4096, 1 << 18, 1_000_000])
def test_most_small_frames_are_planned_by_one_kernel(n):
    planned = [name for name, values in arrays(n) if _is_planned(values)]
    usual = {"normal", "scales of sub-streams", "a third of zeros", "short by chance where one looks first", "any bits"}
    assert usual <= set(planned)
    assert n > 1 << 18 or "constant" in planned
    assert "bfloat16" not in planned
    for dtype in ("bfloat16", "float16"):
        planned = [name for name, bits in halves(dtype, n) if _is_planned(bits, dtype)]
        assert {"normal", "a third of zeros", "any bits of 16"} <= set(planned)
        assert "short" not in planned


def _is_planned(values: np.ndarray, dtype: str = "float32") -> bool:
    plans: list[SmallFrameWriter | None] = []

    def noted(request: EncodeRequest, coded: bool = False) -> SmallFrameWriter | None:
        plans.append(plan_small(request, coded))
        return plans[-1]

    values = values.view(np.float16) if dtype == "float16" else values
    with patch.object(encoding, "plan_small", noted):
        gcodec.encode(values, dtype=dtype)
    return plans[0] is not None


@pytest.mark.parametrize("shape", [(20,), (1000,), (3, 5, 7), (300, 300), (1 << 18,)])
@pytest.mark.parametrize("value", [1.0, -0.0, np.nan, 1e-42])
def test_frames_of_equal_values_have_no_codebook(value, shape):
    values = np.full(shape, value, np.float32)
    frame = gcodec.encode(values)
    assert not gcodec.inspect(frame).codebooks
    assert gcodec.decode(frame).tobytes() == values.tobytes()


@pytest.mark.parametrize("n", [100, 5000, 1 << 18])
def test_a_buffer_that_is_too_small_for_a_small_frame_is_refused(n):
    for _, values in arrays(n):  # also where a frame without codebooks, which is not tried then, would be shorter
        size = len(gcodec.encode(values))
        for room in (0, 60, size // 2, size - 1):
            with pytest.raises(gcodec.InvalidArgument, match="too few"):
                gcodec.encode(values, out=bytearray(room))
