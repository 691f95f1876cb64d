"""Compiled kernels, kept on disk: what takes seconds to compile, another process reads in a millisecond.

It lies in the folders in which kernels for CPUs are kept, under the same rules (docs/caches.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numba

from ..core.cache_folders import lasting_folders, subfolder, temporary_folder
from ..core.numba_private import config

_cuda: Any = import_module("numba.cuda")  #: numba's own target, or the package numba-cuda's
_SOURCE = Path(__file__).parent
_MARK = b"gcodec-gpu-code"
_DECLARATION = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)")


def ptx_of(gpu_kernel: Any, signature: tuple[Any, ...], capability: tuple[int, int]) -> str:
    """Return the PTX of a kernel, from disk if it was compiled before.

    Args:
        gpu_kernel: The kernel.
        signature: numba's types of its arguments.
        capability: Compute capability of the device.
    """
    name = gpu_kernel.py_func.__name__

    def make() -> bytes:
        return str(_cuda.compile_ptx(gpu_kernel.py_func, signature, cc=capability)[0]).rstrip("\0").encode()

    return kept_on_disk(name, "ptx", f"{name} {signature} {capability}", make).decode()


def kept_on_disk(name: str, kind: str, target: str, make: Callable[[], bytes]) -> bytes:
    """Return compiled code from disk, or else what ``make`` compiles, which is then kept there.

    Args:
        name: What its file is called, before a digest.
        kind: The file's ending.
        target: All that the code depends on beside the sources of this package and numba's version.
        make: Compiles it.
    """
    file = f"{name}-{hashlib.sha256(target.encode()).hexdigest()[:24]}.{kind}"
    stamp = hashlib.sha256(f"{_stamp()} {target}".encode()).hexdigest().encode()
    code = _load(file, stamp)
    if code is None:
        code = make()
        _save(file, stamp, code)
    return code


def declaration(text: str) -> tuple[str, list[str]]:
    """Return the name of the kernel that PTX has, and the types of its arguments. Raises ValueError if there is none.
    """
    found = _DECLARATION.search(text)
    if found is None:
        raise ValueError("the PTX has no kernel")
    return found[1], re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", found[2])


@cache
def _stamp() -> str:
    """Return a digest of all that code depends on beside its kernel and the device: sources and versions."""
    sources = sorted(_SOURCE.parent.rglob("*.py"))
    versions = f"{numba.__version__} {getattr(_cuda, '__version__', '')} {_cuda.__file__}"
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources) + versions.encode()).hexdigest()


def _folders(make: bool) -> Iterator[Path]:
    """Yield the folders where code may be, the first choice first."""
    yield from lasting_folders(_SOURCE, str(config.CACHE_DIR or ""), _home())
    temporary = temporary_folder(make)
    if temporary is not None:
        yield temporary / subfolder(_SOURCE)


@cache
def _home() -> Path | None:
    """Return the user's folder for caches of compiled code; None of a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):
        return (Path(named) if named else Path.home() / ".cache") / "numba"
    return None


def _load(file: str, stamp: bytes) -> bytes | None:
    """Return what was saved under a stamp; None where there is nothing, or something else, or damage."""
    for folder in _folders(make=False):
        with contextlib.suppress(OSError, ValueError):
            mark, found, digest, code = (folder / file).read_bytes().split(b"\n", 3)
            if (mark, found, digest) == (_MARK, stamp, _digest(code)):
                return code
    return None


def _save(file: str, stamp: bytes, code: bytes) -> None:
    """Save code in the first folder that can be written, if there is one."""
    content = b"\n".join((_MARK, stamp, _digest(code), code))
    for folder in _folders(make=True):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as written:
                    written.write(content)
                Path(temporary).replace(folder / file)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
            return


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
