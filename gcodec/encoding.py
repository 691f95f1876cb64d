"""From values to a frame: plan, allocate, run the encoding kernels over blocks on several threads, write the
prelude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import format as fmt
from .blank import Blank
from .errors import InvalidArgument
from .format import BY_NAME, Prelude, ValueType
from .kernels import blocks
from .kernels import encode as kernels
from .kernels.direct import Direct
from .kernels.frame import seal_prelude
from .kernels.parameters import Books, Choices, Geometry, Kind, Planes, Rounding, Scratch
from .planning import Coding, Given, Plan, make_plan
from .scheme import Scheme, layout_of
from .scratch import give, kind_of, scratch_for, take
from .tables import stack
from .tensors import Values, check_dimensions
from .workers import Relay, n_threads, together

STREAM_LOG2 = 8  #: values per sub-stream this encoder writes


def block_log2(dtype: ValueType) -> int:
    """log2 of the values per block that this encoder writes: at least 32 KiB of values."""
    return 15 if dtype.itemsize == 1 else 14


def max_encoded_size(shape: int | Sequence[int], dtype: str) -> int:
    """Most bytes that a frame of this shape (or number of values) and dtype can take, whatever the values and the
    mode."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    check_dimensions(len(dims))
    if any(size < 0 for size in dims):
        raise InvalidArgument(f"shape {dims} has a negative size")
    if dtype not in BY_NAME:
        raise InvalidArgument(f"unknown dtype {dtype!r}; one of {', '.join(BY_NAME)}")
    n, log2 = math.prod(dims), block_log2(BY_NAME[dtype])
    planes_and_levels = fmt.MAX_PLANES + 2 * fmt.MAX_LEVELS
    prelude = fmt.HEADER_BYTES + 8 * len(dims) + planes_and_levels + 4 * -(-n >> log2) + 16
    return prelude + raw_bytes(n, BY_NAME[dtype], 1 << log2)


def plan_for(
    values: Values, scheme: Scheme, levels: np.ndarray, coding: Coding, threads: int | None, given: Given | None = None
) -> Plan:
    """What :func:`encode_values` needs to know beforehand."""
    return make_plan(
        values.bits,
        levels,
        values.dtype,
        len(scheme.levels),
        1 << block_log2(values.dtype),
        1 << STREAM_LOG2,
        scheme.lossy,
        coding,
        n_threads(threads, len(values.bits)),
        given,
    )


def encode_values(
    values: Values, scheme: Scheme, levels: np.ndarray, nearest: bool, plan: Plan, threads: int | None, out: Any = None
) -> Any:
    """One frame: bytes, or the memoryview of the part of ``out`` that was written.

    ``levels``: uint8[n_values], or empty where the scheme has one level; ``nearest``: round to nearest even, else
    truncate.
    """
    target = None if out is None else _target(out)
    n_workers = n_threads(threads, len(values.bits))
    job = _Encoding.of(values, scheme, levels, nearest, plan)
    try:
        return _frame(job, n_workers, target)
    except _FullError:
        if plan.codebooks and (target is None or len(target) >= job.limit):
            # Nearly every block is raw, and the codebooks are not worth their place.
            raw = plan._replace(codebooks=(), records=(), choice=np.full_like(plan.choice, -1))
            return _frame(_Encoding.of(values, scheme, levels, nearest, raw), n_workers, target)
        assert target is not None
        raise InvalidArgument(f"the frame does not fit into out, which has {len(target)} bytes") from None


