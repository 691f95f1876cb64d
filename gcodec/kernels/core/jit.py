"""Decorators that compile kernels, so that the flags are the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any

from numba import njit, typeof
from numba.extending import overload, typeof_impl

from ...compiling import fork_between_kernels, notice_compiling
from ...errors import GcodecError
from .kernel_cache import INNER, cached
from .kernel_compiler import COMPILED_AS_PART
from .numba_private import CALLED_BY_KERNELS, NOT_FOR_C, UNCOUNTED, called_by_kernels, config, uninterrupted

if config.DISABLE_JIT:
    # Kernels call intrinsics, LLVM's own instructions, which Python cannot.
    raise GcodecError(
        "gcodec's kernels run only compiled: unset NUMBA_DISABLE_JIT (disable_jit in .numba_config.yaml); "
        "CONTRIBUTING.md tells how to debug a kernel"
    )

notice_compiling()
fork_between_kernels()


@cache
def _sources() -> str:
    """Return a digest of all files of kernels; no kernel depends on those of CUDA."""
    folder = Path(__file__).parents[1]
    files = sorted(file for file in folder.rglob("*.py") if file.parent != folder / "cuda")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile with the GIL released, cached on disk, without fast-math (integers decide bytes), and without counting
    references: kernels allocate nothing."""
    return _compiled(function, **UNCOUNTED)


def allocating(function: Callable[..., Any]) -> Any:
    """Compile one of the few kernels that make arrays for themselves: those that plan, once for an array of values."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a step of other kernels, for LLVM to put into these wherever they call it.

    numba's own way, ``inline="always"``, copies the step into each caller before it looks at types, which takes several
    times as long as to compile it once.
    """
    return _compiled(function, forceinline=True, **UNCOUNTED)


def chosen_by_types(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator of a function that returns another function's steps, given the types of its arguments.

    Kernels that call the other function get these steps.
    """

    def decorate(choose: Callable[..., Any]) -> Any:
        vars(function)["chosen_by"] = choose  # where the digest of a kernel's source finds it
        # numba compiles the steps by themselves, too.
        part: Any = {**NOT_FOR_C, **CALLED_BY_KERNELS, **COMPILED_AS_PART}
        return overload(function, jit_options=part, inline="always")(choose)

    return decorate


class Kernel:
    """A function that numba compiles. Its dispatcher, which takes half a millisecond, is made when it is needed: of
    some four hundred kernels, most processes call twenty.

    Args:
        options: Those of ``njit``.
        make: Makes the dispatcher.

    Attributes:
        dispatcher: numba's dispatcher of the function.
    """

    dispatcher: Any

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], make: Callable[[], Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self.targetoptions, self._make = function, {**options, "nopython": True}, make

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)

    def __getattr__(self, name: str) -> Any:
        if name == "dispatcher":  # of several threads, the first is heard; a lock might be held where a process forks
            return vars(self).setdefault(name, self._make())
        if name.startswith("__"):  # of protocols that others look for
            raise AttributeError(name)
        return getattr(self.dispatcher, name)


@typeof_impl.register(Kernel)
def _type_of_kernel(kernel: Kernel, context: Any) -> Any:
    """Return the type of a kernel that another kernel calls."""
    return typeof(kernel.dispatcher)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    # "numpy": a division by 0 is infinite or NaN; by Python's model each would be tested, to raise. NUMBA_BOUNDSCHECK
    # is heard, whatever is said here.
    options |= {"nogil": True, "boundscheck": False, "error_model": "numpy", **NOT_FOR_C}

    def decorate(by_numba: bool) -> Any:
        return njit(cache=by_numba, **options)(function)

    def decorate_inner(by_numba: bool) -> Any:
        return njit(cache=by_numba, **options, **CALLED_BY_KERNELS, **COMPILED_AS_PART)(function)

    # Compiled as what Python calls, or as a part of other kernels, which nearly all kernels are one of and few are
    # both. So the second one is made only when a kernel asks for it.
    def make() -> Any:
        dispatcher = uninterrupted(cached(decorate, _sources))
        return called_by_kernels(dispatcher, lambda: cached(decorate_inner, _sources, INNER))

    return Kernel(function, options, make)
