"""The publisher: makes versions of a state dict, each an anchor or the difference from the version before."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..archive import ArchiveWriter, Base
from ..archive.base_tensors import WITH_BASE, BaseSegment
from ..archive.dicts import DICT_PATH
from ..archive.entries import well_formed
from ..archive.output import signals_deferred
from ..errors import InvalidArgument, check_choice, check_flag, check_int, check_optional_int
from ..files.elements import stored_as
from ..files.file_plan import FilePlan, TensorView
from ..files.safetensors import plan_described
from ..files.source import ArraySource, Bytes
from ..tensors import is_torch
from ..threads import WorkPool, available_threads, check_threads
from .device_bits import (
    Bits,
    DeviceBits,
    bits_beside,
    device_bits,
    hashes_of,
    held_copy,
    is_on_device,
    n_different,
    wait_for_copies,
)
from .device_segments import ready_segments
from .sync_stats import LOG, Progress, PublishStats, StageClock, checked_progress
from .tensor_bits import TensorLayout, host_bits, shares_memory, tensor_layout_of
from .version_message import HashedTensor, VersionInfo, check_own_metadata, check_part, state_hash, to_metadata

#: Values are compared in runs of so many bytes, which stay in a core's cache.
COMPARE_BYTES = 1 << 20
#: Versions between anchors, where the caller does not say.
ANCHOR_EVERY = 50
#: In a difference, smaller floating-point tensors of one type lie end to end: each by itself costs some 500 bytes.
JOINED_BELOW = 1 << 22
#: Characters of a tensor's name.
MAX_NAME = 10_000
#: Types that tensors may be cast to.
CASTS = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")


class PublishedTensor(NamedTuple):
    """A tensor as it was published.

    Attributes:
        layout: Its layout.
        bits: Its row-major bytes on the host or a device, which the publisher owns once the version is made.
        hash: Of these bytes.
        is_owned: The bytes are in memory that nobody else changes.
    """

    layout: TensorLayout
    bits: Bits
    hash: str
    is_owned: bool


Published = dict[str, PublishedTensor]


@dataclass
class WeightVersion:
    """A version of the weights, ready to be sent.

    Attributes:
        info: Its number, hashes and metadata. ``info.base`` is None where there is no difference.
        is_anchor_due: An anchor of this version should be kept, because the interval or the caller says so.
        is_first: The publisher has made none before it.
        stats: Counts and seconds.
        difference: The message with what changed; None for a first version, and after names, shapes or types changed.
    """

    info: VersionInfo
    is_anchor_due: bool
    is_first: bool
    stats: PublishStats
    difference: bytes | None = field(repr=False)
    _make_anchor: Callable[[VersionInfo], bytes] = field(repr=False)
    _anchor: bytes | None = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: the messages there are, without the publisher, which could make an anchor."""
        return {**self.__dict__, "_make_anchor": _no_anchor}

    @property
    def number(self) -> int:
        """Return the number of the version; those of a publisher are consecutive."""
        return self.info.number

    @property
    def state(self) -> str:
        """Return the hash of the weights, 16 hexadecimal digits."""
        return self.info.state

    @property
    def data(self) -> bytes:
        """Return the message for a subscriber that holds the version before: the difference, else the anchor."""
        return self.difference if self.difference is not None else self.anchor()

    def anchor(self) -> bytes:
        """Return the message with all weights, for a subscriber that holds any version or none; made when first asked
        for.

        Raises:
            InvalidArgument: The publisher has made a later version by now, and holds these weights no longer; or the
                version was pickled before it was asked.
        """
        if self._anchor is None:
            self._anchor = self._make_anchor(self.info)
        return self._anchor


def _no_anchor(info: VersionInfo) -> bytes:
    """Raise InvalidArgument, for a version in another process than its publisher's."""
    raise InvalidArgument(f"{info} was pickled without its anchor: call anchor() before that")


