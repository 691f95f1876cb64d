"""Tensors out of an archive one by one, as ``safetensors.safe_open`` has it: :func:`open` and :class:`TensorFile`."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import InvalidArgument, Unsupported, check_choice, did_you_mean
from ..files.elements import width
from ..files.file_plan import TensorView, row_major
from ..files.safetensors import CODES
from ..tensors import is_torch
from .arrays import item_at
from .devices import Placement, check_kind, device_of
from .file_bytes import file_object
from .objects import bases_of
from .reader import ArchiveReader
from .shared_memory import Strided
from .tensor_names import NamedTensor, TensorNames
from .writer import PART_BYTES

if TYPE_CHECKING:
    import torch

#: Frameworks by their names in safetensors, and by ours.
FRAMEWORKS = {None: None, "pt": "torch", "torch": "torch", "np": "numpy", "numpy": "numpy"}


def open(
    path: str | os.PathLike[str] | BinaryIO,
    framework: str | None = None,
    device: Any = None,
    *,
    base: Any = None,
    threads: int | None = None,
    max_output_bytes: int | None = None,
) -> TensorFile:
    """Open an archive to read tensors one by one; nothing but its index is read at first.

    ::

        with gcodec.open("model.gc", framework="pt") as file:
            for name in file.keys():
                print(name, file.dtype(name), file.shape(name))
            row = file.get_slice("embedding.weight")[7]

    Args:
        path: Of the archive, a URL for fsspec, or a binary stream that can seek, which stays open.
        framework: ``"pt"`` for torch tensors or ``"np"`` for numpy arrays; None: as for :func:`gcodec.load_file`.
        device: torch device that tensors are put on, as torch tensors; None: host memory.
        base: What the archive was made against, if it was, as for :func:`gcodec.load`.
        threads: Threads to use at most; as many as the process may use if None.
        max_output_bytes: Refuse to read larger tensors, for archives from strangers; no limit if None.

    Returns:
        The open archive, which is a context manager.

    Raises:
        InvalidArgument: ``framework`` is another name, or there is no such device.
        GcodecError: The file is no archive, or damaged.
        OSError: It cannot be read.
    """
    check_choice("framework", framework, FRAMEWORKS)
    check_kind(FRAMEWORKS[framework], device)
    like, device = (FRAMEWORKS[framework] if device is None else "torch"), device_of(device)
    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(bases_of(base))
        archive = stack.enter_context(
            ArchiveReader(path, threads=threads, max_output_bytes=max_output_bytes, base=bases)
        )
        return TensorFile(archive, like, device, stack.pop_all())
    raise AssertionError  # an ExitStack suppresses nothing of its own


class TensorFile:
    """An archive that is open, with the tensors that are in it; :func:`gcodec.open` makes one.

    Names are the tensors' own; in an archive of several files they are ``FILE:NAME``, and ``NAME`` will do where only
    one file has it. Of objects that :func:`gcodec.save` has saved they are the paths (``"optimizer/state/0/exp_avg"``).

    Args:
        archive: The archive.
        like: ``"numpy"`` or ``"torch"``; None: each as it was saved.
        device: The torch device that tensors are put on; None: host memory.
        stack: What to close at the end.
    """

    def __init__(self, archive: ArchiveReader, like: str | None, device: torch.device | None, stack: ExitStack) -> None:
        self._archive, self._like, self._device, self._stack = archive, like, device, stack
        try:
            self._names = TensorNames(archive)
        except BaseException:  # nobody else closes it
            stack.close()
            raise
        self._is_open = True

    @property
    def archive(self) -> ArchiveReader:
        """The archive, which ``base=`` takes through this object. Raises InvalidArgument once it has been closed."""
        self._check_open()
        return self._archive

    def keys(self) -> list[str]:
        """Return the names of all tensors, in the order of the archive."""
        return list(self._names.all())

    def offset_keys(self) -> list[str]:
        """Return the names in the order in which the tensors lie in the archive, which is that of :meth:`keys`."""
        return self.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, which is not read. Raises InvalidArgument if there is none of this name."""
        return self._names.find(name).view.shape

    def dtype(self, name: str) -> str:
        """Return the name of a tensor's type, such as ``"bfloat16"``. Raises InvalidArgument if there is no such
        tensor."""
        return self._names.find(name).view.dtype

    def metadata(self) -> dict[str, str]:
        """Return the key-value pairs of the .safetensors files in the archive."""
        self._check_open()
        pairs: dict[str, str] = {}
        for entry in self._archive.files:
            pairs.update(self._archive.metadata(entry))
        return pairs

    def get_tensor(self, name: str) -> Any:
        """Return a tensor; no other is read.

        Args:
            name: Its name.

        Raises:
            InvalidArgument: There is none of this name.
            GcodecError: It is damaged, its base is missing or another, or it is above the limit.
        """
        return self.whole(self._names.find(name))

    def get_slice(self, name: str) -> TensorSlice:
        """Return a tensor of which parts can be read: ``file.get_slice(name)[10:20]``.

        Args:
            name: Its name.

        Raises:
            InvalidArgument: There is none of this name.
        """
        return TensorSlice(self, self._names.find(name))

    def open_file(self, path: str) -> BinaryIO:
        """Open a file of the archive, of which only what is read is decoded.

        Args:
            path: Its path in the archive, as ``gcodec decompress --list`` shows it.

        Returns:
            A read-only binary file that can seek, for ``numpy.load``, ``h5py.File`` and others. It can be read while
            the archive is open.

        Raises:
            InvalidArgument: The archive has no file of this path.
        """
        self._check_open()
        for entry in self._archive.files:
            if entry.path == path:
                return file_object(self._archive, entry, self._check_open)
        known = [entry.path for entry in self._archive.files]
        raise InvalidArgument(f"{self._archive.name}: no file {path!r}{did_you_mean(path, known)}")

    def whole(self, place: NamedTensor) -> Any:
        """Return a tensor; ``place``: where it is."""
        self._check_open()
        entry, view, kind = place
        data = self._archive.segment_bytes(entry, view)
        return Placement(self._device)(self._archive.array(entry, view, data, like=self._like or kind))

    def wholes(self, names: Sequence[str]) -> Generator[Any, None, None]:
        """Yield torch tensors of some names, while threads decode those that follow."""
        places, placed = [self._names.find(name)[:2] for name in names], Placement(self._device)
        with closing(self._archive.arrays(places, "torch")) as values:
            for value in values:
                yield placed(value, is_alone=True)

    def rows(self, place: NamedTensor, start: int, stop: int) -> Any:
        """Return rows of a tensor, and read no more than the parts of the archive that hold them.

        Args:
            place: The tensor, with at least one dimension.
            start: The first row.
            stop: The row after the last.
        """
        entry, view, kind = place
        size = width(view.dtype)
        if size is None:
            where = f"{self._archive.name}: {view.name}"
            raise Unsupported(f"{where}: type {view.dtype} can only be restored with its file")
        steps = view.stride if view.stride is not None else row_major(view.shape)
        part = Strided((stop - start, *view.shape[1:]), steps, view.offset + start * steps[0])
        if part.shape == view.shape:
            return self.whole(place)
        self._check_open()
        end = part.end if all(part.shape) else part.offset
        self._archive.check_size((end - part.offset) * size, f"{entry.path}:{view.name}")
        data = self._archive.segment_range(entry, view.segment, part.offset * size, end * size)
        if not data.flags.owndata:  # a piece of what others see, too
            data = data.copy()
        moved = TensorView(view.name, view.dtype, part.shape, view.segment, 0, steps)
        return Placement(self._device)(self._archive.array(entry, moved, data, like=self._like or kind))

    def rows_apart(self, place: NamedTensor, numbers: range) -> Any:
        """Return rows of a tensor that are apart from each other, none of those between them, as :meth:`rows` does."""
        _, view, _ = place
        self._archive.check_size(len(numbers) * self.row_bytes(place), view.name)
        parts = [self.rows(place, row, row + 1) for row in numbers]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        import torch

        return torch.cat(parts)

    def row_bytes(self, place: NamedTensor) -> int:
        """Return how many bytes a row of a tensor takes, if it is of a type that can be read."""
        return math.prod(place.view.shape[1:]) * (width(place.view.dtype) or 0)

    def close(self) -> None:
        """Closes the archive; what was read stays."""
        self._is_open = False
        self._stack.close()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.all())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Raises InvalidArgument: a process that is started anew, such as a worker that loads data, has no open file of
        another's."""
        raise InvalidArgument(
            f"{self._archive.name}: must be opened by its path in each process, for an open archive cannot be pickled "
            "or copied; processes that are forked can use it as it is"
        )

    def __repr__(self) -> str:
        return f"TensorFile({self._archive.name!r}, {len(self)} tensors)"

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidArgument(f"{self._archive.name}: must be open, but has been closed")


