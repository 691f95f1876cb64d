"""What errors and guides suggest can be pasted into a shell, whatever characters names have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import gcodec
from tests.archive.test_files import npz
from tests.support import commands
from tests.support.commands import run

X = np.arange(600, dtype=np.float32).reshape(20, 30)
NAMES = ["plain", "a b", "it's", "$HOME; ls", "x[1]*?", "\u00fc & co", "`id`", '"q"', "~x", "#1"]

folder = commands.folder


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_was_meant_can_be_pasted(name, capsys):
    gcodec.save_file({f"{name}.weight": X}, "x.gc")
    run("decompress", "x.gc", "--only", f"{name}.wieght", "-o", "a/", code=1)
    [meant] = re.findall(r"; did you mean (.*)\?\n", capsys.readouterr().err)
    assert shlex.split(meant) == [f"{name}.weight"]
    run(*shlex.split(f"decompress x.gc --only {meant} -o a/"))
    Path(f"{name} weights.npy").write_bytes(next(Path("a").iterdir()).read_bytes())
    capsys.readouterr()
    run(f"./{name} wieghts.npy", code=1)
    [meant] = re.findall(r"; did you mean (.*)\?\n", capsys.readouterr().err)
    assert shlex.split(meant) == [f"{name} weights.npy"]
    run(*shlex.split(meant))
    assert Path(f"{name} weights.npy.gc").exists()


@pytest.mark.parametrize("name", NAMES)
def test_options_that_choose_among_files_can_be_pasted(name, capsys):
    for part in ("one", "two"):
        Path(f"run {name}", part).mkdir(parents=True)
        Path(f"run {name}/{part}/{name}.npz").write_bytes(npz({name: X + len(part)}))
    run("compress", f"run {name}", "-o", "all.gc", "-q")
    for meant in (name, f"{name}.npz"):
        run("decompress", "all.gc", f"--only={meant}", code=1)
        said = capsys.readouterr().err.partition("say which, as in ")[2]
        one, all_of_them = said.split(", or take them all with ")
        for root, options, count in (("one", one, 1), ("all", all_of_them.partition(" -o ")[0], 2)):
            run(*shlex.split(f"decompress all.gc {options} -q"), "-o", f"{root} of {meant}/")
            assert len([path for path in Path(f"{root} of {meant}").rglob("*") if path.is_file()]) == count


@pytest.mark.parametrize("name", [*NAMES, "-x", "a\\b"])
def test_commands_on_a_folder_of_dumps_can_be_pasted(name, capsys):
    run("record", f"--folder={name}")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    gcodec")]
    assert len(lines) == 4 and len({line.rindex("  ") for line in lines}) == 1
    for line in lines:
        words = shlex.split(line.rsplit("  ", 1)[0])
        assert Path(words[2]) in (Path(name), Path(name, "*.safetensors"), Path(name, "*.gc")) and words[2][0] != "-"
