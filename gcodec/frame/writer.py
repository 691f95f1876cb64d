"""Write a frame: its blocks, on one thread or several, and its prelude."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from ..base_hash import hash_of
from ..dtypes import DType
from ..format.change_codebook import ChangeCodebook
from ..format.modes import BitLayout, lossless
from ..format.prelude import Start, bare_start, start_of
from ..format.shipped_changes import shortest_record
from ..kernels.block.block_index import seal_prelude
from ..kernels.core.bundles import Geometry
from ..kernels.core.specialized import Specialized
from ..memory import MAX_POOLED_BLOCK, Borrowed, acquire, release
from ..plan.indexing import INDEXED_LOG2
from ..plan.plan import CODED_ONLY, FramePlan
from ..plan.request import EncodeRequest
from ..plan.sampling import STREAM_LOG2
from ..tensors import Values
from ..threads import OrderedWriter, n_threads, run_parallel
from .coded_blocks import CodedEncoder
from .kinds import BLOCK_KINDS, BlockEncoder
from .sizes import block_log2, block_sizes, raw_bytes


class FullError(Exception):
    """Raised when a frame is longer than the room for it."""


class FrameForm(NamedTuple):
    """Holds what depends on an array's type and shape, and on how its bits are kept, alone.

    Attributes:
        start: What the frame begins with, without codebooks.
        geometry: Sizes of the array's parts.
        n_blocks: Number of its blocks.
        limit: Largest number of bytes that the frame may take.
        raw: Largest number of bytes that a block takes.
        trial: Largest number of bytes that a block takes while it is tried, before it is stored raw.
        is_pooled: True if blocks are so short that buffers for them are kept.
    """

    start: bytes
    geometry: Geometry
    n_blocks: int
    limit: int
    raw: int
    trial: int
    is_pooled: bool


@lru_cache(512)
def frame_form(
    dtype: DType, layout: BitLayout, container: int, shape: tuple[int, ...], log2: int, stream_log2: int
) -> FrameForm:
    """Return what depends on this alone; arguments as of ``format.prelude.bare_start``."""
    start = bare_start(dtype, layout.mode, container, shape, log2, stream_log2, layout.widths, layout.levels)
    n_values, block = prod(shape), 1 << log2
    n_blocks, (raw, trial) = -(-n_values >> log2), block_sizes(dtype, log2)
    limit = start_of(start, n_blocks, ()).prelude_bytes + raw_bytes(n_values, dtype, block)
    geometry = Geometry(n_values, block, 1 << stream_log2)
    return FrameForm(start, geometry, n_blocks, limit, raw, trial, block <= MAX_POOLED_BLOCK)


class _MixedEncoder:
    """Encodes blocks of several kinds, each by the encoder of the kind that is planned; arguments as of
    :class:`kinds.MakeEncoder`."""

    def __init__(
        self,
        request: EncodeRequest,
        plan: FramePlan,
        geometry: Geometry,
        sizes: np.ndarray,
        rounded: np.ndarray | None,
    ) -> None:
        self._plan, self._encoders = plan, dict[int, BlockEncoder]()
        for kind in plan.kinds:
            self._encoders[kind] = BLOCK_KINDS[kind].make_encoder(request, plan, geometry, sizes, rounded)

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks; see :meth:`kinds.BlockEncoder.encode`."""
        for first, stop, kind in self._plan.runs(begin, end):
            at = self._encoders[kind].encode(first, stop, out, at, borrowed)
        return at


