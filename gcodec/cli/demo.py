"""``gcodec demo``: see it work on gradients made here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EPILOG = """\
It trains a convolutional network (SGD with momentum) and a transformer (AdamW) for about a minute, and compresses
their gradients with gcodec and with every other codec that is installed. In a checkout, pip
install '.[demo]' brings what it needs, and pip install '.[bench]' more codecs to compare with.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gcodec-demo"),
        metavar="DIR",
        help="folder for dumps (230 MB), pictures and tables (default: %(default)s)",
    )
    parser.add_argument("--dumps", type=Path, metavar="DIR", help="use the dumps recorded in DIR, do not train")
    parser.add_argument(
        "--drops",
        action="store_true",
        help="go on training for two thirds as long, while the learning rate falls to a tenth twice",
    )
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that everything works")


def run(args: argparse.Namespace) -> int:
    """Runs the demo; 1 if a round trip failed."""
    from ..demo.run import run_demo

    return run_demo(args.out, quick=args.quick, drops=args.drops, recorded=args.dumps, show=sys.stdout.isatty())