class TensorSlice:
    """A tensor in an open archive, of which parts are read: ``[a:b]`` reads the rows ``a`` to ``b``.

    Integers, slices and ``...`` are taken; of dimensions after the first, whole rows are read and then cut. What is
    returned keeps no more in memory than it has itself. Parts that
    were encoded or compressed are checked; parts that are stored as they are only where the whole tensor is read, by
    its hash.
    """

    def __init__(self, file: TensorFile, place: NamedTensor) -> None:
        self._file, self._place = file, place

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._place.view.shape)

    def get_dtype(self) -> str:
        """Return the name of its type as safetensors has it, such as ``"BF16"``; of one that it lacks, our own."""
        return CODES.get(self._place.view.dtype, self._place.view.dtype)

    def __getitem__(self, key: int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]) -> Any:
        shape = self._place.view.shape
        keys = _full_keys(key, len(shape))
        for number, (part, size) in enumerate(zip(keys, shape, strict=True)):
            if isinstance(part, int) and not -size <= part < size:
                raise InvalidArgument(
                    f"{self._place.view.name}: index {part} is out of range for dimension {number}, of size {size}"
                )
        if not keys:
            return self._file.whole(self._place)
        first, rest = keys[0], keys[1:]
        if isinstance(first, slice):
            start, stop, step = first.indices(shape[0])
            numbers = range(start, stop, step)
            if len(numbers) > 1 and step * self._file.row_bytes(self._place) > PART_BYTES:
                apart = self._file.rows_apart(self._place, numbers)
                return self._cut((slice(None), *rest), apart)
            rows = self._file.rows(self._place, start, max(start, stop))
            return self._cut((slice(None, None, step), *rest), rows)
        row = first + shape[0] if first < 0 else first
        return self._cut((0, *rest), self._file.rows(self._place, row, row + 1))

    def _cut(self, key: Any, rows: Any) -> Any:
        """Return ``rows[key]``, which is copied where it would else keep more memory than it takes itself."""
        part = item_at(key, rows, self._place.view.name)
        if isinstance(part, np.ndarray):
            owner = part
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            return part.copy() if owner.nbytes > part.nbytes else part
        if is_torch(part) and part.untyped_storage().nbytes() > part.nbytes:
            return part.contiguous() if not part.is_contiguous() else part.clone()
        return part

    def __iter__(self) -> Iterator[Any]:
        """Raises InvalidArgument: row by row, each part would be read once for each of its rows."""
        raise self._not_read("be walked through")

    def __array__(self, *dtype: Any, **copy: Any) -> np.ndarray[Any, Any]:
        """Raises InvalidArgument: numpy would make an array of one Python object of it."""
        raise self._not_read("become an array")

    def _not_read(self, done: str) -> InvalidArgument:
        name = self._place.view.name
        return InvalidArgument(
            f"{name}: a slice must be read before it can {done}: get_slice({name!r})[10:20] reads rows, [:] reads all"
        )


