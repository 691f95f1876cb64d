"""``gcodec report``: a page about an archive, a checkpoint or a run, to be looked at in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..archive.output import check_free
from ..errors import GcodecError
from ..files.urls import check_free_url, is_url, local_path, name_at, resolved
from . import UsageError, display
from .base_option import add_base, open_bases
from .compress import size_argument
from .file_checks import FilesRead
from .outputs import PlacesRead, whole_file
from .streams import STDIO

EXAMPLES = """examples:
  gcodec report model.safetensors.gc             makes model.safetensors.gc.html
  gcodec report model.pt -o model.html           what it would compress to
  gcodec report run                              logs, dumps and checkpoints of a training run
  gcodec report stats.jsonl                      json.dumps(state.stats()), a line for each step

The page is one file without links to anything: mail it, or open it from the disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "source",
        metavar="FILE-OR-RUN",
        help="an archive, a frame, a tensor file, a .jsonl log, or a folder of a run;\na path or a URL",
    )
    add("-o", "--output", metavar="PATH", help="the page (default: beside the source, with .html), or - for stdout")
    add("-f", "--force", action="store_true", help="replace a page that exists")
    add(
        "--limit",
        type=size_argument,
        default="256MB",
        metavar="SIZE",
        help="how much to read for distributions (default: 256MB);\nof a larger file, the first part of every tensor",
    )
    add_base(parser, "what the archive was compressed against,\nor what to compress a tensor file against:")
    add("-q", "--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Writes the page; returns the exit code."""
    from ..report import report_page

    if args.source == STDIO:
        raise UsageError("report needs a file or a folder, not standard input (-)")
    source = str(local_path(args.source))
    if not is_url(source) and not Path(source).exists():
        raise GcodecError(f"{args.source}: no such file or folder")
    target = str(local_path(args.output or _beside(source)))
    if target != STDIO:
        _check_target(target, source, args)
    with open_bases(args.base) as bases, display.steps(name_at(source), None, quiet=args.quiet) as bar:
        html = report_page(source, limit=args.limit, base=bases, progress=bar.name)
    if target == STDIO:
        print(html, end="")
        return 0
    with whole_file(target, force=args.force) as file:
        file.write(html.encode())
    if not args.quiet:
        display.say(f"{target}: {display.size(len(html.encode()))}")
    return 0


def _beside(source: str) -> str:
    """Return where the page about a file or folder goes if nobody says so."""
    if is_url(source):
        return f"{source.rstrip('/')}.html"
    return str(Path(source).parent / f"{Path(source).name or resolved(source).name}.html")


def _check_target(target: str, source: str, args: argparse.Namespace) -> None:
    """Raise an error, before anything is read, if the page cannot or must not be written there."""
    if is_url(target):
        PlacesRead([source], args.base).check_targets([target])
        check_free_url(target, force=args.force)
        return
    FilesRead([] if is_url(source) else [Path(source)]).check_targets([Path(target)])
    check_free(Path(target), force=args.force)
