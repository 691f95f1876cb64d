"""What is decided before a block is coded: the codebooks of a frame, which block uses which, and reference heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from . import prior
from .codebook import Codebook
from .coding import Coding
from .fitting import bin_costs, from_histogram
from .kernels import fit, survey
from .prediction import Prediction, Rows, predict_rows
from .valuetypes import ValueType
from .workers import run

STREAM_LOG2 = 8  #: log2 of the values per sub-stream, where nothing speaks for another
_SAMPLE_ABOVE = 1 << 17  #: values; smaller arrays are counted in full
_EVERY = 8  #: of larger ones every eighth sub-stream, of much larger ones every sixteenth
_MAX_SURVEYED = 96  #: blocks whose distributions are compared when codebooks are formed
_REFERENCE_BITS = 5  #: what a reference per sub-stream costs, about
_STREAM_BITS = 8.5  #: what the length of a sub-stream and its last byte's spare bits cost, about
_EMPTY_BITS = 4  #: what one costs that is all zero
_WIDE_GAIN = 0.002  #: what a wide head, which is slower, has to save
_TABLE_BITS = 400  #: what a codebook costs in the frame, about


class Plan(NamedTuple):
    """``dtype``: the value type, perhaps with a wide head; ``stream_log2``: values per sub-stream; ``codebooks`` of the
    frame and the ``records`` that stand for them in it; per block: ``choice`` (int64, -1 for raw) and ``bases``
    (int64); ``references``: whether sub-streams have references of their own; ``counts``: uint32[n_blocks, n_bins],
    what was counted; ``prediction``: which blocks are predicted, and from what."""

    dtype: ValueType
    stream_log2: int
    codebooks: tuple[Codebook, ...]
    records: tuple[bytes, ...]
    choice: np.ndarray
    bases: np.ndarray
    references: bool
    counts: np.ndarray
    prediction: Prediction | None = None

    @property
    def histogram(self) -> np.ndarray:
        """What was counted in all blocks: uint64[n_bins]."""
        return self.counts.sum(axis=0, dtype=np.uint64)


class Given(NamedTuple):
    """Codebooks to choose from instead of making new ones, and their ``records``; ``references``: they are meant for
    heads relative to each sub-stream's mean, not to each block's."""

    codebooks: tuple[Codebook, ...]
    records: tuple[bytes, ...]
    references: bool


class Survey(NamedTuple):
    """What was counted of an array: per block ``bases`` (int64[n_blocks]) and histograms (uint32[n_blocks, n_bins])
    of heads relative to them and to each sub-stream's mean; ``every``: which share of sub-streams was looked at;
    ``n_sampled``: values in them, about. Of a sub-stream of zeros one value is counted."""

    bases: np.ndarray
    by_block: np.ndarray
    by_stream: np.ndarray
    every: int
    n_sampled: int


def window_of(n_levels: int) -> tuple[int, int]:
    """(window, center) of survey histograms."""
    return (survey.WINDOW, survey.CENTER) if n_levels == 1 else (survey.LADDER_WINDOW, survey.LADDER_CENTER)


def take_survey(
    values: np.ndarray, levels: np.ndarray, dtype: ValueType, n_levels: int, block: int, stream: int, threads: int
) -> Survey:
    """Count a sample of an array's sub-streams; arguments as in :func:`make_plan`. The result does not depend on
    ``threads``."""
    window, center = window_of(n_levels)
    n_blocks = -(-len(values) // block)
    every = 1 if len(values) <= _SAMPLE_ABOVE else _EVERY if len(values) <= 16 * _SAMPLE_ABOVE else 2 * _EVERY
    bases = np.zeros(n_blocks, np.int64)
    by_block, by_stream = np.zeros((2, n_blocks, 2 + n_levels * window), np.uint32)

    def work(begin: int, stop: int) -> None:
        survey.survey(
            values,
            levels if n_levels > 1 else None,
            len(values),
            block,
            stream,
            every,
            begin,
            stop,
            dtype.head_shift,
            dtype.head_mask,
            window,
            center,
            bases,
            by_block,
            by_stream,
        )

    run(work, n_blocks, threads)
    return Survey(bases, by_block, by_stream, every, len(values) // every)


def make_plan(
    values: np.ndarray,
    levels: np.ndarray,
    dtype: ValueType,
    n_levels: int,
    block: int,
    lossy: bool,
    coding: Coding,
    threads: int = 1,
    given: Given | None = None,
    rows: Sequence[Rows] = (),
    base: np.ndarray | None = None,
    wide: bool = False,
) -> Plan:
    """Decide sub-streams, codebooks, references and predictions for an array.

    ``values``: uintW[n]; ``levels``: uint8[n] or empty; ``block``: values per block; ``lossy``: values will be rounded,
    so that others than these occur; ``rows``: tensors in it whose rows are known;
    ``base``: uintW[n], an earlier array of this kind, or None; ``wide``: consider a wide head.
    """
    allowed = given.references if given is not None else coding.references
    candidates: list[tuple[float, int, bool, Survey]] = []
    for stream_log2 in _stream_lengths(dtype, rows, len(values)):
        stream = 1 << stream_log2
        seen = take_survey(values, levels, dtype, n_levels, block, stream, threads)
        bits, references = _stream_cost(seen, stream, allowed, given is not None)
        candidates.append((bits, stream_log2, references, seen))
    bits, stream_log2, references, seen = min(candidates, key=lambda one: one[:2])
    stream = 1 << stream_log2
    if wide and dtype.wide is not None and n_levels == 1 and not lossy:
        closer = take_survey(values, levels, dtype.wide, 1, block, stream, threads)
        wide_bits, wide_references = _stream_cost(closer, stream, allowed, given is not None)
        wide_bits += dtype.wide.tail_bits * _n_tails(closer)
        if (1 + _WIDE_GAIN) * wide_bits < bits + dtype.tail_bits * _n_tails(seen):
            dtype, references, seen = dtype.wide, wide_references, closer
    if given is None:
        counts = seen.by_stream if references else seen.by_block
        codebooks = _make_codebooks(counts, dtype, n_levels, seen.every, seen.every == 1 and not lossy, coding)
        given = _cheaper_prior(codebooks, counts, dtype, n_levels, references, seen) or Given(
            codebooks, tuple(codebook.record for codebook in codebooks), references
        )
    counts = seen.by_stream if given.references else seen.by_block
    choice = _choose(given.codebooks, counts, n_levels)
    prediction = None
    if coding.prediction and not lossy and n_levels == 1 and dtype.predictable and (rows or base is not None):
        expected = _expected_bits(given, choice, counts, dtype, seen.every, stream)
        prediction = predict_rows(values, dtype, rows, base, block, stream, expected)
    return Plan(
        dtype,
        stream_log2,
        given.codebooks,
        given.records,
        choice,
        seen.bases,
        given.references,
        counts,
        prediction,
    )


def _n_tails(seen: Survey) -> int:
    """Values with a tail among those that :func:`_stream_cost` looks at."""
    return int(seen.by_block[:: _survey_step(seen), 1:].sum(dtype=np.int64))


def _survey_step(seen: Survey) -> int:
    return max(-(-len(seen.by_block) // _MAX_SURVEYED), 1)


def _expected_bits(
    given: Given, choice: np.ndarray, counts: np.ndarray, dtype: ValueType, every: int, stream: int
) -> np.ndarray:
    """About what each block takes as a coded one, float64[n_blocks]."""
    window, center = window_of(1)
    if not given.codebooks:
        return np.full(len(counts), 0.0)
    costs = np.stack([bin_costs(codebook, window, center) for codebook in given.codebooks])
    tails = np.full(counts.shape[1], dtype.tail_bits)
    tails[0] = 0
    bits = (counts * (costs[choice] + tails)).sum(axis=1, dtype=np.float64)
    n_streams = counts.sum(axis=1) / stream
    return every * (bits + n_streams * (_STREAM_BITS + _REFERENCE_BITS * given.references))


def _choose(codebooks: Sequence[Codebook], counts: np.ndarray, n_levels: int) -> np.ndarray:
    """The cheapest codebook of every block, -1 where there is none: int64[n_blocks]."""
    choice = np.zeros(len(counts), np.int64) if codebooks else np.full(len(counts), -1, np.int64)
    if len(codebooks) > 1:
        window, center = window_of(n_levels)
        survey.choose(counts, np.stack([bin_costs(codebook, window, center) for codebook in codebooks]), choice)
    return choice


def _cheaper_prior(
    codebooks: tuple[Codebook, ...], counts: np.ndarray, dtype: ValueType, n_levels: int, references: bool, seen: Survey
) -> Given | None:
    """A codebook that comes with gcodec, where naming it is cheaper than carrying a made one: small arrays."""
    if len(codebooks) != 1 or seen.every != 1 or references:
        return None
    window, center = window_of(n_levels)
    costs = bin_costs(codebooks[0], window, center)
    best, best_bits = None, fit.spent(counts, costs) + 8 * len(codebooks[0].record)
    for record, codebook, costs in _shipped(dtype.name, n_levels):
        bits = fit.spent(counts, costs) + 8 * len(record)
        if bits < best_bits:
            best, best_bits = Given((codebook,), (record,), False), bits
    return best


@lru_cache(64)
def _shipped(dtype: str, n_levels: int) -> list[tuple[bytes, Codebook, np.ndarray]]:
    """Record, codebook and costs of the codebooks that come with gcodec for a value type."""
    window, center = window_of(n_levels)
    return [
        (codebook.reference(codebook_id), codebook, bin_costs(codebook, window, center))
        for codebook_id, codebook in prior.fitting(dtype, n_levels)
    ]


def _stream_lengths(dtype: ValueType, rows: Sequence[Rows], n_values: int) -> list[int]:
    """log2 of the values per sub-stream that are worth a try. Shorter sub-streams cost bits for their lengths, but
    where they are whole rows each has its own reference, and rows of zeros vanish."""
    lengths = [STREAM_LOG2 + 1, STREAM_LOG2] if dtype.bits == 16 else [STREAM_LOG2]
    for log2 in (STREAM_LOG2 - 1, STREAM_LOG2 - 2):
        whole = [tensor for tensor in rows if tensor.n_columns % (1 << log2) == 0 and tensor.n_columns % (2 << log2)]
        if sum(tensor.stop - tensor.start for tensor in whole) > n_values // 8:
            lengths.append(log2)
    return lengths


def _stream_cost(seen: Survey, stream: int, allowed: bool, fixed: bool) -> tuple[float, bool]:
    """What symbols and sub-streams take, in bits, and whether heads relative to each sub-stream's mean are cheaper by
    more than the references cost. ``allowed``: they may be; ``fixed``: they are, if allowed."""
    step = _survey_step(seen)
    plain, relative, n_heads = survey.compare_references(seen.by_block, seen.by_stream, step)
    n_streams = int(n_heads) / stream
    plain, relative = int(plain) / 256, int(relative) / 256 + _REFERENCE_BITS * n_streams
    references = allowed and (fixed or relative < plain)
    n_empty = max(seen.n_sampled / step / stream - n_streams, 0)
    return (relative if references else plain) + _STREAM_BITS * n_streams + _EMPTY_BITS * n_empty, references


def _make_codebooks(
    counts: np.ndarray, dtype: ValueType, n_levels: int, every: int, exact: bool, coding: Coding
) -> tuple[Codebook, ...]:
    """Codebooks for blocks whose histograms are the rows of ``counts``."""
    _, center = window_of(n_levels)
    used = np.empty(len(counts), np.int64)
    used = used[: survey.rows_in_use(counts, used)]  # all-zero blocks need no codebook
    if not len(used):
        return ()
    if len(used) > _MAX_SURVEYED:
        used = used[np.linspace(0, len(used) - 1, _MAX_SURVEYED).astype(np.int64)]
        exact = False
    most, share = min(coding.max_codebooks, len(used)), len(used) / len(counts) / every
    groups = _groups(counts if len(used) == len(counts) else counts[used], most, share)
    return tuple(
        from_histogram(
            row,
            dtype.head_bits,
            n_levels,
            center,
            exact=exact,
            max_length=coding.max_length,
            escape_threshold=coding.escape_threshold,
        )
        for row in groups
        if len(groups) == 1 or row.any()
    )


def _groups(rows: np.ndarray, most: int, share: float) -> np.ndarray:
    """Histograms of at most ``most`` groups of blocks: uint32[n_groups, n_bins]. ``share``: of the values that was
    counted."""
    if len(rows) == 1:
        return rows
    if most == 1:
        return rows.sum(axis=0, dtype=np.uint32, keepdims=True)
    live = np.flatnonzero(rows.any(axis=0))
    choice, own = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.uint64)
    sums = np.zeros((most + 1, len(live)), np.uint32)
    table_cost = np.uint64(_TABLE_BITS * 256 * share)
    cost, spent = np.zeros(sums.shape, np.int64), np.zeros(most + 1, np.uint64)
    n = survey.cluster(np.ascontiguousarray(rows[:, live]), most, table_cost, choice, sums, cost, spent, own)
    whole = np.zeros((n, rows.shape[1]), np.uint32)
    whole[:, live] = sums[:n]
    return whole
