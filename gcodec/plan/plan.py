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
from ..format.modes import lossless
from ..format.shipped import fitting as fitting_shipped
from ..kernels.block import header
from ..kernels.block.sparse_types import SparseSizes
from ..kernels.entropy import codebook_fit
from ..kernels.sample import code_costs
from ..options import EncoderOptions
from ..threads import n_threads, run_batches
from .codebooks import bin_costs, from_histograms, kept_costs, tail_costs, window_of
from .columns import fit_columns, tables_of
from .indexing import IndexedPlan
from .other_heads import with_other_heads
from .prediction import Prediction, Predictor, rows_of
from .request import EncodeRequest, FixedCodebooks, of_one_codebook
from .sampling import (
    REFERENCE_BITS,
    STREAM_BITS,
    STREAM_LOG2,
    Candidate,
    Sample,
    SamplePlanner,
    SampleSource,
    has_few_heads,
    on_one_base,
    stream_lengths,
)
from .sparse_frames import (
    SparsePlan,
    differs_here_and_there,
    plan_sparse,
    plan_sparse_blocks,
    sparse_block_bits,
)
from .unused_bits import has_many_special

MAX_CLUSTERED = 96  #: blocks whose distributions are compared when codebooks are formed
TABLE_BITS = 400  #: what a codebook costs in the frame, about
_MIN_CHOSEN = 512  #: blocks whose codebooks a thread chooses at a time


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
    """

    dtype: DType
    stream_log2: int
    codebooks: tuple[Codebook, ...]
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
            return (header.CODED,)
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
    request: EncodeRequest, block: int, weigh: bool = False, sparse_bits: np.ndarray | None = None
) -> FramePlan:
    """Decide sub-streams, codebooks, references and predictions of a frame, and which blocks are sparse.

    Args:
        request: The array and how to encode it.
        block: Values per block.
        weigh: True to estimate what the frame takes.
        sparse_bits: As :func:`mixed_block_bits` returns it; None if no block may be sparse.

    Returns:
        The plan. It does not depend on the number of threads.

    Raises:
        InvalidArgument: If the number of threads is below 1.
    """
    (values, dtype, shape, _), bit_layout, _, options = request[:4]
    fixed, base = request.fixed, request.base
    planner = _planner_for(request, block)
    rows = rows_of(request.shapes or (shape,)) if options.prediction or options.columns else ()
    # docs/format.md, section 7
    with_columns = options.columns and fixed is None and dtype.tail_bits > 0 and not planner.special
    tables = tables_of(request.shapes or (shape,)) if with_columns else None
    columns = fit_columns(values, tables, dtype) if tables else ()
    lengths = stream_lengths(dtype, rows, len(values), options.smallest)
    first = planner.best(dtype, lengths, columns)
    alternatives: list[tuple[Candidate, float]] = []  # and the share of their size by which the first must be larger
    plain = not bit_layout.lossy and bit_layout.drops == (0,)
    if plain and request.standalone and options.wide_heads:
        alternatives = with_other_heads(planner, first, dtype, tables, options.smallest)
    predictor = None
    exact = not bit_layout.lossy or options.exact_if_smaller  # as predicted blocks are
    if options.prediction and exact and dtype.predictable and (rows or base is not None):
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
    if plan.prediction is not None or not coded.all():
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
        predicted = plan.prediction.choice >= 0 if plan.prediction is not None else np.zeros_like(coded)
        wanted = ~(coded | predicted)
        if wanted.any():
            log2 = block.bit_length() - 1
            plan = plan._replace(sparse=plan_sparse_blocks(request, wanted, SparseSizes(log2, log2)))
    return plan


def _planner_for(request: EncodeRequest, block: int) -> SamplePlanner:
    """Return what samples an array. Raises InvalidArgument if the number of threads is below 1."""
    (values, dtype, _, _), layout, levels, options = request[:4]
    fixed, threads = request.fixed, n_threads(request.threads, len(values))
    source = SampleSource(values, levels, len(layout.levels), block, threads, dtype.tail_bits - max(layout.kept))
    # The mean of a sub-stream or column would say how many of its values are special, not where the others lie.
    special = fixed is None and not layout.lossy and has_many_special(values, dtype)
    references = (options.references if fixed is None else fixed.references) and not special
    return SamplePlanner(source, references, fixed is not None, options.smallest, special)


def _sample_for_codebooks(planner: SamplePlanner, candidate: Candidate, lossy: bool) -> Sample:
    """Return the counts that codebooks of a candidate are made from: of all values where a sample meets few heads, and
    relative to one base where values of two scales are mixed."""
    sample, references, n_levels = planner.full_sample(candidate), candidate.references, planner.source.n_levels
    if sample.every > 1 and not lossy and has_few_heads(sample.counts(references)):
        sample = planner.whole_sample(candidate)
    if (n_levels > 1 or planner.special) and not (lossy or references):
        sample = on_one_base(sample, candidate.dtype, n_levels)
    return sample


def _plan_of(
    planner: SamplePlanner,
    candidate: Candidate,
    request: EncodeRequest,
    predictor: Predictor | None,
    sparse_bits: np.ndarray | None,
    weigh: bool,
) -> tuple[FramePlan, float, np.ndarray]:
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
        estimated; and which blocks are neither predicted nor to be sparse, bool[n_blocks].
    """
    dtype, stream_log2, columns, _, references, _ = candidate
    (_, _, n_levels, _, threads, _), lossy, options = planner.source, request.bit_layout.lossy, request.options
    kept = request.bit_layout.kept if dtype is request.values.dtype else lossless(dtype).kept
    stream_len, books = 1 << stream_log2, request.fixed
    sample = _sample_for_codebooks(planner, candidate, lossy) if books is None else planner.full_sample(candidate)
    if books is None:
        books = _fit_codebooks(sample.counts(references), dtype, n_levels, sample.every, lossy, references, options)
    counts = sample.counts(books.references)
    weigh = weigh or predictor is not None or sparse_bits is not None
    costs = None
    if len(books.codebooks) > 1 or (books.codebooks and weigh):
        costs = bin_costs(books.codebooks) if request.fixed is None else kept_costs(books.codebooks)
    choice = _choose(books.codebooks, costs, counts, threads)
    prediction, bits, coded_bits, coded = None, 0.0, 0.0, np.ones(len(choice), np.bool_)
    if weigh:
        expected = least = _expected_bits(costs, choice, counts, kept, sample.every, stream_len, references)
        bits = coded_bits = float(expected.sum())
        if sparse_bits is not None:
            coded, least = expected <= sparse_bits, np.minimum(expected, sparse_bits)
            bits = float(least.sum())
        if predictor:
            prediction = predictor.weigh(least, stream_len, dtype.fine_bits > 0)
        if prediction is not None:
            bits, coded = prediction.bits, coded & (prediction.choice < 0)
        if not coded.any():
            books, choice = FixedCodebooks((), (), references), np.full_like(choice, -1)
            if prediction is not None:  # short sub-streams are for references of their own, which these do not have
                stream_log2 = max(stream_log2, STREAM_LOG2)
        elif not coded.all() and request.fixed is None:  # other blocks have no say in the codebooks of coded ones
            rest = counts[coded]
            refitted = _fit_codebooks(rest, dtype, n_levels, sample.every, lossy, references, options)
            if refitted.codebooks or sample.every == 1:  # else the sample has nothing but zeros, and others may be
                books, costs = refitted, bin_costs(refitted.codebooks) if refitted.codebooks else None
                choice = _choose(books.codebooks, costs, counts, threads)
                after = _expected_bits(costs, choice, counts, kept, sample.every, stream_len, references)
                bits += float((after - expected)[coded].sum())
        bits += 8 * sum(map(len, books.records))
    plan = FramePlan(
        dtype,
        stream_log2,
        books.codebooks,
        books.records,
        choice,
        sample.bases,
        books.references,
        counts,
        prediction,
        columns if books.codebooks else (),
        bits=bits,
    )
    return plan, coded_bits, coded


