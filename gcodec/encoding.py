"""From values to a frame: plan, allocate, run the encoding kernels over blocks on several threads, write the
prelude."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import format as fmt
from . import scheme as schemes
from .errors import InvalidArgument
from .format import BY_NAME, Prelude, ValueType
from .kernels import blocks, predicted
from .kernels import encode as kernels
from .kernels.parameters import Choices, Geometry, Planes, Rounding
from .kernels.streams import checksum
from .planning import Coding, Given, Plan, make_plan
from .prediction import digit_tables, rows_of
from .prediction import scratch_for as residual_scratch
from .scheme import Scheme
from .scratch import kind_of, scratch_for
from .tables import stack
from .tensors import Values, check_dimensions
from .workers import n_threads, run, split_work


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
    values: Values,
    scheme: Scheme,
    levels: np.ndarray,
    coding: Coding,
    threads: int | None,
    given: Given | None = None,
    shapes: Sequence[Sequence[int]] = (),
) -> Plan:
    """What :func:`encode_values` needs to know beforehand."""
    return make_plan(
        values.bits,
        levels,
        values.dtype,
        len(scheme.levels),
        1 << block_log2(values.dtype),
        scheme.lossy,
        coding,
        n_threads(threads, len(values.bits)),
        given,
        rows_of(shapes or (values.shape,)),
    )


def encode_values(
    values: Values, scheme: Scheme, levels: np.ndarray, nearest: bool, plan: Plan, threads: int | None, out: Any = None
) -> Any:
    """One frame: bytes, or the memoryview of the part of ``out`` that was written.

    ``levels``: uint8[n_values], or empty where the scheme has one level; ``nearest``: round to nearest even, else
    truncate.
    """
    dtype = values.dtype
    block = 1 << block_log2(dtype)
    prelude = Prelude(
        dtype,
        scheme.mode,
        values.container,
        values.shape,
        block_log2(dtype),
        plan.stream_log2,
        scheme.widths,
        scheme.levels,
        plan.records,
        plan.codebooks,
        *(plan.prediction.codebooks, plan.prediction.templates) if plan.prediction else (),
    )
    threads = n_threads(threads, len(values.bits))
    raw = raw_bytes(len(values.bits), dtype, block)
    # While a block is tried it may grow past its raw size; one such block per thread has to fit.
    trial = block * 8 + block * (12 + dtype.head_bits) // 8 + 4096
    size = prelude.prelude_bytes + raw + threads * trial
    target = _target(out)
    buffer = target if target is not None and len(target) >= size else _buffer(size)
    end = _encode_blocks(values, levels, scheme, prelude, plan, nearest, threads, trial, buffer)
    plain = replace(prelude, records=(), codebooks=(), residuals=(), templates=())
    if plan.codebooks and end > plain.prelude_bytes + raw:
        plan = replace(plan, codebooks=(), choice=np.full_like(plan.choice, -1), prediction=None)
        end = _encode_blocks(values, levels, scheme, plain, plan, nearest, threads, trial, buffer)
    frame = _deliver(buffer[:end], target)
    if buffer is not target and len(buffer) <= _KEPT_BYTES:
        _kept.buffer = buffer
    return frame


_kept = threading.local()
_KEPT_BYTES = 1 << 26  #: largest buffer that a thread keeps for its next frame


def _buffer(size: int) -> np.ndarray:
    """Memory for a frame in the making; what a thread has used once it uses again, since fresh pages cost more than
    coding. While in use it is nobody else's: a signal handler may encode in between."""
    kept, _kept.buffer = getattr(_kept, "buffer", None), None
    return kept if kept is not None and len(kept) >= size else np.empty(size, np.uint8)


def raw_bytes(n_values: int, dtype: ValueType, block: int) -> int:
    """Bytes of the blocks of ``n_values`` values if all are stored raw."""
    last = n_values % block
    size = blocks.BLOCK_HEADER + block * dtype.itemsize
    return n_values // block * size + (blocks.BLOCK_HEADER + (last * dtype.itemsize + 7 & ~7) if last else 0)


