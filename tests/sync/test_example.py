"""The worked example of weight sync runs, and its workers have every version."""

from __future__ import annotations

import pytest

from tests.support.exits import NO_THREADS, counting_threads
from tests.support.paths import ROOT
from tests.support.torchrun import output_under_torchrun

pytest.importorskip("torch")


def test_the_example_of_weight_sync_runs_under_torchrun(tmp_path):
    program = [str(ROOT / "examples/weight_sync.py"), str(tmp_path), "--steps", "4"]
    alike = {"MKL_CBWR": "COMPATIBLE"}  # else equal matrices may have other products elsewhere
    lines = output_under_torchrun(3, program, counting_threads(tmp_path / "site") | alike)
    assert sum(line.startswith("version ") for line in lines) == 4
    texts = dict(line.split(", bit for bit at 4 versions: ") for line in lines if line.startswith("rank "))
    assert texts.keys() == {"rank 1", "rank 2"}
    assert texts["rank 1"] == texts["rank 2"]
    assert len(list(tmp_path.glob("*.gc"))) == 4
    assert lines.count(NO_THREADS) == 3
