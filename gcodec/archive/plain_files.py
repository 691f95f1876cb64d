"""Tensor files that are no archives, read as archives are: so ``gcodec.load`` takes old checkpoints beside new ones."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, cast

from ..errors import InvalidArgument, Unsupported, what_it_is
from ..files import ARCHIVE_MAGIC, NOT_ZIP, FilePlan, plan_file
from ..files.elements import width
from ..files.file_plan import TensorView
from ..files.npy import AS_BYTES
from ..files.npz import check_crc
from ..files.source import Bytes, FileSource, SourceFile, can_seek, open_source
from ..files.torch_file import is_torch_zip
from ..files.urls import is_url
from ..files.zips import MAGICS as ZIP_MAGICS
from ..files.zips import Zip
from .arrays import as_array, default_kind
from .entries import Blob, FileEntry, SegmentEntry
from .file_state import FilePlace
from .layout import HEAD_BYTES
from .output_limit import LimitedOutput
from .torch_files import load_torch

#: First bytes of the files of torch.save before version 1.6, and of any pickle: opcode PROTO and a version.
PICKLES = tuple(b"\x80" + bytes([version]) for version in range(2, 6))


class PlainFile(LimitedOutput):
    """A tensor file that is open, as the only file of an archive would be.

    Args:
        source: Its bytes.
        name: Name of the file in errors.
        max_output_bytes: Refuse larger files; no limit if None.

    Attributes:
        what: What its first bytes say that it is, to be appended to an error that says that it has no tensors; empty if
            that is not known.
        is_zip: True for a zip file, as those of ``torch.save`` are, unless they are old.
        kind: ``"archive"``, ``"torch"`` for a file of ``torch.save`` or another pickle, or ``"other"``.

    Raises:
        GcodecError: It is malformed.
    """

    def __init__(self, source: FileSource, name: str, max_output_bytes: int | None) -> None:
        super().__init__(name, max_output_bytes)
        self._source, self._max_unpacked_bytes = source, max_output_bytes
        self._plan: FilePlan | None = None
        self._place = FilePlace(name, source)
        head = source.read(0, min(HEAD_BYTES, source.size)).tobytes()
        is_torch = head.startswith(PICKLES)
        if head.startswith(ZIP_MAGICS):
            is_torch = is_torch_zip(Zip.read_from(source, name))
        self.is_zip = head.startswith(ZIP_MAGICS)
        self.what = "; this is a zip file of something else" if self.is_zip else what_it_is(head, source.size)
        self.kind = "archive" if head.startswith(ARCHIVE_MAGIC) else "torch" if is_torch else "other"

    @contextmanager
    def planned(self) -> Iterator[FileEntry]:
        """Give a block the file as the index of an archive would describe it.

        Raises:
            GcodecError: It is malformed.
        """
        with closing(plan_file(self.name, self._source, max_unpacked_bytes=self._max_unpacked_bytes)) as plan:
            self._plan = plan
            segments = tuple(SegmentEntry(segment.stop - segment.start, "", ()) for segment in plan.segments)
            yield FileEntry(
                PurePath(self.name).name,
                plan.format,
                exact=True,
                size=plan.source.size,
                verbatim=Blob(0, "", ()),
                segments=segments,
                tensors=plan.tensors,
                container=plan.container,
            )

    @property
    def why_bytes(self) -> str:
        """The reason why a file of tensors has none that can be told apart; empty where there is none to be told."""
        note = "" if self._plan is None else self._plan.note
        return "" if note == NOT_ZIP else note.removeprefix(AS_BYTES)

    @property
    def places(self) -> tuple[FilePlace, ...]:
        """The place of this file, if it has one."""
        return (self._place,)

    @property
    def descriptor(self) -> int | None:
        """Number of the open file, where it is one of the system's."""
        return self._source.descriptor

    def segment_bytes(self, entry: FileEntry, tensor: TensorView) -> Bytes:
        """Return the whole segment that a tensor is a view of."""
        assert self._plan is not None  # which made the entry
        segment = self._plan.segments[tensor.segment]
        self.check_size(segment.stop - segment.start, f"{entry.path}:{tensor.name}")
        data = self._plan.source.read(segment.start, segment.stop)
        if entry.format == "npz":  # numpy checks it, too; torch does not, and may have written none
            check_crc(self._plan.source, segment, f"{self.name}:{tensor.name}", data)
        return data

    def segments_bytes(self, wanted: Sequence[tuple[FileEntry, TensorView]]) -> Generator[Bytes, None, None]:
        """Yield the whole segments that tensors are views of."""
        for entry, tensor in wanted:
            yield self.segment_bytes(entry, tensor)

    def array(self, entry: FileEntry, tensor: TensorView, data: Bytes, *, like: str | None = None) -> Any:
        """Return a tensor as a view of ``data``, the bytes of its segment."""
        if width(tensor.dtype) is None:
            raise Unsupported(f"{self.name}:{tensor.name}: type {tensor.dtype} is no type of numpy or torch")
        self.check_size(tensor.n_bytes, f"{entry.path}:{tensor.name}")
        return as_array(tensor, data, like or default_kind(entry))

    def load_torch(self, file: object, map_location: Any, mmap: bool) -> Any:
        """Return what ``torch.load(weights_only=True)`` makes of a file of ``torch.save``.

        Args:
            file: What the caller gave: torch opens a path itself, where it is to be mapped.
            mmap: True to map the file, which must be one at a path.

        Raises:
            GcodecError: torch does not read it, or is not installed.
        """
        self.check_size(self._source.size)
        if mmap and (not isinstance(file, str | os.PathLike) or is_url(file)):
            raise InvalidArgument(f"{self.name}: only a file at a path can be mapped: leave out mmap")
        read = SourceFile(self._source)
        given: Any = os.fspath(cast(str, file)) if mmap else read
        advice = "torch.load(weights_only=False) reads it if you trust it, and gcodec.save takes what it returns"
        return load_torch(given, map_location, self.name, advice, mmap=mmap, check_was_read=read.check_was_read)


@contextmanager
def opened_plain(file: str | os.PathLike[str] | BinaryIO, max_output_bytes: int | None) -> Iterator[PlainFile | None]:
    """Give a block a file that may be a tensor file, open; None for a stream that cannot be read again.

    Args:
        file: Path, URL or stream, which stands where it stood.
        max_output_bytes: As for :class:`PlainFile`.

    Raises:
        GcodecError: It is a zip file, but malformed.
    """
    is_path = isinstance(file, str | os.PathLike)
    if not is_path and not can_seek(file):
        yield None
        return
    with closing(open_source(file)) as source:
        yield PlainFile(source, str(file) if is_path else "stream", max_output_bytes)
