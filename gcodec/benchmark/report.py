"""The demo's table: what each codec made of each dump, and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import missing_package, printable

try:
    from rich import box
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise missing_package("rich") from error

TEXT_COLUMNS = ("dump", "mode", "codec")
NUMBER_COLUMNS = ("size", "% of\noriginal", "ratio", "bits /\nvalue", "encode\nGB/s", "decode\nGB/s")
NARROWEST_TEXT = 7


def distance(percent: float, digits: int = 2) -> str:
    """Return how far a size is from another, in words for its sign: ``"0.36 % below"``."""
    return f"{abs(percent):.{digits}f} % {'below' if percent < 0 else 'above'}"


@dataclass(frozen=True)
class Row:
    """A codec's result on one dump.

    Attributes:
        dump: What was compressed, such as ``"cnn step 100"``.
        mode: ``"lossless"``, ``"near-lossless"`` ...; only rows of one dump and mode are compared.
        codec: The codec's name and level.
        original_bytes: Size before.
        compressed_bytes: Size after, every header counted.
        values: Number of floating-point values.
        encode_seconds, decode_seconds: Time for one pass, None if not measured.
    """

    dump: str
    mode: str
    codec: str
    original_bytes: int
    compressed_bytes: int
    values: int
    encode_seconds: float | None = None
    decode_seconds: float | None = None

    @property
    def percent(self) -> float:
        """The size after in percent of the size before."""
        return 100 * self.compressed_bytes / self.original_bytes

    @property
    def ratio(self) -> float:
        """The ratio of the size before to the size after."""
        return self.original_bytes / self.compressed_bytes

    @property
    def bits_per_value(self) -> float:
        """The bits after for each value."""
        return 8 * self.compressed_bytes / self.values

    @property
    def encode_speed(self) -> float | None:
        """Speed in 1e9 bytes of uncompressed data per second, None if not measured."""
        return self._speed(self.encode_seconds)

    @property
    def decode_speed(self) -> float | None:
        """Speed in 1e9 bytes of uncompressed data per second, None if not measured."""
        return self._speed(self.decode_seconds)

    def _speed(self, seconds: float | None) -> float | None:
        return self.original_bytes / seconds / 1e9 if seconds else None


def summarize(rows: Iterable[Row], title: str | None = None, *, named: bool = True) -> Table:
    """Return a table for rich: rows in the order given, a rule between dumps, the smallest of each mode in bold.

    It wants about 100 columns; on a narrower terminal the names are folded, the numbers never.

    Args:
        title: Shown above the table.
        named: With a column for the dump; leave it out where all rows are of one.
    """
    rows = list(rows)
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in TEXT_COLUMNS if named else TEXT_COLUMNS[1:]:
        table.add_column(column, min_width=NARROWEST_TEXT, overflow="fold")
    for column in NUMBER_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    smallest = _smallest(rows)
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before.dump != row.dump:
            table.add_section()
        style = "bold" if row.compressed_bytes == smallest[row.dump, row.mode] else None
        names = _names(row, before)
        cells = [Text(printable(name)) for name in (names if named else names[1:])]  # a name is no markup
        table.add_row(*cells, *_numbers(row), style=style)
    return table


def _names(row: Row, before: Row | None) -> tuple[str, str, str]:
    """Return dump, mode and codec; a dump or mode that the row before has too is left blank."""
    if before is None or before.dump != row.dump:
        return row.dump, row.mode, row.codec
    return "", "" if before.mode == row.mode else row.mode, row.codec


def _numbers(row: Row) -> tuple[str, ...]:
    sizes = f"{row.percent:.1f}", f"{row.ratio:.2f}", f"{row.bits_per_value:.2f}"
    return _bytes(row.compressed_bytes), *sizes, _rate(row.encode_speed), _rate(row.decode_speed)


def _smallest(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    smallest: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row.dump, row.mode
        smallest[key] = min(row.compressed_bytes, smallest.get(key, row.compressed_bytes))
    return smallest


def _bytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _rate(speed: float | None) -> str:
    return "" if speed is None else f"{speed:.2f}"
