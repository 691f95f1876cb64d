"""Files that appear whole or not at all: written beside their final name, renamed at the end."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import stat
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, BinaryIO

from ..errors import GcodecError, InvalidArgument
from ..files.all_or_nothing import AllOrNothing, partial_name, replaced_name
from ..files.source import naming
from ..files.urls import check_path, name_at
from .layout import SUFFIX

#: Signals that end a command, and that Python turns into exceptions.
ENDING_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
#: What the names of tensor files end in, and those of archives must not, in capital letters either.
TENSOR_SUFFIXES = frozenset((".gguf", ".npy", ".npz", ".pt", ".pth", ".safetensors"))


@dataclass(frozen=True)
class Attributes:
    """The permissions, owner and times that files get from the file that they are made of.

    Attributes:
        mode: Permission bits.
        owner: User and group; None: whoever writes.
        times_ns: Time of the last access and of the last change; None: now.
    """

    mode: int
    owner: tuple[int, int] | None = None
    times_ns: tuple[int, int] | None = None

    @classmethod
    def like(cls, original: os.stat_result) -> Attributes:
        """Return the attributes of another file, as zstd, gzip and xz copy them."""
        times = original.st_atime_ns, original.st_mtime_ns
        return cls(original.st_mode & 0o777, (original.st_uid, original.st_gid), times)

    @classmethod
    def within(cls, originals: Iterable[os.stat_result], default: int) -> Attributes:
        """Return those of a new file of mode ``default`` that nobody may use who may not use all of ``originals``."""
        for original in originals:
            default &= original.st_mode | 0o700
        return cls(default)

    def give_to(self, path: Path) -> None:
        """Gives them to a file, as far as this user and file system can; never with wider permissions."""
        mode = self.mode
        if self.owner is not None and hasattr(os, "chown"):
            user, group = self.owner
            now = path.stat()
            if group != now.st_gid:
                try:
                    os.chown(path, -1, group)
                except OSError:  # then the bits would be those of another group, which gets what all others have
                    mode &= 0o707 | (mode & 0o007) << 3
            with contextlib.suppress(OSError):
                if user != now.st_uid:
                    os.chown(path, user, -1)
        with contextlib.suppress(OSError):  # a file system without permissions
            path.chmod(mode)
        with contextlib.suppress(OSError):
            if self.times_ns is not None:
                os.utime(path, ns=self.times_ns)


class Staging(AllOrNothing):
    """Several output files that are renamed into place together when the block ends well, and removed if it does not.

    Signals that would end the process wait while files are renamed or removed, so that all names appear or none.

    Args:
        force: Replace files that exist; refuse if False.
        attributes: Permissions, owner and times of the files; if None, a file that replaces another gets permissions
            and owner of that, and any other those of a new file.
    """

    def __init__(self, *, force: bool = False, attributes: Attributes | None = None) -> None:
        self._force, self._attributes = force, attributes
        self._names: list[tuple[Path, Path]] = []
        self._files: list[tuple[Path, BinaryIO]] = []
        self._replaced: dict[Path, Attributes] = {}
        self._kept: list[Path] = []
        self._folders: list[Path] = []
        self._there: set[Path] = set()

    def create(self, path: Path, *, named: bool = True) -> BinaryIO:
        """Opens the stand-in for ``path`` for writing.

        Args:
            path: Final name of the file.
            named: True if the caller named this very path: then a device or pipe is written to directly. False if an
                archive did.

        Raises:
            InvalidArgument: The file exists, or a folder, a link to a device or the like does.
            OSError: It cannot be made; the error names the folder if that is missing.
        """
        check_free(path, force=self._force, named=named)
        if is_special(path):
            return path.open("wb")
        partial = path.with_name(partial_name(path.name))
        self._names.append((path, partial))  # first: if a signal comes in between, there is one name too many
        if self._attributes is None and (replaced := _attributes_of_replaced(path)):
            self._replaced[partial] = replaced
        private = None if self._attributes is None and partial not in self._replaced else _open_private
        with _renaming(path if path.parent.is_dir() else path.parent):
            self._files.append((path, open(partial, "xb", opener=private)))  # noqa: SIM115 - commit closes it
        return self._files[-1][1]

    def make_folder(self, root: Path, folder: Path) -> None:
        """Makes ``folder`` and what is missing of its parents.

        Raises:
            InvalidArgument: A symbolic link between ``root`` and it: what is written would land elsewhere.
        """
        if folder in self._there:
            return
        missing = []
        for step in (*reversed(folder.parents), folder):
            if step != root and step.is_relative_to(root) and step.is_symlink():
                raise InvalidArgument(f"{step}: is a symbolic link; refusing to write through it")
            if not step.exists():
                missing.append(step)
        for step in missing:
            self._folders.append(step)
            try:
                step.mkdir()
            except FileExistsError:  # another process was quicker
                self._folders.remove(step)
        self._there.add(folder)

    def commit(self) -> None:
        """Closes all files and gives them their names: all of them, or none if that fails."""
        for path, file in self._files:
            with naming(path):
                file.close()
        for _, partial in self._names:
            if (attributes := self._attributes or self._replaced.get(partial)) is not None:
                attributes.give_to(partial)
        with signals_deferred():
            self._rename_all()
            for path in (*(partial for _, partial in self._names), *self._kept):
                path.unlink(missing_ok=True)
            self._forget()

    def abort(self) -> None:
        """Removes everything that was made."""
        with signals_deferred():
            for _, file in self._files:
                with contextlib.suppress(OSError):
                    file.close()
            for path in (*(partial for _, partial in self._names), *self._kept):
                with contextlib.suppress(OSError):
                    path.unlink()
            for folder in reversed(self._folders):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            self._forget()

    def _rename_all(self) -> None:
        """Gives all files their names, and takes back those that it gave if one of them cannot be had."""
        if len(self._names) == 1:  # which is had or not; a file that it replaced could not be given back
            [(path, partial)] = self._names
            with _renaming(path):
                _rename(partial, path, self._force)
            return
        begun: list[tuple[Path, Path, Path]] = []
        try:
            for path, partial in self._names:
                old = path.with_name(replaced_name(path.name))
                begun.append((path, partial, old))  # before anything is done: an interrupt may come at any step
                if self._force:
                    self._keep(path, old)
                with _renaming(path):
                    _rename(partial, path, self._force)
        except BaseException:
            for path, partial, old in reversed(begun):
                if os.path.lexists(old):
                    self._give_back(old, path)
                elif not os.path.lexists(partial) or _are_same(partial, path):
                    with contextlib.suppress(OSError):
                        path.unlink()
            raise

    def _give_back(self, old: Path, path: Path) -> None:
        """Gives a file that was to be replaced its name again; if that cannot be had, it stays under the other one."""
        try:
            old.replace(path)
        except OSError:
            self._kept.remove(old)

    def _keep(self, path: Path, second: Path) -> None:
        """Keeps a file that is about to be replaced under another name, if there is one and it is no folder."""
        self._kept.append(second)
        try:
            os.link(path, second, follow_symlinks=False)
        except (OSError, NotImplementedError):  # no hard links here, or not of another user's file
            if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                with _renaming(path):
                    path.replace(second)

    def _forget(self) -> None:
        self._names, self._files, self._kept, self._folders = [], [], [], []

    def __enter__(self) -> Staging:
        return self


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Holds back signals that would end the process until the end of the block.

    Handlers are replaced instead of signals being blocked, because other threads would still get them. Outside the
    main thread, where no handler ever runs, there is nothing to hold back.
    """
    arrived: list[int] = []
    handlers: dict[int, Any] = {}
    held = True

    def note(number: int, frame: FrameType | None) -> None:
        if held:
            arrived.append(number)
        elif callable(handlers[number]):  # another signal has ended the block before this one had its handler again
            handlers[number](number, frame)
        else:
            signal.signal(number, handlers[number])
            signal.raise_signal(number)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in ENDING_SIGNALS if hasattr(signal, name)):
                handler = signal.getsignal(number)
                if handler not in (None, signal.SIG_IGN):
                    handlers[number] = handler
                    signal.signal(number, note)
        yield
    finally:
        held = False
        with contextlib.ExitStack() as stack:  # whatever one of the handlers raises
            for number in reversed(dict.fromkeys(arrived)):
                stack.callback(signal.raise_signal, number)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def check_archive_name(name: str | os.PathLike[str]) -> None:
    """Raise InvalidArgument for an archive under a name that says that it is a tensor file, which others would read.

    Args:
        name: Path or URL of an archive to be written.
    """
    suffix = PurePath(name_at(name)).suffix
    if suffix.lower() in TENSOR_SUFFIXES:
        raise InvalidArgument(f"{name}: would be an archive under the name of a {suffix} file; call it {name}{SUFFIX}")


