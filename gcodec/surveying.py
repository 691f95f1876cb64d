"""Looking at an array before coding it: a count of a sample of its sub-streams, and what coding it would take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .columns import ColumnReferences, for_kernels
from .kernels import survey
from .prediction import Rows
from .valuetypes import ValueType
from .workers import run

STREAM_LOG2 = 8  #: log2 of the values per sub-stream, where nothing speaks for another
#: Of arrays up to so many values, one in so many pieces is looked at.
_SHARES, _LEAST_SHARE = ((1, 1 << 17), (8, 1 << 21), (16, 1 << 24)), 32
REFERENCE_BITS = 5  #: what a reference per sub-stream costs, about
STREAM_BITS = 8.5  #: what the length of a sub-stream and its last byte's spare bits cost, about
_EMPTY_BITS = 4  #: what one costs that is all zero
MAX_SURVEYED = 96  #: blocks whose distributions are compared when codebooks are formed


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
    values: np.ndarray, levels: np.ndarray, dtype: ValueType, n_levels: int, block: int, stream: int, threads: int,
    columns: Sequence[ColumnReferences] = (),
    step: int = 1,
) -> Survey:
    """Count a sample of the sub-streams of every ``step``-th block; other arguments as in :func:`make_plan`. The result
    does not depend on ``threads``."""
    window, center = window_of(n_levels)
    n_blocks = -(-len(values) // block)
    every = next((share for share, most in _SHARES if len(values) <= most), _LEAST_SHARE)
    bases = np.zeros(n_blocks, np.int64)
    by_block, by_stream = np.zeros((2, n_blocks, 2 + n_levels * window), np.uint32)

    # Only levels ask what is finite.
    found, infinity = for_kernels(columns), np.uint64(dtype.infinity if n_levels > 1 else 0)

    def work(begin: int, stop: int) -> None:
        survey.survey(
            values,
            levels if n_levels > 1 else None,
            len(values),
            block,
            stream,
            every,
            step,
            begin,
            stop,
            dtype.head_shift,
            dtype.head_mask,
            window,
            center,
            found,
            infinity,
            np.empty(stream, np.int8),
            np.empty(stream, dtype.uint),
            np.empty(2 * stream, np.uint16),
            bases,
            by_block,
            by_stream,
        )

    run(work, n_blocks, threads)
    return Survey(bases, by_block, by_stream, every, len(values) // every)


def stream_lengths(dtype: ValueType, rows: Sequence[Rows], n_values: int) -> list[int]:
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


def _stream_cost(seen: Survey, stream: int, allowed: bool, fixed: bool) -> tuple[float, bool]:
    """What symbols and sub-streams take, in bits, and whether heads relative to each sub-stream's mean are cheaper by
    more than the references cost. ``allowed``: they may be; ``fixed``: they are, if allowed."""
    step = _survey_step(len(seen.by_block))
    plain, relative, n_heads = survey.compare_references(seen.by_block, seen.by_stream, step)
    n_streams = int(n_heads) / stream
    plain, relative = int(plain) / 256, int(relative) / 256 + REFERENCE_BITS * n_streams
    references = allowed and (fixed or relative < plain)
    n_empty = max(seen.n_sampled / step / stream - n_streams, 0)
    return (relative if references else plain) + STREAM_BITS * n_streams + _EMPTY_BITS * n_empty, references


def _n_tails(seen: Survey) -> int:
    """Values with a tail among those that :func:`_stream_cost` looks at."""
    return int(seen.by_block[:: _survey_step(len(seen.by_block)), 1:].sum(dtype=np.int64))


def _survey_step(n_blocks: int) -> int:
    return max(-(-n_blocks // MAX_SURVEYED), 1)




class View(NamedTuple):
    """One way to code an array: ``bits`` that symbols and sub-streams of what was counted take; ``stream_log2``: values
    per sub-stream; ``references``: whether sub-streams have references of their own; ``seen``: the count;
    ``dtype``, with the usual head or a wide one; ``columns``: column references."""

    bits: float
    stream_log2: int
    references: bool
    seen: Survey
    dtype: ValueType
    columns: tuple[ColumnReferences, ...]

    @property
    def whole_bits(self) -> float:
        """``bits``, and the tails."""
        return self.bits + self.dtype.tail_bits * _n_tails(self.seen)


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

    def view(self, dtype: ValueType, stream_log2: int, columns: tuple[ColumnReferences, ...]) -> View:
        """One way, from a count of some blocks."""
        stream, step = 1 << stream_log2, _survey_step(-(-len(self.values) // self.block))
        seen = self._survey(dtype, stream, columns, step)
        bits, references = _stream_cost(seen, stream, self.allowed, self.fixed)
        return View(bits, stream_log2, references, seen, dtype, columns)

    def whole(self, view: View) -> Survey:
        """The count of all blocks for one way."""
        if _survey_step(len(view.seen.by_block)) == 1:
            return view.seen
        return self._survey(view.dtype, 1 << view.stream_log2, view.columns, 1)

    def _survey(self, dtype: ValueType, stream: int, columns: tuple[ColumnReferences, ...], step: int) -> Survey:
        values, levels, n_levels, block, *_, threads = self
        return take_survey(values, levels, dtype, n_levels, block, stream, threads, columns, step)

    def best(self, dtype: ValueType, lengths: Sequence[int], columns: tuple[ColumnReferences, ...]) -> View:
        """The cheapest, over these lengths of sub-streams and with column references or without."""
        found = min((self.view(dtype, length, columns) for length in lengths), key=lambda one: one[:2])
        if columns:
            found = min(found, self.view(dtype, found.stream_log2, ()), key=lambda one: one.bits)
        return found
