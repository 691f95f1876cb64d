"""The laws of patches, which are frames against a base, and of hashes, for the kernels in CUDA C++."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from itertools import product
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import xxhash

import gcodec
from gcodec import EncoderOptions
from gcodec.dtypes import BY_CODE, BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.gpu import batches, hashing, sparse_encoder
from gcodec.kernels.block.sparse_types import SparseSizes
from gcodec.plan import sparse_frames
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import Values, kernel_view
from tests.codec.spoilt_frames import drawn_mutations
from tests.gpu.host_library import HostThreads
from tests.gpu.native_laws.law_table import CODING, books_of, law, numbered_cases, placed
from tests.support import laws
from tests.support.bit_patterns import Bits
from tests.support.cases import Case
from tests.support.frame_builder import Draft, build_frame
from tests.support.make_golden import as_known, read_manifest
from tests.support.paths import GOLDEN, GOLDEN_INVALID

#: Types that arrays of unsigned integers stand for, by the type of a frame.
STANDS_FOR = {name: {f"uint{BY_NAME[name].bits}": name} for name in BY_NAME}


def outcome_with_base(memory: HostThreads, frame: bytes, base: Bits, dtype: str, books: Any = ()) -> Any:
    """Return what the device makes of a frame and its base: bits of values, or the kind of refusal, which is the same
    over the base and apart from it; a frame that is refused leaves the base as it was."""
    here = memory.standing_for(STANDS_FOR[dtype])
    results: list[Any] = []
    for in_place in (True, False):
        own = base.copy()
        try:
            result = batches.decode_one(here, frame, own, own if in_place else None, books)
            assert not in_place or result is own
            results.append(result.reshape(-1))
        except gcodec.InvalidArgument:
            results.append("unsupported")  # of a base of another size
        except gcodec.GcodecError as error:
            results.append(laws.kind_of(error))
        if not in_place or isinstance(results[0], str):
            assert np.array_equal(own, base), "the base was changed"
    assert laws.same_outcome(*results), [item if isinstance(item, str) else item[:4] for item in results]
    memory.waited, memory.launched = memory.waited + here.waited, here.launched
    return results[0]


def near(bits: Bits, share: float, seed: int) -> Bits:
    """Return an array of which about this share of values differs from ``bits``: mostly by one step, some by any."""
    rng = np.random.default_rng(seed)
    result = bits.copy()
    places = rng.permutation(bits.size)[: int(share * bits.size)]
    result[places] += np.where(rng.random(len(places)) < 0.5, 1, -1).astype(bits.dtype)
    far = places[::9]
    result[far] = rng.integers(0, 1 << 8 * bits.itemsize, len(far), dtype=np.uint64).astype(bits.dtype)
    return result


def pairs(effort: int) -> Iterator[tuple[str, Bits, Bits]]:
    """Yield types, bases and arrays of which some differ from these in few values."""
    for number, case in numbered_cases(effort):
        if case.bits.size:
            base = kernel_view(case.bits.reshape(-1)).copy()
            share = (0.01, 0.1, 0.3)[number % 3]
            yield case.dtype, base, near(base, share, number)


@contextmanager
def small_blocks(block_log2: int = 11, stream_log2: int = 8) -> Iterator[None]:
    """Let the host's encoder make small sparse blocks, so that there are several."""
    sizes = SparseSizes(block_log2, stream_log2)
    with patch.object(sparse_frames, "sparse_sizes", lambda n, with_base: sizes):
        yield


