"""A step opened together with the steps that it depends on, each of which is the base of the next.

A chain is found otherwise than in ``gcodec.sync.version_chain``, where a manifest names all messages and the cheapest
of many ways is chosen: here each file says its one base itself, and all stay open, to be read at any place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from ..archive.base_tensors import Base, are_end_to_end, base_bytes, base_of_file
from ..archive.entries import FileEntry
from ..archive.file_bytes import FileBytes
from ..archive.folders import FileIdentity, Folder
from ..archive.reader import ArchiveReader
from ..errors import Corruption, GcodecError, Unsupported
from ..files.file_plan import FilePlan, FileSegment
from ..files.source import Bytes, ByteSource, FileSource
from .step_files import step_name, step_of

#: Steps that a step may depend on, one after the other: as many archives are open at once.
MAX_CHAIN = 64
#: How often a reader begins again because a writer has changed files that it was about to open.
MAX_ATTEMPTS = 50


@dataclass
class OpenStep:
    """A step whose file is open, and stays readable whatever happens to its name.

    Attributes:
        step: The step.
        place: Path or URL of its file.
        archive: Its archive.
        entry: The one file in the archive.
        folder: Where the file is.
        identity: Of the file when it was opened.
        base: The step that it was coded against, once it is open.
    """

    step: int
    place: Path | str
    archive: ArchiveReader
    entry: FileEntry
    folder: Folder
    identity: FileIdentity
    base: OpenStep | None = None

    def as_base(self) -> Base:
        """Return this step as the base of another."""

        def read(number: int, start: int, stop: int) -> Bytes:
            return self.archive.segment_range(self.entry, number, start, stop)

        return Base.of_entry(step_name(self.step), self.entry, read)

    def replaced(self) -> bool:
        """Return True if there is another file under the name now, or none."""
        try:
            return self.folder.identity(step_name(self.step)) != self.identity
        except FileNotFoundError:
            return True


@dataclass
class _Predecessor:
    """Finds the base of a step; it is opened after the step, whose index names it."""

    base: Base | None = field(default=None)

    def find(self, path: str, dtype: str | None = None) -> Base | None:
        return self.base


@contextmanager
def open_step(
    folder: Folder, step: int, *, threads: int | None = 1, max_output_bytes: int | None = None
) -> Iterator[OpenStep]:
    """Opens a step and all that it depends on. A writer may be at work: what it replaces meanwhile is opened again.

    Files at a URL are copied to temporary files until the step is closed.

    Args:
        folder: The folder of checkpoints.
        threads: For decoding it; as many as the process may use if None.
        max_output_bytes: As for :class:`gcodec.archive.reader.ArchiveReader`, of the step itself.

    Raises:
        FileNotFoundError: There is no such step.
        Unsupported: A step that it depends on is missing, or is a different one.
        GcodecError: A file is damaged; errors say which.
    """
    with ExitStack() as stack:
        for attempt in range(MAX_ATTEMPTS):
            links: list[OpenStep] = []
            with ExitStack() as opened:
                try:
                    _open_links(links, opened, folder, step, threads, max_output_bytes)
                except (GcodecError, FileNotFoundError):
                    if attempt + 1 < MAX_ATTEMPTS and any(link.replaced() for link in links):
                        continue
                    raise
                stack.enter_context(opened.pop_all())
                break
        yield links[0]


def plan_of_step(opened: OpenStep) -> FilePlan:
    """Return the plan of the file that a step holds, for an archive of it with another base; decoded as it is read."""
    entry = opened.entry
    segments = tuple(
        FileSegment(start, start + segment.bytes, segment.dtype, group=shapes_in_group(entry, number))
        for number, (start, segment) in enumerate(zip(entry.starts, entry.segments, strict=True))
    )
    source = FileBytes(opened.archive, entry)
    return FilePlan(entry.path, entry.format, source, segments, entry.tensors, entry.exact, entry.container)


def shapes_in_group(entry: FileEntry, number: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors that a segment consists of, end to end; empty where it is no such group."""
    segment, views = entry.segments[number], entry.views.get(number, [])
    if number not in entry.groups or not are_end_to_end(views, segment.bytes):
        return ()
    return tuple(view.shape for view in views) if {view.dtype for view in views} == {segment.dtype} else ()