def _expected_bits(
    costs: np.ndarray | None,
    choice: np.ndarray,
    counts: np.ndarray,
    kept: tuple[int, ...],
    every: int,
    stream_len: int,
    references: bool,
) -> np.ndarray:
    """Estimate the bits that each block takes as a coded one.

    Args:
        costs: uint32[n_codebooks, n_bins], bits of each bin under each codebook; None if there are no codebooks.
        choice: int64[n_blocks], the codebook of each block.
        counts: uint32[n_blocks, n_bins], what was counted of each block.
        kept: For each level, the tail bits that are kept of its values.
        every: One piece in so many was counted.
        stream_len: Values per sub-stream.
        references: True if sub-streams have references of their own.

    Returns:
        float64[n_blocks], bits.
    """
    if costs is None:
        return np.full(len(counts), 0.0)
    bits, numbers = np.zeros((2, len(counts)), np.int64)
    tail_bits = kept[0]
    if len(kept) > 1:
        tail_bits, costs = 0, costs + tail_costs(kept)
    codebook_fit.add_costs(counts, costs, choice, tail_bits, bits, numbers)
    return every * (bits + numbers / stream_len * (STREAM_BITS + REFERENCE_BITS * references))


def _choose(
    codebooks: tuple[Codebook, ...], costs: np.ndarray | None, counts: np.ndarray, threads: int
) -> np.ndarray:
    """Return the cheapest codebook of every block: int64[n_blocks], -1 where there is none.

    Args:
        codebooks: The codebooks to choose from.
        costs: uint32[n_codebooks, n_bins], needed where there are several codebooks.
        counts: uint32[n_blocks, n_bins].
        threads: Threads to choose on.
    """
    choice = np.full(len(counts), 0 if codebooks else -1, np.int64)
    if len(codebooks) > 1:

        def work(begin: int, stop: int) -> None:
            code_costs.choose_codebooks(counts[begin:stop], costs, choice[begin:stop])

        run_batches(work, len(counts), threads, _MIN_CHOSEN)
    return choice


