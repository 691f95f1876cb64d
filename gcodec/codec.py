"""Encode and decode: check, allocate, choose kernels, run them over blocks on several threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from . import format as fmt
from . import scheme as schemes
from .codebook import Codebook, stack
from .errors import Corruption, InvalidArgument, LimitExceeded, Unsupported
from .format import BY_NAME, Prelude, ValueType
from .kernels import blocks, decode as decoding, encode as encoding, planes
from .kernels.parameters import Choices, Geometry, Kind, Planes, Rounding, Scratch
from .kernels.streams import STREAM_PAD, checksum
from .planning import Coding, Plan, make_plan
from .scheme import Scheme
from .tensors import Values, kernel_view, new_output, output_bits, values_of
from .truncation import FINE_LADDER, Ladder

STREAM_LOG2 = 8  #: values per sub-stream this encoder writes
_THREADS_ABOVE = 1 << 18  #: values; smaller arrays are coded on the calling thread
_EMPTY_LEVELS = np.zeros(0, np.uint8)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="gcodec")


def n_threads(threads: int | None, n_values: int) -> int:
    """Threads to use: what the caller asks for, else all cores for large arrays."""
    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads={threads}")
    if n_values < _THREADS_ABOVE:
        return 1
    return min(threads or os.cpu_count() or 1, 64)


def _block_log2(dtype: ValueType) -> int:
    return 15 if dtype.itemsize == 1 else 14


def max_encoded_size(shape: int | Sequence[int], dtype: str) -> int:
    """Most bytes that a frame of this shape (or number of values) and dtype can take, whatever the values and the mode."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    if dtype not in BY_NAME:
        raise InvalidArgument(f"unknown dtype {dtype!r}; one of {', '.join(BY_NAME)}")
    n, log2 = math.prod(dims), _block_log2(BY_NAME[dtype])
    planes_and_levels = fmt.MAX_PLANES + 2 * fmt.MAX_LEVELS
    prelude = fmt.HEADER_BYTES + 8 * len(dims) + planes_and_levels + 4 * -(-n >> log2) + 16
    return prelude + raw_bytes(n, BY_NAME[dtype], 1 << log2)


def margin(stream: int, head_bits: int) -> int:
    """Bytes past a block that the decoder may read."""
    return (stream + STREAM_PAD) * (12 + head_bits) // 8 + 64


