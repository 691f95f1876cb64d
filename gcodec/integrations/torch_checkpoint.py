"""Storage for ``torch.distributed.checkpoint``: each rank's part in an archive, whole or as a series of differences.

What planners decide is kept as it is, so that checkpoints are loaded into other numbers of ranks and other shardings.
A rank writes one archive with the tensors of its part; the coordinator writes, last, which tensor is where. That index
is JSON, and nothing is pickled here; for objects that are no tensors torch's own planner makes and reads pickles.
"""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, Generic, TypeVar

import xxhash
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ..archive import ArchiveReader, ArchiveWriter, FileEntry
from ..archive.folders import Folder, folder_at, replace_file
from ..archive.numbered_files import NumberedFiles, remove_unneeded
from ..archive.state_files import plan_leaves
from ..archive.structure import Leaf
from ..archive.tensor_groups import grouped
from ..checkpoints.checkpointer import by_age, check_full_every, check_retention, left_by_earlier_run
from ..checkpoints.step_files import check_step
from ..checkpoints.step_folder import StepFolder
from ..errors import CheckpointWarning, GcodecError, InvalidArgument, PeerError, Unsupported
from ..files.file_plan import FilePlan
from ..files.unique_names import UniqueNames
from ..files.urls import fixed_place
from ..threads import check_threads
from .checkpoint_index import MAX_INDEX_BYTES, StoredItem, metadata_from_json, metadata_to_json
from .checkpoint_items import StoredTensors, deliver, leaf_of, name_of_item

INDEX = "checkpoint.json"
#: The index of a checkpoint that torch's own storage has written.
TORCH_INDEX = ".metadata"
ARCHIVE = re.compile(r"rank-[0-9]{5,}-[0-9a-f]{8}\.gc")
#: In the folder of a series: the folders of the ranks, and the indices of complete steps.
RANK_FOLDER, STEP_INDEX = NumberedFiles("rank-", 5, ""), NumberedFiles("step-", 8, ".json")

T = TypeVar("T")
_PRUNING = Lock()  # no part of a writer, which async_save may pickle


class _PerThread(Generic[T]):
    """A value that each thread may have set for itself; other threads get what was set last.

    ``async_save`` saves in a thread of its own, which names the checkpoint first, while the training's thread may name
    the next one: one name for both would have the values of one step saved as the other.
    """

    def __init__(self, value: T) -> None:
        self._last, self._own = value, dict[int, T]()

    def get(self) -> T:
        """Return the value for this thread."""
        return self._own.get(get_ident(), self._last)

    def set(self, value: T) -> None:
        """Set the value for this thread, and for those that have set none."""
        self._last = self._own[get_ident()] = value


