"""From tensors on a device to frames there: tables, launches, and the batch that knows when the frames are done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.codebook import Codebook
from ..format.modes import BitLayout
from ..format.prelude import PRELUDE_BYTES_AT, Start, bare_start, prelude_size, start_of
from ..frame.sizes import raw_bytes
from ..kernels.cuda.launch_tables import (
    BARE,
    BLOCK,
    BODY,
    END,
    LIMIT,
    MAX_BINS,
    MAX_BLOCK_LOG2,
    PLACE,
    PRELUDE,
    ROOM,
    Output,
    Tensors,
)
from ..kernels.cuda.native import counter_for, encoders_for
from ..options import EncoderOptions
from ..plan.codebooks import from_histogram, window_of
from ..plan.plan import FramePlan
from ..plan.sampling import STREAM_LOG2 as _STREAM_LOG2
from .gpu_memory import Memory, PackedArrays, PendingCopy, packed
from .kernel_tables import check_type, drops_of, encode_tables, value_coding_of

_ALIGN = 256  #: bytes at whose multiples frames begin in a batch's memory
#: Values of one histogram at most, whose counts have 32 bits: a whole number of blocks. A larger tensor has several.
MAX_COUNTED = 1 << 31


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
        results: Size and more of each frame, as ``seal_frames`` writes them.
        faults: Not zero for a tensor with levels that the ladder lacks, as encoding finds them.
        max_prelude_bytes: Bytes that the prelude of each frame has at most.
    """

    memory: Memory
    target: Any
    places: list[int]
    results: Any
    faults: Any
    max_prelude_bytes: list[int]

    @cached_property
    def sizes(self) -> list[int]:
        """Return the size of each frame in bytes; waits for the device.

        Raises:
            InvalidArgument: A tensor has levels that the ladder lacks.
        """
        return self._checked_sizes(*self.memory.fetch_all(self.faults, self.results))

    def begin_preludes(self) -> None:
        """Start to copy to the host what :attr:`preludes` needs: it then waits for nothing that comes later on the
        stream."""
        _ = self._starts

    @cached_property
    def _starts(self) -> tuple[PendingCopy, list[int]]:
        """The copy of faults, results and the start of each frame, and the bytes of each of these."""
        parts = [self.memory.part(table, 0, table.nbytes) for table in (self.faults, self.results)]
        for at, limit in zip(self.places, self.max_prelude_bytes, strict=True):
            parts.append(self.memory.part(self.target, at, at + limit))
        lengths = [len(part) for part in parts]
        return self.memory.begin_heads(parts, lengths), lengths

    @cached_property
    def preludes(self) -> list[np.ndarray]:
        """Return the prelude of each frame, uint8 on the host, for :func:`gcodec.gpu.start_decode`; waits for the
        device once, for the sizes, too. Raises as :attr:`sizes`."""
        copy, lengths = self._starts
        faults, results, *starts = np.split(copy.result(), np.cumsum(lengths)[:-1])
        sizes = self._checked_sizes(faults.view(np.uint32), results.view(np.int64).reshape(-1, 2))
        self.__dict__["sizes"] = sizes  # as cached_property keeps them
        return [start[: prelude_size(start, size)[0]] for start, size in zip(starts, sizes, strict=True)]

    def _checked_sizes(self, faults: np.ndarray, results: np.ndarray) -> list[int]:
        sizes: list[int] = results[:, 0].tolist()
        if faults[: len(sizes)].any():
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
        _STREAM_LOG2,
        books,
        records,
        np.full(n_blocks, 0 if shared else -1, np.int64),
        np.full(n_blocks, -1, np.int64),
        shared is not None and shared.references,
        np.zeros((n_blocks, 0), np.uint32),
    )


def frame_bound(source: GpuSource, dtype: DType, bit_layout: BitLayout, container: int) -> int:
    """Return the max size of a frame in bytes, whatever the values."""
    return _start(source.shape, dtype, bit_layout, container, None).prelude_bytes + raw_bytes(source.n, dtype, BLOCK)


