"""The files of a folder that go into its archive, and what does not."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import GcodecError, InvalidArgument, link_to_nowhere
from ..files.all_or_nothing import final_name
from ..files.source import naming, open_regular
from ..files.urls import UNFINISHED
from .entries import unsafe_path
from .file_state import FileState
from .layout import MAGIC


def members_of(folder: Path, root: Path, target: Path | None, skipped: list[str]) -> list[tuple[str, Path]]:
    """Return the files below a folder that go into an archive, each after its path there.

    Args:
        folder: Where to look.
        root: A folder around it, which paths in the archive are relative to.
        target: Where the archive is to be; the archive that is there already does not go into it.
        skipped: Gets a line for each thing in the folder that cannot go into an archive.

    Raises:
        InvalidArgument: A file in the folder, which is no archive, would be replaced by the archive.
        OSError: That file cannot be read.
    """
    replaced = FileState.of(target).identity if target is not None and target.exists() else None
    members = list[tuple[str, Path]]()
    for file in files_in(folder, skipped):
        path = file.relative_to(root).as_posix()
        if why := unsafe_path(path):
            skipped.append(f"{file}: skipped: its path in the archive {why}")
        elif not _is_old_archive(file, target, replaced):
            members.append((path, file))
    return members


def no_files(folder: object, skipped: Sequence[str]) -> GcodecError:
    """Return the error that a folder has no file for an archive; ``skipped``: what it has instead."""
    return GcodecError(f"{folder}: no files in this folder" + "".join(f"; {line}" for line in skipped[:1]))


def files_in(folder: Path, skipped: list[str]) -> list[Path]:
    """Return the regular files below a folder, links to files included, links to folders not followed.

    Args:
        folder: Where to look.
        skipped: Gets a line for each folder that cannot be looked into or is empty, for each link to a folder or to
            nothing, pipe or other thing that is no file, and for each file that a gcodec has not finished.
    """

    def skip(error: OSError) -> None:
        skipped.append(f"{error.filename}: skipped: {error.strerror}")

    found = []
    for place, folders, files in os.walk(folder, onerror=skip):
        folders.sort()
        links = [path for name in folders if (path := Path(place, name)).is_symlink()]
        skipped += [f"{path}: skipped: is a link to a folder" for path in links]
        if not folders and not files and Path(place) != folder:
            skipped.append(f"{place}: skipped: is an empty folder")
        for name in sorted(files):
            path = Path(place, name)
            try:
                if final_name(name) is not None:
                    skipped.append(f"{path}: skipped: {UNFINISHED}")
                elif stat.S_ISREG(path.stat().st_mode):
                    found.append(path)
                else:
                    skipped.append(f"{path}: skipped: is not a regular file")
            except OSError as error:
                skipped.append(f"{path}: skipped: {link_to_nowhere(path) or error.strerror}")
    return found


def _is_old_archive(file: Path, target: Path | None, replaced: tuple[int, int] | None) -> bool:
    """Return True for the archive that this command is to replace, which lies in the folder that is archived.

    Args:
        replaced: Identity of the file that is there; None if there is none.

    Raises:
        InvalidArgument: The file is no archive, and would be lost.
    """
    if replaced is None or FileState.of(file).identity != replaced:
        return False
    with naming(file), open_regular(file) as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise InvalidArgument(f"{target}: is in a folder to be archived, and would be replaced; give another name")
    return True
