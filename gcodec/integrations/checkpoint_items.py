"""The items of a distributed checkpoint: what torch's planners hand over as tensors of an archive, and back."""

from __future__ import annotations

import io
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, WriteItemType

from ..archive import ArchiveReader, FileEntry
from ..archive.structure import Leaf
from ..errors import Corruption
from ..files.file_plan import TensorView
from ..files.safetensors import CODES
from ..files.unique_names import UniqueNames
from .checkpoint_index import OBJECT, PICKLED_TENSOR, TENSOR, StoredItem


def name_of_item(index: dcp.MetadataIndex, names: UniqueNames) -> str:
    """Return a name for an item that is the same in each step: that of the tensor, and where the part begins."""
    name = index.fqn
    if index.offset is not None and any(index.offset):
        name += "@" + ",".join(map(str, index.offset))
    return names.new(name)


def leaf_of(value: torch.Tensor | io.BytesIO, kind: WriteItemType) -> tuple[str, Leaf]:
    """Return an item as a tensor to be stored, and how its bytes are to be understood."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        plain = tensor.layout == torch.strided and not tensor.is_quantized and not hasattr(tensor, "__tensor_flatten__")
        if plain and dtype in CODES:
            return TENSOR, Leaf(tensor, dtype, tuple(tensor.shape))
        stream = io.BytesIO()
        torch.save(tensor.cpu(), stream)
        data, name = np.frombuffer(stream.getvalue(), np.uint8), PICKLED_TENSOR
    else:
        data, name = np.frombuffer(value.getvalue(), np.uint8), OBJECT
    assert (name == OBJECT) == (kind == WriteItemType.BYTE_IO)
    return name, Leaf(data, "uint8", data.shape)


class StoredTensors:
    """The tensors of an archive.

    Args:
        archive: The archive.
        entry: Its file.
    """

    def __init__(self, archive: ArchiveReader, entry: FileEntry) -> None:
        self._archive, self._entry = archive, entry
        self._views = {view.name: view for view in entry.tensors}

    def read(self, wanted: Mapping[str, StoredItem]) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Yield tensors by the names that they were stored under, while threads decode those that follow.

        Raises:
            Corruption: One is not what the index says.
        """
        places = [(self._entry, self._view(name, stored)) for name, stored in wanted.items()]
        places.sort(key=lambda place: place[1].segment)  # so that a group of small ones is decoded once
        with closing(self._archive.arrays(places, "torch")) as values:
            yield from zip((view.name for _, view in places), values, strict=True)

    def _view(self, name: str, stored: StoredItem) -> TensorView:
        view = self._views.get(name)
        if view is None or self._entry.segments[view.segment].hash != stored.hash:
            archive = self._archive.name
            raise Corruption(f"{archive}: is of another checkpoint: it does not hold {name!r} as the index says")
        return view


def deliver(value: torch.Tensor, kind: str, item: Any, planner: LoadPlanner) -> None:
    """Give the planner what an item of its plan asks for. Raises Corruption if it has another shape."""
    if kind == OBJECT or item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(value.numpy().tobytes()))
        return
    if kind == PICKLED_TENSOR:
        value = torch.load(io.BytesIO(value.numpy().tobytes()), map_location="cpu", weights_only=True)
    ends = [start + size for start, size in zip(item.storage_offsets, item.lengths, strict=True)]
    if len(ends) != value.ndim or any(end > size for end, size in zip(ends, value.shape, strict=True)):
        raise Corruption(
            f"{item.storage_index.fqn}: the part in the archive has shape {tuple(value.shape)}, but {ends} is asked for"
        )
    part = value
    if list(item.lengths) != list(value.shape):  # a sparse tensor, which is never in parts, has no slices
        part = value[tuple(slice(start, end) for start, end in zip(item.storage_offsets, ends, strict=True))]
    target = planner.resolve_tensor(item)
    with torch.no_grad():  # and not detach(), which gives a sparse tensor values of its own
        target.copy_(part)
    planner.commit_tensor(item, target.detach())
