"""Turn values into a frame: plan, allocate, run the encoding kernels over blocks on several threads, write the
prelude."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.modes import BitLayout, lossless
from ..format.prelude import HEADER_BYTES
from ..kernels.block.header import BLOCK_HEADER
from ..kernels.sample.look import MAY_BE_CONSTANT, MAY_BE_SPARSE
from ..memory import BytesBuilder, acquire, release
from ..options import EncoderOptions
from ..plan.indexed_frames import make_indexed_plan
from ..plan.indexing import may_be_indexed
from ..plan.plan import FramePlan, least_bits, make_plan, make_sparse_plan, mixed_block_bits, no_plan
from ..plan.profile import profile_of
from ..plan.request import NO_LEVELS, EncodeRequest
from ..plan.unused_bits import drop_unused_bits
from ..tensors import Values
from .short_arrays import encode_short
from .sizes import block_log2
from .writer import FrameWriter, FullError

CONSTANT_BYTES = BLOCK_HEADER + 8  #: of a constant block, the smallest there is
_LOOKED_AT = 64  #: values of a block that are equal if it is constant
_MAX_TRIED = 1 << 20  #: values up to which whole frames of blocks of several kinds are made and compared
#: The share of the bits of one plan below which another is taken by its estimate; between them, both frames are made.
_CLEARLY = 0.9
_LEVEL_SAMPLE = 64  #: blocks whose levels are counted
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
        profile: What the array is like, as :func:`profile_of` returns it, if that is known.

    Returns:
        The plan of its frame. It stays good for another array of the same type and size, if not the best.

    Raises:
        InvalidArgument: If the number of threads is below 1.
    """
    values, log2 = request.values, block_log2(request.values.dtype)
    if request.standalone and _is_stored(values, request.bit_layout, profile):
        return no_plan(values.dtype, -(-len(values.bits) >> log2))._replace(bits=8.0 * values.bits.nbytes)
    return make_plan(request, 1 << log2, weigh, sparse_bits, profile)


def _are_constants(bits: np.ndarray, block: int) -> bool:
    """Return True if all values are the same, so that blocks of so many are constants, and nothing is smaller; not for
    zeros of several blocks, which a sparse block takes, nor for long arrays, whose frames take no longer to plan."""
    n, first = len(bits), bits.item(0)
    may_be = n <= (_MAX_CONSTANTS if first else block)
    return may_be and first == bits.item(n - 1) and first == bits.item(n >> 1) and bool((bits == first).all())


def _is_stored(values: Values, bit_layout: BitLayout, profile: int | None = None) -> bool:
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
    target = None if out is None else _target(out)
    is_plain = not plan.codebooks and (not request.bit_layout.lossy or request.options.exact_if_smaller)
    if is_plain or plan.prediction is not None:  # else coded blocks are, where levels are read
        _check_levels(request)
    if is_plain or plan.dtype is not request.values.dtype:  # a wide head, or no coded blocks: all bits are kept
        request = _exact(request, plan.dtype)
    writer = FrameWriter.of(request, plan, rounded)
    try:
        return _frame(writer, target)
    except FullError:
        is_planned = plan.codebooks or plan.prediction or plan.sparse or plan.indexed
        if is_planned:  # nearly every block is raw, and codebooks, dictionary, planes or levels do not pay
            raw = no_plan(plan.dtype, -(-len(request.values.bits) >> block_log2(plan.dtype)))
            if request.options.exact_if_smaller:
                request = _exact(request, plan.dtype)
            writer = FrameWriter.of(request, raw, rounded)
            if target is None or len(target) >= writer.form.limit:
                return _frame(writer, target)
        assert target is not None
        raise OutputTooSmall(_TOO_FEW.format(len(target))) from None


def _exact(request: EncodeRequest, dtype: DType) -> EncodeRequest:
    """Return a request that keeps all bits, with the usual head or a wide one."""
    layout = lossless(dtype, request.bit_layout.mode)
    return request._replace(values=request.values._replace(dtype=dtype), bit_layout=layout, levels=NO_LEVELS)


