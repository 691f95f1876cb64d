"""Batches of tensors to frames and back, on any device that a :class:`gpu_memory.Memory` stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import GcodecError, InvalidArgument, LimitExceeded, NoMemory, check_output_limit
from ..format.change_codebook import ChangeCodebook
from ..format.codebook import Codebook
from ..format.modes import BitLayout
from ..format.prelude import FindCodebook
from ..format.shipped import find as find_prior
from ..frame.decode import FrameReader, bytes_like
from ..frame.smallest import encode_array
from ..options import EncoderOptions, check_base_array
from ..plan.request import EncodeRequest
from ..tensors import TORCH, kernel_view
from . import decoder, encoder, sparse_decoder, sparse_encoder
from .encoder import Batch, GpuSource, SharedCodebook
from .gpu_memory import Memory, is_fault
from .kernel_tables import check_type
from .preludes import Parsed, parse


def sources_of(memory: Memory, tensors: Sequence[Any]) -> tuple[list[GpuSource], DType]:
    """Return tensors of one type as sources of an encoder, without levels, and the type.

    Args:
        memory: The device.
        tensors: The tensors, at least one.

    Raises:
        InvalidArgument: The tensors lie elsewhere, or are of several types.
        Unsupported: The type is not coded on a device.
    """
    seen = [memory.see(tensor) for tensor in tensors]
    dtype = seen[0][1]
    if any(other is not dtype for _, other, _ in seen):
        raise InvalidArgument(f"tensors must be of one type, not {sorted({other.name for _, other, _ in seen})}")
    check_type(dtype)
    return [GpuSource(bits, math.prod(shape), shape) for bits, _, shape in seen], dtype


def with_levels(memory: Memory, sources: list[GpuSource], levels: Sequence[Any] | None) -> list[GpuSource]:
    """Return sources with the levels of their values, or as they are if there are none.

    Raises:
        InvalidArgument: The levels do not fit the sources.
    """
    if levels is None:
        return sources
    if len(levels) != len(sources):
        raise InvalidArgument(f"levels must be {len(sources)} tensors, one for each that is encoded, not {len(levels)}")
    return [s._replace(levels=memory.levels_of(own, s.n)) for s, own in zip(sources, levels, strict=True)]


def encode(
    memory: Memory,
    sources: Sequence[GpuSource],
    dtype: DType,
    bit_layout: BitLayout,
    nearest: bool,
    codebook: SharedCodebook | None,
    options: EncoderOptions,
    target: Any = None,
) -> Batch:
    """Start to make frames of tensors.

    Args:
        memory: The device.
        sources: Tensors and levels, from :func:`sources_of` and :func:`with_levels`.
        dtype: Type of the tensors.
        bit_layout: Which bits are kept.
        nearest: Round to nearest; truncate if False.
        codebook: The codebook of all frames; if None one is fitted, which waits for the device.
        options: Options of the encoder.
        target: Memory for the frame of a batch of one, or None.

    Raises:
        InvalidArgument: The codebook is for other values, or ``target`` shares memory with a tensor.
    """
    if target is not None:  # values that do not shrink are read once more when the frame has been begun
        for source in sources:
            _check_apart(memory, target, source.tensor, "out and x")
            if source.levels is not None:
                _check_apart(memory, target, source.levels, "out and levels")
    if codebook is None:
        codebook = encoder.fit_codebook(memory, sources, dtype, bit_layout, options)
    elif not isinstance(codebook, SharedCodebook):
        found = type(codebook).__name__
        raise InvalidArgument(f"codebook must be what gcodec.gpu.fresh_codebook returns, not a {found}")
    else:
        check_codebook(codebook.codebook, dtype, bit_layout)
    return encoder.encode(memory, sources, dtype, bit_layout, nearest, codebook, TORCH, target)


def encode_patch(memory: Memory, x: Any, base: Any, request: EncodeRequest) -> Any:
    """Make the frame of a tensor against a base: the bytes that the host's encoder makes.

    Where these are sparse blocks for certain, the device makes them; else the host does, from copies of both.

    Args:
        memory: The device.
        base: The base, a tensor on the device.
        request: How to encode; its bits are not looked at.

    Returns:
        The frame, a tensor of bytes on the device.

    Raises:
        InvalidArgument: The base is of another type or size, or lies elsewhere.
    """
    tensor, dtype, shape = memory.see(x)
    earlier, found, base_shape = memory.see(base, "base")
    check_base_array(dtype, math.prod(shape), found, math.prod(base_shape))
    frame = sparse_encoder.encode(memory, request.values, tensor, earlier, request.options)
    if frame is None:
        bits, base_bits = (memory.values_on_host(own, dtype) for own in (tensor, earlier))
        values = request.values._replace(bits=bits)
        frame = memory.bytes_of(encode_array(request._replace(values=values, base=base_bits)))
    return frame


def check_codebook(book: Codebook, dtype: DType, bit_layout: BitLayout) -> None:
    """Raise InvalidArgument if a codebook is for values of another type, or of another number of levels."""
    if book.head_bits != dtype.head_bits or len(book.ranges) != len(bit_layout.levels):
        raise InvalidArgument(
            f"a codebook for heads of {book.head_bits} bits and {len(book.ranges)} levels does not suit {dtype.name} "
            f"of {len(bit_layout.levels)}"
        )


def finder(books: Sequence[Codebook | ChangeCodebook]) -> FindCodebook:
    """Return a function that looks up codebooks among these and those that come with gcodec, by hash. Raises
    InvalidArgument where one is none."""
    for book in books if isinstance(books, list | tuple) else [books]:
        if not isinstance(book, Codebook | ChangeCodebook):
            raise InvalidArgument(
                f"codebooks must be a list or tuple of codebooks, as in fresh_codebook(...).codebook, not of a "
                f"{type(book).__name__}"
            )
    known = {book.hash: book for book in books}
    return lambda number, digest: known.get(digest) or find_prior(number, digest)


class DecodedBatch:
    """Tensors that a device fills from frames; :func:`begin_decoding` makes it.

    Args:
        tensors: A contiguous tensor on the device for each.
        find: Looks up codebooks that frames name.

    Attributes:
        tensors: The tensors. What comes later on the stream finds the values there; of a damaged frame they are
            undefined, which only :meth:`check` tells.
    """

    def __init__(self, memory: Memory, frames: Sequence[Parsed], tensors: list[Any], find: FindCodebook) -> None:
        self.tensors = tensors
        self._memory, self._find = memory, find
        known = [i for i, frame in enumerate(frames) if frame.decodable]
        self._places = {id(frames[i]): i for i in known}
        self._started = decoder.decode(memory, [frames[i] for i in known], [tensors[i] for i in known])
        for frame, tensor in zip(frames, tensors, strict=True):
            if not frame.decodable:
                decode_on_host(memory, frame.data, tensor, find)

    def ended(self) -> bool:
        """Return True once :meth:`check` does not wait."""
        return all(group.statuses.ended() for group in self._started)

    @cached_property
    def errors(self) -> dict[int, GcodecError]:
        """Return what is wrong with frames, by number: those that are damaged, or have what is not known. Waits for the
        device when it is first read, once for each way to cut values into planes."""
        found: dict[int, GcodecError] = {}
        for group in self._started:
            for number, error in group.failures().items():
                frame = group.frames[number]
                place = self._places[id(frame)]
                if error is not None:
                    found[place] = error
                    continue
                try:
                    decode_on_host(self._memory, frame.data, self.tensors[place], self._find)
                except GcodecError as refused:
                    found[place] = refused
        self._started = []
        return found

    def check(self) -> list[Any]:
        """Return the tensors once it is certain that their values are the frames'; waits as :meth:`errors`.

        Raises:
            GcodecError: A frame is damaged, or has what is not known, as ``gcodec.decode`` says.
        """
        if self.errors:
            raise self.errors[min(self.errors)]
        return self.tensors


def begin_decoding(
    memory: Memory,
    frames: Sequence[Any],
    books: Sequence[Codebook | ChangeCodebook] = (),
    max_output_bytes: int | None = None,
    preludes: Sequence[Any] = (),
) -> DecodedBatch:
    """Start to decode frames to tensors on the device.

    Waits for the preludes of frames on the device that are not given; frames that the kernels do not know go through
    the host.

    Args:
        frames: Tensors of bytes on the device, or bytes.
        books: Codebooks that frames may name, besides those that come with gcodec.
        max_output_bytes: max size of all tensors together.
        preludes: Of each frame its prelude, bytes-like, or None; or nothing.

    Raises:
        GcodecError: As :func:`gcodec.decode` raises.
        InvalidArgument: Preludes are not as many as the frames.
    """
    find = finder(books)
    if len(preludes) not in (0, len(frames)):
        raise InvalidArgument(f"preludes must be one for each of the {len(frames)} frames, not {len(preludes)}")
    parsed = _parsed(memory, frames, find, preludes) if frames else []
    _check_limit(parsed, max_output_bytes)
    return DecodedBatch(memory, parsed, _new_tensors(memory, parsed), find)


def decode_one(
    memory: Memory,
    data: Any,
    base: Any,
    out: Any,
    books: Sequence[Codebook | ChangeCodebook] = (),
    max_output_bytes: int | None = None,
) -> Any:
    """Decode a frame against a base or into a given tensor. What fails leaves a tensor that is both as it was.

    Sparse blocks are applied by the device. Other frames that refer to a base go through the host, and the base with
    them.

    Args:
        memory: The device.
        data: A tensor of bytes on the device, or bytes.
        base: The base, a tensor on the device, or None.
        out: A tensor on the device to fill, or None.
        books: As for :func:`begin_decoding`.
        max_output_bytes: max size of the result.

    Returns:
        ``out``, or a new tensor.

    Raises:
        GcodecError: As :func:`gcodec.decode` raises.
    """
    find = finder(books)
    (frame,) = _parsed(memory, [data], find)
    _check_limit([frame], max_output_bytes)
    prelude = frame.prelude
    dtype = prelude.dtype.narrow
    target = None if out is None else memory.target_of(out, dtype, prelude.n_values)
    if target is not None:  # blocks are read and written at the same time
        end = int(frame.offsets[-1] + frame.sizes[-1]) if len(frame.sizes) else prelude.prelude_bytes
        _check_apart(memory, target, memory.part(frame.data, 0, end), "out and the frame")
    if base is None:
        result = _new_tensors(memory, [frame])[0] if target is None else target
        DecodedBatch(memory, [frame], [result], find).check()
        return result if out is None else out
    source, found, shape = memory.see(base, "base")
    check_base_array(dtype, prelude.n_values, found, math.prod(shape))
    in_place = target is not None and _is_same_memory(memory, source, target, dtype)
    patch = sparse_decoder.read(memory, frame, source) if prelude.refers_to_base else None
    if patch is not None:
        result = _new_tensors(memory, [frame])[0] if target is None else target
        if not in_place:
            memory.copy(source, result)
        patch.apply(result)
    else:
        result = _new_tensors(memory, [frame])[0] if target is None or in_place else target
        if prelude.refers_to_base:
            decode_on_host(memory, frame.data, result, find, memory.values_on_host(source, dtype))
        else:
            DecodedBatch(memory, [frame], [result], find).check()
        if in_place:
            memory.copy(result, target)
    return result if out is None else out


def _parsed(memory: Memory, frames: Sequence[Any], find: FindCodebook, preludes: Sequence[Any] = ()) -> list[Parsed]:
    """Return frames on the device, and their preludes, those that are given as they are. Raises GcodecError."""
    there = [memory.bytes_of(frame) for frame in frames]
    on_host = [memory.host_bytes(frame) for frame in frames]
    for number, prelude in enumerate(preludes):
        if prelude is not None:
            on_host[number] = kernel_view(bytes_like(prelude))
    return parse(memory, there, find, on_host)


def _check_apart(memory: Memory, one: Any, other: Any, names: str) -> None:
    """Raise InvalidArgument if two contiguous tensors on the device share memory; ``names``: the caller's for them."""
    if one.nbytes and other.nbytes:
        _, (first, second) = memory.span([one, other], "uint8")
        if first < second + other.nbytes and second < first + one.nbytes:
            raise InvalidArgument(f"{names} share memory: on a device they must lie apart")


