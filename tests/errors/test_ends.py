"""The law of ends: when an object is dropped, no Python runs, for an interrupt in that would be lost."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fsspec")

import torch

import gcodec
from gcodec.archive import ArchiveReader, Bases
from gcodec.distributed.transport.jobs import Future
from gcodec.distributed.transport.work import LaneWork
from gcodec.files import at_end
from gcodec.files.at_end import call_at_end
from gcodec.files.source import open_source
from gcodec.integrations.fsspec import ArchiveFileSystem
from gcodec.recorder import Recorder, read_dump
from gcodec.threads import WorkPool, call_apart
from tests.errors.fault_cases import weights
from tests.support.paths import ROOT

WEIGHTS = (np.random.default_rng(0).standard_normal(50_000) / 10).astype(np.float32)


def functions_at_end(held: list[Any]) -> list[str]:
    """Drop what is held, and return the functions of Python that run meanwhile, in this thread."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_qualname}")

    gc.collect()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        held.clear()
    finally:
        sys.setprofile(before)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an array, an archive of it, and one of another array that needs it."""
    np.save(tmp_path / "w.npy", WEIGHTS)
    np.save(tmp_path / "later.npy", WEIGHTS * np.float32(1.0001))
    gcodec.compress_file(tmp_path / "w.npy")
    gcodec.compress_file(tmp_path / "later.npy", base=tmp_path / "w.npy")
    gcodec.save({"w": WEIGHTS}, tmp_path / "state.gc")
    gcodec.save(weights(0), "memory://ends/state.gc")
    return tmp_path


def dump_in(folder: Path) -> Path:
    """Record a dump; return its path."""
    model = torch.nn.Linear(4, 4)
    recorder = Recorder(model, torch.optim.SGD(model.parameters(), 0.1), folder / "dumps", steps=(1,))
    model(torch.ones(4)).sum().backward()
    recorder.record()
    return next((folder / "dumps").iterdir())


def archive_files(folder: Path, **options: Any) -> list[Any]:
    """Return a file system whose files have been read, and one of these, which is open."""
    archive = ArchiveFileSystem(**options)
    path = archive.find("")[0]
    assert len(archive.cat(path)) > 1000
    opened = archive.open(path)
    opened.read(100)
    return [archive, opened]


def url_dump(folder: Path) -> Any:
    import fsspec

    fsspec.filesystem("memory").pipe("/ends/step-1.safetensors", dump_in(folder).read_bytes())
    dump = read_dump("memory://ends/step-1.safetensors")
    assert dump.grad("weight").shape == (4, 4)
    return dump


def partly_read(folder: Path) -> list[Any]:
    base = Bases(folder / "w.npy")
    reader = ArchiveReader(folder / "later.npy.gc", base=base)
    assert sum(part.size for part in reader.restored(reader.files[0])) > 1000
    return [reader, base]


def lane_work() -> LaneWork:
    future = Future()
    future.complete([torch.ones(1)])
    return LaneWork(future)


def used_pool() -> WorkPool:
    pool = WorkPool(2)
    assert pool.submit(lambda: 1).result() == 1
    return pool


OBJECTS: dict[str, Callable[[Path], Any]] = {
    "a source": lambda folder: open_source(folder / "w.npy"),
    "a reader, and bases": partly_read,
    "a file that was opened": lambda folder: [file := gcodec.open(folder / "state.gc"), file["w"]],
    "a file system": lambda folder: archive_files(folder, fo=folder / "w.npy.gc"),
    "a file system of a chained URL": lambda folder: archive_files(
        folder, fo=str(folder / "w.npy.gc"), target_protocol="file"
    ),
    "a file system with a base": lambda folder: archive_files(
        folder, fo=str(folder / "later.npy.gc"), base=str(folder / "w.npy")
    ),
    "a file system of a URL": lambda folder: archive_files(folder, fo="memory://ends/state.gc"),
    "a dump": lambda folder: read_dump(dump_in(folder)),
    "a dump of a URL": url_dump,
    "a work of a lane": lambda folder: lane_work(),
    "a pool": lambda folder: used_pool(),
    "streams": lambda folder: [gcodec.Encoder(threads=1), gcodec.Decoder(threads=1)],
    "checkpoints": lambda folder: gcodec.Checkpointer(folder / "series", threads=1),
    "what was loaded": lambda folder: gcodec.load(folder / "state.gc"),
    "a frame, and what it decodes to": lambda folder: [frame := gcodec.encode(WEIGHTS), gcodec.decode(frame)],
    "what a call apart returned": lambda folder: call_apart(lambda: WEIGHTS.copy()),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_no_python_runs_at_the_end_of_an_object(name, folder):
    held = [OBJECTS[name](folder)]
    assert functions_at_end(held) == []


@pytest.mark.parametrize("name", ["a source", "a file that was opened", "a file system with a base"])
def test_files_are_closed_at_the_end_of_what_opened_them(name, folder):
    """As by those who close it: without Python's warning, which is an error here."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("the open files of a process cannot be listed here")
    before = len(list(descriptors.iterdir()))
    held = [OBJECTS[name](folder)]
    assert len(list(descriptors.iterdir())) > before
    held.clear()
    assert len(list(descriptors.iterdir())) == before


def test_the_copy_of_a_dump_is_removed_at_its_end(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "copies"))
    (folder / "copies").mkdir()
    held = [url_dump(folder)]
    assert len(list((folder / "copies").iterdir())) == 1
    assert functions_at_end(held) == [] and not list((folder / "copies").iterdir())


def test_the_copy_of_a_dump_that_lives_on_is_removed_when_the_process_ends(folder):
    program = (
        "import sys, fsspec; from gcodec.recorder import read_dump; m = fsspec.filesystem('memory');"
        "m.pipe('/d.safetensors', open(sys.argv[1], 'rb').read()); sys.dump = read_dump('memory://d.safetensors');"
        "sys.dump.__dict__['self'] = sys.dump; print(sys.dump.path.exists())"
    )
    (folder / "copies").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "copies"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(dump_in(folder))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n" and not list((folder / "copies").iterdir())


def test_a_work_lives_on_after_its_end_without_large_tensors():
    """As torch's C++ code, which may hold the other half of it, waits for what its Python says."""
    from gcodec.distributed.transport import work

    for n_values in (1, 100_000):
        future = Future()
        dropped, future_of_torch = [LaneWork(future)], future.get_future()
        number = id(dropped[0])
        assert functions_at_end(dropped) == []
        orphan = work._orphans[-1]
        assert id(orphan) == number and not orphan._is_light
        work.lighten_orphans()
        future.complete([torch.ones(n_values)])
        future_of_torch.wait()
        assert orphan.wait() and orphan.is_success()
        assert (orphan.result() is None) is (n_values > 1)
        del orphan


@pytest.mark.parametrize("is_cycle", [False, True])
def test_all_calls_are_made_at_an_end_also_in_a_cycle(is_cycle):
    class Owner:
        itself: Any = None

    results = [0]
    owner = Owner()
    if is_cycle:
        owner.itself = owner
    call_at_end(owner, results.clear, lambda: results.append(1), lambda: results.append(2))
    n_references = len(at_end._references)
    del owner
    gc.collect()
    assert results == [1, 2] and len(at_end._references) == n_references - 1
