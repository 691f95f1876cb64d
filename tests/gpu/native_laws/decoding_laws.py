"""The laws of decoding: frames give the host's values, or are refused as the host refuses them."""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np

import gcodec
from gcodec import FINE_LADDER, EncoderOptions
from gcodec.dtypes import BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.format.columns import ColumnReferences
from gcodec.format.prelude import prelude_size
from gcodec.gpu import batches, decoder, kernel_tables, preludes
from gcodec.kernels.block.header import CODED, CODED_HEADER, OK, SEED
from gcodec.kernels.cuda.launch_tables import EncodedFrames, Output, Tensors
from gcodec.kernels.cuda.native import decoder_for, encoders_for
from gcodec.tensors import kernel_view
from tests.codec.spoilt_frames import drawn_mutations
from tests.gpu.host_library import HostThreads
from tests.gpu.native_laws.law_table import (
    TYPES,
    as_a_device,
    books_of,
    check,
    check_same_bytes,
    fitted,
    law,
    narrow_layouts,
    numbered_cases,
    outcome,
    wide_layouts,
)
from tests.support import laws
from tests.support.bit_patterns import Bits
from tests.support.cases import Case
from tests.support.encode_modes import levels_at_random, modes
from tests.support.frame_builder import ANY_KIND, ANY_KIND_OR_INDEXED, Built, Draft, build_frame
from tests.support.make_golden import as_known, read_manifest
from tests.support.paths import GOLDEN, GOLDEN_INVALID


def frames_to_decode(
    rng: Random, n: int, kinds: Any = ("coded", "raw", "constant"), named: bool = True
) -> Iterator[Built]:
    """Yield valid frames of random values, codebooks and sizes: with all bits in one plane, in narrow planes, and of
    any type in any planes, most of these with column references; ``named``: some name codebooks, which are found by
    their hash here. One in five may have templates, so that the host decodes it."""
    for k in range(n):
        name, tail = (("float32", 24), ("bfloat16", 8), ("float16", 8))[k % 3]
        levels: Any = ([tail], [(0, 1)])
        code, columns = BY_NAME[name].code, False
        if k // 3 % 4 == 1:
            layout = rng.choice(narrow_layouts(BY_NAME[name]))
            levels = (list(layout.widths), [(level.drop, level.mask) for level in layout.levels])
        if k // 3 % 4 > 1:
            levels, code, columns = None, (1, 2, 3, 7, 8)[k % 5], rng.random() < 0.7
        yield build_frame(
            rng,
            dtype=code,
            block_log2=rng.choice([10, 10, 11, 14]),
            kinds=kinds,
            named=named and k % 2 == 0,
            levels=levels,
            spare_bits=k % 2 == 1,
            with_base=False,
            with_columns=columns,
            with_predictions=k % 5 == 4,
        )


