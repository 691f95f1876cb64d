"""From memory and streams of somebody else's to launches of kernels."""

from __future__ import annotations

from threading import Lock
from typing import Any

from numba import cuda

from ...errors import Unsupported
from ..core.numba_private import cuda_settings
from . import grid

_WARNINGS = "CUDA_LOW_OCCUPANCY_WARNINGS"
_quiet = Lock()
_specializations: dict[Any, Any] = {}


def check_gpu() -> None:
    """Check that numba reaches a device, and launches on torch's streams.

    Raises:
        Unsupported: It does not.
    """
    try:
        cuda.current_context()
    except Exception as error:  # of many kinds, by the library that is missing
        raise Unsupported(f"numba cannot use the CUDA device: {error}") from error
    if getattr(cuda_settings(), "CUDA_PER_THREAD_DEFAULT_STREAM", 0):
        raise Unsupported(
            "NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM must be unset: numba's default stream must be torch's"
        )


def stream_of(handle: int) -> Any:
    """Return a stream by its handle, as torch and others give it; 0 is the default one."""
    return cuda.external_stream(handle) if handle else 0


def configured(gpu_kernel: Any, blocks: int, stream: Any) -> Any:
    """Return a kernel for so many blocks of the grid, on a stream.

    Without numba's warning about few blocks: small tensors are no mistake. The switch is everybody's, and a lane's
    thread launches as well as training's: one at a time.
    """
    config = cuda_settings()
    with _quiet:
        before = getattr(config, _WARNINGS, 1)
        setattr(config, _WARNINGS, 0)
        try:
            return gpu_kernel[blocks, grid.THREADS, stream]
        finally:
            setattr(config, _WARNINGS, before)


def specialized(gpu_kernel: Any, args: tuple[Any, ...]) -> Any:
    """Return a kernel compiled for arguments like these, which numba then takes as they are.

    Otherwise numba works out the type of a named tuple of arrays anew at every launch, in Python: 100 to 400 us, as
    long as all else that the host does for it. Here the types and dimensions of arrays are looked up in a table.
    """
    key = gpu_kernel, cuda.get_current_device().compute_capability, _kind(args)
    if key not in _specializations:
        _specializations[key] = gpu_kernel.specialize(*args)
    return _specializations[key]


def launch(gpu_kernel: Any, blocks: int, stream: Any, args: tuple[Any, ...]) -> None:
    """Run a kernel.

    Args:
        gpu_kernel: The kernel.
        blocks: Number of blocks of the grid.
        stream: A stream, of :func:`stream_of`.
        args: Its arguments: what has a ``__cuda_array_interface__``, in tuples too, becomes an array; numbers are
            numpy's.
    """
    arrays = tuple(map(_argument, args))
    configured(specialized(gpu_kernel, arrays), blocks, stream)(*arrays)


def _argument(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return type(arg)(*map(_argument, arg)) if hasattr(arg, "_fields") else tuple(map(_argument, arg))
    return cuda.as_cuda_array(arg, sync=False) if hasattr(arg, "__cuda_array_interface__") else arg


def _kind(arg: Any) -> Any:
    """Return what numba's type of an argument depends on; all arrays here are contiguous, or broadcast if empty."""
    if isinstance(arg, tuple):
        return type(arg), *map(_kind, arg)
    return arg.dtype, arg.ndim, 0 in arg.strides
