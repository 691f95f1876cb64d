"""Looking at an array before coding it: a count of a sample of its sub-streams, and what coding it would take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences, for_kernels
from ..kernels.core.bundles import SampleScratch, SampleSpec
from ..kernels.core.specialized import Specialized
from ..kernels.sample import code_costs, count
from ..memory import acquire, release
from ..threads import run_batches
from .codebooks import n_bins_of, window_of
from .prediction import Rows

STREAM_LOG2 = 8  #: log2 of the values per sub-stream, where nothing speaks for another
#: Of arrays up to so many values, one in so many pieces is looked at.
_SHARES, _LEAST_SHARE = ((1, 1 << 15), (2, 1 << 16), (4, 1 << 17), (8, 1 << 21), (16, 1 << 24)), 32
_FIXED_SHARE, _FIXED_LEAST = 8, 1 << 15  #: likewise where codebooks are given: of arrays of so many values and more
REFERENCE_BITS = 5  #: what a reference per sub-stream costs, about
STREAM_BITS = 8.5  #: what the length of a sub-stream and its last byte's spare bits cost, about
_EMPTY_BITS = 4  #: what one costs that is all zero
MAX_SURVEYED = 96  #: blocks whose distributions are compared when codebooks are formed
#: So many values are enough to choose between views, and of each block that they are of this share at least: from few
#: a block's mean cannot be told from its sub-streams'.
_LOOKED_AT, _LOOK_SHARE = 1 << 15, 8
_SHORTER_GAIN = 0.0005  #: what sub-streams of half the usual length, which are slower, have to save


class Survey(NamedTuple):
    """What was counted of every ``step``-th block of an array: ``bases`` (int64[n_rows]) and histograms
    (uint32[n_rows, n_bins]) of heads relative to them and to each sub-stream's mean; ``every``: which share of
    sub-streams was looked at. Of a sub-stream of zeros one value is counted."""

    bases: np.ndarray
    by_block: np.ndarray
    by_stream: np.ndarray
    every: int
    step: int

    def counts(self, references: bool) -> np.ndarray:
        """The histograms that count where sub-streams have references of their own, or have none."""
        return self.by_stream if references else self.by_block


def share_of(n_values: int) -> int:
    """Of how many pieces of an array one is looked at."""
    for share, most in _SHARES:
        if n_values <= most:
            return share
    return _LEAST_SHARE


def take_survey(
    values: np.ndarray,
    levels: np.ndarray,
    dtype: DType,
    n_levels: int,
    block: int,
    stream: int,
    threads: int,
    columns: tuple[ColumnReferences, ...] = (),
    step: int = 1,
    every: int | None = None,
    references: bool | None = None,
) -> Survey:
    """Count one in ``every`` pieces (default :func:`share_of`) of every ``step``-th block: heads relative to each
    sub-stream's mean (``references``), to each block's (False), or both (None); other arguments as in
    :func:`make_plan`. The result does not depend on ``threads``."""
    every = every or share_of(len(values))
    look, n_bins = _look_for(dtype, n_levels, block, stream, every, step, references)
    n_rows = -(-len(values) // (block * step))
    bases = np.empty(n_rows, np.int64)
    by_block = np.zeros((n_rows, n_bins if look.by_block else 0), np.uint32)
    by_stream = np.zeros((n_rows, n_bins if look.by_stream else 0), np.uint32)
    found, counts = for_kernels(columns), count.SampleCounts(bases, by_block, by_stream)
    some_levels, kind = levels if n_levels > 1 else None, ("survey", dtype.bits, block, stream, n_bins)

    def work(begin: int, stop: int) -> None:
        scratch = acquire(kind, lambda: _scratch(dtype, block, stream, n_bins))
        _count((dtype.bits, n_levels > 1), values, some_levels, look, found, scratch, begin, stop, counts)
        release(kind, scratch)

    run_batches(work, n_rows, threads)
    return Survey(bases, by_block, by_stream, every, step)


_count = Specialized(count.count_sample)


@lru_cache(256)
def _look_for(
    dtype: DType, n_levels: int, block: int, stream: int, every: int, step: int, references: bool | None
) -> tuple[SampleSpec, int]:
    """What :func:`take_survey` looks at, and the bins of a histogram."""
    window, center = window_of(n_levels)
    infinity = np.uint64(dtype.infinity if n_levels > 1 else 0)  # only levels ask what is finite
    piece, wanted = max(stream, count.PIECE), (references is not True, references is not False)
    head = dtype.head_shift, dtype.head_mask
    look = SampleSpec(block, stream, piece, every, step, *head, window, center, infinity, *wanted)
    return look, n_bins_of(n_levels)


def _scratch(dtype: DType, block: int, stream: int, n_bins: int) -> SampleScratch:
    n_streams = block // stream + 2
    return SampleScratch(
        np.empty(max(stream, count.PIECE), np.int8),
        np.empty(block + max(stream, count.PIECE), dtype.uint),
        np.empty(n_streams, np.int64),
        np.empty(n_streams, np.int64),
        np.empty(n_streams, np.bool_),
        np.empty(stream, np.uint16),
        np.empty((count.BOTH, n_bins), np.uint32),
        np.zeros(4 * count.PART, np.uint16),
        *np.empty((2, count.PART), np.uint32),
    )


def stream_lengths(dtype: DType, rows: Sequence[Rows], n_values: int) -> list[int]:
    """log2 of the values per sub-stream that are worth a try. Shorter sub-streams cost bits for their lengths, but
    where they are whole rows each has its own reference, and rows of zeros vanish."""
    if n_values <= 1 << STREAM_LOG2:
        return [STREAM_LOG2]
    lengths = [STREAM_LOG2 + 1, STREAM_LOG2] if dtype.bits == 16 else [STREAM_LOG2]
    for log2 in (STREAM_LOG2 - 1, STREAM_LOG2 - 2):
        whole = [tensor for tensor in rows if tensor.n_columns % (1 << log2) == 0 and tensor.n_columns % (2 << log2)]
        if sum(tensor.stop - tensor.start for tensor in whole) > n_values // 8:
            lengths.append(log2)
    return lengths


class View(NamedTuple):
    """One way to code an array: ``dtype``, with the usual head or a wide one; ``stream_log2``: values per sub-stream;
    ``columns``: column references; ``seen``: a count of some blocks; ``references``: whether sub-streams have
    references of their own; ``bits`` that what was counted takes, 0 if nobody asks."""

    dtype: DType
    stream_log2: int
    columns: tuple[ColumnReferences, ...]
    seen: Survey
    references: bool
    bits: float


def _priced(view: View) -> float:
    """What a view takes, and what it costs besides that its sub-streams are short."""
    return view.bits * (1 + _SHORTER_GAIN * max(STREAM_LOG2 - view.stream_log2, 0))


def _costs(
    dtype: DType, seen: Survey, stream_log2: int, block: int, some: np.ndarray | None
) -> tuple[float, float]:
    """What the blocks marked in ``some`` (bool[n_rows], None for all) take, in bits, where heads are relative to each
    block's mean, and where to each sub-stream's."""
    n_rows, plain, relative, n_heads, n_tails = code_costs.compare_references(seen.by_block, seen.by_stream, some)
    n_streams = n_heads >> stream_log2
    n_empty = max(n_rows * (block // seen.every >> stream_log2) - n_streams, 0)
    others = STREAM_BITS * n_streams + _EMPTY_BITS * n_empty + dtype.tail_bits * n_tails
    return plain / 256 + others, relative / 256 + REFERENCE_BITS * n_streams + others


class Looking(NamedTuple):
    """What all views of an array have in common. ``values``: uintW[n]; ``levels``: uint8[n] or empty; ``block``: values
    per block; ``allowed``: sub-streams may have references of their own; ``fixed``: they have them, if allowed."""

    values: np.ndarray
    levels: np.ndarray
    n_levels: int
    block: int
    allowed: bool
    fixed: bool
    threads: int

    @property
    def share(self) -> int:
        """Of how many pieces of each block one is counted in the end."""
        n_values = len(self.values)
        return max(share_of(n_values), _FIXED_SHARE if self.fixed and n_values >= _FIXED_LEAST else 1)

    def view(
        self, dtype: DType, stream_log2: int, columns: tuple[ColumnReferences, ...], alone: bool = False
    ) -> View:
        """One way, from a count of some blocks. ``alone``: there is no other to compare it with."""
        if alone and self.fixed:
            seen = self._survey(dtype, stream_log2, columns, 1, self.share, self.allowed)
            return View(dtype, stream_log2, columns, seen, self.allowed, 0.0)
        every = min(self.share, _LOOK_SHARE)
        step = max(-(-len(self.values) // (every * _LOOKED_AT)), 1)
        seen = self._survey(dtype, stream_log2, columns, step, every)
        plain, relative = _costs(dtype, seen, stream_log2, self.block, None)
        references = self.allowed and (self.fixed or relative < plain)
        return View(dtype, stream_log2, columns, seen, references, relative if references else plain)

    def whole(self, view: View) -> Survey:
        """The count of all blocks for one way: of all their values where a sample shows nothing but zeros."""
        dtype, stream_log2, columns, seen, references, _ = view
        if seen.step > 1 or seen.every != self.share:
            seen = self._survey(dtype, stream_log2, columns, 1, self.share, references)
        if seen.every > 1 and not code_costs.has_others(seen.counts(references)):
            seen = self._survey(dtype, stream_log2, columns, 1, 1, references)
        return seen

    def bits(self, view: View, left: np.ndarray) -> float:
        """What is counted in a view takes of some blocks alone: ``left``, bool[n_blocks]."""
        some = left[:: view.seen.step]
        return _costs(view.dtype, view.seen, view.stream_log2, self.block, some)[view.references]

    def best(self, dtype: DType, lengths: Sequence[int], columns: tuple[ColumnReferences, ...]) -> View:
        """The cheapest, over these lengths of sub-streams and with column references or without."""
        if len(lengths) == 1 and not columns:
            return self.view(dtype, lengths[0], columns, alone=True)
        views = [self.view(dtype, length, columns) for length in lengths]
        found = min(views, key=lambda one: (_priced(one), one.stream_log2))
        if columns:
            found = min(found, self.view(dtype, found.stream_log2, ()), key=lambda one: one.bits)
        return found

    def _survey(
        self,
        dtype: DType,
        stream_log2: int,
        columns: tuple[ColumnReferences, ...],
        step: int,
        every: int,
        references: bool | None = None,
    ) -> Survey:
        values, levels, n_levels, block, *_, threads = self
        stream = 1 << stream_log2
        return take_survey(values, levels, dtype, n_levels, block, stream, threads, columns, step, every, references)
