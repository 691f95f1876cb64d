"""What the index of an archive lists: files, the blobs they consist of, and the chunks of the blobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from gcodec.archive.layout import HEADER, padding
from gcodec.errors import Corruption
from gcodec.files.plan import TensorView

DRIVE = re.compile(r"[A-Za-z]:")


class Chunk(NamedTuple):
    """One stored part: the codec, its stored size and the part's size, in bytes."""

    codec: int
    stored: int
    size: int


@dataclass
class Blob:
    """A sequence of bytes in chunks. ``offset`` is where its first chunk lies in the archive."""

    bytes: int
    hash: str
    chunks: tuple[Chunk, ...]
    offset: int = field(default=0, compare=False)

    @property
    def stored(self) -> int:
        """Bytes in the archive, padding included."""
        return sum(chunk.stored + padding(chunk.stored) for chunk in self.chunks)


@dataclass
class SegmentEntry(Blob):
    """A blob that is a stretch of a file, after ``skip`` verbatim bytes; ``lossy`` if a lossy mode made it."""

    skip: int = 0
    dtype: str | None = None
    lossy: bool = False


@dataclass(frozen=True)
class FileEntry:
    """A file and how it is restored."""

    path: str
    format: str
    exact: bool
    size: int
    verbatim: Blob
    segments: tuple[SegmentEntry, ...]
    tensors: tuple[TensorView, ...]
    container: str | None = None

    @property
    def stored(self) -> int:
        """Bytes in the archive, without the index."""
        return self.verbatim.stored + sum(segment.stored for segment in self.segments)


def check_paths(paths: Sequence[str]) -> None:
    """Raises Corruption unless every path is a safe relative one, and none is another or a folder in another."""
    taken = set(paths)
    if len(taken) != len(paths):
        raise Corruption("two files of the archive have the same path")
    for path in paths:
        if why := unsafe_path(path):
            raise Corruption(f"file path {path!r}: {why}")
        parts = path.split("/")
        if any(folder in taken for folder in accumulate(parts[:-1], lambda a, b: f"{a}/{b}")):
            raise Corruption(f"file path {path!r}: a file of the archive is used as a folder")


def unsafe_path(path: str) -> str:
    """Why a path may not be in an archive; empty if it may."""
    if not well_formed(path) or not 1 <= len(path.encode()) <= 4096:
        return "is not 1 to 4096 bytes of UTF-8"
    if "\\" in path or any(ord(character) < 32 for character in path):
        return "has a backslash or a control character"
    if path.startswith("/") or DRIVE.match(path):
        return "is not relative"
    return "has an empty, . or .. component" if {"", ".", ".."}.intersection(path.split("/")) else ""


def well_formed(text: str) -> bool:
    """Whether a string can be written as UTF-8."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in text)


def blobs_of(entry: FileEntry) -> Iterable[Blob]:
    """The blobs of a file in the order of their chunks."""
    yield from entry.segments
    yield entry.verbatim


def place_blobs(files: Sequence[FileEntry]) -> int:
    """Gives every blob its offset; returns where the last ends."""
    at = HEADER.size
    for entry in files:
        for blob in blobs_of(entry):
            blob.offset = at
            at += blob.stored
    return at
