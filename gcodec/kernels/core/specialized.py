"""Calling a kernel again and again with arguments of the same types."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from .numba_private import entry_point, is_at_hand


class Specialized:
    """A kernel, called without numba's look at the type of every argument of every call: where bundles hold dozens
    of arrays, that takes longer than small work.

    Arrays may be read-only, as kernels do not write to their inputs; otherwise each would be another type, for which
    all is compiled again.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        self._absent: dict[Hashable, int] = {}  # how many types the kernel was compiled for when it was looked for

    def __call__(self, key: Hashable, *args: Any) -> Any:
        """Call the kernel.

        Args:
            key: Stands for the types of ``args``: the same key means the same types.
            args: The kernel's arguments.
        """
        call = self._compiled.get(key)
        if call is None:
            call = self._compiled[key] = entry_point(self._kernel, args)
        return call(*args)

    def is_at_hand(self, key: Hashable, *args: Any) -> bool:
        """Return whether a call with these arguments needs no compiling. What another process compiles after the first
        time that this is asked goes unnoticed."""
        if key in self._compiled:
            return True
        n_compiled = len(getattr(self._kernel, "overloads", ()))
        if self._absent.get(key) == n_compiled:
            return False
        if is_at_hand(self._kernel, args):
            return True
        self._absent[key] = n_compiled
        return False
