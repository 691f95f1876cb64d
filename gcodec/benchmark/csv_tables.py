"""Results as CSV files: columns with their units, and above them the machine and the command that made them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .timing import machine

if TYPE_CHECKING:
    from .measure import Size
    from .report import Row


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Rows with their speeds, also as shares of the memory copy of the same run; above them, machine and command."""
    from .measure import COPY  # with all the peers; a table alone needs none of them

    rows = list(rows)
    copies = {row.dump: row for row in rows if row.codec == COPY}
    columns = (
        "data",
        "mode",
        "codec",
        "original_bytes",
        "compressed_bytes",
        "values",
        "percent",
        "bits_per_value",
        "encode_GBps",
        "decode_GBps",
        "encode_of_copy",
        "decode_of_copy",
    )
    table = []
    for row in rows:
        copy = copies.get(row.dump, row)
        shares = _share(row.encode_speed, copy.encode_speed), _share(row.decode_speed, copy.decode_speed)
        table.append(
            (
                row.dump,
                row.mode,
                row.codec,
                row.original_bytes,
                row.compressed_bytes,
                row.values,
                f"{row.percent:.3f}",
                f"{row.bits_per_value:.4f}",
                _number(row.encode_speed),
                _number(row.decode_speed),
                *shares,
            )
        )
    write_table(path, columns, table)


def write_sizes(path: Path, sizes: Iterable[Size]) -> None:
    """Write each input's sizes, with gcodec's overhead over the bound and saving against the paper's layout."""
    columns = (
        "data",
        "model",
        "step",
        "group",
        "dtype",
        "mode",
        "codec",
        "values",
        "original_bytes",
        "compressed_bytes",
        "percent",
        "bound_bytes",
        "overhead_percent",
        "paper_bytes",
        "saving_percent",
    )
    write_table(
        path,
        columns,
        [
            (
                s.data,
                s.model,
                s.step,
                s.group,
                s.dtype,
                s.mode,
                s.codec,
                s.values,
                s.original_bytes,
                s.compressed_bytes,
                f"{100 / s.ratio:.3f}",
                _number(s.bound, 0),
                _number(s.overhead),
                _number(s.paper, 0),
                _number(s.saving),
            )
            for s in sizes
        ],
    )


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file with two lines of comment, machine and command; each row as it is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name may hold bytes that are no UTF-8, and a command a line break.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(f"# machine: {machine()}\n# command: {' '.join(command().splitlines())}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(row)
            file.flush()


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
