"""The law of planning: the bytes of a frame depend on the array, the options and the version, and on nothing else."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

import gcodec
from gcodec import memory
from gcodec.plan.profile import spread_places

#: Ends of sub-streams and blocks, and the sizes from which other heads, rows, samples and threads are considered: all
#: of them of float32, some of the other types, which are planned by the same steps.
SIZES = (
    1,
    2,
    3,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    255,
    256,
    257,
    1023,
    1024,
    1025,
    4095,
    4096,
    16_384,
    16_385,
    32_769,
    70_001,
    1 << 18,
)
OTHER_SIZES = (1, 8, 17, 33, 65, 257, 1024, 4096, 16_385, 40_001)
CASES = [("float32", n) for n in SIZES]
CASES += [(dtype, n) for dtype in ("bfloat16", "float16", "float64") for n in OTHER_SIZES]


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
    yield (
        "mostly NaNs of odd bits, some short",
        np.where(
            rng.random(n) < 0.6, 0x7FC00001, normal.view("u4") & np.where(rng.random(n) < 0.3, 0xFFFFFF00, 0xFFFFFFFF)
        )
        .astype("u4")
        .view("f4"),
    )


def kinds(dtype: str, n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of a type that are planned in different ways, as ``gcodec.encode`` takes them, by name."""
    if dtype == "float32":
        yield from arrays(n)
    elif dtype == "float64":
        for name, values in arrays(n):
            with np.errstate(invalid="ignore"):
                yield name, values.astype(np.float64)
    else:
        for name, bits in halves(dtype, n):
            yield name, bits if dtype == "bfloat16" else bits.view(np.float16)


def with_shares(n: int, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield arrays of float32 that have each value with a meaning at shares up to a tenth, about the planner's limits,
    by name."""
    rng = np.random.default_rng((n, seed))
    normal, at = rng.standard_normal(n, np.float32), rng.random(n)
    values = {"0": 0.0, "-0": -0.0, "NaN": np.nan, "infinity": -np.inf, "a small one": 1e-30, "one": 1.0}
    for share in (0.004, 0.015, 0.03, 0.045, 0.07, 0.1):
        for name, value in values.items():
            yield f"{share} {name}", np.where(at < share, np.float32(value), normal)
        short = (normal.view(np.uint32) & np.uint32(0xFFFFFF80)).view(np.float32)
        yield f"{share} short", np.where(at < share, short, normal)


def frames_of(values: np.ndarray, dtype: str) -> Iterator[tuple[str, bytes]]:
    """Yield the frame of an array as it comes out in situations that must not matter, by name."""
    yield "again", gcodec.encode(values, dtype=dtype)
    yield "options that say what is usual", gcodec.encode(values, dtype=dtype, options=gcodec.EncoderOptions())
    for threads in (1, 2, 3):
        yield f"{threads} threads", gcodec.encode(values, dtype=dtype, threads=threads)
    read_only = values.copy()
    read_only.flags.writeable = False
    yield "read-only", gcodec.encode(read_only, dtype=dtype)
    apart = np.zeros((values.size, 2), values.dtype)
    apart[:, 0] = values
    yield "not contiguous", gcodec.encode(apart[:, 0], dtype=dtype)
    for room in (gcodec.max_encoded_size(values.size, dtype), 2 << 20):
        yield f"into {room} bytes", bytes(gcodec.encode(values, dtype=dtype, out=bytearray(room)))
    with patch.dict(memory._pool, clear=True):
        yield "without memory of earlier calls", gcodec.encode(values, dtype=dtype)


@pytest.mark.parametrize(("dtype", "n"), CASES)
def test_frames_depend_on_nothing_but_the_array(dtype, n):
    for name, values in kinds(dtype, n):
        expected = gcodec.encode(values, dtype=dtype)
        assert gcodec.decode(expected, like="numpy").tobytes() == values.tobytes(), name
        for situation, frame in frames_of(values, dtype):
            assert frame == expected, (name, situation)
        assert gcodec.encode(values, dtype=dtype, out=bytearray(len(expected))) == expected, name


@pytest.mark.parametrize("n", [1000, 4096, 20_000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_frames_of_arrays_about_the_limits_of_the_planner_depend_on_nothing_but_the_array(dtype, n):
    for name, values in with_shares(n, 1):
        given = values
        if dtype == "bfloat16":
            given = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        elif dtype == "float16":
            given = values.astype(np.float16)
        expected = gcodec.encode(given, dtype=dtype)
        assert gcodec.decode(expected, like="numpy").tobytes() == given.tobytes(), name
        for threads in (1, 2):
            assert gcodec.encode(given, dtype=dtype, threads=threads) == expected, (name, threads)
        with patch.dict(memory._pool, clear=True):
            assert gcodec.encode(given, dtype=dtype) == expected, name


@pytest.mark.parametrize(("n", "step"), [(300_001, 2), (1_700_000, 5)])  # some of more blocks than MAX_CLUSTERED
def test_longer_frames_depend_on_nothing_but_the_array(n, step):
    for k, dtype in enumerate(("float32", "bfloat16", "float16")):
        for name, values in list(kinds(dtype, n))[k % step :: step]:
            values[100_000:180_000] = 0  # blocks of zeros among others
            expected = gcodec.encode(values, dtype=dtype, threads=1)
            for threads in (2, 3):
                assert gcodec.encode(values, dtype=dtype, threads=threads) == expected, (dtype, name, threads)
            into = gcodec.encode(values, dtype=dtype, out=bytearray(len(expected)), threads=2)
            assert into == expected, (dtype, name)
            assert gcodec.decode(expected, like="numpy").tobytes() == values.tobytes(), (dtype, name)


def digests() -> dict[str, str]:
    """Return digests of frames, by what they are of."""
    found = {}
    for n in (5, 1000, 5000, 40_000, 300_000):
        for dtype in ("float32", "bfloat16", "float16"):
            for name, values in list(kinds(dtype, n))[:: 1 if n < 300_000 else 5]:
                found[f"{name} {dtype} {n}"] = hashlib.sha256(gcodec.encode(values, dtype=dtype)).hexdigest()
    return found


@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_another_process_writes_the_same_frames(way):
    with multiprocessing.get_context(way).Pool(1) as pool:
        assert pool.apply_async(digests).get(300) == digests()


@pytest.mark.slow
def test_a_process_that_compiles_every_kernel_writes_the_same_frames(tmp_path):
    code = "from tests.plan.test_frames_depend_on_arrays import digests; import json; print(json.dumps(digests()))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == digests()


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
