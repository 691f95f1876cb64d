"""Archives from parts of the tester's choice, all hashes right: what a stranger may send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash
import zstandard

from gcodec.archive.layout import STORED, ZSTD, Trailer, archive_header

#: A blob as it is stored: its chunks as (codec, stored bytes, size), and its bytes.
Stored = tuple[Sequence[tuple[int, bytes, int]], bytes]


def packed(data: bytes) -> Stored:
    """Return bytes as one chunk of Zstandard, or as they are if that is no smaller."""
    text = zstandard.ZstdCompressor(level=19, write_content_size=True).compress(data)
    return ([(ZSTD, text, len(data))] if len(text) < len(data) else [(STORED, data, len(data))]), data


def archive_with(files: Sequence[Mapping[str, Any]]) -> bytes:
    """Return an archive of files.

    Args:
        files: For each, a mapping of ``path`` and what it has of ``format``, ``verbatim`` (bytes), ``segments`` (pairs
            of a blob, as bytes or ``Stored``, and further keys) and ``tensors``.
    """
    chunks, index = bytearray(archive_header()), []

    def blob(value: bytes | Stored) -> dict[str, Any]:
        parts, data = ([(STORED, value, len(value))] if value else [], value) if isinstance(value, bytes) else value
        for _, stored, _ in parts:
            chunks.extend(stored + bytes(-len(stored) % 8))
        digest = xxhash.xxh3_64_hexdigest(data)
        return {"bytes": len(data), "hash": digest, "chunks": [[codec, len(s), size] for codec, s, size in parts]}

    for file in files:
        segments = [{**blob(data), **keys} for data, keys in file.get("segments", [])]
        verbatim = blob(file.get("verbatim", b""))
        index.append(
            {
                "path": file["path"],
                "format": file.get("format", "bytes"),
                "exact": True,
                "size": verbatim["bytes"] + sum(segment["bytes"] for segment in segments),
                "verbatim": verbatim,
                "segments": segments,
                "tensors": file.get("tensors", []),
            }
        )
    text = json.dumps({"files": index}, separators=(",", ":")).encode()
    return bytes(chunks + text + bytes(-len(text) % 8) + Trailer(len(text), len(text), STORED).write_to(text))


def object_archive(
    node: Any, data: bytes = bytes(64), dtype: str = "float32", width: int = 4, version: int = 1
) -> bytes:
    """Return the archive of an object whose structure is ``node``, with one tensor in it, ``x``."""
    text = json.dumps({"version": version, "state": node}, separators=(",", ":")).encode()
    tensors = [
        {"name": "x", "dtype": dtype, "shape": [len(data) // width] if len(data) > width else [], "segment": 0},
        {"name": "__structure__", "dtype": "uint8", "shape": [len(text)], "segment": 1},
    ]
    segments: list[tuple[Stored, dict[str, Any]]] = [(packed(data), {}), (packed(text), {})]
    return archive_with([{"path": "s.safetensors", "format": "safetensors", "segments": segments, "tensors": tensors}])
