"""The laws of a folder of versions: whatever happens to its publisher, readers find whole versions and their order."""

from __future__ import annotations

import builtins
import json
import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.archive.folders import LOCK, replace_file, writer_lock
from gcodec.errors import GcodecError, InvalidArgument
from gcodec.sync import BrokenChain, Publisher, Subscriber, VersionFolder, version_folder
from tests.sync.folder_cases import WithoutAnchors, filled
from tests.sync.states import equal, moved, some_state


@pytest.mark.parametrize("how", ["path", "memory", "file"])
def test_subscribers_catch_up_from_wherever_they_are(tmp_path, how):
    place = {"path": str(tmp_path / "new" / "run"), "memory": f"memory://{tmp_path}", "file": f"file://{tmp_path}/run"}
    if how != "path":
        pytest.importorskip("fsspec")
    folder = VersionFolder(place[how])
    assert folder.newest == 0
    if how != "memory":
        with pytest.raises(GcodecError, match=f"{re.escape(place[how])}: no such folder"):
            Subscriber().catch_up(folder)
        Path(place[how].removeprefix("file://")).mkdir(parents=True)
    assert Subscriber().catch_up(folder) == 0
    publisher, state = Publisher(anchor_every=3), some_state()
    subscribers = {every: Subscriber() for every in (1, 2, 5)}
    for number in range(1, 12):
        version = publisher.publish(state, metadata={"step": str(10 * number)})
        assert folder.send(version) >= len(version.data)
        assert folder.newest == number
        assert folder.versions()[-1].metadata == {"step": str(10 * number)}
        for every, subscriber in subscribers.items():
            if number % every == 0:
                assert subscriber.catch_up(folder) > 0
                assert equal(subscriber.tensors, state)
                assert subscriber.number == number
                assert subscriber.catch_up(folder) == 0
        state = moved(state, number)


def test_retention_keeps_what_the_newest_anchors_need(tmp_path):
    folder = VersionFolder(tmp_path, keep_anchors=2)
    _, states = filled(folder, 9, anchor_every=3)  # anchors: 1, 4, 7
    assert [version.number for version in folder.versions()] == [4, 5, 6, 7, 8, 9]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        LOCK,
        "versions.json",
        *(f"{n:010}.difference.gc" for n in range(4, 10)),
        *(f"{n:010}.anchor.gc" for n in (4, 7)),
    }
    for number in range(4, 10):
        subscriber = Subscriber()
        subscriber.catch_up(folder, to=number)
        assert equal(subscriber.tensors, states[number - 1])
    late = Subscriber()
    late.apply(Publisher().publish(states[1]).data)
    with pytest.raises(BrokenChain, match="an anchor is needed"):
        late.catch_up(WithoutAnchors(folder))
    everything = VersionFolder(tmp_path / "all", keep_anchors=None)
    filled(everything, 5, anchor_every=1)
    assert len(everything.versions()) == 5


def test_a_version_that_would_make_the_manifest_too_long_to_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(version_folder, "MAX_MANIFEST", 5000)
    folder, publisher, state = VersionFolder(tmp_path), Publisher(), some_state()
    folder.send(publisher.publish(state, metadata={"config": "c" * 3000}))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidArgument, match=r"versions.json: must have at most 5000 bytes .* version 2, .* shorter"):
        folder.send(publisher.publish(moved(state, 1), metadata={"config": "c" * 3000}))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    folder.send(publisher.publish(moved(state, 2)))
    subscriber = Subscriber()
    subscriber.catch_up(folder)
    assert subscriber.number == 3 and equal(subscriber.tensors, moved(state, 2))


def test_links_to_files_are_read(tmp_path):
    folder = VersionFolder(tmp_path / "run")
    _, states = filled(folder, 3)
    for path in list((tmp_path / "run").iterdir()):
        path.symlink_to(path.rename(tmp_path / path.name))
    subscriber = Subscriber()
    assert subscriber.catch_up(folder) == 3
    assert equal(subscriber.tensors, states[-1])


def test_a_publisher_goes_on_in_its_folder(tmp_path):
    folder = VersionFolder(tmp_path)
    _, states = filled(folder, 3)
    with pytest.raises(BrokenChain, match=r"folder\.newest"):
        folder.send(Publisher().publish(states[0]))
    follower = Subscriber()
    follower.catch_up(folder)
    state = moved(states[-1], 5)
    resumed = Publisher(first=folder.newest + 1)
    folder.send(resumed.publish(state))
    with_base = Publisher(start=state, first=folder.newest + 1)
    folder.send(with_base.publish(moved(state, 6)))
    assert [version.anchor is not None for version in folder.versions()] == [True, False, False, True, False]
    follower.catch_up(folder)
    assert equal(follower.tensors, moved(state, 6))


