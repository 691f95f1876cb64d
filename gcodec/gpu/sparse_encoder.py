"""From tensors on a device and their base to frames of sparse blocks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..format.change_codebook import ChangeCodebook
from ..format.prelude import Start
from ..frame.smallest import is_surely_smallest, sure_step
from ..frame.writer import seal_start, start_of_changes
from ..kernels.block.header import BLOCK_HEADER, CODED_HEADER
from ..kernels.block.sparse_types import Counts, Differences, SparseSizes
from ..kernels.cuda.native import (
    COUNT_CHANGE_SYMBOLS,
    COUNT_DIFFERENCES,
    NOTE_ALL_DIFFERENCES,
    SEAL_SPARSE_BLOCKS,
    WRITE_SUB_STREAMS,
)
from ..kernels.cuda.sparse_tables import (
    CLASS_PART_LOG2,
    N_CLASS_SYMBOLS,
    N_STEP_SYMBOLS,
    N_SYMBOLS,
    FoundChanges,
    GpuChangeCodes,
    SparseSource,
)
from ..kernels.entropy.changes import MAX_CATEGORIES, MAX_CLASSES
from ..options import EncoderOptions
from ..plan import sparse_frames
from ..plan.finding import MAX_SHARE_OF_BASE
from ..tensors import Values
from .gpu_memory import Memory
from .sparse_decoder import MAX_BITS, bounds_of, hash_from, hash_on_device

MIN_VALUES = 1 << 14  #: of fewer, the host compares frames of several kinds


class _Tensor(NamedTuple):
    """Holds a tensor that is encoded.

    Attributes:
        memory: The device.
        values: Type and shape of the tensor, and bits that are looked at by nobody.
        tensor: The tensor on the device, contiguous.
        base: The base on the device, contiguous.
        n: Number of values.
        sizes: Sizes of blocks and sub-streams.
        n_streams: Number of sub-streams.
        n_parts: Number of their parts, as :data:`CLASS_PART_LOG2` says.
    """

    memory: Memory
    values: Values
    tensor: Any
    base: Any
    n: int
    sizes: SparseSizes
    n_streams: int
    n_parts: int


class _Found(NamedTuple):
    """Holds what differs, by classes of the base's magnitude, with the codes for it and the bits that it takes."""

    source: SparseSource
    changes: FoundChanges
    codebook: ChangeCodebook
    n_bits: int


class _Layout(NamedTuple):
    """Says where the parts of a frame go.

    Attributes:
        rows: int64[n_blocks, 8], with columns ``PLACE_WORD`` ... ``FIRST_STREAM`` of :mod:`sparse_tables`.
        begins: int64[n_streams], byte at which each sub-stream begins; -1 in blocks that are raw.
        sizes: uint32[n_blocks], bytes of each block.
        frame_bytes: Bytes of the frame.
    """

    rows: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray
    frame_bytes: int


def encode(memory: Memory, values: Values, tensor: Any, base: Any, options: EncoderOptions) -> Any | None:
    """Encode a tensor against its base, as the host's encoder does; waits for the device some times.

    Args:
        memory: The device.
        values: Type and shape of the tensor; its bits are not looked at.
        tensor: The tensor, contiguous and on the device.
        base: The base, contiguous and on the device, of its type and number of values.
        options: Options of the encoder.

    Returns:
        The frame, a tensor of bytes on the device; None where the host has to encode, because frames of other kinds may
        be smaller: too much differs, or there are few values.
    """
    n = math.prod(values.shape)
    if n < MIN_VALUES or not options.sparse or values.dtype.bits > MAX_BITS:
        return None
    sizes = sparse_frames.sparse_sizes(n, with_base=True)
    n_streams = -(-n >> sizes.stream_log2)
    n_parts = -(-n >> min(sizes.stream_log2, CLASS_PART_LOG2))
    own = _Tensor(memory, values, tensor, base, n, sizes, n_streams, n_parts)
    choices, some = _look(own)
    if not choices:
        return None
    sums = hash_on_device(memory, base, n, values.dtype.bits)
    found: list[_Found] = []
    for thresholds in choices:
        source = _source(own, thresholds)
        counted = memory.send(np.zeros((n_streams, MAX_CLASSES), np.uint32))
        parts = memory.empty(n_parts * MAX_CLASSES, "uint32")
        memory.launch(COUNT_DIFFERENCES, n_parts, source, parts, counted)
        counts = memory.fetch(counted)
        changes = _find(own, source, parts, counted, counts)
        if changes is None:
            return None
        found.append(_Found(source, changes, *_codebook(own, changes, counts, thresholds)))
        if sparse_frames.is_settled(found[-1].codebook, n):
            break
    source, changes, codebook, n_bits = min(
        found, key=lambda one: sparse_frames.bits_with_record(one.codebook, one.n_bits)
    )
    if not is_surely_smallest(some, n, n_bits):
        return None
    start = start_of_changes(values, codebook, hash_from(memory.fetch(sums), n), sizes.block_log2)
    return _write(own, source, changes, codebook, start)


