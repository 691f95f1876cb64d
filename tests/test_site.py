"""What the site is made of: every page is in its contents, every public name in its reference."""

from __future__ import annotations

import numpy as np
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


def test_a_dark_twin_has_the_hues_of_its_picture_on_dark_ground(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    colors = np.array([[[1, 1, 1], [0, 0, 0], [0, 0.447, 0.698], [0.835, 0.369, 0]]])
    image.imsave(tmp_path / "x.png", colors)
    site.darken(tmp_path / "x.png", tmp_path / "x-dark.png")
    [white, black, blue, red] = image.imread(tmp_path / "x-dark.png")[0, :, :3]
    assert white.max() < 0.1 and black.min() > 0.99
    assert blue.argmax() == 2 and blue.argmin() == 0 and red.argmax() == 0 and red.argmin() == 2
    site.darken(tmp_path / "x-dark.png", tmp_path / "again.png")
    assert np.allclose(image.imread(tmp_path / "again.png")[0, 2:, :3].argsort(), colors[0, 2:].argsort())


def test_pages_show_a_drawn_picture_by_theme_and_others_as_they_are(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    (tmp_path / "images").mkdir()
    (tmp_path / "deep").mkdir()
    for name in ("drawn", "report"):
        image.imsave(tmp_path / "images" / f"{name}.png", np.ones((2, 2, 3)))
    (tmp_path / "deep/page.md").write_text("![a b](../images/drawn.png)\n\n![c](../images/report.png)\n")
    (tmp_path / "other.md").write_text("see ![a b](images/drawn.png) here\n")
    site.add_dark_twins(tmp_path)
    page = (tmp_path / "deep/page.md").read_text()
    for theme, file in (("light", "drawn"), ("dark", "drawn-dark")):
        assert f"```{{image}} ../images/{file}.png\n:alt: a b\n:class: only-{theme}\n```" in page
    assert page.endswith("![c](../images/report.png)\n")
    assert (tmp_path / "other.md").read_text() == "see ![a b](images/drawn.png) here\n"


def test_tables_are_legible_on_a_telephone(tmp_path):
    site.stage(tmp_path / "sources")
    style = (tmp_path / "sources/_static/site.css").read_text()
    assert site.SETTINGS["html_css_files"] == ["site.css"] and "min-width: 7em" in style
