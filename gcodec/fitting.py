"""From counted symbols to the codebook that suits them, and what a codebook would cost on counted symbols.

Symbols are counted in bins (``kernels.survey``): zero, everything outside the window, then one bin per (level,
relative head).
"""

from __future__ import annotations

import numpy as np

from .codebook import MAX_SYMBOLS, Codebook, huffman_lengths, limited_lengths
from .errors import InvalidArgument
from .kernels import fit
from .kernels.prefix_code import ESCAPE, MAX_LENGTH


def from_histogram(
    histogram: np.ndarray,
    head_bits: int,
    n_levels: int,
    center: int,
    *,
    exact: bool = False,
    max_length: int = MAX_LENGTH,
    escape_threshold: int | None = None,
) -> Codebook:
    """The codebook that suits counted symbols.

    ``histogram``: uint32[2 + n_levels * window] as the survey kernels count it (zero, outside, then (level, relative
    head + center)); ``exact``: these are all values that will be coded, none else will occur; otherwise nearby
    symbols, zero and the escape get codes unseen. ``max_length``: length limit in bits, 2 ... 12;
    ``escape_threshold``: GComp's n_theta: symbols whose native Huffman code is longer than this are left to the
    escape. Raises InvalidArgument.
    """
    if not 2 <= max_length <= MAX_LENGTH:
        raise InvalidArgument(f"max_length {max_length} is not in 2 ... {MAX_LENGTH}")
    counts = np.asarray(histogram).astype(np.int64)
    window = (len(counts) - 2) // n_levels
    most = min(MAX_SYMBOLS, (1 << max_length) - 2)
    places, weights = np.empty((n_levels, 2), np.int64), np.empty(most + 2, np.int64)
    weights = weights[: fit.choose_symbols(counts, n_levels, window, most, exact, places, weights)]
    if escape_threshold is not None:
        long = huffman_lengths(weights)[:-1] > escape_threshold
        weights[-1] += weights[:-1][long].sum()
        weights[:-1][long] = 0
    if np.count_nonzero(weights) < 2:  # a code has two symbols at least
        weights[-1] = weights[-1] or 1
        weights[0] = weights[0] or np.count_nonzero(weights) < 2
    short = limited_lengths(weights, max_length).tobytes()
    mask = (1 << head_bits) - 1
    ranges = tuple(((lo - center) & mask if hi > lo else 0, hi - lo) for lo, hi in places.tolist())
    return Codebook(head_bits, ranges, short[:-1].ljust(ESCAPE, b"\0") + short[-1:])


def bin_costs(codebook: Codebook, window: int, center: int) -> np.ndarray:
    """Bits that each bin of a survey histogram costs under a codebook, uint32[n_bins]; a million where it has no
    code."""
    costs = np.empty(2 + len(codebook.ranges) * window, np.uint32)
    fit.bin_costs(codebook.range_array, codebook.length_array, codebook.head_bits, window, center, costs)
    return costs
