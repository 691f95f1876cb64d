"""The seam between gcodec and a device: memory there, copies, launches. Everything that knows torch's CUDA is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..options import check_level_array
from ..tensors import check_tensor, fits_as_output, is_torch, kernel_view

if TYPE_CHECKING:
    import torch


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

    def send(self, array: np.ndarray) -> Any:
        """Return a copy of an array of the host's on the device."""

    def fetch(self, array: Any) -> np.ndarray:
        """Return a copy of an array on the host; waits for everything called so far."""

    def heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
        """Return the first bytes of tensors of bytes, copied to the host; waits as :meth:`fetch` does."""

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
            InvalidArgument: A tensor that is not flat or not of uint8.
        """

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Any:
        """Return an uninitialized tensor on the device."""

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
    """A CUDA device of torch's, on the stream that is current when this is made."""

    def __init__(self, device: torch.device) -> None:
        import torch

        from ..kernels.cuda.launch import check_gpu, stream_of

        self.device = device
        with torch.cuda.device(device):
            check_gpu()
            self.stream = torch.cuda.current_stream(device)
            self._stream = stream_of(self.stream.cuda_stream)

    def empty(self, n: int, dtype: str) -> Any:
        """See :class:`Memory`, which explains all of these methods."""
        import torch

        kind = np.dtype(dtype)
        with torch.cuda.stream(self.stream):
            tensor = torch.empty(max(n, 1) * kind.itemsize, dtype=torch.uint8, device=self.device)
        return _Array(tensor, n, kind)

    def zeros(self, n: int, dtype: str) -> Any:
        """See :class:`Memory`."""
        import torch

        array = self.empty(n, dtype)
        with torch.cuda.stream(self.stream):
            array.tensor.zero_()
        return array

    def full(self, n: int, value: float) -> Any:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            return torch.full((n,), value, dtype=torch.float32, device=self.device)

    def send(self, array: np.ndarray) -> Any:
        """Copy from pinned memory, so that nothing waits; torch keeps that memory until it is copied."""
        import torch

        flat = kernel_view(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        with torch.cuda.stream(self.stream):
            held = torch.from_numpy(flat if flat.size else np.zeros(array.itemsize, np.uint8))
            tensor = self._pinned(held).to(self.device, non_blocking=True)
        return _Array(tensor, array.size, array.dtype, array.shape)

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def fetch(self, array: Any) -> np.ndarray:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            data = array.tensor.cpu().numpy()
        return data[: array.nbytes].view(array.dtype).reshape(array.shape)

    def heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            joined = torch.cat([tensor[:size] for tensor, size in zip(tensors, sizes, strict=True)]).cpu().numpy()
        return np.split(joined, np.cumsum(sizes)[:-1])

    def part(self, array: Any, begin: int, end: int) -> Any:
        """See :class:`Memory`."""
        return getattr(array, "tensor", array)[begin:end]

    def span(self, tensors: Sequence[Any], dtype: str) -> tuple[Any, list[int]]:
        """See :class:`Memory`. Addresses may be compared: on a device they are of one space."""
        size = np.dtype(dtype).itemsize
        addresses = [tensor.data_ptr() for tensor in tensors]
        lowest = min(addresses)
        end = max(a + t.numel() * t.element_size() for a, t in zip(addresses, tensors, strict=True))
        array = _Array(None, -(-(end - lowest) // size), np.dtype(dtype), address=lowest)
        return array, [(address - lowest) // size for address in addresses]

    def see(self, x: Any, argument: str = "x") -> tuple[Any, DType, tuple[int, ...]]:
        """See :class:`Memory`."""
        import torch

        if not is_torch(x) or x.device != self.device:
            raise InvalidArgument(f"{argument} must be a torch tensor on {self.device}, where all of a call's must lie")
        dtype, _ = check_tensor(x, argument)
        with torch.cuda.stream(self.stream):
            dense = x.detach().resolve_neg().contiguous()
        return dense, dtype, tuple(x.shape)

    def levels_of(self, levels: Any, n: int) -> Any:
        """See :class:`Memory`."""
        import torch

        if not is_torch(levels) or levels.device != self.device:
            raise InvalidArgument(f"levels must be a tensor on {self.device}, where the values are")
        check_level_array(str(levels.dtype).removeprefix("torch."), levels.numel(), n)
        with torch.cuda.stream(self.stream):
            return levels.contiguous()

    def bytes_of(self, data: Any) -> Any:
        """See :class:`Memory`."""
        import torch

        if not is_torch(data):
            return self.send(np.frombuffer(data, np.uint8)).tensor
        if data.dtype != torch.uint8 or data.ndim != 1:
            raise InvalidArgument(
                f"a frame must be a flat tensor of uint8, not of {data.dtype} with {data.ndim} dimensions"
            )
        with torch.cuda.stream(self.stream):
            here = data.to(self.device).contiguous()
            return here.clone() if here.data_ptr() % 8 else here

    def new(self, dtype: DType, shape: tuple[int, ...]) -> Any:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            return torch.empty(shape, dtype=getattr(torch, dtype.name), device=self.device)

    def put(self, array: np.ndarray, target: Any) -> None:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            copied = torch.from_numpy(array.view(f"i{array.itemsize}")).to(self.device)
            target.view(copied.dtype).view(-1).copy_(copied)

    def copy(self, source: Any, target: Any) -> None:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            target.detach().view(-1).copy_(source.detach().view(-1))

    def values_on_host(self, tensor: Any, dtype: DType) -> np.ndarray:
        """See :class:`Memory`."""
        import torch

        with torch.cuda.stream(self.stream):
            bits = tensor.detach().reshape(-1).view(getattr(torch, f"int{dtype.bits}")).cpu().numpy()
        return kernel_view(bits.view(dtype.uint))

    def slices_on_host(self, parts: Sequence[tuple[Any, slice]], dtype: DType) -> list[np.ndarray]:
        """See :class:`Memory`."""
        import torch

        integer = getattr(torch, f"int{dtype.bits}")
        with torch.cuda.stream(self.stream):
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
        return out.detach()

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        """See :class:`Memory`."""
        import torch

        from ..kernels.cuda.launch import launch

        if blocks:
            with torch.cuda.device(self.device):
                launch(kernel, blocks, self._stream, args)


class _Array:
    """An array on the device: of a torch tensor's memory, which it keeps, or at an address."""

    def __init__(
        self, tensor: Any, n: int, dtype: np.dtype, shape: tuple[int, ...] | None = None, address: int = 0
    ) -> None:
        self.tensor, self.dtype, self.shape = tensor, dtype, (n,) if shape is None else shape
        self.nbytes = n * dtype.itemsize
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": dtype.str,
            "data": (tensor.data_ptr() if tensor is not None else address, False),
            "version": 2,
        }
