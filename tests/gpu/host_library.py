"""The CUDA C++ kernels as a library for the host (``host_kernels.cpp``), and a memory whose launches run them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcodec.kernels.cuda.native import NativeKernel
from gcodec.kernels.cuda.nvrtc import SOURCE
from tests.gpu.cuda_memory import HostMemory

#: Names by which compilers of C++ are called; the first that is there is used.
COMPILERS = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
#: What a device does otherwise than the host stops the process: it faults where a vector lies at an address that is no
#: multiple of its size, and shifts by the width of a number or more give 0 there.
TRAPS = ("-fsanitize=alignment,shift,integer-divide-by-zero", "-fsanitize-undefined-trap-on-error")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "--param=asan-stack=0")


def compiler() -> str:
    """Return a compiler of C++; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, filter(None, COMPILERS))), None)
    if found is None:
        pytest.skip("no C++ compiler is here to compile the CUDA kernels for the host")
    return found


@cache
def build(*options: str) -> Any:
    """Return the library, compiled with these options; with :data:`TRAPS` if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host_kernels.so"
        command = [compiler(), "-O1", "-g1", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-Wall",
                   "-Wextra", "-Werror", "-Wno-unknown-pragmas", *(options or TRAPS), f"-I{SOURCE}", "-o", str(file),
                   str(Path(__file__).with_name("host_kernels.cpp"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(file))


class HostThreads(HostMemory):
    """:class:`HostMemory` with a library of kernels of its own."""

    def __init__(self, library: Any, names: Any) -> None:
        super().__init__(names)
        self.library = library


def run(library: Any, kernel: NativeKernel, blocks: int, args: Any, order: int) -> None:
    """Run a kernel of a library on arrays of the host's; blocks and threads take turns in rising order (0), in falling
    order (1), or in one that is drawn by the number."""
    data = _packed(args)
    size = getattr(library, f"{kernel.name}_on_host")(data, blocks, order)
    assert size == len(data), "arguments are declared otherwise than they are packed"


def _packed(args: Any) -> bytes:
    """Return a kernel's arguments as a launch packs them, of arrays of the host's."""
    from gcodec.kernels.cuda.launch_arguments import Flat, GpuArray, add_arguments, layout

    def seen(arg: Any) -> Any:
        if isinstance(arg, np.ndarray):
            return GpuArray(None, arg.__array_interface__["data"][0], arg.dtype, arg.shape)
        return type(arg)(*map(seen, arg)) if isinstance(arg, tuple) and not isinstance(arg, Flat) else arg

    kinds: list[Any] = []
    numbers: list[Any] = []
    add_arguments([seen(arg) for arg in args], kinds, numbers)
    return layout(tuple(kinds)).pack(*numbers)
