"""Entries of an archive's index: files, the blobs they consist of, and the chunks of the blobs."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ..errors import Corruption
from ..files.file_plan import TensorView, by_segment
from .layout import HEADER, padding
from .tensor_groups import are_grouped

#: Chunks of a segment whose bytes others have, too, hold so many bytes on average; the last may hold fewer.
MIN_SHARED = 64
DRIVE = re.compile(r"[A-Za-z]:")


class Chunk(NamedTuple):
    """A stored part.

    Attributes:
        codec: Code of the codec.
        stored: Stored size in bytes.
        size: Size of the part in bytes.
    """

    codec: int
    stored: int
    size: int


@dataclass
class Blob:
    """A sequence of bytes in chunks.

    Attributes:
        bytes: Number of bytes.
        hash: Their hash, 16 hexadecimal digits.
        chunks: The chunks, in order.
        offset: Where the first chunk lies in the archive.
    """

    bytes: int
    hash: str
    chunks: tuple[Chunk, ...]
    offset: int = field(default=0, compare=False)

    @property
    def chunk_bytes(self) -> int:
        """Bytes that its chunks take in the archive, padding included, whether they are its own or another's."""
        return sum(chunk.stored + padding(chunk.stored) for chunk in self.chunks)

    @property
    def stored(self) -> int:
        """Bytes that it adds to the archive, padding included."""
        return self.chunk_bytes

    @cached_property
    def starts(self) -> list[int]:
        """Return where the part of each chunk begins in the blob, and where the last one ends."""
        return [0, *accumulate(chunk.size for chunk in self.chunks)]

    @cached_property
    def places(self) -> list[int]:
        """Return where each chunk lies, from ``offset`` on."""
        return [0, *accumulate(chunk.stored + padding(chunk.stored) for chunk in self.chunks)]

    def numbers(self, start: int, stop: int) -> range:
        """Return the numbers of the chunks that hold bytes ``start`` to ``stop``."""
        first = max(bisect_right(self.starts, start) - 1, 0)
        return range(first, min(bisect_left(self.starts, stop), len(self.chunks)) if start < stop else first)


@dataclass
class SegmentEntry(Blob):
    """A blob that is a stretch of a file.

    Attributes:
        skip: Verbatim bytes before the segment in the file.
        dtype: The codec's type of its values; None for plain bytes.
        lossy: True if a lossy mode made it.
        base: Hash of the bytes that it is coded against; None if it has no base.
        same: File and segment, by number, whose bytes it has: its chunks are theirs; None if it has its own.
        cast: File and segment, by number, whose values it is coded against, cast to its own type; None if it is not.
        version_of: File and segment, by number, whose bytes it is coded against; None if it is not.
    """

    skip: int = 0
    dtype: str | None = None
    lossy: bool = False
    base: str | None = None
    same: tuple[int, int] | None = None
    cast: tuple[int, int] | None = None
    version_of: tuple[int, int] | None = None

    @property
    def may_be_shared(self) -> bool:
        """True if other segments may have its bytes. False if its chunks are very small: a reader takes its time for
        each, and would take hours for a small archive of many copies."""
        return (len(self.chunks) - 1) * MIN_SHARED <= self.bytes

    @property
    def stored(self) -> int:
        """Bytes that the segment adds to the archive, padding included."""
        return 0 if self.same is not None else self.chunk_bytes


