"""The laws of encoding: whole frames, or all of their blocks, are the host's by the same plan, byte for byte."""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, Ladder
from gcodec.dtypes import BY_NAME, DType
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.format.codebook import Codebook
from gcodec.format.modes import BitLayout
from gcodec.frame.decode import FrameReader
from gcodec.frame.encode import encode_values
from gcodec.gpu import batches, encoder
from gcodec.gpu.encoder import GpuSource, SharedCodebook, plan_of
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import Values, kernel_view
from tests.gpu.host_library import HostThreads
from tests.gpu.native_laws.law_table import (
    CODING,
    TYPES,
    UNEVEN,
    check,
    check_same_bytes,
    fitted,
    law,
    narrow_layouts,
    numbered_cases,
    outcome,
    placed,
    wide_layouts,
)
from tests.support import laws
from tests.support.bit_patterns import Bits
from tests.support.cases import Case
from tests.support.encode_modes import levels_at_random


@law
def lossless(memory: HostThreads, effort: int) -> None:
    """Frames of arrays of every kind by a fresh codebook are the host's, and both decode them."""
    for _, case in numbered_cases(effort):
        dtype, bits = BY_NAME[case.dtype], case.bits.copy()
        layout = bit_layouts.lossless(dtype)
        shared = fitted(memory, [bits], dtype, layout)
        (frame,) = check_same_bytes(memory, [bits], dtype, layout, codebook=shared)
        assert np.array_equal(outcome(memory, frame), bits.reshape(-1)), case
        assert np.array_equal(laws.outcome(frame), bits.reshape(-1)), case


@law
def fixed_bits(memory: HostThreads, effort: int) -> None:
    """Frames with mantissa bits rounded away, in both ways to round."""
    for k, case in numbered_cases(effort):
        dtype, bits = BY_NAME[case.dtype], case.bits.copy()
        ways = (3, True), (5, False)
        for kept, nearest in ways if effort > 1 else ways[k % 2 :][:1]:
            layout = bit_layouts.fixed(dtype, kept)
            shared = fitted(memory, [bits], dtype, layout)
            (frame,) = check_same_bytes(memory, [bits], dtype, layout, nearest=nearest, codebook=shared)
            rounding = "nearest" if nearest else "truncate"
            whole = gcodec.encode(case.array(), mantissa_bits=kept, rounding=rounding, options=CODING, **case.options)
            assert np.array_equal(outcome(memory, frame), laws.outcome(whole)), case


@law
def ladders(memory: HostThreads, effort: int) -> None:
    """Frames with a level for each value."""
    for k, case in numbered_cases(effort):
        dtype, bits = BY_NAME[case.dtype], case.bits.copy()
        every = FINE_LADDER[case.dtype], PAPER_LADDER[case.dtype], UNEVEN[case.dtype]
        for ladder in every if effort > 1 else every[k % 3 :][:1]:
            levels = levels_at_random(bits, len(ladder.drops))
            own, layout = [levels.reshape(-1).copy()], bit_layouts.ladder(dtype, ladder)
            shared = fitted(memory, [bits], dtype, layout, own)
            (frame,) = check_same_bytes(memory, [bits], dtype, layout, own, codebook=shared)
            whole = gcodec.encode(case.array(), levels=levels, ladder=ladder, options=CODING, **case.options)
            assert np.array_equal(outcome(memory, frame), laws.outcome(whole)), case


@law
def without_a_codebook(memory: HostThreads, effort: int) -> None:
    """Frames whose blocks are constant or raw, in all modes."""
    names = (
        "gaussian",
        "every corner of the type",
        "all zero",
        "one value",
        "a block and one",
        "runs of equal sub-streams",
    )
    rng = np.random.default_rng(16)
    for name in TYPES:
        dtype, arrays = BY_NAME[name], [Case(name, case).bits.copy() for case in names]
        layouts = [layout for layout in (*narrow_layouts(dtype), *wide_layouts(dtype)) if layout.lossy]
        for layout in (bit_layouts.lossless(dtype), *layouts):
            n_levels = len(layout.levels)
            levels = [rng.integers(0, n_levels, array.size).astype(np.uint8) for array in arrays]
            check_same_bytes(memory, arrays, dtype, layout, levels if n_levels > 1 else None)


