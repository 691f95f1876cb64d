"""Writes an archive, front to back: chunks as files are added, the index at the end."""

from __future__ import annotations

import io
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import Corruption, GcodecError, InvalidArgument, check_flag, check_function
from ..files.all_or_nothing import AllOrNothing
from ..files.elements import width
from ..files.file_plan import FilePlan, FileSegment, by_segment
from ..files.source import ArraySource, Bytes, ByteSource, FileSource, naming
from ..files.urls import Upload, check_free_url, is_url, path_or_none
from ..threads import WorkPool, available_threads, ordered_map
from .base_tensors import Base, BaseBytes
from .cast_segments import CastSources
from .chunks import OrderedHash, Packed, found_chunk, pack_chunk, pack_group, record_chunk, stored_chunk
from .encoding_policy import EncodingPolicy, Part
from .entries import Blob, Chunk, FileEntry, Paths, SegmentEntry
from .equal_segments import CopiesInFile, Copy, KnownSegments
from .index import check_views, index_to_json
from .layout import (
    MAX_INDEX,
    MAX_PART,
    STORED,
    ZSTD,
    Trailer,
    archive_header,
    may_compress,
    may_compress_header,
    padding,
)
from .output import Attributes, Staging, check_archive_name, check_free, check_names_file, is_special, write_whole
from .part_memory import PartMemory
from .zstd_text import compressed

#: Segments are cut into parts of this many bytes.
PART_BYTES = 1 << 22


class ReadyChunk(NamedTuple):
    """A part that the caller has encoded without loss.

    Attributes:
        codec: Code of the codec, an index into ``CODECS``.
        payload: The stored bytes.
        size: Size of the part in bytes.
        needs_base: True if unpacking needs the base.
    """

    codec: int
    payload: bytes | memoryview
    size: int
    needs_base: bool


class ReadySegment(NamedTuple):
    """A segment that the caller encodes, such as on a device, instead of the writer.

    Attributes:
        hash: XXH3 of its bytes, 16 hexadecimal digits.
        base_hash: That of the base's bytes; None if there is no base.
        chunks: Its parts, front to back; each is made when the one before is written.
    """

    hash: str
    base_hash: str | None
    chunks: Iterator[ReadyChunk]


