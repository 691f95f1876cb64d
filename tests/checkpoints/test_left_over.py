"""What writers that were killed leave at URLs of stores that write in place: it goes with the next save, or is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fsspec")

import gcodec
from gcodec.cli import main
from gcodec.errors import CheckpointWarning
from gcodec.sync import Publisher, VersionFolder
from tests.support.slots import Slots

URL = "slots://run/steps"
VALUES = np.linspace(-1, 1, 4000, dtype=np.float32)


@pytest.fixture(autouse=True)
def store() -> Iterator[type[Slots]]:
    Slots.register()
    yield Slots
    Slots.reset()


def names(end: str = "") -> list[str]:
    return [name for name in Slots.store if name.endswith(end)]


def killed(monkeypatch: pytest.MonkeyPatch, n_moves: int = 0) -> pytest.MonkeyPatch:
    """Have the store end whoever moves more files than a number, and whoever removes one then."""
    moved, real_move = [0], Slots.mv

    def move(self: Slots, *args: object, **options: object) -> None:
        if moved[0] >= n_moves:
            raise KeyboardInterrupt
        real_move(self, *args, **options)
        moved[0] += 1

    def remove(self: Slots, path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Slots, "mv", move)
    monkeypatch.setattr(Slots, "rm_file", remove)
    return monkeypatch


def test_an_unfinished_step_goes_with_the_next_save():
    checkpoints = gcodec.Checkpointer(URL)
    checkpoints.save(1, {"w": VALUES})
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        killed(patched)
        checkpoints.save(2, {"w": VALUES + 1})
    assert len(names(".partial")) == 1 and checkpoints.steps() == [1]
    Slots.store["/run/steps/.notes.0123abcd.partial"] = Slots.store[names(".gc")[0]]  # of something else
    checkpoints.save(2, {"w": VALUES + 2})
    assert names(".partial") == ["/run/steps/.notes.0123abcd.partial"] and checkpoints.steps() == [1, 2]
    assert np.array_equal(checkpoints.load()["w"], VALUES + 2)


def test_an_unfinished_version_goes_with_the_next_one():
    folder, publisher = VersionFolder("slots://run/sync"), Publisher()
    folder.send(publisher.publish({"w": VALUES}))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        killed(patched)
        folder.send(publisher.publish({"w": VALUES + 1}))
    assert names(".partial")
    folder.send(publisher.publish({"w": VALUES + 2}))
    assert not names(".partial") and folder.newest == 3


@pytest.mark.parametrize("n_moves", [1, 2])
def test_an_earlier_step_that_was_moved_away_is_told_and_never_removed(n_moves):
    """The store moves nothing over a file, and the writer is killed before or after the second of its renames."""
    Slots.replaces = False
    checkpoints = gcodec.Checkpointer(URL)
    for step in (1, 2):
        checkpoints.save(step, {"w": VALUES * np.float32(1 + step / 1000)})
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        killed(patched, n_moves)
        checkpoints.delete(1)
    (kept,) = names(".replaced")
    assert checkpoints.steps() == ([1] if n_moves == 1 else [1, 2])
    left = len(Slots.store)
    with pytest.warns(CheckpointWarning, match=rf"step-00000002\.gc: what was there before is at slots:/{kept}.*back"):
        checkpoints.save(3, {"w": VALUES})
    assert len(Slots.store) == left + 1
    if n_moves == 1:
        Slots.store["/run/steps/step-00000002.gc"] = Slots.store.pop(kept)
    assert np.array_equal(checkpoints.load(2)["w"], VALUES * np.float32(1 + 2 / 1000))


@pytest.mark.parametrize("at_url", [False, True])
def test_an_unfinished_file_does_not_go_into_the_archive_of_its_folder(at_url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("run/part").mkdir(parents=True)
    for name in ("x.npy", ".y.npy.gc.0123abcd.partial", "part/.x.0123abcd.partial", "kept.partial"):
        with Path("run", name).open("wb") as file:
            np.save(file, VALUES)
        Slots().pipe_file(f"slots://run/{name}", Path("run", name).read_bytes())
    assert main(["compress", "slots://run" if at_url else "run", "-o", "all.gc"]) == 1
    error = capsys.readouterr().err
    for name in (".y.npy.gc.0123abcd.partial", "part/.x.0123abcd.partial"):
        assert f"run/{name}: skipped: is a file that a gcodec writes, or has left unfinished" in error
    assert main(["decompress", "--list", "all.gc"]) == 0
    listed = capsys.readouterr().out
    assert "x.npy" in listed and "kept.partial" in listed and "0123abcd" not in listed