def base_of(entry: FileEntry, place: Path | str, step: int) -> int | None:
    """Return the step that a step was coded against; None for one that is whole.

    Raises:
        Unsupported: It was coded against something else than an earlier step.
    """
    if not entry.needs_base:
        return None
    base = step_of(entry.base or "")
    if base is None or base >= step:
        raise Unsupported(f"{place}: was coded against {entry.base!r}, which is no earlier step")
    return base


def only_file(archive: ArchiveReader) -> FileEntry:
    """Return the file that an archive holds. Raises Unsupported if there are none or several."""
    if len(archive.files) != 1:
        raise Unsupported(f"{archive.name}: a step must hold one file, but this holds {len(archive.files)}")
    return archive.files[0]


def _open_links(
    links: list[OpenStep],
    opened: ExitStack,
    folder: Folder,
    step: int,
    threads: int | None,
    max_output_bytes: int | None,
) -> None:
    """Adds the step and those that it depends on to ``links``, one by one."""
    wanted: int | None = step
    before: _Predecessor | None = None
    while wanted is not None:
        if len(links) > MAX_CHAIN:
            raise Unsupported(f"{links[0].place}: depends on more than {MAX_CHAIN} steps")
        place = folder.place(step_name(wanted))
        try:
            file, identity = folder.open(step_name(wanted))
        except FileNotFoundError:
            if not links:
                raise
            raise Unsupported(
                f"step {links[-1].step} ({links[-1].place}) was coded against step {wanted}, but there is no {place}"
            ) from None
        finder = _Predecessor()
        source = opened.enter_context(closing(FileSource(file, name=str(place))))
        limit = None if links else max_output_bytes
        archive = opened.enter_context(
            ArchiveReader(source, threads=1 if links else threads, max_output_bytes=limit, base=finder)
        )
        link = OpenStep(wanted, place, archive, only_file(archive), folder, identity)
        if before is not None:
            links[-1].base, before.base = link, link.as_base()
            links.append(link)
            _check_base(links[-2], before)
        else:
            links.append(link)
        before, wanted = finder, base_of(link.entry, place, wanted)


def _check_base(link: OpenStep, finder: _Predecessor) -> None:
    """Raises Unsupported if the base of a step has other values than it was coded against, as far as hashes tell."""
    assert link.base is not None
    for number, segment in enumerate(link.entry.segments):
        if segment.base is not None:
            try:
                base_bytes(link.entry, number, base_of_file(link.entry, finder))
            except Unsupported as error:
                name = link.entry.label(number)
                raise Unsupported(
                    f"step {link.step} ({link.place}), {name}: {error}; step {link.base.step} ({link.base.place}) is "
                    "a different one"
                ) from error


def check_same(entry: FileEntry, other: FileEntry, source: ByteSource, place: Path | str) -> None:
    """Raises Corruption unless two archives restore to the same bytes, by their hashes.

    Args:
        entry: The file in one archive.
        source: The bytes of the other, to be read where a segment of it is several in the first one.
        place: Place of the other, for the error.
    """
    ours = _hashed_ranges(entry)
    known = set(ours)
    same = entry.verbatim.hash == other.verbatim.hash and entry.size == other.size
    for start, stop, digest in _hashed_ranges(other):
        if same and (start, stop, digest) not in known:
            parts = [part for part in ours if start <= part[0] < part[1] <= stop]
            same = len(parts) > 1 and sum(end - begin for begin, end, _ in parts) == stop - start
            data = source.read(start, stop) if same else np.empty(0, np.uint8)
            same = same and digest == xxhash.xxh3_64_hexdigest(data.data)
            same = same and all(
                found == xxhash.xxh3_64_hexdigest(data[begin - start : end - start].data) for begin, end, found in parts
            )
    if not same:
        raise Corruption(f"{place}: decodes to other bytes than its hashes say")


def _hashed_ranges(entry: FileEntry) -> list[tuple[int, int, str]]:
    """Return where each segment begins and ends in a file, and its hash."""
    pairs = zip(entry.starts, entry.segments, strict=True)
    return [(start, start + segment.bytes, segment.hash) for start, segment in pairs]
