"""Archives to write, from what the user named: which files go into which, and under which paths."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..archive.entries import unsafe_path
from ..archive.folder_members import members_of, no_files
from ..archive.layout import SUFFIX
from ..errors import GcodecError, InvalidArgument, did_you_mean_file, link_to_nowhere
from ..files.urls import files_below, is_folder_at, is_url, local_path, local_text, matching_urls, name_at
from . import UsageError
from .streams import STDIO


@dataclass(frozen=True)
class InputFile:
    """A file to archive.

    Attributes:
        source: Where the file is; None for standard input and for a URL.
        path: Its path in the archive; empty for one by its kind.
        named: True if the user named this very file, so that it must be of the kind that its suffix says.
        url: Where the file is, if that is a URL; empty otherwise.
    """

    source: Path | None
    path: str
    named: bool
    url: str = ""


@dataclass(frozen=True)
class ArchiveJob:
    """An archive to write.

    Attributes:
        target: Path of the archive; None for standard output and for a URL.
        members: Files that go into it.
        skipped: Files of a folder that cannot go into an archive, each with the reason, as a line.
        url: Where the archive is to be put, if that is a URL; empty otherwise.
    """

    target: Path | None
    members: tuple[InputFile, ...]
    skipped: tuple[str, ...] = ()
    url: str = ""

    @property
    def place(self) -> str | None:
        """Path or URL of the archive, as the user knows it; None for standard output."""
        return self.url or (None if self.target is None else str(self.target))

    @property
    def input_bytes(self) -> int:
        """Size of all members as far as it is known, for a progress bar."""
        return sum(found.st_size for found in self.stats())

    def stats(self) -> list[os.stat_result]:
        """Return what the system says of the members, except those that are streams or have gone."""
        found = []
        for member in self.members:
            with suppress(OSError):
                found += [member.source.stat()] if member.source else []
        return found


def jobs_for(inputs: Sequence[str], output: str | None) -> list[ArchiveJob]:
    """Return the archives that a command line asks for.

    Without ``output`` each input becomes an archive beside it; with a folder, in that folder; with a file (or ``-``)
    all inputs go into that one archive.

    Raises:
        GcodecError: An input does not exist, or a folder has no file that can be archived.
        UsageError: Standard input more than once, or a file to be archived as target.
    """
    names = [name for pattern in inputs for name in _expanded(pattern)]
    if names.count(STDIO) > 1:
        raise UsageError("standard input (-) can be read only once")
    if output is not None and is_url(output):
        if not output.endswith("/"):
            return [replace(_job(names, None), url=output)]
        return [replace(_job([name], None), url=_url_in(output, name)) for name in names]
    output = None if output is None else local_text(output)
    if output is not None and not _is_folder(output):
        target = None if output == STDIO else Path(output)
        return [_job(names, target)]
    return [_own_job(name, None if output is None else Path(output)) for name in names]


def _url_in(folder: str, name: str) -> str:
    """Return the URL of the archive of an input in a folder at a URL."""
    if is_url(name):
        return f"{folder}{_last_of(name)}{SUFFIX}"
    return f"{folder}{'stdin' if name == STDIO else Path(os.path.abspath(name)).name}{SUFFIX}"  # noqa: PTH100


def _own_job(name: str, folder: Path | None) -> ArchiveJob:
    if is_url(name):
        job = _job([name], None if folder is None else folder / f"{_last_of(name)}{SUFFIX}")
        return replace(job, url=f"{name.rstrip('/')}{SUFFIX}") if folder is None else job
    if name == STDIO:
        target = None if folder is None else folder / f"stdin{SUFFIX}"
        return ArchiveJob(target, (InputFile(None, "", True),))
    whole = Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would follow links
    target = (whole.parent if folder is None else folder) / f"{whole.name}{SUFFIX}"
    if not Path(name).is_absolute() and folder is None:
        target = Path(name).parent / f"{whole.name}{SUFFIX}" if Path(name).name not in ("", "..") else target
    return _job([name], target)


def _job(names: Sequence[str], target: Path | None) -> ArchiveJob:
    """Return the archive of the files under the named ones, with paths relative to what all of them share."""
    members: list[InputFile] = []
    skipped: list[str] = []
    whole = {name: Path(os.path.abspath(name)) for name in names if name != STDIO and not is_url(name)}  # noqa: PTH100
    root = Path(os.path.commonpath([path.parent for path in whole.values()])) if whole else Path()
    for name in dict.fromkeys(names):
        if name == STDIO:
            members.append(InputFile(None, "", True))
        elif is_url(name):
            members += _members_at(name, skipped)
        elif whole[name].is_dir():
            try:
                files = members_of(whole[name], root, target, skipped)
            except InvalidArgument as error:
                raise UsageError(f"{error}") from error
            if not files and not any("path in the archive" in line for line in skipped):
                raise no_files(name, skipped)
            members += [InputFile(file, path, False) for path, file in files]
        elif why := unsafe_path(path := _path(whole[name], root)):
            raise GcodecError(
                f"{name}: its path in the archive {why}; compress it under another name, or from standard input"
            )
        else:
            members.append(InputFile(Path(name), path, True))
    if not members and skipped:
        raise GcodecError(skipped[0])
    return ArchiveJob(target, tuple(members), tuple(skipped))


def _members_at(url: str, skipped: list[str]) -> list[InputFile]:
    """Return the file at a URL, or all files below a folder there, which are read in place.

    Args:
        skipped: Gets a line for each file that cannot go into an archive.

    Raises:
        GcodecError: There is no file in the folder.
    """
    top = _last_of(url)
    if not is_folder_at(url):
        return [InputFile(None, top, True, url)]
    members = []
    for name, place in files_below(url, skipped):
        path = f"{top}/{name}"
        if why := unsafe_path(path):
            skipped.append(f"{url}: {name}: skipped: its path in the archive {why}")
        else:
            members.append(InputFile(None, path, False, place))
    if not members and not skipped:
        raise GcodecError(f"{url}: no files in this folder")
    return members


def _expanded(pattern: str) -> list[str]:
    """Return the files a pattern stands for, where the shell has left it to us; a name that exists stands for
    itself."""
    if is_url(pattern):
        return _expanded_url(pattern)
    pattern = str(local_path(pattern))
    if pattern == STDIO or Path(pattern).exists():
        return [pattern]
    names = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []  # noqa: PTH207
    if not names:
        lacking = link_to_nowhere(Path(pattern)) or f"no such file or folder{did_you_mean_file(pattern)}"
        raise GcodecError(f"{pattern}: {lacking}")
    for name in names:  # a pipe or device that the user names is read, however long that takes
        if Path(name).exists() and not Path(name).is_file() and not Path(name).is_dir():
            raise GcodecError(f"{name}: is not a regular file; name it without a pattern to read from it")
    return names


def _expanded_url(pattern: str) -> list[str]:
    """Return the URLs that a pattern stands for; a URL without ``* ? [``, or of what is there, stands for itself."""
    if not glob.has_magic(pattern):
        return [pattern]
    names = matching_urls(pattern)
    if not names:
        raise GcodecError(f"{pattern}: no such file")
    return names


def _last_of(url: str) -> str:
    """Return the last part of a URL's path, as the name of a file or folder. Raises UsageError if there is none."""
    name = name_at(url)
    if not name:
        raise UsageError(f"{url}: must be the URL of a file or folder, with a name")
    return name


def _path(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _is_folder(name: str) -> bool:
    return name != STDIO and (name.endswith(("/", os.sep)) or Path(name).is_dir())
