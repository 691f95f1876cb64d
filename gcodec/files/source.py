"""Bytes to read at any place: files, spooled streams, arrays. Reading is by position and safe from several threads."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tempfile
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from ..errors import Corruption, InsufficientData, InvalidArgument
from .at_end import call_at_end
from .urls import is_url, local_path, open_url, without_read_ahead

#: Under these names the system has files that are open already: standard input, and a shell's ``<(command)``.
OPEN_FILES = re.compile(r"/dev/(fd/|stdin)|/proc/[^/]+/(task/[^/]+/)?fd/")

#: What a stream says that can seek by its own word, but not here; an error of Python's io has no number.
_NOT_SEEKABLE = (None, errno.EINVAL, errno.ENOTTY, errno.ENXIO, errno.EOPNOTSUPP, errno.ESPIPE)

#: What cannot seek is copied in pieces of so many bytes.
COPY_BYTES = 1 << 20

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ByteSource(Protocol):
    """``size`` bytes that can be read at any place."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop`` as a one-dimensional uint8 array, not to be written to."""
        ...


@contextmanager
def naming(place: Path | str | None) -> Iterator[None]:
    """Gives an OSError that does not say which file it is about the name of this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and place is not None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(place)) from error
        raise


def new_bytes(size: int) -> Bytes:
    """Return uint8[size] of any content."""
    return np.empty(size, np.uint8)


class FileSource:
    """An open, seekable file, read by position: memory use does not depend on its size, and nothing is mapped.

    The file's own position is where the source begins, and stays there. ``close``, or the end of the source, closes the
    file if ``owned``.

    Attributes:
        size: Number of bytes.
        path: Where a local file can be opened again, once it is closed; None if it has no path, or is not read from
            its beginning.
    """

    def __init__(self, file: BinaryIO, *, owned: bool = True, name: str | None = None) -> None:
        self.name = name or str(getattr(file, "name", "stream"))
        self._file, self._owned, self._descriptor = file, owned, _descriptor(file)
        self._lock = threading.Lock()
        self._base = file.tell()
        self.size = max(0, file.seek(0, io.SEEK_END) - self._base)
        file.seek(self._base)
        if owned and self._descriptor is not None:
            call_at_end(self, file.close)
        path: object = getattr(file, "name", None) if self._descriptor is not None and not self._base else None
        self.path = Path(path) if isinstance(path, str | os.PathLike) else None

    def read(self, start: int, stop: int, take: Callable[[int], Bytes] = new_bytes) -> Bytes:
        """Return a copy of bytes ``start`` to ``stop``, in memory that ``take`` gives; raises InsufficientData outside,
        or if the file has become shorter."""
        check_range(start, stop, self.size, self.name)
        buffer, at = take(stop - start), start
        while at < stop:
            try:
                count = self._read_into(buffer[at - start :].data, self._base + at)
            except OSError:
                with naming(self.name):
                    raise
            if not count:
                raise InsufficientData(f"{self.name}: ends at byte {at}, {stop - at} bytes short")
            at += count
        return buffer

    def is_at_hand(self, start: int) -> bool:
        """Return True if bytes from ``start`` on can be read more than once, in any order, at little cost: those of a
        file of the system's."""
        return self._descriptor is not None

    def _read_into(self, view: memoryview, at: int) -> int:
        if self._descriptor is not None:
            return os.preadv(self._descriptor, [view], at)
        with self._lock:
            self._file.seek(at)
            data = self._file.read(len(view))
            self._file.seek(self._base)
        view[: len(data)] = data
        return len(data)

    @property
    def descriptor(self) -> int | None:
        """Number of the open file, where it is one of the system's."""
        return self._descriptor

    def without_read_ahead(self) -> AbstractContextManager[None]:
        """Give a block in which nothing but what is read is fetched, where the file is one of fsspec."""
        return without_read_ahead(self._file)

    def close(self) -> None:
        """Closes the file, if it is ours."""
        if self._owned:
            self._file.close()


def join(parts: Iterable[Bytes]) -> Bytes:
    """Return arrays of bytes end to end: a copy, but of a single one."""
    pieces = list(parts)
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)


def check_range(start: int, stop: int, size: int, name: str = "") -> None:
    """Raise InsufficientData unless bytes ``start`` to ``stop`` are among ``size``; ``name``: of what has them."""
    if not 0 <= start <= stop <= size:
        where = f"{name}: " if name else ""
        raise InsufficientData(f"{where}bytes {start} to {stop} were asked for, but there are {size}")