def encode_array(request: EncodeRequest, out: Any = None) -> bytes | memoryview:
    """Encode an array as one frame, by whichever plan makes it smaller; arguments and errors as of
    :func:`encode_values`.

    Plans are chosen by what samples promise, which is not always kept. Where size is all that counts, the frame that
    is made without trying more is made as well, and the smaller of both is taken.
    """
    if not request.options.smallest or not request.standalone:
        return _encode_array(request, out)
    usual = request._replace(options=_usual(request.options))
    return copied_to_caller(min((_encode_array(asked) for asked in (usual, request)), key=len), out)


@lru_cache(16)
def _usual(options: EncoderOptions) -> EncoderOptions:
    """Return options that differ only in that no more ways than usual are tried."""
    return replace(options, smallest=False)


def _encode_array(request: EncodeRequest, out: Any = None) -> bytes | memoryview:
    """Encode an array as one frame, by the plan that its samples speak for; arguments and errors as of
    :func:`encode_values`."""
    if not may_be_indexed(request):
        return _encode_unindexed(request, out)
    is_exact = not request.bit_layout.lossy
    exact = request if is_exact else _exact(request, request.values.dtype)
    indexed = make_indexed_plan(exact)
    if indexed is None:
        return _encode_unindexed(request, out)
    # Modes that may drop bits, and sparse frames, have no estimate here, and constant blocks, which are soon encoded,
    # take less than estimates say.
    profile = profile_of(request.values)
    constant = _share_constant(request.values)
    if not is_exact or profile & MAY_BE_SPARSE or constant >= 0.5:
        return copied_to_caller(min(encode_values(exact, indexed), _encode_unindexed(request), key=len), out)
    short = drop_unused_bits(request, profile)
    if indexed.bits < (1 - constant) * least_bits(short, 1 << block_log2(request.values.dtype)):
        return encode_values(exact, indexed, out)
    usual = plan_for(short, weigh=True, profile=profile)
    ways = sorted([(exact, indexed), (short, usual)], key=lambda way: way[1].bits)
    least, most = (plan.bits for _, plan in ways)
    if least < _CLEARLY * most or len(request.values.bits) > _MAX_TRIED:
        frame = encode_values(*ways[0], out)
    else:
        frame = copied_to_caller(min((encode_values(*way) for way in ways), key=len), out)
    usual.close()
    return frame


