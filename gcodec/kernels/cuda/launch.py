"""From memory and streams of somebody else's to launches of kernels."""

from __future__ import annotations

from importlib import import_module
from threading import Lock
from typing import Any

from numba import cuda

from ...errors import Unsupported
from . import grid

_WARNINGS = "CUDA_LOW_OCCUPANCY_WARNINGS"
_quiet = Lock()


def check_gpu() -> None:
    """Raises Unsupported where numba cannot reach a device, or would not launch on torch's streams."""
    try:
        cuda.current_context()
    except Exception as error:  # of many kinds, by the library that is missing
        raise Unsupported(f"numba cannot use the CUDA device: {error}") from error
    if getattr(settings(), "CUDA_PER_THREAD_DEFAULT_STREAM", 0):
        raise Unsupported("NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM: numba's default stream must be torch's")


def settings() -> Any:
    """Return numba's settings of launches; the package numba-cuda, which takes the name ``numba.cuda``, has its own."""
    return import_module("numba.cuda.dispatcher").config


def stream_of(handle: int) -> Any:
    """A stream by its handle, as torch and others give it; 0 is the default one."""
    return cuda.external_stream(handle) if handle else 0


def configured(gpu_kernel: Any, blocks: int, stream: Any) -> Any:
    """A kernel for so many blocks of the grid, on a stream. Without numba's warning about few blocks: small tensors are
    no mistake. The switch is everybody's, and a lane's thread launches as well as training's: one at a time."""
    config = settings()
    with _quiet:
        asked = getattr(config, _WARNINGS, 1)
        setattr(config, _WARNINGS, 0)
        try:
            return gpu_kernel[blocks, grid.THREADS, stream]
        finally:
            setattr(config, _WARNINGS, asked)


def launch(gpu_kernel: Any, blocks: int, stream: Any, args: tuple[Any, ...]) -> None:
    """Run a kernel. Of ``args``, what has a ``__cuda_array_interface__``, in tuples too, becomes an array."""
    configured(gpu_kernel, blocks, stream)(*map(_argument, args))


def _argument(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return type(arg)(*map(_argument, arg)) if hasattr(arg, "_fields") else tuple(map(_argument, arg))
    return cuda.as_cuda_array(arg, sync=False) if hasattr(arg, "__cuda_array_interface__") else arg