def scratch_for(dtype: ValueType, block: int, stream: int, layout: int, decode: bool, lossy: bool = False) -> Scratch:
    """The working memory of one thread."""
    n_streams, more = -(-block // stream), planes.GROUP
    narrow, strided = layout == planes.LAYOUT_NARROW, n_streams * (stream + STREAM_PAD) + 2 * more

    def array(wanted: bool, shape: Any, kind: Any) -> Any:
        return np.empty(shape, kind) if wanted else None

    return Scratch(
        symbols=np.empty(strided, np.uint8), references=np.empty(n_streams, np.uint16),
        stream_bytes=np.empty(n_streams, np.uint32), n_items=np.zeros(8, np.int64), chunk=np.empty((4, more), np.uint8),
        words=array(narrow or layout == planes.LAYOUT_24, stream + more, np.uint32),
        dense=array(layout == planes.LAYOUT_24, stream + more, np.uint32),
        lone=array(layout == planes.LAYOUT_8, stream + more, np.uint8),
        bytes=array(narrow, 2 * (stream + more), np.uint8), marks=array(narrow, strided, np.uint8),
        items=array(narrow, (8, block + more), np.uint8),
        general=array(layout == planes.LAYOUT_GENERAL, block if decode else 0, np.uint64),
        bare=array(layout == planes.LAYOUT_NONE, 0, np.uint8), rounded=array(lossy, block, dtype.uint),
        starts=array(decode, n_streams, np.int64), bases=array(decode, n_streams, np.uint16),
        lanes=array(decode, (2, 4), np.int64), escapes=array(decode, block, np.int64),
        escape_heads=array(decode, block, np.uint16))


def _kind(dtype: ValueType) -> Kind:
    return Kind(dtype.head_bits, dtype.head_shift, dtype.tail_bits, np.uint64(dtype.infinity), np.uint64(dtype.smallest_normal))


def _split_work(n_blocks: int, threads: int) -> list[tuple[int, int]]:
    threads = max(min(threads, n_blocks), 1)
    edges = [n_blocks * t // threads for t in range(threads + 1)]
    return [(a, b) for a, b in zip(edges, edges[1:], strict=False) if b > a]


def _run(work: Callable[[int, int], Any], n_blocks: int, threads: int) -> list[Any]:
    """``work(begin, end)`` over all blocks, split among threads; results in order of the blocks."""
    parts = _split_work(n_blocks, threads)
    if len(parts) <= 1:
        return [work(*part) for part in parts]
    futures = [_pool().submit(work, *part) for part in parts[1:]]
    return [work(*parts[0])] + [future.result() for future in futures]


def _scheme_for(x: Any, values: Values, mantissa_bits: int | None, levels: Any, ladder: Ladder | None, optimizer: Any,
                param: Any) -> tuple[Scheme, np.ndarray]:
    """The scheme that encode's arguments ask for, and the level of every value."""
    near = levels is not None or optimizer is not None
    if mantissa_bits is not None and near:
        raise InvalidArgument("mantissa_bits and levels or optimizer exclude each other")
    if not near:
        if param is not None or ladder is not None:
            raise InvalidArgument("param and ladder need an optimizer or levels")
        if mantissa_bits is None:
            return schemes.lossless(values.dtype), _EMPTY_LEVELS
        return schemes.fixed(values.dtype, mantissa_bits), _EMPTY_LEVELS
    ladder = ladder or FINE_LADDER.get(values.dtype.name)
    if ladder is None:
        raise InvalidArgument(f"{values.dtype.name} is lossless only")
    if optimizer is not None:
        if levels is not None or param is None:
            raise InvalidArgument("give either levels, or an optimizer together with param")
        from .optimizers import levels_for

        levels = levels_for(optimizer, param, x, ladder=ladder)
    return schemes.ladder(values.dtype, ladder), _check_levels(levels, len(values.bits), len(ladder.drops))


def _check_levels(levels: Any, n_values: int, n_levels: int) -> np.ndarray:
    levels = np.ascontiguousarray(levels).reshape(-1)
    if levels.dtype != np.uint8 or levels.size != n_values:
        raise InvalidArgument(f"levels must be {n_values} uint8 level indices, not {levels.size} of {levels.dtype}")
    if n_values and int(levels.max()) >= n_levels:
        raise InvalidArgument(f"level {int(levels.max())} in a ladder of {n_levels}")
    return levels


def encode(x: Any, *, mantissa_bits: int | None = None, levels: Any = None, ladder: Ladder | None = None,
           rounding: str = "nearest", optimizer: Any = None, param: Any = None, dtype: str | None = None,
           coding: Coding | None = None, threads: int | None = None, out: Any = None) -> Any:
    """Encode an array or tensor as one frame (docs/format.md). Lossless unless told otherwise.

    ``x``: numpy array or torch CPU tensor, any shape and strides; float32, float64, float16, bfloat16 or float8 (never changed).
    ``mantissa_bits``: keep this many mantissa bits, relative error at most 2**-(mantissa_bits + 1).
    ``levels``: uint8, x's shape: index into ``ladder`` per value; or ``optimizer`` (torch optimizer or OptimizerView) and
    ``param`` (the parameter whose gradient ``x`` is): levels by the optimizer's rule (GComp, Table 2; docs/algorithms.md).
    ``ladder``: default ``FINE_LADDER`` of the dtype. ``rounding``: "nearest" (even) or "truncate".
    ``dtype``: says what type the bits of an unsigned integer array are. ``coding``: how codebooks are made.
    ``threads``: default all cores. ``out``: writable uint8 array or buffer of at least ``max_encoded_size`` bytes.

    Returns bytes, or with ``out`` the memoryview of the part of it that was written. Raises InvalidArgument, Unsupported.
    """
    if rounding not in ("nearest", "truncate"):
        raise InvalidArgument(f"rounding={rounding!r}; 'nearest' or 'truncate'")
    values = values_of(x, dtype)
    scheme, level_array = _scheme_for(x, values, mantissa_bits, levels, ladder, optimizer, param)
    return encode_values(values, scheme, level_array, rounding == "nearest", coding or Coding(), threads, out)


def encode_values(values: Values, scheme: Scheme, levels: np.ndarray, nearest: bool, coding: Coding,
                  threads: int | None, out: Any = None, given: Sequence[Codebook] | None = None,
                  records: Sequence[bytes] | None = None, plan_sink: list[Plan] | None = None) -> Any:
    """:func:`encode` after its arguments are understood. ``given`` and ``records``: codebooks to use and how the frame names them;
    ``plan_sink`` receives the plan."""
    dtype = values.dtype
    block, stream = 1 << _block_log2(dtype), 1 << STREAM_LOG2
    plan = make_plan(values.bits, levels, dtype, len(scheme.levels), block, stream, scheme.lossy, coding, given)
    if plan_sink is not None:
        plan_sink.append(plan)
    records = tuple(records) if records is not None else tuple(codebook.record for codebook in plan.codebooks)
    prelude = Prelude(dtype, scheme.mode, values.container, values.shape, _block_log2(dtype), STREAM_LOG2, scheme.widths,
                      scheme.levels, records, plan.codebooks)
    threads = n_threads(threads, len(values.bits))
    raw = raw_bytes(len(values.bits), dtype, block)
    # While a block is tried it may grow past its raw size; one such block per thread has to fit.
    trial = block * 8 + block * (12 + dtype.head_bits) // 8 + 4096
    size = prelude.prelude_bytes + raw + threads * trial
    target = _target(out)
    buffer = target if target is not None and len(target) >= size else np.empty(size, np.uint8)
    end = _encode_blocks(values, levels, scheme, prelude, plan, nearest, threads, trial, buffer)
    plain = replace(prelude, records=(), codebooks=())
    if plan.codebooks and end > plain.prelude_bytes + raw:
        plan = replace(plan, codebooks=(), choice=np.full_like(plan.choice, -1))
        end = _encode_blocks(values, levels, scheme, plain, plan, nearest, threads, trial, buffer)
    return _deliver(buffer[:end], target)


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
    return memoryview(target)[: len(frame)]


def _encode_blocks(values: Values, levels: np.ndarray, scheme: Scheme, prelude: Prelude, plan: Plan, nearest: bool,
                   threads: int, trial: int, buffer: np.ndarray) -> int:
    """All blocks and the prelude into ``buffer``; returns the frame's size in bytes."""
    dtype = values.dtype
    block, stream = 1 << prelude.block_log2, 1 << prelude.stream_log2
    layout = schemes.layout_of(dtype, scheme.widths, scheme.levels)
    books, uniform = stack(plan.codebooks, scheme.widths, [level.mask for level in scheme.levels], dtype.tail_bits, decode=False)
    sizes = np.zeros(prelude.n_blocks, np.uint32)
    drops = np.zeros(256, np.uint8)
    drops[: len(scheme.drops)] = scheme.drops
    geometry, shape = Geometry(len(values.bits), block, stream), Planes(len(scheme.widths), np.array(scheme.widths, np.int64), uniform)
    rounding, choices = Rounding(drops, nearest, scheme.prune), Choices(plan.choice, plan.bases, plan.references)
    some_levels = levels if len(scheme.levels) > 1 else None
    per_block = block * dtype.itemsize + blocks.BLOCK_HEADER

    def work(begin: int, end: int) -> tuple[int, int]:
        scratch = scratch_for(dtype, block, stream, layout, decode=False, lossy=scheme.lossy)
        part = [begin for begin, _ in parts].index(begin)
        at = prelude.prelude_bytes + begin * per_block + part * trial
        stop = encoding.encode_blocks(values.bits, some_levels, geometry, _kind(dtype), begin, end, rounding, choices, books,
                                      shape, scratch.rounded, scratch, buffer, at, sizes)
        return at, stop

    parts = _split_work(prelude.n_blocks, threads)
    end = prelude.prelude_bytes
    for at, stop in _run(work, prelude.n_blocks, threads):
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


_MESSAGES = {
    blocks.BAD_CHECKSUM: "the checksum is wrong",
    blocks.BAD_FIELD: "a header field is outside its legal values",
    blocks.BAD_SIZE: "its size does not fit its contents",
    blocks.BAD_STREAM: "a sub-stream does not end where it should",
    blocks.BAD_PLANES: "the planes do not fit the symbols",
}


class Frame:
    """A parsed frame: the prelude checked, the blocks not yet looked at."""

    def __init__(self, data: Any, known: dict[tuple[int, int], Codebook] | None = None) -> None:
        try:
            buffer = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgument(f"data must be a bytes-like object: {error}") from None
        prelude_bytes, frame_bytes = fmt.prelude_size(buffer)
        stored = int.from_bytes(buffer[fmt.CHECKSUM_AT : fmt.CHECKSUM_AT + 8].tobytes(), "little")
        if int(checksum(kernel_view(buffer), 0, prelude_bytes // 4, fmt.CHECKSUM_HOLE, np.uint64(0))) != stored:
            raise Corruption("frame header: the checksum is wrong")
        self.data = kernel_view(buffer[:frame_bytes])
        self.prelude, self.sizes = fmt.read_prelude(buffer[:prelude_bytes].tobytes(), known or {})
        self.offsets = prelude_bytes + np.cumsum(self.sizes) - self.sizes

    def decode_blocks(self, begin: int, end: int, out: np.ndarray, threads: int) -> None:
        """Values of blocks ``begin ... end`` into ``out`` (uintW, exactly these). Raises Corruption, Unsupported."""
        prelude = self.prelude
        dtype, block, stream = prelude.dtype, 1 << prelude.block_log2, 1 << prelude.stream_log2
        books, uniform = stack(prelude.codebooks, prelude.widths, [level.mask for level in prelude.levels], dtype.tail_bits,
                               decode=True)
        geometry, shape = Geometry(prelude.n_values, block, stream), Planes(len(prelude.widths), np.array(prelude.widths, np.int64),
                                                                            uniform)
        layout = schemes.layout_of(dtype, prelude.widths, prelude.levels)
        over = margin(stream, dtype.head_bits)
        # Blocks near the end of the data are decoded from a padded copy, so that wide loads stay inside.
        ends = self.offsets + self.sizes
        safe = min(int(np.searchsorted(ends, len(self.data) - over, "right")), end)

        def some(first: int, last: int, data: np.ndarray, offsets: np.ndarray, scratch: Scratch) -> None:
            status, at = decoding.decode_blocks(data, offsets, self.sizes, first, last, geometry, _kind(dtype), books, shape,
                                                scratch, out, begin * block)
            if status == blocks.BAD_KIND:
                raise Unsupported(f"block {at} is of a kind that this version does not know")
            if status != blocks.OK:
                raise Corruption(f"block {at}: {_MESSAGES[status]}")

        def work(first: int, last: int) -> None:
            first, last = first + begin, last + begin
            scratch = scratch_for(dtype, block, stream, layout, decode=True)
            middle = min(max(safe, first), last)
            if middle > first:
                some(first, middle, self.data, self.offsets, scratch)
            if last > middle:
                start = int(self.offsets[middle])
                stop = int(ends[last - 1])
                padded = np.zeros(stop - start + over, np.uint8)
                padded[: stop - start] = self.data[start:stop]
                some(middle, last, padded, self.offsets - start, scratch)

        _run(work, end - begin, threads)


_LIKE = {None: None, "numpy": 0, "torch": 1}


def _container(like: str | None, recorded: int) -> int:
    if like not in _LIKE:
        raise InvalidArgument(f"like={like!r}; 'numpy', 'torch' or None")
    wanted = _LIKE[like]
    return recorded if wanted is None else wanted


def decode(data: Any, *, out: Any = None, like: str | None = None, threads: int | None = None,
           max_output_bytes: int | None = None) -> Any:
    """Decode a frame into the kind of array that was encoded.

    ``data``: bytes-like, one frame; bytes after it are ignored. ``out``: contiguous array or tensor to fill, of the frame's type and
    number of values; ``like``: "numpy" or "torch" to override the recorded kind. ``threads``: default all cores.
    ``max_output_bytes``: refuse frames that decode to more; use it on bytes from strangers.

    Raises InsufficientData, Corruption, Unsupported, LimitExceeded; then no array is returned and ``out`` may be partly written.
    """
    return decode_frame(Frame(data), out, like, threads, max_output_bytes)


def decode_frame(frame: Frame, out: Any, like: str | None, threads: int | None, max_output_bytes: int | None) -> Any:
    """:func:`decode` of a parsed frame."""
    prelude = frame.prelude
    container = _container(like, prelude.container)
    _check_limit(prelude.n_values * prelude.dtype.itemsize, max_output_bytes)
    if out is None:
        try:
            result, bits = new_output(prelude.dtype, prelude.shape, container)
        except (MemoryError, ValueError, OverflowError):
            raise LimitExceeded(f"no memory for an array of shape {prelude.shape}") from None
    else:
        result, bits = out, output_bits(out, prelude.dtype, prelude.n_values)
    frame.decode_blocks(0, prelude.n_blocks, bits, n_threads(threads, prelude.n_values))
    return result


def _check_limit(size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise LimitExceeded(f"the frame decodes to {size} bytes, more than max_output_bytes={limit}")


def decode_range(data: Any, start: int, stop: int, *, like: str | None = None, threads: int | None = None,
                 max_output_bytes: int | None = None) -> Any:
    """Values ``start ... stop`` of a frame, in row-major order, as a flat array; only their blocks are read and verified.

    Arguments as in :func:`decode`; 0 <= start <= stop <= number of values, else InvalidArgument.
    """
    frame = Frame(data)
    prelude = frame.prelude
    if not 0 <= start <= stop <= prelude.n_values:
        raise InvalidArgument(f"range {start} ... {stop} of {prelude.n_values} values")
    container = _container(like, prelude.container)
    _check_limit((stop - start) * prelude.dtype.itemsize, max_output_bytes)
    result, bits = new_output(prelude.dtype, (stop - start,), container)
    if stop > start:
        begin, end = start >> prelude.block_log2, -(-stop >> prelude.block_log2)
        first = begin << prelude.block_log2
        covered = min(end << prelude.block_log2, prelude.n_values) - first
        scratch = np.empty(covered, prelude.dtype.uint)
        frame.decode_blocks(begin, end, scratch, n_threads(threads, covered))
        bits[:] = scratch[start - first : stop - first]
    return result
