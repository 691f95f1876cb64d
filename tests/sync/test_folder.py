"""The laws of a folder of versions: whatever happens to its publisher, readers find whole versions and their order."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import xxhash

import gcodec
from gcodec.archive.folders import LOCK, replace_file, writer_lock
from gcodec.errors import GcodecError
from gcodec.sync import BrokenChain, Publisher, Subscriber, VersionFolder
from gcodec.sync.version_chain import Step, StoredMessage, StoredVersion, Ways
from tests.support.children import forked
from tests.support.special_files import ENDLESS, no_waiting, put
from tests.sync.states import equal, moved, some_state


def filled(folder: VersionFolder, n_versions: int, **options: Any) -> tuple[Publisher, list[dict[str, Any]]]:
    """Send versions to a folder; return their publisher and their states."""
    publisher, states = Publisher(**options), [some_state()]
    for number in range(n_versions):
        if number:
            states.append(moved(states[-1], seed=number))
        folder.send(publisher.publish(states[-1], metadata={"step": str(number)}))
    return publisher, states


@pytest.mark.parametrize("how", ["path", "memory", "file"])
def test_subscribers_catch_up_from_wherever_they_are(tmp_path, how):
    place = {"path": str(tmp_path / "new" / "run"), "memory": f"memory://{tmp_path}", "file": f"file://{tmp_path}/run"}
    if how != "path":
        pytest.importorskip("fsspec")
    folder = VersionFolder(place[how])
    assert folder.newest == 0
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
    _, states = filled(folder, 9, anchor_every=3)       # anchors: 1, 4, 7
    assert [version.number for version in folder.versions()] == [4, 5, 6, 7, 8, 9]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {LOCK, "versions.json", *(f"{n:010}.difference.gc" for n in range(4, 10)),
                     *(f"{n:010}.anchor.gc" for n in (4, 7))}
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


class WithoutAnchors:
    """A source whose anchors are gone."""

    def __init__(self, folder: VersionFolder) -> None:
        self.folder, self.message = folder, folder.message

    def versions(self) -> list[StoredVersion]:
        """Return the versions that have a difference."""
        return [version._replace(anchor=None) for version in self.folder.versions()]


def test_a_current_subscriber_reads_differences_and_a_late_one_the_anchor(tmp_path):
    folder = VersionFolder(tmp_path)
    _, states = filled(folder, 3, anchor_every=4)
    current = Subscriber()
    current.catch_up(folder)
    publisher, state = Publisher(start=states[-1], first=4), moved(states[-1], 4)
    folder.send(publisher.publish(state, anchor=True))
    for subscriber, removed in ((current, "anchor"), (Subscriber(), "difference")):
        path = tmp_path / f"{4:010}.{removed}.gc"
        path.rename(tmp_path / "away")      # it is not read
        assert subscriber.catch_up(folder) == 1
        (tmp_path / "away").rename(path)
        assert equal(subscriber.tensors, state)


def test_the_way_is_that_of_the_fewest_bytes():
    small, large = StoredMessage(10, ""), StoredMessage(100, "")

    def stored(
        number: int, anchor: StoredMessage | None = None, difference: StoredMessage | None = small
    ) -> StoredVersion:
        base = f"state {number - 1}" if difference else None
        return StoredVersion(number, f"state {number}", base, difference, anchor, {})

    chain = [stored(1, large, None), stored(2), stored(3, large), stored(4), stored(5, StoredMessage(15, ""))]

    def way(to: int, state: str, without: tuple[Step, ...] = ()) -> list[tuple[int, bool]] | None:
        versions = [version for version in chain if version.number <= to]
        steps = Ways(versions, without=without).best(state)
        later = Ways(versions)
        for step in without:
            later.leave_out(step)
        found = None if steps is None else [tuple(step) for step in steps]
        again = later.best(state)
        assert found == (None if again is None else list(again))
        return found        # type: ignore[return-value]

    assert way(2, "") == [(1, True), (2, False)]
    assert way(3, "") == [(3, True)]
    assert way(4, "state 3") == [(4, False)]
    assert way(4, "state 1") == [(2, False), (3, False), (4, False)]
    assert way(5, "state 4") == [(5, False)]
    assert way(5, "state 3") == [(5, True)]
    assert way(5, "state 3", (Step(5, True),)) == [(4, False), (5, False)]
    assert way(4, "state 1", (Step(3, False),)) == [(3, True), (4, False)]
    assert way(4, "of another run") == [(3, True), (4, False)]
    assert way(4, "state 4") == []
    chain = chain[1:]
    assert way(2, "state 1") == [(2, False)]
    assert way(2, "") is None
    assert way(5, "state 1", (Step(5, True), Step(5, False))) is None


def test_messages_that_are_gone_cost_one_look_each(tmp_path, monkeypatch):
    gone = {"bytes": 1, "hash": "0" * 16}
    rows = [{"version": k, "state": f"{k:016x}", "base": f"{k - 1:016x}", "metadata": {}, "difference": gone,
             "anchor": gone} for k in range(1, 1001)]
    digest = xxhash.xxh3_64_hexdigest(json.dumps(rows, separators=(",", ":"), sort_keys=True).encode())
    manifest = {"format": "gcodec-sync-folder-1", "versions": rows, "hash": digest}
    (tmp_path / "versions.json").write_text(json.dumps(manifest))
    folder, subscriber = VersionFolder(tmp_path), Subscriber({"w": torch.zeros(9)})
    looks: list[str] = []

    def looking(name: str, function: Callable[..., Any]) -> None:
        def look(*arguments: Any, **options: Any) -> Any:
            looks.append(name)
            return function(*arguments, **options)

        monkeypatch.setattr(folder, name, look)

    looking("versions", folder.versions)
    looking("message", folder.message)
    with pytest.raises(gcodec.Corruption, match=r"a message is gone: .*0000000001\.anchor\.gc"):
        subscriber.catch_up(folder)
    assert looks.count("message") == 1000 and looks.count("versions") == 2
    assert subscriber.number == 0


def test_each_version_on_the_way_is_compared_with_one_reading_of_the_manifest(tmp_path, monkeypatch):
    folder = VersionFolder(tmp_path)
    _, states = filled(folder, 5)
    read, readings = folder.versions, list[int]()

    def versions() -> tuple[StoredVersion, ...]:
        readings.append(1)
        return read()

    monkeypatch.setattr(folder, "versions", versions)
    subscriber = Subscriber()
    assert subscriber.catch_up(folder) == 5
    assert len(readings) == 2       # the second finds nothing new
    assert equal(subscriber.tensors, states[-1])


def test_the_ways_agree_with_a_search_through_all():
    random = Random(3)
    for _ in range(300):
        versions = []
        for number in range(1, random.randint(2, 7)):
            sizes = [random.choice([None, StoredMessage(random.randint(1, 30), "")]) for _ in range(2)]
            difference, anchor = sizes if any(sizes) else (StoredMessage(9, ""), None)
            base = None if difference is None else random.choice([f"{number - 1}", f"{number - 1}", "1", "x"])
            state = random.choice([f"{number}"] * 5 + ["1"])
            versions.append(StoredVersion(number, state, base, difference, anchor, {}))
        ways, without = Ways(versions), set[Step]()
        for state in random.choices(["", "1", "2", "3", "x"], k=6):
            best = ways.best(state)
            found = None if best is None else list(best)
            costs = list(all_ways(versions, state, without))
            assert (found is None) == (not costs)
            if found is None:
                break
            assert n_bytes_of(found, versions) == min(costs)
            if found:
                without.add(random.choice(found))
                for step in without:
                    ways.leave_out(step)


def n_bytes_of(steps: list[Step], versions: list[StoredVersion]) -> int:
    """Return the bytes of the messages of a way."""
    rows = {version.number: version for version in versions}
    messages = [rows[step.number].anchor if step.is_anchor else rows[step.number].difference for step in steps]
    return sum(message.n_bytes for message in messages if message is not None)


def all_ways(versions: list[StoredVersion], state: str, without: set[Step]) -> Iterator[int]:
    """Yield the bytes of all ways to the last version through versions that follow each other."""
    if state == versions[-1].state:
        yield 0
        return
    *earlier, last = versions
    if last.anchor is not None and Step(last.number, True) not in without:
        yield last.anchor.n_bytes
    if last.difference is not None and Step(last.number, False) not in without:
        if last.base == state:
            yield last.difference.n_bytes
        elif earlier and earlier[-1].state == last.base:
            yield from (last.difference.n_bytes + rest for rest in all_ways(earlier, state, without))


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


def forged(path: Path, *changes: dict[str, Any]) -> VersionFolder:
    """Change rows of a folder's manifest, of which the hash is right again; return the folder."""
    manifest = json.loads((path / "versions.json").read_text())
    for row, change in zip(manifest["versions"], changes, strict=True):
        for key in change.keys() & {"difference", "anchor"}:
            data = change[key]
            name = f"{change.get('version', row['version']):010}.{key}.gc"
            (path / name).write_bytes(data)
            change[key] = {"bytes": len(data), "hash": xxhash.xxh3_64_hexdigest(data)}
        row.update(change)
    text = json.dumps(manifest["versions"], separators=(",", ":"), sort_keys=True)
    manifest["hash"] = xxhash.xxh3_64_hexdigest(text.encode())
    (path / "versions.json").write_text(json.dumps(manifest))
    return VersionFolder(path)


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
    folder.send(Publisher(first=6).publish(state))      # an honest one
    assert subscriber.catch_up(folder) == 1
    assert subscriber.number == 6 and equal(subscriber.tensors, state)


