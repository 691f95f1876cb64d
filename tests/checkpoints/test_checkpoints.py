"""The laws of a folder of checkpoints: every kept step bit for bit, whatever is saved, deleted, damaged or killed."""

from __future__ import annotations

import errno
import os
import signal
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcodec.archive import folders, load_file
from gcodec.archive.folders import LOCK, folder_at, writer_lock
from gcodec.checkpoints import Checkpointer, step_folder
from gcodec.checkpoints.chain import MAX_CHAIN
from gcodec.checkpoints.step_files import LEFT_OVER, step_name
from gcodec.cli import main
from gcodec.errors import CheckpointWarning, Corruption, GcodecError, InvalidArgument, LimitExceeded, Unsupported
from gcodec.files.source import open_regular
from tests.support.children import forked
from tests.support.special_files import ENDLESS, no_waiting, put

SIZE = 3000


def state_of(step: int, seed: int = 0) -> dict[str, Any]:
    """Return the state of a made-up training: weights that change little, moments that change more, a count."""
    start, change = np.random.default_rng(seed), np.random.default_rng((seed, step))
    weights = start.standard_normal(SIZE).astype(np.float32) * 0.05
    moments = start.standard_normal((30, 50)).astype(np.float32) * 1e-3
    changed = change.random(SIZE) < 0.05
    return {
        "model": {"w": weights * np.where(changed, 1 + 1e-6 * step, 1).astype(np.float32)},
        "optimizer": {"state": {0: {"exp_avg": moments * np.float32(1 + 1e-5 * step), "step": step}}, "lr": 1e-3},
        "ids": np.arange(step, step + 9),
    }


def assert_same(found: Any, expected: Any) -> None:
    """Compare two states, types and bits included."""
    if hasattr(expected, "detach"):
        import torch

        assert type(found) is torch.Tensor and found.dtype == expected.dtype and found.shape == expected.shape
        bits = [x.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for x in (found, expected)]
        assert torch.equal(*bits)
        return
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
        assert_same(getattr(found, "_metadata", None), getattr(expected, "_metadata", None))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    else:
        assert found == expected or (found != found and expected != expected)


def assert_folder(checkpoints: Checkpointer, expected: dict[int, int], full_every: int = MAX_CHAIN) -> None:
    """Every step comes back, no chain is too long, and nothing else lies in the folder but the lock."""
    assert checkpoints.steps() == sorted(expected)
    bases = {info.step: info.base for info in checkpoints.overview()}
    for step, seed in expected.items():
        assert_same(checkpoints.load(step), state_of(step, seed))
        length, at = 1, bases[step]
        while at is not None:
            length, at = length + 1, bases[at]
        assert length <= full_every
    assert {path.name for path in Path(checkpoints.folder).iterdir()} <= {".lock", *map(step_name, expected)}


def filled(folder: Path, n_steps: int = 6, **options: Any) -> Checkpointer:
    checkpoints = Checkpointer(folder / "steps", **{"full_every": 4, "threads": 1} | options)
    for step in range(n_steps):
        checkpoints.save(step, state_of(step))
    return checkpoints


# ------------------------------------------------------------------------------------------- Saving, loading, deleting

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["save", "save", "save", "delete", "prune"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1, max_size=12,
)


@settings(max_examples=25)
@given(operations=OPERATIONS, full_every=st.integers(1, 4), in_memory=st.booleans())
def test_every_kept_step_comes_back_after_any_operations(tmp_path_factory, operations, full_every, in_memory):
    folder = tmp_path_factory.mktemp("law")
    checkpoints = Checkpointer(folder, full_every=full_every, copy_in_memory=in_memory, threads=1)
    expected: dict[int, int] = {}
    for number, (operation, first, second) in enumerate(operations):
        if operation == "save" and first not in expected:
            checkpoints.save(first, state_of(first, number % 2))
            expected[first] = number % 2
        elif operation == "delete":
            chosen = {step for step in (first, second) if step in expected}
            checkpoints.delete(*chosen)
            expected = {step: seed for step, seed in expected.items() if step not in chosen}
        elif operation == "prune":
            for step in checkpoints.prune(second + 1, first or None):
                del expected[step]
        assert_folder(checkpoints, expected, full_every)
    assert_folder(Checkpointer(folder, threads=1), expected, full_every)


def test_differences_are_smaller_and_chains_are_bounded(tmp_path):
    checkpoints = filled(tmp_path, 9)
    infos = checkpoints.overview()
    assert [info.base for info in infos] == [None, 0, 1, 2, None, 4, 5, 6, None]
    assert all(info.file_bytes < 0.7 * infos[0].file_bytes for info in infos if info.base is not None)
    assert all(info.state_bytes > SIZE * 4 and info.n_tensors == 4 for info in infos)
    assert [info.base for info in filled(tmp_path / "1", 3, full_every=1).overview()] == [None] * 3


