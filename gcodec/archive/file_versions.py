"""Files that are versions of each other, such as the checkpoints of a run, found by their tensors and by samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files.file_plan import FilePlan, TensorView, by_segment
from ..files.source import Bytes, ByteSource, FileSource
from .base_tensors import Base, BaseBytes, BaseSegment
from .chunks import pack_chunk
from .entries import FileEntry
from .file_state import EarlierFile, FileState
from .layout import MAX_VERSIONS

#: Parts of so many bytes are compared, in so many of the largest tensors.
_SAMPLE_BYTES, _N_SAMPLES = 1 << 20, 4
#: Least share of a file that its difference from another must save.
WORTH_SAVING = 0.05
#: Least share of a file's bytes that are in tensors of the names, types and sizes of an earlier file's.
LITTLE_IN_COMMON = 0.5
#: So many kinds of files, by their tensors, are remembered of those that an archive has.
_MAX_KINDS = 64

#: What versions have in common: names, types and shapes of all tensors.
Tensors = frozenset[tuple[str, str, tuple[int, ...]]]


def tensors_of(views: Sequence[TensorView]) -> Tensors:
    """Return what two files have in common that are versions of each other."""
    return frozenset((view.name, view.dtype, view.shape) for view in views)


def step_order(path: str | Path) -> list[tuple[bool, int, str]]:
    """Return a key by which step-9 comes before step-10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", str(path))]


def share_saved(plan: FilePlan, base: Base, *, equal_is_free: bool = False) -> float:
    """Return the share of a file's size that is saved where it is stored as the difference from a base, by a sample.

    Args:
        equal_is_free: Tensors that are equal take nothing without a base, either.
    """
    alone = against = 0
    for dtype, old, new in _samples(plan, base):
        if equal_is_free and np.array_equal(old, new):
            continue
        alone += len(pack_chunk(new, dtype, {}).payload)
        against += len(pack_chunk(new, dtype, {}, base=old).payload)
    return 1 - against / alone if alone else 0.0


def share_in_common(plan: FilePlan, base: Base) -> float:
    """Return the share of the bytes of a file's values that a base has counterparts of."""
    sizes = [segment.stop - segment.start for segment in plan.segments if segment.dtype is not None]
    return sum(new.stop - new.start for new, _ in _pairs(plan, base)) / max(sum(sizes), 1)


class _Place(NamedTuple):
    """A stretch of a file."""

    start: int
    stop: int
    dtype: str


def _pairs(plan: FilePlan, base: Base) -> Iterator[tuple[_Place, BaseBytes]]:
    """Yield the segments of a file that a base has counterparts of."""
    views, alone = by_segment(plan.tensors), len(plan.tensors) == 1
    for number, segment in enumerate(plan.segments):
        size = segment.stop - segment.start
        found = base.bytes_for(views.get(number, []), size, segment.dtype, alone=alone, place=segment.start)
        if found is not None and segment.dtype is not None:
            yield _Place(segment.start, segment.stop, segment.dtype), found


def _samples(plan: FilePlan, base: Base) -> Iterator[tuple[str, Bytes, Bytes]]:
    """Yield the type and the bytes of parts of tensors in both files: those of the base, and those of the file."""
    pairs = sorted(_pairs(plan, base), key=lambda pair: (pair[0].start - pair[0].stop, pair[0].start))
    for new, old in pairs[:_N_SAMPLES]:
        size = min(new.stop - new.start, _SAMPLE_BYTES)
        at = (new.stop - new.start - size) // 16 * 8
        yield new.dtype, old.read(at, at + size), plan.source.read(new.start + at, new.start + at + size)


class _Earlier(NamedTuple):
    """A file that an archive has.

    Attributes:
        number: Of the file in the archive.
        entry: Its entry.
        file: Reads it again.
        depth: So many files, each a version of the next, are decoded for it beside itself.
        first: The file at the end of this chain; None for one that needs no other.
    """

    number: int
    entry: FileEntry
    file: EarlierFile
    depth: int
    first: _Earlier | None

    @property
    def base(self) -> Base:
        """The file as a base of others; its bytes are read from the file itself, which nobody has to decode."""
        segments = tuple(BaseSegment(each.bytes, each.dtype, each.hash) for each in self.entry.segments)
        return Base(self.entry.path, self.entry.tensors, segments, self._read, number=self.number)

    def _read(self, segment: int, start: int, stop: int) -> Bytes:
        place = self.entry.starts[segment]
        return self.file.read(place + start, place + stop)


class FileVersions:
    """Finds the earlier file of an archive that a file is a version of.

    Files are best added in the order in which they were made, as :func:`step_order` has it. The base of each is the
    last one of the same tensors; where too many would have to be decoded for that, it is the first of them.
    """

    def __init__(self) -> None:
        self._files = dict[int, _Earlier]()  # by their numbers
        self._last = dict[Tensors, _Earlier]()  # of each kind, the newest kind at the end

    def base_of(self, plan: FilePlan) -> Base | None:
        """Return the file that another is best stored as the difference from; None where that would save little.

        Raises:
            GcodecError, OSError: The file cannot be read.
        """
        earlier = self._earlier(plan) if plan.tensors and plan.exact else None
        if earlier is None or earlier.file.change:
            return None
        base = earlier.base
        return base if share_saved(plan, base) >= WORTH_SAVING else None

    def _earlier(self, plan: FilePlan) -> _Earlier | None:
        found = self._last.get(tensors_of(plan.tensors))
        if found is None:
            shares = [(share_in_common(plan, each.base), each.number) for each in self._last.values()]
            share, number = max(shares, default=(0.0, 0))
            found = self._files[number] if share >= LITTLE_IN_COMMON else None
        return found.first if found is not None and found.depth == MAX_VERSIONS else found

    def add(self, entry: FileEntry, number: int, source: ByteSource, base: Base | None) -> None:
        """Note a file that an archive has now.

        Args:
            source: Its bytes; only files of the system's can be read again.
            base: What :meth:`base_of` returned for it.
        """
        if not isinstance(source, FileSource) or source.path is None or source.descriptor is None:
            return
        if not entry.tensors or not entry.exact:
            return
        before, depth = None, 0
        if base is not None and base.number is not None and entry.is_version:
            before = self._files[base.number]
            depth, before = before.depth + 1, before.first or before
        added = _Earlier(number, entry, EarlierFile(source.path, FileState.of(source.descriptor)), depth, before)
        self._files[number] = added
        kind = tensors_of(entry.tensors)
        self._last.pop(kind, None)
        self._last[kind] = added
        if len(self._last) > _MAX_KINDS:
            del self._last[next(iter(self._last))]
