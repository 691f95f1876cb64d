"""Write a frame: its blocks, on one thread or several, and its prelude."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

import numpy as np

from ..dtypes import DType
from ..format.change_codebook import ChangeCodebook
from ..format.dictionary import Dictionary
from ..format.modes import lossless
from ..format.prelude import Prelude
from ..format.shipped_changes import shortest_record
from ..kernels.block import header
from ..kernels.block.block_index import seal_prelude
from ..kernels.core.bundles import Geometry
from ..kernels.core.specialized import Specialized
from ..memory import MAX_POOLED_BLOCK, Borrowed, acquire, release
from ..plan.indexing import INDEXED_LOG2
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest
from ..plan.sampling import STREAM_LOG2
from ..tensors import Values, hash_of
from ..threads import OrderedWriter, n_threads, run_parallel
from .kinds import BLOCK_KINDS, BlockEncoder
from .sizes import block_log2, raw_bytes


class FullError(Exception):
    """Raised when a frame is longer than the room for it."""


class FrameWriter(NamedTuple):
    """Writes one frame; holds what all its blocks have in common.

    Attributes:
        prelude: The frame's prelude.
        plan: The plan of the frame, which says of which kind blocks are to be.
        encoders: By number of a kind, what encodes the blocks that are planned as that kind.
        sizes: uint32[n_blocks], bytes of each block, filled in as they are written.
        limit: Largest number of bytes that the frame may take.
        raw: Largest number of bytes that a block takes.
        trial: Largest number of bytes that a block takes while it is tried, before it is stored raw.
    """

    prelude: Prelude
    plan: FramePlan
    encoders: dict[int, BlockEncoder]
    sizes: np.ndarray
    limit: int
    raw: int
    trial: int

    @classmethod
    def of(cls, request: EncodeRequest, plan: FramePlan, rounded: np.ndarray | None = None) -> FrameWriter:
        """Return the writer of one frame; arguments as for ``encode_values``."""
        bits, dtype, dimensions, container = request.values
        bit_layout, prediction, base = request.bit_layout, plan.prediction, request.base
        log2 = block_log2(dtype) if plan.sparse is None else plan.sparse.sizes.block_log2
        dictionaries: tuple[Dictionary, ...] = ()
        if plan.indexed is not None:
            log2, dictionaries = INDEXED_LOG2, (plan.indexed.dictionary,)
        raw, trial = block_sizes(dtype, log2)
        block, changes = 1 << log2, None if plan.sparse is None else plan.sparse.codebook
        of_changes = () if changes is None else (shortest_record(changes),)
        records = (*plan.records, *of_changes, *[dictionary.record for dictionary in dictionaries])
        templates = () if prediction is None else prediction.templates
        if changes is not None and changes.with_base and all(map(len, templates)):
            templates = (*templates, _BASE)
        base_hash = 0
        if base is not None and not all(map(len, templates)):
            base_hash = plan.sparse.base_hash if plan.sparse else hash_of(base, n_threads(request.threads, len(bits)))
        prelude = Prelude(
            dtype,
            bit_layout.mode,
            container,
            dimensions,
            log2,
            plan.stream_log2,
            bit_layout.widths,
            bit_layout.levels,
            records,
            plan.codebooks,
            () if prediction is None else prediction.codebooks,
            templates,
            base_hash,
            plan.columns,
            () if changes is None else (changes,),
            dictionaries,
        )
        n_blocks = -(-len(bits) >> log2)
        geometry, sizes = Geometry(len(bits), block, 1 << plan.stream_log2), np.empty(n_blocks, np.uint32)
        return cls(
            prelude,
            plan,
            {kind: BLOCK_KINDS[kind].make_encoder(request, plan, geometry, sizes, rounded) for kind in plan.kinds},
            sizes,
            prelude.bare_bytes + raw_bytes(len(bits), dtype, block),
            raw,
            trial,
        )

    @property
    def block(self) -> int:
        """Values of a block."""
        return 1 << self.prelude.block_log2

    def blocks(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write blocks back to back, each by the encoder of its planned kind; see :meth:`kinds.BlockEncoder.encode`."""
        for first, stop, kind in self.plan.runs(begin, end):
            at = self.encoders[kind].encode(first, stop, out, at, borrowed)
        return at

    def write(self, out: np.ndarray, n_workers: int) -> int:
        """Write the frame to the start of ``out`` (uint8[n]) on ``n_workers`` threads, and return its size. Raises
        FullError."""
        start = self.prelude.prelude_bytes
        if start > len(out):
            raise FullError
        end = write_blocks(self, out, start, n_workers)
        write_prelude(self.prelude, self.sizes, end, out)
        return end


class BlocksWriter(Protocol):
    """Writes blocks of a frame whose prelude has been decided; for the attributes see :class:`FrameWriter`."""

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each block, filled in as they are written."""

    @property
    def raw(self) -> int:
        """Largest number of bytes that a block takes."""

    @property
    def trial(self) -> int:
        """Largest number of bytes that a block takes while it is tried."""

    @property
    def block(self) -> int:
        """Values of a block."""

    def blocks(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write blocks back to back; see :meth:`kinds.BlockEncoder.encode`."""


