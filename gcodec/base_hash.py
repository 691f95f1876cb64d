"""The hash by which a frame knows its base, and the base with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .kernels.core.checksum import partial_checksum
from .kernels.core.scalar import word_multiplier
from .kernels.core.specialized import Specialized
from .tensors import kernel_view
from .threads import run_batches


class BaseHash:
    """The hash by which a frame knows its base, taken part by part: when each is in the CPU's cache anyway.

    Args:
        base: uintW[n].
        part: Values of a part, a multiple of 4. Several threads may add parts.

    Attributes:
        data: uint8, the base.
    """

    def __init__(self, base: np.ndarray, part: int) -> None:
        self.data, self._n, self._part_bytes = kernel_view(base.view(np.uint8)), len(base), part * base.itemsize
        self._sums: dict[int, int] = {}

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return -(-len(self.data) // self._part_bytes)

    def add(self, begin: int, end: int) -> None:
        """Add parts ``begin ... end - 1``."""
        for k in range(begin, end):
            first, stop = k * self._part_bytes, min((k + 1) * self._part_bytes, len(self.data))
            word, n_words = first // 4, (stop - first) // 4
            self.put(k, [int(_partial_checksum(None, self.data, word, n_words))])

    def put(self, begin: int, sums: list[int]) -> None:
        """Add parts from ``begin`` on whose words were summed elsewhere, as ``kernels.core.checksum.partial_checksum``
        does."""
        self._sums.update(zip(range(begin, begin + len(sums)), sums, strict=True))

    def _rest(self) -> int:
        """Return what the bytes at the end of the base add that are less than a word."""
        n_words = len(self.data) // 4
        rest = self.data[4 * n_words :].tobytes()
        return int.from_bytes(rest, "little") * int(word_multiplier(n_words))

    def value(self) -> int:
        """Return the hash; parts that were not added yet are."""
        for k in range(self.n_parts):
            if k not in self._sums:
                self.add(k, k + 1)
        return (self._n + sum(self._sums.values()) + self._rest()) & _LOW_64


class BaseArray(NamedTuple):
    """Holds the array that a frame refers to.

    Attributes:
        values: uintW[n].
        hashing: Takes its hash, while blocks are decoded; None if it was taken before.
    """

    values: np.ndarray
    hashing: BaseHash | None


def hash_of(base: np.ndarray, threads: int = 1) -> int:
    """Return the hash by which a frame knows its base.

    Args:
        base: uintW[n].
        threads: Number of threads.
    """
    hashing = BaseHash(base, _HASHED_VALUES)
    run_batches(hashing.add, hashing.n_parts, threads, batch=4)
    return hashing.value()


_HASHED_VALUES = 1 << 17  #: of a part, where the base is hashed for itself
_LOW_64 = (1 << 64) - 1
_partial_checksum = Specialized(partial_checksum)
