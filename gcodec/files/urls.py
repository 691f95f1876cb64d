"""Files at URLs, such as ``s3://bucket/model.gc``, through fsspec: read in place, put there when complete."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from ..errors import GcodecError, InvalidArgument
from .all_or_nothing import AllOrNothing, final_name, partial_name, replaced_name


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise InvalidArgument for text that no path consists of, which system calls would refuse with a ValueError."""
    text: str | bytes = os.fspath(path)
    if isinstance(text, bytes):
        raise InvalidArgument(f"a path must be text, not {text!r:.80}: os.fsdecode makes text of it")
    try:
        has_nul = b"\0" in os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{text!r}: a path must be text that the file system can encode: {error}") from None
    if has_nul:
        raise InvalidArgument(f"{text!r}: a path must not hold a NUL character")


def local_path(path: Any) -> Any:
    """Return a ``file://`` URL as a path; anything else as it is. Raises InvalidArgument for what no path can be."""
    if isinstance(path, str | os.PathLike):
        check_path(path)
    if isinstance(path, str) and path.startswith("file://"):
        from urllib.request import url2pathname  # which imports what speaks HTTP

        parts = urlsplit(path)
        is_here = parts.netloc in ("", "localhost") and parts.path.startswith("/")
        if not is_here or "?" in path or "#" in path:  # what follows them would be left out
            raise InvalidArgument(
                f"{path}: a file:// URL must have three slashes and an absolute path, in which ? is written %3F and # "
                "is written %23, as in file:///home/me/last.gc"
            )
        path = url2pathname(parts.path)
        check_path(path)
        return Path(path)
    return path


def fixed_place(place: Any) -> Any:
    """Return a path that is the same wherever the working folder is later, of a path on this machine; anything else as
    it is."""
    place = local_path(place)
    return Path(place).absolute() if isinstance(place, str | os.PathLike) and not is_url(place) else place


def local_text(place: str) -> str:
    """Return a ``file://`` URL as the text of a path, with the slash at its end that means a folder; any other text as
    it is."""
    path = str(local_path(place))
    return f"{path}/" if place.endswith("/") and not path.endswith("/") else path


def is_url(path: object) -> bool:
    """Return True for what fsspec opens: a string with ``://`` that is not a ``file://`` URL."""
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def place_of(path: str | os.PathLike[str]) -> Path | str:
    """Return the resolved path of a file on this machine, or the normalized URL of another: equal for one file.

    Raises:
        GcodecError: As for :func:`filesystem_of`.
    """
    path = local_path(path)
    if not isinstance(path, str) or not is_url(path):
        return resolved(path)
    filesystem, name = filesystem_of(path)
    url = str(filesystem.unstrip_protocol(name))
    # local:// and caches of files on this machine are no other place; fsspec does not quote what is in its URLs
    return resolved(url.removeprefix("file://")) if url.startswith("file://") else url


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path without links; with them where they lead in a circle or cannot be read, which is an error
    of whoever opens the file."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):
        return Path(os.path.abspath(path))  # noqa: PTH100