def test_the_longest_chain_is_read(tmp_path):
    states = [{"w": np.linspace(0, 1 + 1e-6 * step, 200, dtype=np.float32)} for step in range(MAX_CHAIN + 1)]
    checkpoints = Checkpointer(tmp_path, full_every=MAX_CHAIN, copy_in_memory=True, threads=1)
    for step, state in enumerate(states):
        checkpoints.save(step, state)
    assert [info.step for info in checkpoints.overview() if info.base is None] == [0, MAX_CHAIN]
    assert_same(checkpoints.load(MAX_CHAIN - 1), states[MAX_CHAIN - 1])
    checkpoints.delete(0)
    assert_same(checkpoints.load(MAX_CHAIN - 1), states[MAX_CHAIN - 1])


def test_a_copy_in_memory_gives_the_same_files(tmp_path):
    folders = [Path(filled(tmp_path / str(copy), copy_in_memory=copy).folder) for copy in (False, True)]
    files = [{path.name: path.read_bytes() for path in sorted(folder.glob("*.gc"))} for folder in folders]
    assert files[0] == files[1] and len(files[0]) == 6


def test_a_copy_in_memory_of_a_step_that_was_exchanged_is_not_used(tmp_path):
    checkpoints = filled(tmp_path, 2, copy_in_memory=True)
    other = Checkpointer(checkpoints.folder)
    other.delete(1)
    other.save(1, state_of(1, seed=5))
    checkpoints.save(2, state_of(2))
    assert_folder(checkpoints, {0: 0, 1: 5, 2: 0})


