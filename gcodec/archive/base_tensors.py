"""Tensors of an earlier file, the base, that a file's tensors are coded against (docs/archive.md, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

import xxhash

from ..dtypes import DTYPES
from ..errors import Unsupported
from ..files.elements import width
from ..files.file_plan import FilePlan, TensorView
from ..files.source import Bytes, join, pieces_between
from .entries import FileEntry
from .type_casts import BASE_CASTS, TypeCast

#: Types whose frames may refer to a base.
WITH_BASE = tuple(t.name for t in DTYPES)
#: So many bytes are read and hashed at once.
HASHED_BYTES = 1 << 22

Read = Callable[[int, int, int], Bytes]
ReadFile = Callable[[int, int], Bytes]


class BaseBytes(NamedTuple):
    """The bytes that a segment is coded against: those of a base's segment, from ``offset`` on.

    ``hash`` of them, where it is known without reading them; ``is_held`` as for :class:`Base`; ``place``: the file and
    segment, by number, where they are in the archive that is written, if they are; ``cast``: what is done to the values
    there, if they are of another type.
    """

    name: str
    segment: int
    offset: int
    hash: str | None
    read_segment: Read
    is_held: bool = False
    place: tuple[int, int] | None = None
    cast: TypeCast | None = None

    def read(self, start: int, stop: int) -> Bytes:
        """Bytes ``start`` to ``stop``; safe from several threads."""
        if self.cast is not None:
            return self.cast.read(self._read_as_stored, start, stop)
        return self._read_as_stored(start, stop)

    def _read_as_stored(self, start: int, stop: int) -> Bytes:
        """Return bytes of the segment from ``offset`` on, of the type that they have there."""
        return self.read_segment(self.segment, self.offset + start, self.offset + stop)

    def goes_on_in(self, other: BaseBytes, size: int) -> bool:
        """Return True if what is behind the first ``size`` bytes here is where another begins."""
        stored = size if self.cast is None else self.cast.n_bytes_of(size)
        return (other.segment, other.offset, other.cast) == (self.segment, self.offset + stored, self.cast)


class BaseSegment(NamedTuple):
    """A segment of a base.

    Attributes:
        bytes: Size in bytes.
        dtype: The codec's type of its values; None for plain bytes.
        hash: Its hash, where an archive has one.
    """

    bytes: int
    dtype: str | None
    hash: str | None = None


@dataclass(frozen=True)
class Base:
    """An earlier file that another is coded against.

    Attributes:
        name: Name of the file in messages, which archives keep.
        tensors: Tensors of the file.
        segments: Segments of the file.
        read: Function of a segment's number, start and stop that returns these bytes.
        is_held: Every reader holds the base anyway, so that anything saved by it is worth while.
        second: Returns the same tensors as another kind of file has them, or None. Readers take from it what was coded
            against that: transposed and shared tensors in memory are other bytes in a dictionary than in a state.
        size: Of the file in bytes, if values without names are found in it; they are the base of what is at the same
            place in another. Otherwise 0.
        read_file: Function of a start and stop in such a file that returns these bytes.
        number: Of the file in the archive that is written, if it is there; its segments are those there.
    """

    name: str
    tensors: tuple[TensorView, ...]
    segments: tuple[BaseSegment, ...]
    read: Read
    is_held: bool = False
    second: Callable[[], Base | None] | None = None
    size: int = 0
    read_file: ReadFile | None = None
    number: int | None = None

    @classmethod
    def of_plan(cls, name: str, plan: FilePlan, second: Callable[[], FilePlan | None] | None = None) -> Base:
        """Return the base that is the file of a plan; its bytes are read when they are needed. ``second``: see
        :class:`Base`."""

        def read(segment: int, start: int, stop: int) -> Bytes:
            begin = plan.segments[segment].start
            return plan.source.read(begin + start, begin + stop)

        segments = tuple(BaseSegment(segment.stop - segment.start, segment.dtype) for segment in plan.segments)

        @cache
        def other() -> Base | None:
            other_plan = None if second is None else second()
            return None if other_plan is None else cls.of_plan(other_plan.path, other_plan)

        by_place = (plan.source.size, plan.source.read) if plan.format == "bytes" else ()
        return cls(name, plan.tensors, segments, read, False, other, *by_place)

    @classmethod
    def of_entry(cls, name: str, entry: FileEntry, read: Read) -> Base:
        """Return the base that is a file in an archive."""
        segments = tuple(BaseSegment(segment.bytes, segment.dtype, segment.hash) for segment in entry.segments)
        if entry.format != "bytes" or entry.verbatim.bytes:
            return cls(name, entry.tensors, segments, read)
        starts = [0, *accumulate(segment.bytes for segment in segments)]

        def read_file(start: int, stop: int) -> Bytes:
            return join(read(*piece) for piece in pieces_between(starts, start, stop))

        return cls(name, entry.tensors, segments, read, size=entry.size, read_file=read_file)

    def bytes_for(
        self,
        views: Sequence[TensorView],
        size: int,
        dtype: str | None,
        *,
        alone: bool,
        raw: bool = False,
        place: int = 0,
    ) -> BaseBytes | None:
        """Return what a segment of another file is coded against; None if nothing here fits it.

        Tensors of its type are preferred to those of another type that are cast to it.

        Args:
            views: The tensors on the segment.
            size: Of the segment, in bytes.
            dtype: Of its values.
            alone: The other file has a single tensor. If so has this, names do not matter: those of ``.npy`` files
                are the files'.
            raw: Also take unsigned integers for the raw bits of another type, as numpy arrays of bfloat16 may come.
            place: Where in its file a segment without tensors begins.
        """
        if dtype not in WITH_BASE or not size:
            return None
        if not views and place + size <= self.size and (read_file := self.read_file) is not None:
            return BaseBytes(self.name, 0, place, None, lambda _, start, stop: read_file(start, stop), self.is_held)
        if len(views) > 1 and are_end_to_end(views, size):
            joined = self._bytes_end_to_end(views, dtype, raw)
            if joined is not None:
                return joined
        alone = alone and len(self.tensors) == 1
        pairs = [(view, self.tensors[0] if alone else self._by_name.get(view.name)) for view in views]
        for view, other in pairs:
            if other is None or not self._same_type(view, other, dtype, raw):
                continue
            segment = self.segments[other.segment]
            if segment.bytes == size:
                return BaseBytes(self.name, other.segment, 0, segment.hash, self.read, self.is_held)
            element = width(view.dtype) or 1
            if view.is_dense and other.is_dense and view.n_bytes == size == other.n_bytes:
                return BaseBytes(self.name, other.segment, other.offset * element, None, self.read, self.is_held)
        for view, other in pairs:
            found = None if other is None else self._cast_of(other, view, size, dtype)
            if found is not None:
                return found
        return None

    def _cast_of(self, other: TensorView, view: TensorView, size: int, dtype: str) -> BaseBytes | None:
        """Return the values of a tensor here, cast to the type of another of so many bytes; None if they do not fit."""
        segment = self.segments[other.segment]
        cast = BASE_CASTS.get((other.dtype, view.dtype))
        # Where this file is in the archive that is written, casts are found by what they are of: see cast_segments.py.
        if cast is None or (segment.dtype, dtype) != (other.dtype, view.dtype) or self.number is not None:
            return None
        stored, offset = cast.n_bytes_of(size), 0
        if segment.bytes != stored:
            if not (view.is_dense and other.is_dense and view.n_bytes == size and other.n_bytes == stored):
                return None
            offset = other.offset * cast.of_bytes
        return BaseBytes(self.name, other.segment, offset, None, self.read, self.is_held, cast=cast)

    def _bytes_end_to_end(self, views: Sequence[TensorView], dtype: str, raw: bool) -> BaseBytes | None:
        """Return the bytes of tensors of these names, end to end; None unless all of them are here and fit."""
        parts, sizes = list[BaseBytes](), list[int]()
        for view in views:
            size = view.n_bytes
            part = self.bytes_for([view], size, dtype, alone=False, raw=raw)
            if part is None:
                return None
            # What lies end to end here, too, is read at once: each read of a base that has a base itself reads that.
            if parts and parts[-1].goes_on_in(part, sizes[-1]):
                sizes[-1] += size
            else:
                parts.append(part)
                sizes.append(size)
        first = self.segments[parts[0].segment]
        if len(parts) == 1 and parts[0].cast is None and sizes[0] == first.bytes:
            return parts[0]._replace(hash=first.hash)
        starts = [0, *accumulate(sizes)]

        def read(_: int, start: int, stop: int) -> Bytes:
            return join(parts[n].read(begin, end) for n, begin, end in pieces_between(starts, start, stop))

        return BaseBytes(self.name, parts[0].segment, 0, None, read, self.is_held)

    @cached_property
    def _by_name(self) -> dict[str, TensorView]:
        return {tensor.name: tensor for tensor in self.tensors}

    def _same_type(self, view: TensorView, other: TensorView, dtype: str, raw: bool) -> bool:
        if other.dtype == view.dtype:
            return self.segments[other.segment].dtype == dtype
        return raw and other.dtype == f"uint{8 * (width(view.dtype) or 0)}"


class BaseFinder(Protocol):
    """An object that finds the bases of files."""

    def find(self, path: str, dtype: str | None = None) -> Base | None:
        """Return the base of the file ``path``, None if there is none; safe from several threads.

        ``dtype``: what the values of a base without a header are.
        """
        ...


def base_of_file(entry: FileEntry, bases: BaseFinder | None) -> Base:
    """Return what a file in an archive is coded against. Raises Unsupported if that is not to be found."""
    if bases is None:
        raise Unsupported(
            f"was compressed against {_meant(entry)} which must be given to read it: base= in Python, "
            "--base on the command line; for a chain give all, each archive before its own base"
        )
    base = bases.find(entry.path, entry.tensors[0].dtype if len(entry.tensors) == 1 else None)
    if base is None:
        raise Unsupported(f"was compressed against {_meant(entry)} and there is none for this file")
    return base


def base_bytes(entry: FileEntry, number: int, base: Base) -> BaseBytes:
    """Return what a segment in an archive is coded against.

    Args:
        base: What the file is coded against.

    Raises:
        Unsupported: The base has no such tensor, or is known to be of other values than at compression.
    """
    segment, meant, alone = entry.segments[number], _meant(entry), len(entry.tensors) == 1
    views = entry.views.get(number, [])
    place = entry.starts[number]
    found = base.bytes_for(views, segment.bytes, segment.dtype, alone=alone, raw=True, place=place)
    second = None if base.second is None else base.second()
    if second is not None and (found is None or _hash_of(found, segment.bytes) != segment.base):
        other = second.bytes_for(views, segment.bytes, segment.dtype, alone=alone, raw=True)
        if other is not None and _hash_of(other, segment.bytes) == segment.base:
            return other
    if found is None:
        which, n_bytes = "such tensor", segment.bytes
        if len(views) > 1 and are_end_to_end(views, segment.bytes):  # of many, the first that the base has not
            for view in views:
                if view.n_bytes and base.bytes_for([view], view.n_bytes, segment.dtype, alone=False, raw=True) is None:
                    which, n_bytes = f"tensor {view.name!r}", view.n_bytes
                    break
        size = f"{n_bytes} bytes of {segment.dtype}"
        if not views:
            raise Unsupported(f"was compressed against {meant} and {base.name} does not hold {size} at byte {place}")
        raise Unsupported(f"was compressed against {meant} and {base.name} has no {which} of {size}")
    if found.hash not in (None, segment.base):
        raise Unsupported(f"was compressed against {meant} of other values than {base.name} has")
    return found


def _hash_of(found: BaseBytes, size: int) -> str:
    """Return the hash of what a segment of ``size`` bytes would be decoded against."""
    digest = xxhash.xxh3_64()
    for start in range(0, size, HASHED_BYTES):
        digest.update(found.read(start, min(start + HASHED_BYTES, size)).data)
    return digest.hexdigest()


def _meant(entry: FileEntry) -> str:
    """Return how messages call what a file was coded against."""
    return f"a base, {entry.base}," if entry.base else "a base"


def are_end_to_end(views: Sequence[TensorView], size: int) -> bool:
    """Return True if tensors fill a segment of ``size`` bytes one after another, whole and row-major."""
    at = 0
    for view in views:
        if not view.is_dense or view.offset * (width(view.dtype) or 1) != at:
            return False
        at += view.n_bytes
    return at == size
