"""``gcodec warmup``: compiles the kernels, so that the first real use need not wait for it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import count

from ..dtypes import BY_NAME
from . import UsageError, display
from .compile_time import compiled_names

EPILOG = """examples:
  gcodec warmup
  gcodec warmup bfloat16 float32

The machine code is kept on disk: once per installation is enough. On a fresh installation it takes minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EPILOG
    parser.add_argument("dtypes", nargs="*", metavar="TYPE", help=f"value types (default: all):\n{' '.join(BY_NAME)}")
    parser.add_argument("--json", action="store_true", help="result as JSON on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Compiles; returns the exit code."""
    begin = time.perf_counter()
    names = tuple(dict.fromkeys(args.dtypes)) or tuple(BY_NAME)
    if unknown := sorted(set(names) - set(BY_NAME)):
        raise UsageError(f"{', '.join(unknown)}: no such value type; there are {', '.join(BY_NAME)}")
    times = _compile(names, quiet=args.quiet, lines=not (args.quiet or args.json or display.has_bars()))
    seconds = time.perf_counter() - begin
    if args.json:
        display.print_json({"seconds": seconds, "types": times})
    elif not args.quiet:
        display.say(f"kernels ready after {display.duration(seconds)}")
    return 0


def _compile(names: tuple[str, ...], *, quiet: bool, lines: bool) -> dict[str, float]:
    """Compiles for each value type, with a bar that names the kernels or with a line for each; returns the seconds."""
    from .. import codec

    times: dict[str, float] = {}
    with display.steps("loading", len(names), quiet=quiet) as bar:
        for name in names:
            begin = time.perf_counter()
            bar.name(name)
            counter = count(1)

            def show(kernel: str, name: str = name, counter: Iterator[int] = counter) -> None:
                bar.name(f"{name}: kernel {next(counter)}, {kernel}")

            with compiled_names(show):
                codec.warmup([name])
            times[name] = time.perf_counter() - begin
            bar.advance()
            if lines:
                display.say(f"{name}: {display.duration(times[name])}")
                sys.stdout.flush()
    return times