def check_names_file(place: object) -> None:
    """Raises InvalidArgument for a path that ends in a slash, which means a folder; Path drops it without a word."""
    if isinstance(place, str) and place.endswith(("/", os.sep)):
        raise InvalidArgument(f"{place}: must be the path of a file, not of a folder")


def check_free(path: Path, *, force: bool, named: bool = True) -> None:
    """Raises InvalidArgument if ``path`` is a folder, a link to a device or the like, or a file that must not be
    replaced.

    Args:
        path: Where a file shall be written.
        force: A file that exists may be replaced.
        named: As for :meth:`Staging.create`.
    """
    check_path(path)
    if path.is_dir():
        raise InvalidArgument(f"{path}: must be a file, but is a folder")
    if is_special(path):
        if not named or (path.is_symlink() and not _is_of_system(path)):
            link = "is a link to something that is" if path.is_symlink() else "is"
            raise InvalidArgument(f"{path}: {link} not a regular file; refusing to write to it")
    elif os.path.lexists(path) and not force:
        raise GcodecError(f"{path}: exists already; -f, or force=True in Python, replaces it")


def is_special(path: Path) -> bool:
    """Return True for something that exists and is not replaced but written to: a device, a pipe, ``/dev/stdout``."""
    return path.exists() and (not path.is_file() or (path.is_symlink() and _is_of_system(path)))