def _is_same_memory(memory: Memory, base: Any, out: Any, dtype: DType) -> bool:
    """Return True if two tensors of one size are one. Raises InvalidArgument if they overlap otherwise."""
    _, (first, second) = memory.span([base, out], f"u{dtype.itemsize}")
    n = math.prod(base.shape)
    if first != second and abs(first - second) < n:
        raise InvalidArgument("out and base share memory: they must be one tensor, or apart")
    return first == second


def _check_limit(frames: Sequence[Parsed], max_output_bytes: int | None) -> None:
    """Raise LimitExceeded if frames decode to more bytes than they may, InvalidArgument if the limit is no number."""
    limit = check_output_limit(max_output_bytes)
    size = sum(frame.prelude.n_values * frame.prelude.dtype.itemsize for frame in frames)
    if limit is not None and size > limit:
        raise LimitExceeded(f"the frames decode to {size} bytes, more than max_output_bytes={max_output_bytes}")


def _new_tensors(memory: Memory, frames: Sequence[Parsed]) -> list[Any]:
    """Return tensors for what frames decode to. Raises NoMemory where there is none, and faults of the device
    as they are."""
    try:
        return memory.new([(frame.prelude.dtype.narrow, frame.prelude.shape) for frame in frames])
    except RuntimeError as error:  # torch's OutOfMemoryError is one, and so are sizes that no memory has
        if is_fault(error) or not any(word in str(error) for word in ("memory", "overflow")):
            raise
        size = sum(frame.prelude.n_values * frame.prelude.dtype.itemsize for frame in frames)
        raise NoMemory(f"there is no memory on the device for arrays of {size} bytes: {error}") from None


def decode_on_host(memory: Memory, data: Any, target: Any, find: FindCodebook, base: np.ndarray | None = None) -> None:
    """Decode a frame that lies on the device by the host's kernels, into a tensor on the device.

    Args:
        target: The tensor, to which nothing is written if the frame is refused.
        find: Looks up codebooks that the frame names.
        base: The bits of its base on the host, if it refers to one.
    """
    (on_host,) = memory.heads([data], [len(data)])
    frame = FrameReader(np.ascontiguousarray(on_host), find)
    prelude = frame.prelude
    bits = np.empty(prelude.n_values, prelude.dtype.uint)
    frame.decode_blocks(0, prelude.n_blocks, bits, 1, base)
    memory.put(bits, target)
