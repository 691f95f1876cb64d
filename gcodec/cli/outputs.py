"""Single files that a command writes where the user says: at a path or at a URL, whole or not at all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
        place: path or URL of the file.
        force: replace a file that is there.
        attributes: permissions, owner and times of a file at a path; those of any new file if None.

    Raises:
        GcodecError: there is a file already, and ``force`` is False.
    """
    if is_url(place):
        check_free_url(place, force=force)
        with Upload(place) as file, naming(file.name):
            yield file
        return
    path = Path(place)
    with Staging(force=force, attributes=attributes) as staging, naming(path), staging.create(path) as file:
        yield file


def check_url_targets(targets: Sequence[str], inputs: Sequence[str], args: argparse.Namespace) -> None:
    """Raise UsageError if a URL to be written is one that is to be read, or that of a base."""
    read, bases = ({place_of(name) for name in names if name != STDIO} for names in (inputs, args.base or ()))
    for target in targets:
        if place_of(target) in read:
            raise UsageError(f"{target}: is an input itself, and would be replaced; give another name with -o")
        if place_of(target) in bases:
            raise UsageError(f"{target}: is needed as --base, and would be replaced")