@law
def patches(memory: HostThreads, effort: int) -> None:
    """Check that the device makes of a frame and its base what the host does, in place and apart."""
    n_sparse = 0
    sizes = None, (10, 6), (11, 8)
    for k, (dtype, base, wanted) in enumerate(pairs(effort)):
        for size in sizes if effort > 1 else (sizes[k % 3],):
            with small_blocks(*size) if size else ExitStack():
                frame = gcodec.encode(wanted, base=base, dtype=dtype, options=EncoderOptions(prediction=False))
            n_sparse += gcodec.inspect(frame).kinds["sparse"]
            assert np.array_equal(outcome_with_base(memory, frame, base, dtype), wanted), (dtype, size)
            other = base.copy()
            other[len(other) // 2] ^= 1
            if gcodec.inspect(frame).kinds["sparse"]:
                assert outcome_with_base(memory, frame, other, dtype) == "unsupported"
            assert outcome_with_base(memory, frame, base[1:], dtype) == "unsupported"
    assert n_sparse > 15


def patch_of(here: HostThreads, wanted: Bits, base: Bits, name: str) -> bytes:
    """Return the frame that the device makes of an array of a type and its base."""
    dtype = BY_NAME[name]
    values = Values(wanted[:0], dtype, wanted.shape, 0)
    request = EncodeRequest(
        values, bit_layouts.lossless(dtype), np.zeros(0, np.uint8), CODING, shapes=(wanted.shape,), standalone=True
    )
    return bytes(batches.encode_patch(here, wanted, base, request))


@law
def patches_made(memory: HostThreads, effort: int) -> None:
    """Check that the device makes of a tensor and its base the bytes that the host does, by its own kernels where those
    are sparse blocks for certain."""
    made = 0
    for number, (name, share) in enumerate(
        product(("float32", "bfloat16", "float16", "float8_e4m3fn"), (0.0, 0.002, 0.03, 0.3))
    ):
        here = memory.standing_for(STANDS_FOR[name])
        of_usual_blocks = 700_001 if effort > 1 else 200_001
        for n, log2s, least in ((of_usual_blocks, None, 1 << 14), (20_000, (11, 8), 256), (300, (10, 6), 256)):
            base = np.resize(Case(name, "gaussian").bits.reshape(-1), n).copy()
            wanted = near(base, share, number)
            wanted[n // 2 : n // 2 + (900 if share == 0.03 and n > 20_000 else 0)] ^= 1  # one block becomes raw
            with ExitStack() as stack:
                if log2s:
                    stack.enter_context(small_blocks(*log2s))
                    stack.enter_context(patch.object(sparse_encoder, "MIN_VALUES", least))
                    stack.enter_context(patch.object(import_module("gcodec.frame.smallest"), "_MIN_SURE_VALUES", least))
                expected = gcodec.encode(wanted, base=base, dtype=name)
                launched = here.launched
                frame = patch_of(here, wanted, base, name)
            assert frame == expected, (name, share, n)
            made += here.launched - launched in (7, 10)  # one choice of classes or two; else by the host
            assert np.array_equal(outcome_with_base(memory, frame, base, name), wanted)
    assert made >= 20, made


def class_begins(base: Bits, name: str, n: int) -> tuple[int, ...]:
    """Return where so many classes after the first may begin, such that each has members."""
    magnitudes = np.unique(base % (1 << BY_NAME[name].bits - 1))
    return tuple(magnitudes[np.linspace(1, len(magnitudes) - 1, n).astype(int)].tolist())


def classes_at(thresholds: tuple[int, ...]) -> Any:
    """Return a context in which encoders let classes begin there."""
    return patch.object(sparse_frames, "choose_thresholds", lambda *args: [thresholds])


@law
def patches_of_any_place_and_classes(memory: HostThreads, effort: int) -> None:
    """Arrays and bases in memory of any alignment, of one class and of as many as there may be; parts of which nothing
    differs, or all of a class."""
    made = 0
    for number, name in enumerate(("float32", "bfloat16", "float16", "float8_e4m3fn")):
        here = memory.standing_for(STANDS_FOR[name])
        base = np.resize(Case(name, "gaussian").bits.reshape(-1), 70_003 + number).copy()
        if number == 1:
            base[20_000:40_000] = base[0]
        many = class_begins(base, name, 15)
        wanted = base.copy()
        wanted[:12_000] = near(base[:12_000], 0.08, number)
        wanted[60_000:] = near(base[60_000:], 0.1, number)
        for thresholds in ((), many[7:8], many):
            with classes_at(thresholds):
                expected = gcodec.encode(wanted, base=base, dtype=name)
                for a, b in ((0, 0), (1, 0), (0, 1), (2, 4), (3, 2)):
                    launched = here.launched
                    frame = patch_of(here, placed(wanted, a), placed(base, b), name)
                    assert frame == expected, (name, thresholds, a, b)
                    made += here.launched - launched == 7
                    there = placed(base, a)
                    batches.decode_one(here, expected, there, there)
                    assert np.array_equal(there, wanted)
    assert made == 60, made


@law
def golden_patches(memory: HostThreads, effort: int) -> None:
    """Check the frames of ``tests/golden`` and ``tests/golden-invalid`` that have a base, of all types and kinds."""
    for folder in (GOLDEN, GOLDEN_INVALID):
        for name, described in read_manifest(folder).items():
            known = as_known(described.get("codebooks", []))
            books = books_of(known)
            if "base" not in described or {book.hash for book in books} != {digest for _, digest in known}:
                continue
            file, bits = described["base"]
            base = np.fromfile(folder / file, f"<u{bits // 8}")
            frame = (folder / f"{name}.frame").read_bytes()
            dtype = BY_CODE[frame[5]].narrow.name if len(frame) > 5 and frame[5] in BY_CODE else f"float{bits}"
            result = outcome_with_base(memory, frame, base, dtype, books)
            if folder == GOLDEN:
                assert not isinstance(result, str), (name, result)
                assert sha256(result.tobytes()).hexdigest() == described["sha256"], name
            else:
                assert result == described["expected"], (name, result)


@law
def any_patches(memory: HostThreads, effort: int) -> None:
    """Valid frames with a base that no encoder writes, and frames with one thing wrong, which are refused alike; the
    base stays as it was. No index is out of bounds."""
    rng = Random(7)
    codes = [1, 2, 3, 5, 6, 4]
    chosen: list[list[Any]] = [["sparse"], ["sparse", "raw", "constant"], ["sparse", "coded", "predicted"]]
    to_spoil = []
    for k in range(45 * effort):
        spoilt = k % 2 and k < 18 * effort  # those that name no codebooks, which are found here by their hash alone
        built = build_frame(
            rng,
            dtype=codes[k % len(codes)],
            block_log2=10 if k % 4 else None,
            named=k % 2 == 0,
            kinds=chosen[k % 3],
            spare_bits=k % 2 == 1,
            with_base=True,
            n_values=None,
            n_codebooks=k % 3 if spoilt else None,  # of many, each would be read again and again
        )
        assert built.base is not None
        dtype, books = BY_CODE[built.frame[5]].narrow.name, books_of(built.codebooks)
        result = outcome_with_base(memory, built.frame, built.base, dtype, books)
        assert laws.same_outcome(result, built.bits), (k, result, built.bits)
        if spoilt:
            to_spoil.append(built)
    for built, mutation in drawn_mutations(to_spoil, rng, 2 if effort == 1 else None):
        assert built.base is not None
        dtype, books = BY_CODE[built.frame[5]].narrow.name, books_of(built.codebooks)
        expected = laws.outcome(mutation.frame, built.codebooks, built.base)
        result = outcome_with_base(memory, mutation.frame, built.base, dtype, books)
        assert laws.same_outcome(result, expected), (str(result)[:40], str(expected)[:40], mutation.name)


@law
def spoilt_patches(memory: HostThreads, effort: int) -> None:
    """Check sparse blocks with any bytes altered and a checksum that fits: the host's outcome, the base as it was."""
    rng, refused = Random(5), 0
    for k in range(240 * effort):
        name = ("float32", "bfloat16", "float8_e4m3fn")[k % 3]
        base = np.resize(Case(name, "gaussian").bits.reshape(-1), rng.choice([300, 1500, 3000]))
        few = class_begins(base, name, k % 4 * 2)  # so that a rank may be above those that its class has
        with small_blocks(10, rng.choice([6, 8, 10])), classes_at(few):
            frame = gcodec.encode(near(base, 0.1, k), base=base, dtype=name, options=EncoderOptions(prediction=False))
        draft = Draft.of(frame, laws.SHIPPED)
        blocks = [bytearray(block) for block in draft.blocks]
        for _ in range(rng.choice([0, 1, 1, 2, 5])):
            block = rng.choice(blocks)
            at = rng.choice([rng.randrange(1, min(len(block), 32)), rng.randrange(1, len(block))])
            block[at] = rng.choice([block[at] ^ 1 << rng.randrange(8), 0, 255, rng.randrange(256)])
        frame = replace(draft, blocks=tuple(map(bytes, blocks))).seal()
        expected = laws.outcome(frame, base=base)
        result = outcome_with_base(memory, frame, base, name)
        assert laws.same_outcome(result, expected), (k, result, expected)
        refused += isinstance(result, str)
    assert refused > 100 * effort


@law
def hashes(memory: HostThreads, effort: int) -> None:
    """Check that a device's XXH3 is that of the library, for sizes around all of its limits, one by one and at once."""
    rng = np.random.default_rng(6)
    sizes = [
        0,
        1,
        240,
        241,
        247,
        256,
        1023,
        1024,
        1025,
        1088,
        1089,
        2048,
        5000,
        16384,
        16385,
        65_536,
        65_537,
        70_001,
        131_072,
        200_000,
    ]
    arrays = [rng.integers(0, 256, n, dtype=np.uint8) for n in sizes]
    wanted = [xxhash.xxh3_64_hexdigest(array.tobytes()) for array in arrays]
    assert hashing.hash_tensors(memory, []) == []
    for array, own in zip(arrays, wanted, strict=True):
        assert hashing.hash_tensors(memory, [array]) == [own]
    for most in (hashing.MOST_AT_ONCE, 30_000, 1):
        with patch.object(hashing, "MOST_AT_ONCE", most):
            assert hashing.hash_tensors(memory, arrays[::-1]) == wanted[::-1]
    extremes = [np.zeros(3000, np.uint8), np.full(3000, 255, np.uint8)]
    assert hashing.hash_tensors(memory, extremes) == [xxhash.xxh3_64_hexdigest(array.tobytes()) for array in extremes]
