"""From frames to tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ..errors import Corruption
from ..format.codebook import Codebook
from ..format.columns import ColumnReferences
from ..format.prelude import Prelude
from ..frame.kinds import check_status
from ..kernels.block import header
from ..kernels.cuda.launch_tables import COUNT, FIRST, FRAME, TARGET, DecodeTables, EncodedFrames
from ..kernels.cuda.native import decoder_for
from .gpu_memory import Memory, PendingCopy
from .kernel_tables import decode_tables, value_coding_of
from .preludes import Parsed


@dataclass(frozen=True)
class Decoding:
    """The decoding of some frames, started on a device.

    Attributes:
        memory: The device.
        statuses: Status of each block of all frames, int32[n_blocks], on their way to the host.
        frames: The frames.
    """

    memory: Memory
    statuses: PendingCopy
    frames: Sequence[Parsed]

    def failures(self) -> dict[int, Corruption | None]:
        """Return what is wrong with frames that were not decoded, by number: None for blocks of kinds that the device
        does not know, which the host has to decode or to refuse. Waits for the device."""
        statuses, first, found = self.statuses.result(), 0, dict[int, Corruption | None]()
        if (statuses == header.OK).all():
            return found
        for number, frame in enumerate(self.frames):
            own = statuses[first : first + len(frame.sizes)]
            first += len(frame.sizes)
            bad = np.flatnonzero(own != header.OK)
            if len(bad):
                found[number] = None
                if not (own == header.BAD_KIND).any():
                    try:
                        check_status(int(own[bad[0]]), int(bad[0]))
                    except Corruption as error:
                        found[number] = error
        return found


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
    counts = [len(frame.sizes) for frame in frames]
    rows = np.zeros((len(frames), 10), np.int64)
    books, columns = _fill_rows(rows[:, COUNT:], [frame.prelude for frame in frames])
    filled = [i for i, count in enumerate(counts) if count]
    if filled:
        words, frame_at = memory.span([frames[i].data for i in filled], "uint32")
        out, target_at = memory.span([targets[i] for i in filled], f"u{dtype.itemsize}")
        places = slice(None) if len(filled) == len(frames) else filled
        rows[places, FRAME], rows[places, TARGET] = frame_at, target_at
    else:
        words = out = memory.empty(1, "uint32")
    n_blocks = sum(counts)
    if len(frames) == 1:  # nearly every call; all of this takes as long as the launch
        owner, offsets, sizes = np.zeros(n_blocks, np.int32), frames[0].offsets, frames[0].sizes
    else:
        rows[1:, FIRST] = np.cumsum(counts[:-1])
        owner = np.repeat(np.arange(len(frames), dtype=np.int32), counts)
        offsets = np.concatenate([frame.offsets for frame in frames])
        sizes = np.concatenate([frame.sizes for frame in frames])
    *sent, statuses = memory.send_all(rows, owner, offsets, sizes, np.full(max(n_blocks, 1), -1, np.int32))
    n_levels, n_planes = len(common.levels), len(common.widths)
    value_coding = memory.kept(
        (dtype, n_levels, n_planes), lambda: value_coding_of(dtype, n_levels, n_planes, None, False)
    )
    tables = _tables_of(memory, common, books, columns)
    kernel = decoder_for(dtype.bits, dtype.head_bits, dtype.fine_bits > 0, common.widths, n_levels, bool(columns))
    memory.launch(kernel, n_blocks, EncodedFrames(words, *sent), value_coding, tables, out, statuses)
    return Decoding(memory, memory.begin_fetch(statuses), frames)


def _fill_rows(rows: np.ndarray, preludes: Sequence[Prelude]) -> tuple[tuple[Codebook, ...], list[ColumnReferences]]:
    """Fill the columns ``COUNT`` ... ``N_SPANS`` of a table of frames, but for ``FIRST``, where 0 is left; the rows of
    frames that follow one another and share their prelude are filled at once.

    Returns:
        All codebooks, those that are the same once, and all column references.
    """
    numbers: dict[tuple[Codebook, ...], int] = {}
    books: list[Codebook] = []
    columns: list[ColumnReferences] = []
    at = 0
    for _, same in groupby(preludes, key=id):
        prelude, *others = same
        if prelude.codebooks not in numbers:
            numbers[prelude.codebooks] = len(books)
            books += prelude.codebooks
        end = at + 1 + len(others)
        rows[at:end] = (
            prelude.n_values,
            0,
            prelude.block_log2,
            prelude.stream_log2,
            numbers[prelude.codebooks],
            len(prelude.codebooks),
            len(columns),
            len(prelude.columns),
        )
        columns += prelude.columns
        at = end
    return tuple(books), columns


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
