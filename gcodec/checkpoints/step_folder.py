"""A folder of archives, one a step, each whole or the difference from an earlier one: added, read, rebased, deleted.

It knows files and their plans, not states: what other things than states are made of (files of the command line, the
parts of a distributed checkpoint) goes into a folder in the same way.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..archive.base_tensors import Base
from ..archive.entries import FileEntry
from ..archive.folders import DiskFolder, FileIdentity, folder_at, one_writer, writer_lock
from ..archive.numbered_files import remove_unneeded
from ..archive.output import Attributes
from ..archive.reader import ArchiveReader
from ..archive.tensor_groups import grouped, parted
from ..archive.writer import ArchiveWriter
from ..errors import CheckpointWarning, GcodecError, InvalidArgument, link_to_nowhere
from ..files.file_plan import FilePlan
from ..files.source import FileSource, open_regular
from .chain import MAX_CHAIN, OpenStep, base_of, check_same, only_file, open_step, plan_of_step
from .step_files import STEP_FILES, check_step, step_name, step_of

Progress = Callable[[int], None]


@dataclass(frozen=True)
class StepInfo:
    """A step in a folder, as its file's index tells.

    Attributes:
        step: The step.
        path: Path or URL of its file.
        base: The step that it was coded against; None if it is whole, or not known.
        file_bytes: Size of its file.
        state_bytes: Size of what it restores to; 0 if that is not known.
        n_tensors: How many tensors it holds.
        problem: Why its index cannot be read; empty if it can.
    """

    step: int
    path: Path | str
    base: int | None
    file_bytes: int
    state_bytes: int
    n_tensors: int
    problem: str = ""


class _Output(NamedTuple):
    """A file to be written.

    Attributes:
        step: Whose file it is.
        attributes: Of the file; those of any new file if None.
        progress: Called with the number of bytes that were coded since the last call.
        replaces: What the file there holds, which is to be the same in the new one; None if there is none.
    """

    step: int
    attributes: Attributes | None
    progress: Progress | None = None
    replaces: FileEntry | None = None


class BaseAtHand(NamedTuple):
    """The tensors of a step that need not be read from its file.

    Attributes:
        identity: Of the file that has them, too.
        base: The tensors.
    """

    identity: FileIdentity
    base: Base


class StepFolder:
    """The steps in a folder.

    Args:
        path: The folder, or a URL for fsspec; it is made when the first step is added.
        threads: For coding and decoding; as many as the process may use if None.

    Attributes:
        path: The folder's path or URL.

    Raises:
        GcodecError: As for :func:`gcodec.archive.folders.folder_at`.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None) -> None:
        self._folder, self._threads = folder_at(path), threads
        self._known: dict[int, tuple[FileIdentity, StepInfo]] = {}
        self.path: Path | str = self._folder.path if isinstance(self._folder, DiskFolder) else str(self._folder)

    def steps(self) -> list[int]:
        """Return the steps that are there, in ascending order. No file is opened."""
        return STEP_FILES.numbers(self._folder.names())

    def info(self, step: int) -> StepInfo:
        """Return what the index of a step's file tells; it is read again only after the file has changed.

        Raises:
            InvalidArgument: There is no such step.
            OSError: The file cannot be read.
        """
        name = step_name(check_step(step))
        try:
            identity = self._folder.identity(name)
            known = self._known.get(step)
            if known is None or known[0] != identity:
                known = self._known[step] = identity, _info_of(step, self._folder.place(name), identity.size)
        except FileNotFoundError:
            raise self._no_such(step) from None
        return known[1]

    def identity(self, step: int) -> FileIdentity:
        """Return what tells a step's file from another that takes its place. Raises OSError if it is not there."""
        return self._folder.identity(step_name(step))

    def overview(self) -> list[StepInfo]:
        """Return all steps in ascending order; one whose file is damaged or cannot be read has a ``problem``."""
        infos = []
        for step in self.steps():
            try:
                infos.append(self.info(step))
            except (InvalidArgument, OSError) as error:
                problem = self._unreadable(step, error)
                if problem:  # else a writer has removed it since
                    infos.append(StepInfo(step, self._place(step), None, 0, 0, 0, problem=problem))
        return infos

    @contextmanager
    def opened(self, step: int, *, max_output_bytes: int | None = None) -> Iterator[OpenStep]:
        """Opens a step with all that it depends on; it stays readable though a writer deletes it meanwhile.

        Raises:
            InvalidArgument: There is no such step.
            GcodecError: A file that it needs is missing, damaged or another one; the error says which, and the step.
            OSError: A file cannot be read.
        """
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(
                    open_step(self._folder, check_step(step), threads=self._threads, max_output_bytes=max_output_bytes)
                )
            except FileNotFoundError:
                raise self._no_such(step) from None
            except GcodecError as error:
                raise _placed(error, step) from error
            try:
                yield opened
            except GcodecError as error:
                raise _placed(error, step) from error

    def add(
        self,
        step: int,
        plan: FilePlan,
        *,
        full_every: int,
        at_hand: BaseAtHand | None = None,
        attributes: Attributes | None = None,
        progress: Progress | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> FileEntry:
        """Adds a step, coded against the one before it, or whole where that would make a chain of ``full_every`` steps.

        The file is on the disk, whole and under its name, when this returns; until then it is not there at all. At a
        URL one writer at a time may be at work. A step whose base cannot be read is stored whole: training shall not
        lose it.

        Args:
            step: Its number, not there yet.
            plan: What to store.
            full_every: As for :class:`gcodec.checkpoints.Checkpointer`.
            at_hand: The step before, where the caller has its tensors; else they are read from its file.
            attributes: Permissions, owner and times of a file on a disk; those of any new file if None.
            progress: Called with the number of bytes of the plan that were coded since the last call.
            tell: Called with why a step is stored whole whose base cannot be read; else there is a CheckpointWarning.

        Raises:
            InvalidArgument: The step is there already, or the plan cannot be stored.
            OSError: The file cannot be written.
        """
        with one_writer(self._folder):
            self._remove_left_over()
            if check_step(step) in self.steps():
                place = self._place(step)
                raise InvalidArgument(f"{place}: step {step} is there already; delete it first to save another")
            previous, problem = self._base_for(step, full_every), None
            output = _Output(step, attributes, progress)
            if previous is not None:
                try:
                    return self._add_against(previous, plan, output, at_hand)
                except InvalidArgument:
                    raise
                except (GcodecError, OSError) as error:
                    if step in self.steps():  # it is written, and what failed came after that
                        raise
                    problem = error
            entry = self._write(grouped(plan), None, output)
        if problem is not None:
            text = f"{self._place(step)}: is saved whole, for step {previous} cannot be its base: {problem}"
            if tell is None:
                warnings.warn(CheckpointWarning(text), stacklevel=3)
            else:
                tell(text)
        return entry

    def delete(self, steps: Collection[int]) -> None:
        """Removes steps. Those that stay and were coded against one of these are coded anew first.

        If the process dies, or a file cannot be read or written, all steps that were to stay are there and readable.

        Raises:
            InvalidArgument: There is no such step.
            GcodecError: A step that stays cannot be read, so that it is not known how to keep it; nothing is removed.
            OSError: A file cannot be written or removed.
        """
        chosen = {check_step(step) for step in steps}
        if not chosen:
            return
        if not self.steps():
            raise self._no_such(min(chosen))
        with writer_lock(self._folder):
            self._remove_left_over()
            infos = {info.step: info for info in self.overview()}
            for step in sorted(chosen - infos.keys()):
                raise self._no_such(step)
            for step, base in _new_bases(infos, chosen).items():
                self._rebase(step, base)
            self._folder.sync()
            for step in sorted(chosen, reverse=True):  # what depends on another goes before it
                self._folder.remove(step_name(step))
                self._known.pop(step, None)
            self._folder.sync()

    def n_bases(self, step: int) -> int:
        """Return how many other steps a step needs.

        Raises:
            GcodecError: One of them is missing or damaged.
        """
        count, info = 0, self.info(step)
        while info.base is not None and not info.problem and count <= MAX_CHAIN:
            count, info = count + 1, self.info(info.base)
        if info.problem:
            raise GcodecError(info.problem)
        return count

    def _remove_left_over(self) -> None:
        """Removes what writers that were killed have left; only for the holder of the lock."""
        remove_unneeded(self._folder, lambda name: step_of(name) is not None, lambda _: True, _warn)

    def _unreadable(self, step: int, error: InvalidArgument | OSError) -> str:
        """Return why a step that is there cannot be read, with its place; empty for one that is not there any more."""
        place = self._place(step)
        nowhere = link_to_nowhere(place) if isinstance(place, Path) else ""
        if nowhere or isinstance(error, InvalidArgument):  # a link may lead to no file, which is as if there were none
            return f"{place}: {nowhere}" if nowhere else ""
        return f"{place}: {error.strerror or error}"

    def _place(self, step: int) -> Path | str:
        return self._folder.place(step_name(step))

    def _add_against(self, previous: int, plan: FilePlan, output: _Output, at_hand: BaseAtHand | None) -> FileEntry:
        if at_hand is not None and at_hand.identity == self.identity(previous):
            return self._write(grouped(plan, at_hand.base), at_hand.base, output)
        with open_step(self._folder, previous) as opened:
            base = opened.as_base()
            return self._write(grouped(plan, base), base, output)

    def _base_for(self, step: int, full_every: int) -> int | None:
        """Return the step to code a new one against; None if it shall be whole."""
        earlier = [known for known in self.steps() if known < step]
        if not earlier or full_every == 1:
            return None
        try:
            return earlier[-1] if self.n_bases(earlier[-1]) + 1 < full_every else None
        except (GcodecError, OSError):
            return earlier[-1]  # opening it will fail, and say why

    def _rebase(self, step: int, base: int | None) -> None:
        """Codes a step anew, against another step or whole; its file is replaced when the new one is complete."""
        with self.opened(step) as opened:
            place = opened.place
            attributes = Attributes.like(place.stat()) if isinstance(place, Path) else None
            output = _Output(step, attributes, replaces=opened.entry)
            plan = plan_of_step(opened)
            if base is None:
                self._write(plan, None, output)
            else:
                with self.opened(base) as other:
                    earlier = other.as_base()
                    self._write(parted(plan, earlier), earlier, output)

    def _write(self, plan: FilePlan, base: Base | None, output: _Output) -> FileEntry:
        """Writes a step's file, which is there to stay when this returns."""
        name, replaces = step_name(output.step), output.replaces
        with self._folder.output(name, force=replaces is not None, attributes=output.attributes) as file:
            with ArchiveWriter(file, threads=self._threads, progress=output.progress) as archive:
                entry = archive.add(plan, None, base)
            if replaces is not None:
                check_same(entry, replaces, plan.source, self._place(output.step))
        return entry

    def _no_such(self, step: int) -> InvalidArgument:
        steps = self.steps()
        if len(steps) == 1:
            there = f"the only step there is {steps[0]}"
        else:
            there = f"there are {len(steps)} steps, from {steps[0]} to {steps[-1]}" if steps else "there are none"
        return InvalidArgument(f"{self.path}: has no step {step}; {there}")


def _warn(text: str) -> None:
    warnings.warn(CheckpointWarning(text), stacklevel=5)


def _info_of(step: int, place: Path | str, size: int) -> StepInfo:
    try:
        with ExitStack() as stack:
            source: Path | str | FileSource = place
            if isinstance(place, Path):
                source = stack.enter_context(closing(FileSource(open_regular(place), name=str(place))))
            archive = stack.enter_context(ArchiveReader(source, threads=1))
            entry = only_file(archive)
            base = base_of(entry, place, step)
    except GcodecError as error:
        return StepInfo(step, place, None, size, 0, 0, problem=str(error))
    return StepInfo(step, place, base, size, entry.size, len(entry.tensors))


def _new_bases(infos: dict[int, StepInfo], chosen: set[int]) -> dict[int, int | None]:
    """Return the new base of each step that stays and loses its own, in the order in which they are to be coded anew.

    A step gets the base of its base. Where that is whole, the first step that depends on it becomes whole, and the
    others are coded against this one. Chains only become shorter.

    Raises:
        GcodecError: The index of a step that stays cannot be read.
    """
    result: dict[int, int | None] = {}
    heirs: dict[int, int] = {}  # the step that becomes whole, by the whole step that goes
    for step in sorted(infos.keys() - chosen):
        info = infos[step]
        if info.problem and step > min(chosen):
            raise GcodecError(
                f"step {step}: it is not known whether it depends on another: {info.problem}; nothing "
                "was removed; to go on, delete this step, too"
            )
        base = info.base
        if base not in chosen:
            continue
        while base in chosen and base in infos and infos[base].base is not None:
            base = infos[base].base
        assert base is not None
        result[step] = heirs.get(base) if base in chosen else base
        if base in chosen:
            heirs.setdefault(base, step)
    return result


def _placed(error: GcodecError, step: int) -> GcodecError:
    """Return an error of the same type that says which step it is about."""
    text = str(error)
    return error if text.startswith(f"step {step}") else type(error)(f"step {step}: {text}")
