"""The laws of decoding: frames give the host's values, or are refused as the host refuses them."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np

import gcodec
from gcodec import FINE_LADDER, EncoderOptions
from gcodec.dtypes import BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.gpu import decoder, kernel_tables, preludes
from gcodec.kernels.block.header import CHECKSUM, CODED, OK, SEED
from gcodec.kernels.cuda.launch_tables import EncodedFrames, Output, Tensors
from gcodec.kernels.cuda.native import decoder_for, encoders_for
from gcodec.tensors import kernel_view
from tests.gpu.cuda_laws.law_table import books_of
from tests.gpu.host_library import HostThreads
from tests.gpu.native_laws.law_table import TYPES, as_a_device, check, law, narrow_layouts, outcome
from tests.support import laws
from tests.support.cases import CASES, Case, levels_at_random, modes
from tests.support.frame_builder import ANY_KIND, Built, Draft, build_frame, mutations
from tests.support.make_golden import as_known, read_manifest
from tests.support.paths import GOLDEN, GOLDEN_INVALID


def frames_to_decode(
    rng: Random, n: int, kinds: Any = ("coded", "raw", "constant"), named: bool = True
) -> Iterator[Built]:
    """Yield valid frames of random values, codebooks and sizes: with all bits in one plane, in narrow planes, and of
    any type in any planes, most of these with column references; ``named``: some name codebooks, which are found by
    their hash here."""
    for k in range(n):
        name, tail = (("float32", 24), ("bfloat16", 8), ("float16", 8))[k % 3]
        levels: Any = ([tail], [(0, 1)])
        code, columns = BY_NAME[name].code, False
        if k // 3 % 4 == 1:
            layout = rng.choice(narrow_layouts(BY_NAME[name]))
            levels = (list(layout.widths), [(level.drop, level.mask) for level in layout.levels])
        if k // 3 % 4 > 1:
            levels, code, columns = None, (1, 2, 3, 7, 8)[k % 5], rng.random() < 0.7
        yield build_frame(rng, dtype=code, block_log2=rng.choice([10, 10, 11, 14]), kinds=kinds,
                          named=named and k % 2 == 0, levels=levels, spare_bits=k % 2 == 1, with_base=False,
                          with_columns=columns)


@law
def frames_of_the_host(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, as ``gcodec.encode`` plans them and as a device does: wide heads, column references,
    predictions, which are left to the host."""
    for case in CASES:
        if case.dtype in TYPES:
            bits, dtype = kernel_view(case.bits.reshape(-1)), BY_NAME[case.dtype]
            check(memory, as_a_device(bits, dtype), bits)
            levels = levels_at_random(case.bits, len(FINE_LADDER[case.dtype].drops))
            every: Any = ({}, {"options": EncoderOptions(prediction=False)}, {"levels": levels}, {"mantissa_bits": 4})
            for options in every:
                frame = gcodec.encode(case.array(), **case.options, **options)
                check(memory, frame, laws.outcome(frame))


