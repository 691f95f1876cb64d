"""The folder of a distributed checkpoint: on a file system, or at a URL through fsspec."""

from __future__ import annotations

import fnmatch
import os
from contextlib import suppress
from pathlib import Path

from ..archive.output import Staging, sync_to_disk
from ..errors import InvalidArgument
from ..files.urls import Upload, filesystem_of, is_url, local_path, open_url


class CheckpointFolder:
    """A folder whose files are written whole or not at all.

    Args:
        folder: a path, or a URL for fsspec.

    Raises:
        GcodecError: it is a URL, and fsspec or its package for that kind is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._url = folder.rstrip("/") if isinstance(folder, str) and is_url(folder) else None
        self._path = Path() if self._url else Path(local_path(folder))
        if self._url:
            self._filesystem, self._root = filesystem_of(self._url)

    def __str__(self) -> str:
        return self._url or str(self._path)

    @property
    def local(self) -> Path:
        """The path of the folder.

        Raises:
            InvalidArgument: it is at a URL.
        """
        if self._url:
            raise InvalidArgument(
                f"{self._url}: a series must be in a folder of a file system, mounted for instance; at a URL there are "
                "CheckpointWriter and CheckpointReader, for single checkpoints"
            )
        return self._path

    def place(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return f"{self._url}/{name}" if self._url else str(self._path / name)

    def make(self) -> None:
        """Make the folder, if it is not there. Raises OSError if it cannot be made."""
        if self._url:
            self._filesystem.makedirs(self._root, exist_ok=True)
        else:
            self._path.mkdir(parents=True, exist_ok=True)

    def sync(self, name: str) -> None:
        """Wait until a file is on the disk; one at a URL is there once it has been put."""
        if not self._url:
            sync_to_disk([self._path / name])

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the first ``max_bytes`` bytes of a file.

        Raises:
            FileNotFoundError: it is not there.
        """
        with open_url(self.place(name)) if self._url else (self._path / name).open("rb") as file:
            return file.read(max_bytes)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which replaces an earlier one when it is complete and on the disk."""
        self.make()
        if self._url:
            with Upload(self.place(name)) as file:
                file.write(data)
            return
        with Staging(force=True) as staging:
            staged = staging.create(self._path / name)
            staged.write(data)
            staged.flush()
            os.fsync(staged.fileno())
        self.sync(name)

    def names(self, pattern: str) -> list[str]:
        """Return the names in the folder that match a shell pattern, in order; none if there is no folder."""
        if not self._url:
            return sorted(path.name for path in self._path.glob(pattern))
        self._filesystem.invalidate_cache()
        try:
            found = [str(path).rpartition("/")[2] for path in self._filesystem.ls(self._root, detail=False)]
        except FileNotFoundError:
            return []
        return sorted(fnmatch.filter(found, pattern))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            if self._url:
                self._filesystem.rm_file(f"{self._root}/{name}")
            else:
                (self._path / name).unlink()
