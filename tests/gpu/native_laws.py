"""The laws of the kernels in CUDA C++, for any library of them (:mod:`tests.gpu.host_library`); and for a process whose
memory is watched: ``python -m tests.gpu.native_laws N`` runs them ``N`` times as long as tests do, with sanitizers."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, EncoderOptions, Ladder
from gcodec.dtypes import BY_NAME, DType
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.format.codebook import Codebook
from gcodec.format.modes import BitLayout
from gcodec.frame.decode import FrameReader
from gcodec.frame.encode import encode_values
from gcodec.gpu import decoder, encoder, kernel_tables, level_choice, preludes
from gcodec.gpu.encoder import GpuSource, SharedCodebook, plan_of
from gcodec.kernels.block.header import CHECKSUM, CODED, OK, SEED
from gcodec.kernels.cuda.launch_tables import EncodedFrames, Output, Tensors
from gcodec.kernels.cuda.native import decoder_for, encoders_for
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import Values, kernel_view
from gcodec.truncation.evaluate import Policy
from gcodec.truncation.optimizers import view_from_dump
from tests.gpu.cuda_laws import block_laws
from tests.gpu.cuda_laws.law_table import CODING, TYPES, books_of, outcome
from tests.gpu.host_library import SANITIZERS, GeneralKernelError, HostThreads, build
from tests.support import laws
from tests.support.cases import CASES, Bits, Case, modes
from tests.support.frame_builder import Built, Draft, build_frame, mutations
from tests.support.make_golden import as_known, read_manifest
from tests.support.paths import GOLDEN, GOLDEN_INVALID

Law = Callable[[HostThreads, int], None]
LAWS: list[Law] = []


def law(function: Law) -> Law:
    """Register a law; its second argument says how often to try what is random."""
    LAWS.append(function)
    return function


def check(memory: HostThreads, frame: bytes, expected: Any, books: Any = ()) -> bool:
    """Check that a frame decodes to these bits, or is refused by this kind of error; return False if a kernel that is
    not in CUDA C++ is asked for it."""
    try:
        result = outcome(memory, frame, books=books)
    except GeneralKernelError:
        return False
    assert laws.same_outcome(result, expected), (str(result)[:80], str(expected)[:80])
    return True


def planes_of(dtype: DType) -> list[BitLayout]:
    """Return layouts of a type whose planes have at most 8 bits: of few and many levels, of few and many bits."""
    m = dtype.mantissa_bits
    ladders = [FINE_LADDER[dtype.name], PAPER_LADDER[dtype.name], Ladder((m - 1,)), Ladder((1, m // 2, m)),
               Ladder(tuple(range(max(0, m - 7), m + 1)))]
    layouts = [bit_layouts.ladder(dtype, ladder) for ladder in ladders]
    layouts += [bit_layouts.fixed(dtype, kept) for kept in {1, 3, 5, m // 2, min(m - 1, 15)}]
    return [layout for layout in layouts if max(layout.widths) <= 8]


def frames_to_decode(
    rng: Random, n: int, kinds: Any = ("coded", "raw", "constant"), named: bool = True
) -> Iterator[Built]:
    """Yield valid frames of random values, codebooks and sizes, in turn with all bits in one plane and in several;
    ``named``: some name codebooks, which are found by their hash here."""
    for k in range(n):
        name, tail = (("float32", 24), ("bfloat16", 8), ("float16", 8))[k % 3]
        levels: Any = ([tail], [(0, 1)])
        if k % 6 > 2:
            layout = rng.choice(planes_of(BY_NAME[name]))
            levels = (list(layout.widths), [(level.drop, level.mask) for level in layout.levels])
        yield build_frame(rng, dtype=BY_NAME[name].code, block_log2=rng.choice([10, 10, 11, 14]), kinds=kinds,
                          named=named and k % 2 == 0, levels=levels, spare_bits=k % 2 == 1, with_base=False,
                          with_columns=False)


def as_a_device(bits: Bits, dtype: DType) -> bytes:
    """Return the frame that a device makes of an array with a shipped codebook."""
    _, book = next(iter(shipped.fitting(dtype.name, 1)))
    plan = plan_of(dtype, -(-bits.size >> 14), SharedCodebook(book, book.record, True))
    values = Values(bits, dtype, bits.shape, 0)
    request = EncodeRequest(values, bit_layouts.lossless(dtype), np.zeros(0, np.uint8), CODING, True, 1)
    return bytes(encode_values(request, plan))


@law
def frames_of_the_host(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, as ``gcodec.encode`` plans them and as a device does."""
    decoded = 0
    for case in CASES:
        if case.dtype in TYPES:
            bits, dtype = kernel_view(case.bits.reshape(-1)), BY_NAME[case.dtype]
            frame = gcodec.encode(case.array(), **case.options, options=EncoderOptions(prediction=False))
            decoded += check(memory, frame, bits)
            assert check(memory, as_a_device(bits, dtype), bits)
    assert decoded > 90