class FrameWriter(NamedTuple):
    """Writes one frame; holds what all its blocks have in common.

    Attributes:
        form: What depends on the type and shape alone.
        start: What the frame begins with.
        encoder: Encodes the blocks.
        sizes: uint32[n_blocks], bytes of each block, filled in as they are written.
        threads: Threads to use at most, None for all cores.
    """

    form: FrameForm
    start: Start
    encoder: BlockEncoder
    sizes: np.ndarray
    threads: int | None

    @classmethod
    def of(cls, request: EncodeRequest, plan: FramePlan, rounded: np.ndarray | None = None) -> FrameWriter:
        """Return the writer of one frame; arguments as for ``encode_values``."""
        (_, dtype, shape, container), sparse = request.values, plan.sparse
        log2 = INDEXED_LOG2 if plan.indexed else block_log2(dtype) if sparse is None else sparse.sizes.block_log2
        form = frame_form(dtype, request.bit_layout, container, shape, log2, plan.stream_log2)
        sizes, kinds = np.empty(form.n_blocks, np.uint32), plan.kinds
        encoder: BlockEncoder
        if kinds == CODED_ONLY:
            encoder = CodedEncoder(request, plan, form.geometry, sizes, rounded)
            start = start_of(form.start, form.n_blocks, plan.records, columns=plan.columns)
        else:
            encoder = _MixedEncoder(request, plan, form.geometry, sizes, rounded)
            start = _start_with_others(form, request, plan)
        return cls(form, start, encoder, sizes, request.threads)

    def write(self, out: np.ndarray) -> int:
        """Write the frame to the start of ``out`` (uint8[n]), and return its size. Raises FullError."""
        form, start, _, sizes, threads = self
        at = start.prelude_bytes
        if at > len(out):
            raise FullError
        if form.n_blocks > _MIN_BATCH and (n_workers := n_threads(threads, form.geometry.n_values)) > 1:
            end = _write_together(self, out, at, n_workers)
        else:
            borrowed = Borrowed()
            end = self.write_run(0, form.n_blocks, out, at, borrowed)
            if form.is_pooled:
                borrowed.give_back()
        seal_start(start, sizes, end, out)
        return end

    def write_run(self, begin: int, stop: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write blocks ``begin ... stop`` from byte ``at`` of ``out`` on, and return their end. Raises FullError."""
        (_, _, _, _, raw, trial, _), _, encoder, _, _ = self
        while begin < stop:
            in_place = (len(out) - at - trial) // raw + 1
            if in_place >= stop - begin:
                return encoder.encode(begin, stop, out, at, borrowed)
            if in_place > 0:
                at = encoder.encode(begin, begin + in_place, out, at, borrowed)
                begin += in_place
            else:  # near the end of the room, where a trial may not fit, the block itself may
                at = self._write_apart(begin, out, at, borrowed)
                begin += 1
        return at

    def _write_apart(self, block: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write a block elsewhere, copy it to byte ``at`` of ``out``, and return its end. Raises FullError."""
        n_bytes = self.form.trial
        kind = "buffer", n_bytes
        buffer = acquire(kind, lambda: np.empty(n_bytes, np.uint8))
        at = put_block(buffer, self.encoder.encode(block, block + 1, buffer, 0, borrowed), out, at)
        release(kind, buffer)
        return at


def _start_with_others(form: FrameForm, request: EncodeRequest, plan: FramePlan) -> Start:
    """Return what a frame begins with that has other blocks than coded ones."""
    prediction, sparse, indexed = plan.prediction, plan.sparse, plan.indexed
    records, templates, base_hash = list(plan.records), () if prediction is None else prediction.templates, 0
    if sparse is not None:
        records.append(shortest_record(sparse.codebook))
        if sparse.codebook.with_base and all(map(len, templates)):
            templates = (*templates, _BASE)
    if indexed is not None:
        records.append(indexed.dictionary.record)
    base = request.base
    if base is not None and not all(map(len, templates)):
        base_hash = sparse.base_hash if sparse else hash_of(base, n_threads(request.threads, len(base)))
    residuals = () if prediction is None else prediction.codebooks
    return start_of(form.start, form.n_blocks, records, residuals, templates, plan.columns, base_hash)


def _write_together(writer: FrameWriter, out: np.ndarray, at: int, n_workers: int) -> int:
    """Write all blocks on several threads; arguments and errors as of :meth:`FrameWriter.write`, and the place
    of the first block."""
    n_blocks = len(writer.sizes)
    batch = min(max(n_blocks // (_PARTS * n_workers), _MIN_BATCH), _MAX_BATCH)
    size = (batch - 1) * writer.form.raw + writer.form.trial
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


def _write_parts(writer: FrameWriter, out: np.ndarray, ordered: OrderedWriter, batch: int) -> None:
    """Write parts of ``batch`` blocks as long as there are some. Raises FullError."""
    borrowed = Borrowed()
    while (taken := ordered.next_part()) is not None:
        part, buffer, place = taken
        begin, stop = part * batch, min((part + 1) * batch, len(writer.sizes))
        if buffer is None:
            made = writer.write_run(begin, stop, out, place, borrowed) - place
        else:
            made = writer.encoder.encode(begin, stop, buffer, 0, borrowed)
        for full, n_bytes, where in ordered.complete(part, buffer, made):
            put_block(full, n_bytes, out, where)
            ordered.release(full)
    if writer.form.is_pooled:
        borrowed.give_back()


#: Blocks that a thread encodes at a time: few, so that all end together, but not so few that threads do little but take
#: turns at the interpreter; of small arrays so many that each thread has a few parts.
_MIN_BATCH, _MAX_BATCH, _PARTS = 8, 32, 4
seal = Specialized(seal_prelude)


_BASE = np.zeros(0, np.float32)  #: the template that stands for the base


def seal_start(start: Start, sizes: np.ndarray, frame_bytes: int, out: np.ndarray) -> None:
    """Write a frame's prelude.

    Args:
        start: What it begins with.
        sizes: uint32[n_blocks], bytes of each block.
        out: uint8, of at least ``start.prelude_bytes``, result.
    """
    head, index_at, prelude_bytes = start
    seal[None](out, np.frombuffer(head, np.uint8), index_at, prelude_bytes, frame_bytes, sizes)


def start_of_changes(values: Values, codebook: ChangeCodebook, base_hash: int, block_log2: int) -> Start:
    """Return what a frame of sparse blocks with a base begins with.

    Args:
        values: The array; its bits are not looked at.
        codebook: The codes of the changes.
        block_log2: log2 of the values per block.
    """
    _, dtype, shape, container = values
    layout = lossless(dtype)
    bare = bare_start(dtype, layout.mode, container, shape, block_log2, STREAM_LOG2, layout.widths, layout.levels)
    n_blocks = -(-prod(shape) >> block_log2)
    return start_of(bare, n_blocks, (shortest_record(codebook),), (), (_BASE,), (), base_hash)


def put_block(buffer: np.ndarray, size: int, out: np.ndarray, at: int) -> int:
    """Copy the first ``size`` bytes of ``buffer`` to byte ``at`` of ``out``, and return their end. Raises FullError."""
    if at + size > len(out):
        raise FullError
    np.copyto(out[at : at + size], buffer[:size])
    return at + size
