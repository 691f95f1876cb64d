"""``gcodec report``: a page about an archive, a checkpoint or a run, to be looked at in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..archive.output import Staging, check_free
from ..errors import GcodecError
from . import UsageError, display
from .base_option import add_base, open_bases
from .compress import size_argument
from .file_state import check_targets
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
    add("source", metavar="FILE-OR-RUN", help="an archive, a frame, a tensor file, a .jsonl log, or a folder of a run")
    add("-o", "--output", metavar="PATH", help="the page (default: beside the source, with .html), or - for stdout")
    add("-f", "--force", action="store_true", help="replace a page that exists")
    add("--limit", type=size_argument, default="256MB", metavar="SIZE", help="values to read for distributions"
        " (default: 256MB);\nof more, the first part of every tensor")
    add_base(parser, "what the archive was compressed against:")
    add("-q", "--quiet", action="store_true", help="say nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Writes the page; returns the exit code."""
    from ..report import report_page

    source = Path(args.source)
    if args.source == STDIO:
        raise UsageError("report needs a file or a folder, not standard input (-)")
    if not source.exists():
        raise GcodecError(f"{args.source}: no such file or folder")
    whole = source.resolve()
    target = Path(args.output) if args.output else source.parent / f"{source.name or whole.name}.html"
    if args.output != STDIO:
        check_targets([target], [source])
        check_free(target, force=args.force)
    with open_bases(args.base) as bases, display.steps(source.name, None, quiet=args.quiet) as bar:
        html = report_page(source, limit=args.limit, base=bases, progress=bar.name)
    if args.output == STDIO:
        print(html, end="")
        return 0
    with Staging(force=args.force) as staging, staging.create(target) as file:
        file.write(html.encode())
    if not args.quiet:
        display.say(f"{target}: {display.size(len(html.encode()))}")
    return 0