@law
def frames_in_all_modes(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind in every mode, which the kernels for planes take but for planes of more than 8 bits."""
    decoded = refused = 0
    for k, case in enumerate(CASES):
        if case.dtype not in TYPES or case.bits.size > 20_000:
            continue
        for mode in modes(case.dtype)[k % 3 :: 3]:
            frame = gcodec.encode(case.array(), **{**case.options, **mode.arguments(case)})
            taken = check(memory, frame, laws.outcome(frame))
            decoded, refused = decoded + taken, refused + (not taken)
    assert decoded > 2 * refused, (decoded, refused)


class Coding(NamedTuple):
    """What an array is encoded with: a codebook, a bit layout, None to keep all bits, the levels of the values where
    there are several, and how to round."""

    book: Codebook
    layout: BitLayout | None = None
    levels: Bits | None = None
    nearest: bool = True


def check_frame(memory: HostThreads, bits: Bits, dtype: DType, coding: Coding) -> bool:
    """Check that the frame of an array is the host's, byte for byte, and that nothing is written behind its blocks;
    return False if it has gone without its codebook, so that it lacks coded blocks."""
    shared = SharedCodebook(coding.book, coding.book.record, True)
    layout = coding.layout or bit_layouts.lossless(dtype)
    source = GpuSource(bits, bits.size, bits.shape, coding.levels)
    batch = encoder.encode(memory, [source], dtype, layout, coding.nearest, shared, 0)
    out = memory.arguments[3]
    levels = np.zeros(0, np.uint8) if coding.levels is None else coding.levels
    request = EncodeRequest(Values(bits, dtype, bits.shape, 0), layout, levels, CODING, coding.nearest, 1)
    frame = bytes(encode_values(request, plan_of(dtype, -(-bits.size >> 14), shared)))
    assert bytes(batch.frames[0]) == frame
    slots = out.slots[: len(out.sizes) * (4 + (dtype.bits << 9))].view(np.uint8).reshape(len(out.sizes), -1)
    assert all((slot[size:] == 0xA5).all() for slot, size in zip(slots, out.sizes.tolist(), strict=True))
    return bool(FrameReader(frame).prelude.codebooks)


def check_all_blocks(memory: HostThreads, bits: Bits, dtype: DType, coding: Coding, begin: int = 0) -> None:
    """Check the blocks of an array that begins ``begin`` values after a multiple of 16 bytes."""
    room = np.empty(bits.size + 64, bits.dtype)
    first = -(room.__array_interface__["data"][0] // bits.itemsize) % 16 + begin
    moved = room[first : first + bits.size]
    moved[:] = bits
    if not check_frame(memory, moved, dtype, coding):    # after a block that shrinks, all are coded
        few = np.zeros(1 << 16, bits.dtype)
        few[:: 1 << 12] = 1 << dtype.head_shift
        if coding.levels is not None:
            coding = coding._replace(levels=np.concatenate([np.zeros(len(few), np.uint8), coding.levels]))
        both = np.concatenate([few, bits])
        assert check_frame(memory, both, dtype, coding) or not coding.book.lengths[0], "nothing is shown"


@law
def blocks_of_arrays(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, in memory of any alignment, by a codebook that comes with gcodec."""
    for k, case in enumerate(CASES):
        if case.dtype in TYPES and case.bits.size:
            _, book = next(iter(shipped.fitting(case.dtype, 1)))
            check_all_blocks(memory, kernel_view(case.bits.reshape(-1)), BY_NAME[case.dtype], Coding(book), k % 5)


@law
def blocks_by_foreign_codebooks(memory: HostThreads, effort: int) -> None:
    """Codebooks that do not suit: symbols without a code, no escape, no zero, nothing that shrinks."""
    rng = np.random.default_rng(13)
    lengths = np.zeros((6, 256), np.uint8)
    lengths[0, [0, 255]] = 1
    lengths[1, [1, 2]] = 1                              # no escape
    lengths[2, [3, 5, 255]] = 1, 2, 2                   # gaps, and no zero
    lengths[3, [0, 4, 9, 255]] = 1, 2, 3, 3
    lengths[4, [*range(11), 255]] = *range(1, 12), 11       # a long escape, 19 bits with its head
    lengths[5, range(13)] = *range(1, 13), 12               # no escape, but zero
    for name in TYPES:
        dtype = BY_NAME[name]
        names = "gaussian, three in ten zero", "every corner of the type", "runs of equal sub-streams", "noise"
        arrays = [kernel_view(Case(name, case).bits.reshape(-1))[:5000] for case in names]
        heads = rng.integers(118, 126, 3000) << dtype.head_shift
        arrays.append((heads * (rng.random(3000) < 0.6)).astype(arrays[0].dtype))
        for own in lengths:
            for first in (0, 250):
                for bits in arrays:
                    check_all_blocks(memory, bits, dtype, Coding(Codebook(8, ((first, 12),), own.tobytes())), 1)


def book_for(bits: Bits, dtype: DType, layout: BitLayout, levels: Bits | None) -> Codebook:
    """Return the codebook that the host fits to an array, or one that suits no array well."""
    n_levels = len(layout.levels)
    values = bits.view(dtype.name) if dtype.name in ("float32", "float16") else bits
    options: dict[str, Any] = {"mantissa_bits": dtype.mantissa_bits - layout.drops[0]}
    if levels is not None:
        options = {"levels": levels, "ladder": Ladder(layout.drops)}
    frame = gcodec.encode(values, dtype=dtype.name, options=CODING, **options)
    fitted = FrameReader(frame).prelude.codebooks
    if fitted:
        return fitted[0]
    counts = [254 // n_levels + 254 % n_levels, *[254 // n_levels] * (n_levels - 1)]
    return Codebook(8, tuple((118, count) for count in counts), bytes([8] * 256))


@law
def blocks_of_planes(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, rounded to fewer bits or to levels, in both ways to round."""
    rng = np.random.default_rng(14)
    for k, case in enumerate(CASES):
        if case.dtype not in TYPES or not case.bits.size:
            continue
        bits, dtype = kernel_view(case.bits.reshape(-1))[:40_000], BY_NAME[case.dtype]
        for number, layout in enumerate(planes_of(dtype)):
            n_levels = len(layout.levels)
            levels = rng.integers(0, n_levels, bits.size).astype(np.uint8) if n_levels > 1 else None
            if (k + number) % 4 and bits.size > 2000:
                continue
            book = book_for(bits, dtype, layout, levels)
            check_all_blocks(memory, bits, dtype, Coding(book, layout, levels, bool(number % 3)), k % 5)


@law
def batches_of_many(memory: HostThreads, effort: int) -> None:
    """Tensors of all sizes in one launch, one of more blocks than a block of the grid has threads; those that shrink by
    nothing go without the codebook."""
    names = ("empty", "one value", "gaussian", "noise", "all zero", "a block and one", "257 values",
             "a block and more of noise", "empty")
    for name in TYPES:
        dtype = BY_NAME[name]
        layout = bit_layouts.fixed(dtype, 3)
        arrays = [kernel_view(Case(name, case).bits.reshape(-1)) for case in names]
        arrays.append(np.resize(arrays[4], 300 << 14))
        arrays[-1][::100_000] = arrays[2][:50]
        book = book_for(arrays[2], dtype, layout, None)
        sources = [GpuSource(bits, bits.size, bits.shape) for bits in arrays]
        batch = encoder.encode(memory, sources, dtype, layout, True, SharedCodebook(book, book.record, True), 0)
        bare = 0
        for bits, frame in zip(arrays, batch.frames, strict=True):
            values = Values(bits, dtype, bits.shape, 0)
            request = EncodeRequest(values, layout, np.zeros(0, np.uint8), CODING, True, 1)
            plan = plan_of(dtype, -(-bits.size >> 14), SharedCodebook(book, book.record, True))
            assert bytes(frame) == bytes(encode_values(request, plan)), bits.size
            bare += not FrameReader(bytes(frame)).prelude.codebooks
        assert 0 < bare < len(arrays)


@law
def levels_that_do_not_exist(memory: HostThreads, effort: int) -> None:
    """They are noticed, and harm nothing."""
    for name in TYPES:
        dtype = BY_NAME[name]
        bits = kernel_view(Case(name, "gaussian").bits.reshape(-1))
        layout = bit_layouts.ladder(dtype, PAPER_LADDER[name])
        for place, level in ((0, len(layout.levels)), (bits.size - 1, 255), (77, 16), (77, len(layout.levels) - 1)):
            levels = np.zeros(bits.size, np.uint8)
            book = book_for(bits, dtype, layout, levels)
            levels[place] = level
            source = GpuSource(bits, bits.size, bits.shape, levels)
            batch = encoder.encode(memory, [source], dtype, layout, True, SharedCodebook(book, book.record, True), 0)
            assert memory.arguments[3].faults.tolist() == [int(level >= len(layout.levels))]
            if level >= len(layout.levels):
                laws.check_refused(gcodec.InvalidArgument, lambda: batch.frames)     # noqa: B023 (runs now)


@law
def histograms(memory: HostThreads, effort: int) -> None:
    """Counts of heads for a fresh codebook."""
    block_laws.histograms(memory, True)


@law
def levels_by_the_rules(memory: HostThreads, effort: int) -> None:
    """Those of the host, bit for bit, of every optimizer and type."""
    block_laws.levels_by_the_rules(memory, True)


@law
def gradients_from_levels_to_values(memory: HostThreads, effort: int) -> None:
    """All that a near-lossless frame takes, from a rule to the values again, by these kernels alone."""
    rng = np.random.default_rng(15)
    for name in TYPES:
        dtype, layout = BY_NAME[name], bit_layouts.ladder(BY_NAME[name], FINE_LADDER[name])
        values = rng.standard_normal((2, 40_000)).astype(np.float32)
        grad, param = block_laws.as_type(values[0] / 100, name), block_laws.as_type(values[1], name)
        known = view_from_dump("SGD", {"lr": 0.1}, {})
        (levels,) = level_choice.choose(memory, [level_choice.LevelRequest(grad, param, known)], Policy())
        assert len(np.unique(levels)) > 1
        bits = grad.view(dtype.uint)
        source = GpuSource(bits, bits.size, bits.shape, levels)
        shared = encoder.fit_codebook(memory, [source], dtype, layout, CODING)
        frame = bytes(encoder.encode(memory, [source], dtype, layout, True, shared, 0).frames[0])
        expected = gcodec.decode(gcodec.encode(grad, dtype=name, levels=levels, options=CODING), like="numpy")
        assert np.array_equal(outcome(memory, frame), expected.view(dtype.uint)), name


@law
def golden_frames(memory: HostThreads, effort: int) -> None:
    """Frames of ``tests/golden`` decode, of ``tests/golden-invalid`` are refused."""
    decoded = 0
    for folder in (GOLDEN, GOLDEN_INVALID):
        for name, described in read_manifest(folder).items():
            known = as_known(described.get("codebooks", []))
            books = books_of(known)
            if "base" in described or {book.hash for book in books} != {digest for _, digest in known}:
                continue
            frame = (folder / f"{name}.frame").read_bytes()
            expected = laws.outcome(frame, known) if folder == GOLDEN else described["expected"]
            decoded += check(memory, frame, expected, books)
    assert decoded > 100


@law
def any_frames(memory: HostThreads, effort: int) -> None:
    """Valid frames that no encoder writes, and frames with one thing wrong."""
    rng = Random(11)
    for built in frames_to_decode(rng, 60 * effort):
        assert check(memory, built.frame, built.bits, books_of(built.codebooks))
    for built in frames_to_decode(rng, 6 * effort, named=False):
        for mutation in mutations(built.frame, rng, built.codebooks):
            check(memory, mutation.frame, laws.outcome(mutation.frame, built.codebooks), books_of(built.codebooks))


@law
def spoilt_blocks(memory: HostThreads, effort: int) -> None:
    """Coded blocks with any bytes altered and a checksum that fits: the host's outcome."""
    rng, refused = Random(12), 0
    for built in frames_to_decode(rng, 240 * effort, ("coded",)):
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
        assert check(memory, frame, expected, books_of(built.codebooks))
        refused += isinstance(expected, str)
    assert refused > 80 * effort


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
    memory.launch(encoders_for(16, 8, (8,), 1, False, True).encode, 2, tensors, coding, encoding, out)
    assert (out.kinds == CODED).all()
    slots = np.array([0, 4 * slot_words], np.int64)
    rows[0, 0], places[1][:], statuses[:] = 0, 0, -1
    frames = EncodedFrames(out.slots, rows, np.zeros(2, np.int32), slots, out.sizes.astype(np.int64))
    memory.launch(decoder_for(16, 8, (8,), 1, False), 2, frames, coding, tables, room, statuses)
    assert (statuses == OK).all() and np.array_equal(places[1], bits)


def memory_of(library: Any) -> HostThreads:
    """Return a memory whose kernels are this library's."""
    return HostThreads(library, {"uint16": "bfloat16", "uint32": "float32"})


def main(effort: str) -> None:
    """Run all laws, watched."""
    memory = memory_of(build(*SANITIZERS))
    for item in LAWS:
        item(memory, int(effort))


if __name__ == "__main__":
    main(*sys.argv[1:])
