"""The subscriber: checks versions and applies them in order, in place, or leaves the weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import xxhash

from ..archive.base_tensors import Base, BaseSegment
from ..archive.entries import FileEntry
from ..archive.output import signals_deferred
from ..errors import (
    BrokenChain,
    Corruption,
    GcodecError,
    InvalidArgument,
    NoMemory,
    Unsupported,
    check_choice,
    check_flag,
    check_output_limit,
)
from ..files.elements import stored_as
from ..files.file_plan import TensorView
from ..files.source import Bytes
from ..threads import check_threads
from .device_bits import as_bytes_there, hashes_on_device
from .device_segments import decoded_segment
from .shared_tensors import SharedTensors
from .sync_stats import LOG, Progress, StageClock, UpdateStats, checked_progress
from .tensor_bits import TensorLayout, WritableTensor, as_typed, check_memory, names_as_text
from .version_chain import Position, Step, StoredMessage, StoredVersion, VersionSource, Ways, check_found, check_stop
from .version_folder import VersionFolder
from .version_message import HashedTensor, Message, OpenMessage, VersionInfo, check_part, open_message, state_hash
from .weight_changes import Change, device_changes, fill, host_changes, layouts_of, write_all


class PendingVersion:
    """A version that has been read, decoded and checked, but not applied yet: :meth:`Subscriber.read` returns it.

    Attributes:
        info: The facts about the version.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        info: VersionInfo,
        tensors: dict[str, HashedTensor],
        changes: list[Change],
        fresh: dict[str, WritableTensor] | None,
    ) -> None:
        self.info = info
        self._subscriber, self._tensors, self._changes, self._fresh = subscriber, tensors, changes, fresh
        self._applies_to = subscriber.position
        self._clock, self._raw_bytes, self._message_bytes = StageClock(), 0, 0

    @property
    def n_changed_values(self) -> int:
        """Return how many values of the weights it changes."""
        return sum(change.n_changed for change in self._changes)

    def iter_changes(self, *, like: str | None = None) -> Iterator[tuple[str, Any, Any]]:
        """Iterate over what the version changes, for engines with an interface for sparse updates.

        Args:
            like: ``"numpy"`` or ``"torch"``, in host memory; None: as the subscriber's own tensors are, and on a device
                where the update is made there.

        Yields:
            Name of a tensor, flat indices into it in row-major order (int64[n], ascending) and its new values there
            (its own type, [n], row-major). A large tensor comes in several parts, in order; a part of which more than a
            quarter changes comes whole.

        Raises:
            BrokenChain: This anchor made the subscriber's tensors, which are its values, and another version has been
                written into them since.
        """
        check_choice("like", like, (None, "numpy", "torch"))
        subscriber = self._subscriber
        for change in self._changes:
            if self._fresh is subscriber._held and subscriber.state != self.info.state:
                raise BrokenChain(
                    f"{self.info} made the subscriber's tensors, which are those of {subscriber.position} by now: "
                    "iterate over its changes before the next version is applied"
                )
            yield change.tensor.name, *change.places_and_values(like)

    def apply(self) -> UpdateStats:
        """Write the new values into the subscriber's tensors.

        Whatever is raised while it writes, the values that were there before are put back first.

        Raises:
            BrokenChain: The subscriber has applied another version since this one was read.
            InvalidArgument: It has different values for tensors that share memory in part, or tensors have other memory
                by now.
        """
        subscriber = self._subscriber
        if subscriber.position != self._applies_to:
            raise BrokenChain(f"{self.info} was read when the subscriber held {self._applies_to}; read it again")
        check_memory(subscriber._held.values())
        with self._clock.measure("write"), signals_deferred():
            if self._fresh is None:
                write_all(self._changes, self._note_written, lambda: subscriber._hashes is self._tensors)
            else:
                subscriber._has_applied(self.info, self._tensors, self._fresh)
        n_bytes = self._raw_bytes, self._message_bytes
        stats = UpdateStats(self.info.number, self.info.is_anchor, self.n_changed_values, *n_bytes, self._clock.seconds)
        LOG.info("applied version %d: %s", self.info.number, stats)
        return stats

    def try_out(self) -> None:
        """Check what only shows where values are written, those of tensors that share memory in part; nothing stays.

        Raises:
            InvalidArgument: It has different values for them.
        """
        if self._subscriber._shared.in_part:
            with signals_deferred():
                write_all(self._changes, self._check_written)

    def _note_written(self) -> None:
        """Check what was written, and let the subscriber hold it."""
        self._check_written()
        self._subscriber._has_applied(self.info, self._tensors)

    def _check_written(self) -> None:
        """Check tensors of which parts may have been written under other names. Raises InvalidArgument."""
        shared = self._subscriber._shared
        if not shared.in_part.keys().isdisjoint(change.tensor.name for change in self._changes):
            shared.check_written(self.info, self._tensors, self._subscriber._hashed(shared.in_part))