def _target(out: Any) -> np.ndarray | None:
    if out is None:
        return None
    try:
        target = np.frombuffer(out, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(f"out must be a contiguous buffer: {error}") from None
    if not target.flags.writeable:
        raise InvalidArgument("out must be writable")
    return target


def _deliver(frame: np.ndarray, target: np.ndarray | None) -> Any:
    if target is None:
        return frame.tobytes()
    if len(target) < len(frame):
        raise InvalidArgument(f"out has {len(target)} bytes, the frame {len(frame)}")
    if target.ctypes.data != frame.ctypes.data:
        target[: len(frame)] = frame
    return target.data[: len(frame)]


def _encode_blocks(
    values: Values,
    levels: np.ndarray,
    scheme: Scheme,
    prelude: Prelude,
    plan: Plan,
    nearest: bool,
    threads: int,
    trial: int,
    buffer: np.ndarray,
) -> int:
    """All blocks and the prelude into ``buffer``; returns the frame's size in bytes."""
    dtype = values.dtype
    block, stream = 1 << prelude.block_log2, 1 << prelude.stream_log2
    layout = schemes.layout_of(dtype, scheme.widths, scheme.levels)
    books, uniform = stack(
        plan.codebooks, scheme.widths, [level.mask for level in scheme.levels], dtype.tail_bits, decode=False
    )
    sizes = np.zeros(prelude.n_blocks, np.uint32)
    drops = np.zeros(256, np.uint8)
    drops[: len(scheme.drops)] = scheme.drops
    geometry, shape = (
        Geometry(len(values.bits), block, stream),
        Planes(len(scheme.widths), np.array(scheme.widths, np.int64), uniform),
    )
    rounding, choices = Rounding(drops, nearest, scheme.prune), Choices(plan.choice, plan.bases, plan.references)
    some_levels = levels if len(scheme.levels) > 1 else None
    per_block = block * dtype.itemsize + blocks.BLOCK_HEADER

    def work(begin: int, end: int) -> tuple[int, int]:
        scratch = scratch_for(dtype, block, stream, layout, decode=False, lossy=scheme.lossy)
        part = [begin for begin, _ in parts].index(begin)
        at = stop = prelude.prelude_bytes + begin * per_block + part * trial
        for first, last, c in plan.prediction.runs(begin, end) if plan.prediction else [(begin, end, -1)]:
            if plan.prediction and c >= 0:
                stop = predicted.encode_predicted_blocks(
                    values.bits,
                    geometry,
                    dtype.code,
                    first,
                    last,
                    plan.prediction.templates[c],
                    plan.prediction.origins[c],
                    digit_tables(dtype.bits // 4),
                    plan.prediction.codebooks[c].encode_table,
                    c,
                    residual_scratch(dtype, block, stream),
                    buffer,
                    stop,
                    sizes,
                )
                continue
            stop = kernels.encode_blocks(
                values.bits,
                some_levels,
                geometry,
                kind_of(dtype),
                first,
                last,
                rounding,
                choices,
                books,
                shape,
                scratch.rounded,
                scratch,
                buffer,
                stop,
                sizes,
            )
        return at, stop

    parts = split_work(prelude.n_blocks, threads)
    end = prelude.prelude_bytes
    for at, stop in run(work, prelude.n_blocks, threads):
        if at != end:
            buffer[end : end + stop - at] = buffer[at:stop].copy() if at < end + stop - at else buffer[at:stop]
        end += stop - at
    frame = buffer[:end]
    prelude.write_to(frame, sizes)
    _seal(frame, prelude.prelude_bytes)
    return end


def _seal(frame: np.ndarray, prelude_bytes: int) -> None:
    total = checksum(frame, 0, prelude_bytes // 4, fmt.CHECKSUM_HOLE, np.uint64(0))
    frame[fmt.CHECKSUM_AT : fmt.CHECKSUM_AT + 8] = np.frombuffer(int(total).to_bytes(8, "little"), np.uint8)
