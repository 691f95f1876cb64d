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
from ..kernels.sample.count_both import weigh_both_heads
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
_MAX_POOLED_ROWS = 8  #: blocks of arrays whose memory is kept
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


class RowMemory:
    """Memory for what is counted and decided of each block of an array; of small arrays it is taken from the pool.

    Args:
        n_rows: Number of blocks.
        n_bins: Bins of a histogram.
        by_block: False if there are no histograms of heads relative to each block's mean.
        by_stream: Likewise of heads relative to each sub-stream's.

    Attributes:
        counts: What is counted, for the kernels.
        choice: int64[n_rows], the codebook of each block.
    """

    __slots__ = ("_key", "choice", "counts")

    def __init__(self, n_rows: int, n_bins: int, by_block: bool = True, by_stream: bool = True) -> None:
        histograms = [np.empty((n_rows if wanted else 0, n_bins), np.uint32) for wanted in (by_block, by_stream)]
        self._key, self.choice = (n_rows, n_bins), np.empty(n_rows, np.int64)
        self.counts = count.SampleCounts(np.empty(n_rows, np.int64), *histograms)

    @classmethod
    def take(cls, n_rows: int, n_bins: int, by_block: bool, by_stream: bool) -> RowMemory:
        """Return memory of the pool, or new memory where an array is long; arguments as for the class."""
        if n_rows > _MAX_POOLED_ROWS:
            return cls(n_rows, n_bins, by_block, by_stream)
        memory: RowMemory = acquire((n_rows, n_bins), lambda: cls(n_rows, n_bins))
        return memory

    def close(self) -> None:
        """Give the memory back; what it holds is not to be used any more."""
        if len(self.choice) <= _MAX_POOLED_ROWS:
            release(self._key, self)


class Sample(NamedTuple):
    """Counts of some sub-streams of every ``step``-th block; of a sub-stream of zeros one value is counted.

    Attributes:
        bases: int64[n_rows], mean head of what was counted of each block.
        by_block: uint32[n_rows, n_bins], histograms of heads relative to ``bases``.
        by_stream: uint32[n_rows, n_bins], histograms of heads relative to each sub-stream's mean.
        every: One piece in so many was counted of each block.
        step: One block in so many was counted.
        rows: The memory that holds this.
    """

    bases: np.ndarray
    by_block: np.ndarray
    by_stream: np.ndarray
    every: int
    step: int
    rows: RowMemory | None = None

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


