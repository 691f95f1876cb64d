"""The checkpoints of a training run: saved, loaded and deleted by step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..archive.base_tensors import WITH_BASE, Base, BaseSegment
from ..archive.devices import check_kind, placement_of
from ..archive.entries import FileEntry
from ..archive.held_file import HeldFile
from ..archive.named_parts import listed_names
from ..archive.own_classes import Classes, KnownClasses
from ..archive.state_files import Wanted, load_state, plan_state
from ..errors import CheckpointWarning, GcodecError, InvalidArgument, check_flag, check_int, check_optional_int
from ..files.file_plan import FilePlan
from ..files.source import Bytes
from ..files.urls import fixed_place
from ..threads import check_threads
from .chain import MAX_CHAIN
from .step_files import check_step, step_name
from .step_folder import BaseAtHand, StepFolder, StepInfo


class Checkpointer:
    """Keeps the checkpoints of a training run in a folder: one in ``full_every`` whole, the rest as differences.

    ::

        checkpoints = gcodec.Checkpointer("run/checkpoints", full_every=10)
        checkpoints.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        state = checkpoints.load()

    Every step comes back bit for bit, whichever others are deleted. A step is an archive of its own,
    ``step-00001000.gc``, which is on the disk when ``save`` returns; whenever the process dies, the steps that were
    there can be loaded. Any number of processes may load while one saves or deletes; a second one that wants to write
    waits. Among ranks let one save, or give each a folder of its own.

    Memory: saving copies no state. It takes a few parts of 4 MiB for each thread and each step of the chain, and two
    tensors at a time of those that are on a device or not contiguous. The state must not change until ``save`` returns.
    Loading takes the memory of the state, and the same parts.

    At a URL a step is put when it is complete, and read from temporary copies of the files that it needs. There is no
    lock there: let only one process at a time save or delete.

    Args:
        folder: Where the checkpoints are, a path or a URL for fsspec; made when the first is saved. A path is one from
            where the process works when this object is made.
        full_every: How many steps there are in a chain, 1 to 64. A step that is a difference needs all steps before it
            in its chain, and to load it they are decoded, too; 1 stores every step whole.
        keep_last: After each save, delete all steps but the last so many, and those of ``keep_every``; None: keep all.
            The last are those that this object saved last; where it saved fewer, also the highest numbers below the
            step just saved. Steps of an earlier run above that number stay, and a warning names them.
        keep_every: With ``keep_last``, keep the steps that are multiples of this number as well.
        copy_in_memory: Keep a copy of the state that was saved last in host memory. Saving the next need not decode
            files then, which is faster the longer the chain.
        threads: For coding and decoding; as many as the process may use if None.

    Raises:
        InvalidArgument: An argument is out of range, or ``folder`` is a file.
        GcodecError: ``folder`` is a URL, and fsspec or its package for that kind is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        full_every: int = 10,
        keep_last: int | None = None,
        keep_every: int | None = None,
        copy_in_memory: bool = False,
        threads: int | None = None,
    ) -> None:
        check_threads(threads)
        check_flag("copy_in_memory", copy_in_memory)
        self._full_every = check_full_every(full_every)
        self._keep_last, self._keep_every = check_retention(keep_last, keep_every)
        self._folder = StepFolder(fixed_place(folder), threads=threads)
        self._copies = copy_in_memory
        self._at_hand: BaseAtHand | None = None
        self._saved: list[int] = []  # by this object, the last at the end
        self._has_warned = False  # of steps of an earlier run

    @property
    def folder(self) -> Path | str:
        """The path of the folder, or its URL."""
        return self._folder.path

    def save(self, step: int, state: Any) -> StepInfo:
        """Saves a state as the checkpoint of a step, and deletes what ``keep_last`` does not keep.

        Args:
            step: The number of the step, 0 to 10^18 - 1; its base is the one before it.
            state: What ``torch.save`` would be given, as :func:`gcodec.save` takes it. Tensors of the same memory are
                stored once; parameters come back as plain tensors, and JAX arrays as numpy arrays.

        Returns:
            What was stored: path, base and sizes.

        Raises:
            InvalidArgument: The step is there already, or the state holds something else, which the error names.
            GcodecError: Another process has been writing to the folder for minutes.
            OSError: The disk is full, or cannot be written to. The folder is then as it was before.

        Warns:
            CheckpointWarning: the step is saved, but whole, because its base cannot be read; or a step that was to be
                deleted is still there. The warning says which file is damaged. Or an earlier run has left steps of
                higher numbers, which a warning names once: the highest is what loads as the last.
        """
        number = check_step(step)
        plan = plan_state(f"step-{number:08d}.safetensors", state)
        entry = self._folder.add(number, plan, full_every=self._full_every, at_hand=self._at_hand)
        info = self._folder.info(number)
        if self._copies:
            self._at_hand = None  # the old copy goes before the new one is made
            self._at_hand = BaseAtHand(self._folder.identity(number), _copy_of(step_name(number), plan, entry))
        counted = self._note_saved(number)
        if self._keep_last is not None:
            try:
                self.delete(*steps_to_prune(counted, self._keep_last, self._keep_every))
            except (GcodecError, OSError) as error:
                text = f"step {number} is saved, but old steps could not be deleted: {error}"
                warnings.warn(CheckpointWarning(text), stacklevel=2)
        return info

    def load(
        self,
        step: int | None = None,
        *,
        names: Iterable[str] | str | None = None,
        like: str | None = None,
        device: Any = None,
        classes: Classes = None,
        lazy: bool = False,
        max_output_bytes: int | None = None,
    ) -> Any:
        """Return the state of a step, bit for bit as it was saved.

        A step that ``gcodec series add`` made of a ``.pt`` file comes as ``torch.load(weights_only=True)`` gives it,
        and one of any other tensor file as a dictionary of arrays.

        Args:
            step: Which; if None the one of the highest number, whichever run has saved it.
            names: Names of parts of the state, or patterns, as for :func:`gcodec.load`; None: all of it.
            like: ``"numpy"`` or ``"torch"`` for all tensors; None: each as it was saved.
            device: torch device that the torch tensors are put on; None: host memory.
            classes: Classes of your own that are not imported under the names that they were saved under, as for
                :func:`gcodec.load`.
            lazy: Read tensors when they are first used, as :func:`gcodec.load` does; deleting steps does no harm.
            max_output_bytes: Refuse larger states, for folders from strangers; no limit if None.

        Raises:
            InvalidArgument: There is no such step, no such device, or nothing of a name.
            Corruption: Its file, or one that it depends on, is damaged; the error names the file.
            Unsupported: A step that it depends on is missing, or was exchanged for another; the error names both. Or
                the state has an object of a class that is not known.
            LimitExceeded: The state is above ``max_output_bytes``.
            OSError: A file cannot be read.
        """
        check_kind(like, device)
        check_flag("lazy", lazy)
        known, place, names = KnownClasses(classes), placement_of(device), listed_names(names)
        while True:
            number = self.latest() if step is None else step
            if number is None:
                raise InvalidArgument(f"{self.folder}: there is no checkpoint in this folder")
            try:
                with ExitStack() as stack:
                    opened = stack.enter_context(self._folder.opened(number, max_output_bytes=max_output_bytes))
                    held = HeldFile(opened.archive) if lazy else None
                    wanted = Wanted(place, like, names, known, held)
                    state = load_state(opened.archive, opened.entry, wanted)
                    if held is not None:
                        held.keep(stack.pop_all())
                    return state
            except InvalidArgument:
                if step is not None or self.latest() == number:
                    raise  # else a writer has saved a later step since, and deleted this one

    def steps(self) -> list[int]:
        """Return the steps that are there, in ascending order."""
        return self._folder.steps()

    def latest(self) -> int | None:
        """Return the step of the highest number; None if there is none."""
        steps = self.steps()
        return steps[-1] if steps else None

    def overview(self) -> list[StepInfo]:
        """Return file, base and sizes of every step, in ascending order.

        One that is damaged or cannot be read has a ``problem``, which names its file.
        """
        return self._folder.overview()

    def verify(self, step: int) -> None:
        """Decodes everything that a step holds and checks every hash, with little memory.

        Args:
            step: which.

        Raises:
            InvalidArgument, Corruption, Unsupported, OSError: As for :meth:`Checkpointer.load`.
        """
        with self._folder.opened(step) as opened:
            for _ in opened.archive.restored(opened.entry):
                pass

    def delete(self, *steps: int) -> None:
        """Deletes steps. What depends on them, and stays, is first coded anew, against an earlier step or whole.

        Args:
            steps: Which; all of them are deleted, or none if the files of those that stay cannot be read or written.

        Raises:
            InvalidArgument: There is no such step.
            GcodecError: A step that stays is damaged, so that it cannot be coded anew; the error names its file.
            OSError: A file cannot be written or removed.
        """
        self._folder.delete(steps)

    def prune(self, keep_last: int, keep_every: int | None = None) -> list[int]:
        """Deletes all steps but some, and returns those that it deleted.

        Args:
            keep_last: How many of the last steps to keep, at least 1.
            keep_every: Keep the steps that are multiples of this as well, at least 1; None: no others.

        Raises:
            InvalidArgument: A number below 1.
            GcodecError, OSError: As for :meth:`Checkpointer.delete`.
        """
        chosen = steps_to_prune(self.steps(), keep_last, keep_every)
        self.delete(*chosen)
        return chosen

    def _note_saved(self, number: int) -> list[int]:
        """Return the steps that retention counts after one was saved, and warn once of what is above it."""
        steps = self.steps()
        there = set(steps) - {number}
        self._saved = [*(step for step in self._saved if step in there), number]
        counted, higher = by_age(steps, self._saved)
        if higher and not self._has_warned:
            self._has_warned = True
            warnings.warn(left_by_earlier_run(self.folder, number, higher), stacklevel=3)
        return counted