def _start(
    shape: tuple[int, ...], dtype: DType, bit_layout: BitLayout, container: int, shared: SharedCodebook | None
) -> Start:
    """Return what a frame begins with, with a codebook or without."""
    bare = bare_start(
        dtype,
        bit_layout.mode,
        container,
        shape,
        MAX_BLOCK_LOG2,
        _STREAM_LOG2,
        bit_layout.widths,
        bit_layout.levels,
    )
    start = start_of(bare, -(-math.prod(shape) >> MAX_BLOCK_LOG2), (shared.record,) if shared else ())
    # A device adds the size of the frame and the checksum alone.
    start.start[PRELUDE_BYTES_AT : PRELUDE_BYTES_AT + 8] = start.prelude_bytes.to_bytes(8, "little")
    return start


class TensorSpan(NamedTuple):
    """Says where the tensors of a batch lie.

    Attributes:
        values: An array over the values of all tensors.
        levels: An array over their levels.
        places: Elements of these at which the values and the levels of each tensor begin.
    """

    values: Any
    levels: Any
    places: list[tuple[int, int]]


def span_of(memory: Memory, sources: Sequence[GpuSource], dtype: DType) -> TensorSpan:
    """Return where the tensors of a batch lie."""
    check_type(dtype)
    filled = [source for source in sources if source.n]
    if filled:
        tensors = [source.tensor for source in filled]
        values, at = memory.span(tensors, f"uint{dtype.bits}")
        graded = filled[0].levels is not None
        # Where there are no levels, kernels look at none, and any array of bytes does.
        levels, level_at = memory.span([source.levels for source in filled] if graded else tensors, "uint8")
    else:
        values, levels = memory.rooms((1, f"uint{dtype.bits}"), (1, "uint8"))
        at = level_at = []
    found = iter(zip(at, level_at, strict=True))
    return TensorSpan(values, levels, [next(found) if source.n else (0, 0) for source in sources])


class TensorTable(NamedTuple):
    """A batch as launches take it, on the host.

    Attributes:
        rows: As in :class:`launch_tables.Tensors`.
        owner: As there.
        n_blocks: Number of blocks.
    """

    rows: np.ndarray
    owner: np.ndarray
    n_blocks: int


def table_of(
    sizes: Sequence[int], places: Sequence[tuple[int, int]], dtype: DType, shared: SharedCodebook | None
) -> TensorTable:
    """Return a batch as launches take it.

    Args:
        sizes: Number of values of each tensor.
        places: As of :class:`TensorSpan`.
        shared: The codebook of all frames, or None.
    """
    book, references = 0 if shared else -1, int(shared is not None and shared.references)
    rows, counts, first = [], [], 0
    for n, (value_at, levels_at) in zip(sizes, places, strict=True):
        rows.append((value_at, levels_at, n, first, book, _STREAM_LOG2, references, 0, 0))
        counts.append(-(-n >> MAX_BLOCK_LOG2))
        first += counts[-1]
    owner = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    return TensorTable(np.array(rows, np.int64).reshape(-1, END + 1), owner, first)


