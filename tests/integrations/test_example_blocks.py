"""The examples on the pages of integrations run as printed, where what they import is installed."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.support.paths import ROOT

PAGES = [ROOT / "docs" / "zarr.md", *sorted((ROOT / "docs" / "integrations").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMPORTED = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


@pytest.mark.filterwarnings("ignore")  # Lightning and transformers give advice by warnings, torch about one process
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    missing = {name for block in blocks for name in IMPORTED.findall(block) if importlib.util.find_spec(name) is None}
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