def _look(own: _Tensor) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Look at some of the values.

    Returns:
        Where classes of the base's magnitude may begin, but the first; nothing if too much differs. And the values that
        :func:`is_surely_smallest` looks at.
    """
    quick, sure = slice(None, None, sparse_frames.quick_step(own.n)), slice(None, None, sure_step(own.n))
    slices = sparse_frames.sample_slices(own.n)
    asked = [(own.tensor, quick), (own.base, quick), (own.tensor, sure)]
    asked += [(tensor, part) for tensor in (own.tensor, own.base) for part in slices]
    some, earlier, to_be_sure, *pieces = own.memory.slices_on_host(asked, own.values.dtype)
    if not sparse_frames.is_sparse_sample(some, earlier):
        return [], to_be_sure
    values, base = (np.concatenate(pieces[part]) for part in (slice(len(slices)), slice(len(slices), None)))
    counts = sparse_frames.count_by_top(values, base, sparse_frames.begins_of_pieces(len(values)))
    return sparse_frames.choose_thresholds(counts, own.n, own.values.dtype.bits), to_be_sure


def _source(own: _Tensor, thresholds: tuple[int, ...]) -> SparseSource:
    """Return the tensor as kernels take it."""
    bits = own.values.dtype.bits
    (values, _), (base, _) = (own.memory.span([tensor], f"u{bits // 8}") for tensor in (own.tensor, own.base))
    return SparseSource(
        values,
        base,
        own.memory.send(bounds_of(thresholds, bits)),
        np.uint64(own.n),
        *map(np.uint32, own.sizes),
    )


def _find(own: _Tensor, source: SparseSource, parts: Any, counted: Any, counts: np.ndarray) -> FoundChanges | None:
    """Start to find what differs; return None if it is too much.

    Args:
        source: The same as kernels take it.
        parts: uint32[16 n_parts] on the device: how many values each part has of each class and, 16 bits up, how many
            of these differ.
        counted: uint32[n_streams, 16] on the device, how many values of each class differ.
        counts: The same on the host.
    """
    totals = counts.sum(axis=1, dtype=np.int64)
    n_changes = int(totals.sum())
    if n_changes > MAX_SHARE_OF_BASE * own.n:
        return None
    memory, room = own.memory, max(n_changes, 1)
    steps = memory.empty(room, f"u{own.values.dtype.itemsize}")
    found = FoundChanges(memory.empty(room, "uint32"), steps, memory.send(np.cumsum(totals) - totals), counted)
    memory.launch(NOTE_ALL_DIFFERENCES, own.n_parts, source, found, parts)
    return found


def _codebook(
    own: _Tensor, found: FoundChanges, counts: np.ndarray, thresholds: tuple[int, ...]
) -> tuple[ChangeCodebook, int]:
    """Return the codes for what differs, and the bits that it takes with them."""
    memory, kind = own.memory, np.dtype(own.values.dtype.uint)
    classes, steps = memory.zeros(N_SYMBOLS, "uint64"), memory.zeros(N_STEP_SYMBOLS, "uint64")
    memory.launch(COUNT_CHANGE_SYMBOLS, own.n_streams, found, classes, steps)
    symbols = memory.fetch(classes).astype(np.int64).reshape(MAX_CLASSES, N_CLASS_SYMBOLS)
    of_steps = memory.fetch(steps).astype(np.int64)[: 2 * own.values.dtype.bits + 1]
    total = Counts(np.zeros(MAX_CATEGORIES, np.int64), of_steps, symbols)
    nothing = np.zeros(0, np.uint32)
    numbers = Differences(nothing, nothing.astype(kind), counts, np.zeros(0, np.int64))
    return sparse_frames.fit_change_codebook(total, [numbers], thresholds, kind)


def _write(own: _Tensor, source: SparseSource, found: FoundChanges, codebook: ChangeCodebook, start: Start) -> Any:
    """Write a frame, and return it."""
    memory, tables = own.memory, codebook.encode_tables()
    is_empty = np.ones(MAX_CLASSES, np.uint8)
    is_empty[: len(codebook.classes)] = codebook.is_empty
    codes = GpuChangeCodes(*map(memory.send, (tables.classes, tables.steps, tables.counts, is_empty)))
    sizes = memory.empty(own.n_streams, "uint32")
    only_measured = memory.send(np.full(own.n_streams, -1, np.int64))
    arguments: Any = found, codes, sizes
    memory.launch(WRITE_SUB_STREAMS, own.n_streams, *arguments, only_measured, memory.empty(1, "uint32"))
    layout = _place(memory.fetch(sizes).astype(np.int64), own, start.prelude_bytes)
    prelude = np.zeros(start.prelude_bytes, np.uint8)
    seal_start(start, layout.sizes, layout.frame_bytes, prelude)
    out = memory.zeros(layout.frame_bytes >> 2, "uint32")
    memory.launch(WRITE_SUB_STREAMS, own.n_streams, *arguments, memory.send(layout.begins), out)
    rows, words = memory.send(layout.rows), memory.send(prelude.view(np.uint32))
    memory.launch(SEAL_SPARSE_BLOCKS, len(layout.rows) + 1, rows, source, sizes, words, out)
    return memory.part(out, 0, layout.frame_bytes)


def _place(sizes: np.ndarray, own: _Tensor, first: int) -> _Layout:
    """Return where the parts of a frame go, as :mod:`gcodec.kernels.block.sparse_encode` puts them.

    Args:
        sizes: int64[n_streams], bytes of each sub-stream.
        first: Byte at which the first block begins.
    """
    block_log2, stream_log2 = own.sizes
    per_block = 1 << block_log2 - stream_log2
    heads = np.arange(0, len(sizes), per_block)
    n_streams = np.diff(heads, append=len(sizes))
    totals, least = np.add.reduceat(sizes, heads), np.minimum.reduceat(sizes, heads)
    widths = np.frexp(np.maximum.reduceat(sizes, heads) - least)[1].astype(np.int64)  # bits of the largest difference
    block_bytes = CODED_HEADER + totals + (n_streams * widths + 7 >> 3) + 7 & ~7
    n_values = np.minimum(own.n - (np.arange(len(heads)) << block_log2), 1 << block_log2)
    raw_bytes = BLOCK_HEADER + (n_values * own.values.dtype.itemsize + 7 & ~7)
    is_raw = block_bytes > raw_bytes
    block_bytes = np.where(is_raw, raw_bytes, block_bytes)
    places = first + np.cumsum(block_bytes) - block_bytes
    rows = np.stack([places >> 2, block_bytes, is_raw, totals, least, widths, heads, heads], axis=1).astype(np.int64)
    before = np.cumsum(sizes) - sizes
    begins = np.repeat(places + CODED_HEADER - before[heads], n_streams) + before
    begins[np.repeat(is_raw, n_streams)] = -1
    return _Layout(rows, begins, block_bytes.astype(np.uint32), int(first + block_bytes.sum()))
