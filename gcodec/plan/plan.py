"""Decide, before a block is coded, on a frame's codebooks, which block uses which, reference heads and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.codebook import Codebook
from ..format.columns import ColumnReferences
from ..format.modes import BitLayout, lossless
from ..kernels.block import header
from ..kernels.block.sparse_types import SparseSizes
from ..kernels.entropy import codebook_fit
from ..kernels.sample import code_costs
from ..kernels.sample.look import HAS_MANY_SPECIAL
from ..options import EncoderOptions
from ..threads import n_threads, run_batches
from .codebooks import FittedCodebooks, GivenCodebooks, fit_form, kept_costs, no_codebooks, tail_costs
from .columns import Tables, fit_columns, tables_of
from .indexing import IndexedPlan
from .other_heads import MIN_OTHER_HEADS, with_other_heads
from .prediction import MIN_ROW_VALUES, Prediction, Predictor, Rows, rows_of
from .profile import profile_of
from .request import EncodeRequest, of_one_codebook
from .sampling import (
    MEDIAN,
    REFERENCE_BITS,
    STREAM_BITS,
    STREAM_LOG2,
    Candidate,
    Sample,
    SamplePlanner,
    has_few_heads,
    on_one_base,
    sampling_form,
    stream_lengths,
)
from .sparse_frames import (
    SparsePlan,
    differs_here_and_there,
    plan_sparse,
    plan_sparse_blocks,
    sparse_block_bits,
)

_MIN_CHOSEN = 512  #: blocks whose codebooks a thread chooses at a time


CODED_ONLY = (header.CODED,)  #: the kinds of blocks that most frames are planned as


class FramePlan(NamedTuple):
    """The decisions by which one frame is coded.

    Attributes:
        dtype: The value type, perhaps with a wide head.
        stream_log2: log2 of the values per sub-stream.
        codebooks: Codebooks of the frame.
        records: The bytes that stand for each codebook in the frame.
        choice: int64[n_blocks], the codebook of each block, -1 for raw.
        bases: int64[n_blocks], the reference head of each block.
        references: True if sub-streams have references of their own.
        counts: uint32[n_blocks, n_bins], what was counted of each block.
        prediction: Which blocks are predicted, and from what; None for none.
        columns: Column references of coded blocks.
        sparse: What differs from a base or from zero in sparse blocks; None where none is sparse.
        indexed: The dictionary and the indices of indexed blocks; None where none is indexed, else all are.
        inner: How the indices are coded, as bytes, where blocks are indexed.
        bits: What blocks and codebooks take, about, if that was asked for or had to be known.
        sample: Holds what was counted and decided of each block.
    """

    dtype: DType
    stream_log2: int
    codebooks: Sequence[Codebook]
    records: tuple[bytes, ...]
    choice: np.ndarray
    bases: np.ndarray
    references: bool
    counts: np.ndarray
    prediction: Prediction | None = None
    columns: tuple[ColumnReferences, ...] = ()
    sparse: SparsePlan | None = None
    indexed: IndexedPlan | None = None
    inner: FramePlan | None = None
    bits: float = 0.0
    sample: Sample | None = None

    def close(self) -> None:
        """Give back memory that is reused, once the frame is written; the plan is not to be used any more."""
        if isinstance(self.codebooks, FittedCodebooks):
            self.codebooks.close()
        if self.sample is not None:
            self.sample.close()

    @property
    def histogram(self) -> np.ndarray:
        """The sum of what was counted in all blocks: uint64[n_bins]."""
        return self.counts.sum(axis=0, dtype=np.uint64)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of blocks that are planned; any block may turn out constant or raw."""
        if self.indexed is not None:
            return (header.INDEXED,)
        if self.prediction is None and self.sparse is None:
            return CODED_ONLY
        return tuple(np.unique(self._block_kinds(0, len(self.choice))).tolist())

    def runs(self, begin: int, end: int) -> Sequence[tuple[int, int, int]]:
        """Return blocks ``begin ... end`` in runs that are planned as one kind: (first, stop, kind)."""
        if self.indexed is not None:
            return ((begin, end, header.INDEXED),)
        if self.prediction is None and self.sparse is None:
            return ((begin, end, header.CODED),)
        kinds = self._block_kinds(begin, end)
        edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
        return [(begin + first, begin + stop, int(kinds[first])) for first, stop in pairwise(edges)]

    def _block_kinds(self, begin: int, end: int) -> np.ndarray:
        """Return the kinds that blocks ``begin ... end`` are planned as: int64[end - begin]."""
        kinds = np.full(end - begin, header.CODED)
        if self.prediction is not None:
            kinds[self.prediction.choice[begin:end] >= 0] = header.PREDICTED
        if self.sparse is not None:
            kinds[self.sparse.is_sparse[begin:end]] = header.SPARSE
        return kinds


