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
from ..format.dictionary import INDEX_TYPE
from ..format.modes import BitLayout, lossless
from ..kernels.block import header
from ..kernels.block.sparse_types import SparseSizes
from ..kernels.core.specialized import Specialized
from ..kernels.entropy import codebook_fit
from ..kernels.sample import code_costs
from ..kernels.sample.look import HAS_MANY_SPECIAL
from ..options import EncoderOptions
from ..threads import n_threads, run_batches
from .codebooks import FittedCodebooks, GivenCodebooks, fit_form, kept_costs, no_codebooks, tail_costs
from .columns import Tables, fit_columns, tables_of
from .indexing import INDEXED_LOG2, find_indexing, index_request
from .other_heads import ALL_TELL, MIN_OTHER_HEADS, telling_bits, with_other_heads
from .prediction import MIN_ROW_VALUES, Prediction, Predictor, rows_of
from .profile import profile_of
from .request import EncodeRequest, of_one_codebook
from .sampling import (
    MEDIAN,
    REFERENCE_BITS,
    STREAM_BITS,
    STREAM_LOG2,
    Candidate,
    Sample,
    SampleMemory,
    SamplePlanner,
    has_few_heads,
    on_one_base,
    sampling_form,
    stream_lengths,
)
from .segments import IndexedPlan
from .sparse_frames import (
    SparsePlan,
    bits_with_record,
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
        memory: Holds what was counted and decided of each block; None where somebody else looks after it.
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
    memory: SampleMemory | None = None

    def close(self) -> None:
        """Give back memory that is reused, once the frame is written; the plan is not to be used any more."""
        if isinstance(self.codebooks, FittedCodebooks):
            self.codebooks.close()
        if self.memory is not None:
            self.memory.close()
        if self.inner is not None:
            self.inner.close()

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
        The plan, which is for this array only, with an estimate of its bits if zeros are left out and others are not;
        None if too much differs from the base, or from zero without one.
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
            plan = make_plan(asked, 1 << sparse.sizes.block_log2, weigh=True)
            plan = plan._replace(bits=plan.bits + bits_with_record(sparse.codebook, sparse.bits))
    return plan._replace(sparse=sparse)


def make_indexed_plan(request: EncodeRequest) -> FramePlan | None:
    """Plan a frame of indexed blocks: which dictionary, and how indices into it are coded.

    Args:
        request: The array and how to encode it losslessly; :func:`indexing.may_be_indexed` is True for it.

    Returns:
        The plan, with an estimate of its bits, good for this array only; None if no dictionary has nearly all of the
        values.
    """
    found = find_indexing(request)
    if found is None:
        return None
    inner = make_plan(index_request(request, found.indices), 1 << INDEXED_LOG2, weigh=True)
    codebook = inner.codebooks[0] if inner.codebooks else _UNUSED_CODEBOOK
    return no_plan(request.values.dtype, -(-len(found.indices) >> INDEXED_LOG2))._replace(
        stream_log2=inner.stream_log2,
        indexed=found.with_codes(codebook),
        inner=inner,
        bits=inner.bits + found.extra_bits(request.values.dtype.bits),
    )


#: Stands in a dictionary whose inner blocks are all raw or constant.
_UNUSED_CODEBOOK = Codebook(INDEX_TYPE.head_bits, ((0, 0),), bytes([1, *bytes(254), 1]))


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
    values, dtype, _, _ = request.values
    form, special = _form_for(request, block), False
    if form.asks_for_special:
        special = (profile_of(request.values) if profile is None else profile) & HAS_MANY_SPECIAL > 0
    one_base = MEDIAN if request.one_base is None and (special or form.has_levels) else request.one_base
    planner = SamplePlanner(
        values,
        request.levels if form.has_levels else None,
        n_threads(request.threads, len(values)),
        # The mean of a sub-stream or column would say how many of its values are special, not where the others lie.
        form.references and not special,
        one_base,
        form.sampling,
        SampleMemory.take(form.sampling),
    )
    columns: tuple[ColumnReferences, ...] = ()
    if form.tables is not None and not special:
        columns = fit_columns(values, form.tables, dtype) if request.columns is None else request.columns
    tell = 0
    if form.asks_for_other_heads:
        tell = ALL_TELL if form.smallest else telling_bits(values, dtype)
    first, others = candidates(planner, form, dtype, columns, None if special else form.tables, tell)
    predictor = None
    if form.may_be_predicted and (form.rows or request.base is not None):
        predictor = Predictor(values, dtype, form.rows, request.base, block)
    asked = _Asked(request, planner, predictor, sparse_bits, weigh)
    plan, coded = _best_plan(asked, form.lengths, first, others)
    if sparse_bits is not None:
        predicted = plan.prediction.choice >= 0 if plan.prediction is not None else False
        assert coded is not None
        wanted = ~(coded | predicted)
        if wanted.any():
            log2 = block.bit_length() - 1
            plan = plan._replace(sparse=plan_sparse_blocks(request, wanted, SparseSizes(log2, log2)))
    return plan


class _Asked(NamedTuple):
    """Holds what plans of one array are made from, whichever way to code it they are for.

    Attributes:
        request: The array and how to encode it.
        planner: Samples the array.
        predictor: Predicts blocks where that is worth it, if there is one.
        sparse_bits: What blocks take as sparse ones, float64[n_blocks], or None if none may be.
        weigh: True to estimate sizes, as a predictor and sparse blocks ask for anyway.
    """

    request: EncodeRequest
    planner: SamplePlanner
    predictor: Predictor | None
    sparse_bits: np.ndarray | None
    weigh: bool


#: Ways to code an array, each with the share of its size by which another one must be larger.
_Ways = list[tuple[Candidate, float]]


def candidates(
    planner: SamplePlanner,
    form: PlanForm,
    dtype: DType,
    columns: tuple[ColumnReferences, ...],
    tables: Tables | None,
    tell: int,
) -> tuple[Candidate, _Ways]:
    """Return the way to code an array that samples promise to be smallest with the usual head, and those with others.

    Args:
        form: What planning depends on beside the values.
        tables: Tensors that may get some, if there are any.
        tell: Which bits may be worth a place in the head, as :func:`telling_bits` returns it.
    """
    if not form.asks_for_other_heads:
        return planner.best(dtype, form.lengths, columns), []
    wide, with_wide_head = dtype.wide, None
    if wide is not None and dtype.bits == 32 and len(form.lengths) == 1 and not columns and not form.is_fixed:
        first, with_wide_head = planner.with_both_heads(dtype, wide, form.lengths[0])
    else:
        first = planner.best(dtype, form.lengths, columns)
    return first, with_other_heads(planner, first, dtype, tables, form.smallest, tell, with_wide_head)


def two_smallest(first: Candidate, others: _Ways) -> tuple[Candidate, Candidate, float]:
    """Return of the way with the usual head and those with others the one that samples promise to be smallest, the next
    one, and the share of its size that this one has to save."""
    other, gain = others[0] if len(others) == 1 else min(others, key=_size_to_beat)
    return (other, first, 0.0) if (1 + gain) * other.bits < first.bits else (first, other, gain)


def _size_to_beat(way: tuple[Candidate, float]) -> float:
    """Return the bits that a way is compared by."""
    candidate, gain = way
    return (1 + gain) * candidate.bits


def promised_bits(first: Candidate, coded_bits: float, other: Candidate, gain: float) -> float:
    """Return the bits that another way than the first takes, about, as samples of both promise, given what the first
    takes, raised by what the other has to save."""
    return (1 + gain) * other.bits / max(first.bits, 1) * coded_bits


def _best_plan(
    asked: _Asked, lengths: Sequence[int], first: Candidate, others: _Ways
) -> tuple[FramePlan, np.ndarray | None]:
    """Make the plan of the way that takes the fewest bits; of others than the first, only if samples promise so.

    Args:
        asked: What plans are made from.
        lengths: log2 of the values per sub-stream that are tried.
        first: The way with the usual head.
        others: Those with other heads.

    Returns:
        The plan, and which of its blocks are neither predicted nor to be sparse, bool[n_blocks], None for all.
    """
    planner, predictor = asked.planner, asked.predictor
    if others:  # the samples say which is smaller; the other is weighed again where blocks are predicted
        first, candidate, gain = two_smallest(first, others)
        others = [] if predictor is None and first.dtype.fine_bits <= 1 else [(candidate, gain)]
    plan, coded_bits, coded = _plan_of(asked, first, asked.weigh or bool(others))
    unpredicted = None  # blocks that are left to column references and wide heads
    if coded is not None and (plan.prediction is not None or not coded.all()):
        unpredicted = coded
        if first.columns:  # other sub-streams may suit the rest better
            others.append((planner.best(asked.request.values.dtype, lengths, ()), 0.0))
    for candidate, gain in others:
        # A whole plan is made only where the samples promise that it is smaller, over all blocks or the unpredicted.
        # Mantissa bits in the head make so many symbols that a small sample misses some, and promises too much.
        promising = first.dtype.fine_bits > 1 or promised_bits(first, coded_bits, candidate, gain) < plan.bits
        if not promising and unpredicted is not None:
            saved_bits = planner.bits_of(first, unpredicted) - (1 + gain) * planner.bits_of(candidate, unpredicted)
            promising = saved_bits > 0
        if promising:
            other, _, others_coded = _plan_of(asked, candidate, weigh=True)
            if (1 + gain) * other.bits < plan.bits:
                plan, coded = other, others_coded
    return plan, coded


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


class PlanForm:
    """Holds what planning depends on, beside the values: one object for each combination.

    Args:
        layout: Which bits of a value are kept.
        options: How codebooks are made, and what else the encoder may use.
        block: Values per block.
        fixed: Whether sub-streams have references of their own, where codebooks are fixed; None where they are not.
        standalone: As of the request.
        shapes: Shapes of the tensors in the array; empty where their rows do not matter.

    Attributes:
        n_values: Number of values.
        sampling: What comparing candidates depends on.
        has_levels: True if there are several levels.
        references: True if sub-streams may have references of their own.
        is_fixed: True if codebooks are fixed.
        smallest: True if size is all that counts.
        asks_for_special: True if it matters how many values are infinite or NaN.
        asks_for_other_heads: True if other heads than the usual one are tried.
        may_be_predicted: True if blocks may be predicted.
        rows: Tensors whose rows may be alike.
        tables: Tensors that may have column references; None if there are none.
        lengths: log2 of the values per sub-stream that are tried.
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
        shapes: tuple[tuple[int, ...], ...],
    ) -> None:
        n_levels, unused_bits, smallest = len(layout.levels), dtype.tail_bits - layout.most_kept, options.smallest
        self.n_values = n_values
        self.sampling = sampling_form(n_values, dtype.bits, n_levels, block, unused_bits, fixed is not None, smallest)
        self.has_levels, self.references = n_levels > 1, options.references if fixed is None else fixed
        self.is_fixed, self.smallest = fixed is not None, smallest
        self.asks_for_special = fixed is None and not layout.lossy and n_values > 0
        is_plain = standalone and not layout.lossy and layout.drops == (0,)
        self.asks_for_other_heads = n_values >= MIN_OTHER_HEADS and is_plain and options.wide_heads
        is_exact = not layout.lossy or options.exact_if_smaller  # as predicted blocks are
        self.may_be_predicted = options.prediction and dtype.predictable and is_exact
        self.rows = rows_of(shapes)
        with_columns = options.columns and fixed is None and dtype.tail_bits > 0  # docs/format.md, section 7
        self.tables = tables_of(shapes) if with_columns else None
        self.lengths = stream_lengths(dtype, self.rows, n_values, smallest)


plan_form = lru_cache(256)(PlanForm)


def _form_for(request: EncodeRequest, block: int) -> PlanForm:
    """Return what planning an array depends on, beside its values; arguments as of :func:`make_plan`."""
    (values, dtype, _, _), layout, _, options, _, _, fixed, _, _, standalone, _, _ = request
    references = None if fixed is None else fixed.references
    return plan_form(len(values), dtype, layout, options, block, references, standalone, shapes_that_matter(request))


def shapes_that_matter(request: EncodeRequest) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the tensors that an array holds; none where planning does not ask for them."""
    (values, _, shape, _), options = request.values, request.options
    if len(values) < MIN_ROW_VALUES or not (options.prediction or options.columns):
        return ()
    return tuple(map(tuple, request.shapes or (shape,)))


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


def _plan_of(asked: _Asked, candidate: Candidate, weigh: bool) -> tuple[FramePlan, float, np.ndarray | None]:
    """Make the plan of one candidate.

    Args:
        asked: What plans are made from.
        candidate: The way to code the array.
        weigh: True to estimate sizes.

    Returns:
        The plan, and the bits that its blocks would take if none were predicted, both without meaning unless sizes are
        estimated; and which blocks are neither predicted nor to be sparse, bool[n_blocks], None for all.
    """
    request, planner, predictor, sparse_bits, _ = asked
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
    prediction, bits, coded_bits = None, 0.0, 0.0
    coded: np.ndarray | None = None
    if weigh or predictor is not None or sparse_bits is not None:
        kept = request.bit_layout.kept if dtype is request.values.dtype else lossless(dtype).kept
        stream_len, stream_bits = 1 << stream_log2, stream_bits_of(stream_log2, references)
        expected, coded_bits = _expected_bits(books, counts, kept, sample.every, stream_bits)
        least, bits = expected, coded_bits
        if sparse_bits is not None:
            coded, least = expected <= sparse_bits, np.minimum(expected, sparse_bits)
            bits = float(least.sum())
        if predictor is not None:
            prediction = predictor.weigh(least, stream_len, dtype.fine_bits > 0)
        if prediction is not None:
            bits, left = prediction.bits, prediction.choice < 0
            coded = left if coded is None else coded & left
        if coded is not None and not coded.any():
            books = no_codebooks(len(counts))
            if prediction is not None:  # short sub-streams are for references of their own, which these do not have
                stream_log2 = max(stream_log2, STREAM_LOG2)
        elif coded is not None and fixed is None and not coded.all():
            # Other blocks have no say in the codebooks of coded ones.
            refitted = _fit(counts[coded], dtype, sample, references, request)
            if refitted or sample.every == 1:  # else the sample has nothing but zeros, and others may be
                books, books.choice = refitted, _choose(len(refitted), refitted.costs, counts, threads)
                after, _ = _expected_bits(books, counts, kept, sample.every, stream_bits)
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
        memory=planner.memory,
    )
    return plan, coded_bits, coded