class Subscriber:
    """Holds weights and keeps them up to date. Not for several threads at once.

        subscriber = gcodec.sync.Subscriber(dict(engine.named_parameters()))
        subscriber.apply(receive())

    A version that does not follow the one held, or is damaged in any byte, is refused by a named error, and the weights
    stay as they were.

    Args:
        tensors: Name to numpy array or torch tensor, which are written in place, on whatever device. They must have the
            names, types and shapes of the publisher's, and share memory only where its values are equal. Of a module
            give ``state_dict(keep_vars=True)``: parameters that have been moved are then refused. None: the first
            anchor makes tensors, in host memory.
        on_device: Make updates of tensors on CUDA devices there. Their values then never come to the host.
            Anchors, and tensors whose values do not lie one after the other, are compared on the host in any case.
        part: Name of the part of a sharded state that they are, as its publisher has it.
        like: ``"numpy"`` or ``"torch"``: the kind of tensors that are made where none are given.
        threads: How many decode at once; as many as the process may use if None.
        max_output_bytes: Refuse messages that restore to more bytes, of weights and their .safetensors header; None: no
            limit.
        progress: Called with "check", bytes done and bytes in all.

    Raises:
        InvalidArgument: A tensor that cannot be written in place, or of a type that versions do not have.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | None = None,
        *,
        on_device: bool = False,
        part: str = "",
        like: str = "torch",
        threads: int | None = None,
        max_output_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_choice("like", like, ("numpy", "torch"))
        check_threads(threads)
        check_flag("on_device", on_device)
        check_output_limit(max_output_bytes)
        self._part, self._like, self._threads, self._limit = check_part(part), like, threads, max_output_bytes
        self._progress = checked_progress(progress)
        if tensors is not None and not isinstance(tensors, Mapping):
            raise InvalidArgument(f"tensors must be a mapping of names to tensors, not a {type(tensors).__name__}")
        names: list[Any] = list(tensors or ())
        for name in names:
            if not isinstance(name, str):
                raise InvalidArgument(f"names of tensors must be strings, not {name!r}")
        self._is_given = tensors is not None
        self._held = {name: WritableTensor(name, value, on_device=on_device) for name, value in (tensors or {}).items()}
        self._shared = SharedTensors(self._held.values())
        self._hashes: dict[str, HashedTensor] = {}
        self._number, self._state = 0, ""

    @property
    def tensors(self) -> dict[str, Any]:
        """Return the weights by name: those that were given, or made. Changing their values breaks the chain."""
        return {name: tensor.value for name, tensor in self._held.items()}

    @property
    def number(self) -> int:
        """Return the number of the version that was applied last; 0 before the first."""
        return self._number

    @property
    def state(self) -> str:
        """Return the hash of the weights, 16 hexadecimal digits; empty if there are none. The first call reads them."""
        if not self._state and self._held:
            self._hashes = self._hashed(self._held)
            self._state = state_hash(self._hashes)
        return self._state

    @property
    def position(self) -> Position:
        """Return number and hash of what is held."""
        return Position(self.number, self.state)

    def read(self, data: Message) -> PendingVersion:
        """Read, decode and check a version without changing any weights.

        Args:
            data: A message: bytes, a path or a binary stream.

        Raises:
            BrokenChain: It does not follow the version that is held.
            Corruption: It is damaged.
            InvalidArgument: Its tensors are not those of the subscriber, or differ where these are the same memory, or
                it is of another part.
            Unsupported: It is of a later format.
            LimitExceeded: It restores to more than ``max_output_bytes``.
        """
        return self._read(data)

    def _read(self, data: Message, found: tuple[StoredVersion, Step] | None = None) -> PendingVersion:
        """Read a version.

        Args:
            found: What its source says of it, which it must agree with. An anchor that does may go back in number.

        Raises:
            GcodecError: As for :meth:`read`.
        """
        clock = StageClock()
        with clock.measure("check"):
            check_memory(self._held.values())
            for tensor in self._held.values():
                tensor.forget_copy()  # which an interrupt may have left, of other values
            bases = _HeldBases(lambda: (str(self.position), list(self._held.values())))
            message = open_message(data, threads=self._threads, max_output_bytes=self._limit, bases=bases)
            with message.archive:
                if found is not None:
                    check_found(message.info, *found, message.archive.name)
                self._check_order(message.info, may_go_back=found is not None and message.info.is_anchor)
                self._check_layouts(message.info)
                pending = self._decoded(message)
        pending._clock, pending._message_bytes = clock, message.archive.size
        return pending

    def apply(self, data: Message) -> UpdateStats:
        """Read and check a version, then write its values into the tensors. Arguments and errors as for :meth:`read`;
        after an error the weights are those of the last version."""
        return self.read(data).apply()

    def catch_up(self, source: VersionSource, *, to: int | None = None) -> int:
        """Apply the stored versions that lead to the newest one: differences, or an anchor and differences.

        A message that is damaged or gone is left out where a later anchor makes up for it; an anchor also mends weights
        that something else has changed.

        Args:
            source: Where versions are stored, such as a :class:`gcodec.sync.VersionFolder`.
            to: Number of the version to stop at; None: the newest.

        Returns:
            How many versions were applied; 0 if there is nothing new.

        Raises:
            BrokenChain: Nothing leads from what is held to that version: an anchor is needed.
            InvalidArgument: An argument has another type.
            Corruption: A message that is needed is damaged, or is another than the source says.
            GcodecError: There is no such folder.
            OSError: The source cannot be read.

        After an error the weights are those of the last version that could be applied.
        """
        if not hasattr(source, "versions") or not hasattr(source, "message"):
            raise InvalidArgument(
                f"source must be where versions are stored, such as VersionFolder(path), not {source!r}"
            )
        to = check_stop(to)
        n_applied, unusable, is_intact = 0, dict[Step, StoredMessage | None](), True
        problem: GcodecError | None = None
        while True:
            found = source.versions()
            if not found and isinstance(source, VersionFolder):
                source.check_is_there()
            versions = [version for version in found if to is None or version.number <= to]
            self._leave_other_run(versions, is_stopped=to is not None)
            if not versions or versions[-1].number <= self._number:
                return n_applied
            rows, last = {version.number: version for version in versions}, versions[-1].number
            # All ways are tried before the source is asked again, for it may name many messages that are gone.
            gone = {step for step, was in unusable.items() if step.number in rows and rows[step.number].at(step) == was}
            ways, has_tried = Ways(versions, without=gone), False  # with those that another run has written anew
            while self._number < last and (steps := ways.best(self.state if is_intact else "")) is not None:
                has_tried = True
                try:
                    for step in steps:
                        self._read_step(source, rows[step.number], step).apply()
                        n_applied, is_intact = n_applied + 1, True
                    self._number = last  # the weights may have been those of that version, under another number
                except BrokenChain as error:
                    if not is_intact:
                        raise
                    LOG.warning("version %d cannot be used: %s", step.number, error)
                    is_intact, problem = False, error
                except (Corruption, FileNotFoundError) as error:
                    LOG.warning("version %d cannot be used: %s", step.number, error)
                    unusable[step] = rows[step.number].at(step)
                    ways.leave_out(step)
                    problem = error if isinstance(error, Corruption) else Corruption(f"a message is gone: {error}")
            if not has_tried:
                raise problem or BrokenChain(f"nothing leads to version {last} from what is held: an anchor is needed")

    def _leave_other_run(self, versions: Sequence[StoredVersion], *, is_stopped: bool) -> None:
        """Forget the number that is held if the source has other weights under it: another run writes there by now."""
        held = next((version for version in versions if version.number == self._number), None)
        if held is not None and held.state != self.state:
            LOG.warning("version %d is not the one that is held: another run has written it", self._number)
            self._number = 0
        elif versions and versions[-1].number < self._number and not is_stopped:
            LOG.warning(
                "the newest version is %d, and version %d is held: reset() to follow another run",
                versions[-1].number,
                self._number,
            )

    def _read_step(self, source: VersionSource, version: StoredVersion, step: Step) -> PendingVersion:
        return self._read(source.message(step.number, anchor=step.is_anchor, stored=version.at(step)), (version, step))

    def verify(self) -> None:
        """Check that the weights are still those of the version that was applied last.

        Raises:
            BrokenChain: They are not; the names of the changed tensors are in the text. An anchor mends them.
        """
        if self._hashes:
            found = self._hashed(self._held)
            names = [name for name, item in found.items() if item != self._hashes[name]]
            if names:
                raise BrokenChain(f"something else changed the weights of {self.position}: {names_as_text(names)}")

    def reset(self) -> None:
        """Forget the number of the version that was applied last, to follow another publisher or go back in time. The
        weights stay."""
        self._number, self._state, self._hashes = 0, "", {}

    def _check_order(self, info: VersionInfo, *, may_go_back: bool) -> None:
        if info.part != self._part:
            raise InvalidArgument(f"{info} is of part {info.part!r}, this subscriber of part {self._part!r}")
        if self._number >= info.number and not may_go_back:
            raise BrokenChain(
                f"{info} does not come after version {self._number}, which is held; reset() first, to go back"
            )
        if info.base is None or info.base == self.state:
            return
        if not self._held:
            raise BrokenChain(f"{info} applies to weights, and there are none yet: apply an anchor first")
        if self._number and info.number > self._number + 1:
            first, last = self._number + 1, info.number - 1
            missing = f"version {last}" if first == last else f"versions {first} to {last}"
            raise BrokenChain(
                f"{info} does not follow version {self._number}, which is held: {missing} must be applied first, or an "
                "anchor"
            )
        raise BrokenChain(
            f"{info} applies to the weights {info.base}, but {self.position} has {self.state}: an anchor is needed"
        )

    def _check_layouts(self, info: VersionInfo) -> None:
        """Compare a version's tensors with those that are held. Raises InvalidArgument."""
        if not self._is_given and (not self._held or info.is_anchor):
            return
        if missing := self._held.keys() - info.tensors.keys() if info.is_anchor else None:
            raise InvalidArgument(f"{info} has no tensor {names_as_text(missing)}, which the subscriber has")
        if unknown := info.tensors.keys() - self._held.keys():
            raise InvalidArgument(f"{info} has the tensor {names_as_text(unknown)}, which the subscriber lacks")
        for name, layout in info.tensors.items():
            ours = self._held[name].layout
            if layout != ours:
                raise InvalidArgument(f"{info}: tensor {name!r} is {layout}; the subscriber's is {ours}")

    def _decoded(self, message: OpenMessage) -> PendingVersion:
        """Return what a message changes, after all of it has been checked."""
        info, held = message.info, self._held
        fresh = None
        if info.is_anchor and not self._is_given and layouts_of(held) != info.tensors:
            fresh = {name: self._new(name, layout) for name, layout in info.tensors.items()}
        hashes = {} if info.is_anchor else dict(self._hashes)
        tensors, changes = held if fresh is None else fresh, list[Change]()
        total, done = sum(layout.n_bytes for layout in info.tensors.values()), 0
        try:
            there = {} if info.is_anchor else self._segments_on_device(message.entry)
            for number, names in there.items():
                changes += self._changes_there(message, number, names, hashes)
                done += message.entry.segments[number].bytes
                self._progress("check", done, total)
            for part in message.tensor_parts(without=there):
                name, layout, start, data, digest = part
                tensor = tensors[name]
                if digest is not None:
                    hashes[name] = HashedTensor(layout, digest)
                    tensor.forget_copy()
                    continue
                if data.size % layout.item_bytes:
                    raise Corruption(f"{info}: tensor {name!r}: a part ends within a value")
                bits, first = data.view(layout.uint), start // layout.item_bytes
                changes += host_changes(tensor, first, bits) if fresh is None else fill(tensor, first, bits)
                done += data.size
                self._progress("check", done, total)
            message.check_rest()
        except Unsupported as error:
            raise self._explained(info, error) from error
        if state_hash(hashes) != info.state:
            raise Corruption(f"{info}: its tensors do not give the weights {info.state}, as it says, but others")
        self._shared.check_tied(info, hashes)
        pending = PendingVersion(self, info, hashes, changes, fresh)
        pending._raw_bytes = total
        return pending

    def _segments_on_device(self, entry: FileEntry) -> dict[int, list[str]]:
        """Return the segments of a difference that are decoded on a device, by number, with their tensors' names."""
        found = {}
        for number, views in entry.views.items():
            names = [view.name for view in views]
            words = [self._held[name].words_on_device for name in names]
            places = {None if own is None else own.device for own in words}
            if entry.segments[number].dtype is not None and len(places) == 1 and None not in places:
                found[number] = names
        return found

    def _changes_there(
        self, message: OpenMessage, number: int, names: list[str], hashes: dict[str, HashedTensor]
    ) -> list[Change]:
        """Return what a segment changes, decoded and compared on a device; its tensors' hashes are put into ``hashes``.

        Raises:
            GcodecError: It is damaged, or of another base.
        """
        bases = [as_bytes_there(self._held[name].words_on_device) for name in names]
        new = decoded_segment(message.archive, message.entry, number, bases)
        ends = list(accumulate(map(len, bases)))
        parts = [new[end - len(base) : end] for base, end in zip(bases, ends, strict=True)]
        whole, *digests = hashes_on_device([new, *(parts if len(parts) > 1 else [])])
        message.archive.check_segment_hash(message.entry, number, whole)
        changes: list[Change] = []
        for name, part, digest in zip(names, parts, digests or [whole], strict=True):
            hashes[name] = HashedTensor(self._held[name].layout, digest)
            changes += device_changes(self._held[name], part)
        return changes

    def _explained(self, info: VersionInfo, error: Unsupported) -> Exception:
        """Return the error to raise for a frame that does not apply to the weights as they are now."""
        try:
            self.verify()
        except BrokenChain as broken:
            return BrokenChain(f"{info} cannot be applied: {broken}: an anchor is needed")
        return error

    def _new(self, name: str, layout: TensorLayout) -> WritableTensor:
        try:
            memory = np.empty(layout.n_bytes, np.uint8)
        except (MemoryError, ValueError, OverflowError):
            raise NoMemory(f"tensor {name!r}: there is no memory for {layout}") from None
        return WritableTensor(name, as_typed(memory, layout.dtype, layout.shape, self._like, name), layout)

    def _hashed(self, tensors: Mapping[str, WritableTensor]) -> dict[str, HashedTensor]:
        there = {name: own for name, tensor in tensors.items() if (own := tensor.words_on_device) is not None}
        digests = dict(zip(there, hashes_on_device(list(map(as_bytes_there, there.values()))), strict=True))
        for name, tensor in tensors.items():
            if name not in there:
                tensor.forget_copy()  # which may be of values that were written under another name since
                digests[name] = xxhash.xxh3_64_hexdigest(tensor.read(0, tensor.layout.n_bytes).data)
                tensor.forget_copy()
        return {name: HashedTensor(tensor.layout, digests[name]) for name, tensor in tensors.items()}

    def _has_applied(
        self, info: VersionInfo, hashes: dict[str, HashedTensor], fresh: dict[str, WritableTensor] | None = None
    ) -> None:
        held = self._held if fresh is None else fresh
        # In one step: an interrupt leaves all of it, of before or of after.
        vars(self).update(_held=held, _hashes=hashes, _number=info.number, _state=info.state)


class _HeldBases:
    """Finds the weights that a subscriber holds, for frames that refer to them.

    Args:
        held: Returns the name of what is held, for errors, and its tensors.
    """

    def __init__(self, held: Callable[[], tuple[str, list[WritableTensor]]]) -> None:
        self._held = held

    def find(self, path: str, dtype: str | None = None) -> Base | None:
        """Return the weights, None if there are none."""
        where, held = self._held()
        if not held:
            return None

        def read(segment: int, start: int, stop: int) -> Bytes:
            return held[segment].read(start, stop)

        views = tuple(TensorView(tensor.name, *tensor.layout, number) for number, tensor in enumerate(held))
        segments = tuple(BaseSegment(tensor.layout.n_bytes, stored_as(tensor.layout.dtype)) for tensor in held)
        return Base(where, views, segments, read)
