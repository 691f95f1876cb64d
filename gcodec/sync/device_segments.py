"""Segments of a message that are encoded and decoded on a CUDA device, where the weights are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..archive import ArchiveReader, FileEntry
from ..archive.base_tensors import WITH_BASE
from ..archive.chunks import unpack_chunk
from ..archive.layout import FRAME, STORED
from ..archive.reader import StoredChunk
from ..archive.writer import ReadyChunk, ReadySegment
from ..errors import Corruption, GcodecError
from ..files.elements import width
from ..files.file_plan import FilePlan, by_segment
from ..format.prelude import stated_frame_bytes
from .device_bits import Bits, DeviceBits, as_bytes_there, hashes_on_device

if TYPE_CHECKING:
    import torch

#: A segment is cut into parts of so many bytes: the host waits for each of them a few times.
PART_BYTES = 1 << 26
#: Smaller segments are encoded on the host.
LEAST_BYTES = 1 << 15


def ready_segments(plan: FilePlan, new: Mapping[str, Bits], old: Mapping[str, Bits]) -> dict[int, ReadySegment]:
    """Return the segments of a difference that are encoded on devices, by number: those whose values are all on one.

    Args:
        plan: The difference's file.
        new: Bits of the tensors by name.
        old: Bits of the base's tensors by name.
    """
    found = {}
    for number, views in by_segment(plan.tensors).items():
        segment = plan.segments[number]
        pair = [[tensors[view.name] for view in views] for tensors in (new, old)]
        places = {item.device if isinstance(item, DeviceBits) else None for items in pair for item in items}
        is_there = len(places) == 1 and places != {None}
        if is_there and segment.dtype in WITH_BASE and segment.stop - segment.start >= LEAST_BYTES:
            values, base = (_joined([as_bytes_there(item.words) for item in items]) for items in pair)  # type: ignore[union-attr]
            # Hashed again although a tensor's is known: so the publisher notices one that changed in the meantime.
            digest, base_digest = hashes_on_device([values, base])
            found[number] = ReadySegment(digest, base_digest, _encoded(values, base, segment.dtype or ""))
    return found


def decoded_segment(
    archive: ArchiveReader, entry: FileEntry, number: int, bases: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the bytes of a segment, decoded on the device where its base lies; the hash is not checked.

    Args:
        bases: The base's tensors on it, flat tensors of uint8 on the device, end to end.

    Raises:
        GcodecError: A chunk does not decode, or the base is another.
    """
    import torch

    base = _joined(bases)
    result = torch.empty_like(base)
    for item in archive.stored_chunks(entry, number):
        part = slice(item.start, item.start + item.chunk.size)
        if item.chunk.codec == FRAME:
            try:
                _decode(item, None if entry.segments[number].base is None else base[part], result[part])
            except GcodecError as error:
                raise type(error)(f"{item.where}: {error}") from error
        else:
            unpacked = unpack_chunk(item.chunk, item.payload, item.where)
            result[part].copy_(torch.from_numpy(unpacked.copy()))
    return result


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _encoded(values: torch.Tensor, base: torch.Tensor, dtype: str) -> Iterator[ReadyChunk]:
    """Yield the chunks of a segment.

    Args:
        values: Its bytes on the device.
        dtype: The codec's type of the values.
    """
    from .. import codec
    from ..frame.decode import FrameReader

    for start in range(0, len(values), PART_BYTES):
        part, earlier = values[start : start + PART_BYTES], base[start : start + PART_BYTES]
        typed, size = _typed(part, dtype), len(part)
        frame = codec.encode(typed, base=_typed(earlier, dtype), device="cpu")
        if len(frame) < size:
            yield ReadyChunk(FRAME, frame, size, FrameReader(frame).prelude.refers_to_base)
        else:
            yield ReadyChunk(STORED, part.cpu().numpy().data, size, False)


def _decode(item: StoredChunk, base: torch.Tensor | None, out: torch.Tensor) -> None:
    """Decode the frame of a chunk, against its part of the base if there is that, on the device."""
    from .. import codec
    from ..frame.decode import FrameReader

    stated, size = stated_frame_bytes(item.payload), item.chunk.size
    if stated != item.chunk.stored:
        raise Corruption(f"its frame has {stated} bytes where {item.chunk.stored} are stored")
    prelude = FrameReader(item.payload).prelude
    dtype = prelude.dtype.narrow
    if prelude.n_values * dtype.itemsize != size or item.start % dtype.itemsize:
        raise Corruption(f"a frame of {prelude.n_values} {prelude.dtype.name} where {size} bytes were expected")
    earlier = _typed(base, dtype.name) if base is not None and prelude.refers_to_base else None
    codec.decode(np.ascontiguousarray(item.payload), base=earlier, out=_typed(out, dtype.name), device=out.device)


def _typed(data: torch.Tensor, dtype: str) -> Any:
    """Return bytes as values of a type that share the memory, which begins at a multiple of their width."""
    import torch

    size = width(dtype) or 1
    if data.data_ptr() % size or data.storage_offset() % size:  # never what is decoded to
        data = data.clone()
    return data.view(getattr(torch, dtype))
