"""A device that does nothing, for what the host does for it: it counts what it is told.

:func:`stub_device` makes ``gcodec.gpu`` take tensors of the host's for those of a device. Kernels are neither compiled
nor run: their arguments are packed as for NVIDIA's driver, and what decoding writes of its success is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from gcodec import gpu
from gcodec.gpu import gpu_memory
from gcodec.kernels.block.header import OK
from gcodec.kernels.cuda import launch as launching
from gcodec.kernels.cuda.launch_arguments import GpuArray
from gcodec.kernels.cuda.native import NativeKernel


class _StubTensor(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True
    # What is done with it is done with a plain tensor: torch's own way through a subclass takes longer than the work.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def stub_tensor(tensor: torch.Tensor) -> Any:
    """Return the same tensor, which says it is on a CUDA device."""
    return tensor.as_subclass(_StubTensor)


class StubDriver:
    """NVIDIA's driver, of a device that does nothing.

    Attributes:
        launches: Number of kernels that were launched.
        argument_bytes: Bytes of their arguments.
        loads: Code that was loaded.
        kernels: Names of kernels that were made ready.
    """

    capability, version = (9, 0), 13000

    def __init__(self) -> None:
        self.launches = self.argument_bytes = 0
        self.loads: list[bytes] = []
        self.kernels: list[str] = []

    def load(self, code: bytes) -> int:
        """Return a handle."""
        self.loads.append(code)
        return 1

    def kernel_of(self, module: int, name: str) -> int:
        """Return a handle."""
        self.kernels.append(name)
        return 1

    def launch(self, function: int, blocks: int, threads: int, stream: int, arguments: bytes) -> None:
        """Count."""
        self.launches += 1
        self.argument_bytes += len(arguments)


class StubMemory(gpu_memory.TorchMemory):
    """A device that does nothing: :class:`TorchMemory` but for the device.

    Attributes:
        counts: What was asked of all of them: "allocations", "uploads", "upload_bytes" and "waits".
    """

    counts: dict[str, int] = {}  # noqa: RUF012 - of all of them, and made anew by stub_device
    driver = StubDriver()

    def __init__(self, device: Any) -> None:
        self.device = torch.device("cpu")
        self._index = self._handle = 0

    def _current(self) -> Any:
        return _NOTHING

    def _staging(self, size: int) -> torch.Tensor:
        self.counts["uploads"] += 1
        self.counts["upload_bytes"] += size
        return torch.empty(size, dtype=torch.uint8)

    def check_capture(self) -> None:
        """Do nothing: nothing is captured."""

    def rooms(self, *rooms: tuple[int, str]) -> list[Any]:
        """Count."""
        self.counts["allocations"] += 1
        return super().rooms(*rooms)

    def fetch_all(self, *arrays: Any) -> list[np.ndarray]:
        """Count."""
        self.counts["waits"] += 1
        return super().fetch_all(*arrays)

    def begin_fetch(self, array: Any) -> gpu_memory.PendingCopy:
        """Return a copy for whose result the host waits."""
        return _CountedCopy(super().fetch_all(array)[0])

    def heads(self, tensors: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
        """Count."""
        self.counts["waits"] += 1
        return super().heads(tensors, sizes)

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        """Pack the arguments, and tell that blocks could be decoded."""
        super().launch(kernel, blocks, *args)
        if isinstance(kernel, NativeKernel) and kernel.name.startswith("decode"):
            statuses: GpuArray = args[-1]
            statuses.tensor[statuses.address - statuses.tensor.data_ptr() :].fill_(OK)


class _CountedCopy(gpu_memory.PendingCopy):
    def result(self) -> np.ndarray:
        StubMemory.counts["waits"] += 1
        return super().result()


_NOTHING = contextlib.nullcontext()


@contextlib.contextmanager
def stub_device() -> Iterator[type[StubMemory]]:
    """Make the functions of ``gcodec.gpu`` use a device that does nothing, and yield what counts."""
    here = torch.device("cpu")
    StubMemory.counts = dict.fromkeys(("allocations", "uploads", "upload_bytes", "waits"), 0)
    StubMemory.driver = StubDriver()
    with (
        patch.object(gpu_memory, "TorchMemory", StubMemory),
        patch.object(gpu, "_indexed", lambda device: here),
        patch.object(launching, "driver_of", lambda device: StubMemory.driver),
        patch.object(NativeKernel, "cubin", lambda kernel, capability, driver_version: b""),
        patch.object(launching, "_launchers", {}),
        patch.object(launching, "_functions", {}),
        patch.object(launching, "_modules", {}),
        patch.object(gpu_memory, "_kept", {}),
    ):
        yield StubMemory
