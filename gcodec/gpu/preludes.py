"""The preludes of frames that lie on a device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import GcodecError
from ..format.prelude import (
    CHECKSUM_AT,
    CHECKSUM_HOLE,
    FRAME_SIZE_AT,
    HEADER_BYTES,
    FindCodebook,
    Prelude,
    prelude_size,
)
from ..frame.decode import read_start
from ..kernels.cuda.launch_tables import MAX_BLOCK_LOG2
from .gpu_memory import Memory
from .kernel_tables import NAMES

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
        """Return True if the kernels can decode the frame: type and size of blocks are known, and there is nothing for
        blocks of other kinds than constant, raw and coded ones."""
        prelude = self.prelude
        known = prelude.dtype.name in NAMES and prelude.block_log2 <= MAX_BLOCK_LOG2
        return known and not (prelude.residuals or prelude.templates or prelude.changes or prelude.dictionaries)


def parse(
    memory: Memory, frames: Sequence[Any], find: FindCodebook | None = None, on_host: Sequence[np.ndarray | None] = ()
) -> list[Parsed]:
    """Read the preludes of frames; waits for the device once, or twice where a prelude is long, unless all of them are
    on the host, too.

    Args:
        frames: Contiguous tensors of bytes on the device.
        find: Looks up codebooks that frames name.
        on_host: Of each its bytes on the host, or None; or nothing.

    Raises:
        InsufficientData: A frame ends early.
        Corruption: A prelude is damaged.
        Unsupported: A prelude has something that is not known.
    """
    lengths = [frame.shape[0] for frame in frames]
    known = on_host or [None] * len(frames)
    heads = _heads(memory, frames, known, [min(length, _GUESS) for length in lengths])
    alike = _parse_alike(frames, heads, lengths, find)
    if alike:
        return alike
    sizes = [prelude_size(head, length) for head, length in zip(heads, lengths, strict=True)]
    if any(start > len(head) for (start, _), head in zip(sizes, heads, strict=True)):
        heads = _heads(memory, frames, known, [max(start, HEADER_BYTES) for start, _ in sizes])
    return [
        Parsed(frame, *read_start(np.ascontiguousarray(head), start, size, find))
        for frame, head, (start, size) in zip(frames, heads, sizes, strict=True)
    ]


def _heads(
    memory: Memory, frames: Sequence[Any], on_host: Sequence[np.ndarray | None], sizes: Sequence[int]
) -> list[np.ndarray]:
    """Return the first bytes of frames, from the device where they are not on the host."""
    fetched = [i for i, data in enumerate(on_host) if data is None]
    found = iter(memory.heads([frames[i] for i in fetched], [sizes[i] for i in fetched]) if fetched else ())
    return [next(found) if data is None else data[:size] for data, size in zip(on_host, sizes, strict=True)]


def _parse_alike(
    frames: Sequence[Any], heads: Sequence[np.ndarray], lengths: Sequence[int], find: FindCodebook | None
) -> list[Parsed]:
    """Read the preludes of frames that differ in nothing but the sizes of their blocks, all at once, as those of equal
    tensors with one codebook do; return none if the frames are others, or if something is wrong with one.

    Args:
        heads: Of each its first bytes.
        lengths: Bytes of each tensor.
        find: Looks up codebooks that frames name.
    """
    if len(frames) < 2 or min(map(len, heads)) < HEADER_BYTES:
        return []
    try:
        n_bytes, first_size = prelude_size(heads[0], lengths[0])
        if min(map(len, heads)) < n_bytes:
            return []
        prelude, sizes, _ = read_start(np.ascontiguousarray(heads[0]), n_bytes, first_size, find)
    except GcodecError:
        return []
    data, at, end = np.stack([head[:n_bytes] for head in heads]), prelude.index_at, prelude.index_at + 4 * len(sizes)
    common = np.ones(n_bytes, bool)
    common[FRAME_SIZE_AT : FRAME_SIZE_AT + 8] = common[CHECKSUM_AT : CHECKSUM_AT + 8] = common[at:end] = False
    index = data[:, at:end].view("<u4").astype(np.int64)
    frame_bytes, stated = (data[:, place : place + 8].view("<u8")[:, 0] for place in (FRAME_SIZE_AT, CHECKSUM_AT))
    ends = n_bytes + np.cumsum(index, axis=1)
    if (
        (data == data[0])[:, common].all()
        and (frame_bytes == (ends[:, -1] if len(sizes) else n_bytes)).all()
        and (frame_bytes <= np.array(lengths, np.uint64)).all()
        and not (index & 7).any()
        and (data.view("<u4") @ _multipliers(n_bytes // 4) == stated).all()
    ):
        return list(map(Parsed, frames, [prelude] * len(frames), index, ends - index))
    return []


@lru_cache(16)
def _multipliers(n_words: int) -> np.ndarray:
    """Return what the words of a prelude are multiplied by for its checksum (docs/format.md, section 3), uint64[n];
    where the checksum stands, it is 0."""
    result = (np.arange(1, n_words + 1, dtype=np.uint32) * np.uint32(0x9E3779B1) | np.uint32(1)).astype(np.uint64)
    result[CHECKSUM_HOLE : CHECKSUM_HOLE + 2] = 0
    return result
