"""The committed results, and the pages that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gcodec.benchmark import csv_tables
from tests.support import reliability
from tests.support.paths import ROOT


def test_marked_places_of_a_page_are_filled():
    from bench.markdown import filled, markdown

    page = "a\n<!-- begin x (note) -->\nold\n<!-- end x -->\nb\n<!-- begin xy -->\n<!-- end xy -->\n"
    longer = "<!-- begin x-model -->\n<!-- end x-model -->\n"
    assert filled(longer + page, "x", ["new"]) == longer + filled(page, "x", ["new"])
    assert filled(page, "x", ["new", "lines"]) == page.replace("old\n", "\nnew\nlines\n\n")
    assert markdown(["a", ">b"], [["1", "2"]]) == ["| a | b |", "| --- | ---: |", "| 1 | 2 |"]


def test_a_row_of_reliability_replaces_the_one_of_its_name(tmp_path, monkeypatch):
    monkeypatch.delenv(reliability.VARIABLE, raising=False)
    reliability.record("nowhere", 1, 0, "it held")
    path = tmp_path / "rows.json"
    monkeypatch.setenv(reliability.VARIABLE, str(path))
    for what, n_cases in (("a", 10), ("b", 20), ("a", 30)):
        reliability.record(what, n_cases, 0, "it held")
    assert [
        (row["what"], row["n_cases"], row["n_failures"], row["result"]) for row in json.loads(path.read_text())
    ] == [("a", 30, 0, "it held"), ("b", 20, 0, "it held")]
    reliability.record("ac", 5, 0, "it held")
    reliability.keep_only("a", {"ac"})
    assert [row["what"] for row in json.loads(path.read_text())] == ["b", "ac"]


def test_pages_show_the_committed_results_of_benchmarks():
    from bench import report

    assert report.main(["--check"]) == 0, "run python -m bench.report"


def test_the_readmes_links_lead_somewhere():
    for name in ("README.md", "docs/index.md", "docs/benchmarks.md", "docs/experiments-lgreco.md"):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), target


def test_every_part_of_the_benchmarks_is_run_and_shown():
    from bench import __main__ as everything
    from bench import pictures, report

    for quick in (False, True):
        result = everything.commands(quick, Path("dumps"), report.RESULTS)
        names = [command[0] for command in result]
        modules = {f"bench.{path.stem}" for path in (ROOT / "bench").glob("*.py") if "def main(" in path.read_text()}
        on_devices = {"bench.gpu", "bench.gpu_allreduce", "bench.first_gpu"}  # `make bench-gpu`, `make first-gpu`
        # The first wants NVIDIA's tools, which few have, the next two checkpoints, and the last packages from PyPI.
        on_request = {"bench.gpu_instructions", "bench.features", "bench.quantized", "bench.public_models"}
        apart = {"bench.__main__", *on_request, *on_devices}
        assert modules - apart - set(names) == ({"bench.report"} if quick else set())
    page = "".join(path.read_text() for path in (*report.PAGES, ROOT / "bench/sections.py"))
    for name in report.PLACES:
        assert re.search(f"<!-- begin {name}\\b", page), name
        assert f"<!-- end {name} -->" in page
    for name in pictures.PICTURES:
        assert f"images/{name}.png)" in page


def test_the_rate_below_which_compressing_pays_is_where_sending_either_takes_as_long():
    from bench.costs import break_even
    from bench.front_page import Total

    for total in (Total(2, 1, 1), Total(1.25, 4, 8), Total(5, 0.5, 3)):
        rate = break_even(total)
        compressed = 1 / total.encode + 1 / total.ratio / rate + 1 / total.decode
        assert abs(compressed - 1 / rate) < 1e-9


def test_the_table_of_smaller_peers_counts_fast_enough_levels_only(tmp_path):
    from bench import sections, targets

    def row(step: int, codec: str, size: int, qualifies: int, group: str = "parameters") -> dict[str, object]:
        fixed = {"model": "cnn", "dtype": "float32", "original_bytes": 1000}
        return {**fixed, "step": step, "group": group, "codec": codec, "compressed_bytes": size, "qualifies": qualifies}

    csv_tables.write_named(
        tmp_path / "levels.csv",
        [
            row(1, "gcodec", 500, 1),
            row(1, "slow", 400, 0),
            row(1, "fast", 510, 1),
            row(2, "gcodec", 501, 1),
            row(2, "slow", 400, 0),
            row(2, "fast", 500, 1),
            row(3, "gcodec", 550, 1, "state"),
            row(3, "slow", 400, 0, "state"),
            row(3, "fast", 500, 1, "state"),
        ],
    )
    results = list(sections.contests(tmp_path))
    assert [contest.codec for contest in results] == ["fast"] * 3
    assert [round(contest.margin, 2) for contest in results] == [-1.96, 0.2, 10]
    found = "A peer is smaller on 2 of 3 dumps, all of parameters and state, by 10.00 % at most."
    assert sections.levels_ahead(tmp_path) == [found]
    assert targets.targets(tmp_path)[2].endswith("| 1 of 3 dumps smaller, 1 of parameters tied, 1 not |")


@pytest.mark.parametrize("row", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_a_row_with_other_columns_than_the_first_is_refused(row, tmp_path):
    with pytest.raises(ValueError, match=r"x\.csv: a row has the columns .*, and the first a, b"):
        csv_tables.write_named(tmp_path / "x.csv", [{"a": 1, "b": 2}, {"b": 2, "a": 1}, row])
    with pytest.raises(ValueError, match=r"x\.csv: a row of . cells for 4 columns"):
        csv_tables.write_table(tmp_path / "x.csv", "abcd", [[1, 2, 3, 4], list(row)])