@law
def frames_in_all_modes(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind in every mode."""
    for k, case in enumerate(CASES):
        if case.dtype not in TYPES or case.bits.size > 20_000:
            continue
        for mode in modes(case.dtype)[k % 3 :: 3]:
            frame = gcodec.encode(case.array(), **{**case.options, **mode.arguments(case)})
            check(memory, frame, laws.outcome(frame))


@law
def golden_frames(memory: HostThreads, effort: int) -> None:
    """Those of ``tests/golden`` decode to what they did when they were made, and of ``tests/golden-invalid`` all are
    refused alike; but for those against a base."""
    decoded = 0
    for folder in (GOLDEN, GOLDEN_INVALID):
        for name, described in read_manifest(folder).items():
            known = as_known(described.get("codebooks", []))
            books = books_of(known)     # by their hash; one frame names a record with spare bits that are not zero
            if "base" in described or {book.hash for book in books} != {digest for _, digest in known}:
                continue
            result = outcome(memory, (folder / f"{name}.frame").read_bytes(), books)
            if folder == GOLDEN:
                assert not isinstance(result, str), (name, result)
                assert sha256(result.tobytes()).hexdigest() == described["sha256"], name
            else:
                assert result == described["expected"], (name, result)
            decoded += 1
    assert decoded > 100


@law
def any_frames(memory: HostThreads, effort: int) -> None:
    """Valid frames that no encoder writes, and frames with one thing wrong."""
    rng = Random(11)
    for built in frames_to_decode(rng, 90 * effort):
        check(memory, built.frame, built.bits, books_of(built.codebooks))
    for built in frames_to_decode(rng, 15 * effort, ANY_KIND):
        check(memory, built.frame, built.bits, books_of(built.codebooks))
    for built in frames_to_decode(rng, 12 * effort, named=False):
        for mutation in mutations(built.frame, rng, built.codebooks):
            check(memory, mutation.frame, laws.outcome(mutation.frame, built.codebooks), books_of(built.codebooks))


@law
def spoilt_blocks(memory: HostThreads, effort: int) -> None:
    """Coded blocks with any bytes altered and a checksum that fits: the host's outcome."""
    rng, refused = Random(12), 0
    for built in frames_to_decode(rng, 300 * effort, ("coded",)):
        draft = Draft.of(built.frame, built.codebooks)
        blocks = [bytearray(block) for block in draft.blocks]
        if not blocks:
            continue
        for _ in range(rng.choice([1, 1, 2, 5])):
            block = rng.choice(blocks)
            at = rng.choice([rng.randrange(1, min(len(block), 32)), rng.randrange(1, len(block))])
            block[at] = rng.choice([block[at] ^ 1 << rng.randrange(8), 0, 255, rng.randrange(256)])
        frame = replace(draft, blocks=tuple(map(bytes, blocks))).seal()
        expected = laws.outcome(frame, built.codebooks)
        check(memory, frame, expected, books_of(built.codebooks))
        refused += isinstance(expected, str)
    assert refused > 100 * effort


@law
def places_of_any_alignment(memory: HostThreads, effort: int) -> None:
    """Batches into tensors that begin anywhere, between which nothing is written."""
    for name in TYPES:
        cases = "gaussian", "one value", "gaussian, three in ten zero", "a block and one", "noise", "all zero"
        arrays = [kernel_view(Case(name, case).bits.reshape(-1)) for case in cases]
        frames = [memory.bytes_of(as_a_device(array, BY_NAME[name])) for array in arrays]
        room = np.full(sum(array.size + 7 for array in arrays), 0x5A, arrays[0].dtype)
        places, at = [], 0
        for k, array in enumerate(arrays):
            at += k % 5 + 1
            places.append(room[at : at + array.size])
            at += array.size
        wanted = room.copy()
        for place, array in zip(places, arrays, strict=True):
            begin = (place.__array_interface__["data"][0] - room.__array_interface__["data"][0]) // room.itemsize
            wanted[begin : begin + array.size] = array
        for group in decoder.decode(memory, preludes.parse(memory, frames), places):
            assert not group.failures()
        assert np.array_equal(room, wanted), name


@law
def places_beyond_32_bits(memory: HostThreads, effort: int) -> None:
    """Frames and results that lie more than 2**32 values apart, and blocks of a tensor that begin after as many, read
    and written. Memory that is only named costs nothing."""
    if sys.platform != "linux":
        return
    dtype, far = BY_NAME["bfloat16"], (1 << 32) + (1 << 20)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    room = np.frombuffer(mmap.mmap(-1, 2 * far + (1 << 20), flags=flags), np.uint16)
    bits = np.resize(kernel_view(Case("bfloat16", "gaussian").bits.reshape(-1)), 20_000)
    frame = np.frombuffer(as_a_device(bits, dtype), np.uint8)
    data = [room[begin : begin + len(frame) // 2].view(np.uint8) for begin in (1 << 16, far + (1 << 16))]
    for own in data:
        own[:] = frame
    places = [room[: len(bits)], room[far : far + len(bits)]]
    parsed = preludes.parse(memory, data)
    (decoded,) = decoder.decode(memory, parsed, places)
    assert not decoded.failures() and all(np.array_equal(place, bits) for place in places)

    first, offsets = far >> 14, parsed[1].offsets       # as if the launch had begun at this block of a longer frame
    for offset in offsets:
        checksum = data[1][int(offset) + CHECKSUM :][:8].view("<u8")
        checksum += np.uint64(first * SEED % 2**64)
    places[1][:] = 0
    (book,) = parsed[1].prelude.codebooks
    coding = kernel_tables.value_coding_of(dtype, 1, 1, None, False)
    tables = kernel_tables.decode_tables(memory, dtype, (8,), parsed[1].prelude.levels, [book], [])
    words = room[far + (1 << 16) :].view(np.uint32)
    rows = np.array([[0, 0, far + len(bits), -first, 14, 8, 0, 1, 0, 0]], np.int64)
    frames = EncodedFrames(words, rows, np.zeros(2, np.int32), offsets, parsed[1].sizes)
    statuses = np.full(2, -1, np.int32)
    memory.launch(decoder_for(16, 8, (8,), 1, False), 2, frames, coding, tables, room, statuses)
    assert (statuses == OK).all() and np.array_equal(places[1], bits)

    slot_words = 4 + (1 << 13)
    source = np.array([[0, 0, far + len(bits), -first, 0, 8, 1, -first * slot_words]], np.int64)
    out = Output(np.zeros(2 * slot_words, np.uint32), *(np.zeros(2, kind) for kind in ("u4", "u1", "u4")))
    tensors = Tensors(room, np.zeros(1, np.uint8), source, np.zeros(2, np.int32))
    encoding = kernel_tables.encode_tables(memory, dtype, bit_layouts.lossless(dtype), [book])
    memory.launch(encoders_for(16, (8,), 1, False, True).encode, 2, tensors, coding, encoding, out)
    assert (out.kinds == CODED).all()
    slots = np.array([0, 4 * slot_words], np.int64)
    rows[0, 0], places[1][:], statuses[:] = 0, 0, -1
    frames = EncodedFrames(out.slots, rows, np.zeros(2, np.int32), slots, out.sizes.astype(np.int64))
    memory.launch(decoder_for(16, 8, (8,), 1, False), 2, frames, coding, tables, room, statuses)
    assert (statuses == OK).all() and np.array_equal(places[1], bits)
