"""Find segments whose bytes an archive has already, as where weights are stored under two names, or in two files.

Hashes only say which segments to compare: what is left out of an archive is equal byte for byte.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from ..errors import GcodecError
from ..files.file_plan import FilePlan
from ..files.source import Bytes, ByteSource, FileSource, open_regular

MIN_BYTES = 1 << 12  #: of fewer, a segment is not worth an entry of its own in every list
_EDGE = 512  #: so many bytes at either end must be alike before segments are read and compared
_PIECE = 1 << 20  #: bytes that are compared at a time
_MAX_ALIKE = 3  #: segments of one size that begin and end alike, and yet differ, that are kept to be compared with

_Likeness = tuple[int, str | None, int]


class Copy(NamedTuple):
    """Names where an archive has the bytes of a segment already.

    Attributes:
        place: number of the file, and of the segment in it.
        hash: XXH3 of the bytes, 16 hexadecimal digits.
    """

    place: tuple[int, int]
    hash: str


class _Original(NamedTuple):
    """A segment that later ones are compared with.

    Attributes:
        place: number of the file, and of the segment in it.
        source: the bytes of the file; its path if it has been closed.
        start: where the segment begins in the file.
    """

    place: tuple[int, int]
    source: ByteSource | Path
    start: int


#: The segments of an archive that later ones are compared with, by size, type, and the hash of either end.
KnownSegments = dict[_Likeness, list[_Original]]


class CopiesInFile:
    """Finds the segments of a file whose bytes are those of an earlier one, there or in an earlier file.

    Args:
        known: the archive's, to which those of the file are added.
        plan: the file.
        number: its number in the archive.
        without: numbers of segments that are not to be read.
    """

    def __init__(
        self, known: KnownSegments, plan: FilePlan, number: int, without: Container[int]
    ) -> None:
        self._known, self._plan, self._number, self._without = known, plan, number, without
        self._found, self._added = list[Copy | None](), list[_Likeness]()
        self._is_at_hand = getattr(plan.source, "is_at_hand", lambda start: False)

    def find(self, number: int) -> Copy | None:
        """Return the copy that a segment is of; None if it is of none, or cannot be compared."""
        while len(self._found) <= number:
            self._found.append(self._next(len(self._found)))
        return self._found[number]

    def close(self) -> None:
        """Let go of the source: segments are compared with later ones if it can be opened again by a path."""
        path = self._plan.source.path if isinstance(self._plan.source, FileSource) else None
        for key in dict.fromkeys(self._added):
            originals = self._known.pop(key)
            kept = [original for original in originals if original.place[0] != self._number]
            if path is not None:
                kept += [original._replace(source=path) for original in originals[len(kept) :]]
            if kept:
                self._known[key] = kept

    def _next(self, number: int) -> Copy | None:
        segment, source = self._plan.segments[number], self._plan.source
        size = segment.stop - segment.start
        if size < MIN_BYTES or number in self._without or not self._is_at_hand(segment.start):
            return None
        edges = xxhash.xxh3_64(source.read(segment.start, segment.start + _EDGE).data)
        edges.update(source.read(segment.stop - _EDGE, segment.stop).data)
        key = size, segment.dtype, edges.intdigest()
        originals = self._known.get(key, [])
        for original in originals:
            digest = _hash_if_equal(original, source, segment.start, size)
            if digest is not None:
                return Copy(original.place, digest)
        if len(originals) < _MAX_ALIKE:
            self._known.setdefault(key, []).append(_Original((self._number, number), source, segment.start))
            self._added.append(key)
        return None


def _hash_if_equal(original: _Original, source: ByteSource, start: int, size: int) -> str | None:
    """Return the hash of ``size`` bytes from ``start`` on, if they are those of an earlier segment, else None."""
    if not isinstance(original.source, Path):
        return _compare(original.source, original.start, source, start, size)
    try:
        with closing(FileSource(open_regular(original.source))) as earlier:
            return _compare(earlier, original.start, source, start, size)
    except (OSError, GcodecError):  # it is gone, or is another file now
        return None


def _compare(earlier: ByteSource, earlier_start: int, source: ByteSource, start: int, size: int) -> str | None:
    hash_ = xxhash.xxh3_64()
    for at in range(0, size, _PIECE):
        n = min(_PIECE, size - at)
        piece: Bytes = source.read(start + at, start + at + n)
        if not np.array_equal(piece, earlier.read(earlier_start + at, earlier_start + at + n)):
            return None
        hash_.update(piece.data)
    return hash_.hexdigest()
