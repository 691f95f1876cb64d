"""Sampling an array before coding it: what a sample of its sub-streams takes in each of several ways to code it.

A :class:`Candidate` is one way: a length of sub-streams, with column references or without, with a usual or a wide
head. The :class:`SamplePlanner` counts a small sample for each, and a larger one for the candidate that is chosen.
"""

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
from ..kernels.sample.compared_heads import N_FOUND
from ..memory import acquire, release
from ..threads import run_batches
from .codebooks import n_bins_of, window_of
from .prediction import Rows

_MORE_LOG2 = 2  #: how much longer sub-streams may be where size is all that counts
STREAM_LOG2 = 8  #: log2 of the values per sub-stream, where nothing speaks for another
#: One piece in so many (first) is sampled of arrays of up to so many values (second); of larger ones one in _MAX_EVERY.
_EVERY_BY_SIZE, _MAX_EVERY = ((1, 1 << 15), (2, 1 << 16), (4, 1 << 17), (8, 1 << 21), (16, 1 << 24)), 32
MAX_COUNTED = _EVERY_BY_SIZE[0][1]  #: values of an array up to which all are counted
_FIXED_EVERY, _FIXED_MIN_VALUES = 8, 1 << 15  #: likewise where codebooks are fixed, of arrays of so many values or more
REFERENCE_BITS = 5  #: what a reference per sub-stream costs, about
STREAM_BITS = 8.5  #: what the length of a sub-stream and its last byte's spare bits cost, about
EMPTY_BITS = 4  #: what a sub-stream costs that is all zero
#: So many values are enough to choose between candidates, and of each sampled block this share at least: from few
#: values a block's mean cannot be told from its sub-streams'.
_CANDIDATE_VALUES, _MAX_CANDIDATE_EVERY = 1 << 15, 8
_THOROUGH_EVERY, _THOROUGH_SHARE = 2, 16  #: one piece in so many, and how many more values to compare candidates
_MAX_SIGNED_EVERY = 8  #: pieces of which one is sampled where the sign is in the head
MAX_FEW_HEADS = 6  #: different heads, zero among them, up to which all values of an array are counted
#: A thread samples at least so many blocks at a time, because handing over fewer takes as long as sampling them; and
#: where there are more, the work is cut into so many batches for each thread.
_MIN_BATCH, _PARTS = 64, 4
_SHORTER_GAIN = 0.0005  #: what sub-streams of half the usual length, which are slower, have to save


class SampleSource(NamedTuple):
    """An array as every sample of it sees it.

    Attributes:
        values: uintW[n_values].
        levels: uint8[n_values], or empty where there is one level.
        n_levels: Number of levels.
        block: Values per block.
        threads: Threads to count on.
        unused_bits: Low bits that every level drops, which take nothing.
    """

    values: np.ndarray
    levels: np.ndarray
    n_levels: int
    block: int
    threads: int = 1
    unused_bits: int = 0


class Sample(NamedTuple):
    """Counts of some sub-streams of every ``step``-th block; of a sub-stream of zeros one value is counted.

    Attributes:
        bases: int64[n_rows], mean head of what was counted of each block.
        by_block: uint32[n_rows, n_bins], histograms of heads relative to ``bases``.
        by_stream: uint32[n_rows, n_bins], histograms of heads relative to each sub-stream's mean.
        every: One piece in so many was counted of each block.
        step: One block in so many was counted.
    """

    bases: np.ndarray
    by_block: np.ndarray
    by_stream: np.ndarray
    every: int
    step: int

    def counts(self, references: bool) -> np.ndarray:
        """Return the histograms that matter where sub-streams have references of their own, or have none."""
        return self.by_stream if references else self.by_block


def has_few_heads(counts: np.ndarray) -> bool:
    """Return True if histograms count so few heads that codes for others, which a sample may have missed,
    cost more than counting all values. ``counts``: uint32[n_rows, n_bins]."""
    return bool(np.count_nonzero(counts[0]) <= MAX_FEW_HEADS and code_costs.has_few_bins(counts, MAX_FEW_HEADS))


