"""Memory that is reused or handed over without a copy: a pool of buffers, bytes built in place, kernels' scratch."""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .dtypes import DType
from .format.prelude import TEMPLATE_COLUMNS
from .kernels.block.sparse_types import SparseScratch
from .kernels.core.bundles import FloatBits, Residuals, Scratch
from .kernels.core.masks import ROW_COUNTS, ROW_MASKS
from .kernels.entropy.changes import SHORT_GAPS
from .kernels.entropy.encode_streams import CHUNK_BYTES, STREAM_PAD
from .kernels.planes.class_tables import CLASS_BYTES
from .kernels.planes.layout_types import GROUP, Layout, layout_scratch
from .kernels.predict.scale_steps import N_SUMS

# The pool of buffers

_MAX_POOLED = 4  #: buffers kept of one kind: with more threads than that, each has enough work to bear an allocation
MAX_POOLED_BLOCK = 1 << 15  #: largest blocks, in values, whose scratch is pooled
_pool: defaultdict[Hashable, deque[Any]] = defaultdict(partial(deque, maxlen=_MAX_POOLED))


def acquire(key: Hashable, make: Callable[[], Any]) -> Any:
    """Take a buffer out of the pool, or make one.

    Until :func:`release` nobody else has it, be it another thread or a signal handler that encodes in between.

    Args:
        key: What the buffer is for; buffers of equal keys are interchangeable.
        make: Makes a buffer where the pool has none.
    """
    try:
        return _pool[key].pop()
    except IndexError:
        return make()


def release(key: Hashable, buffer: Any) -> None:
    """Return a buffer to the pool. A buffer that is lost to an exception is simply not reused."""
    _pool[key].append(buffer)  # where there are enough, the oldest goes


class Borrowed(dict[Hashable, Any]):
    """Buffers that one thread has taken out of the pool, by key: each is taken when it is first asked for, and kept
    until all are given back together."""

    def take(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return this thread's buffer for a key; arguments as for :func:`acquire`."""
        buffer = self.get(key)
        if buffer is None:
            buffer = self[key] = acquire(key, make)
        return buffer

    def give_back(self) -> None:
        """Return all buffers to the pool; they are not to be used any more."""
        for key, buffer in self.items():
            release(key, buffer)


# Bytes objects: CPython's private parts
#
# All that gcodec takes from CPython beside Python itself stands here; what it takes from numba stands in
# kernels/core/numba_private.py. CPython's C API creates a bytes object without contents, fills it, and cuts it to size
# before anybody else sees it: PyBytes_FromStringAndSize is documented, _PyBytes_Resize is, too, but for extensions
# written in C. Done from here through ctypes, this saves a copy of every frame.
#
# Saves: filling 1 MiB and making bytes of it takes 1.6 times as long with a copy, encoding to 1 MiB 1.05 times. At
# 64 MiB it is 10 times, and encoding 3 times: the copy is to memory of small pages that nobody has touched yet.
# Measured as the minimum of 300 calls (12 at 64 MiB) on one thread of an x86-64 server.
# Without it (another Python, or one without these functions): an array, and bytes that are copied from it.
# Can go: when Python gives a bytes object to write to; PEP 782's PyBytesWriter does, for extensions.

_LARGE_PAGES_FROM = 1 << 22  #: bytes


class _PythonApi:
    """Holds the functions of CPython's C API that build bytes in place.

    Args:
        library: CPython's C API, as ctypes sees it.

    Raises:
        AttributeError: A function is missing.
    """

    def __init__(self, library: Any) -> None:
        self.new, self.start, self.resize, self.release = (
            library.PyBytes_FromStringAndSize,
            library.PyBytes_AsString,
            library._PyBytes_Resize,
            library.Py_DecRef,
        )
        self.new.argtypes, self.new.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.c_void_p
        self.start.argtypes, self.start.restype = (ctypes.c_void_p,), ctypes.c_void_p
        self.resize.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_ssize_t)
        self.resize.restype = ctypes.c_int
        # The second argument is the reference that calls it; functions of C leave one too many alone.
        self.release.argtypes, self.release.restype = (ctypes.c_void_p, ctypes.py_object), None


def _python_api() -> _PythonApi | None:
    """Return CPython's functions, or None of another Python."""
    if sys.implementation.name != "cpython":
        return None
    try:
        # Another object than ctypes.pythonapi, whose functions' types are everybody's.
        return _PythonApi(ctypes.PyDLL(None, handle=ctypes.pythonapi._handle))
    except AttributeError:
        return None


_api = _python_api()


class BytesBuilder:
    """Builds a bytes object that is written before its final size is known, without a copy where Python can.

    Only the pages that are written take memory.

    Args:
        size: Largest size in bytes.

    Attributes:
        array: uint8[size], the memory to write to. Not to be used after :meth:`finish`.
    """

    def __init__(self, size: int) -> None:
        self._memory = None if _api is None else _BytesMemory(_api, size)
        self.array = np.empty(size, np.uint8) if self._memory is None else np.asarray(self._memory)

    def finish(self, size: int) -> bytes:
        """Return the first ``size`` bytes as a bytes object; the rest goes back to the system."""
        if self._memory is None:
            return self.array[:size].tobytes()
        del self.array
        return self._memory.cut(size)


def _ask_for_large_pages(start: int, size: int) -> None:
    """Have memory made of large pages: touching a small page first takes longer than encoding what goes there. numpy
    asks for them, too."""
    if _madvise is not None:
        first_page = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise(first_page, size - mmap.PAGESIZE, mmap.MADV_HUGEPAGE)


