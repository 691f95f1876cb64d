"""States as the .safetensors files that would hold them, tensor by tensor as they are read, and back."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import accumulate
from tempfile import TemporaryFile, gettempdir
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..errors import Corruption, LimitExceeded, Unsupported
from ..files import NOT_ZIP
from ..files.elements import width
from ..files.file_plan import FilePlan, TensorView
from ..files.safetensors import plan_described
from ..files.source import Bytes, check_range, join, naming, pieces_between
from ..tensors import is_torch
from .arrays import as_bytes, default_kind, is_at_hand
from .devices import Placement
from .entries import FileEntry
from .held_file import HeldFile
from .lazy_dict import Unread
from .named_parts import named_parts
from .own_classes import KnownClasses
from .plain_files import PICKLES, PlainFile
from .reader import ArchiveReader, write_restored
from .shared_memory import lies_in
from .structure import (
    ITEM_COST,
    STRUCTURE,
    Lazily,
    Leaf,
    ParsedStructure,
    Rebuilder,
    flatten,
    of_text,
    translated_errors,
)
from .structure_places import TensorPlace, leaves_of, tensor_places
from .structure_text import MAX_ITEMS, MAX_TEXT_BYTES, n_items_of
from .tensor_groups import in_order, laid_out
from .torch_files import load_torch

#: So many tensors that had to be copied, because they are on a device or not contiguous, are held at once.
MAX_COPIES = 2
#: Said where parts of what torch.load reads as a whole are wanted.
NAMES_OF_TORCH = (
    "is a file of torch.save, of which torch.load reads all: leave out names, or give like= for a dictionary of "
    "tensors by their paths"
)


class TensorSource:
    """The bytes of a header and of tensors, end to end. What needs a copy is copied when it is read, and then let go;
    views of other tensors are kept, as to make one takes as long as to hash the ends of its bytes.

    Args:
        header: What comes before the tensors.
    """

    def __init__(self, header: bytes, leaves: list[Leaf]) -> None:
        head = np.frombuffer(header, np.uint8)
        self._read: list[Callable[[], Bytes]] = [lambda: head, *map(_reader_of, leaves)]
        self._leaves = leaves
        self._starts = [0, *accumulate([head.size, *(leaf.size for leaf in leaves)])]
        self._views, self._copies = dict[int, Bytes](), OrderedDict[int, Bytes]()
        self._lock = Lock()
        self.size = self._starts[-1]

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop``, a view where they are in one piece; raises InsufficientData outside."""
        check_range(start, stop, self.size)
        return join(self._piece(n)[begin:end] for n, begin, end in pieces_between(self._starts, start, stop))

    def is_at_hand(self, start: int) -> bool:
        """Return True if the tensor that byte ``start`` is of need not be copied to be read."""
        number = bisect_right(self._starts, start) - 1
        value: Any = self._leaves[number - 1].value if number else None
        if is_torch(value):
            return is_at_hand(value)
        return not isinstance(value, np.ndarray) or (value.flags.c_contiguous and value.dtype.byteorder != ">")

    def _piece(self, number: int) -> Bytes:
        view = self._views.get(number)
        if view is not None:
            return view
        with self._lock:
            if number in self._copies:
                return self._copies[number]
            data = self._read[number]()
            if number == 0 or lies_in(self._leaves[number - 1].value, data):
                self._views[number] = data
                return data
            self._copies[number] = data
            if len(self._copies) > MAX_COPIES:
                self._copies.popitem(last=False)
            return data


def plan_state(path: str, state: Any) -> FilePlan:
    """Return the plan of the .safetensors file that would hold a state; its tensors stay where they are.

    Args:
        path: Under which an archive keeps the file.
        state: As for :func:`gcodec.archive.structure.flatten`.

    Raises:
        InvalidArgument: The state holds something that cannot be saved.
    """
    flat = flatten(state)
    text = np.frombuffer(flat.text, np.uint8)
    return plan_leaves(path, {**flat.leaves, STRUCTURE: Leaf(text, "uint8", text.shape)}, flat.in_views)


