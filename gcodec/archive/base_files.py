"""Opens what the user names as a base: a tensor file, an archive, a folder of either, or tensors in memory."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import RLock
from types import TracebackType
from typing import BinaryIO, NamedTuple, Protocol

from ..errors import GcodecError, InvalidArgument
from ..files import FilePlan, FileSource, open_source, plan_file, plan_or_bytes
from ..files.urls import is_url, local_path
from .base_tensors import Base
from .file_state import FilePlace
from .layout import MAGIC, SUFFIX
from .reader import ArchiveReader

#: So many files of a folder are kept open; one is used at a time, or a few.
MAX_OPEN = 16

Finder = Callable[[str], Base | None]


class _Opened(NamedTuple):
    """A file that is open: what finds a path's base in it, what closes it, and True if it is a file without tensors."""

    find: Finder
    stack: ExitStack
    lacks_tensors: bool = False


class Bases:
    """Finds the bases of the files of an archive.

    A file, tensors in memory and an archive of one file are the base of every file; in a folder, or an archive of
    several files, a file's base has the same path, or the same one below the first folder (``run2/x`` and ``run1/x``).

    Args:
        origin: Path of a tensor file, an archive or a folder of either; a URL for fsspec of a file; an open archive
            (not closed here); or the plan of a file.
        base: The bases of archives among these.
        second: Of a plan, what returns another one for the same tensors, see :class:`Base`.
        places: Of a plan, those of the files that it is read from.

    Raises:
        GcodecError: There is no such file or folder.
    """

    def __init__(
        self,
        origin: str | os.PathLike[str] | ArchiveReader | FilePlan,
        *,
        base: Bases | None = None,
        second: Callable[[], FilePlan | None] | None = None,
        places: Iterable[FilePlace] = (),
    ) -> None:
        self._base, self._owns_base, self._lock = base, False, RLock()
        self._open: OrderedDict[tuple[Path | str, str | None], _Opened] = OrderedDict()
        self._planned = Base.of_plan(origin.path, origin, second) if isinstance(origin, FilePlan) else None
        self._archive = _InArchive(origin) if isinstance(origin, ArchiveReader) else None
        self._url = origin if isinstance(origin, str) and is_url(origin) else None
        self._name = origin.name if isinstance(origin, ArchiveReader) else None
        origin = local_path(origin)
        self.path = Path(origin) if isinstance(origin, str | os.PathLike) and self._url is None else None
        self._begin = Path() if self.path is None or self.path.is_absolute() else Path.cwd()  # files are opened later
        if self.path is not None and not self.path.exists():
            raise GcodecError(f"{self.path}: no such file or folder")
        if isinstance(origin, ArchiveReader):
            places = origin.places
        elif self.place is not None:
            places = (FilePlace(self.place),)
        self._places = tuple(places)

    @classmethod
    def in_chain(cls, origins: Sequence[str | os.PathLike[str]]) -> Bases:
        """Return the first of some origins, with those after it for its own archives, which are closed with it.

        Args:
            origins: Paths or URLs as for :class:`Bases`, at least one; each archive before what it was coded against.

        Raises:
            GcodecError: There is no such file or folder.
        """
        bases = cls(origins[-1])
        for origin in reversed(origins[:-1]):
            bases = cls(origin, base=bases)
            bases._owns_base = True
        return bases

    def find(self, path: str, dtype: str | None = None, *, needs_tensors: bool = False) -> Base | None:
        """Return the base of the file ``path``, None if there is none; safe from several threads.

        Args:
            path: Relative, as in an archive.
            dtype: What the values of a base without a header are, or raw bits of a ``.npy`` stand for.
            needs_tensors: Refuse a base that has none, unless it is in a folder.

        Raises:
            InvalidArgument: The base has no tensors, which it needs.
            GcodecError, OSError: The base cannot be read.
        """
        if self._planned is not None:
            return self._planned
        if self._archive is not None:
            return self._archive.find(path)
        file = self.file_of(path)
        if file is None:
            return None
        in_folder = file != (self._url or self.path)
        opened = self._opened(file, dtype, in_folder=in_folder)
        if opened.lacks_tensors and needs_tensors and not in_folder:
            raise InvalidArgument(f"{file}: a base must hold tensors, but there are no tensors in this file")
        return opened.find(path)

    def file_of(self, path: str) -> Path | str | None:
        """Return the path or URL of the file that has the base of the file ``path``; None if none has it."""
        if self._url is not None or self.path is None or not (self._begin / self.path).is_dir():
            return self._url or self.path
        for place in (self.path / name for name in _names(path)):
            for file in (place, place.with_name(place.name + SUFFIX)):
                if (self._begin / file).is_file():
                    return file
        return None

    @property
    def place(self) -> Path | str | None:
        """Path or URL of the file, folder or archive; None for what has neither."""
        return self.path or self._url or self._name

    @property
    def places(self) -> tuple[FilePlace, ...]:
        """The places of all files that are read, as far as they are known."""
        return (*self._places, *(() if self._base is None else self._base.places))

    def is_at(self, target: str | os.PathLike[str] | BinaryIO) -> bool:
        """Return True if a path, URL or stream to write to is a base, or in a folder of bases: replacing it makes
        archives unreadable."""
        return any(place.is_at(target) for place in self.places)

    def close(self) -> None:
        """Closes what was opened here."""
        with self._lock:
            self._close_all()
        if self._base is not None and self._owns_base:
            self._base.close()

    def _close_all(self) -> None:
        while self._open:
            self._open.popitem()[1].stack.close()

    def __enter__(self) -> Bases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self, file: Path | str, dtype: str | None, *, in_folder: bool = False) -> _Opened:
        """Return a file that is open now, or was before."""
        with self._lock:
            key = file, dtype
            if key not in self._open:
                self._open[key] = self._open_file(file, dtype, in_folder)
                if len(self._open) > MAX_OPEN:
                    self._open.popitem(last=False)[1].stack.close()
            self._open.move_to_end(key)
            return self._open[key]

    def _open_file(self, file: Path | str, dtype: str | None, in_folder: bool) -> _Opened:
        with ExitStack() as stack:
            source = stack.enter_context(closing(open_source(file if isinstance(file, str) else self._begin / file)))
            source.name = str(file)  # as it was given
            if source.read(0, min(len(MAGIC), source.size)).tobytes() == MAGIC:
                archive = stack.enter_context(ArchiveReader(source, threads=1, base=self._base))
                return _Opened(_InArchive(archive).find, stack.pop_all())
            plan = stack.enter_context(closing(_plan(file, source, dtype, in_folder)))
            base = Base.of_plan(PurePosixPath(file).name, plan)
            return _Opened(lambda path: base, stack.pop_all(), not plan.tensors)
        raise AssertionError  # an ExitStack suppresses nothing of its own


