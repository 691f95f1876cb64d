"""The tables of docs/benchmarks/compressors.md about compressors and controllers, from what ``bench.compressors`` and
``bench.controllers`` write: ``bench.report`` puts them in their places."""

from __future__ import annotations

from pathlib import Path

from bench.markdown import markdown, source
from gcodec.benchmark.csv_tables import read_table

Row = dict[str, str]
#: Of each contest, what its table is of.
CONTESTS = {
    "choose": "which values to send",
    "message": "from the gradient to the bytes",
    "low rank": "the arithmetic of a low rank",
    "hook": "the whole hook",
    "hook, two ranks": "the whole hook, between two ranks",
}
_COLUMNS = [">ms", ">times as fast", ">bytes", ">ratio", ">norm kept", ">of the best"]


def compressors_table(results: Path) -> list[str]:
    """Return a table for each contest, its data in the order of the file."""
    comments, rows = read_table(results / "compressors.csv")
    lines: list[str] = []
    for contest, heading in CONTESTS.items():
        selected = [row for row in rows if row["contest"] == contest]
        if selected:
            lines += [f"{heading.capitalize()}, {selected[0]['threads']} thread:", "", *_contest(selected), ""]
    return [*lines, f"From {source(comments)}"]


def _contest(rows: list[Row]) -> list[str]:
    """One contest; columns that say nothing of any of its methods are left out."""
    fields = ("bytes", "ratio", "norm_kept", "of_best")
    shown = [field for field in fields if any(row[field] for row in rows)]
    columns = [*_COLUMNS[:2], *(column for column, field in zip(_COLUMNS[2:], fields, strict=True) if field in shown)]
    table = [
        [
            row["data"],
            _millions(row["values"]),
            row["method"],
            f"{1000 * float(row['seconds']):.2f}",
            row["times_faster"],
            *(row[field] for field in shown),
        ]
        for row in rows
    ]
    return markdown(["data", ">values", "method", *columns], table)


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