def test_another_way_leads_around_a_message_in_the_place_of_another(tmp_path):
    _, states = filled(VersionFolder(tmp_path), 3, anchor_every=None)
    subscriber = Subscriber()
    subscriber.catch_up(VersionFolder(tmp_path), to=1)
    # Of the same number and weights, but from others: it does not apply to version 2.
    other = Publisher(start=moved(states[1], 9), first=3).publish(states[2])
    anchor = Publisher(first=3).publish(states[2]).anchor()
    folder = forged(tmp_path, {}, {}, {"difference": other.data, "anchor": anchor})
    assert len(other.data) < len(anchor)        # so that it is tried first
    assert subscriber.catch_up(folder) == 2     # version 2, and the anchor
    assert subscriber.number == 3 and equal(subscriber.tensors, states[2])


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
        assert subscriber.catch_up(folder) == 1     # by the anchor
    assert subscriber.number == 4 and equal(subscriber.tensors, states[2])
    put(kind, tmp_path / "versions.json")
    what = r"has more than \d+ bytes" if kind == "huge file" else "must be a regular file"
    version = publisher.publish(states[2])
    for call in (folder.versions, lambda: subscriber.catch_up(folder), lambda: folder.send(version)):
        with no_waiting(), pytest.raises(gcodec.Corruption, match=r"versions\.json: " + what):
            call()


