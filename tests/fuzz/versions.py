"""Versions of weights and manifests of folders to fuzz: index, metadata and rows are changed, and hashes mended."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from gcodec.archive import save_file
from gcodec.sync import Publisher, Subscriber
from gcodec.sync.version_chain import StoredMessage, StoredVersion, Ways
from gcodec.sync.version_folder import _hash_of_rows, _manifest_from_json, _manifest_to_json
from tests.fuzz.containers import LIMIT, ArchiveSeed, some_tensors
from tests.fuzz.mutation import Dice, Text, changed


class Versions:
    """The fuzzing target of messages: a subscriber reads them, and an error leaves its weights as they are."""

    seconds, n_prefix = 10.0, 0

    def __init__(self) -> None:
        self.before = some_tensors(1)
        self.after = {name: (value + value / 64).astype(value.dtype) for name, value in self.before.items()}
        publisher = Publisher(self.before, threads=1)
        difference = publisher.publish(self.after)
        self.whole = [difference.data, difference.anchor()]
        self.seeds = [ArchiveSeed(data) for data in self.whole]
        self.texts = [seed.index for seed in self.seeds]
        self.states = difference.info.base or "", difference.state, "0" * 16, "", "g" * 16, "0" * 17

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return self.whole

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        if dice.random() < 0.6:
            return dice.pick(self.seeds).mutated(dice, self.texts)
        metadata = {
            "gcodec-sync": dice.pick(("1", "1", "1", "2", "")),
            "gcodec-sync.state": dice.pick(self.states),
            "gcodec-sync.version": dice.pick(("1", "7", "0", "-1", "1e3", "9" * 25, "\u0663", "")),
        }
        if dice.random() < 0.7:
            metadata["gcodec-sync.base"] = dice.pick(self.states)
        if dice.random() < 0.1:
            metadata[dice.pick(("gcodec-sync.part", "gcodec-sync.x", "x"))] = dice.pick(("", "0-of-2"))
        tensors = {name: value for name, value in self.after.items() if dice.random() < 0.9}
        stream = io.BytesIO()
        save_file(tensors, stream, metadata=metadata, threads=1, base=dice.pick((None, self.before)))
        return stream.getvalue()

    def run(self, case: bytes) -> Any:
        """Read a message into tensors of the publisher's layout, and into none."""
        given = {name: value.copy() for name, value in self.before.items()}
        subscriber, results = Subscriber(given, threads=1, max_output_bytes=LIMIT), []
        try:
            results.append(subscriber.apply(case).number)
            subscriber.verify()
        finally:
            expected = self.after if subscriber.number and results else self.before
            same = all(np.array_equal(given[name], value) for name, value in expected.items())
            assert same or subscriber.number, "weights changed under an error"
        own = Subscriber(like="numpy", threads=1, max_output_bytes=LIMIT)
        if not self._needs_base(case):
            own.apply(case)
        return results, sorted(own.tensors)

    @staticmethod
    def _needs_base(case: bytes) -> bool:
        from gcodec.sync import read_version_info

        return not read_version_info(case).is_anchor


class Manifests:
    """The fuzzing target of manifests: they are read, and a way to their newest version is sought."""

    seconds, n_prefix = 1.0, 0

    def __init__(self) -> None:
        small, large = StoredMessage(100, "1" * 16), StoredMessage(9000, "2" * 16)
        states = [f"{number:016x}" for number in range(6)]
        self.versions = [
            StoredVersion(
                number,
                states[number],
                states[number - 1] if number > 1 else None,
                small if number > 1 else None,
                large if number in (1, 3) else None,
                {"step": str(number)},
            )
            for number in range(1, 6)
        ]
        self.text = _manifest_to_json(self.versions)
        rows = json.loads(self.text)["versions"]
        self.rows = Text(json.dumps(rows))

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return [self.text]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        if dice.random() < 0.2:
            return changed(dice, self.text, 3)
        text = self.rows.mutated(dice, [self.rows])
        try:
            digest = _hash_of_rows(json.loads(text))
        except (ValueError, RecursionError):
            digest = "0" * 16
        return f'{{"format": "gcodec-sync-folder-1", "hash": "{digest}", "versions": {text}}}'.encode(errors="replace")

    def run(self, case: bytes) -> Any:
        """Read a manifest, and look for ways through it."""
        versions = _manifest_from_json(case, "a manifest")
        states = ("", f"{2:016x}", f"{5:016x}") if versions else ()
        return [list(Ways(versions).best(state) or ()) for state in states]
