"""The sections of a page about an archive, a frame or a tensor file."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.filesize import decimal

from ..errors import number_of
from .charts import column_chart, divided_bars, spark
from .contents import Contents, FileRow, TensorRow
from .distributions import around_the_bulk, entropy
from .page import Cell, Page

#: Speeds are shown if they were measured on so many bytes; below that, calls are most of the time.
MIN_TIMED_BYTES = 1 << 20
#: Tables of more tensors show no histogram in each row.
MAX_SPARKS = 2000
#: What a narrow screen shows without scrolling comes first.
COLUMNS = (
    "tensor",
    ">size",
    ">stored",
    ">ratio",
    ">bits/value",
    "dtype",
    "shape",
    "mode",
    "blocks",
    ">bits/exponent",
    "exponents",
)
FILE_COLUMNS = ("file", ">size", ">stored", ">ratio", ">tensors", "format")
SORTING = "A click on a column sorts by it."
SHARED = "Several small tensors of a type share a frame: its blocks stand with the first of them."
#: Of more files, the table of tensors of each opens by a click.
MAX_OPEN = 20
KINDS = {
    "constant": "constant: a single value",
    "raw": "raw: as it is, coding would gain nothing",
    "coded": "coded: exponents by a prefix code, other bits packed",
    "predicted": "predicted: from a template row or the base",
    "sparse": "sparse: what differs from the base, or from zero",
    "indexed": "indexed: few values, or few multiples of some scales",
}


def bytes_text(count: float) -> str:
    """Return a number of bytes with its unit, in powers of 1000."""
    return decimal(int(count), precision=2)


def add_contents(page: Page, contents: Contents) -> None:
    """Add everything about an archive, a frame or a file."""
    own = [row for row in contents.rows if not row.shares]
    coded = [row for row in own if row.n_values]
    values, stored = sum(row.n_values for row in coded), sum(row.stored_bytes for row in coded)
    tiles = [
        ("restores to", bytes_text(contents.value_bytes)),
        ("stored in", bytes_text(contents.stored_bytes)),
        ("ratio", f"{contents.value_bytes / contents.stored_bytes:.3f}" if contents.stored_bytes else "-"),
        ("tensors", f"{len(contents.rows)}"),
    ]
    page.tiles([*tiles, ("bits per value", f"{8 * stored / values:.2f}")] if values else tiles)
    for note in contents.notes:
        page.note(note)
    page.heading("Sizes and blocks")
    page.charts([_sizes(own), _blocks(own), _stages(contents)])
    if contents.distributions:
        page.heading("Values", f"Counted over {bytes_text(contents.n_read)} of values.")
        page.charts(_distributions(contents))
    _add_tables(page, contents)


def _add_tables(page: Page, contents: Contents) -> None:
    """Add the table of tensors; of an archive of several files a table of these, and one of tensors for each."""
    sparks = len(contents.rows) <= MAX_SPARKS
    note = SHARED if any(row.shared for row in contents.rows) else ""
    if not contents.files:
        page.heading("Tensors", " ".join(filter(None, (SORTING, note))))
        page.table(COLUMNS, [_cells(row, sparks=sparks) for row in contents.rows])
        return
    page.heading("Files", SORTING)
    page.table(FILE_COLUMNS, [_file_cells(file) for file in contents.files])
    page.heading("Tensors of each file", note)
    tables: dict[str, list[list[Cell]]] = {}
    for row in contents.rows:
        tables.setdefault(row.file, []).append(_cells(row, sparks=sparks))
    for path, rows in tables.items():
        page.opening(path, is_open=len(tables) <= MAX_OPEN)
        page.table(COLUMNS, rows)
        page.closing()


def _file_cells(file: FileRow) -> list[Cell]:
    ratio = file.n_bytes / file.stored_bytes if file.stored_bytes else math.nan
    return [
        Cell(file.path),
        Cell(bytes_text(file.n_bytes), file.n_bytes),
        Cell(bytes_text(file.stored_bytes), file.stored_bytes),
        _number(ratio, 3),
        Cell(str(file.n_tensors), file.n_tensors),
        Cell(file.format),
    ]


def _sizes(rows: Iterable[TensorRow]) -> str:
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for row in rows:
        before[row.dtype] = before.get(row.dtype, 0) + row.value_bytes
        after[row.dtype] = after.get(row.dtype, 0) + row.stored_bytes
    order = dict(sorted(before.items(), key=lambda item: -item[1]))
    bars = {
        f"values: {bytes_text(sum(order.values()))}": order,
        f"stored: {bytes_text(sum(after.values()))}": {name: after[name] for name in order},
    }
    return divided_bars("Bytes by type", bars, bytes_text, "Shares of each type; the sums stand above the bars.")


def _blocks(rows: Iterable[TensorRow]) -> str:
    kinds: dict[str, float] = {}
    for row in rows:
        for kind, count in row.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + count
    if not kinds:
        return ""
    parts = {KINDS.get(kind, kind): count for kind, count in sorted(kinds.items(), key=lambda item: -item[1])}
    total = sum(parts.values())
    return divided_bars(
        "What each block became", {number_of(int(total), "block"): parts}, lambda count: f"{count:.0f}", ""
    )


def _stages(contents: Contents) -> str:
    if contents.n_timed < MIN_TIMED_BYTES:
        return ""
    speeds = (f"{stage}: {contents.n_timed / seconds / 1e9:.2f} GB/s" for stage, seconds in contents.seconds.items())
    note = f"One thread, {bytes_text(contents.n_timed)}, once, while this page was made. {'; '.join(speeds)}."
    return divided_bars("Time by stage", {"": contents.seconds}, lambda seconds: f"{seconds:.3g} s", note)


def _distributions(contents: Contents) -> Iterable[str]:
    for name, values in contents.distributions.items():
        if not values.n_values:
            continue
        note = f"% of values. {values.remark()}"
        yield column_chart(f"Exponents of {name}", values.exponent_shares(), "power of two", note)
        note = "% of values by the lowest mantissa bit that is set. Rounded values pile up at the bits that they keep."
        yield column_chart(f"Mantissa bits in use, {name}", values.used_shares(), "bits", note)


def _cells(row: TensorRow, *, sparks: bool) -> list[Cell]:
    first = Cell(row.name), Cell(bytes_text(row.value_bytes), row.value_bytes)
    kind = Cell(row.dtype), Cell("×".join(map(str, row.shape)) or "scalar")
    if row.shares:
        return [*first, Cell(f"in {row.shares}", 0), *[Cell("")] * 2, *kind, *[Cell("")] * (len(COLUMNS) - 7)]
    blocks = [f"{count} {name}" for name, count in row.kinds.items()] + ["shared"] * row.shared
    ratio = row.value_bytes / row.stored_bytes if row.stored_bytes else math.nan
    bits = 8 * row.stored_bytes / row.n_values if row.n_values else math.nan
    exponents = row.exponents if row.exponents is not None and row.exponents.any() else None
    of_exponents = math.nan if exponents is None else entropy(exponents)
    return [
        *first,
        Cell(bytes_text(row.stored_bytes), row.stored_bytes),
        _number(ratio, 3),
        _number(bits, 2),
        *kind,
        Cell(row.modes),
        Cell(", ".join(blocks)),
        _number(of_exponents, 2),
        Cell("", html="" if exponents is None or not sparks else spark(around_the_bulk(exponents))),
    ]


def _number(value: float, digits: int) -> Cell:
    return Cell("") if math.isnan(value) else Cell(f"{value:.{digits}f}", value)
