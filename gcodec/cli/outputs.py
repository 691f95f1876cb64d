"""Single files that a command writes where the user says: at a path or at a URL, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from ..archive.output import Attributes, Staging
from ..files.source import naming
from ..files.urls import Upload, check_free_url, is_url, place_of
from . import UsageError
from .streams import STDIO


@contextmanager
def whole_file(place: str, *, force: bool, attributes: Attributes | None = None) -> Iterator[BinaryIO]:
    """Give a file to write to, which appears when the block ends well.

    Args:
        place: Path or URL of the file.
        force: Replace a file that is there.
        attributes: Permissions, owner and times of a file at a path; those of any new file if None.

    Raises:
        GcodecError: There is a file already, and ``force`` is False.
    """
    if is_url(place):
        check_free_url(place, force=force)
        with Upload(place) as file, naming(file.name):
            yield file
        return
    path = Path(place)
    with Staging(force=force, attributes=attributes) as staging, naming(path), staging.create(path) as file:
        yield file


class PlacesRead:
    """The files and URLs that a command reads, to tell them from URLs that it is to write to; resolved once.

    Args:
        inputs: Their paths and URLs, or ``-``.
        bases: Those of ``--base``, if it was given.
    """

    def __init__(self, inputs: Sequence[str], bases: Sequence[str] | None) -> None:
        self._given = inputs, bases or ()

    @cached_property
    def _places(self) -> list[set[Path | str]]:
        return [{place_of(name) for name in names if name != STDIO} for names in self._given]

    def check_targets(self, targets: Sequence[str]) -> None:
        """Raise UsageError if a URL to be written is one that is to be read, or that of a base."""
        for target in targets:
            (place, (read, bases)) = place_of(target), self._places
            if place in read:
                raise UsageError(f"{target}: is an input itself, and would be replaced; give another name with -o")
            if place in bases:
                raise UsageError(f"{target}: is needed as --base, and would be replaced")
