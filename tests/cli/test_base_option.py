"""The laws of ``--base``: commands take bases of any form, name the one that is missing or wrong, and lose no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes

import gcodec
from gcodec.cli import main
from gcodec.errors import InvalidArgument
from tests.archive.base_cases import NEW, OLD, RNG, B, W, bfloat16, hash_of, later, torch_bytes
from tests.archive.test_files import npy, npz
from tests.cli.test_cli import names, result_of, write
from tests.support import commands
from tests.support.commands import run

folder = commands.folder


def test_compress_decompress_and_verify_take_a_base(capsys):
    old, new = safetensors_bytes(OLD), safetensors_bytes(NEW)
    write({"old.safetensors": old, "new.safetensors": new})
    run("compress", "new.safetensors", "-o", "alone.gc")
    [result] = result_of(capsys, "compress", "new.safetensors", "--base", "old.safetensors")
    assert result["needs_base"] and result["archive_bytes"] < 0.9 * Path("alone.gc").stat().st_size
    run("decompress", "new.safetensors.gc", "--base", "old.safetensors", "-o", "again.safetensors")
    assert Path("again.safetensors").read_bytes() == new
    run("verify", "new.safetensors.gc", "--base", "old.safetensors", "--against", "new.safetensors")
    run("decompress", "new.safetensors.gc", "--base", "old.safetensors", "--only", "w")
    assert np.array_equal(np.load("w.npy"), NEW["w"])
    before = names()
    run("decompress", "new.safetensors.gc", "-o", "x", code=1)
    message = "gcodec: error: new.safetensors.gc: new.safetensors:b: was compressed against a base, old.safetensors, "
    assert capsys.readouterr().err.startswith(message)
    for base in ("new.safetensors", "alone.gc"):
        run("decompress", "new.safetensors.gc", "--base", base, "-o", "x", code=1)
        run("decompress", "new.safetensors.gc", "--base", base, "--only", "w", "-o", "x.npy", code=1)
        run("verify", "new.safetensors.gc", "--base", base, code=1)
        assert "new.safetensors:b" in capsys.readouterr().err
    run("verify", "new.safetensors.gc", code=1)
    assert names() == before


def test_list_and_inspect_name_the_base(capsys):
    write({"old.safetensors": safetensors_bytes(OLD), "new.safetensors": safetensors_bytes(NEW)})
    run("compress", "new.safetensors", "--base", "old.safetensors", "-o", "x.gc")
    [listed] = result_of(capsys, "decompress", "--list", "x.gc")
    [inspected] = result_of(capsys, "inspect", "x.gc")
    for [file] in (listed["files"], inspected["files"]):
        assert file["base"] == {"name": "old.safetensors", "tensors": 3}
    assert {t["name"]: t.get("base") for t in listed["files"][0]["tensors"]}["w"] == hash_of(W)
    assert {s["name"]: s.get("base") for s in inspected["files"][0]["segments"]}["w"] == hash_of(W)
    for verb in (["decompress", "--list"], ["inspect"]):
        run(*verb, "x.gc")
        shown = capsys.readouterr().out
        assert "base: old.safetensors, for 3 of 5 tensors" in shown and hash_of(W) in shown
    run("compress", "new.safetensors", "-o", "y.gc")
    run("decompress", "--list", "y.gc")
    assert "base" not in capsys.readouterr().out


def test_bare_arrays_match_whatever_their_files_are_called(capsys):
    for old, new, options in (
        (npy(W), npy(NEW["w"]), []),
        (W.tobytes(), NEW["w"].tobytes(), ["--dtype", "float32"]),
        (npy(bfloat16(W)), npy(bfloat16(NEW["w"])), ["--dtype", "bfloat16"]),
        (torch_bytes(OLD), torch_bytes(NEW), []),
    ):
        write({"old": old, "new": new})
        [result] = result_of(capsys, "compress", "new", "--base", "old", *options, "-f", "-q")
        assert result["needs_base"]
        run("decompress", "new.gc", "--base", "old", "-o", "again", "-f")
        assert Path("again").read_bytes() == new


@pytest.mark.parametrize("base", ["run1", "run1.gc", "packed"])
def test_a_folder_is_compressed_against_a_folder(base, capsys):
    others, later_others = ({name: array[::-1].copy() for name, array in arrays.items()} for arrays in (OLD, NEW))
    old = {
        "a.safetensors": safetensors_bytes(OLD),
        "sub/b.npz": npz(others),
        "gone.npy": npy(B),
        "bad.npy": npy(B)[:90],
    }
    new = {
        "a.safetensors": safetensors_bytes(NEW),
        "sub/b.npz": npz(later_others),
        "more.npy": npy(B),
        "bad.npy": npy(B),
    }
    write({f"run1/{path}": data for path, data in old.items()} | {f"run2/{path}": data for path, data in new.items()})
    run("compress", "run1")
    Path("packed/sub").mkdir(parents=True)
    run("compress", "run1/a.safetensors", "-o", "packed/")
    run("compress", "run1/sub/b.npz", "-o", "packed/sub/")
    run("compress", "run2", "-o", "alone.gc")
    run("compress", "run2", "--base", base)
    assert Path("run2.gc").stat().st_size < 0.9 * Path("alone.gc").stat().st_size
    run("decompress", "run2.gc", "--base", base, "-o", "out/")
    assert all(Path("out/run2", path).read_bytes() == data for path, data in new.items())
    run("verify", "run2.gc", "--base", base, "--against", "run2")
    run("decompress", "run2.gc", "--base", "run2", "-o", "other/", code=1)
    assert "base is not the array" in capsys.readouterr().err and not Path("other").exists()
    Path("empty").mkdir()
    run("decompress", "run2.gc", "--base", "empty", "-o", "other/", code=1)
    assert "there is none for this file" in capsys.readouterr().err and not Path("other").exists()


def test_bases_that_need_bases_are_given_together(capsys):
    steps = [W, later(W), later(later(W))]
    write({f"{number}.npy": npy(array) for number, array in enumerate(steps)})
    run("compress", "0.npy")
    run("compress", "1.npy", "--base", "0.npy.gc")
    run("compress", "2.npy", "--base", "1.npy.gc", "--base", "0.npy")
    run("decompress", "2.npy.gc", "--base", "1.npy.gc", "--base", "0.npy.gc", "-o", "again.npy")
    assert Path("again.npy").read_bytes() == npy(steps[2])
    run("verify", "2.npy.gc", "--base", "1.npy.gc", code=1)
    assert "2.npy:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["new.npy", "--mantissa-bits", "5"], "--mantissa-bits"),
        (["new.npy", "--mode", "gcomp"], "--mode gcomp"),
        (["new.npy", "-o", "old.npy", "-f"], "old.npy: is needed"),
        (["new.npy", "old.npy", "--rm"], "old.npy: is needed"),
        (["new.npy", "--base", "-"], "--base must be a file"),
    ],
)
def test_lossy_modes_and_lost_bases_are_refused_on_the_command_line(options, message, capsys):
    write({"old.npy": npy(W), "new.npy": npy(NEW["w"])})
    run("compress", *options, "--base", "old.npy", code=2)
    assert message in capsys.readouterr().err and names() == ["new.npy", "old.npy"]


def test_an_unused_base_is_noted_and_rm_removes_inputs_only_when_done(capsys):
    write({"old.npy": npy(W), "new.npy": npy(NEW["w"]), "other.npy": npy(RNG.standard_normal(9).astype(np.float32))})
    run("compress", "other.npy", "--base", "old.npy")
    assert "note: other.npy: compressed without old.npy" in capsys.readouterr().err
    run("decompress", "other.npy.gc", "-f")
    run("compress", "new.npy", "--base", "old.npy", "--rm")
    assert not Path("new.npy").exists()
    assert main(["decompress", "new.npy.gc", "--base", "nowhere"]) == 1
    assert "nowhere: no such file" in capsys.readouterr().err
    run("decompress", "new.npy.gc", "--base", "old.npy", "--rm")
    assert Path("new.npy").read_bytes() == npy(NEW["w"]) and not Path("new.npy.gc").exists()


def test_a_file_that_a_folder_or_archive_of_bases_lacks_is_noted(capsys):
    write({"old/a.npy": npy(W), "old/b.npy": npy(W)})
    write({"new/a.npy": npy(NEW["w"]), "new/c.npy": npy(W), "new/t.txt": b"x"})
    run("compress", "old", "-o", "old.gc")
    for base in ("old", "old.gc"):
        capsys.readouterr()
        run("compress", "new", "--base", base, "-f")
        notes = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
        assert notes == [f"gcodec: note: new/c.npy: compressed without a base, for {base} has no file of this path"]
    assert "old has no file of this path" in gcodec.compress_file("new/c.npy", base="old").note
    assert not gcodec.compress_file("new/a.npy", base="old").note


def test_a_file_is_never_its_own_base(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    Path("new").mkdir()
    Path("old/x.npy").write_bytes(npy(W))
    Path("new/x.npy").write_bytes(npy(W))
    Path("folder").symlink_to("new")
    for base in ("new/x.npy", "new", "folder", "old/../new/x.npy"):
        for source in ("new/x.npy", "new"):
            assert main(["compress", source, "--base", base, "-o", "y.gc"]) == 1
            error = capsys.readouterr().err
            assert "x.npy: is an input, and would be its own base" in error and error.count("\n") == 1
        with pytest.raises(InvalidArgument, match="its own base"):
            gcodec.compress_file("new/x.npy", "y.gc", base=base)
    assert not Path("y.gc").exists()
    Path("new/x.npy").unlink()
    path = Path("new/x.npy")
    for link in (lambda: path.hardlink_to("old/x.npy"), lambda: path.symlink_to("../old/x.npy")):
        link()  # what stayed the same from one folder to the next: the older folder has it
        assert main(["compress", "new", "--base", "old", "-o", "z.gc", "-f"]) == 0
        assert main(["verify", "z.gc", "--base", "old"]) == 0
        Path("new/x.npy").unlink()
