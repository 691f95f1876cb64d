"""The command line: one parser, one module per verb, imported only when its verb is used.

A verb's module has ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code); it raises
:class:`UsageError` for what argparse cannot check, and otherwise what the library raises.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ..errors import GcodecError

VERBS = {
    "compress": "compress tensor files and folders into .gc archives",
    "decompress": "restore files from .gc archives, list them, take single tensors out",
    "inspect": "show what is in an archive, a frame or a tensor file, tensor by tensor",
    "verify": "decode everything, check every hash, compare with the original",
    "record": "how to record gradients from a training script; what a dump holds",
    "warmup": "compile the kernels ahead of the first use",
    "bench": "measure sizes and speeds here, beside other compressors",
    "demo": "train two small models, record their gradients and compress them",
}
OK, FAILURE, USAGE, BROKEN_PIPE, INTERRUPTED, TERMINATED = 0, 1, 2, 141, 130, 143


class UsageError(Exception):
    """The command line asks for something that has no meaning; the exit code is 2."""


class Terminated(BaseException):
    """The process was told to end; like KeyboardInterrupt, this is not an ``Exception``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the arguments; those of the process if None.

    Returns:
        The exit code: 0 good, 1 the data or a file is at fault, 2 the command line is, 130 interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with _signals():
            return _run(argv)
    except UsageError as error:
        return _failed(f"{error}", USAGE)
    except GcodecError as error:
        return _failed(f"{error}", FAILURE)
    except BrokenPipeError:
        return _broken_pipe()
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        return _failed(f"{place}{error.strerror or error}", FAILURE)
    except MemoryError:
        return _failed("out of memory", FAILURE)
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED


def parser_for(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of the one verb that ``argv`` names."""
    parser = argparse.ArgumentParser(
        "gcodec",
        description="Makes gradients, checkpoints and any float tensors small: lossless, or near-lossless by rule.",
        epilog="gcodec VERB --help tells more. Exit codes: 0 good, 1 data or file at fault, 2 usage, 130 interrupted.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    verb_name = next((argument for argument in argv if not argument.startswith("-")), None)
    for name, text in VERBS.items():
        verb = verbs.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=argparse.RawTextHelpFormatter
        )
        if name == verb_name:
            module = importlib.import_module(f"gcodec.cli.{name}")
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)
    return parser


def _run(argv: Sequence[str]) -> int:
    parser = parser_for(argv)
    try:
        args = parser.parse_args(argv)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else USAGE
    if args.version:
        from .. import __version__

        print(f"gcodec {__version__}")
        return OK
    if args.verb is None:
        parser.print_help()
        return USAGE
    code: int = args.run(args)
    sys.stdout.flush()
    return code


def _failed(message: str, code: int) -> int:
    with suppress(OSError):
        print(f"gcodec: error: {message}", file=sys.stderr)
    return code


def _broken_pipe() -> int:
    """Say nothing where nobody reads our output any more, now and when Python flushes at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


@contextmanager
def _signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an exception, so that they too leave nothing behind."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated(f"signal {number}")

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    old = {}
    with suppress(ValueError):  # not in the main thread: leave signals alone
        old = {name: signal.signal(getattr(signal, name), terminate) for name in names}
    try:
        yield
    finally:
        for name, handler in old.items():
            signal.signal(getattr(signal, name), handler)
