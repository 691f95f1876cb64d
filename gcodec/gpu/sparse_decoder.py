"""From frames of sparse blocks and their base to changes on a device, and into tensors there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..format.change_codebook import ChangeCodebook
from ..frame.decode import check_base_hash
from ..frame.kinds import check_status
from ..kernels.block import header
from ..kernels.cuda.native import (
    APPLY_CHANGES,
    CHECK_SPARSE_BLOCKS,
    COPY_STORED_BLOCKS,
    COUNT_MEMBERS,
    FIND_SUB_STREAMS,
    PLACE_CHANGES,
    READ_SUB_STREAMS,
    SUM_WORDS,
)
from ..kernels.cuda.sparse_tables import (
    CLASS_PART_LOG2,
    HASH_PART_LOG2,
    N_BOUNDS,
    READ_TOGETHER,
    ChangeBooks,
    SparseFrame,
    SparseShape,
    StoredChanges,
    SubStreams,
)
from ..kernels.entropy.changes import MAX_CLASSES
from ..kernels.entropy.prefix_code import TABLE_SIZE
from .gpu_memory import Memory
from .preludes import Parsed

MAX_BITS = 32  #: of values that the kernels take


class SparsePatch(NamedTuple):
    """Says what a frame changes of its base; all of it is checked.

    Attributes:
        memory: The device.
        shape: The frame's numbers.
        frame: The frame on the device.
        streams: Its sub-streams.
        n_blocks: Its blocks.
        totals: int64[n_streams] on the host, changes of each.
        changes: The changes on the device.
    """

    memory: Memory
    shape: SparseShape
    frame: SparseFrame
    streams: SubStreams
    n_blocks: int
    totals: np.ndarray
    changes: StoredChanges

    def apply(self, out: Any) -> None:
        """Make the frame's values of the base's in ``out``, a contiguous tensor that has these; waits for nothing."""
        if self.shape.n_values:
            memory = self.memory
            values, _ = memory.span([out], f"u{self.shape.width // 8}")
            totals = memory.send(self.totals.astype(np.uint32))
            memory.launch(APPLY_CHANGES, len(self.totals), self.shape, self.streams, totals, self.changes, values)
            memory.launch(COPY_STORED_BLOCKS, self.n_blocks, self.frame, self.shape, values)


def hash_on_device(memory: Memory, tensor: Any, n: int, width: int) -> Any:
    """Start to compute the hash of a base: return uint64[n_parts] on the device, whose sum and ``n`` it is.

    Args:
        tensor: A contiguous tensor on the device, the base.
        n: Its values.
        width: Bits of a value, at most 32.
    """
    n_parts = -(-n * width >> 5 + HASH_PART_LOG2)
    sums = memory.empty(n_parts, "uint64")
    if n:
        values, _ = memory.span([tensor], f"u{width // 8}")
        memory.launch(SUM_WORDS, n_parts, values, shape_of(n, width, 0, 0), sums)
    return sums


def shape_of(n: int, width: int, block_log2: int, first_book: int) -> SparseShape:
    """Return a frame's numbers as kernels take them."""
    return SparseShape(np.uint64(n), np.uint32(width), np.uint32(block_log2), np.uint32(first_book))


def hash_from(sums: np.ndarray, n: int) -> int:
    """Return the hash of a base of ``n`` values, from what :func:`hash_on_device` computes."""
    return int(np.sum(sums, dtype=np.uint64) + np.uint64(n)) & ((1 << 64) - 1)


