"""What suites tried and what held, as rows of the table in docs/reliability.md.

A suite calls :func:`record` at its end. Where the environment variable ``GCODEC_RELIABILITY_ROWS`` names a file of
JSON, the row goes there, in place of one of the same name:

    GCODEC_RELIABILITY_ROWS=bench/results/reliability.json make fuzz slow
    python -m bench.report

writes the numbers of a run into the page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

VARIABLE = "GCODEC_RELIABILITY_ROWS"


def record(what: str, n_cases: int, n_failures: int, result: str) -> None:
    """Write a row into the file that the environment names, in place of one of the same name; without one, nothing.

    Args:
        what: What was tried; the row's name.
        n_cases: How often.
        n_failures: How many of the cases ended in another way than they must.
        result: What held, or what did not, in a few words.
    """

    def with_row(rows: list[dict[str, Any]]) -> None:
        row = {"what": what, "n_cases": n_cases, "n_failures": n_failures, "result": result}
        places = [number for number, earlier in enumerate(rows) if earlier["what"] == what]
        rows[slice(places[0], places[0] + 1) if places else slice(len(rows), None)] = [row]

    _change(with_row)


def keep_only(start: str, names: Collection[str]) -> None:
    """Remove rows whose names begin with ``start`` and are not among ``names``: those of an earlier version of a suite
    that has just recorded all of its rows."""

    def without(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if not row["what"].startswith(start) or row["what"] in names]

    _change(without)


def _change(change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows in the file, if there is one."""
    if not (name := os.environ.get(VARIABLE)):
        return
    import fcntl  # not on Windows, where nobody sets the variable

    with Path(name).open("a+") as file:  # several processes of a run may write
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        rows = json.loads(file.read() or "[]")
        change(rows)
        file.truncate(0)
        file.write(json.dumps(rows, indent=1) + "\n")
