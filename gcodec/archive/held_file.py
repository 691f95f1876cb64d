"""A file that stays open while values of it have not been read, for ``gcodec.load(path, lazy=True)``."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..files.source import naming
from .file_state import FilePlace, FileState
from .lazy_dict import Unread

if TYPE_CHECKING:
    from .plain_files import PlainFile
    from .reader import ArchiveReader

_held: WeakSet[HeldFile] = WeakSet()


class HeldFile:
    """A file of which values are read later, one at a time. It is closed at the end of this object.

    Args:
        opened: The file, open.
    """

    def __init__(self, opened: ArchiveReader | PlainFile) -> None:
        self._opened, self._lock = opened, RLock()
        self._stack = ExitStack()
        with naming(opened.name):
            self._state = None if opened.descriptor is None else FileState.of(opened.descriptor)
        _held.add(self)

    def keep(self, stack: ExitStack) -> None:
        """Keep open what a stack would close."""
        self._stack = stack

    def once(self, value: Unread, make: Callable[[Any], Any]) -> Any:
        """Return what ``make`` returned for the node of a value, which is made now if it has not been.

        Raises:
            GcodecError: The file was changed since it was loaded, or is damaged.
            OSError: It cannot be read.
        """
        with self._lock:
            if not value.is_read:
                self._check_unchanged()
                made = make(value.node)
                self._check_unchanged()
                value.keep(made)
            return value.value

    @property
    def places(self) -> tuple[FilePlace, ...]:
        """The places of the file, and of those that it needs."""
        return self._opened.places

    def _check_unchanged(self) -> None:
        if self._opened.descriptor is not None and self._state is not None:
            since = "loaded, before all of it had been read: load it again"
            self._state.check_unchanged(self._opened.descriptor, self._opened.name, since)

    def forget_lock(self) -> None:
        """Take a new lock, for the old one may be held by a thread that a fork has left behind."""
        self._lock = RLock()


def _forget_locks() -> None:
    for held in list(_held):
        held.forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
