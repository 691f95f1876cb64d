"""Rows of the tables that the bed's measurements write, by the names of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles

from gcodec.benchmark.csv_tables import NamedRow, read_table, write_named


def names_of(result: NamedRow, *more: str) -> NamedRow:
    """Return the columns that say which training it was: its model, workers and rate, and ``more``."""
    return {name: result[name] for name in ("model", "workers", "rate", *more)}


def quartiles(seconds: Sequence[float], digits: int = 5) -> NamedRow:
    """Return the columns of steps' times: their median and quartiles."""
    low, middle, high = quantiles(seconds, n=4) if len(seconds) > 1 else [*seconds] * 3
    times = {"step_seconds": middle, "step_seconds_q1": low, "step_seconds_q3": high}
    return {name: f"{time:.{digits}f}" for name, time in times.items()}


def known(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, none if it is not there."""
    return read_table(path)[1] if path.exists() else []


def write_beside(
    before: Sequence[Mapping[str, str]], path: Path, rows: Sequence[NamedRow], names: Sequence[str]
) -> None:
    """Write rows after those from before, of which the columns ``names`` are others than any row's."""
    anew = {tuple(str(row[name]) for name in names) for row in rows}
    kept = [row for row in before if tuple(row[name] for name in names) not in anew]
    write_named(path, [*kept, *rows])