def test_neither_saving_nor_deleting_copies_the_state(tmp_path):
    start = np.linspace(0.1, 1, 1 << 20, dtype=np.float32).reshape(1024, 1024)
    checkpoints = Checkpointer(tmp_path, threads=1)
    for step in range(3):
        state = {f"w{n}": (start * np.float32(1 + 1e-6 * (n + step))).T for n in range(18)}  # not contiguous
        tracemalloc.start()
        checkpoints.save(step, state)
        if step == 2:
            checkpoints.delete(0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 12 * start.nbytes
    assert_same(checkpoints.load(), state)


def test_retention_keeps_the_last_steps_and_the_multiples(tmp_path):
    checkpoints = Checkpointer(tmp_path, full_every=3, keep_last=2, keep_every=4, threads=1)
    for step in range(11):
        checkpoints.save(step, state_of(step))
        kept = [s for s in range(step + 1) if s > step - 2 or s % 4 == 0]
        assert checkpoints.steps() == kept
    assert_folder(checkpoints, dict.fromkeys(kept, 0), 3)


def test_retention_keeps_what_a_run_saves_below_the_steps_of_an_earlier_one(tmp_path):
    first = Checkpointer(tmp_path, keep_last=2, threads=1)
    for step in (100, 200, 300):
        first.save(step, state_of(step))
    second = Checkpointer(tmp_path, keep_last=2, threads=1)
    with pytest.warns(CheckpointWarning, match="has steps 200 to 300 of an earlier run, above step 10"):
        assert Path(second.save(10, state_of(10)).path).exists()
    for step, kept in ((20, [10, 20]), (30, [20, 30])):  # it warns once
        second.save(step, state_of(step))
        assert_folder(second, dict.fromkeys([*kept, 200, 300], 0))
    second.save(250, state_of(250))  # past one of the others, which goes before the run's own steps
    assert_folder(second, dict.fromkeys([30, 250, 300], 0))
    third = Checkpointer(tmp_path, keep_last=2, threads=1)  # resumed from 300: nothing is above
    third.save(310, state_of(310))
    assert_folder(third, dict.fromkeys([300, 310], 0))
    third.save(305, state_of(305))  # its own steps count in the order in which it saved them
    assert_folder(third, dict.fromkeys([305, 310], 0))


def test_the_highest_step_loads_as_the_last_and_a_run_that_goes_back_is_told_so(tmp_path):
    again = Checkpointer(filled(tmp_path, 3).folder, threads=1)
    again.delete(1)
    with pytest.warns(CheckpointWarning, match="has step 2 of an earlier run, above step 1 that .* loads as the last"):
        again.save(1, state_of(7))
    assert again.latest() == 2
    assert_same(again.load(), state_of(2))
    again.delete(*(step for step in again.steps() if step > 1))
    assert_same(again.load(), state_of(7))
    again.save(5, state_of(5))
    again.save(3, state_of(3))  # between its own: nothing to be told


def test_steps_are_archives_with_bases(tmp_path):
    folder = Path(filled(tmp_path, 2).folder)
    loaded = load_file(folder / step_name(1), base=folder / step_name(0))
    assert_same(loaded["model/w"], state_of(1)["model"]["w"])
    with pytest.raises(Unsupported, match=step_name(0)):
        load_file(folder / step_name(1))


@pytest.mark.parametrize("call", [
    lambda c: c.save(-1, {}), lambda c: c.save(True, {}), lambda c: c.save("1", {}), lambda c: c.save(10**18, {}),
    lambda c: c.save(2, {}), lambda c: c.load(99), lambda c: c.delete(99), lambda c: c.delete(1, 99),
    lambda c: c.load(1, like="jax"), lambda c: c.prune(0), lambda c: c.prune(1, 0), lambda c: c.verify(99),
    lambda c: Checkpointer(c.folder, full_every=0), lambda c: Checkpointer(c.folder, full_every=MAX_CHAIN + 1),
    lambda c: Checkpointer(c.folder, keep_every=3), lambda c: Checkpointer(c.folder, keep_last=0),
    lambda c: Checkpointer(c.folder, threads=0), lambda c: Checkpointer(Path(c.folder) / step_name(0)),
    lambda c: Checkpointer(Path(c.folder) / "nowhere").load(), lambda c: Checkpointer(c.folder / "nowhere").delete(1),
])
def test_arguments_without_meaning_are_refused_and_nothing_changes(call, tmp_path):
    checkpoints = filled(tmp_path, 3)
    with pytest.raises(InvalidArgument):
        call(checkpoints)
    assert_folder(checkpoints, dict.fromkeys(range(3), 0))


def test_states_above_a_limit_are_refused(tmp_path):
    checkpoints = filled(tmp_path, 2)
    with pytest.raises(LimitExceeded):
        checkpoints.load(1, max_output_bytes=SIZE)
    assert_same(checkpoints.load(1, max_output_bytes=100 * SIZE), state_of(1))


# --------------------------------------------------------------------------------------------------------------- Faults


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
    if kind == "no permission":     # root would have it
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
        (0, False), (1, False), (2, False), (3, False), (4, True)
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
    with pytest.raises(Unsupported, match=r"step 2 .*step 1 .*is another than that"):
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
def test_small_tensors_of_a_step_whose_base_is_deleted_take_no_more_than_saved_whole(tmp_path):
    def state(step: int) -> dict[str, Any]:
        random = np.random.default_rng(3)
        return {f"{n}.exp_avg": np.full(400, n % 2, np.float32) if n % 3 else
                random.standard_normal(400, np.float32) * np.float32(1 + 1e-4 * step) for n in range(60)}

    checkpoints, whole = Checkpointer(tmp_path / "s"), Checkpointer(tmp_path / "whole", full_every=1)
    for step in (1, 2):
        checkpoints.save(step, state(step))
    assert checkpoints.overview()[1].base == 1
    checkpoints.delete(1)
    whole.save(2, state(2))
    assert_same(checkpoints.load(2), state(2))
    assert [info.file_bytes for info in checkpoints.overview()] == [info.file_bytes for info in whole.overview()]


@pytest.mark.parametrize(("operation", "saved", "deleted"), [
    (lambda c: c.save(6, state_of(6)), {6}, set()),
    (lambda c: c.delete(0), set(), {0}),
    (lambda c: c.delete(1, 4), set(), {1, 4}),
], ids=["save", "delete the whole one", "delete two"])
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
    assert LEFT_OVER.fullmatch(left.name)
    for path in (left, other):
        path.write_bytes(b"x")
    assert checkpoints.steps() == [0]
    checkpoints.save(1, state_of(1))
    assert not left.exists() and other.exists()


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


def test_a_second_writer_waits_and_then_gives_up(tmp_path):
    pytest.importorskip("fcntl")
    with (
        writer_lock(folder_at(tmp_path)), pytest.raises(GcodecError, match="another process is writing"),
        writer_lock(folder_at(tmp_path), seconds=0),
    ):
        pass
    with writer_lock(folder_at(tmp_path), seconds=0):
        pass


def test_a_folder_of_several_users_has_one_lock(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    open_file = os.open

    def open_as_another(path: Any, flags: int, *mode: int, **options: Any) -> int:
        if Path(path).name == LOCK and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, flags, *mode, **options)

    with writer_lock(folder_at(tmp_path)):
        monkeypatch.setattr(os, "open", open_as_another)
        with pytest.raises(GcodecError, match="another process"), writer_lock(folder_at(tmp_path), seconds=0):
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