def filesystem_of(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises:
        GcodecError: fsspec, or the package that it needs for this kind of URL, is not installed; or the store cannot be
            used, as with an unknown profile.
        OSError: Of the store, or of the machine, which has no thread or no memory for it.
    """
    try:
        import fsspec
    except ImportError as error:
        raise GcodecError(f"{url}: URLs need the fsspec package: pip install fsspec") from error
    with naming_url(url):
        try:
            filesystem, path = fsspec.core.url_to_fs(url)
        except (OSError, MemoryError, RuntimeError):  # of the machine, as where a store's thread cannot be started
            raise
        except Exception as error:  # the package for this kind is missing, nobody knows it, or a setting is wrong
            raise GcodecError(f"{url}: {error}") from error
    return filesystem, path


def _store_of(filesystem: Any) -> Any:
    """Return the file system behind one that keeps copies of what is read, or the one given."""
    from fsspec.implementations.cached import CachingFileSystem

    while isinstance(filesystem, CachingFileSystem):
        filesystem = filesystem.fs
    return filesystem


def _answers(filesystem: Any, question: str) -> bool:
    """Return True for a file system that answers a question of fsspec in its own way: fsspec's takes any error, even an
    interrupt, for no, and what is there would be replaced, or said to be missing, while a store cannot be reached."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    ways = getattr(filesystem, question), getattr(type(filesystem), f"_{question}", None)
    return getattr(ways[0], "__func__", None) is not getattr(AbstractFileSystem, question) and (
        ways[1] is None or ways[1] is not getattr(AsyncFileSystem, f"_{question}")
    )


def _exists(filesystem: Any, path: str) -> bool:
    """Return True if there is something at a path. Raises the store's errors, as for all of these."""
    return bool(filesystem.exists(path)) if _answers(filesystem, "exists") else bool(_kind_of(filesystem, path))


def _is_kind(filesystem: Any, path: str, kind: str) -> bool:
    """Return True if there is a "file" or a "directory" at a path."""
    question = "isfile" if kind == "file" else "isdir"
    if _answers(filesystem, question):
        return bool(getattr(filesystem, question)(path))
    return _kind_of(filesystem, path) == kind


def _kind_of(filesystem: Any, path: str) -> str:
    """Return what fsspec says is at a path; empty for nothing."""
    try:
        return str(filesystem.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _found(filesystem: Any, path: str) -> list[str]:
    """Return the paths of all files below a folder, in order."""
    return sorted(filesystem.find(path, **_raising(filesystem, "find")))


def matching_urls(pattern: str) -> list[str]:
    """Return the URLs that a pattern with ``*``, ``?`` or ``[...]`` stands for, in order; of what is there, itself.

    Raises:
        GcodecError: As for :func:`filesystem_of`.
        OSError: A folder cannot be listed.
    """
    filesystem, path = fresh_filesystem_of(pattern)
    with naming_url(pattern):
        if _exists(filesystem, path):  # a ? may begin the query of a web server's file
            return [pattern]
        places = sorted(filesystem.glob(path, **_raising(filesystem, "find", "glob")))
    before = pattern.removesuffix(path) if pattern.endswith(path) else None  # all protocols of a chain
    return [str(filesystem.unstrip_protocol(place)) if before is None else f"{before}{place}" for place in places]


def _raising(filesystem: Any, *questions: str) -> dict[str, Any]:
    """Return the option with which fsspec's own way to look for files raises errors of folders that it cannot list: by
    default it leaves these out."""

    def unless_gone(error: Exception) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    return {} if any(_answers(filesystem, question) for question in questions) else {"on_error": unless_gone}


def fresh_filesystem_of(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, which has forgotten its listings, and the path in it.

    Listings that are kept do not know what other processes have put or removed since. Raises as
    :func:`filesystem_of` does.
    """
    filesystem, path = filesystem_of(url)
    with naming_url(url):
        filesystem = _store_of(filesystem)
        filesystem.invalidate_cache()
    return filesystem, path


def open_url(url: str) -> BinaryIO:
    """Return a file at a URL, opened for reading, of which fsspec gets what is asked for.

    Raises:
        GcodecError: fsspec is not installed, or knows no such kind of URL.
        OSError: It cannot be read.
    """
    filesystem, path = filesystem_of(url)
    with naming_url(url):
        _store_of(filesystem).invalidate_cache(path)  # another process may have replaced the file since it was listed
        return cast(BinaryIO, _UrlFile(url, filesystem.open(path, "rb")))


class _UrlFile:
    """A file of fsspec whose errors name its URL.

    Args:
        file: The open file.
    """

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file

    def read(self, size: int = -1) -> bytes:
        with naming_url(self._url):
            data: bytes = self._file.read(size)
            return data

    def readinto(self, buffer: Any) -> int:
        with naming_url(self._url):
            n_read: int = self._file.readinto(buffer)
            return n_read

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with naming_url(self._url):
            place: int = self._file.seek(offset, whence)
            return place

    def close(self) -> None:
        with naming_url(self._url):
            self._file.close()

    def __enter__(self) -> _UrlFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def without_read_ahead(file: BinaryIO) -> Iterator[None]:
    """Let reads of a file of fsspec fetch no more than their own bytes while the block runs; others are left alone.

    Stores read on by 5 to 50 MB after every read, which pays where a file is read from its begin to its end.
    """
    cache: Any = getattr(file, "cache", None)
    if getattr(cache, "name", None) not in ("readahead", "bytes"):
        yield
        return
    ahead, cache.blocksize = cache.blocksize, 0
    try:
        yield
    finally:
        cache.blocksize = ahead


@contextmanager
def naming_url(url: str) -> Iterator[None]:
    """Raise errors of a store, of whatever class, as an OSError with a number, words, and the URL: an OSError of fsspec
    often is the path alone, and others, such as that of missing credentials, no caller could know."""
    try:
        yield
    except (GcodecError, MemoryError):
        raise
    except OSError as error:
        code = error.errno or next((code for kind, code in _NUMBERS if isinstance(error, kind)), errno.EIO)
        text = os.strerror(code) if error.errno or code != errno.EIO else _in_one_line(error)
        raise OSError(code, text, url) from error
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {_in_one_line(error)}", url) from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


#: The numbers of errors that fsspec raises without one.
_NUMBERS = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (IsADirectoryError, errno.EISDIR),
    (FileExistsError, errno.EEXIST),
    (TimeoutError, errno.ETIMEDOUT),
)


def check_free_url(url: str, *, force: bool) -> None:
    """Raise GcodecError if there is something at a URL that must not be replaced, or if it is that of a folder."""
    if url.endswith("/"):
        raise InvalidArgument(f"{url}: output must be the URL of a file, not of a folder")
    filesystem, path = fresh_filesystem_of(url)
    with naming_url(url):
        if not force and _exists(filesystem, path):
            raise GcodecError(f"{url}: exists already; -f, or force=True in Python, replaces it")


class Upload(AllOrNothing):
    """A file to be put at a URL when it is complete; until then it is a temporary file on this machine.

    As a context manager it is put when the block ends well, and forgotten otherwise.

    A store of objects has an object as a whole or not at all. Others, which write in place, get the file under a name
    of its own first, in the same folder. Then it is moved to the URL: what was there before stays until that.

    Args:
        url: Where to put it.

    Attributes:
        file: The temporary file.

    Raises:
        GcodecError: As for :func:`open_url`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._filesystem, self._path = filesystem_of(url)
        self.file = cast(BinaryIO, tempfile.NamedTemporaryFile(prefix="gcodec-"))  # noqa: SIM115 - close ends it

    def commit(self) -> None:
        """Put the file. Raises OSError if it cannot be put."""
        folder = self._path.rpartition("/")[0]
        with naming_url(self._url):
            self.file.flush()
            store = _store_of(self._filesystem)
            if folder:
                store.makedirs(folder, exist_ok=True)
            if _puts_whole(store):
                store.put_file(self.file.name, self._path)
            else:
                _put_and_move(store, self.file.name, self._path)
            if self._filesystem is not store:  # a copy that was read is of what was there before
                with suppress(Exception):  # there is none, or the file system has no way to forget one
                    self._filesystem.pop_from_cache(self._path)

    def abort(self) -> None:
        """Remove the temporary file."""
        self.file.close()

    def __enter__(self) -> BinaryIO:
        return self.file


#: Stores in which a file appears when all of it has arrived, as the names of fsspec's protocols.
_OF_OBJECTS = frozenset(
    ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "ocilake", "hf", "http", "https", "memory")
)


def _puts_whole(store: Any) -> bool:
    """Return True for a store of objects."""
    names = store.protocol
    return not _OF_OBJECTS.isdisjoint((names,) if isinstance(names, str) else names)


def _put_and_move(store: Any, source: str, path: str) -> None:
    """Put a file at a path of a store that writes in place, where what is there stays until the new one is complete."""
    folder, slash, name = path.rpartition("/")
    part, earlier = (f"{folder}{slash}{other(name)}" for other in (partial_name, replaced_name))
    try:
        store.put_file(source, part)
        size = os.path.getsize(source)  # noqa: PTH202 - a name, not a path
        _check_size(store, part, size)
        try:
            if _answers(store, "mv"):
                _move(store, part, path, earlier)
            else:
                _copy(store, part, path, earlier, size)
        except NotImplementedError:
            raise GcodecError(
                f"{path}: this store neither takes a file as a whole nor renames one, so a file may be "
                "lost half-written: write to a path on this machine, and copy it there"
            ) from None
    except BaseException:
        with suppress(Exception):
            store.rm_file(part)
        raise


def _check_size(store: Any, path: str, size: int) -> None:
    """Raise OSError if a store has another number of bytes at a path, as far as it says."""
    if store.info(path)["size"] not in (None, size):
        raise OSError(errno.EIO, f"the store has only a part of {path}")


def _move(store: Any, part: str, path: str, earlier: str) -> None:
    """Move a file to a path."""
    try:
        store.mv(part, path)
    except NotImplementedError:
        raise
    except Exception:
        if not (_exists(store, part) and _exists(store, path)):
            raise
        _move_over(store, part, path, earlier)  # some stores move nothing over a file


def _move_over(store: Any, part: str, path: str, earlier: str) -> None:
    """Move a file to a path where another is, which is moved away before, and comes back where that fails."""
    size = store.info(part)["size"]
    with _giving_back(earlier, lambda: _move_back(store, path, earlier, size)):
        store.mv(path, earlier)
        store.mv(part, path)
    store.rm_file(earlier)


def _copy(store: Any, part: str, path: str, earlier: str, size: int) -> None:
    """Copy a file to a path, and remove it, in a store that has no rename of its own: fsspec's would do as much, in
    place. What is there is copied away before, and comes back where that fails."""
    before = store.info(path)["size"] if _exists(store, path) else None

    def give_back() -> None:
        if before is not None:
            store.cp_file(earlier, path)
            _check_size(store, path, before)
            store.rm_file(earlier)
        elif _exists(store, path):
            store.rm_file(path)

    if before is not None:
        try:
            store.cp_file(path, earlier)
            _check_size(store, earlier, before)
        except BaseException:
            with suppress(Exception):
                store.rm_file(earlier)
            raise
    with _giving_back(earlier, give_back):
        store.cp_file(part, path)
        _check_size(store, path, size)
    for name in (part, earlier) if before is not None else (part,):
        store.rm_file(name)


@contextmanager
def _giving_back(earlier: str, give_back: Callable[[], None]) -> Iterator[None]:
    """Give a block after whose errors what was there before is given back.

    Args:
        earlier: The path where it is meanwhile, which errors name if it cannot be given back.
        give_back: Does that.
    """
    try:
        yield
    except BaseException as error:
        try:
            give_back()
        except BaseException as second:
            text = f"what was there before is kept at {earlier}, unless it is still in its place"
            if isinstance(error, Exception) and isinstance(second, Exception):
                raise OSError(f"{error}; {text}: {second}") from error
            interrupt = second if isinstance(error, Exception) else error
            interrupt.add_note(text)
            raise interrupt from None
        raise


def _move_back(store: Any, path: str, earlier: str, size: int | None) -> None:
    """Move a file back to its path, unless the new one, of so many bytes, is there as a whole: a call may have done its
    work, or a part of it, before it failed, as where a connection breaks before the answer."""
    if not _exists(store, earlier):
        return
    if _exists(store, path):
        if store.info(path)["size"] == size:
            return
        store.rm_file(path)
    store.mv(earlier, path)


def name_at(place: str | os.PathLike[str]) -> str:
    """Return the last part of a path or URL, without a URL's query, as the name of a file or folder; empty if it has
    none."""
    if not isinstance(place, str) or not is_url(place):
        return Path(place).name
    parts = urlsplit(place)
    return parts.path.rstrip("/").rpartition("/")[2] or parts.netloc


def is_file_at(place: str) -> bool:
    """Return True if there is a file at a path or URL. Raises as :func:`open_url` does."""
    if not is_url(place):
        return Path(place).is_file()
    filesystem, path = fresh_filesystem_of(place)
    with naming_url(place):
        return _is_kind(filesystem, path, "file")


def is_folder_at(place: str) -> bool:
    """Return True if there is a folder at a path or URL. Raises as :func:`open_url` does."""
    if not is_url(place):
        return Path(place).is_dir()
    if is_file_at(place):  # over HTTP the next question would fetch the file, to look for links
        return False
    filesystem, path = fresh_filesystem_of(place)
    with naming_url(place):
        return _is_kind(filesystem, path, "directory")


#: Why a file of a :func:`partial_name` is no file of a folder.
UNFINISHED = "is a file that a gcodec writes, or has left unfinished when it was killed"


def files_below(url: str, skipped: list[str]) -> list[tuple[str, str]]:
    """Return the files of a folder at a URL and of those in it, in order: their paths in the folder, and their URLs.

    Args:
        skipped: Gets a line for each folder that is empty or cannot be listed, for each file that a gcodec has not
            finished, and for all else that is no file.

    Raises:
        GcodecError: As for :func:`open_url`.
        OSError: The folder cannot be listed.
    """
    url = url.rstrip("/")
    filesystem, path = filesystem_of(url)
    top, files, store = f"{path.rstrip('/')}/", [], _store_of(filesystem)
    with naming_url(url):
        found = filesystem.find(path, withdirs=True, detail=True)
        places = sorted(place for place in found if place.startswith(top) and place != top)
        if not places:
            store.ls(path)  # says why, if it cannot be listed
        full = {place[:end] for place in places for end, character in enumerate(place) if character == "/"}
        for place in places:
            name, what = place.removeprefix(top), found[place]["type"]
            if final_name(name.rpartition("/")[2]) is not None:
                skipped.append(f"{url}/{name}: skipped: {UNFINISHED}")
            elif what == "file" or (what != "directory" and store.isfile(place)):  # a link to one
                files.append((name, f"{url}/{name}"))
            elif what != "directory":
                skipped.append(f"{url}/{name}: skipped: is not a regular file")
            elif place not in full:
                skipped.append(f"{url}/{name}: skipped: {_why_nothing_is_in(store, place)}")
    return files


def _why_nothing_is_in(store: Any, folder: str) -> str:
    try:
        with naming_url(folder):
            found = store.ls(folder)
    except OSError as error:
        return f"{error.strerror}"
    return "could not be listed" if found else "is an empty folder"  # by the first of two calls, that is


@contextmanager
def local_copy(place: str | os.PathLike[str]) -> Iterator[Path]:
    """Give the path of a file or folder on this machine; what is at a URL is copied to a temporary folder meanwhile.

    Errors of the block that name the copy are given the URL in its place.

    Args:
        place: A path, which is given back as it is, or a URL. The copy has the last part of the URL as its name.

    Raises:
        InvalidArgument: ``place`` is something else.
        GcodecError: As for :func:`open_url`; or a folder has a file whose name leads out of it.
        OSError: There is nothing at the URL, or it cannot be read.
    """
    if not isinstance(place, str | os.PathLike):
        raise InvalidArgument(f"path must be a path or a URL, not {place!r:.80}")
    place = local_path(place)
    if not isinstance(place, str) or not is_url(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="gcodec-") as folder:
        copy = Path(folder) / (name_at(place) or "root")
        with naming_url(place):
            _fetch(place, copy)
        try:
            yield copy
        except GcodecError as error:
            raise type(error)(str(error).replace(str(copy), place)) from error


def _fetch(url: str, copy: Path) -> None:
    """Copy a file or folder from a URL."""
    filesystem, path = filesystem_of(url)
    if not is_folder_at(url):
        filesystem.get_file(path, str(copy))
        return
    copy.mkdir()
    root = path.rstrip("/") + "/"
    for name in _found(filesystem, path):
        target = copy / name.removeprefix(root)
        if ".." in target.parts or not target.is_relative_to(copy):  # a store may have objects of any name
            raise GcodecError(f"{url}: has a file whose name leads out of the folder: {name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        filesystem.get_file(name, str(target))


def path_or_none(file: str | os.PathLike[str] | BinaryIO | None) -> Path | None:
    """Return the path of a file on this machine; None for a URL, a stream or None."""
    file = local_path(file)
    return None if is_url(file) or not isinstance(file, str | os.PathLike) else Path(file)