@law
def frames_of_the_host(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, as ``gcodec.encode`` plans them and as a device does: wide heads, column references,
    predictions, which are left to the host."""
    for k, case in numbered_cases(effort):
        bits, dtype = kernel_view(case.bits.reshape(-1)), BY_NAME[case.dtype]
        check(memory, as_a_device(bits, dtype), bits)
        levels = levels_at_random(case.bits, len(FINE_LADDER[case.dtype].drops))
        lossy: list[dict[str, Any]] = [{"levels": levels}, {"mantissa_bits": 4}]
        lossless: list[dict[str, Any]] = [{}, {"options": EncoderOptions(prediction=False)}]
        every = lossless + (lossy if effort > 1 else [lossy[k % 2]])
        # Most are encoded alike with and without prediction.
        frames = [gcodec.encode(case.array(), **case.options, **options) for options in every]
        for frame in dict.fromkeys(frames):
            check(memory, frame, laws.outcome(frame))


@law
def frames_in_all_modes(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind in every mode."""
    for k, case in numbered_cases(effort):
        if case.bits.size > 20_000:
            continue
        for mode in modes(case.dtype)[k % 3 :: 3]:
            frame = gcodec.encode(case.array(), **{**case.options, **mode.arguments(case)})
            check(memory, frame, laws.outcome(frame))


@law
def blocks_that_end_with_their_planes(memory: HostThreads, effort: int) -> None:
    """Behind the last item of a block there is no word more, or none but the one in which it lies."""
    rng, n_ends = Random(13), 0
    for k in range(200 * effort):
        dtype = BY_NAME[TYPES[k % 3]]
        layout = rng.choice(narrow_layouts(dtype))
        levels = (list(layout.widths), [(level.drop, level.mask) for level in layout.levels])
        chosen: dict[str, Any] = {"dtype": dtype.code, "levels": levels, "kinds": ("coded",), "with_columns": False}
        built = build_frame(rng, block_log2=10, with_base=False, with_predictions=False, **chosen)
        for block in Draft.of(built.frame, built.codebooks).blocks:
            (plane_bytes,) = struct.unpack_from("<I", block, 20) if block[0] == CODED else (0,)
            if plane_bytes and (CODED_HEADER + plane_bytes) // 4 >= len(block) // 4 - 1:
                check(memory, built.frame, built.bits)
                n_ends += 1
                break
    assert n_ends > 9


@law
def golden_frames(memory: HostThreads, effort: int) -> None:
    """Frames of ``tests/golden`` decode to what they did when they were made, and all of ``tests/golden-invalid`` are
    refused alike; but for those against a base."""
    decoded = 0
    for folder in (GOLDEN, GOLDEN_INVALID):
        for name, described in read_manifest(folder).items():
            known = as_known(described.get("codebooks", []))
            books = books_of(known)  # by their hash; one frame names a record with spare bits that are not zero
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
    to_spoil = list(frames_to_decode(rng, 12 * effort, named=False))
    for built, mutation in drawn_mutations(to_spoil, rng, 3 if effort == 1 else None):
        check(memory, mutation.frame, laws.outcome(mutation.frame, built.codebooks), books_of(built.codebooks))


@law
def spoilt_blocks(memory: HostThreads, effort: int) -> None:
    """Coded blocks with any bytes altered and a checksum that fits: the host's outcome."""
    rng, refused = Random(12), 0
    for built in frames_to_decode(rng, 150 * effort, ("coded",)):
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
    assert refused > 50 * effort


@law
def statuses_that_are_read_late(memory: HostThreads, effort: int) -> None:
    """Values of frames with blocks of any kind are there before statuses are read. Damage is told then, and again."""
    built = list(frames_to_decode(Random(18), 60 * effort, ANY_KIND_OR_INDEXED))
    books = [book for one in built for book in books_of(one.codebooks)]
    batch = batches.begin_decoding(memory, [one.frame for one in built], books)
    for one, tensor in zip(built, batch.tensors, strict=True):
        assert laws.same_outcome(tensor.reshape(-1), one.bits)
    assert batch.check() is batch.tensors
    whole = gcodec.encode(Case("float32", "gaussian").array())
    batch = batches.begin_decoding(memory, [whole, whole[:-1] + bytes([whole[-1] ^ 1])])
    for _ in range(2):
        laws.check_refused(gcodec.Corruption, batch.check)


@law
def preludes_that_are_given(memory: HostThreads, effort: int) -> None:
    """Frames whose preludes are on the host are decoded without a wait. A prelude of another frame is refused, or its
    blocks are: what the frame itself begins with is not looked at."""
    whole = [gcodec.encode(Case("float32", case).array()) for case in ("gaussian", "noise", "a block and one")]
    given = [frame[: prelude_size(np.frombuffer(frame, np.uint8))[0]] for frame in whole]
    spoilt = [b"\xa5" * len(prelude) + frame[len(prelude) :] for prelude, frame in zip(given, whole, strict=True)]
    waited = memory.waited
    batch = batches.begin_decoding(memory, spoilt, preludes=given)
    assert memory.waited == waited and batch.ended()
    for frame, tensor in zip(whole, batch.check(), strict=True):
        assert np.array_equal(tensor.reshape(-1), laws.outcome(frame))
    for k, prelude in enumerate(given):
        for frame, wrong in ((whole[k - 1], prelude), (whole[k], prelude[:-8])):
            begin = partial(batches.begin_decoding, memory, [frame], preludes=[wrong])
            laws.check_refused(gcodec.GcodecError, lambda: begin().check())  # noqa: B023 (runs now)
    laws.check_refused(gcodec.InvalidArgument, lambda: batches.begin_decoding(memory, whole, preludes=given[:2]))
    damaged = [whole[0], whole[1][:-1] + bytes([whole[1][-1] ^ 1]), whole[2]]
    assert list(batches.begin_decoding(memory, damaged, preludes=[None, *given[1:]]).errors) == [1]


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


FAR = (1 << 32) + (1 << 20)  #: values
ALL_SO_FAR = 2  #: of look_back.cuh: a block tells of those before it, here that they have no bytes


def far_room() -> Bits | None:
    """Return room for twice as many values of 16 bits and some more, which costs nothing until it is used; or None."""
    if sys.platform != "linux":
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, 2 * FAR + (1 << 20), flags=flags), np.uint16)


