"""The laws of a folder of checkpoints that is damaged, shared, or left by a killed process: whatever is wrong is named,
and no other step suffers."""

from __future__ import annotations

import errno
import os
import re
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcodec.archive import folders
from gcodec.archive.folders import LOCK, folder_at, one_writer, writer_lock
from gcodec.checkpoints import Checkpointer, step_folder
from gcodec.checkpoints.step_files import step_name
from gcodec.checkpoints.step_folder import StepFolder
from gcodec.cli import main
from gcodec.errors import CheckpointWarning, Corruption, GcodecError, InvalidArgument, Unsupported
from gcodec.files.source import open_regular
from gcodec.sync import Publisher, VersionFolder
from tests.checkpoints.checkpoint_cases import assert_folder, filled, state_of
from tests.support.children import forked
from tests.support.same import assert_same
from tests.support.special_files import ENDLESS, no_waiting, put


def dependents(checkpoints: Checkpointer, step: int) -> set[int]:
    """Return a step and all that need it."""
    result = {step}
    for info in checkpoints.overview():
        if info.base in result:
            result.add(info.step)
    return result


@pytest.mark.parametrize("step", [0, 1, 4])
@pytest.mark.parametrize("place", [4, 200, -200, -20])
def test_a_damaged_file_is_named_and_other_steps_stay_readable(step, place, tmp_path):
    checkpoints = filled(tmp_path)
    needing, path = dependents(checkpoints, step), Path(checkpoints.folder) / step_name(step)
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    for other in checkpoints.steps():
        if other in needing:
            with pytest.raises(GcodecError, match=step_name(step)) as raised:
                checkpoints.load(other)
            assert str(raised.value).startswith(f"step {other}")
            with pytest.raises(GcodecError, match=step_name(step)):
                checkpoints.verify(other)
        else:
            assert_same(checkpoints.load(other), state_of(other))
    after = max(needing) + 1
    if after in checkpoints.steps():  # what comes later is whole, so nothing stands in the way of deleting
        checkpoints.delete(*needing)
        assert_folder(checkpoints, {s: 0 for s in range(6) if s not in needing})
        return
    with pytest.raises(GcodecError, match=f"step-0000000{step}"):
        checkpoints.delete(step)  # step 5 depends on 4
    assert checkpoints.steps() == list(range(6))
    with pytest.warns(CheckpointWarning, match="step 5 cannot be its base"):
        checkpoints.save(6, state_of(6))
    assert checkpoints.overview()[-1].base is None
    checkpoints.save(7, state_of(7))
    assert_same(checkpoints.load(), state_of(7))


