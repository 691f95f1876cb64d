"""The device code as libraries for the host, one for each file of CUDA C++, and a memory whose launches run them."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from gcodec.dtypes import DType
from gcodec.kernels.cuda import nvrtc
from gcodec.kernels.cuda.native import NativeKernel
from tests.gpu.host_library import LIBRARIES, HostThreads, library_of, packed
from tests.gpu.ptx.syntax import read
from tests.gpu.ptx.translate import Kernel, translate
from tests.support.paths import ROOT

HERE = Path(__file__).parent
#: Where ``make check-gpu`` puts NVIDIA's compilers, each version into a folder of its own.
NVIDIA = ROOT / ".cache" / "nvidia"


@cache
def nvrtcs() -> dict[str, Path]:
    """Return all NVRTC that ``make check-gpu`` has installed, by their versions, such as ``"13.5"``."""
    found = {}
    for path in sorted(NVIDIA.glob("**/libnvrtc.so.*")):
        major, minor = nvrtc.load(str(path))[1]
        found[f"{major}.{minor}"] = path
    return found


@cache
def ptx_of(version: str, file: str, architecture: int, text: str | None = None) -> str:
    """Return the PTX that an NVRTC makes of a file for an architecture such as 90, with places in the source; ``text``
    is compiled in place of the file."""
    sources = nvrtc.sources()
    if text is not None:
        sources[file] = text
    options = (f"--gpu-architecture=compute_{architecture}", "-lineinfo")
    digest = hashlib.sha256(repr((version, file, options, sorted(sources.items()))).encode())
    kept = LIBRARIES / f"{digest.hexdigest()}.ptx"
    if kept.exists():
        return kept.read_text()
    library, _ = nvrtc.load(str(nvrtcs()[version]))
    ptx = nvrtc.compile_file(library, file, sources, options, "PTX").rstrip(b"\0").decode()
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    own = kept.with_suffix(f".{id(ptx)}")
    own.write_text(ptx)
    own.replace(kept)  # whole, whoever else compiles the same
    return ptx


@cache
def device() -> Any:
    """Return the device that all device code of this process runs on (``runtime.cpp``)."""
    options = ["-O2", "-g1", "-std=c++17", "-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror"]
    sources = [HERE / "runtime.cpp", HERE / "device.h", HERE.parent / "host_threads.h"]
    library = library_of([*options, str(sources[0])], sources, mode=ctypes.RTLD_GLOBAL)
    library.take_faults.restype = ctypes.c_char_p
    library.mark.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool)
    return library


class Program:
    """Kernels of some PTX."""

    def __init__(self, ptx: str) -> None:
        device()  # whose functions it calls
        text, kernels = translate(read(ptx))
        self.text, self.kernels = text, {kernel.name: kernel for kernel in kernels}

    @cached_property
    def library(self) -> Any:
        options = ["-O1", "-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-w", f"-I{HERE}"]
        return library_of([*options, "-x", "c++", "-"], [HERE / "device.h"], self.text)

    def launch(self, kernel: str, blocks: int, arguments: bytes, arrays: Sequence[tuple[int, int]], order: int) -> str:
        """Run a kernel and return the faults that were found, a line each.

        Args:
            kernel: Its name.
            blocks: Number of blocks of the grid.
            arguments: Its arguments as a launch packs them.
            arrays: The beginnings and ends of all memory that it may touch.
            order: In which order threads take turns: rising (0), falling (1), or drawn by the number.
        """
        own: Kernel = self.kernels[kernel]
        assert own.argument_bytes == len(arguments), "arguments are declared otherwise than they are packed"
        room = np.empty(len(arguments) + 16, np.uint8)
        begin = -room.ctypes.data % 16
        room[begin : begin + len(arguments)] = np.frombuffer(arguments, np.uint8)
        regions = np.array(arrays, np.uint64).reshape(-1, 2)
        device().run_kernel(
            getattr(self.library, kernel),
            ctypes.c_void_p(room.ctypes.data + begin),
            len(arguments),
            own.shared_bytes,
            blocks,
            order,
            ctypes.c_void_p(regions.ctypes.data),
            len(regions),
        )
        return device().take_faults().decode()


@cache
def _program(ptx: str) -> Program:
    return Program(ptx)


class DeviceCode:
    """All kernels, as an NVRTC compiles them for an architecture. ``change`` takes the name of a file and its PTX, and
    returns PTX."""

    def __init__(self, version: str, architecture: int, change: Callable[[str, str], str] | None = None) -> None:
        self.version, self.architecture, self.change = version, architecture, change

    def program(self, file: str) -> Program:
        """Return the kernels of a file."""
        ptx = ptx_of(self.version, file, self.architecture)
        return _program(self.change(file, ptx) if self.change else ptx)


class WatchedMemory(HostThreads):
    """A memory whose kernels are device code, which checks what they touch. A launch whose kernel is at fault fails."""

    def __init__(self, code: DeviceCode, seed: int = 0) -> None:
        super().__init__(None, {"uint16": "bfloat16", "uint32": "float32"})
        self.code, self.seed = code, seed
        self.spans: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def empty(self, n: int, dtype: str) -> np.ndarray:
        array = super().empty(n, dtype)
        _nothing_is_in(array)
        return array

    def new(self, kinds: Iterable[tuple[DType, tuple[int, ...]]]) -> list[np.ndarray]:
        arrays = super().new(kinds)
        for array in arrays:
            _nothing_is_in(array)
        return arrays

    def put(self, array: np.ndarray, target: np.ndarray) -> None:
        super().put(array, target)
        _mark(target, False)

    def copy(self, source: np.ndarray, target: np.ndarray) -> None:
        super().copy(source, target)
        _mark(target, False)

    def span(self, tensors: Sequence[np.ndarray], dtype: str) -> tuple[np.ndarray, list[int]]:
        array, begins = super().span(tensors, dtype)
        self.spans[_extent(array)] = [_extent(tensor) for tensor in tensors]
        return array, begins

    def launch(self, kernel: NativeKernel, blocks: int, *args: Any) -> None:
        self.launched += 1
        self.arguments = args
        order = Random(f"{self.seed} {self.launched}").choice((0, 1, 2 + self.launched))
        arrays = [part for array in _arrays(args) for part in self.spans.get(_extent(array), [_extent(array)])]
        program = self.code.program(kernel.file)
        faults = program.launch(kernel.name, blocks, packed(args), arrays, order)
        assert not faults, f"{kernel.name}, NVRTC {self.code.version}, compute_{self.code.architecture}:\n{faults}"


def _extent(array: np.ndarray) -> tuple[int, int]:
    begin = array.__array_interface__["data"][0]
    return begin, begin + array.nbytes


def _arrays(args: Any) -> Iterator[np.ndarray]:
    """Yield all arrays among the arguments of a launch."""
    for arg in args:
        if isinstance(arg, np.ndarray):
            yield arg
        elif isinstance(arg, tuple):
            yield from _arrays(arg)


def _mark(array: np.ndarray, unwritten: bool) -> None:
    begin, end = _extent(array)
    device().mark(begin, end - begin, unwritten)


def _nothing_is_in(array: np.ndarray) -> None:
    """Take note that an array holds nothing, until its memory is given back, and then holds what others put there."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    begin, end = _extent(owner)
    device().mark(begin, end - begin, True)
    weakref.finalize(owner, device().mark, begin, end - begin, False)
