"""The laws of a folder of versions that is damaged, or whose publisher is killed: readers find whole versions."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.sync import BrokenChain, Publisher, Subscriber, VersionFolder
from tests.support.children import forked
from tests.support.special_files import ENDLESS, no_waiting, put
from tests.sync.folder_cases import filled, forged
from tests.sync.states import equal, moved, some_state


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_a_damaged_message_is_named_and_a_later_anchor_makes_up_for_it(tmp_path, damage, caplog):
    folder = VersionFolder(tmp_path)
    publisher, states = filled(folder, 4, anchor_every=None)
    subscriber = Subscriber()
    subscriber.catch_up(folder, to=1)
    path = tmp_path / f"{3:010}.difference.gc"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.unlink() if damage == "gone" else path.write_bytes({"flip": data, "cut": data[:-9], "empty": b""}[damage])
    with pytest.raises(gcodec.Corruption, match=r"0000000003\.difference\.gc"):
        subscriber.catch_up(folder)
    assert equal(subscriber.tensors, states[1])
    folder.send(publisher.publish(states[3], anchor=True))
    assert subscriber.catch_up(folder) == 1
    assert equal(subscriber.tensors, states[3])
    assert "version 3 cannot be used" in caplog.text


@pytest.mark.parametrize("what", ["number", "state", "difference for anchor"])
def test_an_intact_message_in_the_place_of_another_is_not_used(tmp_path, what):
    before, state = some_state(), moved(some_state(), 1)
    VersionFolder(tmp_path).send(Publisher(first=5).publish(state))
    publisher = Publisher(start=before, first=1 << 61 if what == "number" else 5)
    version = publisher.publish(state)
    row = {"anchor": version.anchor() if what != "difference for anchor" else version.data}
    folder = forged(tmp_path, row | ({"state": "a" * 16} if what == "state" else {}))
    subscriber = Subscriber({name: x.clone() for name, x in before.items()})
    match = r"0000000005\.anchor\.gc: is version \d+ .*, but is stored as version 5 "
    with pytest.raises(gcodec.Corruption, match=match):
        subscriber.catch_up(folder)
    assert subscriber.number == 0 and equal(subscriber.tensors, before)
    folder.send(Publisher(first=6).publish(state))  # an honest one
    assert subscriber.catch_up(folder) == 1
    assert subscriber.number == 6 and equal(subscriber.tensors, state)


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    folder = VersionFolder(tmp_path)
    publisher, states = filled(folder, 3, anchor_every=None)
    subscriber = Subscriber()
    subscriber.catch_up(folder, to=1)
    put(kind, tmp_path / f"{3:010}.difference.gc")
    what = r"has \d+ bytes, where the manifest says" if kind == "huge file" else "must be a regular file"
    with no_waiting(), pytest.raises(gcodec.Corruption, match=r"0000000003\.difference\.gc: " + what):
        subscriber.catch_up(folder)
    assert subscriber.number == 2 and equal(subscriber.tensors, states[1])
    folder.send(publisher.publish(states[2], anchor=True))
    with no_waiting():
        assert subscriber.catch_up(folder) == 1  # by the anchor
    assert subscriber.number == 4 and equal(subscriber.tensors, states[2])
    put(kind, tmp_path / "versions.json")
    what = r"has more than \d+ bytes" if kind == "huge file" else "must be a regular file"
    version = publisher.publish(states[2])
    for call in (folder.versions, lambda: subscriber.catch_up(folder), lambda: folder.send(version)):
        with no_waiting(), pytest.raises(gcodec.Corruption, match=r"versions\.json: " + what):
            call()


@pytest.mark.parametrize("anchor", [True, False])
def test_an_anchor_mends_weights_that_something_else_changed(tmp_path, anchor, caplog):
    folder = VersionFolder(tmp_path)
    publisher, states = filled(folder, 3, anchor_every=2 if anchor else None)  # anchors: 1 and 3, or 1
    subscriber = Subscriber()
    subscriber.catch_up(folder)
    subscriber.tensors["float32"][5, 7] += 1
    state = moved(states[-1], 9)
    folder.send(publisher.publish(state))
    assert subscriber.catch_up(folder) == (2 if anchor else 4)  # from an anchor of no higher number
    assert equal(subscriber.tensors, state)
    assert "something else changed the weights of version 3: 'float32'" in caplog.text


def test_changed_weights_without_an_anchor_are_an_error(tmp_path):
    folder, state = VersionFolder(tmp_path), some_state()
    publisher, subscriber = Publisher(start=state), Subscriber({name: x.clone() for name, x in state.items()})
    for seed in (1, 2):
        state = moved(state, seed)
        folder.send(publisher.publish(state))
        subscriber.catch_up(folder, to=1)
    subscriber.tensors["float32"][5, 7] += 1
    with pytest.raises(BrokenChain, match="an anchor is needed"):
        subscriber.catch_up(folder)
    assert subscriber.number == 1


def test_a_damaged_manifest_is_named(tmp_path):
    folder = VersionFolder(tmp_path)
    filled(folder, 2)
    path, subscriber = tmp_path / "versions.json", Subscriber()
    subscriber.catch_up(folder, to=1)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        try:
            subscriber.catch_up(folder)
        except gcodec.Corruption as error:
            assert "versions.json" in str(error)
            assert subscriber.number == 1
        else:  # a blank for another
            assert chr(whole[at]).isspace()
            subscriber = Subscriber()
            subscriber.catch_up(folder, to=1)
    for text in (b"", b"[]", b"{}", b"null", b'{"format":1}', b"\xff", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(gcodec.Corruption, match=r"versions\.json"):
            folder.versions()


def test_a_manifest_of_a_later_format_is_unsupported_and_nothing_is_written_over_it(tmp_path):
    folder = VersionFolder(tmp_path)
    filled(folder, 2)
    path = tmp_path / "versions.json"
    manifest = json.loads(path.read_text()) | {"format": "gcodec-sync-folder-2", "rows": []}
    for text in (json.dumps(manifest), '{"format": "gcodec-sync-folder-17"}'):
        path.write_text(text)
        for call in (folder.versions, lambda: Subscriber().catch_up(folder), lambda: filled(folder, 1)):
            with pytest.raises(gcodec.Unsupported, match=r"versions\.json.*'gcodec-sync-folder-\d+'.*reads"):
                call()
        assert path.read_text() == text


@pytest.mark.parametrize("base", [{}, [], "", 0, False, "A" * 16])
def test_a_base_that_is_no_hash_is_refused(tmp_path, base):
    filled(VersionFolder(tmp_path), 2)
    with pytest.raises(gcodec.Corruption, match="16 hexadecimal digits"):
        forged(tmp_path, {}, {"base": base}).versions()


#: The calls of the operating system at which a publisher may be killed.
CALLS = ("open", "fsync", "replace", "unlink")


def kill_at(nth: int, when: str) -> None:
    """Have this process kill itself at the nth of these calls, before or after it is made."""
    left = nth

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    os.fsync = counted(os.fsync)
    for name in ("open", "replace", "unlink"):
        setattr(Path, name, counted(getattr(Path, name)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_publisher_that_is_killed_leaves_whole_versions(tmp_path, when):
    state = {"w": torch.linspace(-1, 1, 3000).bfloat16(), "n": torch.arange(4)}
    after = {"w": state["w"] * 1.01, "n": state["n"]}
    n_killed = 0
    for nth in range(1, 40):
        folder = VersionFolder(tmp_path / str(nth), keep_anchors=1)
        publisher = Publisher(threads=1)
        folder.send(publisher.publish(state))
        version = publisher.publish(after, anchor=True)

        def send(nth: int = nth, version: Any = version, folder: VersionFolder = folder) -> int:
            kill_at(nth, when)
            folder.send(version)
            return 0

        code, printed = forked(send).wait()
        assert code in (0, -signal.SIGKILL), printed
        subscriber = Subscriber(threads=1)
        subscriber.catch_up(folder)
        assert equal(subscriber.tensors, after if subscriber.number == 2 else state)
        resumed = Publisher(first=folder.newest + 1)
        folder.send(resumed.publish(after))
        subscriber.catch_up(folder)
        assert equal(subscriber.tensors, after)
        assert len(list((tmp_path / str(nth)).iterdir())) == 3  # no leftovers: an anchor, the manifest and the lock
        if not code:
            break
        n_killed += 1
    assert 8 <= n_killed < 39


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_folder_that_cannot_be_written_keeps_its_versions(tmp_path, monkeypatch, name):
    folder = VersionFolder(tmp_path)
    publisher, states = filled(folder, 2)
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os if name == "fsync" else Path, name, full)
        with pytest.raises(OSError, match=f"No space.*{tmp_path}/"):
            folder.send(publisher.publish(moved(states[-1], 3)))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    state = moved(states[-1], 4)
    folder.send(publisher.publish(state))
    subscriber = Subscriber()
    subscriber.catch_up(folder)
    assert equal(subscriber.tensors, state)


def test_a_manifest_that_there_is_no_memory_for_is_named(tmp_path, monkeypatch):
    def loads(text):
        raise MemoryError

    (tmp_path / "versions.json").write_bytes(b"{}")
    monkeypatch.setattr(json, "loads", loads)
    with pytest.raises(gcodec.LimitExceeded, match=r"versions\.json: there is no memory to read the manifest's 2"):
        VersionFolder(tmp_path).versions()
