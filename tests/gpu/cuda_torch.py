"""The public functions for CUDA tensors, on tensors of the host's that pretend: all but the device itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from gcodec import gpu
from gcodec.dtypes import DType
from gcodec.gpu import gpu_memory as seam
from tests.gpu import host_library


class Pretending(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True


def pretending(tensor: torch.Tensor) -> Any:
    """Return the same tensor, pretending to be on a CUDA device."""
    return tensor.as_subclass(Pretending)


class TorchOnHost(seam.TorchMemory):
    """:class:`TorchMemory` without a device: kernels run at once."""

    def __init__(self, device: Any) -> None:
        self.device, self._index, self._handle = torch.device("cpu"), -1, 0

    def _current(self) -> Any:
        return contextlib.nullcontext()

    def _staging(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def _mark(self) -> None:
        pass

    def check_capture(self) -> None:
        pass

    def part(self, array: Any, begin: int, end: int) -> Any:
        return pretending(super().part(array, begin, end))

    def new(self, kinds: Iterable[tuple[DType, tuple[int, ...]]]) -> list[Any]:
        return list(map(pretending, super().new(kinds)))

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        host_library.run(host_library.build(), kernel, blocks, args, 2)


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Make the functions of ``gcodec.gpu`` take tensors that pretend."""
    here = torch.device("cpu")
    with (
        patch.object(seam, "TorchMemory", TorchOnHost),
        patch.object(gpu, "_indexed", lambda device: here),
        patch.object(torch.cuda, "stream", lambda stream: contextlib.nullcontext()),
    ):
        yield


class _CudaIsHere(TorchFunctionMode):
    """What is made on or moved to a CUDA device lies here and pretends; what is moved to the CPU pretends no more."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return pretending(args[0])
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        if str(kwargs.get("device")).startswith("cuda"):
            return pretending(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


class _Generator(torch.Generator):
    """One of the device's random numbers."""

    def __new__(cls, device: str = "cpu") -> Any:
        return super().__new__(cls)


class _Event:
    """An event of a device that does everything at once."""

    def __init__(self, enable_timing: bool) -> None:
        self.time = 0.0

    def record(self) -> None:
        self.time = perf_counter()

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * (other.time - self.time)


@contextlib.contextmanager
def pretending_device() -> Iterator[None]:
    """Make the host pretend to be a CUDA device."""
    cuda = {
        "is_available": lambda: True,
        "Event": _Event,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "get_device_name": lambda: "the host",
        "current_device": lambda: 0,
        "mem_get_info": lambda: (1 << 33,) * 2,
        "_sleep": lambda cycles: None,
    }
    with contextlib.ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch, "Generator", _Generator))
        stack.enter_context(on_host())
        stack.enter_context(_CudaIsHere())
        yield
