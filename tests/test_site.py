"""What the site is made of: every page is in its contents, every public name in its reference."""

from __future__ import annotations

import pytest

import gcodec
from tests.support.paths import ROOT

pytest.importorskip("torch")

from tools import site


def test_every_page_is_in_the_contents_once():
    files = [page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    listed = ["index", *(page for pages in site.PAGES.values() for page in pages)]
    assert sorted(listed) == sorted([*files, *site.ROOT_PAGES])


def test_every_public_name_is_in_the_reference():
    names = [name for names in site.REFERENCE.values() for name in names.split()]
    assert len(set(names)) == len(names)
    assert {f"gcodec.{name}" for name in [*gcodec.__all__, "open"]} <= set(names)


def test_pages_of_the_reference_name_what_there_is(tmp_path):
    site.stage(tmp_path / "sources")
    pages = {page.stem: page.read_text() for page in (tmp_path / "sources/reference").iterdir()}
    assert set(pages) == {title.lower().replace(" ", "-") for title in site.REFERENCE}
    assert ".. autoexception:: gcodec.Corruption" in pages["errors"]
    assert ".. autofunction:: gcodec.encode\n" in pages["arrays"]
    assert ".. autoclass:: gcodec.Encoder\n" in pages["arrays"]


def test_links_to_files_outside_of_the_site_become_text(tmp_path):
    site.stage(tmp_path / "sources")
    for page in (tmp_path / "sources").rglob("*.md"):
        assert "](../bench/" not in page.read_text()
        assert "](docs/" not in page.read_text()
