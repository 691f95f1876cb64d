"""A store behind a URL that fails, to fuzz: everything that writes there, with calls of the store that fail.

A case is a byte, how the store is and how it fails, and for each thing that is done a byte, what, a byte, a version,
and a byte, which calls fail. Whatever happens, the error is one that callers know and names the URL; what was there
before stays until the new is whole; and once the store works again, everything that is there can be read and is right.
"""

from __future__ import annotations

import errno
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import gcodec
from gcodec.checkpoints import Checkpointer
from gcodec.errors import CheckpointWarning, GcodecError, InvalidArgument
from gcodec.sync import Publisher, Subscriber, VersionFolder
from tests.fuzz.mutation import Dice, changed
from tests.fuzz.series import file_of, tensors
from tests.support.slots import NoCredentials, Slots

ROOT, MOST, N_VERSIONS = "slots://run", 6, 32
SAVE, SAVE_FILE, COMPRESS, DECOMPRESS, STEP, DELETE, SEND = range(7)
ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: NoCredentials("Unable to locate\ncredentials"),
    lambda: OSError(errno.ENOSPC, "no room"),
    lambda: PermissionError("path"),
    lambda: TimeoutError(),
    lambda: ConnectionResetError(errno.ECONNRESET, "reset"),
    lambda: RuntimeError("store"),
    lambda: ValueError("signature"),
    lambda: KeyboardInterrupt(),
)


def is_temporary(name: str) -> bool:
    """Return True for the name that a file has before it is complete, or that an earlier one has meanwhile."""
    return name.endswith((".partial", ".replaced"))


class Failed(Exception):  # noqa: N818
    """What was tried has failed, as it may; the cause says why."""


def attempt(work: Callable[[], Any]) -> Any:
    """Return what work returns. Raises Failed where it ends as it may: with a known error that names the URL."""
    before = Slots.failed
    try:
        result = work()
        assert Slots.failed == before or not isinstance(Slots.error(), KeyboardInterrupt), "an interrupt is lost"
        return result
    except KeyboardInterrupt as error:
        raise Failed from error
    except GcodecError as error:
        assert ROOT in str(error), f"names no URL: {error}"
        assert not isinstance(error, gcodec.Corruption), f"is called damage: {error}"
        raise Failed from error
    except OSError as error:
        assert str(error.filename).startswith(ROOT), f"names no URL: {error!r}"
        assert Slots.failed > before, f"no call has failed: {error}"
        assert "\n" not in str(error)
        raise Failed from error


def said_by(error: BaseException | None) -> str:
    """Return what an error and those before it say, with their notes."""
    texts = []
    while error is not None:
        texts += [str(error), *getattr(error, "__notes__", ())]
        error = error.__cause__ or error.__context__
    return " ".join(texts)