def check_full_every(full_every: int) -> int:
    """Return the length of chains as an int. Raises InvalidArgument unless it is from 1 to 64."""
    return check_int("full_every", full_every, 1, MAX_CHAIN)


def check_retention(keep_last: int | None, keep_every: int | None) -> tuple[int | None, int | None]:
    """Return both as ints or None. Raises InvalidArgument for numbers of steps to keep that have no meaning; None of
    both is none."""
    checked = check_optional_int("keep_last", keep_last), check_optional_int("keep_every", keep_every)
    if keep_every is not None and keep_last is None:
        raise InvalidArgument("keep_every needs keep_last: give the number of last steps to keep, too")
    return checked


def by_age(steps: list[int], saved: list[int]) -> tuple[list[int], list[int]]:
    """Return the steps that retention counts, the oldest first, and those that it leaves alone.

    A run that starts again at a lower number, in a folder of an earlier run, would lose each step as it is saved if the
    highest numbers stayed. So its own steps outlast others, and of others it counts those that it has gone past.

    Args:
        steps: That are there, in ascending order.
        saved: Those that the run itself has saved, in that order; the last of them is the one at hand.
    """
    there, own = set(steps), set(saved)
    others = [step for step in steps if step not in own]
    counted = [step for step in others if step < saved[-1]] + [step for step in saved if step in there]
    return counted, [step for step in others if step > saved[-1]]


