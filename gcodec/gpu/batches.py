"""Batches of tensors to frames and back, on any device that a :class:`gpu_memory.Memory` stands for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument, LimitExceeded
from ..format import modes as bit_layouts
from ..format.codebook import Codebook
from ..format.ladders import Ladder
from ..format.modes import BitLayout
from ..format.prelude import FindCodebook
from ..format.shipped import find as find_prior
from ..frame.decode import FrameReader
from ..options import LADDERS, EncoderOptions
from ..tensors import TORCH
from . import decoder, encoder
from .encoder import Batch, GpuSource, SharedCodebook
from .gpu_memory import Memory
from .kernel_tables import check_type


def sources_of(
    memory: Memory, tensors: Sequence[Any], levels: Sequence[Any] | None
) -> tuple[list[GpuSource], DType]:
    """Return tensors of one type as sources of an encoder, and the type.

    Args:
        memory: the device.
        tensors: the tensors.
        levels: a tensor of levels for each, or None.

    Raises:
        InvalidArgument: there are no tensors, or they or the levels do not fit together.
        Unsupported: the type is not coded on a device.
    """
    if not tensors or (levels is not None and len(levels) != len(tensors)):
        raise InvalidArgument(f"{len(tensors)} tensors and {0 if levels is None else len(levels)} of levels")
    seen = [memory.see(tensor) for tensor in tensors]
    dtype = seen[0][1]
    if any(other is not dtype for _, other, _ in seen):
        raise InvalidArgument(f"a batch is of one type: {sorted({other.name for _, other, _ in seen})}")
    check_type(dtype)
    sources = [GpuSource(bits, math.prod(shape), shape) for bits, _, shape in seen]
    if levels is not None:
        sources = [s._replace(levels=memory.levels_of(own, s.n)) for s, own in zip(sources, levels, strict=True)]
    return sources, dtype


def bit_layout_of(
    dtype: DType, mantissa_bits: int | None, graded: bool, ladder: Ladder | None, options: EncoderOptions
) -> BitLayout:
    """Return which bits of some tensors are kept.

    Args:
        dtype: type of the tensors.
        mantissa_bits: mantissa bits to keep, or None.
        graded: True if there are levels.
        ladder: the ladder of the levels; that of ``options`` if None.
        options: options of the encoder.

    Raises:
        InvalidArgument: arguments that do not go together, or that the type has too few bits for.
    """
    if graded and mantissa_bits is not None:
        raise InvalidArgument("mantissa_bits and levels or optimizer exclude each other")
    if graded:
        return bit_layouts.ladder(dtype, ladder or LADDERS[options.ladder][dtype.name])
    if ladder is not None:
        raise InvalidArgument("param and ladder need an optimizer or levels")
    return bit_layouts.lossless(dtype) if mantissa_bits is None else bit_layouts.fixed(dtype, mantissa_bits)


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
        sources: tensors and levels, from :func:`sources_of`.
        dtype: type of the tensors.
        bit_layout: which bits are kept, from :func:`bit_layout_of`.
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


def finder(books: Sequence[Codebook]) -> FindCodebook:
    """Return a function that looks up codebooks among these and those that come with gcodec, by hash."""
    known = {book.hash: book for book in books}
    return lambda number, digest: known.get(digest) or find_prior(number, digest)


def decode(
    memory: Memory, frames: Sequence[Any], books: Sequence[Codebook] = (), max_output_bytes: int | None = None
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
    results = [memory.new(frame.prelude.dtype.narrow, frame.prelude.shape) for frame in parsed]
    known = [i for i, frame in enumerate(parsed) if frame.decodable]
    for group in decoder.decode(memory, [parsed[i] for i in known], [results[i] for i in known]):
        for number in group.failures():
            frame = group.frames[number]
            place = next(i for i, one in enumerate(parsed) if one is frame)
            decode_on_host(memory, data[place], results[place], find)
    for i, frame in enumerate(parsed):
        if not frame.decodable:
            decode_on_host(memory, data[i], results[i], find)
    return results


def decode_on_host(memory: Memory, data: Any, target: Any, find: FindCodebook) -> None:
    """Decode a frame that lies on the device by the host's kernels, into the tensor ``target`` on the device."""
    (held,) = memory.heads([data], [len(data)])
    frame = FrameReader(np.ascontiguousarray(held), find)
    prelude = frame.prelude
    bits = np.empty(prelude.n_values, prelude.dtype.uint)
    frame.decode_blocks(0, prelude.n_blocks, bits, 1)
    memory.put(bits, target)
