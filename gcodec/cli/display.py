"""Display on the command line: sizes with units, tables, progress, notes. Nothing here knows an archive."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal

from ..errors import GcodecError, number_of, printable
from . import UsageError
from .compile_time import told_of_compiling
from .streams import ClosedOutput

MIN_RATED_BYTES = 10**7
#: The seconds that the rate beside a bar is of: soon after kernels have been compiled, it is that of the work alone.
RATE_SECONDS = 3.0
#: Characters of a line where there is no terminal and COLUMNS does not say: none are cut, for programs look for names.
LONGEST_LINE = 1 << 30
#: A table whose first column, of names, would get less, has a line for each name alone; other columns keep less.
LEAST_NAME, LEAST_CELL = 32, 16
GAPS = (2, 1)  #: blanks between columns, fewer where these do not fit
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(count: float) -> str:
    """Return a number of bytes with its unit, in powers of 1000: ``"517 bytes"``, ``"1.50 MB"``."""
    return decimal(int(count), precision=2)


def speed(count: float, seconds: float, compiling: float = 0.0) -> str:
    """Return the time that a number of bytes took, and the bytes per second: ``"2.00 s, 50.00 MB/s"``.

    There is no rate of few bytes, where it would be that of starting a program.

    Args:
        compiling: Of that, the time in which kernels were compiled or loaded, which is left out of the rate.
    """
    share = f" ({compiling:.1f} s of that to compile kernels, this once)" if compiling >= 1 else ""
    rate = f", {size(count / max(seconds - compiling, 1e-9))}/s" if count >= MIN_RATED_BYTES else ""
    return f"{duration(seconds)}{share}{rate}"


def duration(seconds: float) -> str:
    """Return a time with its unit: ``"2.00 s"``, ``"3 ms"``."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{max(round(1000 * seconds), 1)} ms"


def ratio(before: int, after: int) -> str:
    """Return how many times smaller ``after`` is; a dash where there was nothing, or nothing is left."""
    return f"{before / after:.3f}" if before and after else "-"


def file_line(row: Mapping[str, Any]) -> str:
    """Return a file's path, format and sizes, from its row in a list or a description."""
    taken = f"-> {size(row['stored_bytes'])}, ratio {ratio(row['bytes'], row['stored_bytes'])}"
    if "same" in row:
        taken = f"as {row['same']}"
    found = "".join(f", {size(count)} found to be {dtype}" for dtype, count in row.get("found", {}).items())
    remade = "" if row["exact"] else ", not byte for byte the original"
    return titled(row["path"], f"{row['format']}, {size(row['bytes'])} {taken}{found}{remade}")


def archives_line(archives: Sequence[Mapping[str, Any]]) -> str:
    """Return what archives hold and take together, from their descriptions."""
    files = [file for archive in archives for file in archive["files"]]
    before, after = sum(file["bytes"] for file in files), sum(archive["bytes"] for archive in archives)
    held = f"{number_of(len(archives), 'archive')}, {number_of(len(files), 'file')}"
    return f"{held}, {size(before)} -> {size(after)}, ratio {ratio(before, after)}"


def line_width() -> int:
    """Return how many characters a line may have: those of the terminal, or what COLUMNS says; any without either."""
    return shutil.get_terminal_size((LONGEST_LINE, 24)).columns


def cut_middle(text: str, width: int) -> str:
    """Return a text with dots in place of its middle if it is wider; names differ at their ends."""
    if cell_len(text) <= width:
        return text
    kept = max(width - 3, 2)
    start, end = set_cell_size(text, kept - kept // 2), set_cell_size(text[::-1], kept // 2)[::-1]
    return f"{start}...{end}"


def titled(name: str, text: str) -> str:
    """Return a line about something, whose name is cut to fit it."""
    room = line_width() - cell_len(text) - 2
    return f"{cut_middle(printable(name), max(room, LEAST_CELL))}: {text}"


def cut_end(text: str) -> str:
    """Return a line that ends in dots where it is too long."""
    text, width = printable(text), line_width()
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 3, 1)) + "..."


def bits_per_value(stored: int, values: int) -> str:
    """Return the stored bits per value; a dash for none."""
    return f"{8 * stored / values:.2f}" if values else "-"


def parse_size(text: str) -> int:
    """Return ``"10GB"``, ``"512 MiB"`` or ``"4096"`` as a number of bytes, which rich does only the other way."""
    number = text.strip().lower().removesuffix("b").strip()
    unit = number.lstrip("0123456789.").strip()
    try:
        return int(float(number.removesuffix(unit)) * SUFFIXES[unit])
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"a size must be like 500MB or 2GiB, not {text!r}") from None


def say(text: str, *, to_stderr: bool = False) -> None:
    """Print a line about work that is done, if anybody can read it."""
    if to_stderr or not isinstance(sys.stdout, ClosedOutput):
        print(printable(text), file=sys.stderr if to_stderr else sys.stdout)


def show(text: str) -> None:
    """Print a line of the result that was asked for."""
    print(printable(text))


def fail(text: str) -> None:
    """Print an error, in one line on stderr."""
    print(f"gcodec: error: {printable(text)}", file=sys.stderr)


