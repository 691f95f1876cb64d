"""The table of Pythons and packages that were tried: its rows, and what is said of a Python that is not there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

pytest.importorskip("packaging")

from packaging.requirements import Requirement

from bench.sections import versions_table
from gcodec.benchmark.csv_tables import write_table
from tests.support.paths import ROOT
from tools import matrix
from tools.matrix import NEWEST, OLDEST, NotTriedError, Row, dependencies, find_python, try_pair, with_row


def test_a_row_replaces_the_one_of_its_python_and_packages():
    rows: list[Row] = []
    for new in (
        Row("3.13.0", OLDEST),
        Row("3.9.1", OLDEST),
        Row("3.13.0", NEWEST),
        Row("3.13.7", OLDEST, n_passed="9"),
        Row("3.13", NEWEST, note="not tried"),
    ):
        rows = with_row(rows, new)
    assert [(row.python, row.packages, row.n_passed, row.note) for row in rows] == [
        ("3.9.1", OLDEST, "", ""),
        ("3.13", NEWEST, "", "not tried"),
        ("3.13.7", OLDEST, "9", ""),
    ]


def test_a_python_that_is_not_there_is_a_row_that_says_so(tmp_path):
    row = try_pair("3.99", OLDEST, tmp_path, argparse.Namespace(tests=None, processes="1"))
    assert (row.python, row.note) == ("3.99", "not tried: no Python 3.99 on the machine")
    assert not row.failed
    assert find_python(sys.executable) == sys.executable


@pytest.mark.parametrize(
    ("row", "failed"),
    [
        (Row("3.12", OLDEST, n_passed="5", n_failed="0"), False),
        (Row("3.12", OLDEST, n_passed="5", n_failed="1"), True),
        (Row("3.12", OLDEST, n_passed="5", n_failed="0", note="the command line failed: no such file"), True),
        (Row("3.12", OLDEST, note="not tried: no numpy"), False),
    ],
)
def test_a_row_has_failed_where_a_test_or_the_command_line_has(row, failed):
    assert row.failed == failed


def test_the_files_of_tests_that_it_names_exist():
    for path in (matrix.LAWS[0], *matrix.ARRAY_TESTS, *matrix.TORCH_TESTS):
        assert (ROOT / path).exists(), path


def test_what_gcodec_needs_has_an_oldest_version_each():
    needed, torch = dependencies()
    assert all(str(one.specifier).startswith(">=") for one in (*needed, torch))
    assert {"numpy", "numba", "zstandard"} <= {one.name for one in needed}


def test_what_cannot_be_installed_is_said(monkeypatch):
    environment = object.__new__(matrix.Environment)
    environment.version = "3.12.1"
    monkeypatch.setattr(matrix.Environment, "available", lambda *_: [])
    with pytest.raises(NotTriedError, match=r"there is no numpy>=2.0 for Python 3.12.1 without a compiler"):
        environment.oldest(Requirement("numpy>=2.0"))


def test_the_table_shows_what_passed_what_failed_and_what_was_not_tried(tmp_path: Path):
    rows = [
        Row("3.12.1", OLDEST, "2.0.0", "0.61.0", "0.23.0", "", "7", "2", "0", "only for CUDA", "2026-11-29"),
        Row("3.13.0", OLDEST, "2.1.0", "0.61.0", "0.23.0", "2.6.0", "7", "2", "1", "a::b", "2026-11-29"),
        Row("3.14", OLDEST, note="not tried: no Python 3.14", date="2026-11-29"),
    ]
    write_table(tmp_path / "versions.csv", list(vars(rows[0])), [list(vars(row).values()) for row in rows])
    assert versions_table(tmp_path)[2:] == [
        "| 3.12.1 | oldest | 2.0.0 | 0.61.0 | 0.23.0 | none | 7 passed, 2 skipped | only for CUDA | 2026-11-29 |",
        "| 3.13.0 | oldest | 2.1.0 | 0.61.0 | 0.23.0 | 2.6.0 | 7 passed, 1 failed, 2 skipped | a::b | 2026-11-29 |",
        "| 3.14 | oldest |  |  |  |  |  | not tried: no Python 3.14 | 2026-11-29 |",
    ]
