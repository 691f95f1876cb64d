"""The laws of a folder of checkpoints: every kept step bit for bit, whatever is saved, deleted or retained."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcodec.archive import load_file
from gcodec.checkpoints import Checkpointer
from gcodec.checkpoints.chain import MAX_CHAIN
from gcodec.checkpoints.checkpointer import by_age
from gcodec.checkpoints.step_files import step_name
from gcodec.errors import CheckpointWarning, InvalidArgument, LimitExceeded, Unsupported
from tests.checkpoints.checkpoint_cases import SIZE, assert_folder, filled, state_of
from tests.support.same import assert_same

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["save", "save", "save", "delete", "prune"]), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=12,
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
    for step in range(2):
        state = {f"w{n}": (start * np.float32(1 + 1e-6 * (n + step))).T for n in range(18)}  # not contiguous
        tracemalloc.start()
        checkpoints.save(step, state)
        if step:
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


@pytest.mark.parametrize("number", [np.uint8, np.int64, np.uint64])
def test_counts_may_be_integers_of_numpy(number, tmp_path):
    checkpoints = Checkpointer(tmp_path, full_every=number(3), keep_last=number(2), keep_every=number(4), threads=1)
    for step in range(9):
        checkpoints.save(number(step), state_of(step))
    assert checkpoints.steps() == [0, 4, 7, 8]
    assert checkpoints.prune(number(1), number(8)) == [4, 7]
    assert_folder(checkpoints, {0: 0, 8: 0}, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.save(-1, {}),
        lambda c: c.save(True, {}),
        lambda c: c.save("1", {}),
        lambda c: c.save(10**18, {}),
        lambda c: c.save(2, {}),
        lambda c: c.load(99),
        lambda c: c.delete(99),
        lambda c: c.delete(1, 99),
        lambda c: c.load(1, like="jax"),
        lambda c: c.prune(0),
        lambda c: c.prune(1, 0),
        lambda c: c.verify(99),
        lambda c: c.prune(None),
        lambda c: c.prune(None, 2),
        lambda c: Checkpointer(c.folder, full_every=0),
        lambda c: Checkpointer(c.folder, full_every=MAX_CHAIN + 1),
        lambda c: Checkpointer(c.folder, keep_every=3),
        lambda c: Checkpointer(c.folder, keep_last=0),
        lambda c: Checkpointer(c.folder, threads=0),
        lambda c: Checkpointer(Path(c.folder) / step_name(0)),
        lambda c: Checkpointer(Path(c.folder) / "nowhere").load(),
        lambda c: Checkpointer(c.folder / "nowhere").delete(1),
    ],
)
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


def test_small_tensors_of_a_step_whose_base_is_deleted_take_no_more_than_saved_whole(tmp_path):
    def state(step: int) -> dict[str, Any]:
        random = np.random.default_rng(3)
        return {
            f"{n}.exp_avg": np.full(400, n % 2, np.float32)
            if n % 3
            else random.standard_normal(400, np.float32) * np.float32(1 + 1e-4 * step)
            for n in range(60)
        }

    checkpoints, whole = Checkpointer(tmp_path / "s"), Checkpointer(tmp_path / "whole", full_every=1)
    for step in (1, 2):
        checkpoints.save(step, state(step))
    assert checkpoints.overview()[1].base == 1
    checkpoints.delete(1)
    whole.save(2, state(2))
    assert_same(checkpoints.load(2), state(2))
    assert [info.file_bytes for info in checkpoints.overview()] == [info.file_bytes for info in whole.overview()]


def some_small(step: int, without: Collection[int] = ()) -> dict[str, Any]:
    """Return small tensors, some of which a step lacks; every sixth is empty."""
    random = np.random.default_rng(3)
    values = {n: random.standard_normal(2000 if n % 6 else 0) * (1 + 1e-5 * step) for n in range(30)}
    return {f"{n}.exp_avg": value.astype(np.float32) for n, value in values.items() if n not in without}


@pytest.mark.parametrize("without", [(15,), (0, 1, 2), (27, 28, 29), (5, 6, 7, 19), tuple(range(0, 30, 2)), range(29)])
def test_small_tensors_of_a_step_stay_differences_beside_those_that_its_new_base_lacks(without, tmp_path):
    saved, direct = (Checkpointer(tmp_path / name, full_every=20) for name in ("saved", "direct"))
    for checkpoints, steps in ((saved, (0, 1, 2, 3)), (direct, (0, 2, 3))):
        for step in steps:
            checkpoints.save(step, some_small(step, () if step else without))
    saved.delete(1)
    for step in (0, 2, 3):
        assert_same(saved.load(step), some_small(step, () if step else without))
    sizes = [[info.file_bytes for info in checkpoints.overview()] for checkpoints in (saved, direct)]
    assert sizes[0][1] < 1.02 * sizes[1][1] + 200
    saved.delete(0)  # whole, and against a step with other groups
    saved.delete(2)
    assert_same(saved.load(3), some_small(3))


def test_retention_takes_time_in_proportion_to_the_steps():
    """A run that keeps thousands of them compares each with few others."""

    class Counted(int):
        n_compared = 0
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.n_compared += 1
            return int(self) == other

    steps: list[int] = [Counted(step) for step in range(500)]
    counted, higher = by_age(steps, [*map(Counted, range(100, 500)), Counted(50)])
    assert Counted.n_compared < 10 * len(steps)
    assert counted == [*range(50), *range(100, 500), 50] and higher == [*range(51, 100)]