def _target(out: Any) -> np.ndarray:
    try:
        target = np.frombuffer(out, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(f"out must be a contiguous buffer: {error}") from None
    if not target.flags.writeable:
        raise InvalidArgument("out must be writable")
    return target


def raw_bytes(n_values: int, dtype: ValueType, block: int) -> int:
    """Bytes of the blocks of ``n_values`` values if all are stored raw."""
    last = n_values % block
    size = blocks.BLOCK_HEADER + block * dtype.itemsize
    return n_values // block * size + (blocks.BLOCK_HEADER + (last * dtype.itemsize + 7 & ~7) if last else 0)


_SMALL = 1 << 20  #: bytes up to which a frame is made in memory that is kept, and then copied


def _frame(job: _Encoding, n_workers: int, target: np.ndarray | None) -> Any:
    """The frame as encode returns it. Raises _FullError."""
    limit = job.limit
    if target is not None and (limit > _SMALL or len(target) >= limit + job.trial):
        return target.data[: job.write(target[:limit], n_workers)]
    if limit <= _SMALL:
        buffer = take("frame", lambda: np.empty(_SMALL + (1 << 19), np.uint8))
        frame = buffer[: job.write(buffer, n_workers)]
        if len(frame) > (limit if target is None else min(limit, len(target))):
            raise _FullError
        result: Any
        if target is None:
            result = frame.tobytes()
        else:
            target[: len(frame)] = frame
            result = target.data[: len(frame)]
        give("frame", buffer)
        return result
    blank = Blank(limit)
    return blank.finish(job.write(blank.array, n_workers))


class _FullError(Exception):
    """A frame is longer than the room for it."""


class _Encoding(NamedTuple):
    """What all blocks of a frame have in common. ``limit``: most bytes that its frame may take; ``raw``: most that a
    block takes; ``trial``: most that it takes while it is tried, before it is stored raw; ``sizes``:
    uint32[n_blocks], what they took."""

    values: np.ndarray
    levels: np.ndarray | None
    prelude: Prelude
    geometry: Geometry
    kind: Kind
    rounding: Rounding
    choices: Choices
    books: Books
    planes: Planes
    layout: int
    lossy: bool
    sizes: np.ndarray
    limit: int
    raw: int
    trial: int

    @classmethod
    def of(cls, values: Values, scheme: Scheme, levels: np.ndarray, nearest: bool, plan: Plan) -> _Encoding:
        """The same from the arguments of :func:`encode_values`."""
        bits, dtype, dimensions, container = values
        widths, log2 = scheme.widths, block_log2(dtype)
        block = 1 << log2
        prelude = Prelude(
            dtype,
            scheme.mode,
            container,
            dimensions,
            log2,
            STREAM_LOG2,
            widths,
            scheme.levels,
            plan.records,
            plan.codebooks,
        )
        _, without_records = prelude.places(False)
        return cls(
            bits,
            levels if len(scheme.levels) > 1 else None,
            prelude,
            Geometry(len(bits), block, 1 << STREAM_LOG2),
            kind_of(dtype),
            Rounding(scheme.drop_table, nearest, scheme.prune),
            Choices(plan.choice, plan.bases, plan.references),
            *stack(plan.codebooks, widths, scheme.masks, dtype.tail_bits, False),
            layout_of(dtype, widths, scheme.levels),
            scheme.lossy,
            np.empty(len(plan.choice), np.uint32),
            without_records + raw_bytes(len(bits), dtype, block),
            blocks.BLOCK_HEADER + block * dtype.itemsize,
            block * 8 + block * (12 + dtype.head_bits) // 8 + 4096,
        )

    def blocks(self, begin: int, end: int, out: np.ndarray, at: int, scratch: Scratch) -> int:
        """Blocks ``begin ... end`` back to back from byte ``at`` of ``out``, and their sizes. Returns their end. There
        must be room for all of them raw but the last, and for the trial of that."""
        return _encode_blocks(
            (self.prelude.dtype, self.layout, self.lossy, self.levels is None),
            self.values,
            self.levels,
            self.geometry,
            self.kind,
            begin,
            end,
            self.rounding,
            self.choices,
            self.books,
            self.planes,
            scratch.rounded,
            scratch,
            out,
            at,
            self.sizes,
        )

    def write(self, out: np.ndarray, n_workers: int) -> int:
        """The frame from the start of ``out``; returns its size. Raises _FullError."""
        (index_at, start), n_blocks = self.prelude.places(), len(self.sizes)
        if start > len(out):
            raise _FullError
        if n_workers == 1 or n_blocks <= _BATCH:
            end = self._write_alone(out, start) if n_blocks else start
        else:
            end = self._write_together(out, start, n_workers)
        head = np.frombuffer(bytearray(self.prelude.start(end, start)), np.uint8)
        seal_prelude(out, head, index_at, start, self.sizes)
        return end

    def _write_alone(self, out: np.ndarray, at: int) -> int:
        """All blocks on this thread."""
        scratch = self._take_scratch()
        begin, n_blocks = 0, len(self.sizes)
        while begin < n_blocks:
            in_place = (len(out) - at - self.trial) // self.raw + 1
            if in_place > 0:
                end = min(begin + in_place, n_blocks)
                at = self.blocks(begin, end, out, at, scratch)
            else:  # near the end of the room: where a trial may not fit, the block may
                end = begin + 1
                tray = np.empty(self.trial, np.uint8)
                size = self.blocks(begin, end, tray, 0, scratch)
                at = _put(tray, size, out, at)
            begin = end
        self._give_scratch(scratch)
        return at

    def _write_together(self, out: np.ndarray, at: int, n_workers: int) -> int:
        """The same on several threads."""
        n_blocks = len(self.sizes)
        size = (_BATCH - 1) * self.raw + self.trial
        trays = [take(("tray", size), lambda: np.empty(size, np.uint8)) for _ in range(n_workers + 1)]
        relay = Relay(-(-n_blocks // _BATCH), list(trays), at)

        def work() -> None:
            scratch = self._take_scratch()
            try:
                while (taken := relay.take()) is not None:
                    part, tray = taken
                    begin = part * _BATCH
                    made = self.blocks(begin, min(begin + _BATCH, n_blocks), tray, 0, scratch)
                    for full, n_bytes, place in relay.hand_in(part, tray, made):
                        _put(full, n_bytes, out, place)
                        relay.give_back(full)
            except BaseException:
                relay.stop()
                raise
            self._give_scratch(scratch)

        together(work, n_workers)
        for tray in trays:
            give(("tray", size), tray)
        return relay.end

    def _take_scratch(self) -> Scratch:
        kind = dtype, layout, lossy = self.prelude.dtype, self.layout, self.lossy
        _, block, stream = self.geometry
        return take(kind, lambda: scratch_for(dtype, block, stream, layout, decode=False, lossy=lossy))

    def _give_scratch(self, scratch: Scratch) -> None:
        give((self.prelude.dtype, self.layout, self.lossy), scratch)


_BATCH = 8  #: blocks that a thread encodes at a time, so that they stay in its cache
_encode_blocks = Direct(kernels.encode_blocks)


def _put(tray: np.ndarray, size: int, out: np.ndarray, at: int) -> int:
    """The first ``size`` bytes of ``tray`` to byte ``at`` of ``out``; returns their end. Raises _FullError."""
    if at + size > len(out):
        raise _FullError
    np.copyto(out[at : at + size], tray[:size])
    return at + size
