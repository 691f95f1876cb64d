"""The ``.gc`` archive (docs/archive.md): files of tensors, compressed, with an index; and dictionaries of tensors."""

from __future__ import annotations

from gcodec.archive.base import Base
from gcodec.archive.bases import Bases
from gcodec.archive.dicts import load_file, save_file
from gcodec.archive.entries import Blob, Chunk, FileEntry, SegmentEntry
from gcodec.archive.reader import ArchiveReader
from gcodec.archive.writer import ArchiveWriter, EncodingPolicy

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
    "load_file",
    "save_file",
]
