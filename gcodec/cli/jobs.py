"""Archives to write, from what the user named: which files go into which, and under which paths."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import GcodecError
from . import UsageError

STDIO = "-"
SUFFIX = ".gc"


@dataclass(frozen=True)
class InputFile:
    """A file to archive.

    Attributes:
        source: where the file is; None for standard input.
        path: its path in the archive; empty for one by its kind.
        named: True if the user named this very file, so that it must be of the kind that its suffix says.
    """

    source: Path | None
    path: str
    named: bool


@dataclass(frozen=True)
class ArchiveJob:
    """An archive to write.

    Attributes:
        target: path of the archive; None for standard output.
        members: files that go into it.
    """

    target: Path | None
    members: tuple[InputFile, ...]

    @property
    def input_bytes(self) -> int:
        """Size of all members as far as it is known, for a progress bar."""
        return sum(member.source.stat().st_size for member in self.members if member.source)


def jobs_for(inputs: Sequence[str], output: str | None) -> list[ArchiveJob]:
    """Return the archives that a command line asks for.

    Without ``output`` each input becomes an archive beside it; with a folder, in that folder; with a file (or ``-``)
    all inputs go into that one archive.

    Raises:
        GcodecError: an input does not exist, a folder is empty.
        UsageError: standard input more than once.
    """
    names = [name for pattern in inputs for name in _expanded(pattern)]
    if names.count(STDIO) > 1:
        raise UsageError("standard input (-) can be read only once")
    if output is not None and not _is_folder(output):
        target = None if output == STDIO else Path(output)
        return [ArchiveJob(target, tuple(_members(names, target)))]
    return [_own_job(name, None if output is None else Path(output)) for name in names]


def _own_job(name: str, folder: Path | None) -> ArchiveJob:
    if name == STDIO:
        target = None if folder is None else folder / f"stdin{SUFFIX}"
        return ArchiveJob(target, (InputFile(None, "", True),))
    whole = Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links
    target = (whole.parent if folder is None else folder) / f"{whole.name}{SUFFIX}"
    if not Path(name).is_absolute() and folder is None:
        target = Path(name).parent / f"{whole.name}{SUFFIX}" if Path(name).name not in ("", "..") else target
    return ArchiveJob(target, tuple(_members([name], target)))


def _members(names: Sequence[str], target: Path | None) -> Iterator[InputFile]:
    """Yield the files under the named ones, with paths relative to what all of them share."""
    whole = {name: Path(os.path.abspath(name)) for name in names if name != STDIO}  # noqa: PTH100
    root = Path(os.path.commonpath([path.parent for path in whole.values()])) if whole else Path()
    left_out = None if target is None else Path(os.path.abspath(target))  # noqa: PTH100
    for name in dict.fromkeys(names):
        if name == STDIO:
            yield InputFile(None, "", True)
        elif whole[name].is_dir():
            files = list(_files_in(whole[name]))
            if not files:
                raise GcodecError(f"{name}: no files in this folder")
            yield from (InputFile(path, _path(path, root), False) for path in files if path != left_out)
        else:
            yield InputFile(Path(name), _path(whole[name], root), True)


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, links to files included, links to folders not followed."""
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if (path := Path(place, name)).is_file():
                yield path


def _expanded(pattern: str) -> list[str]:
    """Return the files a pattern stands for, where the shell has left it to us; a name that exists stands for
    itself."""
    if pattern == STDIO or Path(pattern).exists():
        return [pattern]
    names = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []  # noqa: PTH207
    if not names:
        raise GcodecError(f"{pattern}: no such file or folder")
    return names


def _path(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_folder(name: str) -> bool:
    return name != STDIO and (name.endswith(("/", os.sep)) or Path(name).is_dir())