def test_retention_that_fails_is_a_warning(tmp_path):
    checkpoints = filled(tmp_path, 3)
    path = Path(checkpoints.folder) / step_name(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(CheckpointWarning) as warned:
        Checkpointer(checkpoints.folder, keep_last=2).save(3, state_of(3))
    assert ["whole" in str(w.message) or "could not be deleted" in str(w.message) for w in warned] == [True] * 2
    assert checkpoints.steps() == [0, 1, 2, 3]
    assert_same(checkpoints.load(), state_of(3))


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_is_no_file_is_named_at_once(kind, tmp_path):
    checkpoints = Checkpointer(tmp_path, full_every=9)
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    put(kind, tmp_path / step_name(1))
    what = "" if kind == "huge file" else ".*must be a regular file"
    for step in (1, 2):
        with no_waiting(), pytest.raises(Corruption, match=r"step-00000001\.gc" + what):
            checkpoints.load(step)
    with no_waiting():
        assert [bool(info.problem) for info in checkpoints.overview()] == [True, False]


@pytest.mark.parametrize("kind", ["link to itself", "link to nothing", "no permission"])
def test_a_file_that_cannot_be_opened_is_named_and_other_steps_stay_usable(kind, tmp_path, monkeypatch, capsys):
    checkpoints = Checkpointer(tmp_path, full_every=2)
    for step in range(5):
        checkpoints.save(step, state_of(step))
    path = tmp_path / step_name(4)
    if kind == "no permission":  # root would have it
        checkpoints = Checkpointer(tmp_path, full_every=2)
        opened = open_regular

        def refuse(place):
            if place == path:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
            return opened(place)

        for module in (step_folder, folders):
            monkeypatch.setattr(module, "open_regular", refuse)
    else:
        path.unlink()
        path.symlink_to(path.name if kind == "link to itself" else "nothing")
    assert [(info.step, path.name in info.problem) for info in checkpoints.overview()] == [
        (0, False),
        (1, False),
        (2, False),
        (3, False),
        (4, True),
    ]
    assert main(["series", "list", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "difference from 2" in printed.out and printed.err.count("\n") == 1 and path.name in printed.err
    with pytest.raises(GcodecError, match=rf"{path.name}.*nothing was removed"):
        checkpoints.delete(0)
    with pytest.warns(CheckpointWarning, match=rf"saved whole.*{path.name}"):
        checkpoints.save(5, state_of(5))
    checkpoints.delete(4)
    checkpoints.delete(0)
    assert checkpoints.steps() == [1, 2, 3, 5] and not any(info.problem for info in checkpoints.overview())
    for step in checkpoints.steps():
        assert_same(checkpoints.load(step), state_of(step))


def test_a_missing_predecessor_is_named(tmp_path):
    checkpoints = filled(tmp_path)
    (Path(checkpoints.folder) / step_name(1)).unlink()
    with pytest.raises(Unsupported, match=r"step 2 .*step-00000002.* against step 1, but there is no .*step-00000001"):
        checkpoints.load(3)
    assert_same(checkpoints.load(0), state_of(0))
    assert_same(checkpoints.load(5), state_of(5))
    with pytest.raises(Unsupported, match="there is no"):
        checkpoints.delete(2)
    assert checkpoints.steps() == [0, 2, 3, 4, 5]
    checkpoints.delete(2, 3)
    assert_folder(checkpoints, {0: 0, 4: 0, 5: 0})


def test_a_predecessor_that_was_exchanged_is_named(tmp_path):
    checkpoints, other = filled(tmp_path), Checkpointer(tmp_path / "other")
    other.save(1, state_of(1, seed=1))
    (Path(other.folder) / step_name(1)).replace(Path(checkpoints.folder) / step_name(1))
    with pytest.raises(Unsupported, match=r"step 2 .*step 1 .*is a different one"):
        checkpoints.load(3)
    assert_same(checkpoints.load(0), state_of(0))


def test_a_step_under_a_wrong_name_is_refused(tmp_path):
    checkpoints = filled(tmp_path, 2)
    (Path(checkpoints.folder) / step_name(1)).rename(Path(checkpoints.folder) / step_name(0))
    with pytest.raises(Unsupported, match="no earlier step"):
        checkpoints.load(0)
    assert "no earlier step" in checkpoints.overview()[0].problem


def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    checkpoints = filled(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for step, call in ((6, lambda: checkpoints.save(6, state_of(6))), (2, lambda: checkpoints.delete(1))):
            with pytest.raises(OSError, match="No space") as raised:
                call()
            assert raised.value.filename == str(Path(checkpoints.folder) / step_name(step))
    assert_folder(checkpoints, dict.fromkeys(range(6), 0))


def kill_at(n: int) -> None:
    """Have this process killed just before its n-th call that changes a file or waits for the disk."""
    left = [n]

    def patched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "hardlink_to"), (Path, "unlink"), (os, "chmod")):
        setattr(owner, name, patched(getattr(owner, name)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("operation", "saved", "deleted"),
    [
        (lambda c: c.save(6, state_of(6)), {6}, set()),
        (lambda c: c.delete(0), set(), {0}),
        (lambda c: c.delete(1, 4), set(), {1, 4}),
    ],
    ids=["save", "delete the whole one", "delete two"],
)
def test_a_killed_process_leaves_a_whole_folder(operation, saved, deleted, tmp_path):
    for n in range(100):
        checkpoints = filled(tmp_path / str(n))

        def child(n: int = n, checkpoints: Checkpointer = checkpoints) -> None:
            kill_at(n)
            operation(checkpoints)

        code, printed = forked(child).wait()
        assert code in (0, -signal.SIGKILL), printed
        steps = set(checkpoints.steps())
        assert set(range(6)) - deleted <= steps <= set(range(6)) | saved
        for step in steps:
            assert_same(checkpoints.load(step), state_of(step))
        if code == 0:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoints.save(9, state_of(9))  # whoever writes next removes what was left over
        assert_folder(checkpoints, dict.fromkeys(steps | {9}, 0), 4)
    assert code == 0 and n > 3
    assert steps == (set(range(6)) | saved) - deleted


def test_only_what_writers_left_over_is_removed(tmp_path):
    checkpoints = filled(tmp_path, 1)
    left, other = (Path(checkpoints.folder, name) for name in (".step-00000001.gc.0123abcd.partial", "notes.partial"))
    for path in (left, other):
        path.write_bytes(b"x")
    assert checkpoints.steps() == [0]
    checkpoints.save(1, state_of(1))
    assert not left.exists() and other.exists()


def test_a_step_is_saved_though_what_was_left_over_cannot_be_removed(tmp_path):
    checkpoints = filled(tmp_path, 1)
    left = Path(checkpoints.folder, ".step-00000001.gc.0123abcd.partial")
    left.mkdir()  # the least that no one can remove as a file, whoever it is
    with pytest.warns(CheckpointWarning, match=f"cannot remove {re.escape(str(left))}, which nothing needs"):
        checkpoints.save(1, state_of(1))
    assert checkpoints.steps() == [0, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_readers_see_whole_steps_while_a_writer_works(tmp_path):
    checkpoints = filled(tmp_path, 4)

    def child() -> None:
        writer = Checkpointer(checkpoints.folder, full_every=4, keep_last=2, threads=1)
        for step in range(4, 30):
            writer.save(step, state_of(step))
            writer.prune(1 + step % 2)

    process, n_loaded, status = forked(child), 0, (0, 0)
    while status == (0, 0):
        status = os.waitpid(process.pid, os.WNOHANG)
        state = checkpoints.load()
        assert_same(state, state_of(state["optimizer"]["state"][0]["step"]))
        for step in checkpoints.steps():
            try:
                state = checkpoints.load(step)
            except InvalidArgument:  # deleted since
                assert step not in checkpoints.steps()
                continue
            assert_same(state, state_of(step))
            n_loaded += 1
    assert status[1] == 0 and n_loaded
    assert_folder(checkpoints, {28: 0, 29: 0}, 4)


@pytest.mark.parametrize("kind", ["step", "version"])
@pytest.mark.parametrize("is_there", ["", "run", "run/deep"])
def test_a_first_file_that_cannot_be_written_leaves_no_new_folder(kind, is_there, tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = tmp_path / "run" / "deep"
    (tmp_path / is_there).mkdir(parents=True, exist_ok=True)
    version = Publisher().publish({"w": np.ones(4)})
    before = [*tmp_path.rglob("*")]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full)
        Checkpointer(place).save(0, state_of(0)) if kind == "step" else VersionFolder(place).send(version)
    after = [path for path in tmp_path.rglob("*") if path.name != LOCK or is_there != "run/deep"]
    assert [path for path in after if path.name != LOCK] == before
    Checkpointer(place).save(0, state_of(0)) if kind == "step" else VersionFolder(place).send(version)


def test_a_writer_that_waits_in_a_folder_that_is_removed_makes_it_again(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    flock, place = fcntl.flock, tmp_path / "run"

    def removed_meanwhile(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            (place / LOCK).unlink()
            place.rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with one_writer(folder_at(place)):
        assert (place / LOCK).exists()
        with pytest.raises(GcodecError, match="this very thread"), writer_lock(folder_at(place)):
            pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_keep_the_lock_of_a_writer_that_is_killed(tmp_path):
    until_read, until = os.pipe()
    ready_read, ready = os.pipe()

    def grandchild() -> None:
        os.close(until)
        os.write(ready, b"1")
        os.read(until_read, 1)  # as long as the test runs

    def writer() -> None:
        with writer_lock(folder_at(tmp_path)):
            forked(grandchild)
            os.read(os.pipe()[0], 1)

    child = forked(writer)
    assert os.read(ready_read, 1) == b"1"
    with pytest.raises(GcodecError, match="another process"), writer_lock(folder_at(tmp_path), seconds=0):
        pass
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    with writer_lock(folder_at(tmp_path), seconds=0):
        pass
    for descriptor in (until, until_read, ready, ready_read, child.stderr):
        os.close(descriptor)


def test_a_second_writer_waits_and_then_gives_up(tmp_path):
    pytest.importorskip("fcntl")

    def write() -> None:
        with writer_lock(folder_at(tmp_path), seconds=0):
            pass

    with (
        writer_lock(folder_at(tmp_path)),
        ThreadPoolExecutor(1) as others,
        pytest.raises(GcodecError, match="another process is writing"),
    ):
        others.submit(write).result()
    write()


@pytest.mark.parametrize("again", ["save", "delete"])
def test_a_handler_that_writes_where_the_call_that_it_interrupts_does_is_told_at_once(tmp_path, monkeypatch, again):
    pytest.importorskip("fcntl")
    checkpoints = Checkpointer(tmp_path)
    checkpoints.save(1, {"w": np.ones(100)})
    write, told = StepFolder._write, list[str]()

    def interrupted(*arguments: Any) -> Any:
        with pytest.raises(GcodecError) as error:  # after five minutes it would say that of another process
            checkpoints.delete(1) if again == "delete" else checkpoints.save(3, {"w": np.ones(5)})
        told.append(str(error.value))
        return write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StepFolder, "_write", interrupted)
        checkpoints.save(2, {"w": np.zeros(100)})
    assert len(told) == 1 and "this very thread is writing to this folder" in told[0]
    assert checkpoints.steps() == [1, 2]
    checkpoints.save(3, {"w": np.ones(5)})


def test_a_folder_of_several_users_has_one_lock(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    open_file = os.open

    def open_as_another(path: Any, flags: int, *mode: int, **options: Any) -> int:
        if Path(path).name == LOCK and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, flags, *mode, **options)

    with writer_lock(folder_at(tmp_path)):
        monkeypatch.setattr(os, "open", open_as_another)
        with pytest.raises(GcodecError, match="this very thread"), writer_lock(folder_at(tmp_path)):
            pass
    with writer_lock(folder_at(tmp_path), seconds=0):
        pass
    (tmp_path / LOCK).unlink()
    with pytest.raises(PermissionError), writer_lock(folder_at(tmp_path)):
        pass


def test_the_names_of_all_new_folders_reach_the_disk(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr("gcodec.archive.folders.sync_folder", synced.append)
    Checkpointer(tmp_path / "run" / "deep" / "steps").save(0, state_of(0))
    assert {tmp_path, tmp_path / "run", tmp_path / "run" / "deep", tmp_path / "run" / "deep" / "steps"} == {*synced}
