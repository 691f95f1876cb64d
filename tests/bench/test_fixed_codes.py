"""The sketch of fixed-length codes whose instructions are counted, run by the host: its arrays come back, its sizes are
those that are counted, and damage is found."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

from bench.experiments import fixed_codes
from gcodec.dtypes import BY_NAME
from gcodec.kernels.cuda.nvrtc import SOURCE
from tests.gpu.host_library import TRAPS, library_of
from tests.support.paths import ROOT

BLOCK = fixed_codes.BLOCK
HERE = ROOT / "tests" / "gpu"
WIDTHS = {"bfloat16": 2, "float32": 4}
#: Words of a block: header, codes, tails; then escapes.
ROOM = {"bfloat16": 8 + BLOCK // 8 + BLOCK // 4, "float32": 8 + BLOCK // 8 + BLOCK // 4 + BLOCK // 2}

TEXT = """
#define RESIDENT_BLOCKS 1
#include "host_threads.h"
#include "fixed_codes.cu"

#define ON_HOST(name, V)                                                                                      \\
    static struct { void *values; u64 n; u32 offset, *words, room, *n_words; i32 *statuses; } of_##name;      \\
    static void encode_##name() {                                                                            \\
        encode_fixed_##name((const V *)of_##name.values, of_##name.n, of_##name.offset, of_##name.words,      \\
                            of_##name.room, of_##name.n_words);                                              \\
    }                                                                                                        \\
    static void decode_##name() {                                                                            \\
        decode_fixed_##name(of_##name.words, of_##name.n_words, (V *)of_##name.values, of_##name.n,           \\
                            of_##name.room, of_##name.statuses);                                             \\
    }                                                                                                        \\
    extern "C" void run_##name(int decode, void *values, u64 n, u32 offset, u32 *words, u32 room,             \\
                               u32 *n_words, i32 *statuses, u32 blocks, u32 order) {                         \\
        of_##name = {values, n, offset, words, room, n_words, statuses};                                     \\
        host_threads::run(decode ? decode_##name : encode_##name, nothing, blocks, THREADS, order);          \\
    }

static void nothing() {}
ON_HOST(bfloat16, u16)
ON_HOST(float32, u32)
"""


class Blocks(NamedTuple):
    """An array in blocks of fixed-length codes.

    Attributes:
        words: Of each block, uint32[n_blocks, room].
        n_words: How many of these a block takes, uint32[n_blocks].
        n: The number of values.
    """

    words: np.ndarray
    n_words: np.ndarray
    n: int


@pytest.fixture(scope="module")
def library() -> Any:
    options = ["-O1", "-std=c++17", "-Wall", "-Wno-unknown-pragmas", *TRAPS, f"-I{SOURCE}", f"-I{HERE}"]
    sources = [*HERE.glob("*.h"), *SOURCE.iterdir(), fixed_codes.SOURCE]
    return library_of([*options, f"-I{fixed_codes.SOURCE.parent}", "-x", "c++", "-"], sources, TEXT)


def aligned(n_bytes: int) -> np.ndarray:
    """Return so many bytes, 0xA5, that begin at a multiple of 16."""
    room = np.full(n_bytes + 16, 0xA5, np.uint8)
    begin = -room.ctypes.data % 16
    return room[begin : begin + n_bytes]


def encode(library: Any, name: str, bits: np.ndarray, offset: int, order: int) -> Blocks:
    n_blocks, room = -(-len(bits) // BLOCK), ROOM[name] + BLOCK
    values = aligned(n_blocks * BLOCK * WIDTHS[name]).view(bits.dtype)
    values[: len(bits)], values[len(bits) :] = bits, 0  # eight at a time have codes
    words, n_words = aligned(4 * n_blocks * room).view(np.uint32), np.zeros(n_blocks, np.uint32)
    call(library, name, 0, values, len(bits), offset, words, room, n_words, np.zeros(n_blocks, np.int32), order)
    return Blocks(words.reshape(n_blocks, room), n_words, len(bits))


def decode(library: Any, name: str, blocks: Blocks, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits of the values, and the status of each block."""
    n_blocks, room = blocks.words.shape
    dtype, statuses = BY_NAME[name].uint, np.full(n_blocks, -1, np.int32)
    values = aligned(n_blocks * BLOCK * WIDTHS[name]).view(dtype)
    call(library, name, 1, values, blocks.n, 0, blocks.words, room, blocks.n_words, statuses, order)
    return values[: blocks.n], statuses


def call(
    library: Any, name: str, way: int, values: Any, n: int, offset: int, words: Any, room: int, *rest: Any
) -> None:
    n_words, statuses, order = rest
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (values, words, n_words, statuses)]
    getattr(library, f"run_{name}")(
        way, pointers[0], ctypes.c_uint64(n), offset, pointers[1], room, *pointers[2:], len(n_words), order
    )


def arrays(name: str) -> dict[str, np.ndarray]:
    """Return arrays of bits of a type: a length that ends within a step of eight values, one of a whole block."""
    rng, dtype = np.random.default_rng(5), BY_NAME[name]
    shift = 8 * (4 - WIDTHS[name])

    def of(values: np.ndarray) -> np.ndarray:
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(shift)).astype(dtype.uint)

    normal = rng.standard_normal(2 * BLOCK + 12_345)
    return {
        "normal": of(normal * 0.02),
        "half zeros": of(np.where(rng.random(len(normal)) < 0.5, 0, normal)),
        "wide": of(np.exp(8 * rng.standard_normal(BLOCK)) * np.sign(normal[:BLOCK])),
        "any bits": rng.integers(0, 1 << dtype.bits, BLOCK + 3, dtype=np.uint64).astype(dtype.uint),
        "zeros": np.zeros(100, dtype.uint),
    }


@pytest.mark.parametrize("name", WIDTHS)
def test_arrays_come_back_and_take_as_much_as_is_counted(library: Any, name: str) -> None:
    dtype = BY_NAME[name]
    for order, (kind, bits) in enumerate(arrays(name).items()):
        heads = fixed_codes.heads_of(bits, dtype)
        offset, n_escapes = fixed_codes.escapes_of_window(heads, 16)
        blocks = encode(library, name, bits, offset, order)
        assert blocks.n_words.sum() == len(blocks.n_words) * ROOM[name] + n_escapes, kind
        found, statuses = decode(library, name, blocks, order + 1)
        assert not statuses.any() and np.array_equal(found, bits), kind
        whole = fixed_codes.percent_of(len(blocks.n_words) * BLOCK, dtype, 4, n_escapes)
        assert 4 * blocks.n_words.sum() == round(whole / 100 * len(blocks.n_words) * BLOCK * dtype.itemsize), kind


@pytest.mark.parametrize("name", WIDTHS)
def test_a_word_that_is_altered_is_found(library: Any, name: str) -> None:
    bits = arrays(name)["wide"]
    blocks = encode(library, name, bits, 4, 0)
    assert blocks.n_words[0] > ROOM[name]
    for at in (0, 2, 4, 5, 8, 3000, ROOM[name] - 1, int(blocks.n_words[0]) - 1):
        blocks.words[0, at] ^= 1 << 9
        assert decode(library, name, blocks, 0)[1].all(), at
        blocks.words[0, at] ^= 1 << 9
    assert not decode(library, name, blocks, 0)[1].any()
