"""``bench.first_gpu``, which a device runs first: rehearsed on the host that pretends to be one, and how it fails."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import first_gpu  # noqa: E402
from gcodec.benchmark.csv_tables import write_named  # noqa: E402
from tests.gpu.cuda_torch import pretending_device  # noqa: E402


def started(command: list[str]) -> str:
    """Stand in for a program: all-reduces write their table."""
    if "bench.gpu_allreduce" in command:
        row = {"dtype": "float32", "mode": "DDP bucket, lossless, kept codebook", "bytes": 9, "milliseconds": "0.5"}
        write_named(Path(command[-1]) / "gpu-allreduce.csv", [row])
    return f"started {command[0]}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time small arrays, once; start no other program but one that ends at once."""
    steps = {**first_gpu.STEPS, "time": lambda: first_gpu.speeds([1 << 16], 1)}
    monkeypatch.setattr(first_gpu, "STEPS", steps)
    monkeypatch.setattr(first_gpu, "_sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(first_gpu, "_run", started)
    with pretending_device():
        yield


def rows(folder: Path) -> list[list[str]]:
    with (folder / "first-gpu.csv").open() as file:
        head, *found = csv.reader(file)
    assert tuple(head) == first_gpu.COLUMNS
    return found


def test_all_steps_are_taken_and_every_law_holds(tmp_path: Path) -> None:
    assert first_gpu.main(["--out", str(tmp_path)]) == 0
    found = rows(tmp_path)
    assert list(dict.fromkeys(row[1] for row in found)) == list(first_gpu.STEPS)
    assert [row[3] for row in found if row[1] == "law"] == ["holds"] * 10
    assert sum(row[1] == "time" for row in found) == 8
    kept = "two ranks, float32, DDP bucket, lossless, kept codebook, 9 bytes"
    assert [row[2:] for row in found if row[1] == "all-reduce"][1:] == [[kept, "0.5 ms"]]
    assert [row[3] for row in found if row[1] == "sanitizer"] == ["started compute-sanitizer"] * 2


def test_what_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    wrong = {"lossless, float32": lambda: b"others", "lossless, bfloat16": fails, "hashes": first_gpu.LAWS["hashes"]}
    monkeypatch.setattr(first_gpu, "LAWS", wrong)
    monkeypatch.setattr(first_gpu, "gradients", fails)
    monkeypatch.setattr(first_gpu, "_sanitizer", lambda: None)
    assert first_gpu.main(["--out", str(tmp_path)]) == 1
    found = {(step, what): result for _, step, what, result in rows(tmp_path)}
    assert found["law", "lossless, float32"].startswith("FAILED: 6 bytes with hash")
    assert found["law", "lossless, bfloat16"] == "FAILED: no memory"
    assert found["law", "hashes"] == "holds"
    assert found["time", "the rest of the step"] == "FAILED: OutOfMemoryError: no memory"
    assert found["sanitizer", "racecheck"] == "compute-sanitizer is not here"


def test_after_a_fault_of_the_device_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> bytes:
        raise torch.AcceleratorError("an illegal memory access")

    monkeypatch.setattr(first_gpu, "LAWS", {"lossless, float32": fails, "hashes": fails})
    assert first_gpu.main(["--out", str(tmp_path)]) == 1
    last = rows(tmp_path)[-2:]
    assert last[0][3].startswith("FAILED: AcceleratorError") and last[1][3].startswith(
        "left out: the device is at fault"
    )


def test_nothing_is_started_when_the_time_is_over(tmp_path: Path) -> None:
    assert first_gpu.main(["--out", str(tmp_path), "--seconds", "0"]) == 0
    assert [row[2] for row in rows(tmp_path)][1:] == ["all that follows"]


def test_the_first_laws_alone_write_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert first_gpu.main(["--out", str(tmp_path), "--laws", "2"]) == 0
    assert capsys.readouterr().out.split() == ["holds", "holds"]
    assert not list(tmp_path.iterdir())


def test_a_program_that_fails_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(first_gpu, "PATIENCE", 5)
    assert first_gpu._run([sys.executable, "-c", "print(1); print(2)"]) == "1 | 2"
    assert first_gpu._run([sys.executable, "-c", "raise SystemExit('no')"]) == "FAILED with 1: no"