def test_a_version_that_was_never_sent_is_made_up_for(tmp_path):
    folder = VersionFolder(tmp_path)
    publisher, states = filled(folder, 2)
    publisher.publish(moved(states[-1], 7))
    state = moved(states[-1], 8)
    folder.send(publisher.publish(state))
    assert folder.versions()[-1].anchor is not None
    subscriber = Subscriber()
    subscriber.catch_up(folder)
    assert equal(subscriber.tensors, state)


@pytest.mark.parametrize("starts", [False, True])
def test_a_first_version_that_was_never_sent_is_made_up_for(tmp_path, starts):
    folder, state = VersionFolder(tmp_path), some_state()
    publisher = Publisher(start=moved(state, 9) if starts else None)
    publisher.publish(state)
    state = moved(state, 1)
    folder.send(publisher.publish(state))
    subscriber = Subscriber()
    assert subscriber.catch_up(folder) == 1
    assert equal(subscriber.tensors, state)


def test_weights_that_all_have_need_no_anchor(tmp_path):
    folder, state = VersionFolder(tmp_path), some_state()
    publisher, subscriber = Publisher(start=state), Subscriber({name: x.clone() for name, x in state.items()})
    state = moved(state, 1)
    folder.send(publisher.publish(state))
    assert folder.versions()[0].anchor is None
    subscriber.catch_up(folder)
    assert equal(subscriber.tensors, state)
    with pytest.raises(BrokenChain, match="an anchor is needed"):
        Subscriber().catch_up(folder)


def test_other_files_are_left_alone(tmp_path):
    others = ("notes.txt", "model.gc", "x.partial", ".model.gc.0123abcd.partial")  # the last is being written
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "0000000009.anchor.gc").write_text("left by a publisher that was killed")
    for name in ("0000000009.anchor.gc", "versions.json"):
        (tmp_path / f".{name}.0123abcd.partial").write_text("and this")
    filled(VersionFolder(tmp_path, keep_anchors=1), 1)
    ours = {LOCK, "versions.json", "0000000001.anchor.gc"}
    assert {path.name for path in tmp_path.iterdir()} == {*others, *ours}


