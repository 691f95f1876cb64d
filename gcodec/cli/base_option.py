"""``--base``: the earlier files that archives are coded against."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ..archive import Bases
from . import UsageError
from .streams import STDIO


def add_base(parser: argparse.ArgumentParser, text: str) -> None:
    """The option; ``text`` says what it is for."""
    parser.add_argument(
        "--base",
        action="append",
        metavar="OLD",
        help=f"{text}\na tensor file, an archive or a folder; repeat --base for the base of that archive",
    )


@contextmanager
def open_bases(paths: Sequence[str] | None) -> Iterator[Bases | None]:
    """The bases that the options name, each with those after it for its own archives; None without any.

    Raises:
        GcodecError: There is no such file.
        UsageError: Standard input, which cannot be read twice.
    """
    if STDIO in (paths or ()):
        raise UsageError("--base must be a file or a folder, not standard input (-)")
    with ExitStack() as stack:
        bases = None
        for path in reversed(paths or ()):
            bases = stack.enter_context(Bases(path, base=bases))
        yield bases


def against_lines(file: dict[str, Any]) -> Iterator[str]:
    """Yield what a file of an archive is stored against, as :mod:`gcodec.archive.description` has it, as lines."""
    if "base" in file:
        yield base_line(file)
    if "version_of" in file:
        paths, count = file["version_of"]["files"], file["version_of"]["tensors"]
        yield f"against {', '.join(paths)}, {count} of {len(file['tensors'])} tensors"


def base_line(file: dict[str, Any]) -> str:
    """Return what ``base`` is in :func:`gcodec.archive.description.file_summary`, as a line of text."""
    name, count = file["base"]["name"] or "tensors without a name", file["base"]["tensors"]
    return f"base: {name}" + (f", for {count} of {len(file['tensors'])} tensors" if file["tensors"] else "")
