"""The few calls of NVIDIA's driver that load kernels and launch them, through ctypes.

Handles of streams are the driver's own: 0 is the default stream that torch means, whatever a process has asked other
libraries to take for it.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from ...errors import DeviceError, Unsupported

_MAJOR, _MINOR = 75, 76  #: numbers of the attributes that are the compute capability
_BUFFER, _SIZE, _END = 1, 2, 0  #: what ``extra`` of cuLaunchKernel names: arguments in one buffer
_LOG_BYTES = 1 << 13
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  #: options of cuModuleLoadDataEx


class Driver:
    """The driver, for one device.

    Args:
        device: Number of the device, as torch and the driver's runtime count.

    Raises:
        Unsupported: There is no driver, or no such device.
    """

    def __init__(self, device: int) -> None:
        self._library = library()
        number, context = ctypes.c_int(), ctypes.c_void_p()
        try:
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(number), device)
            # The context that torch uses, too. It is kept for as long as the process lasts.
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        except DeviceError as error:
            raise Unsupported(f"the CUDA device {device} cannot be used: {error}") from error
        self._context = context
        self.capability = self._attribute(_MAJOR, number), self._attribute(_MINOR, number)
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value  # the latest CUDA that it knows: 1000 major + 10 minor
        self._launch = self._library.cuLaunchKernel
        #     kernel | blocks x, y, z | threads x, y, z | bytes of shared memory | stream | arguments, extra
        self._launch.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]

    def load(self, code: bytes) -> int:
        """Load code on the device, and return the handle of the module that it makes.

        Args:
            code: A cubin, as NVRTC makes it.

        Raises:
            DeviceError: The driver refuses the code.
        """
        module = ctypes.c_void_p()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        # Numbers of options lie in one array, and their values in another, a size as if it were an address.
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        self._enter()
        try:
            self._call("cuModuleLoadDataEx", ctypes.byref(module), code, 2, options, values)
        except DeviceError as error:
            raise DeviceError(f"{error}; {log.value.decode(errors='replace')}") from None
        finally:
            self._leave()
        return int(module.value or 0)

    def kernel_of(self, module: int, name: str) -> int:
        """Return the handle of a kernel, ready to be launched.

        Args:
            name: The kernel's name there.

        Raises:
            DeviceError: The module has no such kernel, or the device has no room for it.
        """
        function = ctypes.c_void_p()
        self._enter()
        try:
            self._call("cuModuleGetFunction", ctypes.byref(function), ctypes.c_void_p(module), name.encode())
            # Else a driver that loads lazily does so at the first launch, for which it may wait for the whole device.
            if hasattr(self._library, "cuFuncLoad"):  # since CUDA 12.4
                self._call("cuFuncLoad", function)
        finally:
            self._leave()
        return int(function.value or 0)

    def launch(self, function: int, blocks: int, threads: int, stream: int, arguments: bytes) -> None:
        """Enqueue a kernel.

        Args:
            function: Its handle.
            blocks: Blocks of the grid.
            threads: Threads of a block.
            stream: Handle of the stream.
            arguments: The kernel's arguments, one after the other, each where C would put it in a struct.

        Raises:
            DeviceError: The driver refuses it, which it does for earlier kernels' faults, too.
        """
        size = ctypes.c_size_t(len(arguments))
        # All arguments as one run of bytes, laid out by us: the other way takes a pointer to each of them.
        extra = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.cast(ctypes.c_char_p(arguments), ctypes.c_void_p), _SIZE, ctypes.addressof(size), _END
        )
        self._enter()
        try:
            code = self._launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, None, extra)
        finally:
            self._leave()
        if code:
            raise DeviceError(self._text("cuLaunchKernel", code))

    # The context is the current one of this thread for the call only, since torch or the program may use another
    # device.
    def _enter(self) -> None:
        self._call("cuCtxPushCurrent_v2", self._context)

    def _leave(self) -> None:
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _attribute(self, which: int, number: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), which, number)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceError(self._text(name, code))

    def _text(self, name: str, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{name}: error {code}, {(text.value or b'unknown').decode(errors='replace')}"


@cache
def library() -> Any:
    """Return the driver's library. Raises Unsupported if there is none."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise Unsupported(f"there is no driver for CUDA devices: {error}") from error