def read(memory: Memory, frame: Parsed, base: Any) -> SparsePatch | None:
    """Read what a frame changes of its base, and check all of it; waits for the device three times.

    Args:
        frame: A frame that refers to a base.
        base: A contiguous tensor on the device, of the frame's type and number of values.

    Returns:
        The changes; None if the frame has blocks that the kernels do not know, so that the host has to decode it.

    Raises:
        Corruption: A block is damaged.
        Unsupported: The base is another one.
    """
    prelude, n_blocks = frame.prelude, len(frame.sizes)
    n, width = prelude.n_values, prelude.dtype.bits
    if width > MAX_BITS:
        return None
    sums = hash_on_device(memory, base, n, width)
    shape = shape_of(n, width, prelude.block_log2, len(prelude.codebooks))
    books = _books_on_device(memory, prelude.changes)
    words, _ = memory.span([frame.data], "uint32")
    is_base = np.array([*(len(template) == 0 for template in prelude.templates), False], np.uint8)
    blocks = SparseFrame(words, *map(memory.send, (frame.offsets, frame.sizes, is_base)))
    logs, statuses = memory.empty(n_blocks, "uint32"), memory.empty(n_blocks, "int32")
    memory.launch(CHECK_SPARSE_BLOCKS, n_blocks, blocks, shape, books, logs, statuses)
    check_base_hash(prelude, hash_from(memory.fetch(sums), n))
    found = memory.fetch(statuses)
    if (found == header.BAD_KIND).any():
        return None
    _check_all(found)
    streams = _sub_streams(memory, memory.fetch(logs), logs, shape)
    changes = StoredChanges(memory.empty(1, "uint32"), memory.empty(1, "uint32"), memory.empty(1, f"u{width // 8}"))
    arguments: Any = blocks, shape, books
    memory.launch(FIND_SUB_STREAMS, n_blocks, blocks, shape, streams, statuses)
    n_reading = -(-streams.owner.shape[0] // READ_TOGETHER)
    memory.launch(READ_SUB_STREAMS, n_reading, *arguments, streams, changes, np.uint32(0), statuses)
    _check_all(memory.fetch(statuses))
    totals = memory.fetch(streams.counts).sum(axis=1, dtype=np.int64)
    streams = streams._replace(starts=memory.send(np.cumsum(totals) - totals))
    room = max(int(totals.sum()), 1)
    changes = StoredChanges(
        memory.empty(room, "uint32"), memory.empty(room, "uint32"), memory.empty(room, f"u{width // 8}")
    )
    memory.launch(READ_SUB_STREAMS, n_reading, *arguments, streams, changes, np.uint32(1), statuses)
    if n:
        values, _ = memory.span([base], f"u{width // 8}")
        n_parts = n_blocks << max(prelude.block_log2 - CLASS_PART_LOG2, 0)
        parts = memory.empty(n_parts * MAX_CLASSES, "uint32")
        memory.launch(COUNT_MEMBERS, n_parts, *arguments, streams, values, parts)
        memory.launch(PLACE_CHANGES, n_parts, *arguments, streams, changes, values, parts, statuses)
        _check_all(memory.fetch(statuses))
    return SparsePatch(memory, shape, blocks, streams, n_blocks, totals, changes)


def _check_all(statuses: np.ndarray) -> None:
    """Raise Corruption for the first block that is not OK."""
    bad = np.flatnonzero(statuses != header.OK)
    if len(bad):
        check_status(int(statuses[bad[0]]), int(bad[0]))


def _sub_streams(memory: Memory, logs: np.ndarray, logs_there: Any, shape: SparseShape) -> SubStreams:
    """Return room for what is known of a frame's sub-streams.

    Args:
        memory: The device.
        logs: As in :class:`SubStreams`, on the host.
        logs_there: The same on the device.
        shape: The frame's numbers.
    """
    n, log2 = int(shape.n_values), int(shape.block_log2)
    sizes = np.minimum(n - (np.arange(len(logs), dtype=np.int64) << log2), 1 << log2)
    logs = logs.astype(np.int64)
    counts = np.where(logs > 0, (sizes + (1 << logs) - 1) >> logs, 0)
    total = int(counts.sum())
    owner = np.repeat(np.arange(len(logs), dtype=np.int32), counts)
    return SubStreams(
        logs_there,
        memory.send(np.cumsum(counts) - counts),
        memory.send(owner),
        memory.empty(total, "uint32"),
        memory.empty(total, "uint32"),
        memory.send(np.zeros(1, np.int64)),
        memory.send(np.zeros((total, MAX_CLASSES), np.uint32)),
    )


def _books_on_device(memory: Memory, books: Sequence[ChangeCodebook]) -> ChangeBooks:
    """Return the tables of codebooks of changes, on the device."""
    n = len(books)
    n_classes, first_rows = np.zeros(n, np.uint32), np.zeros(n, np.uint32)
    is_empty = np.ones((n, MAX_CLASSES), np.uint8)
    bounds = np.zeros((n, N_BOUNDS), np.uint64)
    classes = [np.zeros((1, TABLE_SIZE), np.uint32)]
    steps, counts = np.zeros((n, TABLE_SIZE), np.uint16), np.zeros((n, TABLE_SIZE), np.uint32)
    for k, book in enumerate(books):
        if book.with_base:
            tables = book.decode_tables()
            n_classes[k], first_rows[k] = len(book.classes), sum(map(len, classes))
            is_empty[k, : len(book.classes)] = book.is_empty
            bounds[k] = bounds_of(book.thresholds, book.bits)
            classes.append(tables.classes.reshape(-1, TABLE_SIZE))
            steps[k], counts[k] = tables.steps, tables.counts
    arrays = n_classes, bounds, is_empty, first_rows, np.concatenate(classes), steps, counts
    return ChangeBooks(*[memory.send(a if a.size else np.zeros((1, *a.shape[1:]), a.dtype)) for a in arrays])


def bounds_of(thresholds: Sequence[int], bits: int) -> np.ndarray:
    """Return where classes begin and end, as in :class:`ChangeBooks`: uint64[17].

    Args:
        thresholds: Where the classes after the first begin.
        bits: Bits of a value.
    """
    bounds = np.full(N_BOUNDS, 1 << bits - 1, np.uint64)
    bounds[0], bounds[1 : 1 + len(thresholds)] = 0, thresholds
    return bounds