class Coding(NamedTuple):
    """What an array is encoded with: a codebook, a bit layout, None to keep all bits, the levels of the values where
    there are several, how to round, and whether heads are relative to the mean of their sub-stream, or of the block."""

    book: Codebook
    layout: BitLayout | None = None
    levels: Bits | None = None
    nearest: bool = True
    references: bool = True


def check_frame(memory: HostThreads, bits: Bits, dtype: DType, coding: Coding) -> bool:
    """Check that the frame of an array is the host's, byte for byte, and that nothing is written behind it; return
    False if it has gone without its codebook, so that it lacks coded blocks, which were written before."""
    shared = SharedCodebook(coding.book, coding.book.record, coding.references)
    layout = coding.layout or bit_layouts.lossless(dtype)
    source = GpuSource(bits, bits.size, bits.shape, coding.levels)
    batch = encoder.encode(memory, [source], dtype, layout, coding.nearest, shared, 0)
    levels = np.zeros(0, np.uint8) if coding.levels is None else coding.levels
    request = EncodeRequest(Values(bits, dtype, bits.shape, 0), layout, levels, CODING, coding.nearest, 1)
    frame = bytes(encode_values(request, plan_of(dtype, -(-bits.size >> 14), shared)))
    assert bytes(batch.frames[0]) == frame
    shown = bool(FrameReader(frame).prelude.codebooks)
    assert not shown or (batch.target.view(np.uint8)[len(frame) :] == 0xA5).all()
    return shown


def check_all_blocks(memory: HostThreads, bits: Bits, dtype: DType, coding: Coding, begin: int = 0) -> None:
    """Check the blocks of an array that begins ``begin`` values after a multiple of 16 bytes; and so do its levels."""
    moved = placed(bits, begin)
    if coding.levels is not None:
        coding = coding._replace(levels=placed(coding.levels, begin))
    if not check_frame(memory, moved, dtype, coding):  # after a block that shrinks, all are coded
        few = np.zeros(1 << 16, bits.dtype)
        few[:: 1 << 12] = 1 << dtype.head_shift
        if coding.levels is not None:
            coding = coding._replace(levels=np.concatenate([np.zeros(len(few), np.uint8), coding.levels]))
        both = np.concatenate([few, bits])
        shown, lengths = check_frame(memory, both, dtype, coding), coding.book.lengths
        assert shown or not lengths[0] or not lengths[255], "nothing is shown"


