"""The laws of the way to the newest version of a folder: the fewest bytes, and no file that is not needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import xxhash

import gcodec
from gcodec.sync import Publisher, Subscriber, VersionFolder
from gcodec.sync.version_chain import Step, StoredMessage, StoredVersion, Ways
from tests.sync.folder_cases import filled, forged
from tests.sync.states import equal, moved


def test_a_current_subscriber_reads_differences_and_a_late_one_the_anchor(tmp_path):
    folder = VersionFolder(tmp_path)
    _, states = filled(folder, 3, anchor_every=4)
    current = Subscriber()
    current.catch_up(folder)
    publisher, state = Publisher(start=states[-1], first=4), moved(states[-1], 4)
    folder.send(publisher.publish(state, anchor=True))
    for subscriber, removed in ((current, "anchor"), (Subscriber(), "difference")):
        path = tmp_path / f"{4:010}.{removed}.gc"
        path.rename(tmp_path / "away")  # it is not read
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
        return found  # type: ignore[return-value]

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
    rows = [
        {
            "version": k,
            "state": f"{k:016x}",
            "base": f"{k - 1:016x}",
            "metadata": {},
            "difference": gone,
            "anchor": gone,
        }
        for k in range(1, 1001)
    ]
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
    assert len(readings) == 2  # the second finds nothing new
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


def test_another_way_leads_around_a_message_in_the_place_of_another(tmp_path):
    _, states = filled(VersionFolder(tmp_path), 3, anchor_every=None)
    subscriber = Subscriber()
    subscriber.catch_up(VersionFolder(tmp_path), to=1)
    # Of the same number and weights, but from others: it does not apply to version 2.
    other = Publisher(start=moved(states[1], 9), first=3).publish(states[2])
    anchor = Publisher(first=3).publish(states[2]).anchor()
    folder = forged(tmp_path, {}, {}, {"difference": other.data, "anchor": anchor})
    assert len(other.data) < len(anchor)  # so that it is tried first
    assert subscriber.catch_up(folder) == 2  # version 2, and the anchor
    assert subscriber.number == 3 and equal(subscriber.tensors, states[2])
