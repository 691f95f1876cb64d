"""From memory and streams of somebody else's to launches of kernels."""

from __future__ import annotations

from typing import Any

from numba import config, cuda

from gcodec.errors import Unsupported

from . import grid

_WARNINGS = "CUDA_LOW_OCCUPANCY_WARNINGS"


def check_device() -> None:
    """Raises Unsupported where numba cannot reach a device."""
    try:
        cuda.current_context()
    except Exception as error:  # of many kinds, by the library that is missing
        raise Unsupported(f"numba cannot use the CUDA device: {error}") from error


def stream_of(handle: int) -> Any:
    """A stream by its handle, as torch and others give it."""
    return cuda.external_stream(handle)


def launch(kernel: Any, blocks: int, stream: Any, args: tuple[Any, ...]) -> None:
    """Run a kernel. Of ``args``, what has a ``__cuda_array_interface__``, in tuples too, becomes an array."""
    asked = getattr(config, _WARNINGS, 1)
    setattr(config, _WARNINGS, 0)  # small tensors are no mistake
    try:
        kernel[blocks, grid.THREADS, stream](*map(_argument, args))
    finally:
        setattr(config, _WARNINGS, asked)


def _argument(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return type(arg)(*map(_argument, arg)) if hasattr(arg, "_fields") else tuple(map(_argument, arg))
    return cuda.as_cuda_array(arg, sync=False) if hasattr(arg, "__cuda_array_interface__") else arg