@law
def blocks_of_arrays(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, in memory of any alignment, by a codebook that comes with gcodec."""
    for k, case in numbered_cases(effort):
        if case.bits.size:
            _, book = next(iter(shipped.fitting(case.dtype, 1)))
            coding = Coding(book, references=k % 4 > 0)
            check_all_blocks(memory, kernel_view(case.bits.reshape(-1)), BY_NAME[case.dtype], coding, k % 5)


@law
def blocks_by_foreign_codebooks(memory: HostThreads, effort: int) -> None:
    """Codebooks that do not suit: symbols without a code, no escape, no zero, nothing that shrinks."""
    rng = np.random.default_rng(13)
    lengths = np.zeros((6, 256), np.uint8)
    lengths[0, [0, 255]] = 1
    lengths[1, [1, 2]] = 1  # no escape
    lengths[2, [3, 5, 255]] = 1, 2, 2  # gaps, and no zero
    lengths[3, [0, 4, 9, 255]] = 1, 2, 3, 3
    lengths[4, [*range(11), 255]] = *range(1, 12), 11  # a long escape, 19 bits with its head
    lengths[5, range(13)] = *range(1, 13), 12  # no escape, but zero
    for name in TYPES:
        dtype = BY_NAME[name]
        names = "gaussian, three in ten zero", "every corner of the type", "runs of equal sub-streams", "noise"
        arrays = [kernel_view(Case(name, case).bits.reshape(-1))[:5000] for case in names]
        heads = rng.integers(118, 126, 3000) << dtype.head_shift
        arrays.append((heads * (rng.random(3000) < 0.6)).astype(arrays[0].dtype))
        for k, own in enumerate(lengths):
            for first in (0, 250):
                book = Codebook(8, ((first, 12),), own.tobytes())
                for number, bits in enumerate(arrays):
                    for references in (True, False) if effort > 1 else ((k + number) % 2 == first // 250,):
                        check_all_blocks(memory, bits, dtype, Coding(book, references=references), 1)
                    named = SharedCodebook(book, book.reference(300), first > 0)
                    (frame,) = check_same_bytes(memory, [bits], dtype, bit_layouts.lossless(dtype), codebook=named)
                    check(memory, frame, bits, [book])


def book_for(bits: Bits, dtype: DType, layout: BitLayout, levels: Bits | None) -> Codebook:
    """Return the codebook that the host fits to an array, or one that suits no array well."""
    n_levels = len(layout.levels)
    values = bits.view(dtype.name) if dtype.name in ("float32", "float16") else bits
    options: dict[str, Any] = {"mantissa_bits": dtype.mantissa_bits - layout.drops[0]}
    if levels is not None:
        options = {"levels": levels, "ladder": Ladder(layout.drops)}
    frame = gcodec.encode(values, dtype=dtype.name, options=CODING, **options)
    prelude = FrameReader(frame).prelude
    if prelude.codebooks and prelude.dtype is dtype:  # not one with a wide head
        return prelude.codebooks[0]
    counts = [254 // n_levels + 254 % n_levels, *[254 // n_levels] * (n_levels - 1)]
    return Codebook(8, tuple((118, count) for count in counts), bytes([8] * 256))


@law
def blocks_of_planes(memory: HostThreads, effort: int) -> None:
    """Arrays of every kind, rounded to fewer bits or to levels, in both ways to round, in planes of any widths."""
    rng = np.random.default_rng(14)
    for k, case in numbered_cases(effort):
        if not case.bits.size:
            continue
        bits, dtype = kernel_view(case.bits.reshape(-1))[:40_000], BY_NAME[case.dtype]
        for number, layout in enumerate(narrow_layouts(dtype) + wide_layouts(dtype)):
            n_levels = len(layout.levels)
            levels = rng.integers(0, n_levels, bits.size).astype(np.uint8) if n_levels > 1 else None
            if (k + number) % (6 if effort == 1 else 4) and (bits.size > 2000 or effort == 1):
                continue
            book = book_for(bits, dtype, layout, levels)
            coding = Coding(book, layout, levels, bool(number % 3), (k + number) % 3 > 0)
            check_all_blocks(memory, bits, dtype, coding, k % 5)


@law
def batches_of_many(memory: HostThreads, effort: int) -> None:
    """Tensors of all sizes in one launch, one of more blocks than a block of the grid has threads; those that shrink by
    nothing go without the codebook."""
    names = (
        "empty",
        "one value",
        "gaussian",
        "0-d",
        "noise",
        "all zero",
        "two values",
        "a block and one",
        "257 values",
        "recorded transformer-step-000400/norm.weight",
        "a block and more of noise",
        "empty",
    )
    for k, name in enumerate(TYPES):
        dtype = BY_NAME[name]
        few = [kernel_view(Case(name, case).bits) for case in names]
        large = np.resize(few[5], 300 << 14)
        large[::100_000] = few[2][:50]
        layouts = bit_layouts.lossless(dtype), bit_layouts.fixed(dtype, 3), wide_layouts(dtype)[2]
        for number, layout in enumerate(layouts):
            arrays = [*few, large] if number == k or effort > 1 else few
            book = book_for(few[2], dtype, layout, None)
            shared = SharedCodebook(book, book.record, True)
            frames = check_same_bytes(memory, arrays, dtype, layout, codebook=shared)
            assert 0 < sum(not FrameReader(frame).prelude.codebooks for frame in frames) < len(arrays)
            for frame, result in zip(frames, batches.begin_decoding(memory, frames).check(), strict=True):
                assert laws.same_outcome(result.reshape(-1), laws.outcome(frame))


@law
def blocks_that_look_back(memory: HostThreads, effort: int) -> None:
    """Frames of more blocks than one looks back at at once, of all kinds in any sequence, in several orders of turns,
    into memory of just the bytes that they may take; and frames that go without their codebook, whose last block has no
    room behind a prelude with one."""
    rng = np.random.default_rng(33)
    for name in TYPES:
        dtype, layout = BY_NAME[name], bit_layouts.lossless(BY_NAME[name])
        some = kernel_view(Case(name, "gaussian").bits.reshape(-1))
        shared = SharedCodebook(book := book_for(some, dtype, layout, None), book.record)
        blocks = np.tile(some[:1], (100, 1 << 14))
        for k in rng.choice(len(blocks), 30, replace=False):
            noise = rng.integers(0, 1 << dtype.bits, 1 << 14).astype(some.dtype)
            blocks[k] = noise if k % 4 == 0 else np.resize(np.roll(some, k), 1 << 14)
        raw = rng.integers(0, 1 << dtype.bits, 12 << 14).astype(some.dtype)
        for bits in (blocks.reshape(-1)[: -1 - int(rng.integers(1 << 14))], raw):
            source = GpuSource(bits, bits.size, bits.shape)
            request = EncodeRequest(Values(bits, dtype, bits.shape, 0), layout, np.zeros(0, np.uint8), CODING, True, 1)
            expected = bytes(encode_values(request, plan_of(dtype, -(-bits.size >> 14), shared)))
            assert bool(FrameReader(expected).prelude.codebooks) == (bits is not raw)
            bound = encoder.frame_bound(source, dtype, layout, 0)
            for _ in range(4 * effort):
                target = memory.empty(bound // 4 + 64, "uint32").view(np.uint8)
                (frame,) = encoder.encode(memory, [source], dtype, layout, True, shared, 0, target[:bound]).frames
                assert bytes(frame) == expected
                assert (target[bound:] == 0xA5).all()


@law
def tensors_counted_in_pieces(memory: HostThreads, effort: int) -> None:
    """The codebook of tensors, some of which are cut for histograms of 32 bits, is the one of whole ones."""
    names = "empty", "a block and one", "gaussian", "a block and more of noise", "257 values"
    for name in TYPES:
        dtype, arrays = BY_NAME[name], [kernel_view(Case(name, case).bits.reshape(-1)) for case in names]
        arrays[2] = np.resize(arrays[2], 5 * 16384 + 77)
        exact, graded = bit_layouts.lossless(dtype), bit_layouts.ladder(dtype, FINE_LADDER[name])
        levels = [levels_at_random(own, len(graded.levels)).reshape(-1).copy() for own in arrays]
        for layout, own in ((exact, None), (graded, levels)):
            whole = fitted(memory, arrays, dtype, layout, own)
            with patch.object(encoder, "MAX_COUNTED", 2 * 16384):
                assert fitted(memory, arrays, dtype, layout, own) == whole


@law
def levels_that_do_not_exist(memory: HostThreads, effort: int) -> None:
    """Levels that do not exist are noticed, and harm nothing."""
    for name in TYPES:
        dtype = BY_NAME[name]
        bits = kernel_view(Case(name, "gaussian").bits.reshape(-1))
        for layout in (bit_layouts.ladder(dtype, PAPER_LADDER[name]), wide_layouts(dtype)[0]):
            n = len(layout.levels)
            for place, level in ((0, n), (bits.size - 1, 255), (77, 16), (77, n - 1)):
                levels = np.zeros(bits.size, np.uint8)
                shared = fitted(memory, [bits], dtype, layout, [levels])
                levels[place] = level
                source = GpuSource(bits, bits.size, bits.shape, levels)
                batch = encoder.encode(memory, [source], dtype, layout, True, shared, 0)
                assert memory.arguments[3].faults.tolist() == [int(level >= n)]
                if level >= n:
                    laws.check_refused(gcodec.InvalidArgument, lambda: batch.sizes)  # noqa: B023 (runs now)
                    assert laws.outcome(bytes(batch.target.view(np.uint8))) == "corruption"
