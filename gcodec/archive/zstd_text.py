"""Zstandard for parts and indexes, whose errors tell no memory from damage but by their text.

The library is imported where it is first needed: what runs on a device needs none of it.
"""

from __future__ import annotations

from ..errors import Corruption, NoMemory

#: What the library says of memory that the system does not give; of a window that is too large it says something else.
_NO_MEMORY = "Allocation error"


def compressed(data: bytes | memoryview, level: int, *, checksum: bool = False) -> bytes:
    """Return bytes as a frame of Zstandard, with their size. Raises MemoryError."""
    import zstandard

    try:
        return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=checksum).compress(data)
    except zstandard.ZstdError as error:
        raise MemoryError(f"no memory to compress {len(data)} bytes with Zstandard: {error}") from error


def decompressed(data: memoryview, size: int) -> bytes:
    """Return the content of a frame of Zstandard, of at most ``size`` bytes. Raises Corruption, NoMemory."""
    import zstandard

    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        kind = NoMemory if _NO_MEMORY in str(error) else Corruption
        raise kind(f"{error}") from error


def stated_size(data: memoryview) -> int:
    """Return the size of its content that a frame of Zstandard states, or -1. Raises Corruption for what is none."""
    import zstandard

    try:
        return int(zstandard.frame_content_size(data))
    except zstandard.ZstdError as error:
        raise Corruption(f"{error}") from error
