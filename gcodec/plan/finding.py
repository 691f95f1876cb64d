"""Find what differs from a base, or from zero, block by block, and count what the codes of that are made from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..base_hash import BaseHash
from ..format.change_codebook import VARIANTS
from ..kernels.block.sparse_encode import CLASS_MARGIN, find_differences, gather_differences
from ..kernels.block.sparse_types import BaseWords, Counts, Differences, Search, SparseSizes
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.changes import MAX_CATEGORIES
from ..memory import sparse_scratch_for

#: Shares of values that differ up to which a sparse frame is looked at. With a base, other kinds of blocks are larger
#: by a tenth at most beyond, but take a third of the time. So they do without one, where zeros take a code of one bit,
#: which is about as short as can be: they are larger by 0.4 percent at most, by 0.8 of one-byte types.
MAX_SHARE_OF_BASE, MAX_SHARE_OF_ZERO = 0.5, 0.4
_RUN_VALUES = 1 << 20  #: of blocks that are searched together
_NO_BASE = np.zeros(0, np.uint8)

_find_differences, _gather_differences = Specialized(find_differences), Specialized(gather_differences)


def differing_values(values: np.ndarray, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which values differ from others, and these values.

    Args:
        values: uintW[n], up to 2**32 values.
        base: uintW[n].

    Returns:
        (uint32[n_different], ascending; uintW[n_different]).
    """
    places, found = np.empty(len(values) + 3, np.uint32), np.empty(len(values), values.dtype)
    types = values.dtype, values.flags.aligned, base.flags.aligned
    count = _gather_differences(types, values, base, places, found)
    return places[:count].copy(), found[:count].copy()


class FoundBlocks(NamedTuple):
    """Says what differs in blocks that follow each other.

    Attributes:
        first: Number of the first block.
        differences: What differs in them.
    """

    first: int
    differences: Differences

    @property
    def end(self) -> int:
        """Number of the block behind the last."""
        return self.first + len(self.differences.ends)


class Finding:
    """Finds what differs in each block of an array, and what it takes to code that.

    Args:
        values: uintW[n].
        base: uintW[n], or None.
        thresholds: Where classes of the base's magnitude begin, but the first.
        sizes: Sizes of blocks and sub-streams.
        wanted: bool[n_blocks], the blocks to look at, however much differs in them; all if None.

    Attributes:
        n_blocks: Number of blocks.
        hashing: Takes the base's hash; None without one, or if not all blocks are looked at.
    """

    def __init__(
        self,
        values: np.ndarray,
        base: np.ndarray | None,
        thresholds: tuple[int, ...],
        sizes: SparseSizes,
        wanted: np.ndarray | None = None,
    ) -> None:
        self._values, self._base, self._wanted, self._sizes = values, base, wanted, sizes
        self._variant = next(number for number in VARIANTS if number > len(thresholds))
        kind, bits = values.dtype.type, 8 * values.itemsize
        self._ends = (*map(kind, thresholds), *[kind(1 << bits - 1)] * (self._variant - len(thresholds)))
        self._types = kind, self._variant, values.flags.aligned, None if base is None else base.flags.aligned
        self._n_kinds, self._n_steps = (1, 0) if base is None else (3, 2 * bits + 1)
        self._counts: list[Counts] = []  # of each batch of blocks
        self._found: list[FoundBlocks] = []
        self.n_blocks = -(-len(values) >> sizes.block_log2)
        share = MAX_SHARE_OF_ZERO if base is None else MAX_SHARE_OF_BASE
        self._limit = int(share * len(values)) if wanted is None else len(values)
        self.hashing = None if base is None or wanted is not None else BaseHash(base, 1 << sizes.block_log2)

    def find(self, begin: int, end: int) -> None:
        """Find what differs in blocks ``begin ... end - 1``, on this thread."""
        block_log2, stream_log2 = self._sizes
        per_class = min(1 << stream_log2, len(self._values)) + CLASS_MARGIN
        scratch = sparse_scratch_for(self._values.dtype, self._variant * per_class)
        n_blocks = max(_RUN_VALUES >> block_log2, 1)
        n_values = min(n_blocks << block_log2, len(self._values))
        room = Differences(
            np.empty(min(n_values, self._limit + 1), np.uint32),
            np.empty(min(n_values, self._limit + 1), self._values.dtype),
            np.empty((n_blocks << block_log2 - stream_log2, self._variant), np.uint32),
            np.empty(n_blocks, np.int64),
        )
        counts = Counts(
            np.zeros(MAX_CATEGORIES, np.int64),
            np.zeros(self._n_steps, np.int64),
            np.zeros((self._variant, self._n_kinds * MAX_CATEGORIES), np.int64),
        )
        self._counts.append(counts)
        for first, stop in self._runs(begin, end, n_blocks):
            part = slice(first << block_log2, stop << block_log2)
            values, base = self._values[part], None if self._base is None else self._base[part]
            sums = np.empty(0 if self.hashing is None else stop - first, np.uint64)
            data = _NO_BASE if self.hashing is None else self.hashing.data
            words = BaseWords(data, part.start * values.itemsize >> 2, sums)
            of_run = room._replace(ends=room.ends[: stop - first])
            search = Search(self._ends, self._sizes, scratch, of_run, counts, self._limit + 1)
            n_changes = _find_differences(self._types, values, base, words, search)
            if n_changes > self._limit:
                return
            if self.hashing is not None:
                self.hashing.put(first, sums.tolist())
            n_streams = -(-len(values) >> stream_log2)
            parts = room.gaps[:n_changes], room.steps[:n_changes], room.counts[:n_streams], of_run.ends
            self._found.append(FoundBlocks(first, Differences(*(part.copy() for part in parts))))

    def _runs(self, begin: int, end: int, n_blocks: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks to look at among ``begin ... end - 1``, up to ``n_blocks`` at a time: (first, end)."""
        while begin < end:
            stop = min(begin + n_blocks, end)
            if self._wanted is not None:
                part = self._wanted[begin:stop]
                skipped = int(part.argmax()) if part.any() else len(part)
                begin += skipped
                others = np.flatnonzero(~part[skipped:])
                stop = begin + int(others[0]) if len(others) else stop
            if begin < stop:
                yield begin, stop
            begin = stop

    def found(self) -> list[FoundBlocks] | None:
        """Return what differs in the blocks that were looked at, in their order; None if it is too much."""
        n_found = sum(len(found.differences.ends) for found in self._found)
        n_changes = sum(len(found.differences.gaps) for found in self._found)
        n_wanted = self.n_blocks if self._wanted is None else int(np.count_nonzero(self._wanted))
        return None if n_found < n_wanted or n_changes > self._limit else sorted(self._found, key=lambda one: one.first)

    def counts(self) -> Counts:
        """Return how often each symbol occurs in what was found, but for numbers of changes."""
        return Counts(*(np.sum(part, axis=0) for part in zip(*self._counts, strict=True)))