@law
def places_beyond_32_bits(memory: HostThreads, effort: int) -> None:
    """Tensors, frames and results that lie more than 2**32 values apart."""
    room = far_room()
    if room is None:
        return
    dtype, bits = BY_NAME["bfloat16"], np.resize(kernel_view(Case("bfloat16", "gaussian").bits.reshape(-1)), 20_000)
    places = [room[: len(bits)], room[FAR : FAR + len(bits)]]
    for layout in (bit_layouts.lossless(dtype), bit_layouts.fixed(dtype, 6), wide_layouts(dtype)[1]):
        for place in places:
            place[:] = bits
        shared = fitted(memory, places, dtype, layout)
        frames = check_same_bytes(memory, places, dtype, layout, codebook=shared)
        data = [
            room[begin : begin + len(frame) // 2].view(np.uint8)
            for begin, frame in zip((1 << 16, FAR + (1 << 16)), frames, strict=True)
        ]
        for place, own, frame in zip(places, data, frames, strict=True):
            own[:] = np.frombuffer(frame, np.uint8)
            place[:] = 0
        (decoded,) = decoder.decode(memory, preludes.parse(memory, data), places)
        assert not decoded.failures()
        assert all(np.array_equal(place, laws.outcome(frames[0])) for place in places)


@law
def blocks_beyond_32_bits(memory: HostThreads, effort: int) -> None:
    """The last blocks of a tensor of more than 2**32 values, as if the launch had begun there. Column references make
    of them what they make of blocks that begin at 0, if the columns begin there, too."""
    room = far_room()
    if room is None:
        return
    dtype, bits = BY_NAME["bfloat16"], np.resize(kernel_view(Case("bfloat16", "gaussian").bits.reshape(-1)), 20_000)
    place, owner, first, n_before = room[FAR : FAR + len(bits)], np.zeros(2, np.int32), FAR >> 14, 32
    coding, layout = kernel_tables.value_coding_of(dtype, 1, 1, None, False), bit_layouts.lossless(dtype)
    _, book = next(iter(shipped.fitting(dtype.name, 1)))
    encoding = kernel_tables.encode_tables(memory, dtype, layout, [book])
    sizes = np.zeros(2, np.int64)

    def decode(out: Output, begin: int, columns: ColumnReferences | None, general: bool) -> Bits:
        """Return the values of the blocks, as if they were those from value ``begin`` of a frame on."""
        n_spans = 0 if columns is None else 1
        rows = np.array([[0, FAR - begin, begin + len(bits), -(begin >> 14), 14, 8, 0, 1, 0, n_spans]], np.int64)
        frames = EncodedFrames(out.target, rows, owner, np.array([0, sizes[0]]), sizes)
        tables = kernel_tables.decode_tables(memory, dtype, (8,), layout.levels, [book], [columns] if columns else [])
        statuses, place[:] = np.full(2, -1, np.int32), 0
        memory.launch(decoder_for(16, 8, False, (8,), 1, general), 2, frames, coding, tables, room, statuses)
        assert (statuses == OK).all()
        return place.copy()

    for references in (True, False):
        place[:] = bits
        # As many blocks have begun and told that nothing lies before them as one looks back at.
        n, n_words = n_before + 2, 2 * (4 + (1 << 13))
        source = np.array([[0, 0, FAR + len(bits), n_before - first, 0, 8, int(references), 0, n_words]], np.int64)
        block_sizes, kinds, faults = (np.zeros(n, kind) for kind in ("u4", "u1", "u4"))
        told = np.where(np.arange(n) < n_before, ALL_SO_FAR, 0).astype(np.uint64)
        numbers, target = np.array([n_before], np.uint32), np.zeros(n_words, np.uint32)
        out = Output(target, block_sizes, kinds, faults, numbers, told)
        tensors = Tensors(room, np.zeros(1, np.uint8), source, np.zeros(n, np.int32))
        memory.launch(encoders_for(16, (8,), 1, False, references).encode, 2, tensors, coding, encoding, out)
        assert (out.kinds[n_before:] == CODED).all()
        sizes[:] = out.sizes[n_before:]
        for general in (False, True):
            assert np.array_equal(decode(out, FAR, None, general), bits)
    heads, n = np.arange(-3, 4, dtype=np.int8), 7 * 13
    wanted = []
    for begin in (0, FAR):
        columns = ColumnReferences(begin % n, begin + len(bits), n, 13, heads)
        changed = out._replace(target=out.target.copy())
        for at in (0, sizes[0] // 4):
            block = changed.target[at:]
            block[7] |= 1 << 8  # the flag
            checksum = block[2:4].view("<u8")
            checksum += np.uint64((256 * (8 * 0x9E3779B1 % 2**32 | 1) - ((FAR - begin) >> 14) * SEED) % 2**64)
        wanted.append(decode(changed, begin, columns, True))
    assert np.array_equal(wanted[0], wanted[1]) and not np.array_equal(wanted[0], bits)
