"""Calling a kernel again and again with arguments of the same types."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from .numba_private import entry_point


class Specialized(dict[Hashable, Callable[..., Any]]):
    """A kernel, called without numba's look at the type of every argument of every call: where bundles hold dozens
    of arrays, that takes longer than small work.

    ``kernel[key](*args)`` calls it; ``key`` stands for the types of ``args``: the same key means the same types.

    Arrays may be read-only, as kernels do not write to their inputs; otherwise each would be another type, for which
    all is compiled again.
    """

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self._kernel = kernel

    def __hash__(self) -> int:  # type: ignore[override]
        """Return a hash of the object, which is equal to no other: other tables know kernels by themselves."""
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __missing__(self, key: Hashable) -> Callable[..., Any]:
        """Return what makes the first call with arguments of these types, and finds the entry for those that follow."""

        # Two threads that come here at once find the same entry, and the second only replaces it by its like.
        def first(*args: Any) -> Any:
            call = self[key] = entry_point(self._kernel, args)
            return call(*args)

        return first

    def __call__(self, key: Hashable, *args: Any) -> Any:
        """Call the kernel; a function of its own, as others may ask for."""
        return self[key](*args)
