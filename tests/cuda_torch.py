"""The public functions for CUDA tensors, on tensors of the host's that pretend: all but the device itself."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from gcodec import gpu
from gcodec.gpu import memory as seam
from gcodec.kernels.cuda import grid


class Pretending(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True


def pretending(tensor: torch.Tensor) -> Any:
    """The same tensor, pretending."""
    return tensor.as_subclass(Pretending)


class TorchOnHost(seam.TorchMemory):
    """:class:`TorchMemory` without a device: kernels run at once."""

    def __init__(self, device: Any) -> None:
        self.device = torch.device("cpu")
        self.stream: Any = None

    def _pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        if blocks:
            kernel[blocks, grid.THREADS, 0](*map(_argument, args))


def _argument(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return type(arg)(*map(_argument, arg))
    found = getattr(arg, "__cuda_array_interface__", None)
    if found is None:
        return arg
    size = max(int(np.prod(found["shape"])), 1) * np.dtype(found["typestr"]).itemsize
    memory = (ctypes.c_uint8 * size).from_address(found["data"][0])
    flat = np.frombuffer(memory, found["typestr"])
    return flat[: int(np.prod(found["shape"]))].reshape(found["shape"])


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Here the functions of ``gcodec.gpu`` take tensors that pretend."""
    here = torch.device("cpu")
    with (
        patch.object(seam, "TorchMemory", TorchOnHost),
        patch.object(gpu, "_indexed", lambda device: here),
        patch.object(torch.cuda, "stream", lambda stream: contextlib.nullcontext()),
    ):
        yield