class _Storage:
    """The base of writers and readers, which knows the folder: that of the last ``checkpoint_id``, or the one given.

    Args:
        folder: Path or URL of the folder; None: it comes as ``checkpoint_id``.
        threads: For coding; as many as the process may use if None.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, threads: int | None = None) -> None:
        check_threads(threads)
        self._folders = _PerThread(None if folder is None else _path_or_url(folder))
        self._threads = threads

    @property
    def folder(self) -> Path | str | None:
        """Return the folder as a path, or its URL."""
        return self._folders.get()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the folder of the next checkpoint from ``checkpoint_id``, if there is one."""
        if checkpoint_id is not None:
            self._folders.set(_path_or_url(checkpoint_id))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return True: a path names a folder, and so does a URL."""
        return True

    def _folder(self) -> Folder:
        """Return the folder. Raises InvalidArgument if none was given."""
        if self.folder is None:
            raise InvalidArgument("a checkpoint needs a folder: give one to the writer or reader, or as checkpoint_id")
        return folder_at(self.folder)

    def _index_name(self) -> str:
        return INDEX


class CheckpointWriter(_Storage, StorageWriter):
    """Saves a checkpoint of ``torch.distributed.checkpoint`` to a folder that all ranks reach, compressed, lossless.

    ::

        torch.distributed.checkpoint.save(state, storage_writer=CheckpointWriter("run/step-100"))

    A checkpoint in the folder is replaced when the new one is complete. A CheckpointWarning names what of the old one,
    or of a save that was killed, cannot be removed then.

    Args:
        folder: The folder, or a URL for fsspec; ``checkpoint_id`` takes its place where it is given.
        threads: For coding; as many as the process may use if None.

    Raises:
        InvalidArgument: ``threads`` is out of range.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, threads: int | None = None) -> None:
        super().__init__(folder, threads=threads)
        self._rank, self._n_ranks, self._is_coordinator = 0, 0, True

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Learn which rank this is.

        Raises:
            InvalidArgument: Neither a folder nor a ``checkpoint_id`` was given.
            Unsupported: Ranks are to save without collectives.
        """
        if not kwargs.get("use_collectives", True):
            raise Unsupported("use_collectives=False is not supported: one index is written for all ranks")
        self._is_coordinator, self._rank = is_coordinator, int(kwargs.get("rank") or 0)
        self._folder()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans as they are."""
        self._n_ranks = len(plans)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items to its archive, which is on the disk when this returns.

        Raises:
            GcodecError: An item cannot be stored.
            OSError: The disk is full, or cannot be written to.
        """
        leaves: dict[str, Leaf] = {}
        kinds, names = {}, UniqueNames(("__metadata__",))
        for item in plan.items:
            name = name_of_item(item.index, names)
            kinds[name], leaves[name] = leaf_of(planner.resolve_data(item), item.type)
        file, entry = self._store(plan_leaves(self._path_in_archive(), leaves)) if leaves else ("", None)
        hashes = {} if entry is None else {view.name: entry.segments[view.segment].hash for view in entry.tensors}
        results = [
            WriteResult(item.index, leaf.size, StoredItem(file, name, kinds[name], hashes[name]))
            for item, (name, leaf) in zip(plan.items, leaves.items(), strict=True)
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, from which on the checkpoint is there; only the coordinator does."""
        items = {result.index: result.storage_data for written in results for result in written}
        replace_file(self._folder(), self._index_name(), metadata_to_json(metadata, items))
        self._remove_all_but({item.file for item in items.values()})

    def storage_meta(self) -> dcp.StorageMeta | None:
        """Return the place of the checkpoint, for planners that want to know."""
        return dcp.StorageMeta(checkpoint_id=self.folder)

    def _path_in_archive(self) -> str:
        return f"rank-{self._rank:05d}.safetensors"

    def _store(self, plan: FilePlan) -> tuple[str, FileEntry]:
        """Write an archive, and return its name and what it holds."""
        folder, name = self._folder(), f"rank-{self._rank:05d}-{secrets.token_hex(4)}.gc"  # beside an earlier one
        folder.make()
        with folder.output(name) as file, ArchiveWriter(file, threads=self._threads) as archive:
            entry = archive.add(grouped(plan))
        return name, entry

    def _remove_all_but(self, files: set[str]) -> None:
        """Remove archives of the checkpoint that was replaced, and of saves that were not completed."""

        def warn(text: str) -> None:
            warnings.warn(CheckpointWarning(f"the checkpoint is saved, but {text}"), stacklevel=4)

        remove_unneeded(self._folder(), lambda name: ARCHIVE.fullmatch(name) is not None, files.__contains__, warn)