class Store:
    """The store, and what it must hold.

    Attributes:
        files: For each name the contents that it may have; None: it may be missing.
        steps: For each step of a folder of checkpoints its version, and whether it may be missing.
        sent: The states of versions of weights that were published.
        n_sent: The last of them that must be there.
        n_failed: How many attempts have failed.
        hidden: Names of files that the store did not remove.
    """

    def __init__(self) -> None:
        self.files: dict[str, set[int | None]] = {}
        self.steps: dict[int, tuple[int, bool]] = {}
        self.sent: list[dict[str, np.ndarray]] = []
        self.publisher = Publisher(threads=1, anchor_every=3)
        self.n_sent = self.n_failed = 0
        self.hidden: set[str] = set()

    def do(self, what: int, version: int, fails_at: tuple[int, ...]) -> None:
        """Do one thing, while some of the store's calls fail, and note what may be there afterwards."""
        Slots.calls, Slots.fails_at = 0, fails_at
        before = Slots.failed
        try:
            if what == STEP:
                self._save_step(version)
            elif what == DELETE:
                self._delete(version)
            elif what == SEND:
                self._send(version)
            else:
                self._write(what, version)
        finally:
            Slots.calls, Slots.fails_at = 0, ()
        if Slots.failed == before:
            assert not any(is_temporary(name) and name not in self.hidden for name in Slots.store), "left behind"
        self.hidden = {name for name in Slots.store if is_temporary(name)}

    def _write(self, what: int, version: int) -> None:
        name = f"{what}.gc"
        known = self.files.setdefault(name, {None})
        url = f"{ROOT}/{name}"
        try:
            if what == SAVE:
                attempt(lambda: gcodec.save({"tensors": tensors(version)}, url, threads=1))
            elif what == SAVE_FILE:
                attempt(lambda: gcodec.save_file(tensors(version), url, threads=1))
            else:
                stream = io.BytesIO(file_of(version)[1])
                if what == DECOMPRESS:
                    archive = io.BytesIO()
                    gcodec.compress_file(stream, archive, threads=1)
                    archive.seek(0)
                    attempt(lambda: gcodec.decompress_file(archive, url, force=True, threads=1))
                else:
                    attempt(lambda: gcodec.compress_file(stream, url, force=True, threads=1))
        except Failed as failed:
            self.n_failed += 1
            known.add(version)
            if "kept at" in said_by(failed):  # the store did not even take the earlier file back
                known.add(None)
        else:
            self.files[name] = {version}

    def _save_step(self, version: int) -> None:
        step = version % 5
        there = self.steps.get(step)
        try:
            attempt(lambda: self._checkpoints().save(step, {"tensors": tensors(version)}))
        except Failed as failed:
            self.n_failed += 1
            if there is None:
                self.steps[step] = version, True
            elif not there[1]:
                assert not isinstance(failed.__cause__, GcodecError) or "there already" in str(failed.__cause__)
        else:
            assert there is None or there[1], "a step is there twice"
            self.steps[step] = version, False

    def _delete(self, version: int) -> None:
        chosen = {version % 5, version // 5 % 5}
        try:
            attempt(lambda: self._checkpoints().delete(*chosen))
        except Failed:
            self.n_failed += 1
            for step in chosen & self.steps.keys():
                self.steps[step] = self.steps[step][0], True
        else:
            for step in chosen:
                del self.steps[step]

    def _send(self, version: int) -> None:
        state = tensors(version)
        message = self.publisher.publish(state)
        self.sent.append(state)
        try:
            attempt(lambda: VersionFolder(f"{ROOT}/sync").send(message))
        except Failed as failed:
            self.n_failed += 1
            if "kept at" in said_by(failed):  # nor did the store take the earlier list of versions back
                self.n_sent = 0
        else:
            self.n_sent = message.number

    @staticmethod
    def _checkpoints() -> Checkpointer:
        return Checkpointer(f"{ROOT}/steps", full_every=3, threads=1)

    def check(self) -> None:
        """Assert that everything that is there can be read and is right, and that nothing is missing."""
        for name, known in self.files.items():
            found = self._version_at(name, known)
            assert found in known, f"{name} has version {found}, not one of {known}"
            self.files[name] = {found}
        checkpoints = self._checkpoints()
        there = checkpoints.steps()
        assert set(there) <= self.steps.keys(), f"steps {there}, of which some were never saved"
        for step, (version, may_be_missing) in list(self.steps.items()):
            if step not in there:
                assert may_be_missing, f"step {step} is lost"
                del self.steps[step]
                continue
            self.steps[step] = version, False
            assert_equal(checkpoints.load(step)["tensors"], tensors(version))
        folder = VersionFolder(f"{ROOT}/sync")
        newest = folder.newest
        assert newest >= self.n_sent, "a version that was sent is lost"
        if newest:
            subscriber = Subscriber(like="numpy", threads=1)
            subscriber.catch_up(folder)
            assert subscriber.number == newest
            assert_equal(subscriber.tensors, self.sent[newest - 1])

    @staticmethod
    def _version_at(name: str, known: set[int | None]) -> int | None:
        """Return the version of a file; None if there is no file."""
        url, what = f"{ROOT}/{name}", int(name[0])
        try:
            if what in (SAVE, SAVE_FILE):
                found = gcodec.load(url, threads=1)["tensors"] if what == SAVE else gcodec.load_file(url, threads=1)
                return next((one for one in known if one is not None and are_equal(found, tensors(one))), -1)
            data = io.BytesIO()
            if what == COMPRESS:
                gcodec.decompress_file(url, data, threads=1)
            else:
                data.write(Slots.store[f"/run/{name}"].getvalue())
        except (FileNotFoundError, KeyError):
            return None
        return next((one for one in known if one is not None and file_of(one)[1] == data.getvalue()), -1)


def are_equal(found: dict[str, Any], expected: dict[str, np.ndarray]) -> bool:
    """Return True for the same arrays under the same names."""
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in found)


def assert_equal(found: dict[str, Any], expected: dict[str, np.ndarray]) -> None:
    """Assert that arrays are the same."""
    assert are_equal(found, expected), "other values"


class Stores:
    """The fuzzing target of stores that fail."""

    seconds, n_prefix = 10.0, 1

    def __init__(self) -> None:
        Slots.register()

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return [bytes([0, what, 1, 0, what, 2, 0, what, 3, fails]) for what in range(7) for fails in (0, 2)]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        if dice.random() < 0.05:
            return changed(dice, dice.pick(self.cases())) or b"\0"
        case, favorite = bytearray([dice.below(32)]), dice.below(7)
        for _ in range(1 + dice.below(MOST)):
            what = favorite if dice.random() < 0.7 else dice.below(7)
            case += bytes([what, dice.below(N_VERSIONS), dice.pick((0, dice.below(256), dice.below(24)))])
        return bytes(case)

    def run(self, case: bytes) -> Any:
        """Do what the case says, each thing with some calls that fail, and look at what is there afterwards."""
        Slots.reset()
        Slots.is_late, Slots.replaces = bool(case[0] & 1), not case[0] & 2
        Slots.error = staticmethod(ERRORS[(case[0] >> 2) % len(ERRORS)])
        store = Store()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            for at in range(1, min(len(case) - 2, 3 * MOST), 3):
                what, version, fails = case[at] % 7, case[at + 1] % N_VERSIONS, case[at + 2]
                # The call of this number, and for higher ones a second one soon after it, or all from then on.
                first, then = fails % 24, fails // 24
                calls = () if not first else range(first, 999) if then == 10 else {first, first + then}
                store.do(what, version, tuple(calls))
                store.check()
        if store.n_failed:
            raise InvalidArgument("some of it has failed, as it should")
        return store.files
