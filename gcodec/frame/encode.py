"""From values to a frame: plan, allocate, run the encoding kernels over blocks on several threads, write the
prelude."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..format.modes import BitLayout, lossless
from ..memory import BytesBuilder, acquire, release
from ..options import EncoderOptions
from ..plan.plan import FixedCodebooks, FramePlan, make_plan, no_plan
from ..plan.prediction import rows_of
from ..tensors import Values
from ..threads import n_threads
from .sizes import block_log2
from .writer import FrameWriter, FullError

_TINY = 32  #: bytes of values up to which they are stored as they are
#: Up to so many bits of values a look tells whether coding can save what it takes itself, at the least.
_FEW_BITS, _LEAST_BITS = 2048, 200


def plan_for(
    values: Values,
    bit_layout: BitLayout,
    levels: np.ndarray,
    options: EncoderOptions,
    threads: int | None,
    fixed: FixedCodebooks | None = None,
    shapes: Sequence[Sequence[int]] = (),
    base: np.ndarray | None = None,
    alone: bool = False,
) -> FramePlan:
    """What :func:`encode_values` needs to know beforehand. ``shapes``: of the tensors that the array holds end to end;
    ``base``: uintW[n_values], an earlier array of this kind, or None; ``alone``: the frame is not one of a stream that
    shares its codebook."""
    if alone and (values.bits.nbytes <= _TINY or _is_too_few(values, bit_layout)):
        return no_plan(values.dtype, -(-len(values.bits) >> block_log2(values.dtype)))
    return make_plan(
        values.bits,
        levels,
        values.dtype,
        len(bit_layout.levels),
        1 << block_log2(values.dtype),
        bit_layout.lossy,
        options,
        n_threads(threads, len(values.bits)),
        fixed,
        rows_of(shapes or (values.shape,)) if options.prediction or options.columns else (),
        base,
        alone and options.wide_heads,
    )


def _is_too_few(values: Values, bit_layout: BitLayout) -> bool:
    """Whether coding saves less than a coded block and the shortest codebook take, though it took all bits of zeros and
    all heads of others away."""
    bits, dtype = values.bits, values.dtype
    if bit_layout.lossy or len(bits) * dtype.bits > _FEW_BITS:
        return False
    others = int(np.count_nonzero(bits))
    return (len(bits) - others) * dtype.bits + others * dtype.head_bits <= _LEAST_BITS


def encode_values(
    values: Values,
    bit_layout: BitLayout,
    levels: np.ndarray,
    nearest: bool,
    plan: FramePlan,
    threads: int | None,
    out: Any = None,
    base: np.ndarray | None = None,
    rounded: np.ndarray | None = None,
) -> Any:
    """One frame: bytes, or the memoryview of the part of ``out`` that was written.

    ``levels``: uint8[n_values], or empty where there is one level; ``nearest``: round to nearest even, else
    truncate; ``base``: as fixed to :func:`plan_for`; ``rounded``: uintW[n_values], takes what decoding will return
    if encoding is lossy.
    """
    target = None if out is None else _target(out)
    if plan.dtype is not values.dtype:
        values, bit_layout = values._replace(dtype=plan.dtype), lossless(plan.dtype)
    n_workers = n_threads(threads, len(values.bits))
    job = FrameWriter.of(values, bit_layout, levels, nearest, plan, base, rounded)
    try:
        return _frame(job, n_workers, target)
    except FullError:
        if (plan.codebooks or plan.prediction) and (target is None or len(target) >= job.limit):
            # Nearly every block is raw, and the codebooks are not worth their place.
            raw = no_plan(plan.dtype, len(plan.choice))
            return _frame(FrameWriter.of(values, bit_layout, levels, nearest, raw, None, rounded), n_workers, target)
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


_SMALL = 1 << 20  #: bytes up to which a frame is made in memory that is kept, and then copied


def _frame(job: FrameWriter, n_workers: int, target: np.ndarray | None) -> Any:
    """The frame as encode returns it. Raises FullError."""
    limit = job.limit
    if target is not None and (limit > _SMALL or len(target) >= limit + job.trial):
        return target.data[: job.write(target[:limit], n_workers)]
    if limit <= _SMALL:
        buffer = acquire("frame", lambda: np.empty(_SMALL + (1 << 19), np.uint8))
        frame = buffer[: job.write(buffer, n_workers)]
        if len(frame) > (limit if target is None else min(limit, len(target))):
            raise FullError
        result: Any
        if target is None:
            result = frame.tobytes()
        else:
            target[: len(frame)] = frame
            result = target.data[: len(frame)]
        release("frame", buffer)
        return result
    builder = BytesBuilder(limit)
    return builder.finish(job.write(builder.array, n_workers))
