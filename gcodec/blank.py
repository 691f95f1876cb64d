"""A bytes object of a size that is known only when it is full."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np

_python = ctypes.PyDLL(None)
_new, _start, _resize, _release = (
    _python.PyBytes_FromStringAndSize,
    _python.PyBytes_AsString,
    _python._PyBytes_Resize,
    _python.Py_DecRef,
)
_new.argtypes, _new.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.c_void_p
_start.argtypes, _start.restype = (ctypes.c_void_p,), ctypes.c_void_p
_resize.argtypes, _resize.restype = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_ssize_t), ctypes.c_int
_release.argtypes, _release.restype = (ctypes.c_void_p,), None
_HUGE = 1 << 22  #: bytes from which large pages are asked for
if sys.platform == "linux":
    _advise = _python.madvise
    _advise.argtypes, _advise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int


class Blank:
    """Room for ``size`` bytes, of which only what is written takes memory, and which becomes a bytes object without a
    copy.

    This is how CPython's C API has bytes made: created without contents, filled and cut to size before anybody else
    sees them. ``array``: uint8[size], not to be used after :meth:`finish`.
    """

    def __init__(self, size: int) -> None:
        self._bytes = ctypes.c_void_p(_new(None, size))
        self.array = np.asarray(_Memory(_start(self._bytes), size))
        if sys.platform == "linux" and size >= _HUGE:
            # Of small pages, the first touch of each takes longer than to encode what goes there. numpy does the same.
            start = -(-_start(self._bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
            _advise(start, size - mmap.PAGESIZE, mmap.MADV_HUGEPAGE)

    def finish(self, size: int) -> bytes:
        """The first ``size`` bytes. The rest goes back to the system."""
        del self.array
        _resize(ctypes.byref(self._bytes), size)
        return ctypes.cast(self._bytes, ctypes.py_object).value

    def __del__(self) -> None:
        if self._bytes.value:
            _release(self._bytes)


class _Memory:
    """uint8[size] at an address, for numpy."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3
        }
