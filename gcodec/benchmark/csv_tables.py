"""Results as CSV files: columns with their units, and above them the machine and the command that made them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from .timing import machine

if TYPE_CHECKING:
    from .measure import Size
    from .report import Row

NamedRow = dict[str, object]  #: a row that is to be written, by the names of columns


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Rows with their speeds, also as shares of the memory copy of the same run; above them, machine and command."""
    from .measure import COPY  # with all the peers; a table alone needs none of them

    rows = list(rows)
    copies = {row.dump: row for row in rows if row.codec == COPY}
    table = []
    for row in rows:
        copy = copies.get(row.dump, row)
        table.append(
            {
                "data": row.dump,
                "mode": row.mode,
                "codec": row.codec,
                "original_bytes": row.original_bytes,
                "compressed_bytes": row.compressed_bytes,
                "values": row.values,
                "percent": f"{row.percent:.3f}",
                "bits_per_value": f"{row.bits_per_value:.4f}",
                "encode_GBps": _number(row.encode_speed),
                "decode_GBps": _number(row.decode_speed),
                "encode_of_copy": _share(row.encode_speed, copy.encode_speed),
                "decode_of_copy": _share(row.decode_speed, copy.decode_speed),
            }
        )
    write_named(path, table)


def write_sizes(path: Path, sizes: Iterable[Size]) -> None:
    """Write each input's sizes, with gcodec's overhead over the bound and saving against the paper's layout."""
    write_named(
        path,
        [
            {
                "data": s.data,
                "model": s.model,
                "step": s.step,
                "group": s.group,
                "dtype": s.dtype,
                "mode": s.mode,
                "codec": s.codec,
                "values": s.values,
                "original_bytes": s.original_bytes,
                "compressed_bytes": s.compressed_bytes,
                "percent": f"{100 / s.ratio:.3f}",
                "bound_bytes": _number(s.bound, 0),
                "overhead_percent": _number(s.overhead),
                "paper_bytes": _number(s.paper, 0),
                "saving_percent": _number(s.saving),
            }
            for s in sizes
        ],
    )


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with two lines of comment, machine and command; each row as it is made.

    Raises ValueError where a row has more cells than there are columns, or fewer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name may hold bytes that are no UTF-8, and a command a line break.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(f"# machine: {machine()}\n# command: {' '.join(command().splitlines())}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"{path.name}: a row of {len(row)} cells for {len(columns)} columns")
            writer.writerow(row)
            file.flush()


def write_named(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows by the names of columns, those of the first, as :func:`write_table` does; nothing without any.

    Raises ValueError where a row has other columns than the first.
    """
    rows = iter(rows)
    for first in rows:
        write_table(path, tuple(first), (_cells(path, tuple(first), row) for row in chain([first], rows)))


def _cells(path: Path, columns: Sequence[str], row: Mapping[str, object]) -> list[object]:
    if row.keys() != set(columns):
        raise ValueError(f"{path.name}: a row has the columns {', '.join(row)}, and the first {', '.join(columns)}")
    return [row[name] for name in columns]


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the comment lines and the rows of what :func:`write_table` wrote."""
    lines = path.read_text("utf-8").splitlines()
    comments = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return comments, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def command() -> str:
    """Return the command line of this process, absolute paths shortened to their last part."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    start = f"python -m {module.name.removesuffix('.__main__')}" if module else Path(sys.argv[0]).name
    return " ".join([start, *(Path(word).name if word.startswith("/") else word for word in sys.argv[1:])])


def _share(speed: float | None, copy: float | None) -> str:
    return f"{speed / copy:.4f}" if speed and copy else ""


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
