"""Batches of tensors to frames and back, on any device that a :class:`gpu_memory.Memory` stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument, LimitExceeded
from ..format.change_codebook import ChangeCodebook
from ..format.codebook import Codebook
from ..format.modes import BitLayout
from ..format.prelude import FindCodebook
from ..format.shipped import find as find_prior
from ..frame.decode import FrameReader
from ..options import EncoderOptions
from ..tensors import TORCH
from . import decoder, encoder
from .encoder import Batch, GpuSource, SharedCodebook
from .gpu_memory import Memory
from .kernel_tables import check_type


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
        memory: the device.
        sources: tensors and levels, from :func:`sources_of` and :func:`with_levels`.
        dtype: type of the tensors.
        bit_layout: which bits are kept.
        nearest: round to nearest; truncate if False.
        codebook: the codebook of all frames; if None one is fitted, which waits for the device.
        options: options of the encoder.
        target: memory for the frame of a batch of one, or None.

    Raises:
        InvalidArgument: the codebook is for other values.
    """
    if codebook is None:
        codebook = encoder.fit_codebook(memory, sources, dtype, bit_layout, options)
    else:
        check_codebook(codebook.codebook, dtype, bit_layout)
    return encoder.encode(memory, sources, dtype, bit_layout, nearest, codebook, TORCH, target)


def check_codebook(book: Codebook, dtype: DType, bit_layout: BitLayout) -> None:
    """Raise InvalidArgument if a codebook is for values of another type, or of another number of levels."""
    if book.head_bits != dtype.head_bits or len(book.ranges) != len(bit_layout.levels):
        raise InvalidArgument(
            f"a codebook for heads of {book.head_bits} bits and {len(book.ranges)} levels does not suit {dtype.name} "
            f"of {len(bit_layout.levels)}"
        )


def finder(books: Sequence[Codebook | ChangeCodebook]) -> FindCodebook:
    """Return a function that looks up codebooks among these and those that come with gcodec, by hash."""
    known = {book.hash: book for book in books}
    return lambda number, digest: known.get(digest) or find_prior(number, digest)


def decode(
    memory: Memory,
    frames: Sequence[Any],
    books: Sequence[Codebook | ChangeCodebook] = (),
    max_output_bytes: int | None = None,
) -> list[Any]:
    """Decode frames to tensors on the device.

    Waits for the preludes, and at the end for the blocks' statuses; frames that the kernels do not know go through the
    host.

    Args:
        memory: the device.
        frames: tensors of bytes on the device, or bytes.
        books: codebooks that frames may name, besides those that come with gcodec.
        max_output_bytes: max size of all tensors together.

    Raises:
        GcodecError: as :func:`gcodec.decode` raises.
    """
    find = finder(books)
    data = [memory.bytes_of(frame) for frame in frames]
    parsed = decoder.parse(memory, data, find)
    sizes = [frame.prelude.n_values * frame.prelude.dtype.itemsize for frame in parsed]
    if max_output_bytes is not None and sum(sizes) > max_output_bytes:
        raise LimitExceeded(f"the frames decode to {sum(sizes)} bytes, more than max_output_bytes={max_output_bytes}")
    try:
        results = [memory.new(frame.prelude.dtype.narrow, frame.prelude.shape) for frame in parsed]
    except RuntimeError as error:  # torch's OutOfMemoryError is one
        raise LimitExceeded(f"there is no memory on the device for arrays of {sum(sizes)} bytes: {error}") from None
    places = {id(frame): i for i, frame in enumerate(parsed)}
    known = [i for i, frame in enumerate(parsed) if frame.decodable]
    for group in decoder.decode(memory, [parsed[i] for i in known], [results[i] for i in known]):
        for number in group.failures():
            place = places[id(group.frames[number])]
            decode_on_host(memory, data[place], results[place], find)
    for i, frame in enumerate(parsed):
        if not frame.decodable:
            decode_on_host(memory, data[i], results[i], find)
    return results


def decode_on_host(memory: Memory, data: Any, target: Any, find: FindCodebook) -> None:
    """Decode a frame that lies on the device by the host's kernels, into the tensor ``target`` on the device."""
    (on_host,) = memory.heads([data], [len(data)])
    frame = FrameReader(np.ascontiguousarray(on_host), find)
    prelude = frame.prelude
    bits = np.empty(prelude.n_values, prelude.dtype.uint)
    frame.decode_blocks(0, prelude.n_blocks, bits, 1)
    memory.put(bits, target)