def stream_bits_of(stream_log2: int, references: bool) -> float:
    """Return what sub-streams take besides, for each value; arguments as the attributes of :class:`FramePlan`."""
    return (STREAM_BITS + REFERENCE_BITS * references) / (1 << stream_log2)


def _expected_bits(
    books: FittedCodebooks | GivenCodebooks, counts: np.ndarray, kept: tuple[int, ...], every: int, stream_bits: float
) -> tuple[np.ndarray, float]:
    """Estimate the bits that each block takes as a coded one.

    Args:
        books: The codebooks, and which block uses which.
        counts: uint32[n_blocks, n_bins], what was counted of each block.
        kept: For each level, the tail bits that are kept of its values.
        every: One piece in ``every`` was counted.
        stream_bits: What sub-streams take besides, for each value.

    Returns:
        float64[n_blocks], bits, 0 without codebooks; and their sum.
    """
    tail_bits, costs = kept[0], books.costs
    if costs is None:
        return np.zeros(len(counts)), 0.0
    expected = np.empty(len(counts))
    if len(kept) > 1:
        tail_bits, costs = 0, costs + tail_costs(kept)
    return expected, expect_bits[None](counts, costs, books.choice, tail_bits, every, stream_bits, expected)


expect_bits = Specialized(codebook_fit.expect_bits)


def _choose(n_codebooks: int, costs: np.ndarray | None, counts: np.ndarray, threads: int) -> np.ndarray:
    """Return the cheapest codebook of every block: int64[n_blocks], -1 where there is none.

    Args:
        costs: uint32[n_codebooks, n_bins], needed where there are several codebooks.
        counts: uint32[n_blocks, n_bins].
    """
    choice = np.full(len(counts), 0 if n_codebooks else -1, np.int64)
    if n_codebooks > 1:

        def work(begin: int, stop: int) -> None:
            code_costs.choose_codebooks(counts[begin:stop], costs, choice[begin:stop])

        run_batches(work, len(counts), threads, _MIN_CHOSEN)
    return choice