class SeriesWriter(CheckpointWriter):
    """Saves a run's checkpoints to one folder, one in ``full_every`` whole, the rest as differences.

    ::

        writer = SeriesWriter("run/checkpoints", full_every=10)
        torch.distributed.checkpoint.save(state, storage_writer=writer, checkpoint_id=str(step))

    Each rank has a folder of its own in it, a series as :class:`gcodec.checkpoints.Checkpointer` has. A step is there
    once its index is, which is written last.

    Args:
        folder: The folder, or a URL for fsspec.
        full_every: How many steps there are in a chain, 1 to 64.
        keep_last: At each save, delete all steps but the last so many of those that are complete; None: keep all. The
            last are those that this writer saved last; where it saved fewer, also the highest numbers below the step
            that is being saved. Steps of an earlier run above that number stay, and a CheckpointWarning names them.
            Another one says which file is damaged where old steps cannot be deleted; the step is saved all the same.
        threads: For coding; as many as the process may use if None.

    Raises:
        InvalidArgument: An argument is out of range.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        full_every: int = 10,
        keep_last: int | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(folder, threads=threads)
        self._full_every, self._steps = check_full_every(full_every), _PerThread(-1)
        self._keep_last, _ = check_retention(keep_last, None)
        self._saved: list[int] = []  # by this writer, the last at the end
        self._has_warned = False  # of steps of an earlier run

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step of the next checkpoint from ``checkpoint_id``. Raises InvalidArgument if it is no number."""
        self._steps.set(_step_of_id(checkpoint_id))

    @property
    def step(self) -> int:
        """Return the step of the checkpoint that this thread saves, or is to save next; -1 if none was named."""
        return self._steps.get()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Learn which rank this is.

        Raises:
            InvalidArgument: No step was given as ``checkpoint_id``, or it is there already.
            Unsupported: Ranks are to save without collectives.
        """
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        name = self._index_name()
        if name in self._folder().names():
            raise InvalidArgument(
                f"{self.folder}: step {self.step} is there already; save under another number, or remove {name} first"
            )

    def _index_name(self) -> str:
        if self.step < 0:
            raise InvalidArgument("a series needs the step: pass it as checkpoint_id, such as checkpoint_id='100'")
        return STEP_INDEX.name(self.step)

    def _path_in_archive(self) -> str:
        return f"step-{self.step:08d}.safetensors"

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Delete steps that are too old, then write this rank's items. Raises what :class:`CheckpointWriter` raises."""
        with _PRUNING:
            self._prune()  # also where a rank has no items: the coordinator removes the indices of old steps
        return super().write_data(plan, planner)

    def _store(self, plan: FilePlan) -> tuple[str, FileEntry]:
        steps = self._steps_of(self._rank)
        if self.step in steps.steps():
            steps.delete([self.step])  # of a save that other ranks did not complete
        return RANK_FOLDER.name(self._rank), steps.add(self.step, plan, full_every=self._full_every)

    def _steps_of(self, rank: int) -> StepFolder:
        return StepFolder(self._folder().place(RANK_FOLDER.name(rank)), threads=self._threads)

    def _prune(self) -> None:
        """Delete what is older than the last complete steps: this rank's, and that of ranks that are no more."""
        folder = self._folder()
        names = folder.names()
        complete = STEP_INDEX.numbers(names)
        there = set(complete)
        self._saved = [*(step for step in self._saved if step in there), self.step]
        counted, higher = by_age(complete, self._saved)
        if higher and self._is_coordinator and not self._has_warned:
            self._has_warned = True
            warnings.warn(left_by_earlier_run(self.folder, self.step, higher), stacklevel=2)
        if self._keep_last is None or len(counted) < self._keep_last:
            return
        old, oldest_kept = set(counted[: -self._keep_last]), min(counted[-self._keep_last :])
        ranks = [self._rank]
        if self._is_coordinator:
            for step in old:
                folder.remove(STEP_INDEX.name(step))
            ranks += [rank for rank in RANK_FOLDER.numbers(names) if rank >= self._n_ranks > 0]
        for rank in ranks:
            try:
                steps = self._steps_of(rank)
                steps.delete(
                    [  # without an index, too: the coordinator may have removed it before names were read
                        step for step in steps.steps() if step in old or (step < oldest_kept and step not in there)
                    ]
                )
            except (GcodecError, OSError) as error:  # the step at hand shall be saved all the same
                text = f"step {self.step} is being saved, but old steps could not be deleted: {error}"
                warnings.warn(CheckpointWarning(text), stacklevel=3)

    def _remove_all_but(self, files: set[str]) -> None:
        """Leave everything; what is too old goes when the next step is saved."""


