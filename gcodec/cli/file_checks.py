"""Files compared as files, not by their names, before work on them begins."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from ..archive.entries import FileEntry
from ..archive.file_state import FileState
from ..archive.output import is_special
from ..archive.whole_files import check_restored_name
from ..errors import InvalidArgument
from ..files.urls import place_of
from . import UsageError


class FilesRead:
    """The files on this machine that a command reads, to tell them from those that it is to write.

    Which files they are is looked up once, and not at all while what is to be written is not there yet: a command may
    read thousands of archives, and write what is in each by itself.

    Args:
        paths: Of the files; one that is not there is left to whoever reads it.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = list(paths)

    @cached_property
    def _by_identity(self) -> dict[tuple[int, int], Path]:
        return {identity: path for path in self._paths if (identity := _identity(path)) is not None}

    def check_targets(self, targets: Iterable[Path]) -> None:
        """Raises UsageError if a file to be written is one that is read, under whatever names."""
        for target in targets:
            identity = _identity(target)
            other = None if identity is None else self._by_identity.get(identity)
            if other is None or _identity(other) != identity:  # a file that was removed leaves its number to others
                continue
            same = "is an input itself" if other == target else f"is the same file as the input {other}"
            raise UsageError(f"{target}: {same}, and would be replaced; give another name with -o")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from all others, under whatever name; None if there is no file."""
    try:
        return FileState.of(path).identity
    except OSError:
        return None


def check_removal(targets: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raises UsageError for ``--rm`` where the data would be gone: from or to something that is no regular file."""
    for path in (*targets, *inputs):
        if is_special(path):
            raise UsageError(f"--rm needs regular files, which {path} is not")


def check_restored_as(entry: FileEntry, place: str) -> None:
    """Raises UsageError for a file that ``-o`` names as a tensor file of another kind."""
    try:
        check_restored_name(entry, place)
    except InvalidArgument as error:
        raise UsageError(f"{error}") from error


def check_restored_once(places: Iterable[Path | str], archive: str, restored: dict[Path | str, str]) -> None:
    """Raises UsageError if another archive of the same command was restored to one of these places; else notes them.

    With ``--force`` the one would be replaced by the other, and with ``--rm`` it would be gone.
    """
    found = {place_of(place): place for place in places}
    for place, given in found.items():
        if (other := restored.get(place, archive)) != archive:
            raise UsageError(
                f"{given}: {other} has just been restored to it, and would be replaced by what is in "
                f"{archive}; restore them to different folders"
            )
    restored.update(dict.fromkeys(found, archive))
