"""The index of a checkpoint of ``torch.distributed.checkpoint``, as JSON: shapes, shards, and where each item is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash
from torch.distributed.checkpoint import metadata as dcp

from ..errors import Corruption, InvalidArgument, Unsupported

FORMAT = "gcodec-torch-checkpoint-1"
MAX_INDEX_BYTES = 1 << 30
#: How the bytes of an item are to be understood.
TENSOR, OBJECT, PICKLED_TENSOR = "tensor", "object", "torch.save"


class StoredItem(NamedTuple):
    """The place of one item of a plan: a tensor, a part of one, or an object's bytes.

    Attributes:
        file: The archive, or the rank's folder in a series.
        name: Of the tensor in it.
        kind: How its bytes are to be understood: ``TENSOR``, ``OBJECT`` or ``PICKLED_TENSOR``.
        hash: Of its bytes.
    """

    file: str
    name: str
    kind: str
    hash: str


def metadata_to_json(metadata: dcp.Metadata, items: dict[dcp.MetadataIndex, StoredItem]) -> bytes:
    """Return the index of a checkpoint as JSON.

    Args:
        metadata: What the planners agreed on.
        items: The place of every item.

    Raises:
        InvalidArgument: A planner's data are not those of torch's.
    """
    entries = metadata.state_dict_metadata
    tensors = {
        name: {
            "dtype": str(entry.properties.dtype).removeprefix("torch."),
            "size": list(entry.size),
            "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in entry.chunks],
        }
        for name, entry in entries.items()
        if isinstance(entry, dcp.TensorStorageMetadata)
    }
    content = {
        "tensors": tensors,
        "objects": [name for name in entries if name not in tensors],
        "planner": _planner_to_json(metadata.planner_data),
        "items": [
            [index.fqn, None if index.offset is None else list(index.offset), index.index, *stored]
            for index, stored in items.items()
        ],
    }
    return json.dumps({"format": FORMAT, "content": content, "hash": _hash_of(content)}, separators=(",", ":")).encode()


def _planner_to_json(data: Any) -> Any:
    """Return the planner's data, which for torch's own is the path of each tensor in the state, as JSON has it."""
    if data is None:
        return None
    plain = isinstance(data, dict) and all(
        isinstance(name, str) and isinstance(path, tuple) and all(type(key) in (str, int) for key in path)
        for name, path in data.items()
    )
    if not plain:
        raise InvalidArgument(
            "the planner's data must be torch's: a dictionary of names to tuples of strings and numbers"
        )
    return {name: list(path) for name, path in data.items()}


def _hash_of(content: Any) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(content, separators=(",", ":"), sort_keys=True).encode())


def metadata_from_json(text: bytes, where: str) -> dcp.Metadata:
    """Return the metadata that an index holds, with the places of items as ``storage_data``.

    Args:
        text: The index.
        where: Its name in errors.

    Raises:
        Corruption: It is damaged.
        Unsupported: It is of another version.
    """
    try:
        if len(text) > MAX_INDEX_BYTES:
            raise ValueError(f"it has more than {MAX_INDEX_BYTES} bytes")
        root = json.loads(text.decode())
        if root["format"] != FORMAT:
            raise Unsupported(f"{where}: the format of the index is {root['format']!r}, not {FORMAT!r}")
        content = root["content"]
        if root["hash"] != _hash_of(content):
            raise ValueError("its hash is wrong")
        return dcp.Metadata(
            state_dict_metadata=_entries_from_json(content),
            planner_data=content["planner"] and {name: tuple(path) for name, path in content["planner"].items()},
            storage_data=dict(_item_from_json(*row) for row in content["items"]),
            storage_meta=dcp.StorageMeta(checkpoint_id=where),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corruption(f"{where}: the index is damaged: {type(error).__name__}: {error}") from error


def _entries_from_json(content: Any) -> dict[str, dcp.STORAGE_TYPES]:
    entries: dict[str, dcp.STORAGE_TYPES] = {name: dcp.BytesStorageMetadata() for name in content["objects"]}
    for name, row in content["tensors"].items():
        dtype = vars(torch).get(row["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{row['dtype']!r} is no type of torch")
        chunks = [dcp.ChunkStorageMetadata(_size(offsets), _size(sizes)) for offsets, sizes in row["chunks"]]
        entries[name] = dcp.TensorStorageMetadata(dcp.TensorProperties(dtype=dtype), _size(row["size"]), chunks)
    return entries


def _size(numbers: Sequence[int]) -> torch.Size:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"{numbers} are no sizes")
    return torch.Size(numbers)


def _item_from_json(
    fqn: str, offset: Any, index: int | None, file: str, name: str, kind: str, digest: str
) -> tuple[dcp.MetadataIndex, StoredItem]:
    if Path(file).name != file or kind not in (TENSOR, OBJECT, PICKLED_TENSOR):
        raise ValueError(f"{fqn!r} is stored as {kind!r} in {file!r}")
    place = dcp.MetadataIndex(fqn, None if offset is None else _size(offset), index)
    return place, StoredItem(file, name, kind, digest)