def _is_integer(value: Any) -> bool:
    """Return True for what Python takes as an integer; arrays of several values and of floats have the method only."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _full_keys(key: Any, n_dimensions: int) -> tuple[int | slice, ...]:
    """Return an index for every dimension. Raises InvalidArgument for one that is not taken."""
    keys = key if isinstance(key, tuple) else (key,)
    keys = tuple(int(part) if isinstance(part, np.integer) else part for part in keys)
    kinds = [type(part) for part in keys]
    bounds = [bound for part in keys if isinstance(part, slice) for bound in (part.start, part.stop, part.step)]
    if not all(bound is None or _is_integer(bound) for bound in bounds):
        raise InvalidArgument(f"a slice must be of integers, not as in {key!r}")
    if any(kind not in (int, slice, EllipsisType) for kind in kinds) or kinds.count(EllipsisType) > 1:
        raise InvalidArgument(f"an index must be of integers, slices and at most one ..., not {key!r}")
    if any(type(part) is slice and part.step is not None and part.step < 1 for part in keys):
        raise InvalidArgument(f"the steps of a slice must be at least 1, not as in {key!r}")
    at = kinds.index(EllipsisType) if EllipsisType in kinds else len(keys)
    missing = n_dimensions - sum(kind is not EllipsisType for kind in kinds)
    if missing < 0:
        raise InvalidArgument(f"{key!r} has more indices than the {n_dimensions} dimensions of the tensor")
    return (*keys[:at], *[slice(None)] * missing, *keys[at + 1 :])
