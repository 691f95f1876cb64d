"""A folder of files that appear whole or not at all: on a file system, or at a URL through fsspec; and the lock that
admits one writer at a time."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from ..errors import GcodecError, InvalidArgument
from ..files.source import naming, open_regular
from ..files.urls import Upload, check_free_url, filesystem_of, is_url, local_path, naming_url, open_url
from .output import Attributes, Staging, sync_folder

LOCK = ".lock"
#: How long a writer waits for another one, and how long it sleeps in between.
LOCK_SECONDS, POLL_SECONDS = 300.0, 0.02


class FileIdentity(NamedTuple):
    """A file and the state of its content; another one, once the file was replaced.

    Attributes:
        size: In bytes.
        state: What else the file system or store tells: numbers and times on a disk, tags at a URL.
    """

    size: int
    state: tuple[object, ...]

    @classmethod
    def on_disk(cls, file: Path | int) -> FileIdentity:
        """Return the identity of a path or an open file. Raises OSError if there is no such file."""
        found = os.stat(file)  # noqa: PTH116 - of a descriptor, too
        return cls(found.st_size, (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns))


class Folder(Protocol):
    """The files of one folder, by name. ``str`` of it is its path or URL.

    Methods raise OSError, which names the path or URL, where the system or the store does not do what it is asked for,
    and FileNotFoundError where there is no such file. Reading raises Corruption where there is something else than a
    file, such as a pipe.
    """

    def place(self, name: str) -> Path | str:
        """Return the path or URL of a file."""
        ...

    def make(self) -> list[Path]:
        """Make the folder, if it is not there. Return what was made on a disk: the folder, and those that it is in."""
        ...

    def names(self) -> list[str]:
        """Return the names of what is in the folder, in order; none if there is no folder."""
        ...

    def identity(self, name: str) -> FileIdentity:
        """Return what tells a file from another that takes its place."""
        ...

    def open(self, name: str) -> tuple[BinaryIO, FileIdentity]:
        """Return a file opened for reading, and its identity. It stays readable when it is removed or replaced."""
        ...

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the first ``max_bytes`` bytes of a file."""
        ...

    def output(
        self, name: str, *, force: bool = False, attributes: Attributes | None = None
    ) -> AbstractContextManager[BinaryIO]:
        """Give a file to write to, which is there, to stay, when the block has ended well, and never in part.

        Args:
            force: Replace a file that is there. A GcodecError is raised if False.
            attributes: Permissions, owner and times of a file on a disk; those of any new file if None.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def sync(self) -> None:
        """Wait until all names are on the disk, where the system can tell."""
        ...


def folder_at(place: str | os.PathLike[str]) -> Folder:
    """Return the folder at a path, or at a URL for fsspec.

    Raises:
        InvalidArgument: It is neither, or there is a file at the path.
        GcodecError: It is a URL, and fsspec or its package for that kind is not installed.
    """
    if not isinstance(place, str | os.PathLike):
        raise InvalidArgument(f"a folder must be a path or a URL, not of type {type(place).__name__}")
    if isinstance(place, str) and is_url(place):
        return UrlFolder(place)
    path = Path(local_path(place))
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{path}: must be a folder, but is a file")
    return DiskFolder(path)


def _opened_lock(path: Path) -> int:
    """Return the file of the lock, opened; for reading, which is enough to lock it, if it is another user's."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        with suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        raise


class _LockFile:
    """The file of a lock, opened, with the descriptor; None where it is closed.

    Processes that are forked meanwhile close it: they would hold the lock, too, should this one be killed.

    Attributes:
        holder: Number of the thread that holds the lock by this file; None if none does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.holder: int | None = None
        self.descriptor: int | None = _opened_lock(path)
        _LOCK_FILES.add(self)

    def is_at(self, path: Path) -> bool:
        """Return False if the file has been removed, by a writer that has failed in a new folder."""
        try:
            with naming(path):
                return self.descriptor is not None and os.path.samestat(os.fstat(self.descriptor), path.stat())
        except FileNotFoundError:
            return False

    def waits_for_itself(self) -> bool:
        """Return True if this very thread holds the lock, in a call that a signal's handler has interrupted."""
        held = [file for file in list(_LOCK_FILES) if file.holder == get_ident()]
        return any(file.is_at(self._path) for file in held)

    def close(self) -> None:
        """Close the file, and with it release the lock."""
        _LOCK_FILES.discard(self)
        self.holder = None
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with naming(self._path):
                os.close(descriptor)


_LOCK_FILES = set[_LockFile]()  #: those that are open


def _close_lock_files() -> None:
    """Close the files of locks, in a forked process; its parent goes on holding the locks."""
    for file in list(_LOCK_FILES):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_lock_files)


@contextmanager
def one_writer(folder: Folder) -> Iterator[None]:
    """Makes a folder, if it is not there, and admits one writer at a time to it, as :func:`writer_lock` does. A folder
    that was made here goes again if the block fails and has left nothing in it."""
    made = folder.make()
    with writer_lock(folder):
        try:
            yield
        except BaseException:
            if made and folder.names() in ([], [LOCK]):
                with suppress(OSError):  # such as of another writer, which goes on here
                    folder.remove(LOCK)
                    for path in made:
                        path.rmdir()
            raise


