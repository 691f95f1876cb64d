"""Sampling an array before coding it: what a sample of its sub-streams takes in each of several ways to code it.

A :class:`Candidate` is one way: a length of sub-streams, with column references or without, with a usual or a wide
head. The :class:`SamplePlanner` counts a small sample for each, and a larger one for the candidate that is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences, for_kernels
from ..kernels.core.bundles import SampleScratch, SampleSpec
from ..kernels.core.specialized import Specialized
from ..kernels.sample import code_costs, count, count_both
from ..kernels.sample.compared_heads import N_FOUND
from ..memory import acquire, release
from ..threads import run_batches
from .codebooks import n_bins_of, window_of
from .prediction import Rows
from .request import NO_LEVELS

_MORE_LOG2 = 2  #: how much longer sub-streams may be where size is all that counts
STREAM_LOG2 = 8  #: log2 of the values per sub-stream, where nothing speaks for another
#: One piece in so many (first) is sampled of arrays of up to so many values (second); of larger ones one in _MAX_EVERY.
_EVERY_BY_SIZE, _MAX_EVERY = ((1, 1 << 15), (2, 1 << 16), (4, 1 << 17), (8, 1 << 21), (16, 1 << 24)), 32
#: Likewise of types of so many bits or more, whose heads are a small part of a value, in arrays of more values.
_LARGE_BITS, _LARGE_EVERY, _LARGE_VALUES = 32, 16, 1 << 19
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
_MAX_POOLED_ROWS = 16  #: blocks of arrays whose memory is kept
MEDIAN = -1  #: stands for the median of blocks' means, as a base
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


class Sample:
    """Counts of some sub-streams of every ``step``-th block, and what is decided of each of these blocks; of a
    sub-stream of zeros one value is counted.

    Args:
        n_bins: Bins of a histogram.
        every: One piece in so many is counted of each block.
        step: One block in so many is counted.
        by_block: False if there are no histograms of heads relative to each block's mean.
        by_stream: Likewise of heads relative to each sub-stream's.

    Attributes:
        bases: int64[n_rows], mean head of what was counted of each block.
        by_block: uint32[n_rows, n_bins], histograms of heads relative to ``bases``.
        by_stream: uint32[n_rows, n_bins], histograms of heads relative to each sub-stream's mean.
        counts: These three, for the kernels.
        choice: int64[n_rows], takes the codebook of each block.
    """

    __slots__ = ("bases", "by_block", "by_stream", "choice", "counts", "every", "step")

    def __init__(
        self, n_rows: int, n_bins: int, every: int, step: int, by_block: bool = True, by_stream: bool = True
    ) -> None:
        histograms = [np.empty((n_rows if wanted else 0, n_bins), np.uint32) for wanted in (by_block, by_stream)]
        self.counts = count.SampleCounts(np.empty(n_rows, np.int64), *histograms)
        self.bases, self.by_block, self.by_stream = self.counts
        self.choice, self.every, self.step = np.empty(n_rows, np.int64), every, step

    def counts_of(self, references: bool) -> np.ndarray:
        """Return the histograms that matter where sub-streams have references of their own, or have none."""
        return self.by_stream if references else self.by_block

    def moved(self, bases: np.ndarray, by_block: np.ndarray) -> Sample:
        """Return a sample with other bases, and the histograms of heads relative to these."""
        n_rows, n_bins = by_block.shape
        sample = Sample(n_rows, n_bins, self.every, self.step, False, False)
        sample.bases, sample.by_block, sample.by_stream = bases, by_block, self.by_stream
        return sample


def has_few_heads(counts: np.ndarray) -> bool:
    """Return True if histograms count so few heads that codes for others, which a sample may have missed,
    cost more than counting all values. ``counts``: uint32[n_rows, n_bins]."""
    return bool(np.count_nonzero(counts[0]) <= MAX_FEW_HEADS and _has_few_bins(None, counts, MAX_FEW_HEADS))


def on_one_base(sample: Sample, dtype: DType, n_levels: int, base: int = MEDIAN) -> Sample:
    """Return a sample whose heads are relative to one base in all blocks, if all together take less so than relative to
    each block's mean.

    Where values of two scales are mixed, as -0 and weights, the mean of a block says how many there are of each. Then
    heads that are the same would be other symbols in each block.

    Args:
        sample: Counts of heads relative to each block's mean.
        base: The base, taken as well if all take as much; or MEDIAN, that of the blocks' means.
    """
    used = sample.bases >= 0
    if not used.any():
        return sample
    is_given = base != MEDIAN
    if not is_given:
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
    if by_one > by_mean or (by_one == by_mean and not is_given):
        return sample
    return sample.moved(np.where(used, base, sample.bases), moved)


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
    n_rows = -(-len(values) // (block * step))
    form = sample_form(dtype, n_levels, block, stream_len, SampleExtent(every, step, n_rows), references)
    sample = form.new_sample()
    kernel_columns, counts = for_kernels(columns), sample.counts

    def work(begin: int, stop: int) -> None:
        scratch = acquire(form.key, form.scratch)
        _count_sample(form.types, values, levels_if_any, form.spec, kernel_columns, scratch, begin, stop, counts)
        release(form.key, scratch)

    levels_if_any = levels if n_levels > 1 else None
    if threads == 1:
        work(0, n_rows)
    else:
        run_batches(work, n_rows, threads, max(_MIN_BATCH, -(-n_rows // (_PARTS * threads))))
    return sample


_NO_COLUMNS = for_kernels(())
_tuple: Any = tuple.__new__  # of named tuples: the classes themselves are functions of Python
_count_sample, weigh_sample = Specialized(count.count_sample), Specialized(count.weigh_sample)
weigh_both_heads = Specialized(count_both.weigh_both_heads)
has_others, _has_few_bins = Specialized(code_costs.has_others), Specialized(code_costs.has_few_bins)


class SampleExtent(NamedTuple):
    """Says how much of an array is counted.

    Attributes:
        every: One piece in so many of each block that is counted.
        step: One block in so many.
        n_rows: Number of blocks that are counted.
    """

    every: int
    step: int
    n_rows: int


class SampleForm:
    """Holds what a sample depends on, beside the values: one object for each combination.

    Args:
        dtype: As of :func:`take_sample`, like the others.
        block: Values per block.
        stream_len: Values per sub-stream.
        extent: How much is counted.
        references: Which heads are counted.
        unused_bits: Low bits that every level drops.

    Attributes:
        spec: What the kernels are told.
        weights: The numbers by which a sample is weighed.
        key: What scratch is kept by.
        types: What the kernels' specializations are known by.
        n_rows: Number of blocks that are counted.
    """

    def __init__(
        self,
        dtype: DType,
        n_levels: int,
        block: int,
        stream_len: int,
        extent: SampleExtent,
        references: bool | None = None,
        unused_bits: int = 0,
    ) -> None:
        every, step, self.n_rows = extent
        window, center = window_of(n_levels)
        infinity = np.uint64(dtype.infinity if n_levels > 1 else 0)  # only levels ask what is finite
        piece, wanted = max(stream_len, count.PIECE), (references is not True, references is not False)
        head = dtype.head_shift, dtype.head_mask
        self.spec = SampleSpec(
            block, stream_len, piece, every, step, *head, window, center, infinity, *wanted, dtype.fine_bits
        )
        n_bins = n_bins_of(n_levels)
        self.weights = code_costs.Weights(
            stream_len.bit_length() - 1,
            block // every // stream_len,
            dtype.head_bits,
            dtype.tail_bits - unused_bits,
            STREAM_BITS,
            EMPTY_BITS,
            REFERENCE_BITS,
        )
        self.key, self.types = ("sample", dtype.bits, block, stream_len, n_bins), (dtype.bits, n_levels > 1)
        self._scratch = dtype, block, stream_len, n_bins
        #: Returns a sample whose counts are still to be filled in.
        self.new_sample: Callable[[], Sample] = partial(Sample, self.n_rows, n_bins, every, step, *wanted)

    def scratch(self) -> SampleScratch:
        """Return uninitialized scratch for one thread."""
        dtype, block, stream_len, n_bins = self._scratch
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


sample_form = lru_cache(256)(SampleForm)


@lru_cache
def _usual_lengths(n_bits: int, is_long: bool, smallest: bool) -> tuple[int, ...]:
    """Return log2 of the values per sub-stream that are worth a try whatever the rows are; arguments as of
    :func:`stream_lengths`, where an array is long that has more than one sub-stream."""
    if not is_long:
        return (STREAM_LOG2,)
    longest = STREAM_LOG2 + (_MORE_LOG2 if smallest else 1 if n_bits == 16 else 0)
    return (*range(longest, STREAM_LOG2 - 1, -1), *((STREAM_LOG2 - 1, STREAM_LOG2 - 2) if smallest else ()))


def stream_lengths(dtype: DType, rows: Sequence[Rows], n_values: int, smallest: bool = False) -> tuple[int, ...]:
    """Return log2 of the values per sub-stream that are worth a try.

    Shorter sub-streams cost bits for their lengths, but where they are whole rows each has its own reference, and rows
    of zeros vanish.

    Args:
        dtype: Type of the array.
        rows: Tensors in it whose rows are known.
        smallest: True to try longer ones as well, of which fewer are decoded side by side.
    """
    lengths = _usual_lengths(dtype.bits, n_values > 1 << STREAM_LOG2, smallest)
    if not rows or n_values <= 1 << STREAM_LOG2:
        return lengths
    for log2 in (STREAM_LOG2 - 1, STREAM_LOG2 - 2):
        whole = [tensor for tensor in rows if tensor.n_columns % (1 << log2) == 0 and tensor.n_columns % (2 << log2)]
        if sum(tensor.stop - tensor.start for tensor in whole) > n_values // 8:
            lengths = (*lengths, log2)
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


def cheapest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate of the fewest bits, raised by what short sub-streams cost in speed."""

    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda candidate: price_of(candidate.bits, candidate.stream_log2))