def write_blocks(writer: BlocksWriter, out: np.ndarray, at: int, n_workers: int) -> int:
    """Write all blocks from byte ``at`` of ``out`` (uint8[n]) on, and return their end. Raises FullError.

    Args:
        writer: Writes some of them.
        out: Takes them.
        at: Where the first one begins.
        n_workers: Number of threads, this one included.
    """
    n_blocks = len(writer.sizes)
    if n_workers > 1 and n_blocks > _MIN_BATCH:
        return _write_together(writer, out, at, n_workers)
    if n_blocks:
        borrowed = Borrowed()
        at = _write_run(writer, 0, n_blocks, out, at, borrowed)
        if writer.block <= MAX_POOLED_BLOCK:
            borrowed.give_back()
    return at


def _write_run(writer: BlocksWriter, begin: int, stop: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
    """Write blocks ``begin ... stop`` from byte ``at`` of ``out`` on, and return their end. Raises FullError."""
    while begin < stop:
        in_place = (len(out) - at - writer.trial) // writer.raw + 1
        if in_place > 0:
            end = min(begin + in_place, stop)
            at = writer.blocks(begin, end, out, at, borrowed)
        else:  # near the end of the room, where a trial may not fit, the block itself may
            end = begin + 1
            kind = "buffer", writer.trial
            buffer = acquire(kind, lambda: np.empty(writer.trial, np.uint8))
            size = writer.blocks(begin, end, buffer, 0, borrowed)
            at = put_block(buffer, size, out, at)
            release(kind, buffer)
        begin = end
    return at


def _write_together(writer: BlocksWriter, out: np.ndarray, at: int, n_workers: int) -> int:
    """Write all blocks on several threads; arguments and errors as of :func:`write_blocks`."""
    n_blocks = len(writer.sizes)
    batch = min(max(n_blocks // (_PARTS * n_workers), _MIN_BATCH), _MAX_BATCH)
    size = (batch - 1) * writer.raw + writer.trial
    buffers = [acquire(("buffer", size), lambda: np.empty(size, np.uint8)) for _ in range(n_workers + 3)]
    ordered = OrderedWriter(-(-n_blocks // batch), list(buffers), at, n_workers)

    def work() -> None:
        try:
            _write_parts(writer, out, ordered, batch)
        except BaseException:
            ordered.stop()
            raise

    run_parallel(work, n_workers)
    for buffer in buffers:
        release(("buffer", size), buffer)
    return ordered.end


def _write_parts(writer: BlocksWriter, out: np.ndarray, ordered: OrderedWriter, batch: int) -> None:
    """Write parts of ``batch`` blocks as long as there are some. Raises FullError."""
    borrowed = Borrowed()
    while (taken := ordered.next_part()) is not None:
        part, buffer, place = taken
        begin, stop = part * batch, min((part + 1) * batch, len(writer.sizes))
        if buffer is None:
            made = _write_run(writer, begin, stop, out, place, borrowed) - place
        else:
            made = writer.blocks(begin, stop, buffer, 0, borrowed)
        for full, n_bytes, where in ordered.complete(part, buffer, made):
            put_block(full, n_bytes, out, where)
            ordered.release(full)
    if writer.block <= MAX_POOLED_BLOCK:
        borrowed.give_back()


#: Blocks that a thread encodes at a time: few, so that all end together, but not so few that threads do little but take
#: turns at the interpreter; of small arrays so many that each thread has a few parts.
_MIN_BATCH, _MAX_BATCH, _PARTS = 8, 32, 4
_seal_prelude = Specialized(seal_prelude)


_BASE = np.zeros(0, np.float32)  #: the template that stands for the base


def write_prelude(prelude: Prelude, sizes: np.ndarray, frame_bytes: int, out: np.ndarray) -> None:
    """Write a frame's prelude.

    Args:
        prelude: What it says.
        sizes: uint32[n_blocks], bytes of each block.
        frame_bytes: Bytes of the frame.
        out: uint8, of at least ``prelude.prelude_bytes``, result.
    """
    head = np.frombuffer(bytearray(prelude.start(frame_bytes)), np.uint8)
    _seal_prelude(None, out, head, *prelude.places, sizes)


def changes_prelude(values: Values, codebook: ChangeCodebook, base_hash: int, block_log2: int) -> Prelude:
    """Return the prelude of a frame of sparse blocks with a base.

    Args:
        values: The array; its bits are not looked at.
        codebook: The codes of the changes.
        base_hash: Hash of the base.
        block_log2: log2 of the values per block.
    """
    layout = lossless(values.dtype)
    return Prelude(
        values.dtype,
        layout.mode,
        values.container,
        values.shape,
        block_log2,
        STREAM_LOG2,
        layout.widths,
        layout.levels,
        (shortest_record(codebook),),
        (),
        (),
        (_BASE,),
        base_hash,
        (),
        (codebook,),
    )


@cache
def block_sizes(dtype: DType, log2: int) -> tuple[int, int]:
    """Return the largest number of bytes of a block of 2**log2 values, and of its trial."""
    block = 1 << log2
    return header.BLOCK_HEADER + block * dtype.itemsize, block * 8 + block * (12 + dtype.head_bits) // 8 + 4096


def put_block(buffer: np.ndarray, size: int, out: np.ndarray, at: int) -> int:
    """Copy the first ``size`` bytes of ``buffer`` to byte ``at`` of ``out``, and return their end. Raises FullError."""
    if at + size > len(out):
        raise FullError
    np.copyto(out[at : at + size], buffer[:size])
    return at + size