def on_one_base(sample: Sample, dtype: DType, n_levels: int) -> Sample:
    """Return a sample whose heads are relative to one base in all blocks, if all together take less so than relative to
    each block's mean.

    Where values of two scales are mixed, as -0 and weights, the mean of a block says how many there are of each. Then
    heads that are the same would be other symbols in each block.

    Args:
        sample: Counts of heads relative to each block's mean.
        dtype: The value type.
        n_levels: Number of levels.
    """
    used = sample.bases >= 0
    if not used.any():
        return sample
    base = int(np.sort(sample.bases[used])[np.count_nonzero(used) // 2])
    shifts = np.where(used, sample.bases - base, 0)
    window, _ = window_of(n_levels)
    moved = sample.by_block.copy()
    rows = moved[:, 2:].reshape(len(moved), n_levels, window)
    for shift in np.unique(shifts[shifts != 0]).tolist():
        some = shifts == shift
        rolled = np.roll(rows[some], shift, axis=2)
        if window < 1 << dtype.head_bits:  # else the last head is next to the first, modulo the number of heads
            beyond = slice(0, shift) if shift > 0 else slice(shift, None)
            moved[some, 1] += rolled[:, :, beyond].sum(axis=(1, 2), dtype=np.uint32)
            rolled[:, :, beyond] = 0
        rows[some] = rolled
    sums = [counts.sum(axis=0, dtype=np.uint32, keepdims=True) for counts in (sample.by_block, moved)]
    _, by_mean, by_one, _, _ = code_costs.compare_references(*sums, None, dtype.head_bits)
    if by_one >= by_mean:
        return sample
    return sample._replace(bases=np.where(used, base, sample.bases), by_block=moved)


def every_of(n_values: int) -> int:
    """Return the number of pieces of an array of which one is sampled."""
    for every, max_values in _EVERY_BY_SIZE:
        if n_values <= max_values:
            return every
    return _MAX_EVERY


def candidate_sample(n_values: int, every: int, share: int = 1) -> tuple[int, int]:
    """Return of how many pieces of a block one is sampled to compare candidates, and of how many blocks one is.

    Args:
        n_values: Number of values of the array.
        every: The number of pieces of which one is sampled for the final plan.
        share: How many times as many values as usual are sampled.
    """
    every = min(every, _MAX_CANDIDATE_EVERY)
    return every, max(-(-n_values // (every * share * _CANDIDATE_VALUES)), 1)


def take_sample(
    source: SampleSource,
    dtype: DType,
    stream_len: int,
    columns: tuple[ColumnReferences, ...] = (),
    step: int = 1,
    every: int | None = None,
    references: bool | None = None,
) -> Sample:
    """Count the heads of a sample of an array.

    Args:
        source: The array.
        dtype: Its type, which says where the head lies.
        stream_len: Values per sub-stream.
        columns: Column references that are taken off the heads.
        step: One block in so many is counted.
        every: One piece in so many is counted of each block, by default as :func:`every_of` says.
        references: True to count heads relative to each sub-stream's mean, False to each block's, None for both.

    Returns:
        The counts, which do not depend on the number of threads.
    """
    values, levels, n_levels, block, threads, _ = source
    every = every or every_of(len(values))
    spec, n_bins = spec_of(dtype, n_levels, block, stream_len, every, step, references)
    n_rows = -(-len(values) // (block * step))
    bases = np.empty(n_rows, np.int64)
    by_block = np.zeros((n_rows, n_bins if spec.by_block else 0), np.uint32)
    by_stream = np.zeros((n_rows, n_bins if spec.by_stream else 0), np.uint32)
    kernel_columns, counts = for_kernels(columns), count.SampleCounts(bases, by_block, by_stream)
    levels_if_any, kind = levels if n_levels > 1 else None, ("sample", dtype.bits, block, stream_len, n_bins)

    def work(begin: int, stop: int) -> None:
        scratch = acquire(kind, lambda: sample_scratch(dtype, block, stream_len, n_bins))
        _count_sample(
            (dtype.bits, n_levels > 1),
            values,
            levels_if_any,
            spec,
            kernel_columns,
            scratch,
            begin,
            stop,
            counts,
        )
        release(kind, scratch)

    run_batches(work, n_rows, threads, max(_MIN_BATCH, -(-n_rows // (_PARTS * threads))))
    return Sample(bases, by_block, by_stream, every, step)


_count_sample = Specialized(count.count_sample)


@lru_cache(256)
def spec_of(
    dtype: DType, n_levels: int, block: int, stream_len: int, every: int, step: int, references: bool | None
) -> tuple[SampleSpec, int]:
    """Return what :func:`take_sample` counts, and the number of bins of a histogram."""
    window, center = window_of(n_levels)
    infinity = np.uint64(dtype.infinity if n_levels > 1 else 0)  # only levels ask what is finite
    piece, wanted = max(stream_len, count.PIECE), (references is not True, references is not False)
    head = dtype.head_shift, dtype.head_mask
    spec = SampleSpec(
        block, stream_len, piece, every, step, *head, window, center, infinity, *wanted, dtype.fine_bits
    )
    return spec, n_bins_of(n_levels)


def sample_scratch(dtype: DType, block: int, stream_len: int, n_bins: int) -> SampleScratch:
    """Return uninitialized scratch for one thread."""
    n_streams = max(block // stream_len + 2, N_FOUND)
    return SampleScratch(
        np.empty(max(stream_len, count.PIECE), np.int8),
        np.empty(block + max(stream_len, count.PIECE), dtype.uint),
        np.empty(n_streams, np.int64),
        np.empty(n_streams, np.int64),
        np.empty(n_streams, np.bool_),
        np.empty(stream_len, np.uint16),
        np.empty((count.BOTH, n_bins), np.uint32),
        np.zeros(4 * count.PART, np.uint16),
        np.empty(count.PART, np.uint32),
        np.empty(count.PART, np.uint32),
        np.empty(2 * stream_len, np.uint8),
    )


def stream_lengths(dtype: DType, rows: Sequence[Rows], n_values: int, smallest: bool = False) -> list[int]:
    """Return log2 of the values per sub-stream that are worth a try.

    Shorter sub-streams cost bits for their lengths, but where they are whole rows each has its own reference, and rows
    of zeros vanish.

    Args:
        dtype: Type of the array.
        rows: Tensors in it whose rows are known.
        n_values: Number of values in it.
        smallest: True to try longer ones as well, of which fewer are decoded side by side.
    """
    if n_values <= 1 << STREAM_LOG2:
        return [STREAM_LOG2]
    longest = STREAM_LOG2 + (_MORE_LOG2 if smallest else 1 if dtype.bits == 16 else 0)
    lengths = list(range(longest, STREAM_LOG2 - 1, -1)) + ([STREAM_LOG2 - 1, STREAM_LOG2 - 2] if smallest else [])
    for log2 in (STREAM_LOG2 - 1, STREAM_LOG2 - 2):
        whole = [tensor for tensor in rows if tensor.n_columns % (1 << log2) == 0 and tensor.n_columns % (2 << log2)]
        if sum(tensor.stop - tensor.start for tensor in whole) > n_values // 8:
            lengths.append(log2)
    return lengths


class Candidate(NamedTuple):
    """A way to code an array, with what a sample of it takes so.

    Attributes:
        dtype: The value type, with the usual head or a wide one.
        stream_log2: log2 of the values per sub-stream.
        columns: Column references.
        sample: Counts of some blocks.
        references: True if sub-streams have references of their own.
        bits: What the sample takes when coded this way; 0 if there is nothing to compare it with.
    """

    dtype: DType
    stream_log2: int
    columns: tuple[ColumnReferences, ...]
    sample: Sample
    references: bool
    bits: float


def _price(candidate: Candidate) -> float:
    """Return the bits of a candidate, raised by what short sub-streams cost in speed."""
    return candidate.bits * (1 + _SHORTER_GAIN * max(STREAM_LOG2 - candidate.stream_log2, 0))


def _costs(
    dtype: DType, sample: Sample, stream_log2: int, source: SampleSource, mask: np.ndarray | None
) -> tuple[float, float]:
    """Return the bits that sampled blocks take where heads are relative to each block's mean, and where to each
    sub-stream's.

    Args:
        dtype: The value type.
        sample: Both kinds of counts.
        stream_log2: log2 of the values per sub-stream.
        source: The array.
        mask: bool[n_rows], True for the blocks that are meant; None for all.
    """
    n_rows, plain, relative, n_heads, n_tails = code_costs.compare_references(
        sample.by_block, sample.by_stream, mask, dtype.head_bits
    )
    n_streams = n_heads >> stream_log2
    n_empty = max(n_rows * (source.block // sample.every >> stream_log2) - n_streams, 0)
    besides = STREAM_BITS * n_streams + EMPTY_BITS * n_empty + (dtype.tail_bits - source.unused_bits) * n_tails
    return plain / 256 + besides, relative / 256 + REFERENCE_BITS * n_streams + besides


class SamplePlanner(NamedTuple):
    """Samples one array, and compares candidates by what their samples take.

    Attributes:
        source: The array.
        references: True if sub-streams may have references of their own.
        fixed: True if codebooks are fixed; sub-streams have references then if they may.
        thorough: True to count half of all values, and more to compare candidates, where size is all that counts.
        special: True if many values are infinite or NaN: one base for all blocks is tried then.
    """

    source: SampleSource
    references: bool
    fixed: bool
    thorough: bool = False
    special: bool = False

    @property
    def every(self) -> int:
        """The number of pieces of each block of which one is counted for the final plan."""
        n_values = len(self.source.values)
        if self.thorough:
            return min(every_of(n_values), _THOROUGH_EVERY)
        return max(every_of(n_values), _FIXED_EVERY if self.fixed and n_values >= _FIXED_MIN_VALUES else 1)

    def candidate(
        self, dtype: DType, stream_log2: int, columns: tuple[ColumnReferences, ...], only: bool = False
    ) -> Candidate:
        """Return one way to code the array, judged by a small sample; ``only`` if there is no other to compare it
        with."""
        if only and self.fixed:  # nothing is left to decide: count at once what the plan needs
            sample = take_sample(self.source, dtype, 1 << stream_log2, columns, 1, self.every, self.references)
            return Candidate(dtype, stream_log2, columns, sample, self.references, 0.0)
        share = _THOROUGH_SHARE if self.thorough else 1
        every, step = candidate_sample(len(self.source.values), self.every, share)
        sample = take_sample(self.source, dtype, 1 << stream_log2, columns, step, every)
        plain, relative = _costs(dtype, sample, stream_log2, self.source, None)
        references = self.references and (self.fixed or relative < plain)
        return Candidate(dtype, stream_log2, columns, sample, references, relative if references else plain)

    def full_sample(self, candidate: Candidate) -> Sample:
        """Return counts of every block for one candidate; of all values where a sample has nothing but zeros."""
        dtype, stream_log2, columns, sample, references, _ = candidate
        # A block whose sample met values of one sign only would have no codes for the other.
        # With mantissa bits in the head too, symbols that a sample misses would be many.
        max_every = 1 if dtype.fine_bits > 1 else _MAX_SIGNED_EVERY if dtype.fine_bits else self.every
        every = min(self.every, max_every)
        if sample.step > 1 or sample.every != every:
            sample = take_sample(self.source, dtype, 1 << stream_log2, columns, 1, every, references)
        if sample.every > 1 and not code_costs.has_others(sample.counts(references)):
            return self.whole_sample(candidate)
        return sample

    def whole_sample(self, candidate: Candidate) -> Sample:
        """Return counts of all values for one candidate."""
        dtype, stream_log2, columns, _, references, _ = candidate
        return take_sample(self.source, dtype, 1 << stream_log2, columns, 1, 1, references)

    def bits_of(self, candidate: Candidate, blocks: np.ndarray) -> float:
        """Return what a candidate's sample takes of some blocks alone: bool[n_blocks], True for these."""
        sample = candidate.sample
        mask = blocks[:: sample.step]
        return _costs(candidate.dtype, sample, candidate.stream_log2, self.source, mask)[candidate.references]

    def best(self, dtype: DType, lengths: Sequence[int], columns: tuple[ColumnReferences, ...]) -> Candidate:
        """Return the cheapest candidate.

        Args:
            dtype: The value type, with the usual head or a wide one.
            lengths: log2 of the values per sub-stream that are tried, first of all with ``columns``.
            columns: Column references, which the best length is then tried without.
        """
        if len(lengths) == 1 and not columns:
            return self.candidate(dtype, lengths[0], columns, only=True)
        candidates = [self.candidate(dtype, length, columns) for length in lengths]
        best = min(candidates, key=lambda candidate: (_price(candidate), candidate.stream_log2))
        if columns:
            plain = self.candidate(dtype, best.stream_log2, ())
            best = min(best, plain, key=lambda candidate: candidate.bits)
        return best
