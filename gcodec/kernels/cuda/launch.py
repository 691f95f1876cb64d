"""From memory and streams of somebody else's to launches of kernels.

A kernel is launched by the driver itself, with its arguments packed into one buffer. That takes ten microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

from .cuda_driver import Driver
from .launch_arguments import add_arguments, layout
from .native import ALL_KERNELS, THREADS, NativeKernel

_preparing = Lock()

#: Launches a kernel on a device: takes blocks of the grid, a stream's handle and the numbers of all arguments.
Launcher = Callable[[int, int, list[Any]], None]
_launchers: dict[Any, Launcher] = {}
_modules: dict[tuple[int, str], int] = {}  #: handles of loaded files of kernels, by the device
_functions: dict[tuple[int, NativeKernel], int] = {}  #: handles of loaded kernels, by the device


@cache
def driver_of(device: int) -> Driver:
    """Return the driver for a device. Raises Unsupported if there is none."""
    return Driver(device)


def launch(kernel: NativeKernel, blocks: int, device: int, stream: int, args: tuple[Any, ...]) -> None:
    """Run a kernel.

    Args:
        blocks: Number of blocks of the grid.
        device: Number of the device.
        stream: Handle of a stream of the device.
        args: Its arguments, as :func:`launch_arguments.add_arguments` takes them.

    Raises:
        Unsupported: The kernel cannot be compiled here; the message says what is missing.
        DeviceError: The device or its driver fails.
    """
    kinds: list[Any] = [device, kernel]
    numbers: list[Any] = []
    add_arguments(args, kinds, numbers)
    key = tuple(kinds)
    launcher = _launchers.get(key)
    if launcher is None:
        launcher = _prepared(key)
    launcher(blocks, stream, numbers)


def prepare_all(device: int) -> None:
    """Compile every kernel for a device, and load it there; exceptions as of :func:`launch`."""
    with _preparing:
        for kernel in ALL_KERNELS:
            _loaded(device, kernel)


def _loaded(device: int, kernel: NativeKernel) -> int:
    """Return the handle of a kernel, compiled for a device and loaded there once, with all kernels of its file. Called
    with the lock."""
    if (device, kernel) not in _functions:
        driver, file = driver_of(device), (device, kernel.file)
        if file not in _modules:
            _modules[file] = driver.load(kernel.cubin(driver.capability, driver.version))
        _functions[device, kernel] = driver.kernel_of(_modules[file], kernel.name)
    return _functions[device, kernel]


def _prepared(key: tuple[Any, ...]) -> Launcher:
    """Return what launches a kernel with arguments like these: compiled once, and kept."""
    with _preparing:
        # Once more with the lock: another thread may have made it while this one waited.
        if key not in _launchers:
            device, kernel, *kinds = key
            _launchers[key] = _launcher(driver_of(device), _loaded(device, kernel), tuple(kinds))
        return _launchers[key]


def _launcher(driver: Driver, function: int, kinds: tuple[Any, ...]) -> Launcher:
    """Return what launches a loaded kernel."""
    pack, run = layout(kinds).pack, driver.launch

    def launcher(blocks: int, stream: int, numbers: list[Any]) -> None:
        run(function, blocks, THREADS, stream, pack(*numbers))

    return launcher