def counted_pieces(sizes: Sequence[int], places: Sequence[tuple[int, int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the pieces of tensors that have histograms of their own: their sizes, and where they begin.

    Args:
        sizes: Number of values of each tensor.
        places: As of :class:`TensorSpan`.
    """
    pieces = [
        (min(MAX_COUNTED, n - first), (values_at + first, levels_at + first))
        for n, (values_at, levels_at) in zip(sizes, places, strict=True)
        for first in range(0, n, MAX_COUNTED)
    ]
    return [n for n, _ in pieces], [place for _, place in pieces]


def fit_codebook(
    memory: Memory, sources: Sequence[GpuSource], dtype: DType, bit_layout: BitLayout, options: EncoderOptions
) -> SharedCodebook | None:
    """Return a codebook that suits some tensors together; None where all values are zero.

    Waits for the device once, for the histogram.
    """
    span = span_of(memory, sources, dtype)
    sizes, places = counted_pieces([source.n for source in sources], span.places)
    batch = table_of(sizes, places, dtype, None)
    n_levels = len(bit_layout.levels)
    window, center = window_of(n_levels)
    n_bins = 2 + n_levels * window
    assert n_bins <= MAX_BINS
    rows, owner, drops, counts = memory.send_all(
        batch.rows, batch.owner, drops_of(bit_layout), np.zeros((len(sizes), n_bins), np.uint32)
    )
    tensors = Tensors(span.values, span.levels, rows, owner)
    value_coding = value_coding_of(dtype, n_levels, len(bit_layout.widths), None, False)
    bounds, counter = (np.uint32(window), np.uint32(center)), counter_for(dtype.bits)
    memory.launch(counter, batch.n_blocks, tensors, value_coding, drops, *bounds, counts)
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


def warm_codebooks() -> None:
    """Run the host's kernels that make a codebook of a histogram, which are those of every type."""
    window, center = window_of(1)
    from_histogram(np.ones(2 + window, np.uint64), 8, 1, center)


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
    span, n = span_of(memory, sources, dtype), len(sources)
    room = -1 if target is None else len(target) & ~7
    if n == 1:  # all is known but its address, and a model's tensors have few shapes
        upload = _upload_of_one(sources[0].shape, dtype, bit_layout, shared, container, room)
    else:
        shapes = [source.shape for source in sources]
        upload = _upload_of(shapes, span.places, dtype, bit_layout, shared, container, room)
    n_blocks = upload.n_blocks
    value_coding = memory.kept(
        (dtype.name, bit_layout, nearest),
        lambda: value_coding_of(dtype, len(bit_layout.levels), len(bit_layout.widths), bit_layout, nearest),
    )
    books = (shared.codebook,) if shared else ()
    tables = memory.kept((dtype.name, bit_layout, books), lambda: encode_tables(memory, dtype, bit_layout, books))
    if target is None:
        frames = memory.empty(upload.n_bytes // 4, "uint32")
        goal: Any = frames
    else:
        if len(target) < upload.bound:
            raise InvalidArgument(f"out must have at least {upload.bound} bytes, max_frame_bytes, not {len(target)}")
        frames, _ = memory.span([target], "uint32")
        goal = target
    rows, owner, assembly, preludes, faults, results, numbers, told = memory.send_packed(upload.packed)
    block_places, block_sizes, kinds = memory.rooms((n_blocks, "int64"), (n_blocks, "uint32"), (n_blocks, "uint8"))
    tensors = Tensors(span.values, span.levels, rows, owner)
    out = Output(frames, block_sizes, kinds, faults, numbers, told)
    has_references = shared is None or shared.references
    n_levels = len(bit_layout.levels)
    kernels = encoders_for(dtype.bits, bit_layout.widths, n_levels, bit_layout.lossy, has_references)
    memory.launch(kernels.encode, n_blocks, tensors, value_coding, tables, out)
    memory.launch(kernels.seal, n, rows, assembly, value_coding, out, preludes, block_places, results)
    memory.launch(kernels.bare, n_blocks, tensors, value_coding, tables, out, block_places)
    return Batch(memory, goal, upload.places, results, faults, upload.max_prelude_bytes)


class _Upload(NamedTuple):
    """Holds what the encoding of a batch sends to the device, and what follows from it.

    Attributes:
        packed: Rows, owner, assembly, starts of preludes, faults, results, and zeros for what blocks number themselves
            by and tell each other, all of :func:`encode`.
        n_blocks: Number of blocks.
        places: The byte at which each frame begins.
        n_bytes: Bytes that the frames take at most.
        bound: Max bytes of the first frame.
        max_prelude_bytes: Bytes that the prelude of each frame has at most.
    """

    packed: PackedArrays
    n_blocks: int
    places: list[int]
    n_bytes: int
    bound: int
    max_prelude_bytes: list[int]


def _upload_of(
    shapes: Sequence[tuple[int, ...]],
    span_places: Sequence[tuple[int, int]],
    dtype: DType,
    bit_layout: BitLayout,
    shared: SharedCodebook | None,
    container: int,
    room: int,
) -> _Upload:
    """Return what is sent to encode tensors of these shapes that begin at these places.

    Args:
        span_places: Where they begin, as of :class:`TensorSpan`.
        dtype: As of :func:`encode`.
        bit_layout: As there.
        shared: As there.
        container: As there.
        room: Bytes of the memory for the frame of a batch of one; -1 where memory is made for it.
    """
    batch, n = table_of(list(map(math.prod, shapes)), span_places, dtype, shared), len(shapes)
    parts, starts, places, size = _assembly(shapes, dtype, bit_layout, shared, container)
    bound = int(parts[0, LIMIT]) if n else 0
    if room >= 0:
        parts[0, ROOM] = room
    batch.rows[:, BODY] = parts[:, PLACE] + parts[:, PRELUDE] // 4
    batch.rows[:, END] = parts[:, PLACE] + parts[:, ROOM] // 4
    zeros = (
        np.zeros(n, np.uint32),
        np.zeros((n, 2), np.int64),
        np.zeros(1, np.uint32),
        np.zeros(batch.n_blocks, np.uint64),
    )
    sent = packed(batch.rows, batch.owner, parts, starts, *zeros)
    return _Upload(sent, batch.n_blocks, places, size, bound, parts[:, [PRELUDE, BARE]].max(axis=1).tolist())


@lru_cache(256)
def _upload_of_one(
    shape: tuple[int, ...],
    dtype: DType,
    bit_layout: BitLayout,
    shared: SharedCodebook | None,
    container: int,
    room: int,
) -> _Upload:
    return _upload_of([shape], [(0, 0)], dtype, bit_layout, shared, container, room)


def _assembly(
    shapes: Sequence[tuple[int, ...]],
    dtype: DType,
    bit_layout: BitLayout,
    shared: SharedCodebook | None,
    container: int,
) -> tuple[np.ndarray, np.ndarray, list[int], int]:
    """Return the arguments by which frames are put together.

    Returns:
        The table that ``seal_frames`` takes, int64[n_frames, 8]; the starts of the frames' preludes,
        uint32[n], each of a coded frame and then of one with raw blocks only; the byte at which each frame begins; and
        the bytes that all of them take.
    """
    parts, starts, places, at, n_words = [], [], [], 0, 0
    for shape in shapes:
        made = _start_of(shape, dtype, bit_layout, shared, container)
        parts.append((made.n_blocks, made.full, made.bare, made.limit, at // 4, made.limit, n_words, made.words))
        starts.append(made.start)
        places.append(at)
        n_words += len(made.start) // 4
        at += -(-made.limit // _ALIGN) * _ALIGN
    return np.array(parts, np.int64).reshape(-1, 8), np.frombuffer(b"".join(starts), np.uint32), places, at


class _Start(NamedTuple):
    """Holds what a frame begins with, and what is known of it before its blocks are.

    Attributes:
        n_blocks: Number of its blocks.
        full: Bytes of its prelude with the codebook.
        bare: The same without.
        limit: Max bytes of the frame.
        words: Words of the start of a prelude.
        start: The starts of both preludes.
    """

    n_blocks: int
    full: int
    bare: int
    limit: int
    words: int
    start: bytes


@lru_cache(256)
def _start_of(
    shape: tuple[int, ...], dtype: DType, bit_layout: BitLayout, shared: SharedCodebook | None, container: int
) -> _Start:
    """Return the start of a frame of a tensor of this shape; a model's tensors have few shapes."""
    n = math.prod(shape)
    full, bare = (_start(shape, dtype, bit_layout, container, books) for books in (shared, None))
    length = full.index_at
    start = bytes(full.start.ljust(length, b"\0") + bare.start.ljust(length, b"\0"))
    limit = bare.prelude_bytes + raw_bytes(n, dtype, BLOCK)
    return _Start(-(-n >> MAX_BLOCK_LOG2), full.prelude_bytes, bare.prelude_bytes, limit, length // 4, start)
