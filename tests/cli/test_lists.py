"""The laws of lists: they fit their line, names stay apart, numbers stay whole, and many files end in a sum."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

import gcodec
from gcodec.cli import display
from tests.support import commands
from tests.support.commands import run

X = np.random.default_rng(3).standard_normal((16, 40)).astype(np.float32)
LAYERS = [f"model.layers.{n}.self_attention.query_key_value_projection.weight" for n in (1, 2, 11)]

folder = commands.folder


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have lists as wide as without a terminal, wherever the tests run."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)


@pytest.fixture
def archives() -> list[str]:
    Path("run").mkdir()
    for n in range(3):
        gcodec.save_file(dict.fromkeys(LAYERS, X * (n + 1)) | {"\u5c42" * 60: X + n}, f"run/{'of-a-run-' * 9}{n}.gc")
        np.save(f"run/{'of-a-run-' * 9}{n}.npy", X)
    run("compress", *sorted(map(str, Path("run").glob("*.npy"))), "-o", "run/all.gc", "-q")
    return sorted(map(str, Path("run").glob("*.gc")))


@pytest.mark.parametrize("command", [["-l"], ["decompress", "--list"], ["inspect"], ["inspect", "--chunks"]])
@pytest.mark.parametrize("width", [None, 84, 100, 150])
def test_lists_fit_their_line_and_end_in_a_sum(command, width, archives, monkeypatch, capsys):
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    run(*command, *archives)
    lines = capsys.readouterr().out.splitlines()
    if width is None:  # in a pipe or a file, where programs look for whole names, nothing is cut
        assert not any("..." in line for line in lines)
        assert all(any(line.split()[:1] == [name] and len(line.split()) > 4 for line in lines) for name in LAYERS)
    elif "--chunks" not in command:
        assert max(map(cell_len, lines)) <= width
    run("inspect", *archives, "--json")
    found = json.loads(capsys.readouterr().out)
    before = sum(file["bytes"] for archive in found for file in archive["files"])
    after = sum(Path(name).stat().st_size for name in archives)
    assert lines[-1] == (
        f"total: 4 archives, 6 files, {display.size(before)} -> {display.size(after)}, ratio {before / after:.3f}"
    )
    run(*command, archives[-1])
    assert "total" not in capsys.readouterr().out


def test_a_sum_tells_kinds_apart(archives, capsys):
    Path("x.frame").write_bytes(gcodec.encode(X))
    run("inspect", "x.frame", archives[0], *sorted(Path("run").glob("*.npy")))
    last = capsys.readouterr().out.splitlines()[-1]
    n_bytes = sum(path.stat().st_size for path in Path("run").glob("*.npy"))
    assert last.startswith("total: 1 archive, ") and "; 1 frame, " in last
    assert last.endswith(f"; 3 tensor files, {display.size(n_bytes)}, not compressed")


def test_verify_ends_in_how_many_are_good(archives, capsys):
    run("verify", *archives)
    assert capsys.readouterr().out.splitlines()[-1].startswith("total: 4 archives, 4 good with ")
    data = bytearray(Path(archives[1]).read_bytes())
    data[len(data) // 2] ^= 1
    Path(archives[1]).write_bytes(data)
    run("verify", *archives, code=1)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("total: 4 archives, 3 good with ") and last.endswith(", 1 bad")
    for silent in (["-q", *archives], [archives[0]]):
        run("verify", *silent, code="-q" in silent)
        assert "total" not in capsys.readouterr().out


@pytest.mark.parametrize("width", [30, 60, 100, 200])
def test_a_table_loses_no_number_and_mixes_up_no_names(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [(name, "float32", f"as {name}", "123.45 MB", str(n)) for n, name in enumerate(LAYERS)]
    display.print_table(("tensor", "dtype", "mode", ">size", ">n"), rows, indent=2)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert printed.count("123.45 MB") == len(rows) and printed.count("float32") == len(rows)
    if width >= 60:
        assert max(map(len, lines)) <= width
        assert len({line.split()[0] for line in lines if "model" in line.split()[0]}) == len(rows)
    if width == 200:
        assert all(name in printed for name in LAYERS) and len(lines) == 1 + len(rows)


@pytest.mark.parametrize("text", ["", "abc", "a" * 50, "\u5c42" * 30, "x\u5c42" * 20])
@pytest.mark.parametrize("width", [5, 10, 11, 40, 70])
def test_a_text_is_cut_to_its_width_in_the_middle(text, width):
    cut = display.cut_middle(text, width)
    assert cell_len(cut) <= width or cell_len(text) <= width
    if cell_len(text) <= width:
        assert cut == text
    else:
        start, end = cut.split("...")
        assert text.startswith(start.rstrip()) and text.endswith(end.lstrip())
