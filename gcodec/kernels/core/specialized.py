"""Calling a kernel again and again with arguments of the same types."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from .numba_private import entry_point


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
        """Call the kernel.

        Args:
            key: Stands for the types of ``args``: the same key means the same types.
            args: The kernel's arguments.
        """
        try:
            call = self._compiled[key]
        except KeyError:
            call = self._compiled[key] = entry_point(self._kernel, args)
        return call(*args)
