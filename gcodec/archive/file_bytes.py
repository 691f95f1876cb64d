"""A file in an archive as bytes to read at any place, and as a file object; decoded where it is read."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from ..files.source import Bytes, SourceFile, check_range, join, pieces_between
from .entries import FileEntry
from .reader import ArchiveReader

#: A file object reads at least so many bytes at once.
BUFFER_BYTES = 1 << 16


class _Stretch(NamedTuple):
    """A part of a file: a segment, or what lies between two.

    Attributes:
        start: Where it begins in the file.
        segment: Number of the segment; None for verbatim bytes.
        offset: Where verbatim bytes begin among all of these; of a segment 0.
    """

    start: int
    segment: int | None
    offset: int = 0


class FileBytes:
    """The bytes of a file in an archive, a :class:`gcodec.files.ByteSource` that is safe from several threads.

    As where single rows are read, chunks that are stored as they are have no checksum of their own: they are not
    checked.

    Args:
        check_open: Raises InvalidArgument once the archive has been closed.

    Attributes:
        size: Their number.
    """

    def __init__(self, archive: ArchiveReader, entry: FileEntry, check_open: Callable[[], None] = lambda: None) -> None:
        self._archive, self._entry, self._check_open = archive, entry, check_open
        self.size = entry.size
        self._stretches: list[_Stretch] = []
        at = n_verbatim = 0
        for number, segment in enumerate(entry.segments):
            if segment.skip:
                self._stretches.append(_Stretch(at, None, n_verbatim))
            at, n_verbatim = at + segment.skip, n_verbatim + segment.skip
            if segment.bytes:
                self._stretches.append(_Stretch(at, number))
            at += segment.bytes
        if at < entry.size:
            self._stretches.append(_Stretch(at, None, n_verbatim))
        self._starts = [*(stretch.start for stretch in self._stretches), self.size]

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop``, a view of what others see, too, or a copy.

        Raises:
            InvalidArgument: The archive has been closed.
            InsufficientData: They lie outside the file.
            GcodecError: The archive is damaged, or its base missing or another.
        """
        self._check_open()
        check_range(start, stop, self.size, self._entry.path)
        return join(self._part(self._stretches[n], *part) for n, *part in pieces_between(self._starts, start, stop))

    def _part(self, stretch: _Stretch, start: int, stop: int) -> Bytes:
        if stretch.segment is None:
            return self._verbatim[stretch.offset + start : stretch.offset + stop]
        return self._archive.segment_range(self._entry, stretch.segment, start, stop)

    @cached_property
    def _verbatim(self) -> Bytes:
        return self._archive.verbatim_bytes(self._entry)


class ArchivedFile(io.BufferedReader):
    """A file in an archive, read-only, that can seek.

    Attributes:
        size: Its bytes, which fsspec asks for where it reads from the end or by blocks.
    """

    size: int


def file_object(archive: ArchiveReader, entry: FileEntry, check_open: Callable[[], None]) -> ArchivedFile:
    """Return a file in an archive as a read-only binary file that can seek; arguments as for :class:`FileBytes`."""
    file = ArchivedFile(SourceFile(FileBytes(archive, entry, check_open)), BUFFER_BYTES)
    file.size = entry.size
    return file