def left_by_earlier_run(folder: object, step: int, higher: list[int]) -> CheckpointWarning:
    """Return the warning that an earlier run has left steps that retention does not delete."""
    which = f"steps {higher[0]} to {higher[-1]}" if len(higher) > 1 else f"step {higher[0]}"
    return CheckpointWarning(
        f"{folder}: has {which} of an earlier run, above step {step} that is being saved; step {higher[-1]} is what "
        "loads as the last, and keep_last neither counts nor deletes them: delete them, or save to another folder"
    )


def steps_to_prune(steps: list[int], keep_last: int, keep_every: int | None) -> list[int]:
    """Return those of ``steps``, oldest first, that are neither among the last nor multiples of ``keep_every``."""
    keep_last = check_int("keep_last", keep_last, 1)
    _, keep_every = check_retention(keep_last, keep_every)
    return [step for step in steps[:-keep_last] if keep_every is None or step % keep_every]


def _copy_of(name: str, plan: FilePlan, entry: FileEntry) -> Base:
    """Return a step as a base in memory: copies of those tensors that can be one.

    It has the hashes of the file, so that a state that has changed since is found out before it is used.
    """
    copies: dict[int, Bytes] = {
        number: np.array(plan.source.read(start, start + segment.bytes))
        for number, (segment, start) in enumerate(zip(entry.segments, entry.starts, strict=True))
        if segment.dtype in WITH_BASE
    }
    segments = tuple(BaseSegment(segment.bytes, segment.dtype, segment.hash) for segment in entry.segments)
    return Base(name, entry.tensors, segments, lambda number, start, stop: copies[number][start:stop])
