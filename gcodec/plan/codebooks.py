"""Make the codebooks that suit counted symbols, and tell what a codebook would cost on counted symbols.

Symbols are counted in bins (``kernels.sample``): zero, everything outside the window, then one bin per (level,
relative head).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..format.codebook import MAX_SYMBOLS, Codebook, huffman_lengths
from ..kernels.entropy import codebook_fit
from ..kernels.entropy.prefix_code import ESCAPE, MAX_LENGTH
from ..kernels.sample import code_costs

MAX_SPREAD_LEVELS = 3  #: levels up to which their heads may lie as far apart as those of one level


def window_of(n_levels: int) -> tuple[int, int]:
    """Return (window, center) of the histograms of samples: bins per level, and the bin of relative head 0.

    A few levels may be those of unused bits (:mod:`unused_bits`), whose values lie as far apart as any: where an array
    is multiplied by a mask, -0 stands beside the weights. The levels of an optimizer's ladder, which are more, do not.
    """
    if n_levels <= MAX_SPREAD_LEVELS:
        return code_costs.WINDOW, code_costs.CENTER
    return code_costs.LADDER_WINDOW, code_costs.LADDER_CENTER


def n_bins_of(n_levels: int) -> int:
    """Return the number of bins of a sample's histogram: zero, outside, then a window for each level."""
    return 2 + n_levels * window_of(n_levels)[0]


def have_codes(counts: np.ndarray) -> np.ndarray:
    """Return which symbols get a code in a codebook that suits these counts: bool[n_levels, window].

    Args:
        counts: int64[n_levels, window], values of each level and relative head.
    """
    n_levels, window = counts.shape
    spans, n_weights = np.empty((1, n_levels, 2), np.int64), np.empty(1, np.int64)
    weights = np.zeros((1, MAX_SYMBOLS + 2), np.int64)
    histogram = np.concatenate([np.zeros(2, np.int64), counts.reshape(-1)])[None]
    codebook_fit.choose_symbols(histogram, window, False, spans, weights, n_weights)
    begins, ends, bins = spans[0, :, :1], spans[0, :, 1:], np.arange(window)
    result: np.ndarray = (bins >= begins) & (bins < ends)
    return result


def from_histograms(
    histograms: np.ndarray,
    head_bits: int,
    n_levels: int,
    center: int,
    *,
    exact: bool = False,
    max_length: int = MAX_LENGTH,
    escape_threshold: int | None = None,
) -> tuple[Codebook, ...]:
    """Make the codebooks that suit counted symbols, one for each row.

    Args:
        histograms: Unsigned integers[n, 2 + n_levels * window] as ``kernels.sample`` counts them: zero, outside, then
            (level, relative head + center).
        head_bits: Bits of a head.
        n_levels: Number of levels.
        center: Bin of relative head 0 in the window.
        exact: True if these are all values that will be coded, and none else will occur; otherwise nearby symbols, zero
            and the escape get codes unseen.
        max_length: Length limit in bits, 2 ... 12.
        escape_threshold: GComp's n_theta: symbols whose native Huffman code is longer than this are left to the escape;
            None for no such rule.

    Raises:
        InvalidArgument: If ``max_length`` is out of its range.
    """
    if not 2 <= max_length <= MAX_LENGTH:
        raise InvalidArgument(f"max_length must be in 2 ... {MAX_LENGTH}, not {max_length}")
    counts = np.asarray(histograms).astype(np.int64)
    n, window, max_symbols = len(counts), (counts.shape[1] - 2) // n_levels, min(MAX_SYMBOLS, (1 << max_length) - 2)
    spans, n_weights = np.empty((n, n_levels, 2), np.int64), np.empty(n, np.int64)
    weights, lengths = np.zeros((n, max_symbols + 2), np.int64), np.zeros((n, ESCAPE + 1), np.uint8)
    codebook_fit.choose_symbols(counts, window, exact, spans, weights, n_weights)
    if escape_threshold is not None:
        for row, size in zip(weights, n_weights, strict=True):
            long = huffman_lengths(row[:size])[:-1] > escape_threshold
            row[size - 1] += row[: size - 1][long].sum()
            row[: size - 1][long] = 0
    codebook_fit.find_lengths(weights, n_weights, max_length, lengths)
    return _made(head_bits, spans, lengths, center)


def _made(head_bits: int, spans: np.ndarray, lengths: np.ndarray, center: int) -> tuple[Codebook, ...]:
    """Return codebooks with symbols for given bins and with given code lengths.

    Args:
        head_bits: Bits of a head.
        spans: int64[n, n_levels, 2], first bin and end of each codebook's symbols at each level.
        lengths: uint8[n, 256], bits of each code.
        center: Bin of relative head 0 in the window.
    """
    n = len(lengths)
    ranges, ends = np.empty_like(spans), np.empty(n, np.int64)
    records = np.empty((n, codebook_fit.RECORD_BYTES), np.uint8)
    codebook_fit.write_records(spans, lengths, center, (1 << head_bits) - 1, ranges, records, ends)
    data = records.tobytes()
    starts = range(0, len(data), codebook_fit.RECORD_BYTES)
    return tuple(
        [
            Codebook.made(head_bits, book_ranges, row, data[start : start + end])
            for book_ranges, row, start, end in zip(ranges, lengths, starts, ends.tolist(), strict=True)
        ]
    )


def from_histogram(histogram: np.ndarray, head_bits: int, n_levels: int, center: int, **rules: Any) -> Codebook:
    """Make the codebook that suits one histogram, integers[n_bins]; other arguments as for :func:`from_histograms`."""
    return from_histograms(np.asarray(histogram)[None], head_bits, n_levels, center, **rules)[0]


def bin_costs(codebooks: Sequence[Codebook]) -> np.ndarray:
    """Return the bits that each bin of a sample's histogram costs under codebooks for the same values.

    Args:
        codebooks: The codebooks, at least one.

    Returns:
        uint32[n_codebooks, n_bins]; a million where a bin has no code.
    """
    window, center = window_of(len(codebooks[0].ranges))
    ranges = np.array([codebook.range_array for codebook in codebooks])
    lengths = np.frombuffer(b"".join(codebook.lengths for codebook in codebooks), np.uint8).reshape(-1, ESCAPE + 1)
    costs = np.empty((len(ranges), 2 + ranges.shape[1] * window), np.uint32)
    codebook_fit.fill_bin_costs(ranges, lengths, codebooks[0].head_bits, window, center, costs)
    return costs


@lru_cache(64)
def tail_costs(kept: tuple[int, ...]) -> np.ndarray:
    """Return the tail bits of the values in each bin of a sample's histogram: uint32[n_bins].

    Args:
        kept: For each level, the tail bits that are kept of its values.
    """
    window, _ = window_of(len(kept))
    return np.concatenate([[0, kept[0]], np.repeat(kept, window)]).astype(np.uint32)


@lru_cache(1024)
def kept_costs(codebooks: tuple[Codebook, ...]) -> np.ndarray:
    """Return :func:`bin_costs` of codebooks that are used again and again, kept from the last time."""
    return bin_costs(codebooks)
