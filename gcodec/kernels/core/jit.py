"""Decorators that compile kernels, so that the flags are the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

from ...errors import GcodecError
from .numba_private import CALLED_BY_KERNELS, NOT_FOR_C, UNCOUNTED, called_by_kernels, config, with_stamp

if config.DISABLE_JIT:
    # Kernels call intrinsics, LLVM's own instructions, which Python cannot.
    raise GcodecError("gcodec's kernels run only compiled: unset NUMBA_DISABLE_JIT (disable_jit in .numba_config.yaml)")

# All that a kernel may be compiled from: an edit, or an upgrade of the package, recompiles what depends on it. Kernels
# of CUDA depend on the others, and no other on them.
_FOLDER = Path(__file__).parents[1]
_SHARED = sorted(file for file in _FOLDER.rglob("*.py") if file.parent != _FOLDER / "cuda")


@cache
def _shared_stamp() -> bytes:
    return hashlib.sha256(b"".join(file.read_bytes() for file in _SHARED)).digest()


@cache
def _stamp(path: str) -> str:
    """Return a digest of the file a kernel is in and of all files whose functions it may call."""
    return hashlib.sha256(_shared_stamp() + Path(path).read_bytes()).hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile with the GIL released, cached on disk, without fast-math (integers decide bytes), and without counting
    references: kernels allocate nothing."""
    return _compiled(function, **UNCOUNTED)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile one of the few kernels that make arrays for themselves: those that plan, once for an array of values."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a step of one other kernel into that kernel, which saves compiling all that it calls twice."""
    return _compiled(function, inline="always", **UNCOUNTED)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    path = function.__code__.co_filename
    stamp, folder = _stamp(path), Path(path).parent
    options |= {"nogil": True, "boundscheck": False, "error_model": "numpy", **NOT_FOR_C}

    def decorate(cached: bool) -> Any:
        return njit(cache=cached, **options)(function)

    def decorate_inner(cached: bool) -> Any:
        return njit(cache=cached, **options, **CALLED_BY_KERNELS)(function)

    return called_by_kernels(
        with_stamp(decorate, stamp, folder), lambda: with_stamp(decorate_inner, stamp, folder, "-inner")
    )
