"""The ``.gc`` archive (docs/archive.md): files of tensors, compressed, with an index; and dictionaries of tensors."""

from __future__ import annotations

from .base_files import Bases
from .base_tensors import Base
from .dicts import load_file, save_file
from .encoding_policy import EncodingPolicy
from .entries import Blob, Chunk, FileEntry, SegmentEntry
from .objects import load, save
from .reader import ArchiveReader
from .writer import ArchiveWriter

__all__ = [
    "ArchiveReader",
    "ArchiveWriter",
    "Base",
    "Bases",
    "Blob",
    "Chunk",
    "EncodingPolicy",
    "FileEntry",
    "SegmentEntry",
    "load",
    "load_file",
    "save",
    "save_file",
]


def __dir__() -> list[str]:
    return __all__
