"""The state of a file's content, by which it is told that it has changed meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


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