def _plan(file: Path | str, source: FileSource, dtype: str | None, in_folder: bool) -> FilePlan:
    """Return the plan of a base. In a folder (``in_folder``) what is no tensor file is one without tensors."""
    plan = (plan_or_bytes if in_folder else plan_file)(str(file), source)
    if dtype is not None and plan.format in ("bytes", "npy"):
        with suppress(InvalidArgument):  # a header says something else
            plan = plan_file(str(file), source, dtype=dtype)
    return plan


class HoldsArchive(Protocol):
    """An object that has an open archive, as :func:`gcodec.open` returns it."""

    @property
    def archive(self) -> ArchiveReader: ...


def bases_at(base: object) -> Bases | None:
    """Return what finds bases where they are files: at a path, in an open archive, or a chain of paths in a list.

    None for anything else, such as tensors in memory.

    Raises:
        GcodecError: There is no such file or folder.
    """
    if isinstance(base, str | os.PathLike | ArchiveReader):
        return Bases(base)
    if isinstance(archive := getattr(base, "archive", None), ArchiveReader):  # of what gcodec.open returned
        return Bases(archive)
    if isinstance(base, list | tuple) and base and all(isinstance(path, str | os.PathLike) for path in base):
        return Bases.in_chain(base)
    return None


def no_base(base: object) -> InvalidArgument:
    """Return the error that what was given as a base has no tensors."""
    kind = type(base).__name__
    return InvalidArgument(
        f"base must hold tensors, but this {kind} has none: give an earlier object or the path of its file; or for a "
        'chain a list of paths, each archive before its own base, as in base=["step-2.gc", "step-1.gc"]'
    )


class _InArchive:
    """The files of an archive as bases."""

    def __init__(self, archive: ArchiveReader) -> None:
        self._archive = archive
        self._known: dict[str, Base | None] = {}

    def find(self, path: str) -> Base | None:
        """Return the base of a path: the only file, or the one of the same place."""
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: str) -> Base | None:
        files, name = list(self._archive.files), Path(self._archive.name).name
        if len(files) > 1:
            files = [entry for name in _names(path) for entry in files if name in _names(entry.path)]
            name = f"{name}:{files[0].path}" if files else ""
        return Base.of_entry(name, files[0], partial(self._archive.segment_range, files[0])) if files else None


def _names(path: str) -> list[str]:
    """Return a path, and the same below its first folder."""
    parts = PurePosixPath(path).parts
    return [path, "/".join(parts[1:])] if len(parts) > 1 else [path]