def write_whole(file: BinaryIO, data: bytes | memoryview) -> None:
    """Writes all of ``data``, also to a stream without a buffer, which may take less at once, as on a full disk.

    Raises:
        OSError: It takes no more.
    """
    count = file.write(data) if data else 0
    while count != len(data):
        if count is None and not isinstance(file, io.RawIOBase):  # many writers return nothing, and have written all
            return
        if not count:
            raise BlockingIOError(errno.EAGAIN, "the stream takes no more bytes for now: give one that waits")
        data = memoryview(data)[count:]
        count = file.write(data)


def new_file_mode() -> int:
    """Return the permission bits of a new file, by the process's mask as it is now."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text(errors="replace").splitlines()
        return 0o666 & ~int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    mask = os.umask(0o077)  # elsewhere it cannot be read alone, and other threads may make files meanwhile
    os.umask(mask)
    return 0o666 & ~mask


def sync_to_disk(paths: Iterable[Path]) -> None:
    """Waits until files and their names are on the disk, so that what they were made of can be removed.

    Raises:
        OSError: They cannot be written.
    """
    paths = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - resolve() would follow links
    for path in paths:
        with naming(path), path.open("rb") as file:
            os.fsync(file.fileno())
    for folder in {parent for path in paths for parent in path.parents}:  # the folders may be new, too
        with naming(folder):
            sync_folder(folder, failing=True)


def sync_folder(path: Path, *, failing: bool = False) -> None:
    """Waits until the names in a folder are on the disk, where the system can tell.

    Args:
        failing: Raise the OSError of a disk that is failing or full, too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # a folder cannot be opened here
        return
    with naming(path):
        try:
            os.fsync(descriptor)
        except OSError as error:  # most often it cannot be written out
            if failing and error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                raise
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _renaming(path: Path) -> Iterator[None]:
    """Lets an OSError name this file, instead of one that the user has not heard of."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _is_of_system(path: Path) -> bool:
    """Return True for the system's own links, which name open files: ``/dev/stdout``, and a shell's ``>(command)``."""
    return os.path.abspath(path).startswith(("/dev/", "/proc/"))  # noqa: PTH100 - resolve() would follow the link


def _rename(partial: Path, path: Path, force: bool) -> None:
    """Gives the file its name; if it must not replace another, also not one that has just appeared."""
    if force or not _second_name_given(partial, path):
        partial.replace(path)
        return
    try:
        partial.unlink()
    except OSError:  # it is an error, so there must be no file
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _second_name_given(partial: Path, path: Path) -> bool:
    """Gives the file its name as a second one; returns False where there are no hard links, and the name is free.

    Raises:
        GcodecError: Another file has the name.
        OSError: Of a disk that fails, a quota and the like, whatever there is then under the name.
    """
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        if _are_same(partial, path):  # a server was asked twice, because its first answer was lost
            return True
        raise GcodecError(f"{path}: exists already; -f, or force=True in Python, replaces it") from None
    except OSError as error:
        if error.errno in _WITHOUT_LINKS:
            check_free(path, force=False)
        elif _are_same(partial, path):
            path.unlink()
            raise
        elif os.path.lexists(path):
            raise
        return False
    return True


def _are_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), other.lstat())
    except OSError:
        return False


#: Errors of file systems that have no hard links.
_WITHOUT_LINKS = frozenset(
    (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EMLINK)
)


def _attributes_of_replaced(path: Path) -> Attributes | None:
    """Return permissions and owner of a regular file that is there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    regular = stat.S_ISREG(found.st_mode)
    return Attributes(found.st_mode & 0o777, (found.st_uid, found.st_gid)) if regular else None


def _open_private(name: str, flags: int) -> int:
    """Open a new file for this user alone, until it gets its attributes."""
    return os.open(name, flags, 0o600)