def with_views_apart(plan: FilePlan) -> FilePlan:
    """Return the plan of a file whose tensors stay segments of their own where a state has views of them or pairs, as
    :func:`plan_state` has it: the file may be one that was restored from a state's archive."""
    structure = next((view for view in plan.tensors if view.name == STRUCTURE), None)
    if structure is None or plan.format != "safetensors":
        return plan
    segment = plan.segments[structure.segment]
    if segment.stop - segment.start > MAX_TEXT_BYTES:
        return plan
    names = _names_in_views(plan.source.read(segment.start, segment.stop).tobytes())
    apart = {view.segment for view in plan.tensors if view.name in names}
    segments = (segment._replace(apart=number in apart) for number, segment in enumerate(plan.segments))
    return replace(plan, segments=tuple(segments))


def _names_in_views(text: bytes) -> frozenset[str]:
    """Return the names of stored tensors of which a structure has views or pairs; none for a text that is none."""
    try:
        nodes = [json.loads(text)] if n_items_of(text) <= MAX_ITEMS else []
    except (RecursionError, ValueError):
        return frozenset()
    names = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict) and not {"view", "complex", "as"}.isdisjoint(node):
            names.add(str(next(iter(node.values()))))
        nodes.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
    return frozenset(names)


def plan_leaves(path: str, leaves: Mapping[str, Leaf], apart: Collection[str] = ()) -> FilePlan:
    """Return the plan of the .safetensors file that would hold tensors; they stay where they are until it is read.

    Args:
        path: Under which an archive keeps the file.
        leaves: The tensors by name.
        apart: Names of those that are never put together with others.

    Raises:
        InvalidArgument: A name or type that .safetensors lacks.
    """
    given = {name: (leaf.dtype, leaf.shape, leaf.size) for name, leaf in leaves.items()}
    order, places = laid_out(given, apart), {name: place for place, name in enumerate(given)}
    plan = plan_described(
        path,
        given,
        [[name] for name in order],
        lambda header: TensorSource(header, [leaves[name] for name in order]),
        apart=apart,
        container="torch" if any(is_torch(leaf.value) for leaf in leaves.values()) else "numpy",
    )
    return in_order(plan, [places[name] for name in order])


class Wanted(NamedTuple):
    """Names the parts of a state that a caller wants, and how they are to come.

    Attributes:
        place: Puts torch tensors on a device.
        like: ``"numpy"`` or ``"torch"`` for all tensors; None for what was saved.
        names: Names and patterns of parts; None for all.
        known: The classes of one's own.
        held: Keeps the file open, for tensors that are read when they are first used; None: all are read at once.
    """

    place: Placement
    like: str | None = None
    names: Iterable[str] | str | None = None
    known: KnownClasses | None = None
    held: HeldFile | None = None


