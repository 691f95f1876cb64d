"""Names of files and tensors as they are printed: nothing in them moves a cursor, turns a line around or is unseen."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import Result
from gcodec.benchmark.report import Row
from gcodec.errors import printable
from tests.cli.test_safety import POSIX
from tests.support import commands
from tests.support.commands import run

folder = commands.folder

#: A character of each kind that must not reach a terminal, and how it is shown.
SHOWN = {
    "\N{RIGHT-TO-LEFT OVERRIDE}": r"\u202e",
    "\N{ZERO WIDTH SPACE}": r"\u200b",
    "\N{SOFT HYPHEN}": r"\xad",
    "\N{BYTE ORDER MARK}": r"\ufeff",
    "\N{LANGUAGE TAG}": r"\U000e0001",
    "\N{LINE SEPARATOR}": r"\u2028",
    "\N{IDEOGRAPHIC SPACE}": r"\u3000",
    "\N{NO-BREAK SPACE}": r"\xa0",
    "\x1b": r"\x1b",
    "\x9b": r"\x9b",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\x7f": r"\x7f",
    "\udcff": r"\udcff",
}
#: Commands that print names of a tensor, a file and metadata.
LINES = (
    ["-l", "a.gc"],
    ["inspect", "a.gc"],
    ["inspect", "--chunks", "a.gc"],
    ["inspect", "a.safetensors"],
    ["verify", "a.gc"],
    ["bench", "a.safetensors", "--sizes", "--peers", "none"],
)
JSON_LINES = (["-l", "a.gc", "--json"], ["inspect", "a.gc", "--json"], ["inspect", "a.safetensors", "--json"])


def write_files(odd: str) -> None:
    """Write an archive with such a name of a tensor, and a .safetensors file of it."""
    from safetensors.numpy import save_file

    name = f"a{odd}b"
    gcodec.save_file({name: np.arange(40, dtype=np.float32)}, "a.gc", metadata={name: name})
    save_file({name: np.arange(40, dtype=np.float32)}, "a.safetensors", {name: name})


@pytest.mark.parametrize("odd", SHOWN, ids=ascii)
def test_a_character_that_cannot_be_seen_is_printed_escaped(odd):
    assert printable(f"a{odd}b é日 \U0001f600") == f"a{SHOWN[odd]}b é日 \U0001f600"


@pytest.mark.parametrize("odd", ["\N{RIGHT-TO-LEFT OVERRIDE}", "\x1b[2J", "\N{LANGUAGE TAG}", "\x7f"], ids=ascii)
def test_names_of_tensors_are_printed_escaped_by_every_verb(odd, capsys):
    write_files(odd)
    for line in LINES:
        run(*line)
        printed = capsys.readouterr().out
        assert all(text.isprintable() for text in printed.split("\n")), line
        assert line[0] in ("verify", "bench") or f"a{printable(odd)}b" in printed, line
    for line in JSON_LINES:
        run(*line)
        printed = capsys.readouterr().out
        assert all(text.isprintable() for text in printed.split("\n")), line
        assert repr(f"a{odd}b") in str(json.loads(printed)), line


def test_a_folder_in_lines_to_paste_is_printed_escaped(capsys):
    for line in (["record", "--folder", "\N{RIGHT-TO-LEFT OVERRIDE}x"], ["record", "--snippet", "--folder", "\x1bx"]):
        run(*line)
        assert all(text.isprintable() for text in capsys.readouterr().out.split("\n")), line


@POSIX
def test_names_of_files_are_printed_escaped_in_results_and_errors(capsys):
    name = "\N{RIGHT-TO-LEFT OVERRIDE}ypn.x"
    Path(name).write_bytes(bytes(100))
    for line, code in (
        (["compress", name], 0),
        (["verify", f"{name}.gc"], 0),
        (["inspect", name], 1),
        (["decompress", f"{name}.gc"], 1),
        (["bench", name], 1),
        (["compress", f"no {name}"], 1),
    ):
        run(*line, code=code)
        printed = "".join(capsys.readouterr())
        assert all(text.isprintable() for text in printed.split("\n")) and r"\u202eypn.x" in printed, line


@POSIX
def test_a_table_of_a_file_whose_name_is_not_utf_8_is_written(monkeypatch):
    name = os.fsdecode(b"\xff.npy")
    np.save(name, np.arange(40, dtype=np.float32))
    monkeypatch.setattr(sys, "argv", ["gcodec", "bench", name, "two\nlines"])
    run("bench", name, "--sizes", "--peers", "none", "--csv", "table.csv")
    comments, rows = read_table(Path("table.csv"))
    assert comments[1].endswith(r" bench \udcff.npy two lines")
    assert {row["data"] for row in rows} == {r"\udcff.npy float32"}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_encoding_that_lacks_a_character_is_no_error(encoding, monkeypatch):
    write_files("日")
    for line in (*LINES, *JSON_LINES):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
        run(*line)
        printed = out.getvalue().decode(encoding)
        assert line[0] in ("verify", "bench") or r"a\u65e5b" in printed, line
        assert "--json" not in line or "a日b" in str(json.loads(printed)), line


@pytest.mark.parametrize("odd", SHOWN, ids=ascii)
def test_the_demo_shows_names_escaped(odd, capsys, monkeypatch):
    """The folder's and the models', which are names of folders, too; training and measuring are left out."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    from gcodec.demo import run as demo

    model = f"[red]a{odd}b"
    row = Row(f"{model} fp32", "lossless", "gcodec", 4000, 2000, 1000, None, None)
    findings = demo.Findings(Result([row], failures=[f"{model}: differs"]), {}, {model: 1.0}, [])
    for name, value in {"_recorded": {}, "_measure": findings, "_draw": [Path(f"{model}.png")], "_write": None}.items():
        monkeypatch.setattr(demo, name, lambda *_, value=value: value)
    run("demo", "--dumps", "dumps", "--out", f"out{odd}[red]", code=1)
    lines = capsys.readouterr().out.split("\n")
    assert all(line.isprintable() for line in lines)
    text = "".join("".join(lines).split())  # a terminal's lines are folded
    assert f"allinout{printable(odd)}[red]/" in text and f"{printable(model)}.png" in text
    assert f"FAILED:{printable(model)}:differs" in text and f"{printable(model)}fp32" in text
