"""Calling a kernel again and again with arguments of the same types."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from numba import typeof, types


class Specialized:
    """A kernel, called without numba's look at the type of every argument of every call: where bundles hold dozens
    of arrays, that takes longer than small work.

    Arrays may be read-only, as kernels do not write to their inputs; otherwise each would be another type, for which
    all is compiled again.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, key: Hashable, *args: Any) -> Any:
        """Call it. ``key`` stands for the types of ``args``: the same key means the same types."""
        call = self._compiled.get(key)
        if call is None:
            call = self._compiled[key] = self._compile(args)
        return call(*args)

    def _compile(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        if not hasattr(self._kernel, "compile"):  # under NUMBA_DISABLE_JIT
            return self._kernel
        return self._kernel.compile(tuple(_writable(typeof(arg)) for arg in args))


def _writable(kind: Any) -> Any:
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind
