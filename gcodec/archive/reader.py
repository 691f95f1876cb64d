"""Reads an archive: its index first, then only what is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import cache, partial
from itertools import groupby, islice, repeat
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from ..errors import (
    Corruption,
    GcodecError,
    InvalidArgument,
    Unsupported,
    did_you_mean,
)
from ..files.elements import width
from ..files.file_plan import TensorView
from ..files.safetensors import MAX_HEADER, read_header
from ..files.source import ArraySource, Bytes, ByteSource, FileSource, check_not_at_end, naming, open_source
from ..threads import WorkPool, available_threads, ordered_map
from .arrays import as_array, default_kind
from .base_tensors import Base, BaseBytes, BaseFinder, base_bytes, base_of_file
from .chunks import OrderedHash, unpack_chunk
from .entries import Blob, Chunk, FileEntry, SegmentEntry
from .file_state import FilePlace, FileState
from .index import read_index
from .layout import FREE_INDEX, TEXT_PER_BYTE, ZSTD, check_json, padding
from .output_limit import LimitedOutput
from .part_memory import PartMemory, RecentBytes, Rooms, room_for, room_or
from .type_casts import CASTS

#: So many bytes of parts of which pieces were read, and of groups of small tensors, are kept for the next.
MAX_KEPT = 1 << 23
#: A range of no more chunks is unpacked on the thread that asks for it.
MAX_UNPACKED_HERE = 4


class _BlobToRead(NamedTuple):
    """A blob to be read.

    Attributes:
        blob: The blob.
        archive: Name of the archive.
        path: Of the file.
        label: What it is called in its file.
        base: The bytes that it is coded against, if it is.
        room: Gives the memory that all of it is read to, the same at each call; None if its parts may lie anywhere.
    """

    blob: Blob
    archive: str
    path: str
    label: str
    base: BaseBytes | None = None
    room: Callable[[], Bytes] | None = None

    @property
    def where(self) -> str:
        """Return the name for errors, not kept, for a file may have very many blobs, and a path of 4 KiB."""
        place = f"{self.archive}: {self.path}:{self.label}"
        return place if self.base is None else f"{place} (base: {self.base.name})"


class _ChunkToRead(NamedTuple):
    """A chunk to be unpacked.

    Attributes:
        at: Where the chunk lies in the archive.
        start: Where its part begins in the blob.
        chunk: The chunk.
        of: The blob.
        room: Memory of the part's size, where that had better be; None for any memory.
        hash: Takes the part, if it is one of all parts of the blob that are read.
    """

    at: int
    start: int
    chunk: Chunk
    of: _BlobToRead
    room: Bytes | None = None
    hash: OrderedHash | None = None


class _KnownBase(NamedTuple):
    """The base of a segment, kept for the next of its chunks.

    Attributes:
        base: The base of its file.
        entry: The file.
        number: Number of the segment.
        bytes: What was found in the base.
    """

    base: Base
    entry: FileEntry
    number: int
    bytes: BaseBytes


class StoredChunk(NamedTuple):
    """A chunk as it is stored.

    Attributes:
        start: Where its part begins in the segment.
        chunk: Codec and sizes.
        payload: The stored bytes.
        where: Name of the chunk in errors.
    """

    start: int
    chunk: Chunk
    payload: Bytes
    where: str


class ArchiveReader(LimitedOutput):
    """An archive opened for reading; nothing but its index is read until it is asked for.

    Args:
        source: A path, a URL for fsspec, a binary stream (copied to a temporary file if it cannot seek) or a
            ``ByteSource``.
        threads: How many work on parts at once; as many as the process may use if None.
        max_output_bytes: Refuse to give out more than this many bytes in one call; no limit if None.
        base: Where the bases are that files were coded against (:class:`gcodec.archive.Bases`); not closed here.

    Attributes:
        files: The files in the archive. A caller that wants some of them alone may leave out the others.
        size: Of the archive, in bytes.

    Raises:
        GcodecError: Not an archive, damaged, or of another version.
        OSError: It cannot be read.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO | ByteSource,
        *,
        threads: int | None = None,
        max_output_bytes: int | None = None,
        base: BaseFinder | None = None,
    ) -> None:
        name = source if isinstance(source, str | os.PathLike) else getattr(source, "name", None)
        # That of a descriptor is a number.
        super().__init__(str(name) if isinstance(name, str | os.PathLike) else "archive", max_output_bytes)
        self._owned = None if _is_source(source) else open_source(source)  # type: ignore[arg-type]
        self._source: ByteSource = self._owned or source  # type: ignore[assignment]
        given = self.name if isinstance(name, str | os.PathLike) else None
        if self._owned is not None:
            check_not_at_end(source, self.name)
        descriptor: int | None = getattr(self._source, "descriptor", None)
        self._place, self._state = FilePlace(given, self._source), None
        if descriptor is not None:
            with naming(given):
                self._state = descriptor, FileState.of(descriptor)
        self._threads, self._bases = available_threads(threads), base
        self._pool, self._memory = WorkPool(self._threads), PartMemory(2 * self._threads + 4)
        # What was found last: the chunks of a segment, and pieces of a chunk, are asked for one after the other.
        self._last_base: _KnownBase | None = None
        self._recent = RecentBytes(MAX_KEPT)  # parts by where their chunks lie in the archive, groups by their segments
        self.size = self._source.size
        try:
            # Header, trailer and index lie apart; what follows the first and precedes the others may never be read.
            with self._owned.without_read_ahead() if self._owned else nullcontext():
                self.files = self._entries = read_index(self._source, self.output_limit, given)
        except GcodecError as error:
            self.close()
            raise type(error)(f"{self.name}: {error}") from error

    def tensors(self) -> Iterator[tuple[FileEntry, TensorView]]:
        """Iterate over all tensors, each after its file."""
        return ((entry, tensor) for entry in self.files for tensor in entry.tensors)

    def path_of(self, number: int) -> str:
        """Return the path of the file of a number, as segments refer to it."""
        return self._entries[number].path

    def find(self, name: str) -> tuple[FileEntry, TensorView]:
        """Return the tensor called ``name``, or ``FILE:NAME`` where several files have one of that name.

        Raises:
            InvalidArgument: There is none, or more than one.
        """
        matches = [(f, t) for f, t in self.tensors() if name in (t.name, f"{f.path}:{t.name}")]
        if not matches:
            known = [tensor.name for _, tensor in self.tensors()]
            raise InvalidArgument(f"{self.name}: no tensor is called {name!r}{did_you_mean(name, known)}")
        if len(matches) > 1:
            files = ", ".join(f"{f.path}:{t.name}" for f, t in matches[:3])
            raise InvalidArgument(f"{self.name}: several tensors are called {name!r}; say which: {files} ...")
        return matches[0]

    def read(self, name: str, *, like: str | None = None) -> Any:
        """Read a tensor without the rest of the archive.

        Args:
            name: As for :meth:`find`.
            like: ``"numpy"`` or ``"torch"``; None: as :func:`gcodec.archive.arrays.default_kind` says. In numpy, types
                that it lacks come as those of ml_dtypes, or as unsigned integers of the same width where that is not
                installed.

        Raises:
            InvalidArgument: No such tensor.
            Unsupported: Its type is not known here.
            GcodecError: The archive is damaged, or the tensor above the limit.
        """
        entry, tensor = self.find(name)
        return self.array(entry, tensor, self.segment_bytes(entry, tensor), like=like)

    def segment_bytes(self, entry: FileEntry, tensor: TensorView) -> Bytes:
        """Return the whole segment that a tensor is a view of; that of a group of small ones is kept for the next."""
        key = (entry.path, tensor.segment) if tensor.segment in entry.groups else None
        data = None if key is None else self._recent.get(key)
        if data is None:
            (data,) = self.segments_bytes([(entry, tensor)])
            if key is not None:
                self._recent.put(key, data)
        return data

    def segments_bytes(self, wanted: Sequence[tuple[FileEntry, TensorView]]) -> Generator[Bytes, None, None]:
        """Yield the whole segments that tensors are views of, while threads decode those that follow."""
        for entry, tensor in wanted:
            name = entry.label(tensor.segment) if tensor.segment in entry.groups else tensor.name  # of all in a group
            self.check_size(entry.segments[tensor.segment].bytes, f"{entry.path}:{name}")
        rooms = Rooms(entry.segments[tensor.segment].bytes for entry, tensor in wanted)
        segments = [self._segment(entry, tensor.segment, tensor.name) for entry, tensor in wanted]
        taken = [cache(partial(_room_of, segment, rooms)) for segment in segments]
        parts = self._parts_of([segment._replace(room=room) for segment, room in zip(segments, taken, strict=True)])
        for number, (segment, room) in enumerate(zip(segments, taken, strict=True)):
            data, at = room(), 0
            for part in islice(parts, len(segment.blob.chunks)):
                if not np.may_share_memory(part, data):  # frames were decoded there
                    data[at : at + part.size] = part
                at += part.size
            if number == len(segments) - 1:
                for _ in parts:  # the hash of a last segment without chunks is checked
                    pass
            room.cache_clear()  # the memory is the caller's from here on
            yield data
            del data

    def arrays(self, wanted: Sequence[tuple[FileEntry, TensorView]], like: str) -> Generator[Any, None, None]:
        """Yield tensors, while threads decode those that follow. A group of small ones is decoded once for those of it
        that follow each other."""

        def segment_of(item: tuple[int, tuple[FileEntry, TensorView]]) -> object:
            number, (entry, tensor) = item
            return (entry.path, tensor.segment) if tensor.segment in entry.groups else number

        runs = [[place for _, place in run] for _, run in groupby(enumerate(wanted), segment_of)]
        with closing(self.segments_bytes([run[0] for run in runs])) as segments:
            for run, data in zip(runs, segments, strict=True):
                for entry, tensor in run:
                    yield self.array(entry, tensor, data, like=like)

    def array(
        self, entry: FileEntry, tensor: TensorView, data: Bytes, *, like: str | None = None, with_others: bool = False
    ) -> Any:
        """Return a tensor as a view of ``data``, the bytes of its segment; one of a group as a copy, lest it keep the
        others in memory, unless these are read ``with_others``."""
        size = width(tensor.dtype)
        if size is None:
            where = f"{self.name}: {entry.path}:{tensor.name}"
            raise Unsupported(f"{where}: type {tensor.dtype} can only be restored with its file")
        self.check_size(tensor.n_bytes, f"{entry.path}:{tensor.name}")
        like = like or default_kind(entry)
        # A torch tensor is saved with all that its storage holds, so that none is a part of a group's.
        if tensor.segment in entry.groups and not (with_others and like == "numpy"):
            at = tensor.offset * size
            data, tensor = data[at : at + tensor.n_bytes].copy(), tensor.at_start()
        return as_array(tensor, data, like)

    def tensor_parts(self, entry: FileEntry, tensor: TensorView) -> Iterator[Bytes]:
        """Yield the bytes of a row-major tensor (stride None), part by part in bounded memory."""
        start = tensor.offset * (width(tensor.dtype) or 1)
        stop = start + tensor.n_bytes
        self.check_size(tensor.n_bytes, f"{entry.path}:{tensor.name}")
        at = 0
        for part in self.segment_parts(entry, tensor.segment, tensor.name):
            yield part[max(0, start - at) : max(0, stop - at)]
            at += part.size

    def segment_parts(self, entry: FileEntry, number: int, name: str | None = None) -> Iterator[Bytes]:
        """Return the parts of a segment in order; the hash is checked at the end. ``name``: what errors call it.

        Raises:
            GcodecError: A chunk does not decode, the hash is wrong, or the base is missing or another.
        """
        return self._parts_of([self._segment(entry, number, name)])

    def stored_chunks(self, entry: FileEntry, number: int) -> Iterator[StoredChunk]:
        """Yield the chunks of a segment as they are stored, in order; the caller unpacks them, and checks the hash.

        Raises:
            Corruption: The padding after a chunk is not zero.
            Unsupported: There is no such base as it is coded against.
        """
        for item in _chunks_to_read([self._segment(entry, number)]):
            yield StoredChunk(item.start, item.chunk, self._stored(item), f"{item.of.where}: chunk at byte {item.at}")

    def check_segment_hash(self, entry: FileEntry, number: int, digest: str) -> None:
        """Raise Corruption unless a segment that the caller unpacked has the hash that the index says."""
        self._check_hash(digest, self._segment(entry, number))

    def segment_range(self, entry: FileEntry, number: int, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop`` of a segment, from their chunks alone: stored ones are not checked.
        Bytes of a single chunk may be a view of what others see, too. Safe from several threads."""
        return self._range(entry, number, start, stop, here=False)

    def _range(self, entry: FileEntry, number: int, start: int, stop: int, *, here: bool) -> Bytes:
        """Return what :meth:`segment_range` does; ``here``: unpacked on this thread, however many chunks it takes."""
        segment = self._segment(entry, number)
        blob, stop = segment.blob, min(stop, segment.blob.bytes)
        items = [
            _ChunkToRead(blob.offset + blob.places[n], blob.starts[n], blob.chunks[n], segment)
            for n in blob.numbers(start, stop)
        ]

        def unpacked(item: _ChunkToRead) -> Bytes:
            is_whole = start <= item.start and item.start + item.chunk.size <= stop
            part = self._checked(item) if is_whole else self._part_of_pieces(item)
            return part[max(0, start - item.start) : stop - item.start]

        if len(items) == 1:
            return unpacked(items[0])
        data, at = room_for(max(stop - start, 0), f"{self.name}: {entry.path}"), 0
        # Others call this from threads of their own for a chunk or two, which are quicker unpacked there.
        parts = (
            map(unpacked, items)
            if here or len(items) <= MAX_UNPACKED_HERE
            else ordered_map(self._pool, unpacked, items, self._threads, lambda item: item.chunk.size)
        )
        for part in parts:
            data[at : at + part.size] = part
            at += part.size
            del part  # its memory is for the one that is begun next
        return data

    def restored(self, entry: FileEntry) -> Generator[Bytes, None, None]:
        """Yield the bytes of a file, from its first to its last, part by part in bounded memory.

        Raises:
            GcodecError: The archive is damaged, or the file above the limit.
        """
        self.check_size(entry.size, entry.path)
        verbatim = _Verbatim(self._parts_of([self._verbatim(entry)]))
        parts = self._parts_of([self._segment(entry, number) for number in range(len(entry.segments))])
        for segment in entry.segments:
            yield from verbatim.take(segment.skip)
            n_left = segment.bytes
            while n_left:
                part = next(parts)
                n_left -= part.size
                yield part
        for _ in parts:
            pass
        yield from verbatim.rest()

    def verbatim_bytes(self, entry: FileEntry) -> Bytes:
        """Return the bytes of a file between its segments, end to end; the hash is checked."""
        self.check_size(entry.verbatim.bytes, entry.path)
        return np.concatenate([np.empty(0, np.uint8), *self._parts_of([self._verbatim(entry)])])

    def metadata(self, entry: FileEntry) -> dict[str, str]:
        """Return the key-value pairs of a .safetensors file; empty for other files."""
        if entry.format != "safetensors" or not entry.size:
            return {}
        # a long header is a segment
        header = self._verbatim(entry) if entry.verbatim.bytes else self._segment(entry, 0, "header")
        if header.blob.bytes > min(MAX_HEADER + 8, FREE_INDEX + TEXT_PER_BYTE * header.blob.chunk_bytes):
            return {}
        self.check_size(header.blob.bytes, f"{entry.path}: header")
        text = np.concatenate(list(self._parts_of([header])))
        check_json(text.tobytes(), self.size, f"{entry.path}: header")
        pairs = read_header(ArraySource([text]), entry.path)[1].get("__metadata__", {})
        return pairs if isinstance(pairs, dict) else {}

    def check_limit(self) -> None:
        """Raises LimitExceeded if all files together are above the limit."""
        self.check_size(sum(entry.size for entry in self.files))

    @property
    def descriptor(self) -> int | None:
        """Number of the open file, where this object has opened one of the system's."""
        return self._owned.descriptor if self._owned else None

    @property
    def places(self) -> tuple[FilePlace, ...]:
        """The places of this archive and of those that it was coded against, as far as they are known."""
        return (self._place, *getattr(self._bases, "places", ()))

    def close(self) -> None:
        """Ends the threads and closes what was opened here."""
        self._pool.shutdown()
        if self._owned:
            self._owned.close()

    def __enter__(self) -> ArchiveReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stored_bytes(self, start: int, stop: int) -> Bytes:
        """Return bytes of the archive, as they are."""
        return self._source.read(start, stop)

    def _segment(self, entry: FileEntry, number: int, name: str | None = None) -> _BlobToRead:
        """Return a segment with what it is coded against, if it is."""
        name = entry.label(number) if name is None or number in entry.groups else name
        segment = _BlobToRead(entry.segments[number], self.name, entry.path, name)
        of = entry.segments[number].cast
        if of is not None:
            return segment._replace(base=self._cast_bytes(of, entry.segments[number].dtype or ""))
        if (earlier := entry.segments[number].version_of) is not None:
            return segment._replace(base=self._earlier_bytes(earlier))
        if entry.segments[number].base is None:
            return segment
        try:
            return segment._replace(base=self._base_bytes(entry, number))
        except Unsupported as error:
            raise Unsupported(f"{segment.where}: {error}") from error

    def _cast_bytes(self, of: tuple[int, int], dtype: str) -> BaseBytes:
        """Return the values of a segment of float32, of a file and number, cast to another type."""
        entry = self._entries[of[0]]
        name = f"the values of {entry.path}:{entry.label(of[1])}"
        # A chunk is read by a thread that others may wait for, so that it waits for none.
        read = partial(self._range, entry, here=True)
        return BaseBytes(name, of[1], 0, None, read, is_held=True, cast=CASTS[dtype])

    def _earlier_bytes(self, place: tuple[int, int]) -> BaseBytes:
        """Return the bytes of a segment of an earlier file, of numbers."""
        entry = self._entries[place[0]]
        name = f"the version in {entry.path}:{entry.label(place[1])}"
        read = partial(self._range, entry, here=True)  # on this thread, as for casts
        return BaseBytes(name, place[1], 0, None, read, is_held=True)

    def _base_bytes(self, entry: FileEntry, number: int) -> BaseBytes:
        """Return what a segment is coded against; looked for once, not for each chunk. Raises Unsupported."""
        base, last = base_of_file(entry, self._bases), self._last_base
        if last is not None and last.base is base and last.entry is entry and last.number == number:
            return last.bytes
        found = base_bytes(entry, number, base)
        self._last_base = _KnownBase(base, entry, number, found)
        return found

    def _part_of_pieces(self, item: _ChunkToRead) -> Bytes:
        """Return the part that a chunk holds, of which pieces are asked for: not unpacked again for the next."""
        part = self._recent.get(item.at)
        if part is None:
            part = self._checked(item)
            self._recent.put(item.at, part)
        return part

    def _checked(self, item: _ChunkToRead) -> Bytes:
        """Return the part that a chunk holds. If it is all of a segment in Zstandard, its hash is checked: small frames
        of that have no checksums of their own."""
        part = self._unpacked(item)
        if item.chunk.codec == ZSTD and item.chunk.size == item.of.blob.bytes:
            self._check_hash(xxhash.xxh3_64_hexdigest(part.data), item.of)
        return part

    def _verbatim(self, entry: FileEntry) -> _BlobToRead:
        """Return the bytes of a file between its segments."""
        return _BlobToRead(entry.verbatim, self.name, entry.path, " verbatim bytes")

    def _parts_of(self, blobs: Sequence[_BlobToRead]) -> Iterator[Bytes]:
        hashes = [OrderedHash() for _ in blobs]

        def unpacked(item: _ChunkToRead) -> Bytes:
            part = self._unpacked(item)
            if item.hash is not None:
                item.hash.put(item.start, part)
            return part

        results = ordered_map(
            self._pool, unpacked, _chunks_to_read(blobs, hashes), self._threads, lambda item: item.chunk.size
        )
        for item, hash_ in zip(blobs, hashes, strict=True):
            last = len(item.blob.chunks) - 1
            for number in range(last + 1):
                part = next(results)
                if number == last:
                    self._check_hash(hash_.hexdigest(), item)
                yield part
            if last < 0:
                self._check_hash(hash_.hexdigest(), item)
        next(results, None)  # ends the generator: an interrupt while it is collected would be lost

    def _stored(self, item: _ChunkToRead) -> Bytes:
        """Return the stored bytes of a chunk."""
        at, chunk = item.at, item.chunk
        source, end = self._source, at + chunk.stored + padding(chunk.stored)
        stored = source.read(at, end, self._memory.take) if isinstance(source, FileSource) else source.read(at, end)
        if stored[chunk.stored :].any():
            raise Corruption(f"{item.of.where}: the padding at byte {at + chunk.stored} is not zero")
        return stored[: chunk.stored]

    def _unpacked(self, item: _ChunkToRead) -> Bytes:
        at, start, chunk, base, n_read = item.at, item.start, item.chunk, item.of.base, 0

        def read() -> Bytes:
            nonlocal n_read
            assert base is not None
            part = base.read(start, start + chunk.size)
            n_read += 1
            return part

        take = self._memory.take if item.room is None else partial(room_or, self._memory.take, item.room)
        try:
            stored, where = self._stored(item), f"{item.of.where}: chunk at byte {at}"
            return unpack_chunk(chunk, stored, where, read if base else None, take)
        except Corruption:
            self._check_unchanged()
            raise
        except Unsupported:
            blob = item.of.blob
            of = (blob.cast or blob.version_of) if isinstance(blob, SegmentEntry) else None
            # Where values that were read are not those that it was coded against, damage of them is why. Where they
            # could not be read, the same was looked for there: each of a chain would double the work.
            if of is not None and n_read:
                self._check_here(self._segment(self._entries[of[0]], of[1]))
            raise

    def _check_unchanged(self) -> None:
        """Raise GcodecError if the file was written to: then what does not decode is no damage."""
        if self._state is not None:
            descriptor, state = self._state
            state.check_unchanged(descriptor, self.name, "opened, while it was read: open it again")

    def _check_hash(self, digest: str, item: _BlobToRead) -> None:
        if digest != item.blob.hash:
            self._check_unchanged()
            raise Corruption(f"{item.where}: the hash is {digest}, not {item.blob.hash} as the index says")

    def _check_here(self, blob: _BlobToRead) -> None:
        """Raise Corruption unless a segment decodes to bytes of its hash, on this thread."""
        digest = xxhash.xxh3_64()
        for item in _chunks_to_read([blob]):
            digest.update(self._unpacked(item).data)
        self._check_hash(digest.hexdigest(), blob)


def write_restored(
    archive: ArchiveReader, entry: FileEntry, file: Any, progress: Callable[[int], None] | None = None
) -> None:
    """Write the bytes of a file in an archive to another, whose ``write`` takes a memoryview."""
    for part in archive.restored(entry):
        file.write(part.data)
        if progress is not None:
            progress(part.size)


def _chunks_to_read(
    blobs: Sequence[_BlobToRead], hashes: Sequence[OrderedHash] | None = None
) -> Iterator[_ChunkToRead]:
    """Yield the chunks of all blobs in order, each with what hashes its blob, if anything does."""
    for item, hash_ in zip(blobs, repeat(None) if hashes is None else hashes, strict=False):
        at, start = item.blob.offset, 0
        for chunk in item.blob.chunks:
            room = None if item.room is None else item.room()[start : start + chunk.size]
            yield _ChunkToRead(at, start, chunk, item, room, hash_)
            at, start = at + chunk.stored + padding(chunk.stored), start + chunk.size


class _Verbatim:
    """The verbatim bytes of a file, taken piece by piece."""

    def __init__(self, parts: Iterator[Bytes]) -> None:
        self._parts, self._part = parts, np.empty(0, np.uint8)

    def take(self, count: int) -> Iterator[Bytes]:
        while count:
            if not self._part.size:
                self._part = next(self._parts)
            piece, self._part = self._part[:count], self._part[count:]
            count -= piece.size
            yield piece

    def rest(self) -> Iterator[Bytes]:
        yield self._part
        yield from self._parts


def _room_of(item: _BlobToRead, rooms: Rooms) -> Bytes:
    """Return the memory that a blob is read to."""
    return room_for(item.blob.bytes, item.where, rooms.take)


def _is_source(value: object) -> bool:
    """Return True for a ``ByteSource``. Streams may have a size, too (those of fsspec), but know their position."""
    return hasattr(value, "size") and hasattr(value, "read") and not hasattr(value, "tell")