def _share_constant(values: Values) -> float:
    """Return the share of an array's whole blocks that are constant, or nearly, as far as some of their values show."""
    bits, log2 = values.bits, block_log2(values.dtype)
    n_blocks = len(bits) >> log2
    some = bits[: n_blocks << log2].reshape(n_blocks, -1)[:, :: (1 << log2) // _LOOKED_AT]
    return int(np.count_nonzero((some == some[:, :1]).all(1))) / max(n_blocks, 1)


def _encode_unindexed(request: EncodeRequest, out: Any = None) -> bytes | memoryview:
    """Encode an array without indexed blocks; arguments and errors as of :func:`encode_values`."""
    values, has_base = request.values, request.base is not None
    if has_base:
        mixed = mixed_block_bits(request, 1 << block_log2(values.dtype))
        if mixed is not None:
            return _encode_mixed(request, mixed, out)
    if not len(values.bits):
        return _encode_coded(request, None, out)
    profile = profile_of(values)
    if not (profile or has_base):  # nothing is worth a closer look, as of most arrays
        frame = encode_short(request)
        return _encode_coded(request, profile, out) if frame is None else copied_to_caller(frame, out)
    short = drop_unused_bits(request, profile)
    if not (profile & MAY_BE_SPARSE or has_base):
        return _encode_coded(short, profile, out)
    is_tried = request.options.sparse and (has_base or not _is_smallest_without(request, profile))
    sparse_request = request if has_base else short  # with a base, blocks have no planes
    sparse = make_sparse_plan(sparse_request) if is_tried else None
    if sparse is None or sparse.sparse is None:
        return _encode_coded(short, profile, out)
    if has_base and _is_smallest(values.bits, sparse.sparse.bits):
        return encode_values(request, sparse, out)
    frames = [encode_values(sparse_request, sparse)]
    if len(frames[0]) > _least_coded_bytes(short):
        frames.append(_encode_coded(short, profile))
    if request.bit_layout.lossy and request.options.exact_if_smaller:
        exact = drop_unused_bits(_exact(request, values.dtype), profile)
        exact_sparse = make_sparse_plan(exact)
        if exact_sparse is not None:
            frames.append(encode_values(exact, exact_sparse))
    return copied_to_caller(min(frames, key=len), out)


def _encode_mixed(request: EncodeRequest, sparse_bits: np.ndarray, out: Any) -> bytes | memoryview:
    """Encode an array some of whose blocks had better be sparse, which take ``sparse_bits`` (float64[n_blocks]); other
    arguments and errors as of :func:`encode_values`."""
    plan = plan_for(request, sparse_bits=sparse_bits)
    if len(request.values.bits) > _MAX_TRIED:
        return encode_values(request, plan, out)
    sparse = make_sparse_plan(request)  # headers of blocks are a large part of few changes
    plans = [plan] if sparse is None else [plan, sparse]
    return copied_to_caller(min((encode_values(request, plan) for plan in plans), key=len), out)


def _is_smallest_without(request: EncodeRequest, profile: int) -> bool:
    """Return True for values without a base that sparse blocks cannot make smaller: those that are stored as they are,
    and zeros that are one or two constant blocks."""
    bits = request.values.bits
    if request.standalone and _is_stored(request.values, request.bit_layout, profile):
        return True
    n_constants = 2 << block_log2(request.values.dtype)
    return 0 < len(bits) <= n_constants and not bits[0] and not bits.any()


def _least_coded_bytes(request: EncodeRequest) -> int:
    """Return the bytes of a frame without sparse blocks that no values go below: all blocks are constant then."""
    n_blocks = -(-len(request.values.bits) >> block_log2(request.values.dtype))
    return HEADER_BYTES + n_blocks * (4 + CONSTANT_BYTES)


def _encode_coded(request: EncodeRequest, profile: int | None, out: Any = None) -> bytes | memoryview:
    """Encode an array without sparse blocks; arguments and errors as of :func:`encode_values`."""
    if request.bit_layout.lossy and request.options.exact_if_smaller:
        ways = _best(request, profile)
        if len(ways) > 1:
            return copied_to_caller(min((encode_values(*way) for way in ways), key=len), out)
        request, plan = ways[0]
    else:
        plan = plan_for(request, profile=profile)
    frame = encode_values(request, plan, out)
    plan.close()
    return frame


def check_apart(request: EncodeRequest, out: Any) -> None:
    """Raise InvalidArgument if a caller's buffer shares memory with what is read while it is written: the frame would
    hold other values, and no checksum would tell."""
    target = _target(out)
    for name, array in (("x", request.values.bits), ("levels", request.levels), ("base", request.base)):
        if array is not None and len(array) and np.may_share_memory(target, array):
            raise InvalidArgument(f"out must not share memory with {name}, which is read while out is written")


def copied_to_caller(frame: bytes | memoryview, out: Any) -> bytes | memoryview:
    """Return a frame as :func:`encode_values` does: as it is, or the part of ``out`` that it was copied to. Raises
    InvalidArgument if ``out`` is not writable or too small."""
    if out is None:
        return frame
    target = _target(out)
    if len(target) < len(frame):
        raise OutputTooSmall(_TOO_FEW.format(len(target)))
    target[: len(frame)] = np.frombuffer(frame, np.uint8)
    return target.data[: len(frame)]


#: So many bits dropped of a value, on average, save more than wide heads do; and by this share of its size a frame that
#: keeps all bits may be larger, because estimates are no better.
_MAX_DROPPED_BITS, _TIE = 3.0, 0.025


def _best(request: EncodeRequest, profile: int | None) -> list[tuple[EncodeRequest, FramePlan]]:
    """Plan a frame of a mode that may drop bits, and return the request that the plan is for, and the plan: one that
    keeps all bits where dropping some saves nothing. Predicted blocks and wide heads are for whole values only, and
    levels take bits themselves.

    There are two where estimates cannot tell which is smaller: with mantissa bits in the head there are so many symbols
    that a sample misses some, and promises up to a fifth too little. The first of equals keeps all bits.
    """
    layout, plan = request.bit_layout, plan_for(request, profile=profile)
    exact = _exact(request, request.values.dtype)
    if profile is not None:
        exact = drop_unused_bits(exact, profile)
    is_open = plan.prediction is not None or any(exact.bit_layout.drops)
    if is_open or (plan.codebooks and _dropped_bits(plan, layout) < _MAX_DROPPED_BITS):
        plan = plan if plan.bits else plan_for(request, weigh=True)
        exact_plan = plan_for(exact, weigh=True)
        if _total_bits(exact, exact_plan) <= (1 + _TIE) * _total_bits(request, plan):
            _check_levels(request)
            ways = [(exact, exact_plan), (request, plan)]
            return ways if exact_plan.dtype.fine_bits > 1 else ways[:1]
    return [(request, plan)]


def _check_levels(request: EncodeRequest) -> None:
    """Raise InvalidArgument if a level does not exist, where no coded block reads it."""
    n_levels, levels = len(request.bit_layout.levels), request.levels
    if n_levels > 1 and len(levels) and int(levels.max()) >= n_levels:
        raise InvalidArgument(
            f"levels must be at most {n_levels - 1} in a ladder of {n_levels}, not {int(levels.max())}"
        )


def _total_bits(request: EncodeRequest, plan: FramePlan) -> float:
    """Return the bits that a frame takes, about."""
    layout = request.bit_layout
    return min(plan.bits, 8.0 * request.values.bits.nbytes) + 8 * (len(layout.widths) + 2 * len(layout.levels))


def _dropped_bits(plan: FramePlan, layout: BitLayout) -> float:
    """Return how many bits the values of some blocks lose, on average, of values other than 0."""
    if len(layout.levels) == 1:
        return plan.dtype.tail_bits - layout.kept[0]
    some = plan.counts[:: max(len(plan.counts) // _LEVEL_SAMPLE, 1)].sum(axis=0, dtype=np.int64)
    by_level = some[2:].reshape(len(layout.levels), -1).sum(axis=1)
    by_level[0] += some[1]
    dropped = plan.dtype.tail_bits - np.array(layout.kept)
    return float(by_level @ dropped / max(by_level.sum(), 1))


_MIN_SURE_VALUES, _MAX_SURE_BITS, _SURE_SAMPLE = 1 << 14, 0.5, 1024


def _is_smallest(bits: np.ndarray, n_bits: int) -> bool:
    """Return True if blocks of other kinds cannot be smaller than sparse ones with a base, which take ``n_bits``."""
    return is_surely_smallest(bits[:: sure_step(len(bits))], len(bits), n_bits)


def sure_step(n: int) -> int:
    """Return how far apart the values of ``n`` lie that :func:`is_surely_smallest` looks at."""
    return max(n // _SURE_SAMPLE, 1) | 1


def is_surely_smallest(some: np.ndarray, n: int, n_bits: int) -> bool:
    """Return True if blocks of other kinds cannot be smaller than sparse ones with a base: their values take a bit each
    where they are not equal.

    Args:
        some: Some of the values, uintW[m].
        n: Number of values.
        n_bits: Bits that sparse blocks take.
    """
    is_varied = 2 * int(np.count_nonzero(some != some[0])) > len(some)
    return is_varied and n >= _MIN_SURE_VALUES and n_bits < _MAX_SURE_BITS * n


class OutputTooSmall(InvalidArgument):
    """Tells that a caller's buffer does not hold the frame."""


_TOO_FEW = "out has {} bytes, too few for the frame; max_encoded_size() bytes always suffice"


def _target(out: Any) -> np.ndarray:
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


def _frame(writer: FrameWriter, target: np.ndarray | None) -> bytes | memoryview:
    """Write a frame to where its caller wants it, and return it as :func:`encode_values` does. Raises FullError."""
    limit = writer.form.limit
    if target is not None and (limit > _MAX_POOLED_BYTES or len(target) >= limit + writer.form.trial):
        return target.data[: writer.write(target[:limit])]
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
