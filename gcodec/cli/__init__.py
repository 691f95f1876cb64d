"""The command line: a module per verb, imported only when its verb is used.

A verb's module has ``add_arguments(parser)`` and ``run(args) -> int`` (the exit code); it raises
:class:`UsageError` for what argparse cannot check, and otherwise what the library raises.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import GcodecError, KernelCacheWarning, did_you_mean_file, link_to_nowhere, printable
from .parser import VERBS as VERBS
from .parser import UsageError as UsageError
from .parser import parse_line, parser_for
from .short_form import use_standard_input, verb_line
from .streams import named_output, open_standard_streams

#: Verbs that load kernels whatever their arguments are.
_AT_ONCE = frozenset({"compress", "inspect", "report", "series"})
_LISTS = frozenset({"-l", "--list"})  #: what is listed is not decoded
_OBJECTS_PER_COLLECTION = 100_000
OK, FAILURE, USAGE, BROKEN_PIPE, INTERRUPTED, TERMINATED = 0, 1, 2, 141, 130, 143


class Terminated(BaseException):
    """The process was told to end; like KeyboardInterrupt, this is not an ``Exception``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The arguments; those of the process if None.

    Returns:
        The exit code: 0 good, 1 the data or a file is at fault, 2 the command line is, 130 interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    open_standard_streams()
    arrived: list[int] = []
    try:
        with _signals(arrived), _rare_collections():
            code = _run(argv)
            sys.stdout.flush()  # what cannot be written is an error of this command, help and version included
            return code
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if arrived:  # compiled code may have made another error of the exception that was to end it
            return INTERRUPTED if arrived[0] == signal.SIGINT else TERMINATED
        return _reported(error)


def _run(argv: Sequence[str]) -> int:
    short = None if argv and argv[0] in VERBS else verb_line(argv)
    line = argv if short is None else short
    if line and line[0] in _AT_ONCE and _LISTS.isdisjoint(line):
        from .compile_time import import_numba

        import_numba()
    parser = parser_for(line[:1])
    try:
        args = parse_line(parser, line)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else USAGE
    if args.version:
        from .. import __version__

        print(f"gcodec {__version__}")
        return OK
    if args.verb is None:
        parser.print_help()
        return USAGE
    if short is not None:
        use_standard_input(args)
    if (threads := getattr(args, "threads", None)) is not None and threads < 1:
        raise UsageError(f"--threads must be at least 1, not {threads}")
    if getattr(args, "output", None) is not None:
        args.output = named_output(args.output)
    with _remarks(getattr(args, "quiet", False)):
        code: int = args.run(args)
        return code


def _reported(error: Exception) -> int:
    """Print an error of the user, the data or the system, and return its exit code; raises any other."""
    match error:
        case UsageError():
            return _failed(f"{error}", USAGE)
        case GcodecError():
            return _failed(f"{error}", FAILURE)
        case BrokenPipeError():
            _end_output()
            return BROKEN_PIPE
        case OSError():
            return _failed(system_error(error), FAILURE)
        case MemoryError():
            return _failed("out of memory", FAILURE)
    raise error


def system_error(error: OSError) -> str:
    """Return what the system says, after the name of the file that it says it of."""
    name, what = f"{error.filename}", f"{error.strerror or error}"
    if error.filename is None:
        gone = error.errno == errno.ENOENT and not _has_working_folder()
        return "the working folder has been removed: change to another" if gone else what
    if error.errno in (errno.ENOENT, errno.ELOOP):
        what = link_to_nowhere(Path(name)) or f"{what}{did_you_mean_file(name)}"
    return f"{name}: {what}"


def _has_working_folder() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - Path.cwd() says no more
    except FileNotFoundError:
        return False
    return True


def _failed(message: str, code: int) -> int:
    _say("error", message)
    _end_output()
    return code


def _say(kind: str, message: str) -> None:
    with suppress(OSError):
        print(f"gcodec: {kind}: {printable(message)}", file=sys.stderr)


def _end_output() -> None:
    """Writes out what was printed; if that cannot be written, Python shall not try again, and fail, at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Has Python look for cycles of objects rarely, and not at all at its end: what numba imports are so many objects,
    all of which live, that this takes a third of the time of a short command."""
    thresholds = gc.get_threshold()
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    gc.set_threshold(max(thresholds[0], _OBJECTS_PER_COLLECTION) if thresholds[0] else 0, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def _remarks(quiet: bool) -> Iterator[None]:
    """Prints warnings of the kernels' cache as one line each, or not at all."""

    def show_one_line(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if not issubclass(category, KernelCacheWarning):
            show(message, category, *where)
        elif not quiet:
            _say("note", f"{message}")

    show: Any = warnings.showwarning
    warnings.showwarning = show_one_line  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show


def _is_ending() -> bool:
    """Return True while the exception of an earlier signal is on its way, through what cleans up after it."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Terminated | KeyboardInterrupt):
        error = error.__context__
    return error is not None


@contextmanager
def _signals(arrived: list[int]) -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an exception, so that they too leave nothing behind; of several signals the first.

    Args:
        arrived: Gets the numbers of signals that arrive, SIGINT included.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if arrived and _is_ending():  # what removes files must not be cut off
            return
        arrived.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(f"signal {number}")

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    old = {}
    try:
        with suppress(ValueError):  # not in the main thread: leave signals alone
            for number in numbers:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                    old[number] = signal.signal(number, end)
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
