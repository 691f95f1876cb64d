"""Turn values into a frame: plan, allocate, run the encoding kernels over blocks on several threads, write the
prelude."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.modes import BitLayout, lossless
from ..kernels.sample.look import MAY_BE_CONSTANT
from ..memory import BytesBuilder, acquire, release
from ..plan.plan import FramePlan, make_plan, no_plan
from ..plan.request import NO_LEVELS, EncodeRequest
from ..tensors import Values
from .sizes import block_log2
from .writer import FrameWriter, FullError

_MAX_CONSTANTS = 1 << 18  #: equal values that are stored as constant blocks without a plan
_MAX_STORED_BYTES = 32  #: of values that are stored as they are
#: Up to so many bytes of values, counting zeros tells at once that coding cannot save the bits that it takes at least.
_MAX_BYTES_TO_COUNT, _MIN_CODED_BITS = 256, 200


def plan_for(
    request: EncodeRequest,
    weigh: bool = False,
    sparse_bits: np.ndarray | None = None,
    profile: int | None = None,
) -> FramePlan:
    """Decide what :func:`encode_values` needs to know beforehand.

    Args:
        request: The array and how to encode it.
        weigh: True to estimate what the frame takes.
        sparse_bits: As for :func:`make_plan`.
        profile: What the array is like, as ``plan.profile.profile_of`` returns it, if that is known.

    Returns:
        The plan of its frame. It stays good for another array of the same type and size, if not the best.

    Raises:
        InvalidArgument: If the number of threads is below 1.
    """
    values, log2 = request.values, block_log2(request.values.dtype)
    if request.standalone and is_stored(values, request.bit_layout, profile):
        return no_plan(values.dtype, -(-len(values.bits) >> log2))._replace(bits=8.0 * values.bits.nbytes)
    return make_plan(request, 1 << log2, weigh, sparse_bits, profile)


def _are_constants(bits: np.ndarray, block: int) -> bool:
    """Return True if all values are the same, so that blocks of so many are constants, and nothing is smaller; not for
    zeros of several blocks, which a sparse block takes, nor for long arrays, whose frames take no longer to plan."""
    n, first = len(bits), bits.item(0)
    may_be = n <= (_MAX_CONSTANTS if first else block)
    return may_be and first == bits.item(n - 1) and first == bits.item(n >> 1) and bool((bits == first).all())


def is_stored(values: Values, bit_layout: BitLayout, profile: int | None = None) -> bool:
    """Return True if values are best stored as they are: if they are all the same, or if coding cannot save what a
    coded block and the shortest codebook take, even if it took away all bits of zeros and all heads of other values."""
    bits, dtype, _, _ = values
    n_bytes = bits.nbytes
    if n_bytes <= _MAX_STORED_BYTES:
        return True
    if bit_layout.lossy:
        return False
    if (profile is None or profile & MAY_BE_CONSTANT) and _are_constants(bits, 1 << block_log2(dtype)):
        return True
    if n_bytes > _MAX_BYTES_TO_COUNT:
        return False
    n_nonzero = int(np.count_nonzero(bits))
    return (len(bits) - n_nonzero) * dtype.bits + n_nonzero * dtype.head_bits <= _MIN_CODED_BITS


def encode_values(
    request: EncodeRequest, plan: FramePlan, out: Any = None, rounded: np.ndarray | None = None
) -> bytes | memoryview:
    """Encode an array as one frame by a plan.

    Args:
        request: The array and how to encode it; what only planning asks for is not looked at.
        plan: As :func:`plan_for` makes it.
        out: Writable buffer for the frame, or None.
        rounded: uintW[n_values], takes what decoding will return if encoding is lossy; or None.

    Returns:
        The frame: bytes, or with ``out`` the memoryview of the part of it that was written.

    Raises:
        InvalidArgument: If ``out`` is not writable or too small, or a level does not exist.
    """
    target = None if out is None else target_of(out)
    is_plain = not plan.codebooks and (not request.bit_layout.lossy or request.options.exact_if_smaller)
    if is_plain or plan.prediction is not None:  # else coded blocks are, where levels are read
        check_levels_exist(request)
    if is_plain or plan.dtype is not request.values.dtype:  # a wide head, or no coded blocks: all bits are kept
        request = exactly(request, plan.dtype)
    writer = FrameWriter.of(request, plan, rounded)
    try:
        return _frame(writer, target, isinstance(out, OwnBuffer))
    except FullError:
        is_planned = plan.codebooks or plan.prediction or plan.sparse or plan.indexed
        if is_planned:  # nearly every block is raw, and codebooks, dictionary, planes or levels do not pay
            raw = no_plan(plan.dtype, -(-len(request.values.bits) >> block_log2(plan.dtype)))
            if request.options.exact_if_smaller:
                request = exactly(request, plan.dtype)
            writer = FrameWriter.of(request, raw, rounded)
            if target is None or len(target) >= writer.form.limit:
                return _frame(writer, target, isinstance(out, OwnBuffer))
        assert target is not None
        raise OutputTooSmall(_TOO_FEW.format(len(target))) from None


def exactly(request: EncodeRequest, dtype: DType | None = None) -> EncodeRequest:
    """Return a request that keeps all bits, with the usual head or that of another form of the type."""
    dtype = request.values.dtype if dtype is None else dtype
    layout = lossless(dtype, request.bit_layout.mode)
    return request._replace(values=request.values._replace(dtype=dtype), bit_layout=layout, levels=NO_LEVELS)


def check_apart(request: EncodeRequest, out: Any) -> None:
    """Raise InvalidArgument if a caller's buffer shares memory with what is read while it is written: the frame would
    hold other values, and no checksum would tell."""
    target = target_of(out)
    for name, array in (("x", request.values.bits), ("levels", request.levels), ("base", request.base)):
        if array is not None and len(array) and np.may_share_memory(target, array):
            raise InvalidArgument(f"out must not share memory with {name}, which is read while out is written")


def copied_to_caller(frame: bytes | memoryview, out: Any) -> bytes | memoryview:
    """Return a frame as :func:`encode_values` does: as it is, or the part of ``out`` that it was copied to. Raises
    InvalidArgument if ``out`` is not writable or too small."""
    if out is None:
        return frame
    target = target_of(out)
    if len(target) < len(frame):
        raise OutputTooSmall(_TOO_FEW.format(len(target)))
    target[: len(frame)] = np.frombuffer(frame, np.uint8)
    return target.data[: len(frame)]


def check_levels_exist(request: EncodeRequest) -> None:
    """Raise InvalidArgument if a level does not exist, where no coded block reads it."""
    n_levels, levels = len(request.bit_layout.levels), request.levels
    if n_levels > 1 and len(levels) and int(levels.max()) >= n_levels:
        raise InvalidArgument(
            f"levels must be at most {n_levels - 1} in a ladder of {n_levels}, not {int(levels.max())}"
        )


class OutputTooSmall(InvalidArgument):
    """Tells that a caller's buffer does not hold the frame."""


