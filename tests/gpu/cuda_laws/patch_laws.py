"""The laws of frames against a base on the CUDA path."""

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

import gcodec
from gcodec import EncoderOptions
from gcodec.dtypes import BY_CODE, BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.kernels.block.sparse_types import SparseSizes
from gcodec.plan import sparse_frames
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import Values, kernel_view
from tests.gpu.cuda_laws.law_table import CODING, books_of, cases, law
from tests.gpu.cuda_memory import HostMemory
from tests.support import laws
from tests.support.cases import Bits, Case
from tests.support.frame_builder import Draft, build_frame, mutations

#: Types that arrays of unsigned integers stand for, by the type of a frame.
STANDS_FOR = {name: {f"uint{BY_NAME[name].bits}": name} for name in BY_NAME}


def outcome_with_base(memory: HostMemory, frame: bytes, base: Bits, dtype: str, books: Any = ()) -> Any:
    """Return what the device makes of a frame and its base: bits of values, or the kind of refusal, which is the same
    over the base and apart from it; a frame that is refused leaves the base as it was."""
    from gcodec.gpu import batches

    here = HostMemory(memory.wrap, STANDS_FOR[dtype])
    results: list[Any] = []
    for in_place in (True, False):
        own = base.copy()
        try:
            result = batches.decode_one(here, frame, own, own if in_place else None, books)
            assert not in_place or result is own
            results.append(result.reshape(-1))
        except gcodec.InvalidArgument:
            results.append("unsupported")       # of a base of another size
        except gcodec.GcodecError as error:
            results.append(laws.kind_of(error))
        if not in_place or isinstance(results[0], str):
            assert np.array_equal(own, base), "the base was changed"
    assert laws.same_outcome(*results), [item if isinstance(item, str) else item[:4] for item in results]
    memory.waited, memory.launched = memory.waited + here.waited, memory.launched + here.launched
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


def pairs(quick: bool) -> Iterator[tuple[str, Bits, Bits]]:
    """Yield types, bases and arrays of which some differ from these in few values."""
    for number, case in enumerate(cases(quick, ("gaussian, three in ten zero", "every corner of the type"), 700)):
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
def patches(memory: HostMemory, quick: bool) -> None:
    """Check that the device makes of a frame and its base what the host does, in place and apart."""
    n_sparse = 0
    for dtype, base, wanted in pairs(quick):
        for size in (None, (10, 6), (11, 8))[:: 1 if quick else 2]:
            with small_blocks(*size) if size else ExitStack():
                frame = gcodec.encode(wanted, base=base, dtype=dtype, options=EncoderOptions(prediction=False))
            n_sparse += gcodec.inspect(frame).kinds["sparse"]
            assert np.array_equal(outcome_with_base(memory, frame, base, dtype), wanted), (dtype, size)
            other = base.copy()
            other[len(other) // 2] ^= 1
            if gcodec.inspect(frame).kinds["sparse"]:
                assert outcome_with_base(memory, frame, other, dtype) == "unsupported"
            assert outcome_with_base(memory, frame, base[1:], dtype) == "unsupported"
    assert n_sparse > (50 if quick else 3)


@law
def patches_made(memory: HostMemory, quick: bool) -> None:
    """Check that the device makes of a tensor and its base the bytes that the host does, by its own kernels where those
    are sparse blocks for certain."""
    from gcodec.gpu import batches, sparse_encoder

    made = 0
    for number, (name, share) in enumerate(product(("float32", "bfloat16", "float16", "float8_e4m3fn"),
                                                   (0.0, 0.002, 0.03, 0.3))):
        if not quick and (number % 4 != 2 or number > 6):
            continue
        here, dtype = HostMemory(memory.wrap, STANDS_FOR[name]), BY_NAME[name]
        for n, log2s, least in ((700_001, None, 1 << 14), (20_000, (11, 8), 256), (300, (10, 6), 256)):
            if not quick and n > 300:
                continue
            base = np.resize(Case(name, "gaussian").bits.reshape(-1), n).copy()
            wanted = near(base, share, number)
            wanted[n // 2 : n // 2 + (900 if share == 0.03 and n > 20_000 else 0)] ^= 1    # one block becomes raw
            with ExitStack() as stack:
                if log2s:
                    stack.enter_context(small_blocks(*log2s))
                    stack.enter_context(patch.object(sparse_encoder, "MIN_VALUES", least))
                    stack.enter_context(patch.object(import_module("gcodec.frame.encode"), "_MIN_SURE_VALUES", least))
                expected = gcodec.encode(wanted, base=base, dtype=name)
                values = Values(wanted[:0], dtype, wanted.shape, 0)
                request = EncodeRequest(values, bit_layouts.lossless(dtype), np.zeros(0, np.uint8), CODING,
                                        shapes=(wanted.shape,), standalone=True)
                launched = here.launched
                frame = bytes(batches.encode_patch(here, wanted, base, request))
            assert frame == expected, (name, share, n)
            made += here.launched - launched in (7, 10)     # one choice of classes or two; else by the host
            assert np.array_equal(outcome_with_base(memory, frame, base, name), wanted)
    assert made >= (20 if quick else 1), made


@law
def golden_patches(memory: HostMemory, quick: bool) -> None:
    """Check the frames of ``tests/golden`` and ``tests/golden-invalid`` that have a base, of all types and kinds."""
    if not quick:
        return
    from tests.support.make_golden import as_known, read_manifest
    from tests.support.paths import GOLDEN, GOLDEN_INVALID

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
def any_patches(memory: HostMemory, quick: bool) -> None:
    """Valid frames with a base that no encoder writes, and frames with one thing wrong, which are refused alike; the
    base stays as it was. No index is out of bounds."""
    rng = Random(7)
    codes = [1, 2, 3, 5, 6, 4] if quick else [2, 5]
    chosen: list[list[Any]] = [["sparse"], ["sparse", "raw", "constant"], ["sparse", "coded", "predicted"]]
    for k in range(90 if quick else 2):
        built = build_frame(rng, dtype=codes[k % len(codes)], block_log2=10 if k % 4 else None, named=k % 2 == 0,
                            kinds=chosen[k % 3], spare_bits=k % 2 == 1, with_base=True, n_values=None if quick else 90)
        assert built.base is not None
        dtype, books = BY_CODE[built.frame[5]].narrow.name, books_of(built.codebooks)
        result = outcome_with_base(memory, built.frame, built.base, dtype, books)
        assert laws.same_outcome(result, built.bits), (k, result, built.bits)
        if k % 6 == 3 and quick:      # those that name no codebooks, which are found here by their hash alone
            for mutation in mutations(built.frame, rng, built.codebooks):
                expected = laws.outcome(mutation.frame, built.codebooks, built.base)
                result = outcome_with_base(memory, mutation.frame, built.base, dtype, books)
                assert laws.same_outcome(result, expected), (str(result)[:40], str(expected)[:40], mutation.name)


@law
def spoilt_patches(memory: HostMemory, quick: bool) -> None:
    """Check sparse blocks with any bytes altered and a checksum that fits: the host's outcome, the base as it was."""
    rng, refused = Random(5), 0
    for k in range(240 if quick else 4):
        name = ("float32", "bfloat16", "float8_e4m3fn")[k % 3]
        if quick:
            base = np.resize(Case(name, "gaussian").bits.reshape(-1), rng.choice([300, 1500, 3000]))
        else:
            base = np.arange(300).astype(BY_NAME[name].uint)
        with small_blocks(10, rng.choice([6, 8, 10])):
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
    assert refused > (100 if quick else 0)
