"""From frames to tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..format.codebook import Codebook
from ..format.columns import ColumnReferences
from ..format.prelude import HEADER_BYTES, FindCodebook, Prelude, prelude_size
from ..frame.decode import read_start
from ..frame.kinds import check_status
from ..kernels.block import header
from ..kernels.cuda.launch_tables import MAX_BLOCK_LOG2, DecodeTables, EncodedFrames
from ..kernels.cuda.native import decoder_for
from .gpu_memory import Memory
from .kernel_tables import NAMES, decode_tables, value_coding_of

_GUESS = 1 << 12  #: bytes of a frame that are fetched first: most preludes are shorter


class Parsed(NamedTuple):
    """A frame whose prelude was read.

    Attributes:
        data: The frame, a tensor of bytes on the device.
        prelude: Its prelude.
        sizes: Sizes of its blocks in bytes, int64[n_blocks] on the host.
        offsets: Bytes at which its blocks begin, int64[n_blocks] on the host.
    """

    data: Any
    prelude: Prelude
    sizes: np.ndarray
    offsets: np.ndarray

    @property
    def decodable(self) -> bool:
        """Return True if the kernels can decode the frame: type and size of blocks are known, and there is no base."""
        prelude = self.prelude
        known = prelude.dtype.name in NAMES and prelude.block_log2 <= MAX_BLOCK_LOG2
        return known and not prelude.refers_to_base


def parse(memory: Memory, frames: Sequence[Any], find: FindCodebook | None = None) -> list[Parsed]:
    """Read the preludes of frames; waits for the device once, or twice where a prelude is long.

    Args:
        memory: The device.
        frames: Contiguous tensors of bytes on the device.
        find: Looks up codebooks that frames name.

    Raises:
        InsufficientData: A frame ends early.
        Corruption: A prelude is damaged.
        Unsupported: A prelude has something that is not known.
    """
    heads = memory.heads(frames, [min(len(frame), _GUESS) for frame in frames])
    sizes = [prelude_size(head, len(frame)) for head, frame in zip(heads, frames, strict=True)]
    if any(start > len(head) for (start, _), head in zip(sizes, heads, strict=True)):
        heads = memory.heads(frames, [max(start, HEADER_BYTES) for start, _ in sizes])
    parsed = []
    for frame, head, (start, size) in zip(frames, heads, sizes, strict=True):
        parsed.append(Parsed(frame, *read_start(np.ascontiguousarray(head), start, size, find)))
    return parsed


@dataclass(frozen=True)
class Decoding:
    """The decoding of some frames, started on a device.

    Attributes:
        memory: The device.
        statuses: Status of each block of all frames, int32[n_blocks] on the device.
        frames: The frames.
    """

    memory: Memory
    statuses: Any
    frames: Sequence[Parsed]

    def failures(self) -> list[int]:
        """Return the numbers of frames with blocks of kinds that the device does not know, which the host has to decode
        or to refuse; waits for the device.

        Raises:
            Corruption: A block of another frame is damaged.
        """
        statuses, first, left = self.memory.fetch(self.statuses), 0, []
        if (statuses == header.OK).all():
            return []
        for number, frame in enumerate(self.frames):
            own = statuses[first : first + len(frame.sizes)]
            first += len(frame.sizes)
            bad = np.flatnonzero(own != header.OK)
            if not len(bad):
                continue
            if (own == header.BAD_KIND).any():
                left.append(number)
            else:
                check_status(int(own[bad[0]]), int(bad[0]))
        return left


def decode(memory: Memory, frames: Sequence[Parsed], targets: Sequence[Any]) -> list[Decoding]:
    """Start to decode frames, by one launch for each way to cut values into planes; waits for nothing.

    Args:
        memory: The device.
        frames: Frames for which :attr:`Parsed.decodable` is True.
        targets: Contiguous tensors on the device, as large as the frames' values, which are filled.
    """
    groups: dict[Any, list[int]] = {}
    for number, frame in enumerate(frames):
        prelude = frame.prelude
        groups.setdefault((prelude.dtype, prelude.widths, prelude.levels, bool(prelude.columns)), []).append(number)
    return [
        _decode_alike(memory, [frames[i] for i in numbers], [targets[i] for i in numbers])
        for numbers in groups.values()
    ]


def _decode_alike(memory: Memory, frames: Sequence[Parsed], targets: Sequence[Any]) -> Decoding:
    """Start to decode frames that cut values into planes in the same way, by one launch."""
    common = frames[0].prelude
    dtype = common.dtype
    rows = np.zeros((len(frames), 10), np.int64)
    numbers: dict[tuple[Codebook, ...], int] = {}
    books: list[Codebook] = []
    columns: list[ColumnReferences] = []
    filled = [(frame, target) for frame, target in zip(frames, targets, strict=True) if len(frame.sizes)]
    if filled:
        words, frame_at = memory.span([frame.data for frame, _ in filled], "uint32")
        out, out_at = memory.span([target for _, target in filled], f"u{dtype.itemsize}")
    else:
        words, frame_at = memory.empty(1, "uint32"), []
        out, out_at = words, []
    places, first = iter(zip(frame_at, out_at, strict=True)), 0
    for row, frame in zip(rows, frames, strict=True):
        prelude = frame.prelude
        here, there = next(places) if len(frame.sizes) else (0, 0)
        if prelude.codebooks not in numbers:  # the same codebooks are there once
            numbers[prelude.codebooks] = len(books)
            books += prelude.codebooks
        row[:] = (here, there, prelude.n_values, first, prelude.block_log2, prelude.stream_log2,
                  numbers[prelude.codebooks], len(prelude.codebooks), len(columns), len(prelude.columns))
        first += len(frame.sizes)
        columns += prelude.columns
    owner = np.repeat(np.arange(len(frames), dtype=np.int32), [len(frame.sizes) for frame in frames])
    offsets = np.concatenate([frame.offsets for frame in frames])
    sizes = np.concatenate([frame.sizes for frame in frames])
    *sent, statuses = memory.send_all(rows, owner, offsets, sizes, np.full(max(first, 1), -1, np.int32))
    n_levels, n_planes = len(common.levels), len(common.widths)
    value_coding = memory.kept(
        (dtype, n_levels, n_planes), lambda: value_coding_of(dtype, n_levels, n_planes, None, False)
    )
    tables = _tables_of(memory, common, tuple(books), columns)
    kernel = decoder_for(dtype.bits, dtype.head_bits, common.widths, n_levels, bool(columns))
    memory.launch(kernel, first, EncodedFrames(words, *sent), value_coding, tables, out, statuses)
    return Decoding(memory, statuses, frames)


def _tables_of(
    memory: Memory, common: Prelude, books: tuple[Codebook, ...], columns: Sequence[ColumnReferences]
) -> Any:
    """Return the tables of frames on the device, those without column references from an earlier call."""

    def make() -> DecodeTables:
        return decode_tables(memory, common.dtype, common.widths, common.levels, books, columns)

    if columns:
        return make()
    key = common.dtype, common.widths, common.levels, books
    return memory.kept(key, make)