@contextmanager
def writer_lock(folder: Folder, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Admits one writer at a time; the system releases the lock of a process that dies. Readers need none.

    A store at a URL has no locks: there, whoever has two writers must take care.

    Args:
        folder: The folder, which is there.
        seconds: How long to wait for another writer.

    Raises:
        GcodecError: Another writer has been at work for that long, or is the call that this one has interrupted.
        OSError: The folder cannot be written to.
    """
    try:
        import fcntl
    except ImportError:  # another system, without locks as well
        yield
        return
    if not isinstance(folder, DiskFolder):
        yield
        return
    path = folder.path / LOCK
    file = _LockFile(path)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                assert file.descriptor is not None
                fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if file.waits_for_itself():
                    raise GcodecError(
                        f"{folder}: this very thread is writing to this folder, in a call that was interrupted, as by "
                        "the handler of a signal, and does not go on before this one ends: let the handler note the "
                        "signal, and save after that call"
                    ) from None
                if time.monotonic() >= end:
                    raise GcodecError(
                        f"{folder}: another process is writing to this folder, for {seconds:.0f} s "
                        "so far (only one can at a time)"
                    ) from None
                time.sleep(POLL_SECONDS)
                continue
            except OSError:  # a file system without locks
                break
            if file.is_at(path):
                file.holder = get_ident()
                break
            file.close()
            folder.make()
            file = _LockFile(path)
        yield
    finally:
        if file.descriptor is not None:
            with suppress(OSError):
                fcntl.flock(file.descriptor, fcntl.LOCK_UN)  # where a process was forked by other means, it has it, too
        file.close()


def replace_file(folder: Folder, name: str, data: bytes) -> None:
    """Write a file, which takes the place of an earlier one when it is complete; the folder is made if need be."""
    folder.make()
    with folder.output(name, force=True) as file:
        file.write(data)


class DiskFolder(Folder):
    """A folder of a file system, local or mounted."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def place(self, name: str) -> Path:
        return self.path / name

    def make(self) -> list[Path]:
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.is_dir()]
        if missing:
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in missing:
                sync_folder(folder.parent)
        return missing

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries)
        except FileNotFoundError:
            return []

    def identity(self, name: str) -> FileIdentity:
        return FileIdentity.on_disk(self.path / name)

    def open(self, name: str) -> tuple[BinaryIO, FileIdentity]:
        file = open_regular(self.path / name)
        return file, FileIdentity.on_disk(file.fileno())

    def read(self, name: str, max_bytes: int) -> bytes:
        with open_regular(self.path / name) as file:
            return file.read(
                min(max_bytes, os.fstat(file.fileno()).st_size + 1)
            )  # which take memory before they are read

    @contextmanager
    def output(self, name: str, *, force: bool = False, attributes: Attributes | None = None) -> Iterator[BinaryIO]:
        with naming(self.path / name), Staging(force=force, attributes=attributes) as staging:
            file = staging.create(self.path / name)
            yield file
            file.flush()
            os.fsync(file.fileno())
        self.sync()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def sync(self) -> None:
        sync_folder(self.path)


class UrlFolder(Folder):
    """Files below a URL. A store puts each of them whole, and says itself when it is there to stay."""

    #: By what stores tell one content of a file from another, as far as they have it.
    STATE = ("ETag", "etag", "md5Hash", "generation", "created", "mtime", "LastModified", "last_modified", "updated")

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._filesystem, self._root = filesystem_of(self.url)

    def __str__(self) -> str:
        return self.url

    def place(self, name: str) -> str:
        return f"{self.url}/{name}"

    def make(self) -> list[Path]:
        with naming_url(self.url):
            self._filesystem.makedirs(self._root, exist_ok=True)
        return []

    def names(self) -> list[str]:
        try:
            with naming_url(self.url):
                self._filesystem.invalidate_cache()
                found = self._filesystem.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def identity(self, name: str) -> FileIdentity:
        with naming_url(self.place(name)):
            self._filesystem.invalidate_cache()
            info: dict[str, Any] = self._filesystem.info(self._path(name))
        return FileIdentity(int(info.get("size") or 0), tuple(str(info.get(key)) for key in self.STATE))

    def open(self, name: str) -> tuple[BinaryIO, FileIdentity]:
        """Return a temporary copy of a file, and the identity that the file had before it was copied."""
        identity = self.identity(name)
        copy = cast(BinaryIO, tempfile.NamedTemporaryFile(prefix="gcodec-"))  # noqa: SIM115 - closed by the caller
        try:
            with naming_url(self.place(name)):
                self._filesystem.get_file(self._path(name), copy.name)
        except BaseException:
            copy.close()
            raise
        return copy, identity

    def read(self, name: str, max_bytes: int) -> bytes:
        with naming_url(self.place(name)):
            self._filesystem.invalidate_cache()  # a listing that is kept has the size that the file had then
        with open_url(self.place(name)) as file:
            return file.read(max_bytes)

    @contextmanager
    def output(self, name: str, *, force: bool = False, attributes: Attributes | None = None) -> Iterator[BinaryIO]:
        check_free_url(self.place(name), force=force)
        with Upload(self.place(name)) as file, naming(file.name):
            yield file

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), naming_url(self.place(name)):
            self._filesystem.rm_file(self._path(name))

    def sync(self) -> None:
        """Do nothing: what was put is there."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