class Publisher:
    """Makes versions of a state dict. It holds a copy of the weights that it published last.

        publisher = gcodec.sync.Publisher()
        version = publisher.publish(model.state_dict())
        send(version.data)

    Not for several threads at once, but a version may be sent, and its anchor be made, beside the next ``publish``.

    Args:
        start: Weights that all subscribers hold before the first version, such as those of a common checkpoint: the
            first version is then a difference, too. None: the first version is an anchor.
        anchor_every: After so many versions an anchor is due again; None: only the first, and on demand.
        first: Number of the first version. To go on in a folder, 1 more than the number of its newest version.
        dtype: Floating-point tensors of wider types are cast to this one before they are compared and sent, such as
            "bfloat16" for float32 masters; None: all are sent as they are.
        on_device: Keep the copy of tensors on CUDA devices there; differences are then found, hashed and encoded there,
            and only their bytes come to the host. False: all of that is done on the host.
        part: Name of the part of a sharded state that this publisher has.
        threads: How many compare and encode at once; as many as the process may use if None.
        progress: Called with the name of a stage ("compare", "encode"), bytes done and bytes in all.

    Raises:
        InvalidArgument: An argument has another type or value.
    """

    def __init__(
        self,
        start: Mapping[str, Any] | None = None,
        *,
        anchor_every: int | None = ANCHOR_EVERY,
        first: int = 1,
        dtype: str | None = None,
        on_device: bool = False,
        part: str = "",
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        anchor_every, first = check_optional_int("anchor_every", anchor_every), check_int("first", first, 1)
        check_choice("dtype", dtype, (None, *CASTS))
        check_threads(threads)
        check_flag("on_device", on_device)
        self._anchor_every, self._dtype, self._threads = anchor_every, dtype, threads
        self._part = check_part(part)
        self._on_device = on_device
        self._progress = checked_progress(progress)
        self._held: Published | None = None
        self._memory_lock, self._n_anchors = Lock(), 0  # anchors that are being made, of the memory that is held
        self._state: str | None = None
        self._first, self._number, self._since_anchor = first, first - 1, 0
        self._anchor_wanted = False
        if start is not None:
            published = self._snapshot(start, StageClock())
            self._hold(published, _hash_of(published))

    @property
    def number(self) -> int:
        """Return the number of the last version; before the first, that before its number."""
        return self._number

    @property
    def state(self) -> str | None:
        """Return the hash of the weights that were published last, or were given as ``start``; None before."""
        return self._state

    def request_anchor(self) -> None:
        """Have an anchor be due with the next version, such as when a subscriber asks for one."""
        self._anchor_wanted = True

    def publish(
        self, tensors: Mapping[str, Any], *, anchor: bool = False, metadata: Mapping[str, str] | None = None
    ) -> WeightVersion:
        """Make the next version. The tensors may change again as soon as this returns.

        Args:
            tensors: Name to numpy array or torch tensor, on any device, of any shape and strides, and of any type that
                .safetensors has. Floats are coded against the last version; other types are sent whole if they change.
            anchor: An anchor is due, whatever the interval says.
            metadata: Strings to send along, such as the number of the training step.

        Returns:
            The version. An anchor of it can be had until the next one is made.

        Raises:
            InvalidArgument: A tensor of another kind or type, or reserved metadata. No version has been made then.
        """
        check_flag("anchor", anchor)
        own, clock = check_own_metadata(metadata), StageClock()
        new = self._snapshot(tensors, clock)
        state, old = _hash_of(new), self._held
        same_layout = old is not None and _layouts(old) == _layouts(new)
        changed, n_changed = new, sum(item.layout.n_values for item in new.values())
        if old is not None and same_layout:
            old = {name: item._replace(bits=bits_beside(item.bits, new[name].bits)) for name, item in old.items()}
            with clock.measure("compare"):
                changed, n_changed = self._changes(old, new)
        info = VersionInfo(self._number + 1, state, self._state if same_layout else None, self._part, own)
        with clock.measure("encode"):
            data = self._encode(info, changed, old if same_layout else None)
        due = anchor or self._anchor_wanted or info.is_anchor or self._since_anchor + 1 == self._anchor_every
        with clock.measure("keep"):
            self._hold(new, state, number=info.number, since_anchor=0 if due else self._since_anchor + 1)
        stats = PublishStats(
            n_values=sum(item.layout.n_values for item in new.values()),
            n_changed_values=n_changed,
            n_tensors=len(new),
            n_changed_tensors=len(changed),
            raw_bytes=sum(item.layout.n_bytes for item in new.values()),
            message_bytes=len(data),
            seconds=clock.seconds,
        )
        LOG.info("published version %d: %s of %s", info.number, "anchor" if info.is_anchor else "difference", stats)
        difference, made_anchor = (None, data) if info.is_anchor else (data, None)
        is_first = info.number == self._first
        return WeightVersion(info, due, is_first, stats, difference, self._anchor_of, made_anchor)

    def _snapshot(self, tensors: Mapping[str, Any], clock: StageClock) -> Published:
        """Return the tensors as they are now, hashed; their bits may still be the caller's memory."""
        if not isinstance(tensors, Mapping):
            raise InvalidArgument(f"tensors must be a mapping of names to tensors, not a {type(tensors).__name__}")
        name: Any
        for name in tensors:
            if not isinstance(name, str):
                raise InvalidArgument(f"a tensor's name must be a string, not {name!r}")
            if not well_formed(name) or len(name) > MAX_NAME or name == "__metadata__":
                raise InvalidArgument(
                    f"a tensor's name must be UTF-8 of at most {MAX_NAME} characters and not '__metadata__'; "
                    f"it is {name[:80]!r}"
                )
        layouts, found, owned = dict[str, TensorLayout](), dict[str, Bits](), set[str]()
        with clock.measure("read"):
            for name, value in tensors.items():
                tensor_layout_of(name, value)  # before it is cast
                cast = value if self._dtype is None else cast_wider(name, value, self._dtype)
                there = self._on_device and is_on_device(cast)
                bits: Bits = device_bits(cast) if there else host_bits(cast)
                if not shares_memory(value, bits):
                    owned.add(name)
                elif bits.size < JOINED_BELOW:
                    bits = held_copy(bits, None)
                    owned.add(name)
                layouts[name], found[name] = tensor_layout_of(name, cast), bits
        with clock.measure("compare"), WorkPool(available_threads(self._threads)) as pool:
            hashes = hashes_of(found, pool)
            return {
                name: PublishedTensor(layout, found[name], hashes[name], name in owned)
                for name, layout in layouts.items()
            }

    def _changes(self, old: Published, new: Published) -> tuple[Published, int]:
        """Return the tensors that changed, and how many of their values did."""
        total = sum(item.layout.n_bytes for item in new.values())
        done, n_changed, changed = 0, 0, {}
        with WorkPool(available_threads(self._threads)) as pool:
            names = list(new)
            for name, count in zip(names, pool.map(lambda name: _n_changed(old[name], new[name]), names), strict=True):
                n_changed += count
                done += new[name].layout.n_bytes
                if count:
                    changed[name] = new[name]
                self._progress("compare", done, total)
        return changed, n_changed

    def _anchor_of(self, info: VersionInfo) -> bytes:
        """Return the anchor of a version, if it is the last one."""
        with self._memory_lock:
            held = self._held
            if info.number != self._number or info.state != self._state or held is None:
                raise InvalidArgument(
                    f"an anchor must be made before the next version: the publisher holds version {self._number}, not "
                    f"{info.number}"
                )
            self._n_anchors += 1
        try:
            return self._encode(replace(info, base=None), held, None)
        finally:
            with self._memory_lock:
                self._n_anchors -= 1

    def _encode(self, info: VersionInfo, tensors: Published, old: Published | None) -> bytes:
        """Return the message that holds these tensors, coded against ``old`` if there is that."""
        stream, total, done = io.BytesIO(), sum(item.layout.n_bytes for item in tensors.values()), 0

        def count(size: int) -> None:
            nonlocal done
            done = min(done + size, total)
            self._progress("encode", done, total)

        base = None if old is None else _base_of(f"version {info.number - 1}", old)
        plan, ready = _plan_of(info, tensors), {}
        if old is not None:
            ready = ready_segments(plan, *({name: item.bits for name, item in own.items()} for own in (tensors, old)))
        with ArchiveWriter(stream, threads=self._threads, casts=False, progress=count) as archive:
            entry = archive.add(plan, base=base, ready=ready)
            for view in entry.tensors:
                if not tensors[view.name].is_owned and entry.segments[view.segment].hash != tensors[view.name].hash:
                    raise InvalidArgument(f"tensor {view.name!r} must not change while it is published, but it did")
        return stream.getvalue()

    def _hold(self, new: Published, state: str, *, number: int | None = None, since_anchor: int = 0) -> None:
        """Keep the bits of a version, in the memory of the last one where there is any."""
        kept = dict[str, PublishedTensor]()
        with signals_deferred():
            # Its memory is written over: if there is no memory for the rest, the next version must be an anchor.
            with self._memory_lock:
                old = {} if self._held is None or self._n_anchors else self._held
                self._held = self._state = None
            for name, item in new.items():
                bits = item.bits
                if not item.is_owned:
                    room = old[name].bits if name in old and old[name].layout == item.layout else None
                    bits = held_copy(bits, room)
                kept[name] = PublishedTensor(item.layout, bits, item.hash, True)
            if self._on_device:
                wait_for_copies(item.bits for item in kept.values())
            made = {} if number is None else {"_number": number, "_anchor_wanted": False}
            # In one step: an interrupt leaves all of it, of before or of after.
            vars(self).update(_held=kept, _state=state, _since_anchor=since_anchor, **made)


def cast_wider(name: str, value: Any, dtype: str) -> Any:
    """Return a tensor of floats that are wider than ``dtype`` as one of that type, any other as it is.

    Raises:
        InvalidArgument: numpy cannot cast to this type without ml_dtypes.
    """
    if is_torch(value):
        import torch

        target = getattr(torch, dtype)
        wider = value.is_floating_point() and value.element_size() > target.itemsize
        return value.detach().to(target) if wider else value
    array, layout = np.asarray(value), tensor_layout_of(name, value)
    if layout.dtype not in WITH_BASE or layout.item_bytes <= TensorLayout(dtype, ()).item_bytes:
        return array
    try:
        return array.astype(dtype)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise InvalidArgument(
            f"tensor {name!r} must be a torch tensor to be cast to {dtype}, a type that numpy has only with ml_dtypes"
        ) from None
    return array.astype(getattr(ml_dtypes, dtype))


def _layouts(tensors: Published) -> dict[str, TensorLayout]:
    return {name: item.layout for name, item in tensors.items()}


def _hash_of(tensors: Published) -> str:
    return state_hash({name: HashedTensor(item.layout, item.hash) for name, item in tensors.items()})


def _runs(old: PublishedTensor, new: PublishedTensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    uint, step = new.layout.uint, COMPARE_BYTES // new.layout.item_bytes
    before, after = old.bits[:].view(uint), new.bits[:].view(uint)
    for start in range(0, len(after), step):
        yield before[start : start + step], after[start : start + step]


def _n_changed(old: PublishedTensor, new: PublishedTensor) -> int:
    """Return how many values of a tensor changed."""
    if isinstance(old.bits, DeviceBits) and isinstance(new.bits, DeviceBits):
        return n_different(old.bits, new.bits)
    if old.hash == new.hash and np.array_equal(old.bits[:], new.bits[:]):
        return 0
    return sum(int(np.count_nonzero(before != after)) for before, after in _runs(old, new))


def _plan_of(info: VersionInfo, tensors: Published) -> FilePlan:
    """Return the plan of the .safetensors file that a message's archive holds."""
    groups = [[name] for name in tensors] if info.is_anchor else _groups(tensors)
    sizes = {name: (item.layout.dtype, item.layout.shape, item.layout.n_bytes) for name, item in tensors.items()}

    def source_of(header: bytes) -> ArraySource:
        # Slices of bits are arrays, wherever they lie.
        bits: list[Any] = [tensors[name].bits for group in groups for name in group]
        return ArraySource([np.frombuffer(header, np.uint8), *bits])

    metadata = to_metadata(info, are_joined=len(groups) < len(tensors))
    return plan_described(DICT_PATH, sizes, groups, source_of, metadata=metadata)


def _groups(tensors: Published) -> list[list[str]]:
    """Return the names of tensors that lie end to end in a difference: small ones of one type that have bases."""
    groups: list[list[str]] = []
    joined: dict[tuple[str, Any], list[str]] = {}
    for name, item in tensors.items():
        dtype = item.layout.dtype
        if dtype in WITH_BASE and 0 < item.bits.size < JOINED_BELOW:
            joined.setdefault((dtype, getattr(item.bits, "device", None)), []).append(name)
        else:
            groups.append([name])
    return groups + list(joined.values())


def _base_of(name: str, tensors: Published) -> Base:
    """Return the weights that a difference is coded against."""
    items = list(tensors.values())

    def read(segment: int, start: int, stop: int) -> Bytes:
        return items[segment].bits[start:stop]

    views = tuple(TensorView(name, *item.layout, number) for number, (name, item) in enumerate(tensors.items()))
    segments = tuple(BaseSegment(item.layout.n_bytes, stored_as(item.layout.dtype), item.hash) for item in items)
    return Base(name, views, segments, read, is_held=True)
