"""NVRTC, NVIDIA's compiler of CUDA C++, through ctypes. Every CUDA build of torch brings it.

What it makes of ``source/`` is code for one architecture, a *cubin*, and is kept on disk (docs/caches.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import Unsupported
from .compiled import kept_on_disk

SOURCE = Path(__file__).parent / "source"
#: Kernels take their arguments as ``__grid_constant__``, and lanes of a warp may run apart; both came with 7.0.
LEAST_CAPABILITY = (7, 0)
_SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_PATTERN = "nvrtc64_*_0.dll" if sys.platform == "win32" else "libnvrtc.so.*"
_BUILTINS = "nvrtc-builtins64_*.dll" if sys.platform == "win32" else "libnvrtc-builtins.so.*"


def cubin_of(file: str, capability: tuple[int, int], driver_version: int) -> bytes:
    """Return the code of a file of ``source/`` for an architecture, from disk if it was compiled before.

    Args:
        file: Name of the file.
        capability: Compute capability of the device.
        driver_version: The latest version of CUDA that the driver knows, as it says it: 1000 major + 10 minor.

    Raises:
        Unsupported: There is no NVRTC that the driver could follow, or it refuses the device or the source.
    """
    texts = sources()
    own = ".".join(map(str, capability))
    if capability < LEAST_CAPABILITY:
        raise Unsupported(f"the kernels run on CUDA devices of compute capability 7.0 or later; this one's is {own}")
    library, version = newest_library(driver_version // 1000, capability)
    architecture = architecture_for(library, capability)
    if architecture is None:
        raise Unsupported(
            f"NVRTC {'.'.join(map(str, version))} compiles nothing for CUDA devices of compute capability {own}, which "
            "this one has: install a build of torch for a version of CUDA that does, or its nvidia-cuda-nvrtc"
        )
    target = f"{file} {architecture} NVRTC {version} {sorted(texts.items())}"
    return kept_on_disk(Path(file).stem, "cubin", target, lambda: compile_cubin(library, file, architecture, texts))


def sources() -> dict[str, str]:
    """Return the files of ``source/`` by their names."""
    return {path.name: path.read_text() for path in sorted(SOURCE.glob("*.cu*"))}


def compile_cubin(
    library: Any, file: str, architecture: tuple[int, int], texts: dict[str, str], *options: str
) -> bytes:
    """Return the code of a file for an architecture.

    Args:
        library: NVRTC.
        file: Name of the file.
        architecture: The architecture, as :func:`architecture_for` returns it.
        texts: What the file and those that it includes hold, by their names.
        options: Further options of the compiler.

    Raises:
        Unsupported: The compiler refuses the source.
    """
    own = f"--gpu-architecture=sm_{architecture[0]}{architecture[1]}"
    return compile_file(library, file, texts, (own, *options), "CUBIN")


def compile_file(library: Any, file: str, texts: dict[str, str], options: Sequence[str], product: str) -> bytes:
    """Return what NVRTC makes of a file with these options: its ``"CUBIN"``, or its ``"PTX"``.

    Raises:
        Unsupported: The compiler refuses the source.
    """
    program = ctypes.c_void_p()
    # NVRTC opens no files: what the source includes is handed over beside it, by name.
    headers = [name for name in texts if name != file]
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
    contents = (ctypes.c_char_p * len(headers))(*[texts[name].encode() for name in headers])
    text = ctypes.c_char_p(texts[file].encode())
    _call(library, "nvrtcCreateProgram", ctypes.byref(program), text, file.encode(), len(headers), contents, names)
    try:
        given = ("--std=c++17", *options)
        arguments = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
        try:
            _call(library, "nvrtcCompileProgram", program, len(given), arguments)
        except Unsupported as error:
            raise Unsupported(f"{error}: {_read(library, 'ProgramLog', program).decode(errors='replace')}") from None
        return _read(library, product, program)
    finally:
        _call(library, "nvrtcDestroyProgram", ctypes.byref(program))


def _read(library: Any, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _call(library, f"nvrtcGet{what}Size", program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    _call(library, f"nvrtcGet{what}", program, data)
    return data.raw


def _call(library: Any, name: str, *arguments: Any) -> None:
    code = getattr(library, name)(*arguments)
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise Unsupported(f"{name}: {library.nvrtcGetErrorString(code).decode(errors='replace')}")


def architecture_for(library: Any, capability: tuple[int, int]) -> tuple[int, int] | None:
    """Return the latest architecture that NVRTC compiles for whose code a device runs; None if there is none.

    Code for one architecture runs on devices of the same major version and of the same minor version or a later one. So
    devices that are younger than an NVRTC run what it makes for the first of their kind.

    Args:
        capability: Compute capability of the device.
    """
    number = ctypes.c_int()
    _call(library, "nvrtcGetNumSupportedArchs", ctypes.byref(number))
    known = (ctypes.c_int * number.value)()
    _call(library, "nvrtcGetSupportedArchs", known)
    # 90 stands for 9.0, and 120 for 12.0.
    found = [divmod(architecture, 10) for architecture in known]
    return max((own for own in found if own[0] == capability[0] and own <= capability), default=None)


@cache
def newest_library(most: int, capability: tuple[int, int] | None = None) -> tuple[Any, tuple[int, int]]:
    """Return the latest NVRTC whose major version is at most this one, and its version.

    Args:
        most: The latest major version of CUDA that the driver knows.
        capability: Compute capability of a device: one that compiles for it comes before a later one that does not.

    Raises:
        Unsupported: There is none.
    """
    found = [(version, library) for library, version in _libraries() if version[0] <= most]
    if not found:
        raise Unsupported(
            f"NVRTC of CUDA {most} or earlier is not here, which compiles the kernels for the CUDA device: "
            f"install torch's CUDA build, or 'pip install nvidia-cuda-nvrtc{'-cu12' if most == 12 else ''}'"
        )
    # One that compiles for the device comes before all that do not, and of these the latest.
    version, library = max(
        found, key=lambda one: (capability is None or architecture_for(one[1], capability) is not None, one[0])
    )
    return library, version


def _libraries() -> Iterator[tuple[Any, tuple[int, int]]]:
    """Yield all libraries that are NVRTC, and their versions: those of wheels, and what the system finds by name."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    names = [str(path) for folder in folders for path in sorted(folder.glob(f"*/*/{_PATTERN}"))]
    for name in (*names, *_SONAMES):
        with contextlib.suppress(OSError, AttributeError, Unsupported):
            yield load(name)


def load(name: str) -> tuple[Any, tuple[int, int]]:
    """Return the NVRTC of a file, or the one that the system finds by a name, and its version.

    The library with its built-in functions, which it loads by name when it compiles, is loaded before from the same
    folder: that of NVRTC 13.0's wheel does not find the one beside it.

    Raises:
        OSError: It cannot be loaded.
        AttributeError: It is another library.
        Unsupported: It cannot tell its version.
    """
    for beside in sorted(Path(name).parent.glob(_BUILTINS)) if Path(name).name != name else ():
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(beside))
    library = ctypes.CDLL(name)
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return library, (major.value, minor.value)
