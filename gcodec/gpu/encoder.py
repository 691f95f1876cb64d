"""From tensors on a device to frames there: tables, launches, and the batch that knows when the frames are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.codebook import Codebook
from ..format.modes import BitLayout
from ..format.prelude import Prelude
from ..frame.sizes import raw_bytes
from ..kernels.cuda.assemble import move_blocks, seal_frames
from ..kernels.cuda.encode import encode_blocks
from ..kernels.cuda.histogram import MAX_BINS, count_symbols
from ..kernels.cuda.launch_tables import LIMIT, ROOM, Output, Tensors
from ..kernels.cuda.values import BLOCK, BLOCK_LOG2
from ..options import EncoderOptions
from ..plan.codebooks import from_histogram, window_of
from ..plan.plan import FramePlan
from ..plan.sampling import STREAM_LOG2
from .gpu_memory import Memory
from .kernel_tables import check_type, drops_of, encode_tables, value_coding_of

_ALIGN = 256  #: bytes at whose multiples frames begin in a batch's memory


class GpuSource(NamedTuple):
    """A tensor to encode.

    Attributes:
        tensor: The values, contiguous and on the device.
        n: Number of values.
        shape: Shape that the frame records.
        levels: Level of each value, ``n`` bytes on the device; or None.
    """

    tensor: Any
    n: int
    shape: tuple[int, ...]
    levels: Any = None


class SharedCodebook(NamedTuple):
    """A codebook for frames that are encoded on a device.

    Attributes:
        codebook: The codebook.
        record: The record that stands for it in frames: the inline one, or a reference by id.
        references: True if heads are relative to the mean of their sub-stream.
    """

    codebook: Codebook
    record: bytes
    references: bool = True


@dataclass(frozen=True)
class Batch:
    """The encoding of some frames, started on a device.

    Attributes:
        memory: The device.
        target: Memory of all frames, on the device.
        places: The byte of ``target`` at which each frame begins.
        results: Size and more of each frame, as :func:`assemble.seal_frames` writes them.
        faults: Not zero for a tensor with levels that the ladder lacks, as ``encode_blocks`` finds them.
    """

    memory: Memory
    target: Any
    places: list[int]
    results: Any
    faults: Any

    @cached_property
    def sizes(self) -> list[int]:
        """Return the size of each frame in bytes; waits for the device.

        Raises:
            InvalidArgument: A tensor has levels that the ladder lacks.
        """
        faulty = self.memory.fetch(self.faults)
        sizes: list[int] = self.memory.fetch(self.results)[:, 0].tolist()
        if faulty[: len(sizes)].any():
            raise InvalidArgument("levels must be below the number of levels in the ladder, which some are not")
        return sizes

    @property
    def frames(self) -> list[Any]:
        """Return each frame as a tensor of bytes on the device; waits for the sizes."""
        return [self.memory.part(self.target, at, at + size) for at, size in zip(self.places, self.sizes, strict=True)]


def plan_of(dtype: DType, n_blocks: int, shared: SharedCodebook | None) -> FramePlan:
    """Return the plan with which encoding on the host gives the same bytes."""
    books, records = ((shared.codebook,), (shared.record,)) if shared else ((), ())
    return FramePlan(
        dtype,
        STREAM_LOG2,
        books,
        records,
        np.full(n_blocks, 0 if shared else -1, np.int64),
        np.full(n_blocks, -1, np.int64),
        shared is not None and shared.references,
        np.zeros((n_blocks, 0), np.uint32),
    )


def frame_bound(source: GpuSource, dtype: DType, bit_layout: BitLayout, container: int) -> int:
    """Return the max size of a frame in bytes, whatever the values."""
    prelude = _prelude(source, dtype, bit_layout, container, None)
    return prelude.prelude_bytes + raw_bytes(source.n, dtype, BLOCK)


def _prelude(
    source: GpuSource, dtype: DType, bit_layout: BitLayout, container: int, shared: SharedCodebook | None
) -> Prelude:
    books, records = ((shared.codebook,), (shared.record,)) if shared else ((), ())
    return Prelude(
        dtype,
        bit_layout.mode,
        container,
        source.shape,
        BLOCK_LOG2,
        STREAM_LOG2,
        bit_layout.widths,
        bit_layout.levels,
        records,
        books,
    )


def tensors_of(
    memory: Memory, sources: Sequence[GpuSource], dtype: DType, shared: SharedCodebook | None
) -> tuple[Tensors, int]:
    """Return a batch as all launches over it take it, on the device, and the number of its blocks."""
    check_type(dtype)
    counts = [-(-source.n >> BLOCK_LOG2) for source in sources]
    filled = [source for source in sources if source.n]
    nothing: tuple[Any, list[int]] = memory.empty(1, "uint8"), []
    values, at = memory.span([s.tensor for s in filled], f"uint{dtype.bits}") if filled else nothing
    graded = bool(filled) and filled[0].levels is not None
    levels, level_at = memory.span([s.levels for s in filled], "uint8") if graded else (nothing[0], at)
    places, level_places = iter(at), iter(level_at)
    slot_words, first = 4 + BLOCK * dtype.bits // 32, 0
    rows = np.zeros((len(sources), 8), np.int64)
    for row, source, count in zip(rows, sources, counts, strict=True):
        here, there = (next(places), next(level_places)) if source.n else (0, 0)
        references = shared is not None and shared.references
        row[:] = here, there, source.n, first, 0 if shared else -1, STREAM_LOG2, references, first * slot_words
        first += count
    owner = np.repeat(np.arange(len(sources), dtype=np.int32), counts)
    return Tensors(values, levels, memory.send(rows), memory.send(owner)), first


def fit_codebook(
    memory: Memory, sources: Sequence[GpuSource], dtype: DType, bit_layout: BitLayout, options: EncoderOptions
) -> SharedCodebook | None:
    """Return a codebook that suits some tensors together; None where all values are zero.

    Waits for the device once, for the histogram.
    """
    tensors, n_blocks = tensors_of(memory, sources, dtype, None)
    n_levels = len(bit_layout.levels)
    window, center = window_of(n_levels)
    n_bins = 2 + n_levels * window
    assert n_bins <= MAX_BINS
    counts = memory.send(np.zeros((len(sources), n_bins), np.uint32))
    value_coding = value_coding_of(dtype, n_levels, len(bit_layout.widths), None, False)
    drops = memory.send(drops_of(bit_layout))
    bounds = np.uint32(window), np.uint32(center)
    memory.launch(count_symbols, n_blocks, tensors, value_coding, drops, *bounds, counts)
    histogram = memory.fetch(counts).sum(axis=0, dtype=np.uint64)
    if not histogram[1:].any():
        return None
    book = from_histogram(
        histogram,
        dtype.head_bits,
        n_levels,
        center,
        exact=not bit_layout.lossy,
        max_length=options.max_length,
        escape_threshold=options.escape_threshold,
    )
    return SharedCodebook(book, book.record)


def encode(
    memory: Memory,
    sources: Sequence[GpuSource],
    dtype: DType,
    bit_layout: BitLayout,
    nearest: bool,
    shared: SharedCodebook | None,
    container: int,
    target: Any = None,
) -> Batch:
    """Start to make a frame of each tensor; waits for nothing.

    Args:
        memory: The device.
        sources: The tensors.
        dtype: Type of all of them.
        bit_layout: Which bits of their values are kept.
        nearest: Round to nearest; truncate if False.
        shared: The codebook of all frames; blocks are stored raw if None.
        container: Container that the frames record.
        target: Memory for the frame of a batch of one: a contiguous tensor of bytes on the device that begins at a
            multiple of 8; or None.

    Raises:
        InvalidArgument: ``target`` is too small.
    """
    tensors, n_blocks = tensors_of(memory, sources, dtype, shared)
    n = len(sources)
    value_coding = value_coding_of(dtype, len(bit_layout.levels), len(bit_layout.widths), bit_layout, nearest)
    tables = encode_tables(memory, dtype, bit_layout, (shared.codebook,) if shared else ())
    parts, starts, places, size = _assembly(sources, dtype, bit_layout, shared, container)
    if target is None:
        frames = memory.empty(size // 4, "uint32")
        goal: Any = frames
    else:
        bound = int(parts[0, LIMIT])
        if len(target) < bound:
            raise InvalidArgument(f"out must have at least {bound} bytes, max_frame_bytes, not {len(target)}")
        frames, _ = memory.span([target], "uint32")
        parts[0, ROOM] = len(target) & ~7
        goal = target
    slot_words = 4 + BLOCK * dtype.bits // 32
    out = Output(
        memory.empty(n_blocks * slot_words, "uint32"),
        memory.empty(n_blocks, "uint32"),
        memory.empty(n_blocks, "uint8"),
        memory.send(np.zeros(n, np.uint32)),
    )
    block_places, results = memory.empty(n_blocks, "int64"), memory.send(np.zeros((n, 2), np.int64))
    memory.launch(encode_blocks, n_blocks, tensors, value_coding, tables, out)
    memory.launch(
        seal_frames,
        n,
        tensors.rows,
        memory.send(parts),
        value_coding,
        out,
        memory.send(starts),
        block_places,
        results,
        frames,
    )
    memory.launch(move_blocks, n_blocks, tensors, value_coding, tables, out, block_places, results, frames)
    return Batch(memory, goal, places, results, out.faults)


def _assembly(
    sources: Sequence[GpuSource], dtype: DType, bit_layout: BitLayout, shared: SharedCodebook | None, container: int
) -> tuple[np.ndarray, np.ndarray, list[int], int]:
    """Return the arguments by which frames are put together.

    Returns:
        The table that :func:`assemble.seal_frames` takes, int64[n_frames, 8]; the starts of the frames' preludes,
        uint32[n], each of a coded frame and then of one with raw blocks only; the byte at which each frame begins; and
        the bytes that all of them take.
    """
    parts, starts, places, at, n_words = np.zeros((len(sources), 8), np.int64), [], [], 0, 0
    for row, source in zip(parts, sources, strict=True):
        full = _prelude(source, dtype, bit_layout, container, shared)
        bare = full._replace(records=(), codebooks=())
        limit = bare.prelude_bytes + raw_bytes(source.n, dtype, BLOCK)
        length = full.index_at
        start = full.start(0).ljust(length, b"\0")
        start += bare.start(0).ljust(length, b"\0")
        row[:] = full.n_blocks, full.prelude_bytes, bare.prelude_bytes, limit, at // 4, limit, n_words, length // 4
        starts.append(start)
        places.append(at)
        n_words += len(start) // 4
        at += -(-limit // _ALIGN) * _ALIGN
    return parts, np.frombuffer(b"".join(starts), np.uint32), places, at
