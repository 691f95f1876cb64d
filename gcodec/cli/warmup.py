"""``gcodec warmup``: compiles the kernels, so that the first real use need not wait for it."""

from __future__ import annotations

import argparse
import time

from . import display


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = "The machine code is kept on disk: once per installation is enough."
    parser.add_argument("--json", action="store_true", help="result as JSON on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Compiles; returns the exit code."""
    begin = time.perf_counter()
    from .. import codec

    codec.warmup()
    seconds = time.perf_counter() - begin
    if args.json:
        display.print_json({"seconds": seconds})
    elif not args.quiet:
        display.say(f"kernels ready after {seconds:.1f} s")
    return 0
