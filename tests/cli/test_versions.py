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
    for arguments in (
        ["step-10.safetensors", "step-9.safetensors"],
        ["step-10.safetensors", "step-9.safetensors", "-o", "x.gc"],
    ):
        said = remark(capsys, *arguments)
        assert (
            "step-10.safetensors has the tensors of step-9.safetensors: as a difference it would take about 9" in said
        )
        assert "gcodec series add" in said


def test_versions_of_one_name_in_several_folders_are_counted(capsys):
    for step in range(3):
        save(f"run/checkpoint-{step}/model.safetensors", np.where(RNG.random(WEIGHTS.shape) < 0.02, LATER, WEIGHTS))
    said = remark(capsys, "run", "-o", "x.gc")
    assert "3 files have the same tensors" in said and "(--base)" in said


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
