"""The state of a file's content, by which it is told that it has changed meanwhile."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple
from weakref import ref

from ..errors import GcodecError
from ..files.source import Bytes, FileSource, open_regular
from ..files.urls import is_url, local_path, place_of


class FileState(NamedTuple):
    """The identity of a file and the state of its content.

    Attributes:
        identity: Device and number on the device.
        size: In bytes.
        changed_ns: Time of the last change of the content.
    """

    identity: tuple[int, int]
    size: int
    changed_ns: int

    @classmethod
    def of(cls, file: Path | int) -> FileState:
        """Return the state of a path, links followed, or of an open file.

        Raises:
            OSError: There is no such file.
        """
        found = os.stat(file)  # noqa: PTH116 - of a descriptor, too
        return cls((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns)

    def change_at(self, path: Path | int) -> str:
        """Return what has happened to a file, at a path or open, since it had this state; empty if nothing has."""
        try:
            now = FileState.of(path)
        except OSError as error:
            return f"was taken away ({error.strerror})"
        if now.identity != self.identity:
            return "was replaced by another file"
        if now.size != self.size:
            return f"{'grew' if now.size > self.size else 'shrank'} from {self.size} to {now.size} bytes"
        return "was written to" if now.changed_ns != self.changed_ns else ""

    def check_unchanged(self, descriptor: int, name: str, since: str) -> None:
        """Raise GcodecError if an open file was written to; ``since``: when, and what to do, for the error."""
        if change := self.change_at(descriptor):
            raise GcodecError(
                f"{name}: {change} since it was {since}; one that is replaced by a rename, as gcodec writes files, "
                "stays as it was for those who read it"
            )


class FilePlace:
    """The place of a file that is read, or of a folder of such files, wherever the working folder is since.

    Args:
        name: Its path or URL; None if it has none.
        source: The file, open, which this does not keep open; None if it is not.
    """

    def __init__(self, name: str | os.PathLike[str] | None, source: object = None) -> None:
        name = local_path(name)
        self._place = name if name is None or is_url(name) else os.path.abspath(name)  # noqa: PTH100 - links stay
        self._source = None if getattr(source, "descriptor", None) is None else ref(source)

    def is_at(self, target: str | os.PathLike[str] | BinaryIO) -> bool:
        """Return True if a file would be gone once another took its place at a path or URL, or a stream was written."""
        if not isinstance(target, str | os.PathLike):
            return self._is_behind(target)
        place = place_of(target)
        own = None if self._place is None else place_of(self._place)
        if isinstance(place, str):
            return place == own
        if isinstance(own, Path) and place.is_relative_to(own):
            return place.is_file()
        descriptor = getattr(self._source and self._source(), "descriptor", None)
        try:
            found = None if descriptor is None else os.fstat(descriptor)
            return found is not None and found.st_nlink == 1 and os.path.samestat(found, place.stat())
        except OSError:
            return False

    def _is_behind(self, stream: BinaryIO) -> bool:
        """Return True if what is written to a stream goes into the file, or one in the folder, by whatever name."""
        written = file_behind(stream)
        if written is None or is_url(self._place):
            return False
        place: Path | int | None = getattr(self._source and self._source(), "descriptor", None)
        if place is None and self._place is not None:
            place = Path(self._place)
        if place is None:
            return False
        try:
            files = place.rglob("*") if isinstance(place, Path) and place.is_dir() else [place]
            return any(os.path.samestat(os.stat(file), written) for file in files)  # noqa: PTH116 - of descriptors, too
        except OSError:
            return False


def file_behind(stream: object) -> os.stat_result | None:
    """Return the state of the regular file on this machine that a stream reads or writes; None for other streams."""
    try:
        found = os.fstat(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, TypeError, ValueError):  # it has no number, or is closed
        return None
    return found if stat.S_ISREG(found.st_mode) else None


class EarlierFile(NamedTuple):
    """A file that has been read once, and is read again for what is compressed against it.

    Attributes:
        path: Where it is.
        state: What it was when it was read first.
    """

    path: Path
    state: FileState

    @property
    def change(self) -> str:
        """Return what has happened to the file since then; empty if nothing has."""
        return self.state.change_at(self.path)

    def check(self) -> None:
        """Raise GcodecError if the file has changed."""
        if change := self.change:
            raise GcodecError(f"{self.path}: {change} while other files were compressed against it; try again")

    def open(self) -> FileSource:
        """Return the file's bytes, to be closed.

        Raises:
            GcodecError, OSError: The file has changed, or cannot be read.
        """
        self.check()
        return FileSource(open_regular(self.path))

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop``; safe from several threads. Raises as :meth:`open` does."""
        with closing(self.open()) as source:
            return source.read(start, stop)