def test_a_second_publisher_waits_for_the_first(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    first, second = ((VersionFolder(tmp_path), Publisher().publish({"w": torch.ones(9)})) for _ in range(2))
    refused: list[str] = []

    def replace(folder: Any, name: str, data: bytes) -> None:
        if not refused:  # the other one comes in between
            refused.append(name)
            with ThreadPoolExecutor(1) as others, pytest.raises(GcodecError, match="another process is writing"):
                others.submit(second[0].send, second[1]).result()
            with pytest.raises(GcodecError, match="this very thread is writing"):
                second[0].send(second[1])
        replace_file(folder, name, data)

    monkeypatch.setattr("gcodec.archive.folders.writer_lock", partial(writer_lock, seconds=0))
    monkeypatch.setattr("gcodec.sync.version_folder.replace_file", replace)
    first[0].send(first[1])
    assert refused
    with pytest.raises(BrokenChain, match=r"first=folder\.newest"):
        second[0].send(second[1])


def test_a_version_is_sent_though_old_files_cannot_be_removed(tmp_path, caplog):
    folder = VersionFolder(tmp_path, keep_anchors=1)
    (tmp_path / "0000000009.anchor.gc").mkdir()  # the least that no one can remove as a file, whoever it is
    publisher, states = filled(folder, 3, anchor_every=2)
    assert folder.newest == 3
    assert "cannot remove" in caplog.text and "0000000009.anchor.gc" in caplog.text
    folder.send(publisher.publish(moved(states[-1], 4)))
    assert folder.newest == 4


def test_a_folder_that_another_run_writes_anew_is_followed(tmp_path, caplog):
    _, states = filled(VersionFolder(tmp_path), 5)
    subscriber = Subscriber()
    subscriber.catch_up(VersionFolder(tmp_path))
    shutil.rmtree(tmp_path)
    publisher, state = Publisher(), moved(states[0], seed=99)
    for number in range(1, 6):  # to the very number that is held
        VersionFolder(tmp_path).send(publisher.publish(state))
        caplog.clear()
        n_applied = subscriber.catch_up(VersionFolder(tmp_path))
        assert (n_applied > 0) == (number == 5)
        assert "another run" in caplog.text
        if number < 5:
            assert equal(subscriber.tensors, states[-1])
            state = moved(state, seed=number)
    assert equal(subscriber.tensors, state)
    assert subscriber.number == 5
    assert subscriber.catch_up(VersionFolder(tmp_path)) == 0


@pytest.mark.parametrize("n_versions", [1, 2])
def test_a_folder_that_is_written_anew_while_it_is_read_is_followed(tmp_path, n_versions):
    filled(VersionFolder(tmp_path), 1)
    new: list[dict[str, Any]] = []

    class WrittenAnew(VersionFolder):
        """A folder that another run takes over after its manifest was read, before the first message is."""

        def message(self, *args: Any, **options: Any) -> Any:
            if not new:
                shutil.rmtree(tmp_path)
                publisher = Publisher()
                for number in range(n_versions):
                    new.append(moved(some_state(), seed=90 + number))
                    VersionFolder(tmp_path).send(publisher.publish(new[-1]))
            return super().message(*args, **options)

    subscriber = Subscriber()
    assert subscriber.catch_up(WrittenAnew(tmp_path)) > 0
    assert equal(subscriber.tensors, new[-1])
    assert subscriber.number == n_versions


def test_a_folder_written_anew_without_an_anchor_leaves_the_weights(tmp_path):
    _, states = filled(VersionFolder(tmp_path), 3)
    subscriber = Subscriber()
    subscriber.catch_up(VersionFolder(tmp_path))
    shutil.rmtree(tmp_path)
    filled(VersionFolder(tmp_path), 2)
    VersionFolder(tmp_path).send(Publisher(start=states[1], first=3).publish(moved(states[1], seed=77)))
    with pytest.raises(BrokenChain):
        subscriber.catch_up(WithoutAnchors(VersionFolder(tmp_path)))
    assert equal(subscriber.tensors, states[-1])


def test_a_pickled_version_has_its_messages():
    version = Publisher().publish(some_state())
    assert pickle.loads(pickle.dumps(version)).data == version.data
    publisher = Publisher(start=some_state())
    version = publisher.publish(moved(some_state(), 1))
    copy = pickle.loads(pickle.dumps(version))
    assert copy.data == version.data
    with pytest.raises(gcodec.InvalidArgument, match="pickled without its anchor"):
        copy.anchor()
    version.anchor()
    assert pickle.loads(pickle.dumps(version)).anchor() == version.anchor()


@pytest.mark.parametrize("number", [np.uint8, np.int64, np.uint64])
def test_numbers_of_versions_may_be_integers_of_numpy(number, tmp_path):
    folder = VersionFolder(tmp_path, keep_anchors=number(2))
    publisher, state = Publisher(anchor_every=number(2), first=number(5)), some_state()
    for _ in range(4):
        folder.send(publisher.publish(state))
        state = moved(state, 0)
    assert [version.number for version in folder.versions()] == [5, 6, 7, 8]
    assert [version.number for version in folder.versions() if version.anchor is not None] == [5, 7]
    subscriber = Subscriber()
    subscriber.catch_up(folder, to=number(6))
    assert subscriber.number == 6


def test_senseless_arguments_of_a_folder_are_refused(tmp_path, monkeypatch):
    for wrong in (0, "2", 1.5):
        with pytest.raises(gcodec.InvalidArgument):
            VersionFolder(tmp_path, keep_anchors=wrong)  # type: ignore[arg-type]
    folder, version = VersionFolder(tmp_path), Publisher().publish(some_state())
    calls: list[tuple[Callable[..., Any], Any]] = [
        (VersionFolder, None),
        (VersionFolder, b"x"),
        (folder.send, version.data),
        (Subscriber().catch_up, "folder"),
        (Subscriber, {1: torch.zeros(3)}),
        (lambda to: Subscriber().catch_up(folder, to=to), "1"),
    ]
    for call, argument in calls:
        with pytest.raises(gcodec.InvalidArgument):
            call(argument)
    actual = builtins.__import__

    def without_fsspec(name: str, *more: Any, **options: Any) -> Any:
        if name == "fsspec":
            raise ImportError(name)
        return actual(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", without_fsspec)
    with pytest.raises(gcodec.GcodecError, match="pip install fsspec"):
        VersionFolder("s3://bucket/run")


def test_a_manifest_is_json_with_numbers_and_hashes(tmp_path):
    folder = VersionFolder(tmp_path)
    filled(folder, 2)
    manifest = json.loads((tmp_path / "versions.json").read_text())
    assert manifest["format"] == "gcodec-sync-folder-1"
    assert [set(row) for row in manifest["versions"]] == [
        {"version", "state", "base", "metadata", "difference", "anchor"}
    ] * 2