def load_state(archive: ArchiveReader | PlainFile, entry: FileEntry, wanted: Wanted) -> Any:
    """Return the state that a file in an archive holds.

    Args:
        archive: The archive, with its bases, or a file that is none.
        entry: The file: of :func:`plan_state`, a ``.pt``, or any other with tensors, which become a dictionary.
        wanted: What the caller wants.

    Raises:
        GcodecError: Damage, a base that is missing or another, or a file without tensors.
    """
    limit, views = archive.output_limit, {view.name: view for view in entry.tensors}
    is_torch_file = entry.format == "torch" and wanted.like is None
    if wanted.names is None or is_torch_file:
        archive.check_size(entry.size)
    segments = _Segments(archive, entry, keeps_shared=wanted.held is not None)

    def read(name: str, kind: str) -> Any:
        if name not in views:
            raise Corruption(f"the structure of the state is malformed: the file lacks the tensor {name!r}")
        view = views[name]
        like = "numpy" if kind == "text" else wanted.like or kind
        data, is_alone = segments.take(view)
        return wanted.place(archive.array(entry, view, data, like=like), is_alone)

    def rebuilt(parsed: ParsedStructure) -> Any:
        node, size = parsed.state, entry.size
        if wanted.names is not None:
            node = named_parts(parsed, wanted.names, archive.name)
            tensors = {next(iter(leaf.values())) for _, leaf in leaves_of(parsed._replace(state=node))}
            numbers = {views[name].segment for name in tensors if name in views}
            size = sum(entry.segments[number].bytes for number in numbers)
            archive.check_size(size)
        most = None if limit is None else limit - size  # for copies of arrays in big-endian order
        if wanted.held is not None:
            lazily = _lazily(archive, wanted.held, parsed._replace(state=node))
            return Rebuilder(parsed, read, most, wanted.known, lazily).value(node, 0)
        leaves = (views.get(next(iter(leaf.values()))) for _, leaf in leaves_of(parsed._replace(state=node)))
        with segments.decoded_ahead([view for view in leaves if view is not None]):
            return Rebuilder(parsed, read, most, wanted.known).value(node, 0)

    if STRUCTURE in views:
        with _naming(archive):
            return of_text(_structure(archive, entry, views[STRUCTURE]), rebuilt)
    if is_torch_file:
        if wanted.names is not None:
            raise Unsupported(f"{archive.name}: {entry.path}: {NAMES_OF_TORCH}")
        assert isinstance(archive, ArchiveReader)  # a plain file of torch.save is torch's from the beginning
        return _load_torch(archive, entry, wanted.place.map_location)
    if not views and isinstance(archive, ArchiveReader) and _is_old_torch_file(archive, entry):
        if wanted.names is not None or wanted.like is not None:
            place = f"{archive.name}: {entry.path}"
            raise Unsupported(f"{place}: {NOT_ZIP}, so that only torch reads it: leave out like and names")
        archive.check_size(entry.size)
        return _load_torch(archive, entry, wanted.place.map_location)
    if not views:
        raise Unsupported(f"{archive.name}: {entry.path} holds no tensors; restore it as a file")
    for name, view in views.items():
        if width(view.dtype) is None and wanted.names is None:
            if entry.format == "npz":  # which has a checksum of what may be none because it is damaged
                archive.segment_bytes(entry, view)
            raise Unsupported(
                f"{archive.name}: {entry.path}:{name}: type {view.dtype} can only be restored with its file; names= "
                "takes tensors of other types alone"
            )
    kind = "torch" if wanted.place.is_given else default_kind(entry)
    dictionary = [item for name in views for item in (name, {kind: name})]
    with translated_errors():
        return rebuilt(ParsedStructure({"dict": dictionary}, []))
    raise AssertionError  # it suppresses no error


class _Segments:
    """The segments of a file's tensors, each kept as long as one of its tensors is still to come.

    Args:
        archive: The archive, or a file that is none.
        keeps_shared: True to keep those that several tensors are views of, whoever still comes.
    """

    def __init__(self, archive: ArchiveReader | PlainFile, entry: FileEntry, *, keeps_shared: bool) -> None:
        self._archive, self._entry, self._keeps_shared = archive, entry, keeps_shared
        self._data: dict[int, Bytes] = {}
        self._n_wanted, self._n_read = Counter[int](), Counter[int]()  # tensors of segments
        self._ahead: Iterator[tuple[int, Bytes]] = iter(())

    @contextmanager
    def decoded_ahead(self, views: Sequence[TensorView]) -> Iterator[None]:
        """Have threads decode, within the block, what these tensors need, which are read in this order."""
        self._n_wanted = Counter(view.segment for view in views)
        first = {view.segment: view for view in reversed(views)}  # of the tensors on each segment
        order = list(dict.fromkeys(view.segment for view in views))
        with closing(self._archive.segments_bytes([(self._entry, first[number]) for number in order])) as coming:
            self._ahead = zip(order, coming, strict=False)  # which may be given up before all are read
            yield

    def take(self, view: TensorView) -> tuple[Bytes, bool]:
        """Return the segment of a tensor, and whether no other tensor has its memory."""
        number, is_shared = view.segment, _is_shared(self._entry, view)
        # The handler of a signal may take tensors at any place here, and what it has taken may be gone.
        while (data := self._data.get(number)) is None:
            found, part = next(self._ahead, (number, None))
            part = self._archive.segment_bytes(self._entry, view) if part is None else part
            self._data[found] = part
            if found == number:
                data = part
                break
        self._n_read[number] += 1
        if self._n_read[number] >= self._n_wanted[number] and not (self._keeps_shared and is_shared):
            self._data.pop(number, None)
        return data, number in self._entry.groups or (self._n_wanted[number] <= 1 and not is_shared)


