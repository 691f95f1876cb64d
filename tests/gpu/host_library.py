"""The CUDA C++ kernels as a library for the host (``host_kernels.cpp``), and a memory whose launches run them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from gcodec.kernels.cuda.native import NativeKernel
from gcodec.kernels.cuda.nvrtc import SOURCE
from tests.gpu.cuda_memory import HostMemory
from tests.support.paths import ROOT

#: Names by which compilers of C++ are called; the first that is there is used.
COMPILERS = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
#: What a device does otherwise than the host stops the process: it faults where a vector lies at an address that is no
#: multiple of its size, and shifts by the width of a number or more give 0 there.
TRAPS = ("-fsanitize=alignment,shift,integer-divide-by-zero", "-fsanitize-undefined-trap-on-error")
#: Where libraries are kept that have been compiled; ``make clean`` removes it.
LIBRARIES = ROOT / ".cache" / "host-kernels"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "--param=asan-stack=0")


def compiler() -> str:
    """Return a compiler of C++; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, filter(None, COMPILERS))), None)
    if found is None:
        pytest.skip("no C++ compiler is here to compile the CUDA kernels for the host")
    return found


@cache
def build(*options: str) -> Any:
    """Return the library, compiled with these options; with :data:`TRAPS` if there are none.

    Compiling takes seconds, so that a library is kept for the next process and the next run.
    """
    here = Path(__file__).parent
    command = [
        *("-O1", "-g1", "-std=c++17", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
        *(options or TRAPS),
        f"-I{SOURCE}",
        str(here / "host_kernels.cpp"),
    ]
    return library_of(command, [*here.glob("*.cpp"), *here.glob("*.h"), *SOURCE.iterdir()])


def library_of(options: list[str], sources: Iterable[Path], text: str = "", mode: int = ctypes.DEFAULT_MODE) -> Any:
    """Return the library that a compiler of C++ makes with these options, unless it is there from another time.

    Args:
        options: Options, with the file that is compiled, ``-`` for the text.
        sources: All files that it reads.
        text: What is compiled in a file's place.
        mode: Whether other libraries see its functions, as ``ctypes.CDLL`` takes it.
    """
    command = [compiler(), "-shared", "-fPIC", *options]
    kept = LIBRARIES / f"{_made_of(command, sources, text)}.so"
    if kept.exists():
        return ctypes.CDLL(str(kept), mode)
    with contextlib.suppress(OSError):  # a checkout that cannot be written to keeps nothing
        LIBRARIES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=LIBRARIES if os.access(LIBRARIES, os.W_OK) else None) as folder:
        file = Path(folder) / kept.name
        done = subprocess.run([*command, "-o", str(file)], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with contextlib.suppress(OSError):
            file = file.replace(kept)  # whole, whoever else compiles the same
        return ctypes.CDLL(str(file), mode)


def _made_of(command: list[str], sources: Iterable[Path], text: str) -> str:
    """Return a hash of all that a library is made of: the command, its compiler, the machine, and all sources."""
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(repr((command, version, platform.machine(), text)).encode())
    for path in sorted(sources):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


class HostThreads(HostMemory):
    """:class:`HostMemory` with a library of kernels of its own."""

    def __init__(self, library: Any, names: Any) -> None:
        super().__init__(names)
        self.library = library

    def standing_for(self, names: Mapping[str, str]) -> Self:
        """Return a memory of the same kernels whose arrays stand for other types. Launches go on in number, so that
        each kernel has its threads in all orders."""
        here = copy(self)
        here.names, here.tables, here.waited = names, {}, 0
        return here


def run(library: Any, kernel: NativeKernel, blocks: int, args: Any, order: int) -> None:
    """Run a kernel of a library on arrays of the host's; blocks and threads take turns in rising order (0), in falling
    order (1), or in one that is drawn by the number."""
    data = packed(args)
    size = getattr(library, f"{kernel.name}_on_host")(data, blocks, order)
    assert size == len(data), "arguments are declared otherwise than they are packed"


def packed(args: Any) -> bytes:
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