class CheckpointReader(_Storage, StorageReader):
    """Loads what :class:`CheckpointWriter` saved, into any number of ranks and any sharding.

    ::

        torch.distributed.checkpoint.load(state, storage_reader=CheckpointReader("run/step-100"))

    Every tensor is decoded from the archive that has it and compared with its hash; a rank opens only archives that
    have something it needs.

    Args:
        folder: The folder, or a URL for fsspec; ``checkpoint_id`` takes its place where it is given.
        threads: For decoding; as many as the process may use if None.

    Raises:
        InvalidArgument: ``threads`` is out of range.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, threads: int | None = None) -> None:
        super().__init__(folder, threads=threads)
        self._items: dict[dcp.MetadataIndex, StoredItem] = {}
        self._index = ("", "")  # the name of the index that was read, and its hash

    # No **kwargs, by which torch would tell that a rank may have an index of its own: it reads again where reading
    # failed, and a rank that succeeds then goes on without the collectives that the others wait in.
    def read_metadata(self) -> dcp.Metadata:
        """Read the index.

        Raises:
            FileNotFoundError: There is no checkpoint; the error says what is there instead.
            Corruption: The index is damaged.
        """
        folder, name = self._folder(), self._index_name()
        try:
            text = folder.read(name, MAX_INDEX_BYTES + 1)
        except FileNotFoundError:
            raise FileNotFoundError(f"{folder.place(name)}: no such file; {self._what_is_there()}") from None
        self._index = name, xxhash.xxh3_64_hexdigest(text)
        return metadata_from_json(text, str(folder.place(name)))

    def _what_is_there(self) -> str:
        """Return what the folder has where a checkpoint is missing."""
        names = self._folder().names()
        if TORCH_INDEX in names:
            return "the folder has a checkpoint of torch's own storage, which FileSystemReader loads"
        if INDEX in names:
            return "the folder has a checkpoint that is no series, which CheckpointReader loads"
        steps = STEP_INDEX.numbers(names)
        if not steps:
            return "there is no complete checkpoint in this folder"
        return (
            f"the folder has a series of {len(steps)} complete steps, from {steps[0]} to {steps[-1]}, which "
            "SeriesReader loads"
        )

    def set_up_storage_reader(self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep the index."""
        self._items = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with the index that this rank has read."""
        return replace(plan, storage_data=self._index)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are.

        Raises:
            PeerError: Ranks have read different indices, because one was saved in the meantime.
        """
        first = plans[0].storage_data
        for rank, plan in enumerate(plans):
            if plan.storage_data != first:
                raise PeerError(
                    f"{self.folder}: rank 0 has read {first[0]} and rank {rank} {plan.storage_data[0]}, before and "
                    "after a save: load again, or name the step of a series as checkpoint_id"
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for, archive by archive.

        Raises:
            GcodecError: An archive is damaged, missing or another than the index names.
        """
        wanted: dict[str, dict[str, list[Any]]] = {}
        for item in plan.items:
            stored = self._items[item.storage_index]
            wanted.setdefault(stored.file, {}).setdefault(stored.name, []).append(item)
        for file, by_name in wanted.items():
            with self._opened(file) as (archive, entry):
                as_stored = {name: self._items[items[0].storage_index] for name, items in by_name.items()}
                with closing(StoredTensors(archive, entry).read(as_stored)) as values:
                    for name, value in values:
                        for item in by_name[name]:
                            deliver(value, as_stored[name].kind, item, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @contextmanager
    def _opened(self, file: str) -> Iterator[tuple[ArchiveReader, FileEntry]]:
        with ArchiveReader(self._folder().place(file), threads=self._threads) as archive:
            yield archive, archive.files[0]


class SeriesReader(CheckpointReader):
    """Loads a step that :class:`SeriesWriter` saved: that of ``checkpoint_id``, or else the last complete one.

    Each load looks for the last one anew, so a reader may follow a training.

    Args:
        folder: The folder, or a URL for fsspec.
        threads: For decoding; as many as the process may use if None.

    Raises:
        InvalidArgument: ``threads`` is out of range.
    """

    def __init__(self, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
        super().__init__(folder, threads=threads)
        self.step, self._asked = -1, -1

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Take the step of the next load from ``checkpoint_id``. Raises InvalidArgument if it is no number."""
        self._asked = _step_of_id(checkpoint_id)

    def set_up_storage_reader(self, metadata: dcp.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep the index, and forget the ``checkpoint_id``: torch says nothing where the next load has none."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._asked = -1

    def _index_name(self) -> str:
        self.step = self._asked
        if self.step < 0:
            steps = STEP_INDEX.numbers(self._folder().names())
            if not steps:
                raise FileNotFoundError(f"{self.folder}: no complete step; {self._what_is_there()}")
            self.step = steps[-1]
        return STEP_INDEX.name(self.step)

    @contextmanager
    def _opened(self, file: str) -> Iterator[tuple[ArchiveReader, FileEntry]]:
        with StepFolder(self._folder().place(file), threads=self._threads).opened(self.step) as step:
            yield step.archive, step.entry


def steps_in_series(folder: str | os.PathLike[str]) -> list[int]:
    """Return the complete steps in the folder of a :class:`SeriesWriter`, in ascending order."""
    return STEP_INDEX.numbers(folder_at(folder).names())


def _path_or_url(folder: str | os.PathLike[str]) -> Path | str:
    fixed: Path | str = fixed_place(folder)
    return fixed


def _step_of_id(checkpoint_id: str | os.PathLike[str] | None) -> int:
    """Return the step of a ``checkpoint_id``, -1 for None. Raises InvalidArgument."""
    if checkpoint_id is None:
        return -1
    text = str(checkpoint_id)
    if not (text.isascii() and text.isdecimal() and len(text) < 20):  # int() takes "1_0" and " 7", too
        raise InvalidArgument(f"checkpoint_id must be a step's number in a series, not {checkpoint_id!r}")
    return check_step(int(text))
