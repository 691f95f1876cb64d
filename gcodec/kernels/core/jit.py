"""Decorators that compile kernels, so that the flags are the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

# numba's cache on disk notices a change in a kernel's own file only, not in the files of the functions it calls.
# Stamping every kernel with the sources of all of them, those in subfolders too, makes an edit, or an upgrade of the
# package, recompile what depends on it.
_SHARED = sorted(Path(__file__).parents[1].rglob("*.py"))


@cache
def _stamp(path: str) -> str:
    """Digest of the file a kernel is in and of all files whose functions it may call."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in (*_SHARED, Path(path)))).hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile with the GIL released, cached on disk, without fast-math (integers decide bytes), and without counting
    references, for which numba has no public option: kernels allocate nothing, and counting, by atomic instructions for
    every array of every call that is not inlined, takes as long as small kernels do."""
    return _compiled(function, _nrt=False)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile one of the few kernels that make arrays: those that plan, once for an array of values."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a step of one other kernel into that kernel, which saves compiling all that it calls twice."""
    return _compiled(function, _nrt=False, inline="always")


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = njit(nogil=True, cache=True, boundscheck=False, error_model="numpy", **options)(function)
    if hasattr(dispatcher, "_cache"):  # absent under NUMBA_DISABLE_JIT
        # In numba's version, not in its stamp of the source: an index of another version is not unpickled, and one that
        # names a bundle that has been renamed since cannot be.
        dispatcher._cache._cache_file._version += _stamp(function.__code__.co_filename)
    return dispatcher