@dataclass(frozen=True)
class FileEntry:
    """A file and how it is restored.

    Attributes:
        path: Where the file belongs, ``/`` between components.
        format: Kind of the file, such as ``npy``.
        exact: True if the restored bytes are those of the original.
        size: Bytes of the restored file.
        verbatim: The bytes between the segments.
        segments: The segments, in the order of the file.
        tensors: The tensors on the segments.
        container: ``numpy`` or ``torch``, the kind of arrays that were saved; None for files.
        base: Name of the file that it is coded against, if that has a name.
    """

    path: str
    format: str
    exact: bool
    size: int
    verbatim: Blob
    segments: tuple[SegmentEntry, ...]
    tensors: tuple[TensorView, ...]
    container: str | None = None
    base: str | None = None

    @property
    def stored(self) -> int:
        """Bytes in the archive, without the index."""
        return self.verbatim.stored + sum(segment.stored for segment in self.segments)

    @property
    def is_plain(self) -> bool:
        """True if the file holds no tensors, and is one segment as a whole."""
        return not self.tensors and len(self.segments) == 1 and not self.verbatim.bytes

    @property
    def needs_base(self) -> bool:
        """True if any segment of the file is coded against a base."""
        return any(segment.base for segment in self.segments)

    @property
    def is_version(self) -> bool:
        """True if any segment of the file is coded against an earlier file of the archive."""
        return any(segment.version_of for segment in self.segments)

    @cached_property
    def views(self) -> dict[int, list[TensorView]]:
        """The tensors on each segment, by its number."""
        return by_segment(self.tensors)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The places in the file at which its segments begin."""
        ends = accumulate(segment.skip + segment.bytes for segment in self.segments)
        return tuple(end - segment.bytes for end, segment in zip(ends, self.segments, strict=True))

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """The types of the tensors."""
        return frozenset(tensor.dtype for tensor in self.tensors)

    @cached_property
    def groups(self) -> frozenset[int]:
        """The numbers of the segments that are small tensors end to end."""
        return frozenset(number for number, views in self.views.items() if are_grouped(views))

    def share(self, tensor: TensorView) -> int:
        """Return what a tensor of a group takes in the archive: of what the group takes, its share by size."""
        segment = self.segments[tensor.segment]
        return round(segment.stored * tensor.n_bytes / max(segment.bytes, 1))

    def label(self, number: int) -> str:
        """Return the name of a segment in messages: that of its first tensor, and of its last if it is a group."""
        if number not in self.views:
            return f"segment {number}"
        first, last = self.views[number][0].name, self.views[number][-1].name
        return f"{first} ... {last}" if number in self.groups else first


def name_of_segment(files: Sequence[FileEntry], entry: FileEntry, place: tuple[int, int] | None) -> str | None:
    """Return the name in messages of the segment that another, of the file ``entry``, has the bytes of or is coded
    against: after its file's name if that is another file; None for None."""
    if place is None:
        return None
    of = files[place[0]]
    return of.label(place[1]) if of is entry else of.path if of.is_plain else f"{of.path}:{of.label(place[1])}"


def name_of_copied_file(files: Sequence[FileEntry], entry: FileEntry) -> str | None:
    """Return the name in messages of what has all the bytes of a file that holds no tensors; None if nothing has."""
    if entry.tensors or entry.verbatim.bytes or not entry.segments:
        return None
    same = entry.segments[0].same
    if same is None or entry.is_plain:
        return name_of_segment(files, entry, same)
    first = files[same[0]]  # cut into segments where values were found, as the copy is
    originals = [segment.same or (same[0], number) for number, segment in enumerate(first.segments)]
    copied = [segment.same for segment in entry.segments]
    return None if first is entry or first.verbatim.bytes or copied != originals else first.path


class Paths:
    """The paths of an archive's files: safe relative ones, none twice, none a folder in another."""

    def __init__(self) -> None:
        self._keys: list[str] = []  # in order: what is in a folder comes next after its name

    def add(self, path: str) -> None:
        """Raises Corruption if the path may not be in this archive."""
        why, key = unsafe_path(path), path_key(path)
        at = bisect_left(self._keys, key)
        before, after = self._keys[max(at - 1, 0) : at], self._keys[at : at + 1]
        if after == [key]:
            why = "occurs twice"
        elif any(key.startswith(f"{k}\0") for k in before) or any(k.startswith(f"{key}\0") for k in after):
            why = "one file is a folder in the path of another"
        if why:
            raise Corruption(f"file path {path!r}: {why}")
        self._keys.insert(at, key)


def path_key(path: str) -> str:
    """Return what orders paths so that those in a folder directly follow a file of the folder's name."""
    return path.replace("/", "\0")


def unsafe_path(path: str) -> str:
    """Return why a path may not be in an archive; empty if it may."""
    if not well_formed(path) or not 1 <= len(path.encode()) <= 4096:
        return "is not 1 to 4096 bytes of UTF-8"
    if "\\" in path or any(ord(character) < 32 for character in path):
        return "has a backslash or a control character"
    if path.startswith("/") or DRIVE.match(path):
        return "begins with a slash, or with a letter and a colon"
    return "has an empty, . or .. component" if {"", ".", ".."}.intersection(path.split("/")) else ""


def well_formed(text: str) -> bool:
    """Return True if a string can be written as UTF-8."""
    return text.isascii() or not any(0xD800 <= ord(character) < 0xE000 for character in text)


def blobs_of(entry: FileEntry) -> Iterable[Blob]:
    """Yield the blobs of a file in the order of their chunks."""
    yield from entry.segments
    yield entry.verbatim


def place_blobs(files: Sequence[FileEntry]) -> int:
    """Gives every blob its offset; returns where the last ends."""
    at = HEADER.size
    for entry in files:
        for blob in blobs_of(entry):
            same = blob.same if isinstance(blob, SegmentEntry) else None
            blob.offset = at if same is None else files[same[0]].segments[same[1]].offset
            at += blob.stored
    return at
