"""The tables of docs/benchmarks/compressors.md about compressors and controllers, from what ``bench.compressors`` and
``bench.controllers`` write: ``bench.report`` puts them in their places."""

from __future__ import annotations

from pathlib import Path

from bench.markdown import markdown, source
from gcodec.benchmark.csv_tables import read_table

Row = dict[str, str]
#: Of each contest that has a table, what it is of. The arithmetic of a low rank alone is in the CSV file only.
CONTESTS = {
    "choose": "which values to send",
    "message": "from the gradient to the bytes",
    "hook": "the whole hook",
    "hook, two ranks": "the whole hook, between two ranks",
}


def compressors_table(results: Path) -> list[str]:
    """Return a table for each contest, its data in the order of the file."""
    comments, rows = read_table(results / "compressors.csv")
    lines: list[str] = []
    for contest, heading in CONTESTS.items():
        selected = [row for row in rows if row["contest"] == contest]
        if selected:
            table = _messages(selected) if contest == "message" else _times(selected)
            lines += [f"{heading.capitalize()}, {selected[0]['threads']} thread:", "", *table, ""]
    return [*lines, f"From {source(comments)}"]


def _messages(rows: list[Row]) -> list[str]:
    """Return what each method makes of the first of the data: time, bytes and norm."""
    table = [
        [
            row["method"],
            f"{1000 * float(row['seconds']):.2f}",
            *(row[name] for name in ("times_faster", "ratio", "norm_kept")),
        ]
        for row in rows
        if row["data"] == rows[0]["data"]
    ]
    first = f"{_millions(rows[0]['values'])} values, {rows[0]['data']}"
    return markdown([f"method; {first}", ">ms", ">times as fast", ">ratio", ">norm kept"], table)


def _times(rows: list[Row]) -> list[str]:
    """Return the milliseconds of each method, and in brackets how many times as fast it is as the first one: of one
    number of values by data, of several by that number."""
    sizes, data = (list(dict.fromkeys(row[name] for row in rows)) for name in ("values", "data"))
    across, down = ("values", ("data", "method")) if len(sizes) > 1 else ("data", ("method",))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        text = f"{1000 * float(row['seconds']):.2f} ({row['times_faster']})"
        cells.setdefault(tuple(row[name] for name in down), {})[row[across]] = text
    names = {size: f"{_millions(size)} values" for size in sizes} if len(sizes) > 1 else {name: name for name in data}
    table = [[*key, *(found.get(name, "") for name in names)] for key, found in cells.items()]
    return markdown([*down, *(f">{name}, ms" for name in names.values())], table)


def _millions(n_values: str) -> str:
    return f"{int(n_values) / 1e6:.2f} M"


def controllers_table(results: Path) -> list[str]:
    """Return the tables of decisions, then of two levels of compression."""
    comments, rows = read_table(results / "controllers.csv")
    lines: list[str] = []
    decisions = [row for row in rows if row["contest"] == "decide"]
    if decisions:
        table = [
            [
                row["data"],
                row["method"],
                f"{1000 * float(row['seconds']):.1f}",
                f"{100 * float(row['share']):.2f}",
                f"{100 * float(row['bytes_saved']):.1f}",
            ]
            for row in decisions
        ]
        lines += [*markdown(["model, family", "part", ">ms", ">% of 500 s", ">bytes saved, %"], table), ""]
    levels = [row for row in rows if row["contest"] == "levels"]
    if levels:
        table = [
            [row["data"], row["method"], f"{1000 * float(row['seconds']):.2f}", f"{1 / float(row['share']):.2f}"]
            for row in levels
        ]
        lines += [*markdown(["10x, then 1000x, by", "second choice", ">ms", ">times as fast"], table), ""]
    return [*lines, f"From {source(comments)}"]