def test_links_to_files_are_read(tmp_path):
    folder = VersionFolder(tmp_path / "run")
    _, states = filled(folder, 3)
    for path in list((tmp_path / "run").iterdir()):
        path.symlink_to(path.rename(tmp_path / path.name))
    subscriber = Subscriber()
    assert subscriber.catch_up(folder) == 3
    assert equal(subscriber.tensors, states[-1])


@pytest.mark.parametrize("anchor", [True, False])
def test_an_anchor_mends_weights_that_something_else_changed(tmp_path, anchor, caplog):
    folder = VersionFolder(tmp_path)
    publisher, states = filled(folder, 3, anchor_every=2 if anchor else None)       # anchors: 1 and 3, or 1
    subscriber = Subscriber()
    subscriber.catch_up(folder)
    subscriber.tensors["float32"][5, 7] += 1
    state = moved(states[-1], 9)
    folder.send(publisher.publish(state))
    assert subscriber.catch_up(folder) == (2 if anchor else 4)      # from an anchor of no higher number
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
        else:       # a blank for another
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
        assert len(list((tmp_path / str(nth)).iterdir())) == 3      # no leftovers: an anchor, the manifest and the lock
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


def test_other_files_are_left_alone(tmp_path):
    others = ("notes.txt", "model.gc", "x.partial", ".model.gc.0123abcd.partial")     # the last is being written
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
        if not refused:     # the other one comes in between
            refused.append(name)
            with pytest.raises(GcodecError, match="another process is writing"):
                second[0].send(second[1])
        replace_file(folder, name, data)

    monkeypatch.setattr("gcodec.sync.version_folder.writer_lock", partial(writer_lock, seconds=0))
    monkeypatch.setattr("gcodec.sync.version_folder.replace_file", replace)
    first[0].send(first[1])
    assert refused
    with pytest.raises(BrokenChain, match=r"first=folder\.newest"):
        second[0].send(second[1])


def test_a_version_is_sent_though_old_files_cannot_be_removed(tmp_path, caplog):
    folder = VersionFolder(tmp_path, keep_anchors=1)
    (tmp_path / "0000000009.anchor.gc").mkdir()     # the least that no one can remove as a file, whoever it is
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
    for number in range(1, 6):      # to the very number that is held
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


def test_senseless_arguments_of_a_folder_are_refused(tmp_path, monkeypatch):
    for wrong in (0, "2", 1.5):
        with pytest.raises(gcodec.InvalidArgument):
            VersionFolder(tmp_path, keep_anchors=wrong)     # type: ignore[arg-type]
    folder, version = VersionFolder(tmp_path), Publisher().publish(some_state())
    calls: list[tuple[Callable[..., Any], Any]] = [
        (VersionFolder, None), (VersionFolder, b"x"), (folder.send, version.data), (Subscriber().catch_up, "folder"),
        (Subscriber, {1: torch.zeros(3)}), (lambda to: Subscriber().catch_up(folder, to=to), "1")]
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
        {"version", "state", "base", "metadata", "difference", "anchor"}] * 2