def _fit_codebooks(
    counts: np.ndarray, dtype: DType, n_levels: int, every: int, lossy: bool, references: bool, options: EncoderOptions
) -> FixedCodebooks:
    """Return codebooks for blocks: made for them, or one that comes with gcodec where naming that is cheaper than
    carrying a made one, as it is for small arrays.

    Args:
        counts: uint32[n_blocks, n_bins], a histogram of each block.
        dtype: The value type.
        n_levels: Number of levels.
        every: One piece in so many was counted.
        lossy: True if values will be rounded, so that others than the counted occur.
        references: True if heads are relative to each sub-stream's mean.
        options: How codebooks are made.
    """
    codebooks = _make_codebooks(counts, dtype, n_levels, every, every == 1 and not lossy, options)
    shipped = shipped_for(dtype, n_levels)
    # Shipped codebooks are for heads relative to blocks' means; the small arrays that gain by them are counted in full.
    if len(codebooks) == 1 and every == 1 and not references and shipped.codebooks:
        spent = shipped.record_bits.copy()
        codebook_fit.spent(counts, np.concatenate([bin_costs(codebooks), shipped.costs]), spent)
        spent[0] += 8 * codebooks[0].record_bytes
        best = int(spent.argmin())
        if best:
            return FixedCodebooks((shipped.codebooks[best - 1],), (shipped.records[best - 1],), False)
    return FixedCodebooks(codebooks, tuple(codebook.record for codebook in codebooks), references)


class Shipped(NamedTuple):
    """Codebooks that come with gcodec, for one value type and number of levels.

    Attributes:
        codebooks: The codebooks.
        records: The bytes that name each of them in a frame.
        costs: uint32[n, n_bins], bits of each bin under each of them.
        record_bits: uint64[1 + n], bits of the records, after a 0 for a codebook that is made.
    """

    codebooks: tuple[Codebook, ...]
    records: tuple[bytes, ...]
    costs: np.ndarray
    record_bits: np.ndarray


@lru_cache(64)
def shipped_for(dtype: DType, n_levels: int) -> Shipped:
    """Return the shipped codebooks for a value type and number of levels, perhaps none."""
    numbered = [item for item in fitting_shipped(dtype.name, n_levels) if item[1].head_bits == dtype.head_bits]
    books, records = tuple(book for _, book in numbered), tuple(book.reference(number) for number, book in numbered)
    costs = bin_costs(books) if books else np.zeros((0, 0), np.uint32)
    return Shipped(books, records, costs, np.array([0, *(8 * len(record) for record in records)], np.uint64))


def _make_codebooks(
    counts: np.ndarray, dtype: DType, n_levels: int, every: int, exact: bool, options: EncoderOptions
) -> tuple[Codebook, ...]:
    """Make codebooks for blocks, one for each group of similar ones.

    Args:
        counts: uint32[n_blocks, n_bins], a histogram of each block.
        dtype: The value type.
        n_levels: Number of levels.
        every: One piece in so many was counted.
        exact: True if no other values than the counted occur.
        options: How codebooks are made.
    """
    _, center = window_of(n_levels)
    used = np.empty(len(counts), np.int64)
    used = used[: code_costs.rows_in_use(counts, used)]  # all-zero blocks need no codebook
    if not len(used):
        return ()
    if len(used) > MAX_CLUSTERED and not (exact and has_few_heads(counts)):
        used = used[np.linspace(0, len(used) - 1, MAX_CLUSTERED).astype(np.int64)]
        exact = False
    max_groups, share = min(options.max_codebooks, len(used)), len(used) / len(counts) / every
    groups = _groups(counts if len(used) == len(counts) else counts[used], max_groups, share)
    if len(groups) > 1:
        groups = groups[groups.any(axis=1)]
    return from_histograms(
        groups,
        dtype.head_bits,
        n_levels,
        center,
        exact=exact,
        max_length=options.max_length,
        escape_threshold=options.escape_threshold,
    )


def _groups(rows: np.ndarray, max_groups: int, share: float) -> np.ndarray:
    """Return histograms of groups of similar blocks, at most ``max_groups``: uint32[n_groups, n_bins].

    Args:
        rows: uint32[n_rows, n_bins], a histogram of each block.
        max_groups: Largest number of groups.
        share: Share of the array's values that was counted, by which a codebook's cost is weighed.
    """
    if len(rows) == 1:
        return rows
    if max_groups == 1:
        return rows.sum(axis=0, dtype=np.uint32, keepdims=True)
    groups = np.zeros((max_groups, rows.shape[1]), np.uint32)
    return groups[: code_costs.cluster(rows, np.uint64(TABLE_BITS * 256 * share), groups)]
