"""The file system ``gcodec`` of fsspec: the files in an archive, read as if they were not compressed."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NoReturn

import fsspec
from fsspec.archive import AbstractArchiveFileSystem

from ..archive.base_files import bases_at
from ..archive.file_bytes import file_object
from ..archive.reader import ArchiveReader
from ..errors import InvalidArgument, Unsupported
from ..files.urls import is_url, local_path


def _is_local(place: object, protocol: str | None) -> bool:
    """Return True for the path of a file on this machine."""
    is_path = isinstance(place, str | os.PathLike) and not is_url(local_path(place))
    return is_path and protocol in (None, "file", "local")


class ArchiveFileSystem(AbstractArchiveFileSystem):
    """The files in an archive, to be read; ``gcodec://PATH::URL`` is one of them.

    ::

        with fsspec.open("gcodec://model.h5::s3://bucket/run.gc") as file:
            ...

    Only what is read is fetched and decoded. Nothing can be written.

    Args:
        fo: Path or URL of the archive, or a binary file that can seek, which stays open.
        mode: ``"r"``.
        target_protocol: Protocol of ``fo``, if it is a path without one.
        target_options: Options of the file system that ``fo`` is in.
        base: Path of what the archive was made against, if it was, or a list of paths for a chain.
        more: Options of fsspec's own.

    Raises:
        InvalidArgument: Another mode, or ``base`` is no path.
        GcodecError: ``fo`` is no archive, or damaged.
        OSError: It cannot be read.
    """

    root_marker = ""
    protocol = "gcodec"
    cachable = False

    def __init__(
        self,
        fo: str | os.PathLike[str] | BinaryIO = "",
        mode: str = "r",
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        *,
        base: Any = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        if mode not in ("r", "rb"):
            raise InvalidArgument(f"mode must be 'r', for archives are only read here, not {mode!r:.80}")
        with ExitStack() as stack:
            file: Any = fo
            if _is_local(fo, target_protocol) and not target_options:
                file = str(Path(local_path(fo)).expanduser())
            elif isinstance(fo, str | os.PathLike):
                opened = fsspec.open(os.fspath(fo), "rb", protocol=target_protocol, **(target_options or {}))
                file = stack.enter_context(opened)
            bases = None
            if base is not None:
                bases = bases_at(base)
                if bases is None:
                    raise InvalidArgument(f"base must be a path or a list of paths, not {type(base).__name__}")
                stack.enter_context(bases)
            self._archive = stack.enter_context(ArchiveReader(file, base=bases))
            # Where its user does not close the file system, files are closed at its end, which runs no Python.
            self.fo, self._stack, self._is_open = file, stack.pop_all(), True
        self.dir_cache: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        """Closes the archive; the files that are open cannot be read any more."""
        self._is_open = False
        self._stack.close()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return a path, or each of a list, without the protocol and the slashes around it."""
        stripped = super()._strip_protocol(path)
        return stripped if isinstance(stripped, list) else stripped.lstrip("/")

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidArgument(f"{self._archive.name}: must be open, but has been closed")

    def _get_dirs(self) -> None:
        """Fill the list of files and folders."""
        if self.dir_cache:
            return
        for entry in self._archive.files:
            self.dir_cache[entry.path] = {
                "name": entry.path,
                "size": entry.size,
                "type": "file",
                "stored_bytes": entry.stored,
                "format": entry.format,
            }
            for folder in PurePosixPath(entry.path).parents:
                if folder.name:
                    self.dir_cache.setdefault(str(folder), {"name": str(folder), "size": 0, "type": "directory"})

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        """Return what is known of a file or folder: ``name``, ``type`` and ``size``. Raises FileNotFoundError."""
        if not self._strip_protocol(path):  # there even if it is empty
            return {"name": "", "type": "directory", "size": 0}
        found: dict[str, Any] = super().info(path, **more)
        return found

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        """Return what is in a folder: what :meth:`info` says of each, or with ``detail=False`` the paths alone. Raises
        FileNotFoundError."""
        found: list[Any] = super().ls(self._strip_protocol(path), detail, **more)
        return found

    def exists(self, path: str, **more: Any) -> bool:
        """Return whether there is such a file or folder. fsspec's own takes every error for a no, interrupts, too."""
        try:
            self.info(path, **more)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """Return whether there is such a file."""
        return self.exists(path) and self.info(path)["type"] == "file"

    def mkdir(self, path: str, create_parents: bool = True, **more: Any) -> None:
        """Raises Unsupported, as all that would change the archive does."""
        self._refuse(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Raises Unsupported, unless the folder is there and may be."""
        if not (exist_ok and self.isdir(path)):
            self._refuse(path)

    def rmdir(self, path: str) -> None:
        """Raises Unsupported."""
        self._refuse(path)

    def rm_file(self, path: str) -> None:
        """Raises Unsupported."""
        self._refuse(path)

    def cp_file(self, path1: str, path2: str, **more: Any) -> None:
        """Raises Unsupported."""
        self._refuse(path2)

    def touch(self, path: str, truncate: bool = True, **more: Any) -> None:
        """Raises Unsupported."""
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise Unsupported(
            f"{path}: cannot be changed, for archives are only read here: restore the files, and make another archive"
        )

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **more: Any,
    ) -> BinaryIO:
        """Open a file, for ``open``; all arguments but ``path`` and ``mode`` are without meaning here."""
        if mode != "rb":
            raise Unsupported(f"{path}: mode must be 'rb', for files in archives are only read, not {mode!r:.80}")
        for entry in self._archive.files:
            if entry.path == self._strip_protocol(path):
                return file_object(self._archive, entry, self._check_open)
        if self.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise FileNotFoundError(path)