def pieces_between(starts: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Return the number of each piece that holds bytes ``start`` to ``stop``, and which of its bytes these are.

    Args:
        starts: Where pieces that lie end to end begin, and where the last one ends; those of no bytes are left out.
    """
    first = bisect_right(starts, start) - 1
    if start < stop <= starts[first + 1]:  # most
        return [(first, start - starts[first], stop - starts[first])]
    numbers = range(first, bisect_left(starts, stop))
    between = [(n, max(start - starts[n], 0), min(stop, starts[n + 1]) - starts[n]) for n in numbers]
    return [piece for piece in between if piece[1] < piece[2]]


class ArraySource:
    """A source of one-dimensional uint8 arrays, end to end. A read across two of them is a copy."""

    def __init__(self, pieces: Sequence[Bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece.size]
        self._starts = [0, *accumulate(piece.size for piece in self._pieces)]
        self.size = self._starts[-1]

    def read(self, start: int, stop: int, take: Callable[[int], Bytes] = new_bytes) -> Bytes:
        """Return bytes ``start`` to ``stop``, a view where they are in one piece, else a copy in memory that ``take``
        gives; raises InsufficientData outside."""
        check_range(start, stop, self.size)
        parts = [self._pieces[number][begin:end] for number, begin, end in pieces_between(self._starts, start, stop)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, out=take(stop - start)) if parts else np.empty(0, np.uint8)

    def is_at_hand(self, start: int) -> bool:
        """Return True, as of :meth:`FileSource.is_at_hand`."""
        return True


class SubSource:
    """The bytes ``start`` to ``stop`` of another source."""

    def __init__(self, source: ByteSource, start: int, stop: int) -> None:
        self._source, self._start = source, start
        self.size = stop - start

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop``, a view where they are in one piece; raises InsufficientData outside."""
        check_range(start, stop, self.size)
        return self._source.read(self._start + start, self._start + stop)


class WatchedSource:
    """The bytes of another source, and what reading them has raised.

    Attributes:
        size: Their number.
        error: What reading has raised last, but for bytes that are not there; None if nothing.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source, self.size = source, source.size
        self.error: Exception | None = None

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop``; raises what the source raises."""
        try:
            return self._source.read(start, stop)
        except Exception as error:
            self.error = None if isinstance(error, InsufficientData) else error
            raise


class SourceFile(io.RawIOBase):
    """A source as a read-only binary file, for libraries that want one (zipfile).

    These take errors of reading for a malformed file; :meth:`check_was_read` gives them back.
    """

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source, self._at = WatchedSource(source), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + (0, self._at, self._source.size)[whence]
        if at < 0:  # an OSError, as of a file, for zipfile looks for what may stand before the end of a short one
            raise io.UnsupportedOperation("negative seek position")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._next(len(view))
        view[: len(data)] = data.data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        return self._next(-1 if size is None else size).tobytes()

    def _next(self, size: int) -> Bytes:
        """Return the next bytes, all that are left if ``size`` is below 0, and step behind them."""
        left = max(0, self._source.size - self._at)
        count = left if size < 0 else min(size, left)
        begin = min(self._at, self._source.size)  # behind the end there is nothing, as in a file
        data = self._source.read(begin, begin + count)
        self._at += count
        return data

    def check_was_read(self, error: BaseException) -> None:
        """Raise again what reading has raised, if anything, in place of the error that the library has made of it."""
        if self._source.error is not None:
            raise self._source.error
        if isinstance(error.__context__, OSError) and error.__context__.errno is not None:
            raise error.__context__


def _descriptor(file: BinaryIO) -> int | None:
    """Return the number of an open file that can be read by position, if it has one here.

    Only Python's own files are: a stream that decompresses, such as one of gzip, gives the number of the file that it
    reads, whose bytes are others than its own.
    """
    raw: object = getattr(file, "raw", None) if type(file) in (io.BufferedReader, io.BufferedRandom) else file
    return raw.fileno() if type(raw) is io.FileIO and hasattr(os, "preadv") else None


def open_regular(path: Path) -> BinaryIO:
    """Return a regular file, or what a link to one leads to, opened for reading.

    Raises:
        Corruption: It is a folder, pipe, device or socket, which might never end or never begin.
        OSError: It cannot be opened.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    problem = f"{path}: must be a regular file, or a link to one"
    try:
        # A pipe would else be waited for until somebody writes to it.
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise Corruption(problem) from error
        raise
    try:
        with naming(path):
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            raise Corruption(problem)
    except BaseException:
        os.close(descriptor)
        raise


def _opened(file: BinaryIO | str | os.PathLike[str]) -> BinaryIO:
    """Return a path or URL opened for reading, or the stream that was given."""
    file = local_path(file)
    if isinstance(file, str) and is_url(file):
        return open_url(file)
    if not isinstance(file, str | os.PathLike):
        return file
    whole = os.path.abspath(file)  # noqa: PTH100 - resolve() would follow the link
    if OPEN_FILES.match(whole) or Path(file).is_dir():  # the error of a folder is the system's
        return open(file, "rb")
    return open_regular(Path(file))


def can_seek(stream: Any) -> bool:
    """Return True for a stream that says that it can seek. A mmap cannot say before Python 3.13, and a member of a
    ``.tar`` that is read front to back asks the ``.tar``, which has no such method."""
    try:
        return hasattr(stream, "seekable") and bool(stream.seekable())
    except AttributeError:
        return False


def open_source(file: BinaryIO | str | os.PathLike[str]) -> FileSource:
    """Return a source for a path or an open stream, from where it stands; what cannot seek is copied to a temporary
    file.

    Args:
        file: A path, a URL for fsspec, or a binary stream opened for reading, which ``close`` leaves open.

    Raises:
        InvalidArgument: It is something else, or a device without an end.
        Corruption: The path is that of a pipe, device or socket, and not of the system's own for files that are open.
        OSError: It cannot be read.
    """
    if not isinstance(file, str | os.PathLike) and not hasattr(file, "read"):
        given: object = file
        advice = "; put bytes into io.BytesIO" if isinstance(given, bytes | bytearray | memoryview) else ""
        if isinstance(given, bytes):
            advice += ", and a path in bytes through os.fsdecode"
        raise InvalidArgument(f"file must be a path or a binary stream, not {type(file).__name__}{advice}")
    opened = isinstance(file, str | os.PathLike)
    stream = _opened(file)
    if isinstance(stream, io.TextIOBase):
        raise InvalidArgument(f"file must be a path or a binary stream, not {type(file).__name__}: open it with 'rb'")
    name = str(getattr(stream, "name", "stream"))
    try:
        if can_seek(stream):
            _check_has_end(stream)
            if _has_size(stream):
                return FileSource(stream, owned=opened, name=str(file) if is_url(file) else None)
    except OSError as error:
        if error.errno not in _NOT_SEEKABLE:
            with naming(name):
                raise
    with naming(tempfile.gettempdir()):
        spool = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the source closes it
        try:
            while part := _read_on(stream, name):
                spool.write(part)
            spool.seek(0)
        except BaseException:
            spool.close()
            raise
    if opened:
        stream.close()
    return FileSource(spool)


def check_not_at_end(stream: Any, name: str) -> None:
    """Raise InvalidArgument for a stream that has bytes, but stands behind them all, as one just written to does.

    Args:
        stream: An open stream; anything else, and what cannot seek, whatever it says, is left alone.
        name: Its name, for the error.
    """
    try:
        if not can_seek(stream):
            return
        at = stream.tell()
        size = stream.seek(0, io.SEEK_END)
        stream.seek(at)
    except OSError:
        return
    if at and size <= at:
        raise InvalidArgument(f"{name}: the stream stands at its end, at byte {at}: call seek(0) before it is read")


def _check_has_end(stream: BinaryIO) -> None:
    """Raise InvalidArgument for a device such as /dev/zero, which says that it ends where it begins, but does not."""
    descriptor = _descriptor(stream)
    if descriptor is not None and stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.pread(descriptor, 1, 0):
        raise InvalidArgument(f"{stream.name}: is a device without an end: give a file, or a pipe from head -c")


def _has_size(stream: BinaryIO) -> bool:
    """Return False for a file that the system writes as it is read, as in /proc and /sys: it says that it is empty, or
    4096 bytes long, whatever it holds."""
    descriptor = _descriptor(stream)
    found = None if descriptor is None else os.fstat(descriptor)
    if descriptor is None or found is None or not stat.S_ISREG(found.st_mode) or found.st_blocks:
        return True  # it has a place on a disk
    return bool(found.st_size) == bool(os.pread(descriptor, 1, max(found.st_size - 1, 0)))


def _read_on(stream: BinaryIO, name: str) -> bytes:
    """Return the next bytes of a stream, none at its end."""
    with naming(name):
        data: bytes | None = stream.read(COPY_BYTES)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "has no more bytes for now, and does not wait for them")
        return data
