"""Zstandard for parts and indexes, whose errors tell no memory from damage but by their text."""

from __future__ import annotations

import zstandard

from ..errors import Corruption, NoMemory

#: What the library says of memory that the system does not give; of a window that is too large it says something else.
_NO_MEMORY = "Allocation error"


def compressed(data: bytes | memoryview, level: int, *, checksum: bool = False) -> bytes:
    """Return bytes as a frame of Zstandard, with their size. Raises MemoryError."""
    try:
        return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=checksum).compress(data)
    except zstandard.ZstdError as error:
        raise MemoryError(f"no memory to compress {len(data)} bytes with Zstandard: {error}") from error


def decompressed(data: memoryview, size: int) -> bytes:
    """Return the content of a frame of Zstandard, of at most ``size`` bytes. Raises Corruption, NoMemory."""
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        kind = NoMemory if _NO_MEMORY in str(error) else Corruption
        raise kind(f"{error}") from error
