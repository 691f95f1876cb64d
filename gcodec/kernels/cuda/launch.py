"""From memory and streams of somebody else's to launches of kernels.

A kernel is launched by the driver itself, with its arguments packed into one buffer: numba's dispatcher, which makes an
object of every array and every field of it, takes 300 us where this takes ten. Where the driver refuses what numba
compiled, or numba declares arguments in a way that is not known here, the dispatcher does it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

from numba import cuda

from ...errors import Unsupported
from ..core.numba_private import cuda_settings
from . import grid
from .compiled import declaration, ptx_of
from .cuda_driver import Driver
from .launch_arguments import Flat, GpuArray, add_arguments, declared, layout, signature
from .native import THREADS, NativeKernel

_WARNINGS = "CUDA_LOW_OCCUPANCY_WARNINGS"
_DEFAULT_STREAM = 1  #: the handle by which libraries take the default stream that torch means, however they are set
_preparing, _quiet = Lock(), Lock()

#: Launches a kernel on a device: takes blocks of the grid, a stream's handle, the numbers of all arguments, and the
#: arguments.
Launcher = Callable[[int, int, list[Any], tuple[Any, ...]], None]
_launchers: dict[Any, Launcher] = {}


@cache
def driver_of(device: int) -> Driver:
    """Return the driver for a device. Raises Unsupported if there is none."""
    return Driver(device)


def launch(gpu_kernel: Any, blocks: int, device: int, stream: int, args: tuple[Any, ...]) -> None:
    """Run a kernel.

    Args:
        gpu_kernel: The kernel.
        blocks: Number of blocks of the grid.
        device: Number of the device.
        stream: Handle of a stream of the device.
        args: Its arguments, as :func:`launch_arguments.add_arguments` takes them.

    Raises:
        Unsupported: The kernel cannot be compiled here; the message says what is missing.
        DeviceError: The device or its driver fails.
    """
    kinds: list[Any] = [device, gpu_kernel]
    numbers: list[Any] = []
    add_arguments(args, kinds, numbers)
    key = tuple(kinds)
    launcher = _launchers.get(key)
    if launcher is None:
        launcher = _prepared(key, args)
    launcher(blocks, stream, numbers, args)


def _prepared(key: tuple[Any, ...], args: tuple[Any, ...]) -> Launcher:
    """Return what launches a kernel with arguments like these: compiled once, and kept."""
    with _preparing:
        if key not in _launchers:
            device, gpu_kernel, *kinds = key
            driver = driver_of(device)
            if isinstance(gpu_kernel, NativeKernel):
                _launchers[key] = _native(driver, gpu_kernel, tuple(kinds))
            else:
                _launchers[key] = _general(driver, gpu_kernel, tuple(kinds), args)
        return _launchers[key]


def _native(driver: Driver, gpu_kernel: NativeKernel, kinds: tuple[Any, ...]) -> Launcher:
    """Return what launches a kernel in CUDA C++. Raises Unsupported if there is nothing to compile it."""
    code = gpu_kernel.cubin(driver.capability, driver.version)
    return _by_driver(driver, driver.load(code, gpu_kernel.name), THREADS, kinds)


def _general(driver: Driver, gpu_kernel: Any, kinds: tuple[Any, ...], args: tuple[Any, ...]) -> Launcher:
    """Return what launches a kernel that numba compiles."""
    try:
        return _direct(driver, gpu_kernel, kinds, args)
    except Exception as error:  # of many kinds: a library is missing, the driver is older than the PTX, ...
        text = f"{gpu_kernel.py_func.__name__} is launched by numba, as it cannot be by the driver: {error}"
        logging.getLogger("gcodec").info(text)
        return _by_numba(gpu_kernel, args, error)


def _direct(driver: Driver, gpu_kernel: Any, kinds: tuple[Any, ...], args: tuple[Any, ...]) -> Launcher:
    """Return what launches a kernel by the driver."""
    text = ptx_of(gpu_kernel, signature(args), driver.capability)
    name, found = declaration(text)
    if found != declared(kinds):
        raise ValueError("numba declares the kernel's arguments in a way that is not known")
    return _by_driver(driver, driver.load(text.encode(), name), grid.THREADS, kinds)


def _by_driver(driver: Driver, function: int, threads: int, kinds: tuple[Any, ...]) -> Launcher:
    """Return what launches a loaded kernel."""
    pack, run = layout(kinds).pack, driver.launch

    def launcher(blocks: int, stream: int, numbers: list[Any], args: tuple[Any, ...]) -> None:
        run(function, blocks, threads, stream, pack(*numbers))

    return launcher


def _by_numba(gpu_kernel: Any, args: tuple[Any, ...], reason: Exception) -> Launcher:
    """Return what launches a kernel by numba's dispatcher. Raises Unsupported if that fails, too."""
    try:
        special = gpu_kernel.specialize(*map(_numba_argument, args))
    except Exception as error:  # of many kinds
        raise Unsupported(f"numba cannot compile for the CUDA device: {reason}; {error}") from error

    def launcher(blocks: int, stream: int, numbers: list[Any], args: tuple[Any, ...]) -> None:
        given = map(_numba_argument, args)
        configured(special, blocks, cuda.external_stream(stream or _DEFAULT_STREAM))(*given)

    return launcher


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


def _numba_argument(arg: Any) -> Any:
    if isinstance(arg, Flat):
        return _numba_argument(arg.bundle)
    if isinstance(arg, tuple):
        return type(arg)(*map(_numba_argument, arg))
    return cuda.as_cuda_array(arg, sync=False) if isinstance(arg, GpuArray) else arg
