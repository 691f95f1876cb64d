"""Series of versions to fuzz: added, deleted and pruned, and files of the folder damaged, renamed and removed.

A case is a byte, the length of chains and whether the versions are files or states, and three bytes for each thing that
is done. A version that can be read is the one that was added, bit for bit, whatever was done to the files; and it can
be read unless its own file, or one that it depended on, was tampered with.
"""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from gcodec.checkpoints import Checkpointer, StepFolder
from gcodec.checkpoints.step_files import step_name
from gcodec.errors import CheckpointWarning, GcodecError, InvalidArgument
from gcodec.files import plan_or_bytes
from tests.fuzz.containers import npy_file, source_of
from tests.fuzz.mutation import Dice, changed
from tests.support.same import assert_same

N_STEPS, N_VERSIONS, MOST = 10, 32, 12  #: steps that are used, versions that there are, things that are done in a case
ADD, DELETE, PRUNE, FLIP, CUT, RENAME, REMOVE, COPY = range(8)
MEMORY = Path("/dev/shm")  #: where waiting for the disk takes no time


@cache
def tensors(version: int) -> dict[str, np.ndarray]:
    """Return the tensors of a version: some changed a little, some of other shapes, renamed, new, or gone."""
    start, change = np.random.default_rng(1), np.random.default_rng(version)
    weights = start.standard_normal(700).astype(np.float32) * np.float32(0.05)
    weights[change.random(700) < 0.1] *= np.float32(1.001)
    found = {
        "w": weights,
        "moments": (start.standard_normal((9, 40)) * (1 + version / 1e4)).astype(np.float32),
        "ids": np.arange(version, version + 5),
        "noise": change.integers(0, 256, 300, np.uint8),
    }
    if version % 3 == 1:
        found["renamed"] = found.pop("moments")
    if version % 5 == 1:
        found["moments"] = found.get("moments", weights)[:3].copy()
    if version % 7 == 1:
        del found["w"]
    return found


@cache
def file_of(version: int) -> tuple[str, bytes]:
    """Return the name and the bytes of a version of a file, which now and then is of another kind."""
    if version % 8 == 6:
        return "step.npy", npy_file(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (700,), }\n",
            tensors(version).get("w", np.zeros(700, np.float32)).tobytes(),
        )
    if version % 8 == 7:
        return "notes.txt", b"line %d\n" % version * 900
    return "step.safetensors", save(tensors(version), {"version": str(version)})


class Folder:
    """A folder of versions, and what it must hold.

    Attributes:
        expected: The version of each step.
        doubtful: Steps whose own file was tampered with, or one that they depended on.
        refused: Errors of those that could not be read, or not be kept when others were to be deleted.
    """

    def __init__(self, path: Path, full_every: int, of_states: bool) -> None:
        self.path, self.full_every, self.of_states = path, full_every, of_states
        self.expected: dict[int, int] = {}
        self.doubtful: set[int] = set()
        self.refused: list[GcodecError] = []
        self.steps, self.states = StepFolder(path, threads=1), Checkpointer(path, full_every=full_every, threads=1)

    def add(self, step: int, version: int) -> None:
        """Add a version, which must be refused where there is one of this step."""
        is_new = step not in self.expected
        try:
            if self.of_states:
                self.states.save(step, {"tensors": tensors(version), "version": version})
            else:
                name, data = file_of(version)
                self.steps.add(step, plan_or_bytes(name, source_of(data)), full_every=self.full_every)
        except InvalidArgument:
            assert not is_new, "a new step is refused"
            return
        assert is_new, "a step is there twice"
        self.expected[step] = version
        self.doubtful.discard(step)
        self.spread_doubt()

    def delete(self, steps: list[int]) -> None:
        """Delete steps: all of them, or none where there is a reason."""
        try:
            self.steps.delete(steps)
        except GcodecError as error:
            assert self.doubtful or not set(steps) <= set(self.expected), f"cannot delete: {error}"
            self.refused.append(error)
        else:
            for step in steps:
                del self.expected[step]
            self.doubtful -= set(steps)
        if self.doubtful:  # before doubt spreads: deleting must not make a good step depend on a bad one
            self.check()
            self.spread_doubt()

    def tamper(self, how: int, step: int, other: int, place: int) -> None:
        """Damage, rename, copy or remove the file of a step."""
        path, target = self.path / step_name(step), self.path / step_name(other)
        if step not in self.expected:
            return
        spoilt = {step, other} if how in (RENAME, COPY) else {step}
        self.doubtful |= {one for one in self.expected if spoilt & {one, *self.needed_by(one)}}
        if how in (FLIP, CUT):
            data = bytearray(path.read_bytes())
            at = place * len(data) >> 8
            if how == FLIP:
                data[at] ^= 1 << place % 8
            else:
                del data[at:]
            path.write_bytes(data)
        elif how == REMOVE or step == other:
            path.unlink()
            del self.expected[step]
            self.doubtful.discard(step)
        else:
            self.expected[other] = self.expected[step]
            self.doubtful.add(other)
            if how == COPY:
                target.write_bytes(path.read_bytes())
            else:
                path.replace(target)
                del self.expected[step]
                self.doubtful.discard(step)

    def needed_by(self, step: int) -> set[int]:
        """Return the steps that a step depends on, as far as their files tell."""
        bases = {info.step: info.base for info in self.steps.overview()}
        found = set[int]()
        while (base := bases.get(step)) is not None and base not in found:
            found.add(base)
            step = base
        return found

    def spread_doubt(self) -> None:
        """What depends on a doubtful step is doubtful, too."""
        if self.doubtful:
            self.doubtful |= {step for step in self.expected if self.doubtful & self.needed_by(step)}

    def check(self) -> None:
        """Assert that every version can be read, and is the right one, or that there is a reason why not."""
        assert self.steps.steps() == sorted(self.expected), f"steps: {self.steps.steps()}"
        for step, version in self.expected.items():
            try:
                if self.of_states:
                    assert_same(self.states.load(step), {"tensors": tensors(version), "version": version})
                else:
                    with self.steps.opened(step) as opened:
                        data = b"".join(part.tobytes() for part in opened.archive.restored(opened.entry))
                    assert data == file_of(version)[1], f"step {step} has other bytes"
            except GcodecError as error:
                assert step in self.doubtful, f"step {step} cannot be read: {error}"
                assert step_name(step) in str(error) or f"step {step}" in str(error), f"names no file: {error}"
                self.refused.append(error)
        left = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        assert left <= {".lock", *map(step_name, self.expected)}, f"left behind: {left}"