def make_sparse_plan(request: EncodeRequest) -> FramePlan | None:
    """Plan a frame of sparse blocks.

    Args:
        request: The array and how to encode it.

    Returns:
        The plan, which is for this array only; None if too much differs from the base, or from zero without one.
    """
    sparse = plan_sparse(request)
    if sparse is None:
        return None
    plan = no_plan(request.values.dtype, len(sparse.is_sparse))
    if not sparse.codebook.with_base:
        # The values that are not zero are coded as an array of their own would be, all blocks with one codebook.
        values = np.concatenate([found.differences.steps for found in sparse.found])
        if len(values):
            inner = request.values._replace(bits=values)
            options = of_one_codebook(request.options)
            asked = request._replace(values=inner, levels=sparse.levels, options=options, shapes=(values.shape,))
            plan = make_plan(asked, 1 << sparse.sizes.block_log2)
    return plan._replace(sparse=sparse)


def no_plan(dtype: DType, n_blocks: int) -> FramePlan:
    """Return the plan of a frame whose blocks are raw or constant, without codebooks."""
    no_counts = np.zeros((n_blocks, 0), np.uint32)
    raw, bases = np.full(n_blocks, -1, np.int64), np.zeros(n_blocks, np.int64)
    return FramePlan(dtype, STREAM_LOG2, (), (), raw, bases, False, no_counts)


def mixed_block_bits(request: EncodeRequest, block: int) -> np.ndarray | None:
    """Return what blocks take as sparse ones, about, where some had better be sparse and others not.

    Args:
        request: The array and how to encode it.
        block: Values per block.

    Returns:
        float64[n_blocks], infinite where a block had better not be sparse; None if all had, or none.
    """
    layout, base, values = request.bit_layout, request.base, request.values.bits
    if base is None or layout.lossy or layout.drops != (0,) or not request.standalone or not request.options.sparse:
        return None
    if not differs_here_and_there(values, base, block):
        return None
    bits = sparse_block_bits(values, base, block)
    is_finite = np.isfinite(bits)
    return bits if is_finite.any() and not is_finite.all() else None


