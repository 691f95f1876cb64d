"""Links and empty folders in a folder to be archived."""

from __future__ import annotations

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