@lru_cache(1024)
def _shares_of(n_values: int, fixed: bool, thorough: bool) -> tuple[int, tuple[int, int]]:
    """Return of how many pieces one is sampled for the final plan, and what :func:`candidate_sample` returns."""
    if thorough:
        every = min(every_of(n_values), _THOROUGH_EVERY)
    else:
        every = max(every_of(n_values), _FIXED_EVERY if fixed and n_values >= _FIXED_MIN_VALUES else 1)
    return every, candidate_sample(n_values, every, _THOROUGH_SHARE if thorough else 1)


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
    form = _form_of(dtype, n_levels, block, stream_len, every, step, references)
    n_rows = -(-len(values) // (block * step))
    rows = RowMemory.take(n_rows, form.n_bins, references is not True, references is not False)
    kernel_columns, counts = for_kernels(columns), rows.counts

    def work(begin: int, stop: int) -> None:
        scratch = acquire(form.key, form.scratch)
        _count_sample(form.types, values, levels_if_any, form.spec, kernel_columns, scratch, begin, stop, counts)
        release(form.key, scratch)

    levels_if_any = levels if n_levels > 1 else None
    if threads == 1:
        work(0, n_rows)
    else:
        run_batches(work, n_rows, threads, max(_MIN_BATCH, -(-n_rows // (_PARTS * threads))))
    return Sample(*counts, every, step, rows)


_count_sample, _weigh_sample = Specialized(count.count_sample), Specialized(count.weigh_sample)
_weigh_both_heads = Specialized(weigh_both_heads)


class _SampleForm:
    """Holds what a sample depends on, beside the values: one object for each combination; arguments as of
    :func:`take_sample`."""

    def __init__(
        self, dtype: DType, n_levels: int, block: int, stream_len: int, every: int, step: int, references: bool | None
    ) -> None:
        window, center = window_of(n_levels)
        infinity = np.uint64(dtype.infinity if n_levels > 1 else 0)  # only levels ask what is finite
        piece, wanted = max(stream_len, count.PIECE), (references is not True, references is not False)
        head = dtype.head_shift, dtype.head_mask
        self.spec = SampleSpec(
            block, stream_len, piece, every, step, *head, window, center, infinity, *wanted, dtype.fine_bits
        )
        self.n_bins = n_bins_of(n_levels)
        self.key, self.types = ("sample", dtype.bits, block, stream_len, self.n_bins), (dtype.bits, n_levels > 1)
        self._scratch = dtype, block, stream_len, self.n_bins
        self._weights: dict[int, code_costs.Weights] = {}
        self._streams = stream_len.bit_length() - 1, block // every // stream_len

    def weights(self, unused_bits: int) -> code_costs.Weights:
        """Return the numbers by which a sample is weighed, where so many low bits are zero in all values."""
        weights = self._weights.get(unused_bits)
        if weights is None:
            dtype = self._scratch[0]
            weights = self._weights[unused_bits] = code_costs.Weights(
                *self._streams, dtype.head_bits, dtype.tail_bits - unused_bits, STREAM_BITS, EMPTY_BITS, REFERENCE_BITS
            )
        return weights

    def scratch(self) -> SampleScratch:
        """Return uninitialized scratch for one thread."""
        return sample_scratch(*self._scratch)


_form_of = lru_cache(256)(_SampleForm)


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
    if n_values <= 1 << STREAM_LOG2 or (dtype.bits != 16 and not rows and not smallest):
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


class SamplePlanner:
    """Samples one array, and compares candidates by what their samples take.

    Args:
        source: The array.
        references: True if sub-streams may have references of their own.
        fixed: True if codebooks are fixed; sub-streams have references then if they may.
        thorough: True to count half of all values, and more to compare candidates, where size is all that counts.
        special: True if many values are infinite or NaN: one base for all blocks is tried then.

    Attributes:
        every: The number of pieces of each block of which one is counted for the final plan.
    """

    __slots__ = ("_candidate_sample", "every", "fixed", "references", "source", "special", "thorough")

    def __init__(
        self, source: SampleSource, references: bool, fixed: bool, thorough: bool = False, special: bool = False
    ) -> None:
        self.source, self.references, self.fixed, self.thorough, self.special = (
            source, references, fixed, thorough, special
        )
        self.every, self._candidate_sample = _shares_of(len(source.values), fixed, thorough)

    def candidate(
        self, dtype: DType, stream_log2: int, columns: tuple[ColumnReferences, ...], only: bool = False
    ) -> Candidate:
        """Return one way to code the array, judged by a small sample; ``only`` if there is no other to compare it
        with."""
        if only and self.fixed:  # nothing is left to decide: count at once what the plan needs
            sample = take_sample(self.source, dtype, 1 << stream_log2, columns, 1, self.every, self.references)
            return Candidate(dtype, stream_log2, columns, sample, self.references, 0.0)
        source = self.source
        values, levels, n_levels, block, _, unused_bits = source
        every, step = self._candidate_sample
        form = _form_of(dtype, n_levels, block, 1 << stream_log2, every, step, None)
        n_rows = -(-len(values) // (block * step))
        rows = RowMemory.take(n_rows, form.n_bins, True, True)
        scratch = acquire(form.key, form.scratch)
        plain, relative = _weigh_sample(
            form.types,
            values,
            levels if n_levels > 1 else None,
            form.spec,
            form.weights(unused_bits),
            for_kernels(columns),
            scratch,
            n_rows,
            rows.counts,
        )
        release(form.key, scratch)
        references = self.references and (self.fixed or relative < plain)
        sample = Sample(*rows.counts, every, step, rows)
        return Candidate(dtype, stream_log2, columns, sample, references, relative if references else plain)

    def with_both_heads(self, usual: DType, wide: DType, stream_log2: int) -> tuple[Candidate, Candidate]:
        """Return the ways to code an array of float32 without column references with the usual head and with the wide
        one, which are counted together."""
        (every, step), (values, _, _, block, _, unused_bits), stream_len = (
            self._candidate_sample, self.source, 1 << stream_log2
        )
        forms = [_form_of(dtype, 1, block, stream_len, every, step, None) for dtype in (usual, wide)]
        n_rows, n_bins = -(-len(values) // (block * step)), forms[0].n_bins
        rows = [RowMemory.take(n_rows, n_bins, True, True) for _ in forms]
        scratch = acquire(forms[0].key, forms[0].scratch)
        asked = [part for form in forms for part in (form.spec, form.weights(unused_bits))]
        bits = _weigh_both_heads(None, values, *asked, scratch, rows[0].counts, rows[1].counts)
        release(forms[0].key, scratch)
        found = []
        for dtype, memory, (plain, relative) in zip((usual, wide), rows, bits, strict=True):
            references, sample = self.references and relative < plain, Sample(*memory.counts, every, step, memory)
            found.append(Candidate(dtype, stream_log2, (), sample, references, relative if references else plain))
        return found[0], found[1]

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
        sample, source = candidate.sample, self.source
        form = _form_of(
            candidate.dtype, source.n_levels, source.block, 1 << candidate.stream_log2, sample.every, sample.step, None
        )
        mask, weights = blocks[:: sample.step], form.weights(source.unused_bits)
        return code_costs.weigh_references(sample.by_block, sample.by_stream, mask, weights)[candidate.references]

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
