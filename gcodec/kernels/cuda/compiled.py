"""PTX of kernels, kept on disk: what numba compiles in seconds, another process reads in a millisecond.

It lies in the folders in which kernels for CPUs are kept, under the same rules (docs/caches.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numba

from ..core.cache_folders import lasting_folders, subfolder, temporary_folder
from ..core.numba_private import config

_cuda: Any = import_module("numba.cuda")  #: numba's own target, or the package numba-cuda's
_SOURCE = Path(__file__).parent
_MARK = b"gcodec-ptx"
_DECLARATION = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)")


def ptx_of(gpu_kernel: Any, signature: tuple[Any, ...], capability: tuple[int, int]) -> str:
    """Return the PTX of a kernel, from disk if it was compiled before.

    Args:
        gpu_kernel: The kernel.
        signature: numba's types of its arguments.
        capability: Compute capability of the device.
    """
    name = gpu_kernel.py_func.__name__
    target = f"{name} {signature} {capability}"
    file = f"{name}-{hashlib.sha256(target.encode()).hexdigest()[:24]}.ptx"
    stamp = hashlib.sha256(f"{_stamp()} {target}".encode()).hexdigest().encode()
    kept = _load(file, stamp)
    if kept is not None:
        return kept
    text = str(_cuda.compile_ptx(gpu_kernel.py_func, signature, cc=capability)[0]).rstrip("\0")
    _save(file, stamp, text)
    return text


def declaration(text: str) -> tuple[str, list[str]]:
    """Return the name of the kernel that PTX has, and the types of its arguments. Raises ValueError if there is none.
    """
    found = _DECLARATION.search(text)
    if found is None:
        raise ValueError("the PTX has no kernel")
    return found[1], re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", found[2])


@cache
def _stamp() -> str:
    """Return a digest of all that PTX depends on beside its kernel and the device: sources and versions."""
    sources = sorted(_SOURCE.parent.rglob("*.py"))
    versions = f"{numba.__version__} {getattr(_cuda, '__version__', '')} {_cuda.__file__}"
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources) + versions.encode()).hexdigest()


def _folders(make: bool) -> Iterator[Path]:
    """Yield the folders where PTX may be, the first choice first."""
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


def _load(file: str, stamp: bytes) -> str | None:
    """Return what was saved under a stamp; None where there is nothing, or something else, or damage."""
    for folder in _folders(make=False):
        with contextlib.suppress(OSError, ValueError):
            mark, found, digest, text = (folder / file).read_bytes().split(b"\n", 3)
            if (mark, found, digest) == (_MARK, stamp, _digest(text)):
                return text.decode()
    return None


def _save(file: str, stamp: bytes, text: str) -> None:
    """Save PTX in the first folder that can be written, if there is one."""
    data = text.encode()
    content = b"\n".join((_MARK, stamp, _digest(data), data))
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