_TOO_FEW = "out has {} bytes, too few for the frame; max_encoded_size() bytes always suffice"


class OwnBuffer(np.ndarray[Any, np.dtype[np.uint8]]):
    """A buffer for a frame that is gcodec's own: what it has behind the frame may be written over, too, so that with
    ``sizes.roomy_size`` bytes no block is made elsewhere and copied."""


def target_of(out: Any) -> np.ndarray:
    """Return a caller's buffer as uint8[n]. Raises InvalidArgument."""
    try:
        target = np.frombuffer(out, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(f"out must be a contiguous buffer: {error}") from None
    if not target.flags.writeable:
        raise InvalidArgument("out must be writable, but is read-only")
    return target


_MAX_POOLED_BYTES = 1 << 20  #: of a frame that is made in memory which is kept, and then copied


def _new_buffer() -> np.ndarray:
    """Return room for the largest frame that is made so, and for the trial of a block at its end: uint8[n]."""
    return np.empty(_MAX_POOLED_BYTES + (1 << 19), np.uint8)


def _frame(writer: FrameWriter, target: np.ndarray | None, is_own: bool) -> bytes | memoryview:
    """Write a frame to where its caller wants it, and return it as :func:`encode_values` does; ``is_own``: whether that
    is an :class:`OwnBuffer`. Raises FullError."""
    limit, trial = writer.form.limit, writer.form.trial
    if target is not None and (limit > _MAX_POOLED_BYTES or len(target) >= limit + trial):
        size = writer.write(target[: limit + trial] if is_own else target[:limit])
        if size > limit:
            raise FullError
        return target.data[:size]
    if limit <= _MAX_POOLED_BYTES:
        buffer = acquire("frame", _new_buffer)
        size = writer.write(buffer)
        if size > limit or (target is not None and size > len(target)):
            raise FullError
        if target is None:
            frame = buffer[:size].tobytes()
        else:
            target[:size] = buffer[:size]
            frame = target.data[:size]
        release("frame", buffer)
        return frame
    builder = BytesBuilder(limit)
    return builder.finish(writer.write(builder.array))
