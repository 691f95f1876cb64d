"""The seam between gcodec and a device: memory there, copies, launches. Everything that knows torch's CUDA is here."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument, Unsupported
from ..frame.decode import bytes_like
from ..kernels.cuda.launch_arguments import GpuArray, flat
from ..options import check_level_array
from ..tensors import check_has_memory, check_tensor, fits_as_output, is_torch, kernel_view, note_change

if TYPE_CHECKING:
    import torch


class PackedArrays(NamedTuple):
    """Arrays in one piece of memory, ready to be sent.

    Attributes:
        data: That memory, uint8.
        places: For each array the byte at which it begins, its type and its shape.
    """

    data: np.ndarray
    places: list[tuple[int, np.dtype, tuple[int, ...]]]


def packed(*arrays: np.ndarray) -> PackedArrays:
    """Return arrays in one piece of memory; one without elements has room for one there."""
    begins, size = _places(array.nbytes or array.itemsize for array in arrays)
    ends = zip(arrays, begins, (*begins[1:], size), strict=True)
    data = b"".join([array.tobytes().ljust(end - begin, b"\0") for array, begin, end in ends])
    places = [(begin, array.dtype, array.shape) for array, begin in zip(arrays, begins, strict=True)]
    return PackedArrays(np.frombuffer(data, np.uint8), places)


def is_fault(error: RuntimeError) -> bool:
    """Return True for a fault of the device, which all later calls report, and not for a lack of memory."""
    import torch

    return isinstance(error, torch.AcceleratorError)


class PendingCopy:
    """A copy to the host that a device makes when it comes to it.

    Args:
        data: Where the copy goes, on the host.
        event: torch's, behind the copy; None if that has been made.
    """

    def __init__(self, data: np.ndarray, event: Any = None) -> None:
        self._data, self._event = data, event

    def ended(self) -> bool:
        """Return True once :meth:`result` does not wait."""
        return self._event is None or self._event.query()

    def result(self) -> np.ndarray:
        """Return the copy; waits for it."""
        if not self.ended():
            self._event.synchronize()
        return self._data


class Memory(Protocol):
    """A device as the binding sees it.

    Kernels and copies run there one after the other, in the order of the calls; only :meth:`fetch` and :meth:`heads`
    wait for them. An array is whatever kernels take.
    """

    def empty(self, n: int, dtype: str) -> Any:
        """Return a new array of ``n`` elements."""

    def zeros(self, n: int, dtype: str) -> Any:
        """Return a new array of ``n`` zeros."""

    def full(self, n: int, value: float) -> Any:
        """Return a flat tensor of ``n`` float32s of this value."""

    def rooms(self, *rooms: tuple[int, str]) -> list[Any]:
        """Return new arrays of so many elements of a type, as parts of one piece of memory."""

    def send(self, array: np.ndarray) -> Any:
        """Return a copy of an array of the host's on the device."""

    def send_all(self, *arrays: np.ndarray) -> list[Any]:
        """Return copies of arrays of the host's, made by one copy; one without elements has room for one there."""

    def send_packed(self, packed: PackedArrays) -> list[Any]:
        """Return copies of packed arrays on the device, as :meth:`send_all` does."""

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned when it was first called for this key, as kernels take it: a named tuple of
        arrays that nothing writes to."""

    def fetch(self, array: Any) -> np.ndarray:
        """Return a copy of an array on the host; waits for everything called so far."""

    def fetch_all(self, *arrays: Any) -> list[np.ndarray]:
        """Return copies of arrays on the host; waits once if they were sent together."""

    def begin_fetch(self, array: Any) -> PendingCopy:
        """Start to copy an array to the host, and wait for nothing."""

    def heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
        """Return the first bytes of tensors of bytes, copied to the host; waits as :meth:`fetch` does."""

    def begin_heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> PendingCopy:
        """Start to copy the first bytes of tensors of bytes to the host, one after the other, and wait for nothing."""

    def part(self, array: Any, begin: int, end: int) -> Any:
        """Return bytes ``begin ... end`` of an array as a tensor of bytes, which shares its memory."""

    def span(self, tensors: Sequence[Any], dtype: str) -> tuple[Any, list[int]]:
        """Return one array over several contiguous tensors, and the element at which each of them begins.

        The array begins at the lowest address of the tensors. Nothing of it but the tensors may be touched.

        Args:
            tensors: Contiguous tensors on the device.
            dtype: Type of the array's elements, as wide as theirs.
        """

    def see(self, x: Any, argument: str = "x") -> tuple[Any, DType, tuple[int, ...]]:
        """Return a tensor's values as a contiguous tensor on the device (itself, if it is one), their type and shape.

        Args:
            x: The tensor.
            argument: The caller's name for it, for errors.

        Raises:
            InvalidArgument: The tensor lies elsewhere, or is of a type that gcodec does not encode.
        """

    def levels_of(self, levels: Any, n: int) -> Any:
        """Return levels of ``n`` values as a contiguous tensor of bytes on the device. Raises InvalidArgument."""

    def bytes_of(self, data: Any) -> Any:
        """Return a frame as a contiguous tensor of bytes on the device that begins at a multiple of 8.

        Args:
            data: A tensor, which is returned itself if it is such a one, or bytes of the host's.

        Raises:
            InvalidArgument: A tensor that is not flat or not of uint8, or what is no tensor and not bytes-like either.
        """

    def host_bytes(self, data: Any) -> np.ndarray | None:
        """Return what :meth:`bytes_of` copies from the host, uint8[n] in its memory; None for a tensor."""

    def new(self, kinds: Iterable[tuple[DType, tuple[int, ...]]]) -> list[Any]:
        """Return uninitialized tensors of these types and shapes on the device."""

    def put(self, array: np.ndarray, target: Any) -> None:
        """Copy bits (uintW[n]) to a contiguous tensor on the device."""

    def copy(self, source: Any, target: Any) -> None:
        """Copy the values of a contiguous tensor on the device to another one of its type and size."""

    def values_on_host(self, tensor: Any, dtype: DType) -> np.ndarray:
        """Return the bits of a contiguous tensor of a type as uintW[n] on the host; waits as :meth:`fetch` does."""

    def slices_on_host(self, parts: Sequence[tuple[Any, slice]], dtype: DType) -> list[np.ndarray]:
        """Return the bits of slices of tensors of a type, as if these were flat: uintW[m] on the host; waits once."""

    def target_of(self, out: Any, dtype: DType, n: int) -> Any:
        """Return a caller's tensor that ``n`` values of a type are written to, itself.

        Raises:
            InvalidArgument: The tensor lies elsewhere, is of another type or size, or cannot be written to in place.
        """

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        """Enqueue a kernel with so many blocks of the grid; does not wait for it."""


class TorchMemory:
    """A CUDA device of torch's, on the stream that is current when this is made.

    Raises:
        Unsupported: There is no such device, or no driver.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        from ..kernels.cuda.launch import driver_of

        self.device = device
        self._index: int = device.index
        driver_of(self._index)
        self.stream = torch.cuda.current_stream(device)
        self._handle = self.stream.cuda_stream

    def _current(self) -> Any:
        """Return a context in which the stream is current; most calls come while it is, and setting it takes 10 us."""
        import torch

        if torch.cuda.current_stream(self.device).cuda_stream == self._handle:
            return _NOTHING
        return torch.cuda.stream(self.stream)

    def empty(self, n: int, dtype: str) -> Any:
        """See :class:`Memory`, which explains all of these methods."""
        return self.rooms((n, dtype))[0]

    def rooms(self, *rooms: tuple[int, str]) -> list[Any]:
        """See :class:`Memory`."""
        import torch

        kinds = [np.dtype(dtype) for _, dtype in rooms]
        begins, size = _places(max(n, 1) * kind.itemsize for (n, _), kind in zip(rooms, kinds, strict=True))
        with self._current():
            tensor = torch.empty(size, dtype=torch.uint8, device=self.device)
        address = tensor.data_ptr()
        parts = zip(rooms, kinds, begins, strict=True)
        return [GpuArray(tensor, address + begin, kind, (n,)) for (n, _), kind, begin in parts]

    def zeros(self, n: int, dtype: str) -> Any:
        """See :class:`Memory`."""
        array = self.empty(n, dtype)
        with self._current():
            array.tensor.zero_()
        return array

    def full(self, n: int, value: float) -> Any:
        """See :class:`Memory`."""
        import torch

        with self._current():
            return torch.full((n,), value, dtype=torch.float32, device=self.device)

    def send(self, array: np.ndarray) -> Any:
        """See :class:`Memory`."""
        return self.send_all(array)[0]

    def send_all(self, *arrays: np.ndarray) -> list[Any]:
        """See :class:`Memory`."""
        return self.send_packed(packed(*arrays))

    def send_packed(self, packed: PackedArrays) -> list[Any]:
        """Copy from pinned memory, so that nothing waits; torch keeps that memory until it is copied."""
        size = len(packed.data)
        with self._current():
            staged = self._staging(size)
            staged.numpy()[:] = packed.data
            tensor = staged.to(self.device, non_blocking=True)
        address = tensor.data_ptr()
        return [GpuArray(tensor, address + begin, dtype, shape) for begin, dtype, shape in packed.places]

    def _staging(self, size: int) -> torch.Tensor:
        """Return memory of the host's that the device can read and write by itself."""
        import torch

        self.check_capture()  # a replay would read the memory when it holds something else
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)  # whatever the default device

    def check_capture(self) -> None:
        """Raise Unsupported if the stream is being captured in a CUDA graph. Where the host is about to wait for it:
        torch's error would say nothing of gcodec, and the capture could not go on after it."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            raise Unsupported(
                "encoding and decoding cannot be captured in a CUDA graph: they send tables each time, and may wait"
            )

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Keep tables by stream: on another one they might be read before they are there."""
        tables = _kept.setdefault((self._index, self._handle), OrderedDict())
        try:
            tables.move_to_end(key)
            return tables[key]
        except KeyError:
            tables[key] = made = flat(make())
        while len(tables) > _N_KEPT:
            with contextlib.suppress(KeyError):  # another thread may have been here
                tables.popitem(last=False)
        return made

    def fetch(self, array: Any) -> np.ndarray:
        """See :class:`Memory`."""
        return self.fetch_all(array)[0]

    def fetch_all(self, *arrays: Any) -> list[np.ndarray]:
        """See :class:`Memory`."""
        self.check_capture()
        if any(array.tensor is not arrays[0].tensor for array in arrays):
            return [self.fetch(array) for array in arrays]
        tensor = arrays[0].tensor
        begins = [array.address - tensor.data_ptr() for array in arrays]
        first = min(begins)
        end = max(begin + array.nbytes for begin, array in zip(begins, arrays, strict=True))
        with self._current():
            data = tensor[first:end].cpu().numpy()
        return [
            data[begin - first : begin - first + array.nbytes].view(array.dtype).reshape(array.shape)
            for begin, array in zip(begins, arrays, strict=True)
        ]

    def begin_fetch(self, array: Any) -> PendingCopy:
        """See :class:`Memory`. Copies to pinned memory, which the device writes to by itself."""
        begin = array.address - array.tensor.data_ptr()
        with self._current():
            staged = self._staging(array.nbytes)
            staged.copy_(array.tensor[begin : begin + array.nbytes], non_blocking=True)
            event = self._mark()
        return PendingCopy(staged.numpy().view(array.dtype).reshape(array.shape), event)

    def _mark(self) -> Any:
        """Return an event behind all that the stream was given so far."""
        return self.stream.record_event()

    def heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
        """See :class:`Memory`."""
        import torch

        self.check_capture()
        with self._current():
            joined = torch.cat([tensor[:size] for tensor, size in zip(tensors, sizes, strict=True)]).cpu().numpy()
        return [joined[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def begin_heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> PendingCopy:
        """See :class:`Memory`. Copies to pinned memory, as :meth:`begin_fetch`."""
        import torch

        with self._current():
            staged = self._staging(sum(sizes))
            joined = torch.cat([tensor[:size] for tensor, size in zip(tensors, sizes, strict=True)])
            staged.copy_(joined, non_blocking=True)
            event = self._mark()
        return PendingCopy(staged.numpy(), event)

    def part(self, array: Any, begin: int, end: int) -> Any:
        """See :class:`Memory`."""
        if isinstance(array, GpuArray):
            skipped = array.address - array.tensor.data_ptr()
            return array.tensor[skipped + begin : skipped + end]
        return array[begin:end]

    def span(self, tensors: Sequence[Any], dtype: str) -> tuple[Any, list[int]]:
        """See :class:`Memory`. Addresses may be compared: on a device they are of one space."""
        kind = np.dtype(dtype)
        addresses = [tensor.data_ptr() for tensor in tensors]
        lowest = min(addresses)
        end = max(a + t.nbytes for a, t in zip(addresses, tensors, strict=True))
        array = GpuArray(None, lowest, kind, (-(-(end - lowest) // kind.itemsize),))
        return array, [(address - lowest) // kind.itemsize for address in addresses]

    def see(self, x: Any, argument: str = "x") -> tuple[Any, DType, tuple[int, ...]]:
        """See :class:`Memory`."""

        if not is_torch(x) or x.device != self.device:
            raise InvalidArgument(f"{argument} must be a torch tensor on {self.device}, where all of a call's must lie")
        dtype, _ = check_tensor(x, argument)
        check_has_memory(x, argument)
        with self._current():
            dense = x.detach().resolve_neg().contiguous()
        return dense, dtype, tuple(x.shape)

    def levels_of(self, levels: Any, n: int) -> Any:
        """See :class:`Memory`."""

        if not is_torch(levels) or levels.device != self.device:
            raise InvalidArgument(f"levels must be a tensor on {self.device}, where the values are")
        check_has_memory(levels, "levels")
        check_level_array(str(levels.dtype).removeprefix("torch."), levels.numel(), n)
        with self._current():
            return levels.contiguous()

    def bytes_of(self, data: Any) -> Any:
        """See :class:`Memory`."""
        import torch

        if not is_torch(data):
            self.check_capture()
            on_host = torch.from_numpy(kernel_view(bytes_like(data)))
            with self._current():
                return on_host.to(self.device)
        if data.dtype is not torch.uint8 or data.ndim != 1:
            raise InvalidArgument(
                f"a frame must be a flat tensor of uint8, not of {data.dtype} with {data.ndim} dimensions"
            )
        check_has_memory(data, "data")
        if data.device == self.device and data.is_contiguous() and data.data_ptr() % 8 == 0:
            return data
        self.check_capture()
        with self._current():
            here = data.to(self.device).contiguous()
            return here.clone() if here.data_ptr() % 8 else here

    def host_bytes(self, data: Any) -> np.ndarray | None:
        """See :class:`Memory`."""
        return None if is_torch(data) else kernel_view(bytes_like(data))

    def new(self, kinds: Iterable[tuple[DType, tuple[int, ...]]]) -> list[Any]:
        """See :class:`Memory`."""
        import torch

        with self._current():
            return [torch.empty(shape, dtype=getattr(torch, dtype.name), device=self.device) for dtype, shape in kinds]

    def put(self, array: np.ndarray, target: Any) -> None:
        """See :class:`Memory`."""
        import torch

        with self._current():
            copied = torch.from_numpy(array.view(f"i{array.itemsize}")).to(self.device)
            target.view(copied.dtype).view(-1).copy_(copied)

    def copy(self, source: Any, target: Any) -> None:
        """See :class:`Memory`."""

        with self._current():
            target.detach().view(-1).copy_(source.detach().view(-1))

    def values_on_host(self, tensor: Any, dtype: DType) -> np.ndarray:
        """See :class:`Memory`."""
        import torch

        self.check_capture()
        with self._current():
            bits = tensor.detach().reshape(-1).view(getattr(torch, f"int{dtype.bits}")).cpu().numpy()
        return kernel_view(bits.view(dtype.uint))

    def slices_on_host(self, parts: Sequence[tuple[Any, slice]], dtype: DType) -> list[np.ndarray]:
        """See :class:`Memory`."""
        import torch

        integer = getattr(torch, f"int{dtype.bits}")
        self.check_capture()
        with self._current():
            cut = [tensor.detach().reshape(-1).view(integer)[part] for tensor, part in parts]
            joined = torch.cat(cut).cpu().numpy().view(dtype.uint)
        return [kernel_view(own) for own in np.split(joined, np.cumsum([len(own) for own in cut])[:-1])]

    def target_of(self, out: Any, dtype: DType, n: int) -> Any:
        """See :class:`Memory`."""
        if not is_torch(out) or out.device != self.device or not fits_as_output(out, dtype, n):
            what = f"{type(out).__name__} of shape {getattr(out, 'shape', None)}, dtype {getattr(out, 'dtype', None)}"
            raise InvalidArgument(
                f"out must be a writable, contiguous tensor of {n} values of {dtype.name} on {self.device}; "
                f"it is a {what} on {getattr(out, 'device', 'the host')}"
            )
        check_has_memory(out, "out")
        note_change(out)
        return out.detach()

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        """See :class:`Memory`."""
        from ..kernels.cuda.launch import launch

        if blocks:
            launch(kernel, blocks, self._index, self._handle, args)


_ALIGN = 64  #: bytes at whose multiples parts of a piece of memory begin
_N_KEPT = 64  #: tables that are kept for a stream
_NOTHING = contextlib.nullcontext()
_kept: dict[tuple[int, int], OrderedDict[Hashable, Any]] = {}


def _places(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return the bytes at which parts of these sizes begin in one piece of memory, and its size."""
    begins, at = [], 0
    for size in sizes:
        begins.append(at)
        at += -(-size // _ALIGN) * _ALIGN
    return begins, at