class ArchiveWriter(AllOrNothing):
    """Writes an archive to a path, where it appears when complete, or to a stream that need not seek.

    Args:
        target: Path of the archive, a URL for fsspec, where it is put at the end, or a binary stream, which is not
            closed.
        threads: How many work on parts at once; as many as the process may use if None.
        force: Replace an existing file.
        part_bytes: Size of the parts, a multiple of 64 up to 2^28: memory use is a few times ``threads`` of these.
        smallest: Try more ways to store each part without loss, and take the smallest, however slow it is.
        casts: Store tensors of 16 bits that are casts of float32 tensors, of their file or an earlier one, as what they
            are casts of; not where each segment must be readable without others.
        attributes: Permissions, owner and times of the archive at a path; those of any new file if None.
        progress: Called with the number of bytes of input done since the last call.

    Raises:
        InvalidArgument: ``target`` has the name of a tensor file, such as ``x.pt``, or cannot be written to.
        GcodecError: The file exists and ``force`` is False.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        threads: int | None = None,
        force: bool = False,
        part_bytes: int = PART_BYTES,
        smallest: bool = False,
        casts: bool = True,
        attributes: Attributes | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        if not 64 <= part_bytes <= MAX_PART or part_bytes % 64:
            raise InvalidArgument(f"part_bytes must be a multiple of 64 from 64 to 2^28, not {part_bytes}")
        if not isinstance(target, str | os.PathLike) and (
            not hasattr(target, "write") or isinstance(target, io.TextIOBase)
        ):
            kind = type(target).__name__
            raise InvalidArgument(f"an archive must be written to a path, a URL or a binary stream, not to a {kind}")
        if isinstance(target, str | os.PathLike):
            check_archive_name(target)
        check_function("progress", progress)
        check_flag("force", force)
        check_flag("smallest", smallest)
        self._threads, self._part_bytes, self._smallest = available_threads(threads), part_bytes, smallest
        self._casts, self._cast_sources = casts, CastSources()
        self._progress = progress or (lambda count: None)
        self._path = path_or_none(target)
        if isinstance(target, str) and is_url(target):
            check_free_url(target, force=force)
            self._upload: Upload | None = Upload(target)
        else:
            self._upload = None
        self._stream = None if isinstance(target, str | os.PathLike) else target
        self._place = self._path if self._upload is None else self._upload.file.name
        if self._upload is not None:
            self._stream = self._upload.file
        if self._path is not None:
            check_names_file(target)
            check_free(self._path, force=force)
        self._staging = Staging(force=force, attributes=attributes)
        self._pool, self._memory = WorkPool(self._threads), PartMemory(2 * self._threads + 4)
        self._files: list[FileEntry] = []
        self._ends = [0]  #: where each file ends in the archive, after where the first begins
        self._known: KnownSegments = {}
        self._copies: CopiesInFile | None = None
        self._paths = Paths()
        self._is_adding = False  #: a file has been begun, and not ended
        self.bytes_written = 0

    def add(
        self,
        plan: FilePlan,
        policy: EncodingPolicy | None = None,
        base: Base | None = None,
        *,
        ready: Mapping[int, ReadySegment] | None = None,
    ) -> FileEntry:
        """Adds a file. After an error the archive is without it, and others can be added, unless a part of it has gone
        to a stream, which takes nothing back.

        Args:
            plan: The file; its source is read once, front to back, but for segments whose bytes seem to be in the
                archive already, which are compared first.
            policy: For lossy modes; lossless if None.
            base: An earlier file, which tensors of the same name, type and size are coded against where that is
                smaller; reading the archive needs it again, unless it is there itself. Lossless only.
            ready: Segments that the caller encodes, by number: of these the source is not read.

        Raises:
            InvalidArgument: The path is not a safe relative one, or is taken; a policy and a base; a tensor that an
                index cannot hold.
            GcodecError, OSError: The source or the base cannot be read, or the archive not written.
        """
        self._take_back()
        if policy is not None and base is not None:
            raise InvalidArgument(f"{plan.path}: a base is for lossless mode: leave out the policy")
        check_views(plan.path, plan.tensors)
        self._is_adding = True
        try:
            self._paths.add(plan.path)
        except GcodecError as error:
            raise InvalidArgument(str(error)) from error
        ready, copies = ready or {}, None
        if policy is None and (base is None or base.number is not None):
            self._copies = copies = CopiesInFile(self._known, plan, len(self._files), ready)
        segments, crcs = self._add_segments(plan, policy, base, ready, copies)
        if copies is not None:
            copies.close()
        verbatim = self._add_verbatim(plan, crcs)
        exact = plan.exact and not any(segment.lossy for segment in segments)
        entry = FileEntry(
            plan.path, plan.format, exact, plan.source.size, verbatim, segments, plan.tensors, plan.container
        )
        if base is not None and entry.needs_base:
            entry = replace(entry, base=base.name.encode(errors="replace").decode())
        if self._casts and policy is None:
            self._cast_sources.add(plan, len(self._files))
        self._ends[len(self._files) + 1 :] = [self.bytes_written]
        self._files.append(entry)
        self._copies, self._is_adding = None, False
        return entry

    def close(self) -> None:
        """Writes the index and gives the archive its name."""
        self._take_back()
        raw = index_to_json(self._files)
        index, codec = compressed(raw, 9), ZSTD
        if not may_compress(index, raw, self.bytes_written + len(index)):
            index, codec = raw, STORED
        if len(raw) > MAX_INDEX:
            raise InvalidArgument(f"an index of {len(raw)} bytes is above the limit, {MAX_INDEX}: use several archives")
        self._write(index + bytes(padding(len(index))))
        self._write(Trailer(len(index), len(raw), codec).write_to(index))
        self._flush()
        self._staging.commit()
        if self._upload is not None:
            self._upload.commit()
            self._upload.abort()  # its temporary file
        self._pool.shutdown()

    def abort(self) -> None:
        """Removes what was written; a stream is left without its index, so that no reader takes it."""
        try:
            self._pool.shutdown()
        finally:
            self._staging.abort()
            if self._upload is not None:
                self._upload.abort()

    @property
    def files(self) -> Sequence[FileEntry]:
        """The files that were added."""
        return self._files

    @property
    def can_go_on(self) -> bool:
        """False once a file could not be added of which a part has gone to a stream, which takes nothing back."""
        is_own = self._upload is not None or (self._path is not None and not is_special(self._path))
        return is_own or not self._is_adding or self.bytes_written == self._ends[len(self._files)]

    def _take_back(self) -> None:
        """Takes back what is there of a file that could not be added; after an interrupt, it may be called again.

        Raises:
            InvalidArgument: Some of it has gone to a stream.
        """
        if not self._is_adding:
            return
        if not self.can_go_on:
            raise InvalidArgument(
                "a file could not be added, and a part of it has gone to a stream, which takes nothing back: write the"
                " archive to a path"
            )
        end = self._ends[len(self._files)]
        if self._stream is not None and self._place is not None and not is_special(Path(self._place)):
            with naming(self._place):
                self._stream.seek(end)
                self._stream.truncate()
        self.bytes_written = end
        if self._copies is not None:
            self._copies.forget()
        self._paths = Paths()
        for entry in self._files:
            self._paths.add(entry.path)
        self._copies, self._is_adding = None, False

    commit = close  # the name that AllOrNothing calls

    def __enter__(self) -> ArchiveWriter:
        return self

    def _add_segments(
        self,
        plan: FilePlan,
        policy: EncodingPolicy | None,
        base: Base | None,
        ready: Mapping[int, ReadySegment],
        copies: CopiesInFile | None,
    ) -> tuple[tuple[SegmentEntry, ...], dict[int, int]]:
        """Adds the segments; also returns the CRC-32s that lossy values change, by their places in the file.

        ``copies``: finds segments whose bytes are in the archive; None where none are looked for.
        """

        columns, bases = plan.columns(), self._bases_of(plan, base)
        casts = self._cast_sources.find(plan, len(self._files), ready.keys()) if self._casts and policy is None else {}
        for number, of in casts.items():
            bases[number] = of.as_base(plan.segments[number].dtype or "")

        hashes = [(OrderedHash(), OrderedHash()) for _ in plan.segments]

        def work(part: Part) -> list[Packed]:
            try:
                packed, known = self._packed(plan, part, policy, bases[part.segment], columns.get(part.segment, 0))
                of_segment, of_base = hashes[part.segment]
                of_segment.put(part.start, *[chunk.restored for chunk in packed])
                if known is not None:
                    of_base.put(part.start, known)
                return packed
            except GcodecError as error:
                name = next((view.name for view in plan.tensors if view.segment == part.segment), "")
                raise type(error)(f"{plan.path}:{name}: {error}") from error

        encoded = [  # before any is encoded: between large kernels, which fill the cache, to find copies takes longer
            number
            for number in range(len(plan.segments))
            if number not in ready and not (copies and copies.find(number))
        ]
        parts = chain.from_iterable(self._parts(plan, number, columns) for number in encoded)
        results = chain.from_iterable(
            ordered_map(self._pool, work, parts, self._threads + 1, lambda part: part.stop - part.start)
        )
        entries, crcs, end = list[SegmentEntry](), {}, 0
        for number, (segment, earlier) in enumerate(zip(plan.segments, bases, strict=True)):
            lossy = policy is not None and segment.dtype is not None
            crc = _Crc(plan, segment) if lossy and segment.crc_at else None
            size, copy = segment.stop - segment.start, copies.find(number) if copies else None
            if number in ready:
                entry = self._ready_segment(ready[number], size)
            elif copy is None:
                entry = self._segment(results, size, hashes[number], crc, earlier)
            elif (same := self._same_segment(copy, entries, size)) is not None:
                entry = same
            else:
                parts_here = map(work, self._parts(plan, number, columns))
                entry = self._segment_here(parts_here, size, hashes[number], earlier)
                next(parts_here, None)  # ends the generator, as below
            if entry.base is not None and number in casts:
                entry.base, entry.cast = None, casts[number].place
            elif entry.base is not None and earlier is not None and earlier.place is not None:
                entry.base, entry.version_of = None, earlier.place
            entry.skip, entry.dtype, end = segment.start - end, segment.dtype, segment.stop
            entries.append(entry)
            crcs.update(dict.fromkeys(segment.crc_at, crc.value) if crc else {})
        next(results, None)  # ends the generators: an interrupt while they are collected would be lost
        for of in casts.values():
            of.check()
        return tuple(entries), crcs

    def _bases_of(self, plan: FilePlan, base: Base | None) -> list[BaseBytes | None]:
        """Return what each segment is coded against, None for nothing."""
        if base is None:
            return [None] * len(plan.segments)
        views, alone = by_segment(plan.tensors), len(plan.tensors) == 1
        found = [
            base.bytes_for(
                views.get(number, []), segment.stop - segment.start, segment.dtype, alone=alone, place=segment.start
            )
            for number, segment in enumerate(plan.segments)
        ]
        number = base.number
        return found if number is None else [None if each is None else self._placed(each, number) for each in found]

    def _placed(self, found: BaseBytes, file: int) -> BaseBytes | None:
        """Return the bytes of a file of this archive with the place of their segment; None unless they are all of one
        that others may be coded against."""
        if found.hash is None or found.offset:
            return None
        place = self._files[file].segments[found.segment].same or (file, found.segment)
        segment = self._files[place[0]].segments[place[1]]
        if segment.cast is not None or segment.lossy or not segment.may_be_shared:
            return None
        return found._replace(place=place)

    def _packed(
        self, plan: FilePlan, part: Part, policy: EncodingPolicy | None, base: BaseBytes | None, n_columns: int
    ) -> tuple[list[Packed], Bytes | None]:
        """Return the chunks of a part of the file, and the bytes of the base that they have to do with."""
        segment = plan.segments[part.segment]
        data = self._read(plan.source, segment.start + part.start, segment.start + part.stop)
        base_part = None if base is None else base.read(part.start, part.stop)
        how: dict[str, Any] = {
            "base_is_held": base is not None and base.is_held,
            "smallest": self._smallest,
            "take": self._memory.take,
        }
        if segment.group and segment.dtype:
            return pack_group(data, segment.dtype, segment.group, base_part, **how), base_part
        if segment.fields is not None:
            return [record_chunk(data, segment.fields)], base_part
        options = policy.options(part, data) if policy and segment.dtype else {}
        packed = pack_chunk(data, segment.dtype, options, n_columns, base_part, **how)
        if plan.format == "bytes" and segment.dtype:
            packed = found_chunk(packed, segment.dtype)
        if plan.format == "safetensors" and not segment.start and segment.dtype is None:  # the header
            packed = packed if may_compress_header(data.tobytes(), len(packed.payload)) else stored_chunk(data)
        return [packed], base_part

    def _segment_here(
        self,
        results: Iterator[list[Packed]],
        size: int,
        hashes: tuple[OrderedHash, OrderedHash],
        base: BaseBytes | None = None,
    ) -> SegmentEntry:
        """Writes the chunks of a segment, which are all of ``results``; arguments as of :meth:`_segment`."""
        entry = self._segment(chain.from_iterable(results), size, hashes, base=base)
        next(results, None)
        return entry

    def _read(self, source: ByteSource, start: int, stop: int) -> Bytes:
        """Return bytes of a source, those that have to be copied in memory that is used again."""
        with_memory = isinstance(source, FileSource | ArraySource)
        return source.read(start, stop, *([self._memory.take] if with_memory else []))

    def _same_segment(self, copy: Copy, entries: Sequence[SegmentEntry], size: int) -> SegmentEntry | None:
        """Return a segment of ``size`` bytes that the archive has already, in an earlier file or among ``entries``, the
        first segments of the file that is added.

        None if it cannot be shared, mostly because the file that it was compared with has changed since it was added.
        """
        number, segment = copy.place
        first = self._files[number].segments[segment] if number < len(self._files) else entries[segment]
        if first.hash != copy.hash or not first.may_be_shared or (first.cast, first.version_of) != (None, None):
            return None
        self._progress(size)
        return SegmentEntry(size, first.hash, first.chunks, same=copy.place)

    def _parts(self, plan: FilePlan, number: int, columns: Mapping[int, int]) -> Iterator[Part]:
        """Yield the parts of a segment."""
        segment = plan.segments[number]
        size, step = segment.stop - segment.start, self._part_bytes
        step = max(step, size) if segment.group else step
        if segment.dtype is not None and number in columns:  # whole rows, if they fit
            row = columns[number] * (width(segment.dtype) or 1)
            step = step // row * row or step
        if segment.fields is not None:
            step = step // segment.fields.record_bytes * segment.fields.record_bytes or step
        for start in range(0, size, step):
            yield Part(number, start, min(start + step, size))

    def _segment(
        self,
        results: Iterator[Packed],
        size: int,
        hashes: tuple[OrderedHash, OrderedHash],
        crc: _Crc | None = None,
        base: BaseBytes | None = None,
    ) -> SegmentEntry:
        """Writes the chunks of ``size`` bytes, taken from ``results``; whoever makes these puts what they hold, and
        what they were coded against, into ``hashes``."""
        (hash_, base_hash), chunks, done, lossy, needs_base = hashes, [], 0, False, False
        while done < size:
            packed = next(results)
            if crc:
                crc.update(packed.restored)
            chunks.append(self._chunk(packed.codec, packed.payload, packed.restored.size))
            done, lossy = done + packed.restored.size, lossy or packed.lossy
            needs_base = needs_base or packed.needs_base
            self._progress(packed.restored.size)
            del packed  # its memory is for the part that is begun next
        found = base_hash.hexdigest() if base else None
        if base and base.place is not None and base.hash != found:
            raise GcodecError(f"{base.name}: was written to while other files were compressed against it; try again")
        if base and base.hash not in (None, found):  # some of its chunks have no checksum of their own
            raise Corruption(f"{base.name}: segment {base.segment}: the hash is {found}, not {base.hash}")
        return SegmentEntry(size, hash_.hexdigest(), tuple(chunks), lossy=lossy, base=found if needs_base else None)

    def _ready_segment(self, ready: ReadySegment, size: int) -> SegmentEntry:
        """Writes the chunks that the caller makes of a segment of ``size`` bytes."""
        chunks, needs_base = [], False
        for chunk in ready.chunks:
            chunks.append(self._chunk(chunk.codec, chunk.payload, chunk.size))
            needs_base = needs_base or chunk.needs_base
            self._progress(chunk.size)
        if sum(chunk.size for chunk in chunks) != size or (needs_base and ready.base_hash is None):
            raise InvalidArgument(f"the chunks of a segment must hold {size} bytes, and a base must have its hash")
        return SegmentEntry(size, ready.hash, tuple(chunks), base=ready.base_hash if needs_base else None)

    def _chunk(self, codec: int, payload: bytes | memoryview, size: int) -> Chunk:
        """Writes a chunk."""
        self._write(payload)
        self._write(bytes(padding(len(payload))))
        return Chunk(codec, len(payload), size)

    def _add_verbatim(self, plan: FilePlan, crcs: dict[int, int]) -> Blob:
        data = np.frombuffer(_verbatim(plan, crcs), np.uint8)
        parts = (data[at : at + self._part_bytes] for at in range(0, data.size, self._part_bytes))
        hashes = OrderedHash(), OrderedHash()
        hashes[0].put(0, data)
        blob = self._segment_here(([pack_chunk(part, None, {})] for part in parts), data.size, hashes)
        return Blob(blob.bytes, blob.hash, blob.chunks)

    def _write(self, data: bytes | memoryview) -> None:
        """Writes on; the file is made when there is something to write, so that whoever ends us can also remove it."""
        with naming(self._place):
            if self._stream is None and self._path is not None:
                self._stream = self._staging.create(self._path)
            if self._stream is not None:
                if not self.bytes_written:
                    write_whole(self._stream, archive_header())
                    self.bytes_written += len(archive_header())
                write_whole(self._stream, data)
        self.bytes_written += len(data)

    def _flush(self) -> None:
        with naming(self._place):
            if self._stream is not None and hasattr(self._stream, "flush"):  # not every object with a write has it
                self._stream.flush()


class _Crc:
    """The running CRC-32 of a zip member, from its first byte to the end of its segment."""

    def __init__(self, plan: FilePlan, segment: FileSegment) -> None:
        self.value = zlib.crc32(plan.source.read(segment.crc_from, segment.start).data)

    def update(self, data: Bytes) -> None:
        self.value = zlib.crc32(data.data, self.value)


def _verbatim(plan: FilePlan, crcs: dict[int, int]) -> bytearray:
    """Return the bytes between the segments, with the changed CRC-32s put in."""
    runs = plan.verbatim_runs()
    starts = [start for start, _ in runs]
    places = [0, *accumulate(stop - start for start, stop in runs)]
    data = bytearray()
    for start, stop in runs:
        data += plan.source.read(start, stop).tobytes()
    for at, crc in crcs.items():
        run = bisect_right(starts, at) - 1
        place = places[run] + at - starts[run]
        data[place : place + 4] = crc.to_bytes(4, "little")
    return data
