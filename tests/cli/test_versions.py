"""The laws of the remark on files that are versions of each other: it is made where that would save something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support import commands
from tests.support.commands import run

folder = commands.folder
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((200, 300)).astype(np.float32)
#: Weights of a later step: one in 50 has changed.
LATER = np.where(RNG.random(WEIGHTS.shape) < 0.02, WEIGHTS * np.float32(1.01), WEIGHTS)


def save(path: str, weights: np.ndarray, **others: np.ndarray) -> None:
    """Write a file of tensors, in a folder that need not be there."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weights, "bias": weights[0].copy(), **others}, path)


def remark(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command says beside its results."""
    run("compress", "-f", *arguments)
    return capsys.readouterr().err


def test_two_versions_are_named_in_their_order_with_what_would_be_saved(capsys):
    save("step-9.safetensors", WEIGHTS)
    save("step-10.safetensors", LATER)
    for how, *arguments in (
        ["gcodec series add", "step-10.safetensors", "step-9.safetensors"],
        ["--auto-base", "step-10.safetensors", "step-9.safetensors", "-o", "x.gc"],
    ):
        said = remark(capsys, *arguments)
        assert (
            "step-10.safetensors has the tensors of step-9.safetensors: as a difference it would take about 9" in said
        )
        assert how in said


def test_versions_of_one_name_in_several_folders_are_counted(capsys):
    for step in range(3):
        save(f"run/checkpoint-{step}/model.safetensors", np.where(RNG.random(WEIGHTS.shape) < 0.02, LATER, WEIGHTS))
    said = remark(capsys, "run", "-o", "x.gc")
    assert "3 files have the same tensors" in said and "(--auto-base)" in said


@pytest.mark.parametrize("arguments", [["-q"], ["--json"], ["--rm"], ["--mantissa-bits", "7"]])
def test_nothing_is_said_where_nothing_is_asked(arguments, capsys):
    for step, weights in enumerate((WEIGHTS, LATER)):
        save(f"{step}.safetensors", weights)
    assert "the tensors of" not in remark(capsys, "0.safetensors", "1.safetensors", *arguments)


@pytest.mark.parametrize(
    ("other", "more"),
    [
        (RNG.standard_normal(WEIGHTS.shape).astype(np.float32), {}),
        (LATER[:100].copy(), {}),
        (LATER, {"more": np.ones(3, np.float32)}),
        (LATER.astype(np.float64), {}),
    ],
    ids=["other values", "another shape", "one more", "another type"],
)
def test_files_that_are_no_versions_of_each_other_are_left_alone(other, more, capsys):
    save("a.safetensors", WEIGHTS)
    save("b.safetensors", other, **more)
    assert "the tensors of" not in remark(capsys, "a.safetensors", "b.safetensors")


def test_equal_files_are_stored_once_in_one_archive_and_worth_a_remark_in_two(capsys):
    for name in "ab":
        save(f"{name}.safetensors", WEIGHTS)
    assert "the tensors of" not in remark(capsys, "a.safetensors", "b.safetensors", "-o", "x.gc")
    assert "b.safetensors has the tensors of a.safetensors" in remark(capsys, "a.safetensors", "b.safetensors")


def test_nothing_is_said_of_differences(capsys):
    for step, weights in enumerate((WEIGHTS, LATER, LATER * 1)):
        save(f"{step}.safetensors", weights)
    assert "same tensors" not in remark(capsys, "1.safetensors", "2.safetensors", "--base", "0.safetensors")


def test_auto_base_takes_the_remark_at_its_word(capsys):
    for step in (9, 10):
        save(f"run/step-{step}.safetensors", LATER if step == 10 else WEIGHTS)
    run("compress", "run", "-o", "plain.gc")
    capsys.readouterr()
    said = remark(capsys, "run", "-o", "x.gc", "--auto-base")
    assert said == "gcodec: note: 1 of 2 files are stored as the difference from an earlier one\n"
    assert 2 * Path("x.gc").stat().st_size < 1.2 * Path("plain.gc").stat().st_size
    capsys.readouterr()
    run("verify", "x.gc", "--against", "run")
    out = capsys.readouterr().out
    assert out.index("step-9.safetensors: equals") < out.index("step-10.safetensors: equals")
    run("decompress", "x.gc", "-o", "back/")
    assert all(Path("back", file).read_bytes() == file.read_bytes() for file in Path("run").iterdir())
    run("decompress", "x.gc", "--only", "run/step-10.safetensors", "-o", "one/")
    assert Path("one/run/step-10.safetensors").read_bytes() == Path("run/step-10.safetensors").read_bytes()
    run("decompress", "x.gc", "--only", "step-10.safetensors:weight", "-o", "weight.npy")
    assert np.array_equal(np.load("weight.npy"), LATER)
    capsys.readouterr()
    for verb in (["inspect"], ["decompress", "--list"]):
        run(*verb, "x.gc")
        assert "  against run/step-9.safetensors, 2 of 2 tensors\n" in capsys.readouterr().out
    run("report", "x.gc")
    assert "against run/step-9.safetensors:weight" in Path("x.gc.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.safetensors"], "--auto-base is for files of one archive, but a.safetensors would be alone in its own"),
        (["a.safetensors", "b.safetensors"], "would be alone in its own"),
        (["run", "--base", "a.safetensors"], "--auto-base and --base cannot both be given"),
        (["run", "--mantissa-bits", "7"], "--auto-base needs lossless mode"),
    ],
)
def test_auto_base_is_refused_where_it_means_nothing(arguments, message, capsys):
    for path in ("a.safetensors", "b.safetensors", "run/a.safetensors"):
        save(path, WEIGHTS)
    run("compress", *arguments, "--auto-base", code=2)
    assert message in capsys.readouterr().err


def test_auto_base_of_named_files_may_remove_them(capsys):
    for step, weights in enumerate((WEIGHTS, LATER)):
        save(f"{step}.safetensors", weights)
    before = Path("1.safetensors").read_bytes()
    assert "1 of 2 files" in remark(capsys, "0.safetensors", "1.safetensors", "-o", "x.gc", "--auto-base", "--rm")
    assert [path.name for path in Path().iterdir()] == ["x.gc"]
    run("decompress", "x.gc")
    assert Path("1.safetensors").read_bytes() == before
    assert not remark(capsys, "0.safetensors", "1.safetensors", "-o", "y.gc", "--auto-base", "-q")


def test_a_base_with_little_in_common_is_named(capsys):
    save("old.safetensors", LATER, other=np.zeros((400, 300), np.float32))
    save("new.safetensors", WEIGHTS, more=RNG.standard_normal((400, 300)).astype(np.float32))
    said = remark(capsys, "new.safetensors", "--base", "old.safetensors")
    assert (
        "new.safetensors: has little in common with old.safetensors: the base has tensors of the name, type and" in said
    )
    assert "size of 33 % of its bytes, and 2 of 3 tensors are smaller with it" in said
    save("later.safetensors", LATER)
    assert "in common" not in remark(capsys, "later.safetensors", "--base", "old.safetensors")
