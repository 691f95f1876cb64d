"""Links and empty folders in a folder to be archived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gcodec.cli import main
from gcodec.errors import link_to_nowhere

LEFT_OUT = {
    "link to a folder": lambda path: path.symlink_to("full"),
    "empty folder": lambda path: path.mkdir(),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("make", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_an_archive_of_a_folder_leaves_out_has_a_line_and_exit_code_1(make, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("run/full").mkdir(parents=True)
    Path("run/full/x").write_bytes(b"x")
    make(Path("run/odd"))
    for command in (["compress", "run"], ["verify", "run.gc", "--against", "run"]):
        assert main(command) == 1, command
        assert "run/odd: " in capsys.readouterr().err, command


def test_a_link_that_cannot_be_read_is_said_to_be_one(tmp_path, monkeypatch):
    def refuse(path):
        raise FileNotFoundError(path)

    link = tmp_path / "link"
    link.symlink_to("gone")
    monkeypatch.setattr(Path, "readlink", refuse)
    assert link_to_nowhere(link) == "is a link that cannot be read"


def test_a_link_to_a_link_that_cannot_be_read_or_leads_in_a_circle_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, target in (("first", "second"), ("second", "gone"), ("a", "b/x"), ("b", "c"), ("c", "b")):
        Path(name).symlink_to(target)
    readlink = os.readlink

    def refuse(path, **options):
        if Path(path).name == "second":
            raise FileNotFoundError(2, "No such file or directory", path)
        return readlink(path, **options)

    monkeypatch.setattr(os, "readlink", refuse)
    for verb in ("compress", "decompress", "inspect", "verify", "bench", "report", "record"):
        for name, what in (
            ("first", "is a link to second, which is not there"),
            ("second", "is a link that cannot be"),
            ("a", "is a link that leads back to itself"),
            ("b", "is a link that leads back to itself"),
        ):
            assert main([verb, name]) == 1
            error = capsys.readouterr().err
            shown = f"gcodec: error: {name}: {what}"
            assert error.startswith(shown) or (verb == "report" and "no such file" in error), (verb, error)
            assert error.count("\n") == 1


def test_what_is_written_to_a_link_in_a_circle_is_an_error_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(b"x")
    Path("loop").symlink_to("loop")
    assert main(["compress", "x"]) == 0
    for words in (
        "compress x -o loop",
        "compress x -o loop/y.gc",
        "compress x -o loop/",
        "decompress x.gc -o loop",
        "decompress x.gc -o loop/",
        "decompress x.gc -o loop/y -f",
        "compress x --base loop -f",
        "series add loop x --step 1",
        "report x.gc -o loop/y",
    ):
        line = words.split()
        assert main(line) == 1, line
        error = capsys.readouterr().err
        assert error.startswith("gcodec: error: loop") and error.count("\n") == 1, (line, error)
