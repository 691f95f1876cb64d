"""The CUDA kernels compiled for the CPU, with one thread to a block of the grid.

What numba's simulator interprets takes a second for a few hundred values, and its integers are numpy's. Compiled, the
same kernels take every array of the law tables, and their integers are those that numba makes for a device. What one
thread cannot show, that threads wait for each other where they must, is the simulator's part.

:func:`install` stands in for ``numba.cuda`` and has to be called before gcodec's CUDA kernels are imported, in a
process of their own.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types as nb
from numba.extending import intrinsic

_block = ctypes.c_int64(0)
_ADDRESS = ctypes.addressof(_block)


@intrinsic
def _block_number(typingctx: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = ir.Constant(ir.IntType(64), _ADDRESS).inttoptr(ir.IntType(64).as_pointer())
        return builder.load(place)

    return nb.int64(), generate


@njit
def grid(dimensions: int) -> int:
    """``cuda.grid`` of one thread to a block: the block's number."""
    return _block_number()  # type: ignore[call-arg]  # numba gives it its context


@njit
def popc(x: Any) -> Any:
    """Return the number of bits that are set."""
    n = np.uint32(0)
    while x:
        n += np.uint32(x & np.uint32(1))
        x = np.uint32(x >> np.uint32(1))
    return n


@njit
def clz(x: Any) -> Any:
    """Return the number of zeros above the highest bit of 32."""
    n = np.uint32(32)
    while x:
        n -= np.uint32(1)
        x = np.uint32(x >> np.uint32(1))
    return n


@njit
def syncthreads() -> None:
    """One thread waits for nobody."""


@njit
def array(n: int, dtype: Any) -> Any:
    """Stand in for ``cuda.shared.array``; what is not written first must not be read, which is why it is not zeroed."""
    result = np.empty(n, dtype)
    result.view(np.uint8)[:] = 0xA5
    return result


@njit
def add(array: Any, i: Any, value: Any) -> None:
    """An atomic operation, of one thread."""
    array[i] += value


@njit
def or_(array: Any, i: Any, value: Any) -> None:
    """An atomic operation, of one thread."""
    array[i] |= value


@njit
def least(array: Any, i: Any, value: Any) -> None:
    """An atomic operation, of one thread."""
    array[i] = min(array[i], value)


@njit
def most(array: Any, i: Any, value: Any) -> None:
    """An atomic operation, of one thread."""
    array[i] = max(array[i], value)


class _Kernel:
    """A kernel, launched as ``kernel[blocks, threads, stream](...)``."""

    def __init__(self, function: Any) -> None:
        self.compiled = njit(boundscheck=True)(function)

    def __getitem__(self, shape: tuple[int, ...]) -> Any:
        def launch(*args: Any) -> None:
            assert shape[1] == 1
            for block in range(shape[0]):
                _block.value = block
                self.compiled(*args)

        return launch


def _jit(function: Any, device: bool = False) -> Any:
    return njit(boundscheck=True)(function) if device else _Kernel(function)


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    return module


def install() -> None:
    """Stand in for ``numba.cuda`` from now on."""
    stand_in = _module(
        "cuda",
        jit=_jit,
        grid=grid,
        popc=popc,
        clz=clz,
        syncthreads=syncthreads,
        threadIdx=_module("threadIdx", x=0),
        shared=_module("shared", array=array),
        atomic=_module("atomic", add=add, or_=or_, min=least, max=most),
    )
    numba.cuda = sys.modules["numba.cuda"] = stand_in  # or else an import of the module would put it back
    from gcodec.kernels.cuda import grid as threads

    threads.set_threads(1)
