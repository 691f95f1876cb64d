"""Files that appear whole or not at all: written beside their final name, renamed at the end."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ..errors import GcodecError, InvalidArgument


class Staging:
    """Several output files that are renamed into place together when the block ends well, and removed if it does not.

    Something that exists and is no regular file (``/dev/null``, a pipe) is written to directly.

    Args:
        force: replace files that exist; refuse if False.
    """

    def __init__(self, *, force: bool = False) -> None:
        self._force = force
        self._names: list[tuple[Path, Path]] = []
        self._files: list[BinaryIO] = []
        self._folders: list[Path] = []

    def create(self, path: Path) -> BinaryIO:
        """Opens the stand-in for ``path`` for writing.

        Raises:
            InvalidArgument: the file exists, or a folder of this name does.
        """
        check_free(path, force=self._force)
        if path.exists() and not path.is_file():
            return path.open("wb")
        partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")
        self._names.append((path, partial))  # first: if a signal comes in between, there is one name too many
        self._files.append(partial.open("xb"))
        return self._files[-1]

    def make_folder(self, root: Path, folder: Path) -> None:
        """Makes ``folder`` and what is missing between it and ``root``.

        Raises:
            InvalidArgument: a symbolic link on the way: what is written would land elsewhere.
        """
        missing = []
        for step in (root, *reversed([p for p in (folder, *folder.parents) if p != root and p.is_relative_to(root)])):
            if step != root and step.is_symlink():
                raise InvalidArgument(f"{step}: is a symbolic link; refusing to write through it")
            if not step.exists():
                missing.append(step)
        for step in missing:
            step.mkdir(parents=True, exist_ok=True)
        self._folders += missing

    def commit(self) -> None:
        """Closes all files and gives them their names."""
        for file in self._files:
            file.close()
        for path, partial in self._names:
            _rename(partial, path, self._force)
        self._names, self._files, self._folders = [], [], []

    def abort(self) -> None:
        """Removes everything that was made."""
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
        for _, partial in self._names:
            partial.unlink(missing_ok=True)
        for folder in reversed(self._folders):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._names, self._files, self._folders = [], [], []

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.abort()


@contextlib.contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Gives an OSError that does not say which file it is about the name of this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and path is not None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def check_free(path: Path, *, force: bool) -> None:
    """Raises InvalidArgument if ``path`` is a folder, or a file that must not be replaced."""
    if path.is_dir():
        raise InvalidArgument(f"{path}: must be a file, but is a folder")
    if path.is_file() and not force:
        raise GcodecError(f"{path}: exists already; use force (-f) to replace it")


def _rename(partial: Path, path: Path, force: bool) -> None:
    """Gives the file its name; if it must not replace another, also not one that has just appeared."""
    if not force:
        try:
            path.hardlink_to(partial)
        except FileExistsError:
            raise GcodecError(f"{path}: exists already; use force (-f) to replace it") from None
        except OSError:  # a file system without hard links
            pass
        else:
            partial.unlink()
            return
    partial.replace(path)
