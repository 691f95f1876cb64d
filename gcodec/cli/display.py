"""How the command line shows things: sizes with units, tables, progress, notes. Nothing here knows an archive."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from gcodec.cli.errors import UsageError

SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(count: float) -> str:
    """A number of bytes with its unit: ``"517 B"``, ``"1.50 MB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"


def rate(count: float, seconds: float) -> str:
    """Bytes per second with the unit."""
    return f"{size(count / max(seconds, 1e-9))}/s"


def ratio(before: int, after: int) -> str:
    """How many times smaller; a dash for nothing."""
    return f"{before / after:.3f}" if after else "-"


def bits_per_value(stored: int, values: int) -> str:
    """Stored bits per value; a dash for none."""
    return f"{8 * stored / values:.2f}" if values else "-"


def parse_size(text: str) -> int:
    """``"10GB"``, ``"512 MiB"``, ``"4096"`` as a number of bytes."""
    number = text.strip().lower().removesuffix("b").strip()
    unit = number.lstrip("0123456789.").strip()
    try:
        return int(float(number.removesuffix(unit)) * SUFFIXES[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"not a size: {text!r} (try 500MB or 2GiB)") from None


def say(text: str, *, to_stderr: bool = False) -> None:
    """A line of result."""
    print(text, file=sys.stderr if to_stderr else sys.stdout)


def fail(text: str) -> None:
    """An error, in one line on stderr."""
    print(f"gcodec: error: {text}", file=sys.stderr)


def note(text: str, *, quiet: bool) -> None:
    """A remark on stderr that is no error."""
    if not quiet:
        print(f"gcodec: note: {text}", file=sys.stderr)


def print_json(value: Any) -> None:
    """A result for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    """Columns of text on stdout; names of columns that begin with ``>`` are set to the right.

    On a terminal too narrow for it, rich wraps the cells; in a pipe every row is one line.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        justify = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _width(columns, rows) + 2)
    console.print(Padding(table, (0, 0, 0, indent)))


@contextmanager
def progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr if that is a terminal; gives a function to call with the number of bytes done."""
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def binary_stdout() -> Any:
    """Standard output for bytes.

    Raises:
        UsageError: it is a terminal.
    """
    if sys.stdout.isatty():
        raise UsageError("refusing to write bytes to a terminal; give -o FILE, or pipe the output somewhere")
    return sys.stdout.buffer


def stdin_bytes() -> Any:
    """Standard input for bytes.

    Raises:
        UsageError: it is a terminal.
    """
    stream: TextIO = sys.stdin
    if stream.isatty():
        raise UsageError("refusing to read bytes from a terminal; pipe something in, or name a file")
    return stream.buffer


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    cells = [columns, *rows]
    return sum(max(len(row[i]) for row in cells) + 4 for i in range(len(columns)))