class Series:
    """The fuzzing target of series."""

    seconds, n_prefix = 10.0, 1

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        adding = b"".join(bytes([ADD, step, version]) for step, version in ((0, 0), (1, 1), (2, 2), (4, 14), (5, 7)))
        return [
            bytes([kind]) + adding + last
            for kind in (3, 4, 131)
            for last in (
                b"",
                bytes([DELETE, 0, 1]),
                bytes([PRUNE, 1, 2]),
                bytes([FLIP, 1, 128, ADD, 7, 3]),
                bytes([RENAME, 1, 3, DELETE, 2, 2]),
                bytes([COPY, 2, 4, REMOVE, 0, 0]),
                bytes([CUT, 4, 90, DELETE, 0, 0]),
            )
        ]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        if dice.random() < 0.1:
            return changed(dice, dice.pick(self.cases())) or b"\0"
        case = bytearray([dice.pick((1, 2, 3, 3, 4, 5)) + 128 * dice.below(2)])
        for step in range(dice.below(5)):
            case += bytes([ADD, step, dice.below(N_VERSIONS)])
        harmless = dice.random() < 0.4
        for _ in range(1 + dice.below(6)):
            how = dice.pick((ADD, ADD, DELETE, DELETE, PRUNE)) if harmless else dice.below(8)
            case += bytes([how, dice.below(6), dice.below(6) if how in (DELETE, RENAME, COPY) else dice.below(256)])
        return bytes(case)

    def run(self, case: bytes) -> Any:
        """Do what the case says, and check all versions."""
        with (
            tempfile.TemporaryDirectory(prefix="gcodec-series-", dir=MEMORY if MEMORY.is_dir() else None) as place,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", CheckpointWarning)
            folder = Folder(Path(place) / "run", 1 + (case[0] & 127) % 6, case[0] > 127)
            for at in range(1, min(len(case) - 2, 3 * MOST), 3):
                how, first, second = case[at] % 8, case[at + 1] % N_STEPS, case[at + 2]
                if how == ADD:
                    folder.add(first, second % N_VERSIONS)
                elif how == DELETE:
                    folder.delete(sorted({first, second % N_STEPS}))
                elif how == PRUNE:
                    keep = folder.steps.steps()[-1 - first % 4 :]
                    folder.delete([step for step in folder.expected if step not in keep and step % (1 + second % 4)])
                else:
                    folder.tamper(how, first, second % N_STEPS, second)
            folder.check()
        if folder.refused:
            raise folder.refused[0]
        return folder.expected