def price_of(bits: float, stream_log2: int) -> tuple[float, int]:
    """Return what is compared of two ways to code an array; arguments as the attributes of :class:`Candidate`."""
    return bits * (1 + _SHORTER_GAIN * max(STREAM_LOG2 - stream_log2, 0)), stream_log2


class SamplingForm(NamedTuple):
    """Holds what comparing candidates depends on, beside the values.

    Attributes:
        n_levels: Number of levels.
        block: Values per block.
        unused_bits: Low bits that every level drops.
        fixed: True if codebooks are fixed; sub-streams have references then if they may.
        every: The number of pieces of each block of which one is counted for the final plan.
        some: How much is counted to compare candidates.
        key: What the memory of samples is kept by; None if it is not kept, as that of long arrays.
    """

    n_levels: int
    block: int
    unused_bits: int
    fixed: bool
    every: int
    some: SampleExtent
    key: tuple[object, ...] | None


@lru_cache(1024)
def sampling_form(
    n_values: int,
    bits: int,
    n_levels: int,
    block: int,
    unused_bits: int = 0,
    fixed: bool = False,
    thorough: bool = False,
) -> SamplingForm:
    """Return what comparing candidates depends on.

    Args:
        n_values: Number of values of the array.
        bits: Bits of a value.
        n_levels: As the attributes of the result, like the others.
        block: Values per block.
        unused_bits: Low bits that every level drops.
        fixed: True if codebooks are fixed.
        thorough: True to count half of all values, and more to compare candidates, where size is all that counts.
    """
    if thorough:
        every = min(every_of(n_values), _THOROUGH_EVERY)
    else:
        every = max(every_of(n_values), _FIXED_EVERY if fixed and n_values >= _FIXED_MIN_VALUES else 1)
        if bits >= _LARGE_BITS and n_values > _LARGE_VALUES:
            every = max(every, _LARGE_EVERY)
    some_every, step = candidate_sample(n_values, every, _THOROUGH_SHARE if thorough else 1)
    some = SampleExtent(some_every, step, -(-n_values // (block * step)))
    key = _samples_key(n_levels, block, unused_bits, some) if some.n_rows <= _MAX_POOLED_ROWS else None
    return SamplingForm(n_levels, block, unused_bits, fixed, every, some, key)


@lru_cache(256)
def _samples_key(*parts: object) -> tuple[object, ...]:
    """Return what memory of samples is kept by: one object, whose parts are few, for all numbers of values."""
    return "samples", *parts


class SampleMemory:
    """The memory that the samples of one array are counted in, by which candidates are compared.

    Each candidate has its own, which another of the same head and length writes over, with the same counts.

    Args:
        form: What comparing candidates depends on.
    """

    __slots__ = ("_form", "_of_candidates", "_scratch")

    def __init__(self, form: SamplingForm) -> None:
        self._form = form
        self._of_candidates: dict[tuple[DType, int, bool], tuple[SampleForm, Sample, SampleScratch]] = {}
        self._scratch: dict[object, SampleScratch] = {}

    @classmethod
    def take(cls, form: SamplingForm) -> SampleMemory:
        """Return the memory for one array, which nobody else has until :meth:`close`."""
        memory: SampleMemory = cls(form) if form.key is None else acquire(form.key, partial(cls, form))
        return memory

    def close(self) -> None:
        """Give the memory back; what it holds is not to be used any more."""
        if self._form.key is not None:
            release(self._form.key, self)

    def of(self, dtype: DType, stream_log2: int, has_columns: bool = False) -> tuple[SampleForm, Sample, SampleScratch]:
        """Return how a candidate is counted, and what in; arguments as the attributes of :class:`Candidate`."""
        key = dtype, stream_log2, has_columns
        found = self._of_candidates.get(key)
        if found is None:
            n_levels, block, unused_bits, _, _, some, _ = self._form
            form = sample_form(dtype, n_levels, block, 1 << stream_log2, some, None, unused_bits)
            scratch = self._scratch.get(form.key)
            if scratch is None:
                scratch = self._scratch[form.key] = form.scratch()
            found = self._of_candidates[key] = form, form.new_sample(), scratch
        return found


class SamplePlanner(NamedTuple):
    """Samples one array, and compares candidates by what their samples take.

    Attributes:
        values: uintW[n_values].
        levels: uint8[n_values], None where there is one level.
        threads: Threads to count on.
        references: True if sub-streams may have references of their own.
        one_base: A base to try for all blocks, or MEDIAN; None to try none.
        form: What depends on no value.
        memory: The memory to count in.
    """

    values: np.ndarray
    levels: np.ndarray | None
    threads: int
    references: bool
    one_base: int | None
    form: SamplingForm
    memory: SampleMemory

    def _counted(
        self, dtype: DType, stream_log2: int, columns: tuple[ColumnReferences, ...], every: int, references: bool
    ) -> Sample:
        """Return counts of every block; arguments as of :func:`take_sample`."""
        values, levels, threads, _, _, form, _ = self
        source = SampleSource(values, NO_LEVELS if levels is None else levels, form.n_levels, form.block, threads)
        return take_sample(source, dtype, 1 << stream_log2, columns, 1, every, references)

    def candidate(self, dtype: DType, stream_log2: int, columns: tuple[ColumnReferences, ...]) -> Candidate:
        """Return one way to code the array, judged by a small sample."""
        values, levels, _, references, _, sampling, memory = self
        form, sample, scratch = memory.of(dtype, stream_log2, len(columns) > 0)
        kernel_columns = for_kernels(columns) if columns else _NO_COLUMNS
        plain, relative = weigh_sample[form.types](
            values, levels, form.spec, form.weights, kernel_columns, scratch, form.n_rows, sample.counts
        )
        if references and (sampling.fixed or relative < plain):
            return _tuple(Candidate, (dtype, stream_log2, columns, sample, True, relative))
        return _tuple(Candidate, (dtype, stream_log2, columns, sample, False, plain))

    def with_both_heads(self, usual: DType, wide: DType, stream_log2: int) -> tuple[Candidate, Candidate]:
        """Return the ways to code an array of float32 without column references with the usual head and with the wide
        one, which are counted together."""
        values, _, _, may_refer, _, _, memory = self
        form, sample, scratch = memory.of(usual, stream_log2)
        wide_form, wide_sample, _ = memory.of(wide, stream_log2)
        (plain, relative), (wide_plain, wide_relative) = weigh_both_heads[None](
            values, form.spec, form.weights, wide_form.spec, wide_form.weights, scratch, sample.counts,
            wide_sample.counts,
        )  # fmt: skip
        references, wide_references = may_refer and relative < plain, may_refer and wide_relative < wide_plain
        bits, wide_bits = relative if references else plain, wide_relative if wide_references else wide_plain
        return (
            _tuple(Candidate, (usual, stream_log2, (), sample, references, bits)),
            _tuple(Candidate, (wide, stream_log2, (), wide_sample, wide_references, wide_bits)),
        )

    def full_sample(self, candidate: Candidate) -> Sample:
        """Return counts of every block for one candidate; of all values where a sample has nothing but zeros."""
        dtype, stream_log2, columns, sample, references, _ = candidate
        # A block whose sample met values of one sign only would have no codes for the other.
        # With mantissa bits in the head too, symbols that a sample misses would be many.
        max_every = 1 if dtype.fine_bits > 1 else _MAX_SIGNED_EVERY if dtype.fine_bits else self.form.every
        every = min(self.form.every, max_every)
        if sample.step > 1 or sample.every != every:
            sample = self._counted(dtype, stream_log2, columns, every, references)
        if sample.every > 1 and not has_others(None, sample.counts_of(references)):
            return self.whole_sample(candidate)
        return sample

    def whole_sample(self, candidate: Candidate) -> Sample:
        """Return counts of all values for one candidate."""
        dtype, stream_log2, columns, _, references, _ = candidate
        return self._counted(dtype, stream_log2, columns, 1, references)

    def bits_of(self, candidate: Candidate, blocks: np.ndarray) -> float:
        """Return what a candidate's sample takes of some blocks alone: bool[n_blocks], True for these."""
        dtype, stream_log2, _, sample, references, _ = candidate
        n_levels, block, unused_bits, _, _, _, _ = self.form
        extent, mask = SampleExtent(sample.every, sample.step, len(sample.bases)), blocks[:: sample.step]
        form = sample_form(dtype, n_levels, block, 1 << stream_log2, extent, None, unused_bits)
        return code_costs.weigh_references(sample.by_block, sample.by_stream, mask, form.weights)[references]

    def best(self, dtype: DType, lengths: Sequence[int], columns: tuple[ColumnReferences, ...]) -> Candidate:
        """Return the cheapest candidate.

        Args:
            dtype: The value type, with the usual head or a wide one.
            lengths: log2 of the values per sub-stream that are tried, first of all with ``columns``.
            columns: Column references, which the best length is then tried without.
        """
        if len(lengths) == 1 and not columns:
            if not self.form.fixed:
                return self.candidate(dtype, lengths[0], columns)
            # nothing is left to decide: count at once what the plan needs
            sample = self._counted(dtype, lengths[0], columns, self.form.every, self.references)
            return Candidate(dtype, lengths[0], columns, sample, self.references, 0.0)
        best = cheapest([self.candidate(dtype, length, columns) for length in lengths])
        if columns:
            plain = self.candidate(dtype, best.stream_log2, ())
            best = min(best, plain, key=lambda candidate: candidate.bits)
        return best