def make_plan(
    request: EncodeRequest,
    block: int,
    weigh: bool = False,
    sparse_bits: np.ndarray | None = None,
    profile: int | None = None,
) -> FramePlan:
    """Decide sub-streams, codebooks, references and predictions of a frame, and which blocks are sparse.

    Args:
        request: The array and how to encode it.
        block: Values per block.
        weigh: True to estimate what the frame takes.
        sparse_bits: As :func:`mixed_block_bits` returns it; None if no block may be sparse.
        profile: What the array is like, if that is known.

    Returns:
        The plan. It does not depend on the number of threads.

    Raises:
        InvalidArgument: If the number of threads is below 1.
    """
    (values, dtype, shape, _), layout, levels, options, _, threads, fixed, shapes, base, standalone, one_base = request
    given = None if fixed is None else fixed.references
    form = _form_of(len(values), dtype, layout, options, block, given, standalone)
    special = False
    if form.asks_for_special:
        special = (profile_of(request.values) if profile is None else profile) & HAS_MANY_SPECIAL > 0
    # The mean of a sub-stream or column would say how many of its values are special, not where the others lie.
    references, n_workers = form.references and not special, n_threads(threads, len(values))
    if one_base is None and (special or form.has_levels):
        one_base = MEDIAN
    sampled = levels if form.has_levels else None
    planner = SamplePlanner(values, sampled, n_workers, references, one_base, form.sampling, [])
    rows: Sequence[Rows] = ()
    tables: Tables | None = None
    columns: tuple[ColumnReferences, ...] = ()
    lengths = form.lengths
    if form.asks_for_rows:
        rows = rows_of(shapes or (shape,))
        lengths = stream_lengths(dtype, rows, len(values), options.smallest)
        # docs/format.md, section 7
        with_columns = options.columns and fixed is None and dtype.tail_bits > 0 and not special
        tables = tables_of(shapes or (shape,)) if with_columns else None
        columns = fit_columns(values, tables, dtype) if tables else ()
    alternatives: list[tuple[Candidate, float]] = []  # and the share of their size by which the first must be larger
    if form.asks_for_other_heads:
        wide, with_wide_head = dtype.wide, None
        if wide is not None and dtype.bits == 32 and len(lengths) == 1 and not columns and fixed is None:
            first, with_wide_head = planner.with_both_heads(dtype, wide, lengths[0])
        else:
            first = planner.best(dtype, lengths, columns)
        alternatives = with_other_heads(planner, first, dtype, tables, options.smallest, with_wide_head)
    else:
        first = planner.best(dtype, lengths, columns)
    predictor = None
    if form.may_be_predicted and (rows or base is not None):
        predictor = Predictor(values, dtype, rows, base, block)
    if alternatives:  # the samples say which is smaller; the other is weighed again where blocks are predicted
        candidate, gain = min(alternatives, key=lambda other: (1 + other[1]) * other[0].bits)
        alternatives = [(candidate, gain)]
        if (1 + gain) * candidate.bits < first.bits:
            first, alternatives = candidate, [(first, 0.0)]
        if predictor is None and first.dtype.fine_bits <= 1:
            alternatives = []
    plan, coded_bits, coded = _plan_of(planner, first, request, predictor, sparse_bits, weigh or bool(alternatives))
    unpredicted = None  # blocks that are left to column references and wide heads
    if coded is not None and (plan.prediction is not None or not coded.all()):
        unpredicted = coded
        if first.columns:  # other sub-streams may suit the rest better
            alternatives.append((planner.best(dtype, lengths, ()), 0.0))
    for candidate, gain in alternatives:
        # A whole plan is made only where the samples promise that it is smaller, over all blocks or the unpredicted.
        # Mantissa bits in the head make so many symbols that a small sample misses some, and promises too much.
        promised_bits = (1 + gain) * candidate.bits / max(first.bits, 1) * coded_bits
        promising = first.dtype.fine_bits > 1 or promised_bits < plan.bits
        if not promising and unpredicted is not None:
            saved_bits = planner.bits_of(first, unpredicted) - (1 + gain) * planner.bits_of(candidate, unpredicted)
            promising = saved_bits > 0
        if promising:
            other, _, others_coded = _plan_of(planner, candidate, request, predictor, sparse_bits, weigh=True)
            if (1 + gain) * other.bits < plan.bits:
                plan, coded = other, others_coded
    if sparse_bits is not None:
        predicted = plan.prediction.choice >= 0 if plan.prediction is not None else False
        assert coded is not None
        wanted = ~(coded | predicted)
        if wanted.any():
            log2 = block.bit_length() - 1
            plan = plan._replace(sparse=plan_sparse_blocks(request, wanted, SparseSizes(log2, log2)))
    planner.close(plan.sample)
    return plan


