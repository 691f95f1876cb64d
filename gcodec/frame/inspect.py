"""A frame's description of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..format.prelude import CONTAINERS, MODES
from ..kernels.block.header import BAD_SIZE, BLOCK_HEADER
from .decode import FrameReader
from .kinds import BLOCK_KINDS, check_status


@dataclass(frozen=True)
class FrameInfo:
    """The description of a frame that :func:`inspect` returns.

    Attributes:
        dtype: Name of the value type.
        shape: Shape of the array.
        mode: Name of the mode.
        container: "numpy" or "torch", the kind of array that was encoded.
        n_values: Number of values.
        value_bytes: Bytes of the values.
        frame_bytes: Bytes of the frame.
        prelude_bytes: Bytes of its prelude.
        block_values: Values per block.
        stream_values: Values per sub-stream.
        n_blocks: Number of blocks.
        levels: Mantissa bits dropped at each level.
        planes: Width of each plane in bits.
        codebooks: For each codebook of coded blocks, its number of symbols and the bits of its longest code.
        change_codebooks: For each codebook of sparse blocks, its number of classes and the bits of its longest code.
        dictionaries: For each dictionary of indexed blocks, its number of entries and the bits of its longest code.
        kinds: Number of blocks of each kind, by the kind's name.
    """

    dtype: str
    shape: tuple[int, ...]
    mode: str
    container: str
    n_values: int
    value_bytes: int
    frame_bytes: int
    prelude_bytes: int
    block_values: int
    stream_values: int
    n_blocks: int
    levels: tuple[int, ...]
    planes: tuple[int, ...]
    codebooks: tuple[tuple[int, int], ...]
    change_codebooks: tuple[tuple[int, int], ...]
    dictionaries: tuple[tuple[int, int], ...]
    kinds: dict[str, int]

    @property
    def n_codebooks(self) -> int:
        """The number of codebooks in the frame."""
        return len(self.codebooks) + len(self.change_codebooks) + len(self.dictionaries)

    @property
    def ratio(self) -> float:
        """The bytes of the values over the bytes of the frame."""
        return self.value_bytes / self.frame_bytes

    @property
    def bits_per_value(self) -> float:
        """The bits of the frame per value; 0 where there are none."""
        return 8 * self.frame_bytes / self.n_values if self.n_values else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as a dictionary that JSON can hold."""
        return {**asdict(self), "ratio": self.ratio, "bits_per_value": self.bits_per_value}


def inspect(data: Any) -> FrameInfo:
    """Describe a frame, from its prelude and each block's kind.

    Blocks' checksums are not verified; ``decode`` does that.

    Args:
        data: Bytes-like, one frame; bytes after it are ignored.

    Returns:
        Its type, shape, mode, codebooks and blocks.

    Raises:
        InsufficientData: If ``data`` ends before the frame does.
        Corruption: If the prelude is damaged, or a block has fewer bytes than its header.
        Unsupported: If it names a codebook that is not found, or is of a later version.
    """
    frame = FrameReader(data)
    prelude = frame.prelude
    short = np.flatnonzero(frame.sizes < BLOCK_HEADER)
    if len(short):
        check_status(BAD_SIZE, int(short[0]))
    count = (
        np.bincount(frame.data[frame.offsets], minlength=len(BLOCK_KINDS))
        if prelude.n_blocks
        else np.zeros(len(BLOCK_KINDS), np.int64)
    )
    kinds = {kind.name: int(count[kind.number]) for kind in BLOCK_KINDS}
    if len(count) > len(BLOCK_KINDS):
        kinds["unknown"] = int(count[len(BLOCK_KINDS) :].sum())
    return FrameInfo(
        prelude.dtype.name,
        prelude.shape,
        MODES[prelude.mode],
        CONTAINERS[prelude.container],
        prelude.n_values,
        prelude.n_values * prelude.dtype.itemsize,
        len(frame.data),
        prelude.prelude_bytes,
        1 << prelude.block_log2,
        1 << prelude.stream_log2,
        prelude.n_blocks,
        tuple(level.drop for level in prelude.levels),
        prelude.widths,
        tuple((book.n_symbols, max(book.lengths)) for book in prelude.codebooks),
        tuple((len(book.classes), max(map(max, (book.counts, *book.classes)))) for book in prelude.changes),
        tuple((book.n_entries, max(book.codebook.lengths)) for book in prelude.dictionaries),
        kinds,
    )
