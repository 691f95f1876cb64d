"""Find segments whose bytes an archive has already, as where weights are stored under two names, or in two files.

Hashes only say which segments to compare: what is left out of an archive is equal byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import xxhash

from ..errors import GcodecError
from ..files.file_plan import FilePlan
from ..files.source import Bytes, ByteSource, FileSource, open_regular

MIN_BYTES = 1 << 12  #: of fewer, a segment is not worth an entry of its own in every list
_EDGE = 512  #: so many bytes at the beginning, and then at the end, must be alike before segments are compared
_PIECE = 1 << 20  #: bytes that are compared at a time
_MAX_ALIKE = 3  #: segments of one size that begin and end alike, and yet differ, that are kept to be compared with

_Likeness = tuple[int, str | None, int]
_Result = TypeVar("_Result")


class Copy(NamedTuple):
    """Names where an archive has the bytes of a segment already.

    Attributes:
        place: Number of the file, and of the segment in it.
        hash: XXH3 of the bytes, 16 hexadecimal digits.
    """

    place: tuple[int, int]
    hash: str


class _File:
    """A file that later ones are compared with.

    Args:
        source: Its bytes; once it is closed, its path.
    """

    def __init__(self, source: ByteSource | Path) -> None:
        self.source = source


class _Original(NamedTuple):
    """A segment that later ones are compared with.

    Attributes:
        place: Number of the file, and of the segment in it.
        file: The file.
        start: Where the segment begins in the file.
    """

    place: tuple[int, int]
    file: _File
    start: int


class _Alike:
    """The segments of one size and type that begin alike.

    Most have none like them: of the first, the end is read when there is a second.

    Args:
        first: The first of them.
    """

    def __init__(self, first: _Original) -> None:
        self._first: _Original | None = first
        self._by_end = dict[int, list[_Original]]()

    def of_end(self, end: int, size: int) -> list[_Original]:
        """Return those that end alike, too, to which more may be added; ``end``: the hash of the end."""
        first, self._first = self._first, None
        known = None if first is None else _read(first, lambda source: _hash_at(source, first.start + size - _EDGE))
        if first is not None and known is not None:
            self._by_end[known] = [first]
        return self._by_end.setdefault(end, [])

    def forget(self, file: _File) -> bool:
        """Leave out the segments of a file; returns True if others are left."""
        if self._first is not None and self._first.file is file:
            self._first = None
        for originals in self._by_end.values():
            originals[:] = [original for original in originals if original.file is not file]
        return self._first is not None or any(self._by_end.values())


#: The segments of an archive that later ones are compared with, by size, type, and the hash of the beginning.
KnownSegments = dict[_Likeness, _Alike]


class CopiesInFile:
    """Finds the segments of a file whose bytes are those of an earlier one, there or in an earlier file.

    Args:
        known: The archive's, to which those of the file are added.
        number: Its number in the archive.
        without: Numbers of segments that are not to be read.
    """

    def __init__(self, known: KnownSegments, plan: FilePlan, number: int, without: Container[int]) -> None:
        self._known, self._plan, self._number, self._without = known, plan, number, without
        self._file, self._found, self._added = _File(plan.source), list[Copy | None](), list[_Likeness]()
        self._is_at_hand = getattr(plan.source, "is_at_hand", lambda start: False)

    def find(self, number: int) -> Copy | None:
        """Return the copy that a segment is of; None if it is of none, or cannot be compared."""
        while len(self._found) <= number:
            self._found.append(self._next(len(self._found)))
        return self._found[number]

    def close(self) -> None:
        """Let go of the source: segments are compared with later ones if it can be opened again by a path."""
        if isinstance(self._plan.source, FileSource) and self._plan.source.path is not None:
            self._file.source = self._plan.source.path
            return
        self.forget()

    def forget(self) -> None:
        """Compare no later segments with those of the file."""
        for key in set(self._added):
            if key in self._known and not self._known[key].forget(self._file):
                del self._known[key]

    def _next(self, number: int) -> Copy | None:
        segment, source = self._plan.segments[number], self._plan.source
        start, size = segment.start, segment.stop - segment.start
        if size < MIN_BYTES or number in self._without or not self._is_at_hand(start):
            return None
        own, key = _Original((self._number, number), self._file, start), (size, segment.dtype, _hash_at(source, start))
        alike = self._known.get(key)
        if alike is None:
            self._added.append(key)
            self._known[key] = _Alike(own)
            return None
        originals = alike.of_end(_hash_at(source, segment.stop - _EDGE), size)
        for original in originals:
            digest = _hash_if_equal(original, source, start, size)
            if digest is not None:
                return Copy(original.place, digest)
        if len(originals) < _MAX_ALIKE:
            self._added.append(key)
            originals.append(own)
        return None


def _read(original: _Original, use: Callable[[ByteSource], _Result | None]) -> _Result | None:
    """Return what is made of the file of an earlier segment; None if it cannot be read any more."""
    if not isinstance(original.file.source, Path):
        return use(original.file.source)
    try:
        with closing(FileSource(open_regular(original.file.source))) as earlier:
            return use(earlier)
    except (OSError, GcodecError):  # it is gone, or is another file now
        return None


def _hash_if_equal(original: _Original, source: ByteSource, start: int, size: int) -> str | None:
    """Return the hash of ``size`` bytes from ``start`` on, if they are those of an earlier segment, else None."""
    return _read(original, lambda earlier: _compare(earlier, original.start, source, start, size))


def _hash_at(source: ByteSource, start: int) -> int:
    return xxhash.xxh3_64_intdigest(source.read(start, start + _EDGE).data)


def _compare(earlier: ByteSource, earlier_start: int, source: ByteSource, start: int, size: int) -> str | None:
    hash_ = xxhash.xxh3_64()
    for at in range(0, size, _PIECE):
        n = min(_PIECE, size - at)
        piece: Bytes = source.read(start + at, start + at + n)
        if not np.array_equal(piece, earlier.read(earlier_start + at, earlier_start + at + n)):
            return None
        hash_.update(piece.data)
    return hash_.hexdigest()
