"""The file system ``gcodec`` of fsspec: the files in an archive, read as if they were not compressed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import Any, BinaryIO

import fsspec
from fsspec.archive import AbstractArchiveFileSystem

from ..archive.base_files import bases_at
from ..archive.file_bytes import file_object
from ..archive.reader import ArchiveReader
from ..errors import InvalidArgument, Unsupported


class ArchiveFileSystem(AbstractArchiveFileSystem):
    """The files in an archive, to be read; ``gcodec://PATH::URL`` is one of them.

    ::

        with fsspec.open("gcodec://model.h5::s3://bucket/run.gc") as file:
            ...

    Only what is read is fetched and decoded. Nothing can be written.

    Args:
        fo: path or URL of the archive, or a binary file that can seek, which stays open.
        mode: ``"r"``.
        target_protocol: protocol of ``fo``, if it is a path without one.
        target_options: options of the file system that ``fo`` is in.
        base: path of what the archive was made against, if it was, or a list of paths for a chain.
        more: options of fsspec's own.

    Raises:
        InvalidArgument: another mode, or ``base`` is no path.
        GcodecError: ``fo`` is no archive, or damaged.
        OSError: it cannot be read.
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
            if isinstance(fo, str | os.PathLike):
                opened = fsspec.open(os.fspath(fo), "rb", protocol=target_protocol, **(target_options or {}))
                file = stack.enter_context(opened)
            bases = None
            if base is not None:
                bases = bases_at(base)
                if bases is None:
                    raise InvalidArgument(f"base must be a path or a list of paths, not {type(base).__name__}")
                stack.enter_context(bases)
            self._archive = stack.enter_context(ArchiveReader(file, base=bases))
            self.fo, self._stack, self._is_open = file, stack.pop_all(), True
        self.dir_cache: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        """Closes the archive; the files that are open cannot be read any more."""
        self._is_open = False
        self._stack.close()

    def __del__(self) -> None:
        if hasattr(self, "_stack"):  # else it was not opened
            self.close()

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
        raise FileNotFoundError(path)