def note(text: str, *, quiet: bool) -> None:
    """Print a remark on stderr that is no error."""
    if not quiet:
        print(f"gcodec: note: {printable(text)}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print a result for programs."""
    text = json.dumps(value, indent=2, ensure_ascii="utf" not in (sys.stdout.encoding or "utf").lower())
    print("\n".join(line if line.isprintable() else _escaped_json(line) for line in text.split("\n")))


def _escaped_json(line: str) -> str:
    """Return a line of JSON with what :func:`printable` escapes, all of which is in strings, escaped as JSON does."""
    return "".join(c if c.isprintable() else _json_escape(c) for c in line)


def _json_escape(character: str) -> str:
    digits = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    """Print columns of text, a row per line; columns whose name begins with ``>`` are set to the right.

    Where lines would be too long, texts are cut in their middle, the longest first. If the names in the first column
    would get too short to be told apart, each that is too long for its column has a line to itself, above its row.

    Not by rich's Table, which takes a second for 2000 tensors where this takes 10 ms, and would fold lines.
    """
    lines = [[column.lstrip(">") for column in columns], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(line[number]) for line in lines) for number in range(len(columns))]
    widths, gap, apart = _fitted(widths, [cell_len(name) for name in lines[0]], line_width() - indent)
    for line in lines:
        name = line[0]
        if apart and cell_len(name) > widths[0]:
            print(" " * indent + cut_middle(name, line_width() - indent))
            name = ""
        cells = [cut_middle(cell, width) for cell, width in zip([name, *line[1:]], widths, strict=True)]
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        padded = (
            blank + cell if column.startswith(">") else cell + blank
            for column, cell, blank in zip(columns, cells, blanks, strict=True)
        )
        print(" " * indent + (" " * gap).join(padded).rstrip())


def _fitted(natural: Sequence[int], headings: Sequence[int], room: int) -> tuple[list[int], int, bool]:
    """Return the width of each column so that a line fits, the gap between columns, and whether names stand apart."""
    for gap, apart in ((GAPS[0], False), *((gap, True) for gap in GAPS)):
        free = room - gap * (len(natural) - 1)
        name = 0 if apart else LEAST_NAME
        least = [max(own, min(n, LEAST_CELL)) for n, own in zip(natural, headings, strict=True)]
        least[0] = max(headings[0], min(natural[0], name))
        widths = list(natural)
        while sum(widths) > free and (longer := [n for n, width in enumerate(widths) if width > least[n]]):
            widths[max(longer, key=lambda n: (apart and n == 0, widths[n]))] -= 1
        if sum(widths) <= free:
            break
    return widths, gap, apart


def has_bars() -> bool:
    """Return True if stderr is a terminal on which a line can be drawn anew."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _time_column(seconds_of: Callable[[Any], float | None], what: str = "") -> Any:
    """Return a column of rich with a time beside a bar; empty below a second, where rich shows 0:00:00."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class TimeColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            seconds = int(seconds_of(task) or 0)
            return Text(f"{timedelta(seconds=seconds)}{what}" if seconds else "", style="progress.elapsed")

    return TimeColumn()


@contextmanager
def progress(title: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr if that is a terminal; gives a function to call with the number of bytes done."""
    if quiet or not has_bars():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    show = Progress(
        *columns,
        _time_column(lambda task: task.time_remaining, " left"),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=RATE_SECONDS,
    )
    with show as bar:
        task = bar.add_task(printable(title), total=total)

        def tell(is_compiling: bool) -> None:
            bar.update(task, description="compiling kernels, once" if is_compiling else printable(title))

        with told_of_compiling(tell):
            yield lambda count: bar.advance(task, count)


class StepBar:
    """A bar of steps on stderr, with the name of what is being done; nothing where there is no terminal.

    Args:
        bar: Rich's display; None to show nothing.
        task: The number that rich gives to the bar.
    """

    def __init__(self, bar: Any = None, task: Any = None) -> None:
        self._bar, self._task = bar, task

    def name(self, what: str) -> None:
        """Show what is being done."""
        if self._bar is not None:
            self._bar.update(self._task, description=printable(what))

    def advance(self) -> None:
        """Count a step that is done."""
        if self._bar is not None:
            self._bar.advance(self._task)


@contextmanager
def steps(title: str, total: int | None, *, quiet: bool) -> Iterator[StepBar]:
    """Show a bar on stderr if that is a terminal, for work that is counted in steps of any length, not in bytes.

    Args:
        title: Name of the first step.
        total: The number of steps, or an estimate; None if it is not known.
        quiet: Show nothing.
    """
    if quiet or not has_bars():
        yield StepBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    counts = () if total is None else (MofNCompleteColumn(),)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *counts,
        _time_column(lambda task: task.elapsed),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield StepBar(bar, bar.add_task(printable(title), total=total))


def binary_stdout() -> Any:
    """Return standard output for bytes.

    Raises:
        GcodecError: It is closed.
        UsageError: It is a terminal.
    """
    if isinstance(sys.stdout, ClosedOutput):
        raise GcodecError("standard output is closed")
    if sys.stdout.isatty():
        raise UsageError("refusing to write bytes to a terminal; give -o FILE, or pipe the output somewhere")
    return sys.stdout.buffer


def stdin_bytes() -> Any:
    """Return standard input for bytes.

    Raises:
        GcodecError: It is closed.
        UsageError: It is a terminal.
    """
    stream: TextIO | None = sys.stdin
    if stream is None:
        raise GcodecError("standard input is closed")
    if stream.isatty():
        raise UsageError("refusing to read bytes from a terminal; pipe something in, or name a file")
    return stream.buffer
