"""A store in memory, for URLs that begin with ``slots://``, which writes in place and fails at chosen calls."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

T = TypeVar("T")


class NoCredentials(Exception):  # noqa: N818
    """An error of a store that is no OSError."""


def no_credentials() -> NoCredentials:
    """Return such an error, of two lines."""
    return NoCredentials("Unable to locate\ncredentials")


class Slots(MemoryFileSystem):
    """The store; everything that it does is counted, and it fails at some of its calls.

    Attributes:
        calls: How many there have been.
        fails_at: The numbers of those that fail, from 1.
        failed: How many have failed.
        is_late: False: a call that fails has done nothing, but for a file that is put, of which half is there. True: it
            has done everything, as where a connection breaks before the answer.
        replaces: False if it moves nothing over a file.
        error: Makes the error.
    """

    protocol = "slots"
    store: ClassVar[dict[str, Any]] = {}  # of its own, not that of memory://
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls, failed, is_late, replaces = 0, 0, False, True
    fails_at: Collection[int] = ()
    error: Callable[[], BaseException] = staticmethod(no_credentials)
    find = AbstractFileSystem.find  # by ls, folder by folder

    @classmethod
    def reset(cls) -> None:
        """Forget all files, and fail at nothing."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.calls, cls.failed, cls.is_late, cls.replaces, cls.fails_at = 0, 0, False, True, ()
        cls.error = staticmethod(no_credentials)

    @classmethod
    def register(cls) -> None:
        """Let fsspec know the store."""
        fsspec.register_implementation("slots", cls, clobber=True)

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("slots://")))

    @classmethod
    def _fail(cls) -> None:
        """Count a call, and fail if it is the turn of this one."""
        Slots.calls += 1  # also of a store without a rename
        if Slots.calls in Slots.fails_at:
            Slots.failed += 1
            raise Slots.error()

    def _counted(self, work: Callable[[], T]) -> T:
        if not self.is_late:
            self._fail()
            return work()
        result = work()
        self._fail()
        return result

    def put_file(self, lpath: Any, rpath: Any, *args: Any, **options: Any) -> None:
        data = Path(lpath).read_bytes()
        self.pipe_file(rpath, data[: len(data) // (1 if self.is_late else 2)])
        self._fail()
        self.pipe_file(rpath, data)

    def mv(self, path1: Any, path2: Any, **options: Any) -> None:
        self._counted(lambda: self._moved(self._strip_protocol(path1), self._strip_protocol(path2)))

    def _moved(self, source: str, path: str) -> None:
        if path in self.store and not self.replaces:
            raise FileExistsError(path)
        if source not in self.store:
            raise FileNotFoundError(source)
        self.store[path] = self.store.pop(source)

    def _open(self, path: Any, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, *args, **options)
        file = self._counted(lambda: super(Slots, self)._open(path, mode, *args, **options))
        return SlotFile(file.getvalue())

    def info(self, path: Any, **options: Any) -> Any:
        return self._counted(lambda: super(Slots, self).info(path, **options))

    def ls(self, path: Any, detail: bool = True, **options: Any) -> Any:
        return self._counted(lambda: super(Slots, self).ls(path, detail, **options))

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self._counted(lambda: super(Slots, self).makedirs(path, exist_ok))

    def rm_file(self, path: Any) -> None:
        self._counted(lambda: self._removed(self._strip_protocol(path)))

    def _removed(self, path: str) -> None:
        if path not in self.store:
            raise FileNotFoundError(path)
        del self.store[path]

    def invalidate_cache(self, path: Any = None) -> None:
        self._counted(lambda: None)


class CopyingSlots(Slots):
    """The same store without a rename: fsspec copies a file in place and removes the first. URLs begin with
    ``copies://``; a copy that fails has written half of the file, where it is not late.

    Attributes:
        n_copies: So many it makes, as where a disk becomes full.
    """

    n_copies = 1000
    protocol = "copies"
    mv = AbstractFileSystem.mv

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).removeprefix("copies://")))

    @classmethod
    def register(cls) -> None:
        """Let fsspec know the store."""
        fsspec.register_implementation("copies", cls, clobber=True)

    def cp_file(self, path1: Any, path2: Any, **options: Any) -> None:
        data = self.store[self._strip_protocol(path1)].getvalue()
        self.pipe_file(path2, data[: len(data) // (1 if Slots.is_late else 2)])
        Slots._fail()
        if not CopyingSlots.n_copies:
            raise OSError(errno.ENOSPC, "No space left on device")
        CopyingSlots.n_copies -= 1
        self.pipe_file(path2, data)


class SlotFile(io.BytesIO):
    """A file of the store, opened for reading: each read is a call."""

    def read(self, size: int | None = -1) -> bytes:
        Slots._fail()
        return super().read(size)
