"""What is decided before a block is coded: the codebooks of a frame, which block uses which, and reference heads."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format import shipped as prior
from ..format.codebook import Codebook
from ..format.columns import ColumnReferences
from ..kernels.entropy import codebook_fit
from ..kernels.sample import code_costs
from ..options import EncoderOptions
from ..threads import n_threads
from .codebooks import bin_costs, from_histograms, kept_costs, window_of
from .columns import fit_columns
from .prediction import Prediction, Predictor, rows_of
from .request import EncodeRequest, FixedCodebooks
from .sampling import MAX_SURVEYED, REFERENCE_BITS, STREAM_BITS, STREAM_LOG2, Looking, View, stream_lengths

_WIDE_VALUES = 1 << 12  #: values from which one may
_TABLE_BITS = 400  #: what a codebook costs in the frame, about


class FramePlan(NamedTuple):
    """``dtype``: the value type, perhaps with a wide head; ``stream_log2``: values per sub-stream; ``codebooks`` of the
    frame and the ``records`` that stand for them in it; per block: ``choice`` (int64, -1 for raw) and ``bases``
    (int64); ``references``: whether sub-streams have references of their own; ``counts``: uint32[n_blocks, n_bins],
    what was counted; ``prediction``: which blocks are predicted, and from what; ``columns``: of coded ones."""

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

    @property
    def histogram(self) -> np.ndarray:
        """What was counted in all blocks: uint64[n_bins]."""
        return self.counts.sum(axis=0, dtype=np.uint64)


def no_plan(dtype: DType, n_blocks: int) -> FramePlan:
    """All blocks raw, or constant."""
    nothing = np.zeros((n_blocks, 0), np.uint32)
    raw, bases = np.full(n_blocks, -1, np.int64), np.zeros(n_blocks, np.int64)
    return FramePlan(dtype, STREAM_LOG2, (), (), raw, bases, False, nothing)


def make_plan(request: EncodeRequest, block: int) -> FramePlan:
    """Decide sub-streams, codebooks, references and predictions of a frame.

    Args:
        request: The array and how to encode it.
        block: Values per block.

    Returns:
        The plan. It does not depend on the number of threads.

    Raises:
        InvalidArgument: If the number of threads is below 1.
    """
    (values, dtype, shape, _), bit_layout, levels, options = request[:4]
    fixed, base, lossy, n_levels = request.fixed, request.base, bit_layout.lossy, len(bit_layout.levels)
    threads = n_threads(request.threads, len(values))
    rows = rows_of(request.shapes or (shape,)) if options.prediction or options.columns else ()
    allowed = fixed.references if fixed is not None else options.references
    look = Looking(values, levels, n_levels, block, allowed, fixed is not None, threads)
    columns = fit_columns(values, rows, dtype) if rows and options.columns and fixed is None else ()
    lengths = stream_lengths(dtype, rows, len(values))
    view = look.best(dtype, lengths, columns)
    others: list[tuple[View, float]] = []  # and what they have to save
    wide = request.standalone and options.wide_heads and n_levels == 1 and not lossy and len(values) >= _WIDE_VALUES
    if wide and dtype.wide is not None and (dtype.bits < 32 or not view.columns):
        starts = {one.start for one in view.columns}
        some = [one for one in rows if one.start in starts]
        finer = fit_columns(values, some, dtype.wide) if some else ()
        others.append((look.best(dtype.wide, [view.stream_log2], finer), dtype.wide.min_saving))
    predictor = None
    if options.prediction and not lossy and n_levels == 1 and dtype.predictable and (rows or base is not None):
        predictor = Predictor(values, dtype, rows, base, block)
    if others and predictor is None:  # what was counted decides; only predictions have to be weighed against a plan
        (other, gain), *others = others
        view = other if (1 + gain) * other.bits < view.bits else view
    decide = partial(_plan_of, look, options=options, lossy=lossy, fixed=fixed, predictor=predictor)
    plan, bits, coded_bits = decide(view, weigh=bool(others))
    left = None  # to column references and wide heads: all blocks but predicted ones
    if plan.prediction is not None:
        left = plan.prediction.choice < 0
        if view.columns:  # other sub-streams may suit the rest better
            others.append((look.best(dtype, lengths, ()), 0.0))
    for other, gain in others:
        better = (1 + gain) * other.bits / max(view.bits, 1) * coded_bits < bits
        if better or (left is not None and (1 + gain) * look.bits(other, left) < look.bits(view, left)):
            another, its_bits, _ = decide(other, weigh=True)
            if (1 + gain) * its_bits < bits:
                plan, bits = another, its_bits
    return plan


def _plan_of(
    look: Looking,
    view: View,
    *,
    options: EncoderOptions,
    lossy: bool,
    fixed: FixedCodebooks | None,
    predictor: Predictor | None,
    weigh: bool,
) -> tuple[FramePlan, float, float]:
    """The rest of :func:`make_plan`, and about what all blocks take, and would if none were predicted: if there is a
    predictor or to ``weigh``."""
    dtype, stream_log2, columns, _, references, _ = view
    stream, seen, again = 1 << stream_log2, look.whole(view), fixed is not None
    if fixed is None:
        fixed = _given_for(seen.counts(references), dtype, look.n_levels, seen.every, lossy, references, options)
    counts = seen.counts(fixed.references)
    costs = None
    if len(fixed.codebooks) > 1 or (fixed.codebooks and (predictor or weigh)):
        costs = kept_costs(fixed.codebooks) if again else bin_costs(fixed.codebooks)
    choice = _choose(fixed.codebooks, costs, counts)
    prediction, bits, coded_bits = None, 0.0, 0.0
    if predictor or weigh:
        expected = _expected_bits(costs, choice, counts, dtype, seen.every, stream, references)
        bits = coded_bits = float(expected.sum())
        if predictor:
            prediction = predictor.weigh(expected, stream)
        if prediction is not None:
            bits, left = prediction.bits, prediction.choice < 0
            if not left.any():
                fixed, choice = FixedCodebooks((), (), references), np.full_like(choice, -1)
            elif not again:  # predicted blocks have no say in the codebooks of the others
                others = _given_for(counts[left], dtype, look.n_levels, seen.every, lossy, references, options)
                if others.codebooks or seen.every == 1:  # else a look at a few has shown nothing but zeros
                    fixed, costs = others, bin_costs(others.codebooks) if others.codebooks else None
                    choice = _choose(fixed.codebooks, costs, counts)
                    after = _expected_bits(costs, choice, counts, dtype, seen.every, stream, references)
                    bits += float((after - expected)[left].sum())
    bits += 8 * sum(map(len, fixed.records))
    plan = FramePlan(
        dtype,
        stream_log2,
        fixed.codebooks,
        fixed.records,
        choice,
        seen.bases,
        fixed.references,
        counts,
        prediction,
        columns if fixed.codebooks else (),
    )
    return plan, bits, coded_bits


def _expected_bits(
    costs: np.ndarray | None,
    choice: np.ndarray,
    counts: np.ndarray,
    dtype: DType,
    every: int,
    stream: int,
    references: bool,
) -> np.ndarray:
    """About what each block takes as a coded one, float64[n_blocks]. ``costs``: of the codebooks, None for none."""
    if costs is None:
        return np.full(len(counts), 0.0)
    bits, numbers = np.zeros((2, len(counts)), np.int64)
    codebook_fit.add_costs(counts, costs, choice, dtype.tail_bits, bits, numbers)
    return every * (bits + numbers / stream * (STREAM_BITS + REFERENCE_BITS * references))


def _choose(codebooks: tuple[Codebook, ...], costs: np.ndarray | None, counts: np.ndarray) -> np.ndarray:
    """The cheapest codebook of every block: int64[n_blocks], -1 where there is none. ``costs``: of all codebooks,
    needed where there are several."""
    choice = np.full(len(counts), 0 if codebooks else -1, np.int64)
    if len(codebooks) > 1:
        code_costs.choose_codebooks(counts, costs, choice)
    return choice


def _given_for(
    counts: np.ndarray, dtype: DType, n_levels: int, every: int, lossy: bool, references: bool, options: EncoderOptions
) -> FixedCodebooks:
    """Codebooks for blocks whose histograms are the rows of ``counts``: made, or where naming it is cheaper than
    carrying a made one, which it is for small arrays, one that comes with gcodec."""
    codebooks = _make_codebooks(counts, dtype, n_levels, every, every == 1 and not lossy, options)
    shipped = _shipped(dtype, n_levels)
    if len(codebooks) == 1 and every == 1 and not references and shipped.codebooks:
        spent = codebook_fit.spent(counts, np.concatenate([bin_costs(codebooks), shipped.costs])) + shipped.record_bits
        spent[0] += 8 * codebooks[0].record_bytes
        best = int(spent.argmin())
        if best:
            return FixedCodebooks((shipped.codebooks[best - 1],), (shipped.records[best - 1],), False)
    return FixedCodebooks(codebooks, tuple(codebook.record for codebook in codebooks), references)


class _Shipped(NamedTuple):
    """Codebooks that come with gcodec, their ``records`` and ``costs`` (uint32[n, n_bins]); ``record_bits``:
    uint64[1 + n], those of their records, and before them 0."""

    codebooks: tuple[Codebook, ...]
    records: tuple[bytes, ...]
    costs: np.ndarray
    record_bits: np.ndarray


@lru_cache(64)
def _shipped(dtype: DType, n_levels: int) -> _Shipped:
    """Those for a value type."""
    found = [one for one in prior.fitting(dtype.name, n_levels) if one[1].head_bits == dtype.head_bits]
    books, records = tuple(book for _, book in found), tuple(book.reference(number) for number, book in found)
    costs = bin_costs(books) if books else np.zeros((0, 0), np.uint32)
    return _Shipped(books, records, costs, np.array([0, *(8 * len(record) for record in records)], np.uint64))


def _make_codebooks(
    counts: np.ndarray, dtype: DType, n_levels: int, every: int, exact: bool, options: EncoderOptions
) -> tuple[Codebook, ...]:
    """Codebooks for blocks whose histograms are the rows of ``counts``."""
    _, center = window_of(n_levels)
    used = np.empty(len(counts), np.int64)
    used = used[: code_costs.rows_in_use(counts, used)]  # all-zero blocks need no codebook
    if not len(used):
        return ()
    if len(used) > MAX_SURVEYED:
        used = used[np.linspace(0, len(used) - 1, MAX_SURVEYED).astype(np.int64)]
        exact = False
    most, share = min(options.max_codebooks, len(used)), len(used) / len(counts) / every
    groups = _groups(counts if len(used) == len(counts) else counts[used], most, share)
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


def _groups(rows: np.ndarray, most: int, share: float) -> np.ndarray:
    """Histograms of at most ``most`` groups of blocks: uint32[n_groups, n_bins]. ``share``: of the values that was
    counted."""
    if len(rows) == 1:
        return rows
    if most == 1:
        return rows.sum(axis=0, dtype=np.uint32, keepdims=True)
    return code_costs.cluster(rows, most, np.uint64(_TABLE_BITS * 256 * share))
