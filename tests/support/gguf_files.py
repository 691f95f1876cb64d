"""Writes .gguf files, from llama.cpp's description of the format."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

TYPES = {"float32": 0, "float16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "float64": 28, "bfloat16": 30}


class Stored(NamedTuple):
    """A tensor: its type, its shape with the innermost dimension last, and its bytes."""

    dtype: str | int
    shape: tuple[int, ...]
    data: bytes


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def uint32(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def strings(key: str, values: list[str]) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def gguf_file(
    tensors: Mapping[str, Stored], keys: tuple[bytes, ...] = (), *, alignment: int = 32, version: int = 3
) -> bytes:
    """Return a file with these tensors, and these keys as :func:`uint32` and :func:`strings` make them."""
    infos, data = b"", b""
    for name, (dtype, shape, values) in tensors.items():
        kind = TYPES[dtype] if isinstance(dtype, str) else dtype
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        infos += struct.pack("<IQ", kind, len(data))
        data += values + bytes(-len(values) % alignment)
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + infos
    return header + bytes(-len(header) % alignment) + data