_madvise: Any = None
if sys.platform == "linux" and hasattr(mmap, "MADV_HUGEPAGE"):
    _madvise = ctypes.PyDLL(None).madvise
    _madvise.argtypes, _madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int


class _BytesMemory:
    """The memory of a bytes object, which numpy sees as uint8[size] by its documented ``__array_interface__``. It lives
    as long as arrays of it do: after an interrupt, other threads may still write to them.

    Args:
        api: CPython's functions.
    """

    def __init__(self, api: _PythonApi, size: int) -> None:
        self._api = api
        self._bytes = ctypes.c_void_p(api.new(None, size))
        start = api.start(self._bytes)
        self.__array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (start, False),
            "version": 3,
        }
        # No Python runs at the end of this object, for an interrupt in it would be lost: the reference calls CPython's.
        self._end = weakref.ref(self, partial(api.release, self._bytes))
        if size >= _LARGE_PAGES_FROM:
            _ask_for_large_pages(start, size)

    def cut(self, size: int) -> bytes:
        """Return the first ``size`` bytes as a bytes object; nothing is to be written any more."""
        self._api.resize(ctypes.byref(self._bytes), size)
        return ctypes.cast(self._bytes, ctypes.py_object).value


# Scratch of the kernels


def scratch_for(
    dtype: DType, block: int, stream: int, layout: type[Layout], decode: bool, lossy: bool = False
) -> Scratch:
    """Return the working memory of one thread.

    Args:
        block: Values in a block.
        stream: Values in a sub-stream.
        layout: Layout of the planes, which says what arrays there are.
        decode: True for decoding, False for encoding.
        lossy: True if values are rounded.
    """
    n_streams = -(-block // stream)
    with_heads = dtype.bits == 32 and not decode
    strided = n_streams * (stream + STREAM_PAD) + 2 * GROUP

    def array(wanted: bool, shape: Any, kind: Any) -> Any:
        return np.empty(shape, kind) if wanted else None

    return Scratch(
        symbols=np.empty(strided, np.uint8),
        references=np.empty(n_streams, np.uint32),
        stream_bytes=np.empty(n_streams, np.uint32),
        n_items=np.zeros(8, np.int64),
        chunk=np.empty(max(4 * (stream + GROUP), CHUNK_BYTES, CLASS_BYTES), np.uint8),
        columns=np.empty(block, np.int8),
        shifted=np.empty(0 if decode else block, dtype.uint),
        turned=np.empty(block if dtype.fine_bits and not decode else 0, dtype.uint),
        heads=np.empty(block + GROUP if with_heads else 0, np.uint8),
        others=np.empty(block // 64 + 1 if with_heads else 0, np.uint64),
        layout=layout_scratch(layout, block, stream, strided, decode),
        rounded=array(lossy, block, dtype.uint),
        starts=array(decode, n_streams, np.int64),
        bases=array(decode, n_streams, np.uint16),
        decoders=array(decode, (5, 4), np.int64),
        escapes=array(decode, block, np.int64),
        escape_heads=array(decode, block, np.uint16),
    )


def sparse_scratch_for(kind: np.dtype[Any], n: int) -> SparseScratch:
    """Return the working memory of one thread for sparse blocks.

    Args:
        kind: uintW.
        n: Number of changes that it has room for; 0 to write them.
    """
    n_groups, n_sums = (ROW_MASKS, ROW_COUNTS) if n else (0, 0)
    return SparseScratch(
        members=np.zeros(17 * n_groups, np.uint64),
        before=np.zeros(16 * n_sums, np.uint16),
        totals=np.zeros(16, np.int64),
        places=np.empty(64 * n_groups + 64, np.uint16),
        tail=np.zeros(128, kind),
        passed=np.zeros(16, np.int64),
        after=np.zeros(16, np.int64),
        numbers=np.zeros(16, np.int64),
        gaps=np.empty(n + 17, np.uint32),
        steps=np.empty(n + 17, kind),
        stream_bytes=np.empty(1 << 14, np.uint32),
        state=np.zeros(1, np.int64),
        short_gaps=np.zeros(2 * SHORT_GAPS, np.uint64),
    )


@lru_cache
def float_bits_of(dtype: DType) -> FloatBits:
    """Return a value type as the kernels take it."""
    return FloatBits(
        dtype.head_bits,
        dtype.head_shift,
        dtype.tail_bits,
        np.uint64(dtype.infinity),
        np.uint64(dtype.smallest_normal),
        dtype.fine_bits,
    )


def residual_scratch_for(dtype: DType, block: int, stream: int) -> Residuals:
    """Return the working memory of one thread for predicted blocks.

    Args:
        block: Values in a block.
        stream: Values in a sub-stream.
    """
    n_streams = -(-block // stream)
    strided = n_streams * (stream + STREAM_PAD) + 2 * GROUP
    return Residuals(
        symbols=np.empty(strided, np.uint8),
        marks=np.empty(strided, np.uint8),
        predictions=np.empty(block, np.uint32),
        words=np.empty(block, np.uint32),
        bytes=np.empty(2 * (stream + GROUP), np.uint8),
        items=np.empty((dtype.itemsize, block + GROUP), np.uint8),
        n_items=np.zeros(8, np.int64),
        scales=np.empty(block // TEMPLATE_COLUMNS.start + 2, np.uint32),
        sums=np.empty(N_SUMS, np.float32),
        stream_bytes=np.empty(n_streams, np.uint32),
        starts=np.empty(n_streams, np.int64),
        decoders=np.empty((5, 4), np.int64),
        chunk=np.empty(CHUNK_BYTES, np.uint8),
        escapes=np.empty(block, np.int64),
        escape_heads=np.empty(block, np.uint16),
    )
