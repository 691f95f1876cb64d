"""The laws of the command line on tensors that are taken out of archives: which, and into what kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file as load_safetensors
from safetensors.numpy import save_file as save_safetensors

import gcodec
from gcodec.files import ArraySource, plan_file
from gcodec.files.elements import width
from tests.archive.test_files import npy, npz, torch_file
from tests.support import commands
from tests.support.commands import run

RNG = np.random.default_rng(5)
X = RNG.standard_normal((40, 50)).astype(np.float32)

folder = commands.folder


def steps(n: int = 3) -> dict[int, dict[str, np.ndarray]]:
    """Write run/step-N.safetensors, all with the same names; returns their tensors."""
    Path("run").mkdir()
    files = {step: {"grad/w": X + step, "grad/b": X[step]} for step in range(n)}
    for step, tensors in files.items():
        save_safetensors(tensors, f"run/step-{step}.safetensors")
    run("compress", "run", "-q")
    return files


def aligned(path: str) -> bool:
    """Return True if every tensor of a .safetensors file begins at a multiple of the width of its elements."""
    source = ArraySource([np.frombuffer(Path(path).read_bytes(), np.uint8)])
    plan = plan_file(path, source)
    return all(segment.start % (width(segment.dtype or "uint8") or 1) == 0 for segment in plan.segments)


def test_a_name_in_several_files_is_an_error_that_says_what_to_type(capsys):
    files = steps()
    run("decompress", "run.gc", "--only", "grad/w", code=1)
    error = capsys.readouterr().err
    assert "3 files have a tensor 'grad/w'" in error
    one = error.split("as in --only ")[1].split(", or")[0]
    run("decompress", "run.gc", "--only", one)
    assert np.array_equal(np.load("grad.w.npy"), files[0]["grad/w"])
    every = error.split("--only '")[1].split("'")[0]
    run("decompress", "run.gc", "--only", every, "-o", "out/")
    for step, tensors in files.items():
        assert np.array_equal(np.load(f"out/run/step-{step}.safetensors/grad.w.npy"), tensors["grad/w"])


def test_folders_at_the_front_of_a_path_may_be_left_out(capsys):
    files = steps()
    run("decompress", "run.gc", "--only", "step-2.safetensors:grad/b")
    assert np.array_equal(np.load("grad.b.npy"), files[2]["grad/b"])
    run("decompress", "run.gc", "--only", "ep-2.safetensors:grad/b", code=1)
    assert "no tensor is called" in capsys.readouterr().err
    for pattern in ("step-2.safetensors:grad/*", "run/step-2.safetensors:*"):
        run("decompress", "run.gc", "--only", pattern, "-o", "two.safetensors", "-f")
        assert {name: array.tobytes() for name, array in load_safetensors("two.safetensors").items()} == {
            name: array.tobytes() for name, array in files[2].items()
        }
    run("decompress", "run.gc", "--only", "ep-2.safetensors:*", "-o", "three.safetensors", code=1)
    assert "no tensor matches" in capsys.readouterr().err


def test_a_pattern_that_names_of_tensors_fit_does_not_stand_for_files():
    save_safetensors({"model.w": X, "model.b": X, "lm_head.w": X}, "model.safetensors")
    run("compress", "model.safetensors")
    run("decompress", "model.safetensors.gc", "--only", "model.*", "-o", "body.safetensors")
    assert load_safetensors("body.safetensors").keys() == {"model.w", "model.b"}
    run("decompress", "model.safetensors.gc", "--only", "model.safetensors:*", "-o", "all.safetensors")
    assert load_safetensors("all.safetensors").keys() == {"model.w", "model.b", "lm_head.w"}


def test_several_tensors_go_into_one_safetensors_file():
    files = steps()
    run("decompress", "run.gc", "--only", "run/step-1.safetensors:*", "-o", "one.safetensors")
    assert {name: array.tobytes() for name, array in load_safetensors("one.safetensors").items()} == {
        name: array.tobytes() for name, array in files[1].items()
    }
    run("decompress", "run.gc", "--only", "*/w", "-o", "w.safetensors")
    assert load_safetensors("w.safetensors").keys() == {f"run/step-{step}.safetensors:grad/w" for step in files}
    run("decompress", "run.gc", "-o", "all.safetensors")
    assert len(load_safetensors("all.safetensors")) == 6


def test_other_kinds_of_files_become_safetensors_files_if_the_output_is_called_so(capsys):
    turned, mask = np.asfortranarray(X.astype(np.float64)), np.array([True, False])
    arrays: dict[str, np.ndarray] = {"x": X, "n": np.arange(5), "f": turned, "b": mask}
    Path("a.npz").write_bytes(npz(arrays))
    run("compress", "a.npz")
    run("decompress", "a.npz.gc", "-o", "a.safetensors")
    assert "holds 4 tensors; what else was in the npz file is left out" in capsys.readouterr().err
    loaded = load_safetensors("a.safetensors")
    assert loaded.keys() == arrays.keys() and aligned("a.safetensors")
    assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())
    run("decompress", "a.npz.gc", "-o", "a.safetensors", code=1)
    assert "exists already" in capsys.readouterr().err
    run("decompress", "a.npz.gc", "-o", "b.safetensors", "--rm", code=2)
    assert Path("a.npz.gc").exists() and not Path("b.safetensors").exists()


def test_a_torch_file_becomes_a_safetensors_file_that_torch_loads(capsys):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    weight = torch.arange(12.0).reshape(3, 4)
    state = {"w": weight, "tied": weight, "t": weight.t(), "h": weight.bfloat16(), "step": 7}
    Path("m.pt").write_bytes(torch_file({"model": state, "n": torch.tensor(3)}))
    run("compress", "m.pt")
    run("decompress", "m.pt.gc", "-o", "m.safetensors")
    loaded = load_file("m.safetensors")
    assert loaded.keys() == {"model/w", "model/tied", "model/t", "model/h", "n"} and aligned("m.safetensors")
    assert all(torch.equal(loaded[f"model/{name}"], state[name]) for name in ("w", "tied", "t", "h"))
    assert loaded["model/h"].dtype == torch.bfloat16
    with safe_open("m.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    capsys.readouterr()
    run("decompress", "--list", "m.pt.gc", "--json")
    [listed] = json.loads(capsys.readouterr().out)
    tensors = {tensor["name"]: tensor for tensor in listed["files"][0]["tensors"]}
    assert sum(tensor["stored_bytes"] for tensor in tensors.values()) <= listed["bytes"]
    assert [tensors[f"model/{name}"].get("shares") for name in ("w", "tied", "t")] == [None, "model/w", "model/w"]
    run("decompress", "--list", "m.pt.gc")
    assert "in model/w" in capsys.readouterr().out


def test_what_safetensors_cannot_hold_is_an_error_and_leaves_no_file(capsys):
    Path("c.npy").write_bytes(npy(X.astype(np.complex128)))
    Path("notes.txt").write_bytes(b"none")
    run("compress", "c.npy", "notes.txt", "-o", "both.gc")
    run("decompress", "both.gc", "-o", "c.safetensors", code=1)
    assert "c.npy:c: .safetensors cannot hold values of type complex128" in capsys.readouterr().err
    run("compress", "notes.txt")
    run("decompress", "notes.txt.gc", "-o", "c.safetensors", code=1)
    assert "holds no tensors" in capsys.readouterr().err
    assert not list(Path().glob("*safetensors*"))


def test_a_safetensors_file_comes_back_as_it_was_under_any_such_name():
    save_safetensors({"b": X, "a": X[0]}, "x.safetensors", metadata={"note": "mine", "format": "np"})
    run("compress", "x.safetensors")
    run("decompress", "x.safetensors.gc", "-o", "y.safetensors")
    assert Path("y.safetensors").read_bytes() == Path("x.safetensors").read_bytes()


def test_outputs_in_missing_folders_name_the_folder_and_make_none(capsys):
    steps(1)
    for options in ([], ["--only", "grad/w"]):
        for target in ("missing/x.safetensors", "missing/x.npy"):
            if options or target.endswith("safetensors"):
                run("decompress", "run.gc", *options, "-o", target, code=1)
                assert capsys.readouterr().err.startswith("gcodec: error: missing: ")
    Path("a.npy").write_bytes(npy(X))
    run("compress", "a.npy")
    run("decompress", "a.npy.gc", "-o", "missing/b.npy", code=1)
    assert capsys.readouterr().err.startswith("gcodec: error: missing: ") and not Path("missing").exists()


def trainer_folder() -> dict[str, bytes]:
    """Write a folder as trainers do, and its archive, run.gc; returns what the files hold."""
    files = {
        f"run/checkpoint-{step}/{name}": data
        for step in (5, 10)
        for name, data in (
            ("w.npy", npy(X + step)),
            ("tokenizer.json", b"{}" * 50),
            ("state.json", f"step {step}".encode() * 20),
        )
    }
    files["run/readme"] = b"a run"
    for path, data in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    run("compress", "run", "-q")
    return files


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        (["readme"], ["run/readme"]),
        (["run/checkpoint-5/state.json"], ["run/checkpoint-5/state.json"]),
        (["checkpoint-10/w.npy"], ["run/checkpoint-10/w.npy"]),
        (["*/tokenizer.json"], ["run/checkpoint-5/tokenizer.json", "run/checkpoint-10/tokenizer.json"]),
        (
            ["checkpoint-10/*.json", "readme"],
            ["run/readme", "run/checkpoint-10/tokenizer.json", "run/checkpoint-10/state.json"],
        ),
        (["checkpoint-5/"], [f"run/checkpoint-5/{name}" for name in ("w.npy", "tokenizer.json", "state.json")]),
        (["run/"], None),
    ],
)
def test_files_and_folders_of_an_archive_are_restored_alone(names, paths, capsys):
    files = trainer_folder()
    run("decompress", "run.gc", *(word for name in names for word in ("--only", name)), "-o", "back/", "--json")
    wanted = {f"back/{path}": files[path] for path in (files if paths is None else paths)}
    (row,) = json.loads(capsys.readouterr().out)
    assert {str(path): path.read_bytes() for path in Path("back").rglob("*") if path.is_file()} == wanted
    assert (sorted(row["files"]), row["bytes"]) == (sorted(wanted), sum(map(len, wanted.values())))


def test_one_file_of_several_goes_to_any_name_or_to_standard_output(capfdbinary):
    files = trainer_folder()
    run("decompress", "run.gc", "--only", "readme", "-o", "other", "-q")
    assert Path("other").read_bytes() == files["run/readme"]
    run("decompress", "run.gc", "--only", "checkpoint-5/w.npy", "-o", "-")
    assert capfdbinary.readouterr().out == files["run/checkpoint-5/w.npy"]
    run("decompress", "run.gc", "--only", "checkpoint-5/w.npy", "-o", "w.safetensors", "-q")
    assert np.array_equal(load_safetensors("w.safetensors")["w"], X + 5)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["state.json"], "2 files are called 'state.json': say which, as in --only run/checkpoint-"),
        (["nothing/"], "no tensor is called 'nothing/', and no file"),
        (["redme"], "did you mean readme?"),
        (["readme", "checkpoint-5/w.npy:w"], "must name tensors or files, not both: checkpoint-5/w.npy:w is no file"),
    ],
)
def test_names_of_no_file_of_several_and_of_files_among_tensors_are_refused(names, message, capsys):
    trainer_folder()
    options = [word for name in names for word in ("--only", name)]
    run("decompress", "run.gc", *options, "-o", "back/", code=2 if len(names) > 1 else 1)
    assert message in capsys.readouterr().err and not Path("back").exists()


@pytest.mark.parametrize("letter", ["x", "é", "日", "\U0001f600"])
def test_names_that_are_too_long_for_a_file_are_cut_by_bytes_and_stay_apart(letter, capsys):
    start = letter * (300 // len(letter.encode()))
    tensors = {name: X + number for number, name in enumerate((start, start + "a", start + "b"))}
    gcodec.save_file(tensors, "a.gc")
    run("decompress", "a.gc", "--only", "*", "-o", "out/", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == set(tensors) and len({row["output"] for row in rows}) == 3
    for row in rows:
        name = Path(row["output"]).name
        assert len(name.encode()) < 240 and name.startswith(letter * (150 // len(letter.encode())))
        assert np.array_equal(np.load(row["output"]), tensors[row["name"]])
    run("decompress", "a.gc", "--only", start + "b", "-o", "out/", "-f")  # the same name, whatever else is taken out
    assert len(list(Path("out").iterdir())) == 3


def test_no_tensor_is_left_out_where_the_name_of_one_is_the_file_and_name_of_another(folder, capsys):
    for path, tensors in {"in/x": ("a:b", "w"), "in/x:a": ("b",), "in/y": ("x:a", "w"), "in/z": ("in/y:w",)}.items():
        Path("in").mkdir(exist_ok=True)
        save_safetensors({name: X[:2] + len(path + name) for name in tensors}, path)
    run("compress", "in", "-o", "all.gc")
    for names in (None, ["*"], ["a?b", "[b]"]):
        with pytest.raises(gcodec.InvalidArgument, match=r"two tensors would be called 'in/(x:a:b|y:w)', '.*' in 'in/"):
            gcodec.load_file("all.gc", names=names)
    with gcodec.open("all.gc") as file, pytest.raises(gcodec.InvalidArgument, match="two tensors would be called"):
        file.keys()
    assert list(gcodec.load_file("all.gc", names=["b", "y:*"])) == ["b", "in/y:w", "in/y:x:a"]
    run("decompress", "all.gc", "-o", "all.safetensors", code=1)
    assert "two tensors would be called 'in/y:w' in one .safetensors file" in capsys.readouterr().err
    assert not Path("all.safetensors").exists()
    run("decompress", "all.gc", "--only", "a:b", "--only", "b", "-o", "some.safetensors")
    assert sorted(load_safetensors("some.safetensors")) == ["a:b", "b"]


def test_a_file_whose_name_has_signs_of_patterns_is_found_without_its_folders(folder):
    Path("in/deep").mkdir(parents=True)
    save_safetensors({"w[0]": X, "w": X + 1}, "in/deep/a[1].x")
    save_safetensors({"w0": X + 2}, "in/deep/a1.x")
    run("compress", "in", "-o", "all.gc")
    for asked in ("a[1].x:w[0]", "deep/a[1].x:w[0]", "in/deep/a[1].x:w[0]"):
        (value,) = gcodec.load_file("all.gc", names=asked).values()
        run("decompress", "all.gc", "--only", asked, "-o", "x.npy", "-f")
        assert np.array_equal(value, X) and np.array_equal(np.load("x.npy"), X)
