"""Files compared as files, not by their names: the same one under two names, or one that has changed meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..archive.output import is_special
from . import UsageError


class FileState(NamedTuple):
    """The identity of a file and the state of its content.

    Attributes:
        identity: device and number on the device.
        size: in bytes.
        changed_ns: time of the last change of the content.
    """

    identity: tuple[int, int]
    size: int
    changed_ns: int

    @classmethod
    def of(cls, file: Path | int) -> FileState:
        """Return the state of a path, links followed, or of an open file.

        Raises:
            OSError: there is no such file.
        """
        found = os.stat(file)  # noqa: PTH116 - of a descriptor, too
        return cls((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns)

    def change_at(self, path: Path) -> str:
        """Return what has happened to the file at ``path`` since it had this state; empty if nothing has."""
        try:
            now = FileState.of(path)
        except OSError as error:
            return f"was taken away ({error.strerror})"
        if now.identity != self.identity:
            return "was replaced by another file"
        if now.size != self.size:
            return f"{'grew' if now.size > self.size else 'shrank'} from {self.size} to {now.size} bytes"
        return "was written to" if now.changed_ns != self.changed_ns else ""


def check_targets(targets: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raises UsageError if a file to be written is one that is to be read, under whatever names."""
    known = {}
    for path in inputs:
        try:
            known[FileState.of(path).identity] = path
        except OSError:  # whoever reads it will say so
            continue
    for target in targets:
        if not target.exists() or (identity := FileState.of(target).identity) not in known:
            continue
        other = known[identity]
        same = "is an input itself" if other == target else f"is the same file as the input {other}"
        raise UsageError(f"{target}: {same}, and would be replaced; give another name with -o")


def check_removal(targets: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raises UsageError for ``--rm`` where the data would be gone: from or to something that is no regular file."""
    for path in (*targets, *inputs):
        if is_special(path):
            raise UsageError(f"--rm needs regular files, which {path} is not")