def _is_shared(entry: FileEntry, view: TensorView) -> bool:
    """Return True if other tensors of a file have the memory of this one."""
    return view.segment not in entry.groups and len(entry.views[view.segment]) > 1


def _lazily(archive: ArchiveReader | PlainFile, held: HeldFile, parsed: ParsedStructure) -> Lazily:
    """Return what makes the values of a state when they are first used."""

    def once(value: Unread, make: Callable[[Any], Any]) -> Any:
        with _naming(archive), translated_errors():
            return held.once(value, make)

    counts = Counter(next(iter(leaf.values())) for _, leaf in leaves_of(parsed))
    return Lazily(once, frozenset(name for name, n in counts.items() if n > 1), held.places)


def places_of(archive: ArchiveReader, entry: FileEntry) -> list[TensorPlace]:
    """Return the tensors of a file in an archive: for a state all that are in it, also those of the same memory.

    Raises:
        GcodecError: The structure of a state is damaged.
    """
    views = {view.name: view for view in entry.tensors}
    if STRUCTURE in views:
        with _naming(archive):
            return tensor_places(_structure(archive, entry, views[STRUCTURE]), views, archive.check_beside)
    return [TensorPlace(view, default_kind(entry)) for view in entry.tensors]


@contextmanager
def _naming(archive: ArchiveReader | PlainFile) -> Iterator[None]:
    """Give the errors of a structure, which knows of no file, the name of its archive."""
    try:
        yield
    except (Corruption, Unsupported) as error:
        if str(error).startswith(archive.name):
            raise
        raise type(error)(f"{archive.name}: {error}") from error


def _structure(archive: ArchiveReader | PlainFile, entry: FileEntry, view: TensorView) -> bytes:
    segment = entry.segments[view.segment]
    if segment.bytes > MAX_TEXT_BYTES:
        raise LimitExceeded(f"{archive.name}: a structure of {segment.bytes} bytes is above the limit")
    text = archive.segment_bytes(entry, view).tobytes()
    archive.check_beside(n_items_of(text) * ITEM_COST, "the structure of the state")
    return text


def _is_old_torch_file(archive: ArchiveReader, entry: FileEntry) -> bool:
    """Return True for a file that by its first bytes is what ``torch.save`` wrote before version 1.6."""
    head = b""
    with closing(archive.restored(entry)) as parts:
        for part in parts:
            head += part[:2].tobytes()
            if len(head) > 1:
                break
    return head[:2] in PICKLES


def _load_torch(archive: ArchiveReader, entry: FileEntry, map_location: Any) -> Any:
    """Return what ``torch.load`` makes of a ``.pt`` file, which is restored to a temporary file first."""
    with naming(gettempdir()), TemporaryFile() as file:
        write_restored(archive, entry, file)
        file.seek(0)
        return load_torch(file, map_location, f"{archive.name}: {entry.path}", "restore it as a file")


def _reader_of(leaf: Leaf) -> Callable[[], Bytes]:
    return lambda: as_bytes(leaf.value)[2]
