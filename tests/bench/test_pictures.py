"""Pictures in docs/images say which rows they were drawn from, and were drawn from those that are committed."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

from bench import pictures
from bench.codec import RESULTS
from bench.experiments import gcomp_pictures
from bench.experiments.gcomp_pictures import FROM_DUMPS
from bench.experiments.minilm import pictures as minilm_pictures
from gcodec.benchmark.csv_tables import read_table

#: Pictures that no table is behind: a page in a browser, and distributions in recorded gradients.
STARTS = (gcomp_pictures.START, minilm_pictures.START)
WITHOUT_TABLES = {"report", *(f"{start}{name}" for start in STARTS for name in FROM_DUMPS)}


def test_every_picture_was_drawn_from_the_committed_tables():
    assert not pictures.stale(RESULTS, pictures.IMAGES), "run make pictures"


def test_every_picture_has_its_tables():
    assert pictures.possible(RESULTS) == list(pictures.PICTURES)
    assert {path.stem for path in pictures.IMAGES.glob("*.png")} == {*pictures.PICTURES, *WITHOUT_TABLES}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one table, and the picture drawn from it."""
    (tmp_path / "scaling.csv").write_text((RESULTS / "scaling.csv").read_text("utf-8"), "utf-8")
    pictures.draw("scaling", tmp_path, tmp_path)
    return tmp_path


def test_a_picture_is_stale_when_a_row_has_changed(folder):
    assert not pictures.stale(folder, folder)
    table, first = folder / "scaling.csv", (folder / "scaling.png").read_bytes()
    text = table.read_text("utf-8")
    table.write_text(text + text.splitlines()[-1] + "\n", "utf-8")
    assert pictures.stale(folder, folder) == ["scaling"]
    assert pictures.main(["--check", "--results", str(folder), "--out", str(folder)]) == 1
    assert (folder / "scaling.png").read_bytes() == first
    assert pictures.main(["--results", str(folder), "--out", str(folder)]) == 0
    assert pictures.main(["--check", "--results", str(folder), "--out", str(folder)]) == 0


def test_a_picture_is_not_stale_when_only_machine_and_command_have_changed(folder):
    table = folder / "scaling.csv"
    lines = table.read_text("utf-8").splitlines()
    table.write_text("\n".join(["# machine: another", *(line for line in lines if line[0] != "#"), ""]), "utf-8")
    assert not pictures.stale(folder, folder)


def test_a_picture_without_a_digest_is_stale(folder):
    Image = pytest.importorskip("PIL.Image")  # a reader that is not ours
    with Image.open(folder / "scaling.png") as image:
        assert image.text == {"Tables": f"scaling.csv {pictures.digest(folder / 'scaling.csv')}"}
        image.save(folder / "scaling.png")
    assert pictures.drawn_from(folder / "scaling.png") == {}
    assert pictures.stale(folder, folder) == ["scaling"]


def test_a_picture_cannot_be_drawn_from_a_table_that_it_does_not_name(folder):
    def function(results, path):
        read_table(results / "codec.csv")

    (folder / "codec.csv").write_text((RESULTS / "codec.csv").read_text("utf-8"), "utf-8")
    with pytest.raises(FileNotFoundError, match=r"codec\.csv"):
        pictures.draw("new", folder, folder, {"new": (function, ("scaling.csv",))})
    assert not (folder / "new.png").exists()