def least_bits(request: EncodeRequest, block: int) -> float:
    """Return how many bits an array takes at least as coded blocks, whatever its heads take.

    Args:
        request: The array and how to encode it losslessly.
        block: Values per block.

    Returns:
        The number of bits; 0 if rows may be predicted in fewer than the tails take.
    """
    values, dtype, shape, _ = request.values
    rows = rows_of(request.shapes or (shape,)) if request.options.prediction and dtype.predictable else ()
    of_tails = np.full(-(-len(values) // block), float(block * dtype.tail_bits))
    if rows and Predictor(values, dtype, rows, None, block).may_predict(of_tails):
        return 0.0
    tail_bits = min(request.bit_layout.kept)
    if request.bit_layout.drops == (0,):  # some of these bits may be in the head
        tail_bits = min(other.tail_bits for other in (dtype, dtype.wide, dtype.signed, dtype.fine) if other)
    return float(tail_bits * int(np.count_nonzero(values)))


class _PlanForm:
    """Holds what planning depends on, beside the values: one object for each combination.

    Args:
        n_values: Number of values.
        dtype: Their type.
        layout: Which bits of a value are kept.
        options: How codebooks are made, and what else the encoder may use.
        block: Values per block.
        fixed: Whether sub-streams have references of their own, where codebooks are fixed; None where they are not.
        standalone: As of the request.

    Attributes:
        sampling: What comparing candidates depends on.
        has_levels: True if there are several levels.
        references: True if sub-streams may have references of their own.
        asks_for_special: True if it matters how many values are infinite or NaN.
        asks_for_rows: True if rows may be predicted, or have column references.
        asks_for_other_heads: True if other heads than the usual one are tried.
        may_be_predicted: True if blocks may be predicted.
        lengths: log2 of the values per sub-stream that are tried whatever the rows are.
    """

    def __init__(
        self,
        n_values: int,
        dtype: DType,
        layout: BitLayout,
        options: EncoderOptions,
        block: int,
        fixed: bool | None,
        standalone: bool,
    ) -> None:
        n_levels, unused_bits, smallest = len(layout.levels), dtype.tail_bits - layout.most_kept, options.smallest
        self.sampling = sampling_form(n_values, n_levels, block, unused_bits, fixed is not None, smallest)
        self.has_levels, self.references = n_levels > 1, options.references if fixed is None else fixed
        self.asks_for_special = fixed is None and not layout.lossy and n_values > 0
        self.asks_for_rows = n_values >= MIN_ROW_VALUES and (options.prediction or options.columns)
        is_plain = standalone and not layout.lossy and layout.drops == (0,)
        self.asks_for_other_heads = n_values >= MIN_OTHER_HEADS and is_plain and options.wide_heads
        is_exact = not layout.lossy or options.exact_if_smaller  # as predicted blocks are
        self.may_be_predicted = options.prediction and dtype.predictable and is_exact
        self.lengths = stream_lengths(dtype, (), n_values, smallest)


_form_of = lru_cache(1024)(_PlanForm)


def _sample_for_codebooks(planner: SamplePlanner, candidate: Candidate, lossy: bool) -> Sample:
    """Return the counts that codebooks of a candidate are made from: of all values where a sample meets few heads, and
    relative to one base where values of two scales are mixed."""
    dtype, _, _, sample, references, _ = candidate
    if sample.every > 1 or sample.step > 1:
        sample = planner.full_sample(candidate)
        if sample.every > 1 and not lossy and has_few_heads(sample.counts_of(references)):
            sample = planner.whole_sample(candidate)
    if planner.one_base is not None and not (lossy or references):
        sample = on_one_base(sample, dtype, planner.form.n_levels, planner.one_base)
    return sample


def _fit(
    counts: np.ndarray, dtype: DType, sample: Sample, references: bool, request: EncodeRequest
) -> FittedCodebooks | GivenCodebooks:
    """Make the codebooks of a frame.

    Args:
        counts: uint32[n_blocks, n_bins], a histogram of each block.
        dtype: The value type.
        sample: What the counts are of.
        references: True if heads are relative to each sub-stream's mean.
        request: The array and how to encode it.
    """
    layout, every = request.bit_layout, sample.every
    form = fit_form(dtype, layout if dtype is request.values.dtype else lossless(dtype), request.options)
    # Blocks that are left out take part in no choice.
    choice = sample.choice if len(counts) == len(sample.choice) else np.empty(len(counts), np.int64)
    # With lossy modes values will be rounded, so that others than the counted occur. Shipped codebooks are for heads
    # relative to blocks' means; the small arrays that gain by them are counted in full.
    return form.fit(counts, every, every == 1 and not layout.lossy, every == 1 and not references, choice)


def _given(counts: np.ndarray, request: EncodeRequest, threads: int) -> GivenCodebooks:
    """Choose from given codebooks."""
    assert request.fixed is not None
    codebooks, records, _ = request.fixed
    costs = kept_costs(codebooks) if len(codebooks) > 1 else None
    return GivenCodebooks.of(codebooks, records, _choose(len(codebooks), costs, counts, threads))


def _plan_of(
    planner: SamplePlanner,
    candidate: Candidate,
    request: EncodeRequest,
    predictor: Predictor | None,
    sparse_bits: np.ndarray | None,
    weigh: bool,
) -> tuple[FramePlan, float, np.ndarray | None]:
    """Make the plan of one candidate.

    Args:
        planner: Samples the array.
        candidate: The way to code it.
        request: The array and how to encode it.
        predictor: Predicts blocks where that is worth it, if there is one.
        sparse_bits: What blocks take as sparse ones, float64[n_blocks], or None if none may be.
        weigh: True to estimate sizes, as a predictor and sparse blocks ask for anyway.

    Returns:
        The plan, and the bits that its blocks would take if none were predicted, both without meaning unless sizes are
        estimated; and which blocks are neither predicted nor to be sparse, bool[n_blocks], None for all.
    """
    dtype, stream_log2, columns, _, references, _ = candidate
    threads, fixed = planner.threads, request.fixed
    books: FittedCodebooks | GivenCodebooks
    if fixed is None:
        sample = _sample_for_codebooks(planner, candidate, request.bit_layout.lossy)
        counts = sample.by_stream if references else sample.by_block
        books = _fit(counts, dtype, sample, references, request)
    else:
        references, sample = fixed.references, planner.full_sample(candidate)
        counts = sample.counts_of(references)
        books = _given(counts, request, threads)
    prediction, bits, coded_bits, coded = None, 0.0, 0.0, None
    if weigh or predictor is not None or sparse_bits is not None:
        coded = np.ones(len(counts), np.bool_)
        kept = request.bit_layout.kept if dtype is request.values.dtype else lossless(dtype).kept
        stream_len = 1 << stream_log2
        expected = least = _expected_bits(books, counts, kept, sample.every, stream_len, references)
        bits = coded_bits = float(expected.sum())
        if sparse_bits is not None:
            coded, least = expected <= sparse_bits, np.minimum(expected, sparse_bits)
            bits = float(least.sum())
        if predictor:
            prediction = predictor.weigh(least, stream_len, dtype.fine_bits > 0)
        if prediction is not None:
            bits, coded = prediction.bits, coded & (prediction.choice < 0)
        if not coded.any():
            books = no_codebooks(len(counts))
            if prediction is not None:  # short sub-streams are for references of their own, which these do not have
                stream_log2 = max(stream_log2, STREAM_LOG2)
        elif not coded.all() and fixed is None:  # other blocks have no say in the codebooks of coded ones
            refitted = _fit(counts[coded], dtype, sample, references, request)
            if refitted or sample.every == 1:  # else the sample has nothing but zeros, and others may be
                books, books.choice = refitted, _choose(len(refitted), refitted.costs, counts, threads)
                after = _expected_bits(books, counts, kept, sample.every, stream_len, references)
                bits += float((after - expected)[coded].sum())
        bits += 8 * sum(map(len, books.records))
    plan = FramePlan(
        dtype,
        stream_log2,
        books,
        books.records,
        books.choice,
        sample.bases,
        references,
        counts,
        prediction,
        columns if books else (),
        bits=bits,
        sample=sample,
    )
    return plan, coded_bits, coded


def _expected_bits(
    books: FittedCodebooks | GivenCodebooks,
    counts: np.ndarray,
    kept: tuple[int, ...],
    every: int,
    stream_len: int,
    references: bool,
) -> np.ndarray:
    """Estimate the bits that each block takes as a coded one.

    Args:
        books: The codebooks, and which block uses which.
        counts: uint32[n_blocks, n_bins], what was counted of each block.
        kept: For each level, the tail bits that are kept of its values.
        every: One piece in ``every`` was counted.
        stream_len: Values per sub-stream.
        references: True if sub-streams have references of their own.

    Returns:
        float64[n_blocks], bits; 0 without codebooks.
    """
    tail_bits, costs = kept[0], books.costs
    if costs is None:
        return np.full(len(counts), 0.0)
    bits, numbers = np.zeros((2, len(counts)), np.int64)
    if len(kept) > 1:
        tail_bits, costs = 0, costs + tail_costs(kept)
    codebook_fit.add_costs(counts, costs, books.choice, tail_bits, bits, numbers)
    return every * (bits + numbers / stream_len * (STREAM_BITS + REFERENCE_BITS * references))


def _choose(n_codebooks: int, costs: np.ndarray | None, counts: np.ndarray, threads: int) -> np.ndarray:
    """Return the cheapest codebook of every block: int64[n_blocks], -1 where there is none.

    Args:
        n_codebooks: Number of codebooks to choose from.
        costs: uint32[n_codebooks, n_bins], needed where there are several codebooks.
        counts: uint32[n_blocks, n_bins].
        threads: Threads to choose on.
    """
    choice = np.full(len(counts), 0 if n_codebooks else -1, np.int64)
    if n_codebooks > 1:

        def work(begin: int, stop: int) -> None:
            code_costs.choose_codebooks(counts[begin:stop], costs, choice[begin:stop])

        run_batches(work, len(counts), threads, _MIN_CHOSEN)
    return choice
