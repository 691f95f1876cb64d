"""The laws of ``gcodec series``: files come back byte for byte, and a command changes a folder whole or not at all."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes

from gcodec.checkpoints import Checkpointer
from gcodec.checkpoints.step_files import step_name
from tests.archive.test_files import npy, npz, torch_file
from tests.checkpoints.checkpoint_cases import state_of
from tests.cli.test_cli import names, result_of, write
from tests.support import commands
from tests.support.commands import run
from tests.support.same import assert_same

folder = commands.folder


def tensors_of(step: int) -> dict[str, np.ndarray]:
    state = state_of(step)
    return {"w": state["model"]["w"], "m": state["optimizer"]["state"][0]["exp_avg"], "ids": state["ids"]}


def torch_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    torch = pytest.importorskip("torch")
    return torch_file({"step": 7, "model": {name: torch.from_numpy(array) for name, array in tensors.items()}})


KINDS: dict[str, Any] = {
    "safetensors": safetensors_bytes,
    "npz": npz,
    "pt": torch_bytes,
    "npy": lambda tensors: npy(tensors["w"]),
    "bin": lambda tensors: tensors["w"].tobytes(),
}


def files_of(suffix: str, n_steps: int = 5) -> dict[str, bytes]:
    return {f"run/step-{100 * n}.{suffix}": KINDS[suffix](tensors_of(n)) for n in range(n_steps)}


def added(suffix: str = "safetensors", n_steps: int = 5) -> dict[str, bytes]:
    """Write files, and add them to the series ``s``."""
    files = files_of(suffix, n_steps)
    write(files)
    run("series", "add", "s", *files, "--full-every", 3, "-q")
    return files


@pytest.mark.parametrize("suffix", KINDS)
def test_files_come_back_byte_for_byte(suffix, capsys):
    files = added(suffix)
    rows = result_of(capsys, "series", "list", "s")
    assert [row["step"] for row in rows] == [0, 100, 200, 300, 400]
    assert [row["base"] for row in rows] == ([None] * 5 if suffix == "bin" else [None, 0, 100, None, 300])
    assert [row["bytes"] for row in rows] == [len(data) for data in files.values()]
    run("series", "restore", "s", *range(0, 500, 100), "-o", "out/")
    assert {f"run/{path.name}": path.read_bytes() for path in Path("out").iterdir()} == files
    run("series", "delete", "s", 0, 300)
    assert Checkpointer("s").steps() == [100, 200, 400]
    run("series", "verify", "s")
    run("series", "restore", "s")
    assert Path(f"step-400.{suffix}").read_bytes() == files[f"run/step-400.{suffix}"]


def test_files_of_torch_are_loaded_as_torch_loads_them():
    torch = pytest.importorskip("torch")
    files = added("pt", 3)
    for step in (0, 100, 200):
        expected = torch.load(io.BytesIO(files[f"run/step-{step}.pt"]), weights_only=True)
        assert_same(Checkpointer("s").load(step), expected)
    assert isinstance(Checkpointer("s").load(like="numpy")["model/w"], np.ndarray)


def test_files_of_arrays_are_loaded_as_dictionaries():
    added(n_steps=2)
    assert_same(Checkpointer("s").load(), {name: tensors_of(1)[name] for name in sorted(tensors_of(1))})


def test_a_saved_state_is_restored_as_a_safetensors_file(capsys):
    Checkpointer("s").save(5, state_of(5))
    run("series", "restore", "s", 5)
    run("inspect", "step-00000005.safetensors")
    assert "optimizer/state/0/exp_avg" in capsys.readouterr().out


def test_inputs_are_removed_on_demand_only_and_keep_their_permissions():
    write(files_of("npz", 2))
    Path("run/step-0.npz").chmod(0o640)
    run("series", "add", "s", "run/step-0.npz")
    assert Path("run/step-0.npz").exists() and stat.S_IMODE(Path("s", step_name(0)).stat().st_mode) == 0o640
    run("series", "add", "s", "run/step-100.npz", "--rm")
    assert names() == ["run/step-0.npz", "s/.lock", f"s/{step_name(0)}", f"s/{step_name(100)}"]


def test_prune_and_delete_say_what_they_did(capsys):
    added()
    done = result_of(capsys, "series", "prune", "s", "--keep-last", 1, "--keep-every", 200)
    assert done["deleted"] == [100, 300] and done["coded_anew"] == [200, 400]
    assert result_of(capsys, "series", "delete", "s", 200)["deleted"] == [200]
    run("series", "prune", "s", "--keep-last", 9)
    run("series", "list", "s")
    printed = capsys.readouterr().out
    assert "deleted 0" in printed and "whole" in printed and "2 steps" in printed


def test_steps_are_the_last_numbers_of_names_or_given(capsys):
    write({"model-7b-step0012.npy": npy(np.ones(9)), "last.npy": npy(np.zeros(9))})
    run("series", "add", "s", "model-7b-step0012.npy")
    run("series", "add", "s", "last.npy", "--step", 30)
    assert [row["step"] for row in result_of(capsys, "series", "list", "s")] == [12, 30]
    run("series", "add", "s", "last.npy", code=2)
    assert "give --step" in capsys.readouterr().err


def test_the_numbers_of_a_shard_are_no_steps(capsys):
    for shard in ("model-00001-of-00003.npy", "pytorch_model_2_of_3.npy"):
        write({shard: npy(np.ones(3))})
        run("series", "add", "s", shard, code=2)
        assert "is one of several shards" in capsys.readouterr().err
    write({"model-00001-of-00003-step-500.npy": npy(np.ones(3))})
    run("series", "add", "shard", "model-00001-of-00003.npy", "--step", 400)
    run("series", "add", "shard", "model-00001-of-00003-step-500.npy")
    assert Checkpointer("shard").steps() == [400, 500]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["add", "s", "run/step-0.npy"], 1),
        (["add", "s", "run/step-0.npy", "--full-every", 0], 2),
        (["add", "s", "run/step-0.npy", "run/step-100.npy", "--step", 3], 2),
        (["add", "s", "nowhere-1"], 1),
        (["add", "s", "run/step-0.npy", "run/../run/step-0.npy"], 2),
        (["add", "s", "run"], 2),
        (["restore", "s", 99], 1),
        (["add", "s", "run/step-0.npy", "--step", -1], 2),
        (["add", "run/step-0.npy", "run/step-0.npy"], 1),
        (["restore", "s", 0, 100, "-o", "file"], 2),
        (["restore", "s", "-o", "run"], 1),
        (["restore", "nowhere"], 1),
        (["restore", "s", "-o", f"s/{step_name(100)}", "-f"], 2),
        (["restore", "s", "--max-output-bytes", 5], 1),
        (["restore", "s", 0, "-o", "-", "--json"], 2),
        (["delete", "s", 7], 1),
        (["delete", "s"], 2),
        (["prune", "s"], 2),
        (["restore", "s", 0, "-f", "-o", f"s/{step_name(100)}"], 2),
        (["prune", "s", "--keep-last", 0], 2),
        (["list", "nowhere"], 1),
        (["verify", "s", 7], 1),
        ([], 2),
        (["restore", "s", "-o", f"s/{step_name(9)}"], 2),
        (["mend", "s"], 2),
        (["list", "s", "--threads", 0], 2),
    ],
)
def test_what_has_no_meaning_is_refused_and_changes_nothing(arguments, code, capsys):
    added("npy", 2)
    before = {name: Path(name).read_bytes() for name in names()}
    run("series", *arguments, code=code)
    assert len(capsys.readouterr().err.splitlines()) >= 1
    assert {name: Path(name).read_bytes() for name in names()} == before


def test_damage_is_reported_and_verification_goes_on(capsys):
    added(n_steps=4)
    path = Path("s", step_name(100))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    rows = result_of(capsys, "series", "verify", "s", code=1)
    assert [row["ok"] for row in rows] == [True, False, False, True]
    run("series", "restore", "s", 0, 200, "-o", "out/", code=1)
    assert step_name(100) in capsys.readouterr().err and not Path("out").exists()
    path.write_bytes(data[:-9])
    run("series", "list", "s", code=1)
    assert step_name(100) in capsys.readouterr().err
    run("series", "delete", "s", 0, code=1)
    assert "nothing was removed" in capsys.readouterr().err
    for step, options in ((140, []), (141, ["-q"]), (142, ["-q", "--rm"])):
        if step > 140:
            Path("s", step_name(step - 1)).write_bytes(data[:-9])
        run("series", "add", "s", "run/step-200.safetensors", "--step", step, *options, code=1)
        printed = capsys.readouterr()
        assert f"gcodec: error: s/{step_name(step)}: is saved whole, for step " in printed.err
        assert printed.err.count("\n") == 1 and ("whole" in printed.out) is not bool(options)
    assert not Path("run/step-200.safetensors").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs descriptors as on Unix")
def test_a_step_goes_to_standard_output(capfdbinary):
    files = added("npz", 2)
    capfdbinary.readouterr()
    run("series", "restore", "s", 100, "-o", "-")
    assert capfdbinary.readouterr().out == files["run/step-100.npz"]
