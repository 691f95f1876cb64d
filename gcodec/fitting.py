"""From counted symbols to the codebook that suits them, and what a codebook would cost on counted symbols.

Symbols are counted in bins (``kernels.survey``): zero, everything outside the window, then one bin per (level,
relative head).
"""

from __future__ import annotations

import numpy as np

from .codebook import MAX_SYMBOLS, Codebook, huffman_lengths, limited_lengths
from .errors import InvalidArgument
from .kernels.prefix_code import ESCAPE, MAX_LENGTH


def _trim(counts: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Per level the span of bins worth a code, [lo, hi), at most ``budget`` bins in all. ``counts``: int64[n_levels,
    window]."""
    spans = []
    for row in counts:
        used = np.flatnonzero(row)
        spans.append([int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0])
    while True:
        excess = sum(hi - lo for lo, hi in spans) > budget
        best = None
        for level, (lo, hi) in enumerate(spans):
            if hi == lo:
                continue
            inner = np.flatnonzero(counts[level, lo:hi])
            if not len(inner):
                spans[level] = [0, 0]
                continue
            for side, count, gap in (
                (0, counts[level, lo], (inner[1] if len(inner) > 1 else hi - lo)),
                (1, counts[level, hi - 1], (hi - lo - 1 - (inner[-2] if len(inner) > 1 else -1))),
            ):
                # An escape costs some 8 bits more than a code; a place in the table costs 4 bits.
                gain = 4 * int(gap) - 8 * int(count)
                if best is None or gain > best[0]:
                    best = (gain, level, side, int(gap))
        if best is None or (best[0] <= 0 and not excess):
            return [(lo, hi) for lo, hi in spans]
        _, level, side, gap = best
        spans[level][side] += gap if side == 0 else -gap


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
    bins = counts[2:].reshape(n_levels, -1)
    window = bins.shape[1]
    most = min(MAX_SYMBOLS, (1 << max_length) - 2)
    spans = _trim(bins, most)
    if not exact:
        room = most - sum(hi - lo for lo, hi in spans)
        for level, (lo, hi) in enumerate(spans):
            if hi > lo and room >= 4:
                wider = (max(lo - 2, 0), min(hi + 2, window))
                room -= (lo - wider[0]) + (wider[1] - hi)
                spans[level] = wider
    coded = np.concatenate([bins[level, lo:hi] for level, (lo, hi) in enumerate(spans)])
    outside = int(counts[1] + bins.sum() - coded.sum())
    weights = np.concatenate([counts[:1], coded, [outside]]) * 8
    if not exact:
        weights += 1
    if escape_threshold is not None:
        long = huffman_lengths(weights)[:-1] > escape_threshold
        weights[-1] += weights[:-1][long].sum()
        weights[:-1][long] = 0
    if np.count_nonzero(weights) < 2:
        weights[-1] = max(weights[-1], 1)
    if np.count_nonzero(weights) < 2:
        weights[0] = max(weights[0], 1)
    short = limited_lengths(weights, max_length)
    lengths = np.zeros(256, np.uint8)
    lengths[: len(short) - 1], lengths[ESCAPE] = short[:-1], short[-1]
    mask = (1 << head_bits) - 1
    ranges = tuple(((lo - center) & mask if hi > lo else 0, hi - lo) for lo, hi in spans)
    return Codebook(head_bits, ranges, lengths.tobytes())


def bin_costs(codebook: Codebook, window: int, center: int) -> np.ndarray:
    """Bits that each bin of a survey histogram costs under a codebook, uint32[n_bins]; a million where it has no
    code."""
    escape = codebook.lengths[ESCAPE] + codebook.head_bits if codebook.has_escape else 1_000_000
    n_levels = len(codebook.ranges)
    costs = np.full(2 + n_levels * window, escape, np.uint32)
    costs[0] = codebook.lengths[0] or escape
    number = 1
    mask = (1 << codebook.head_bits) - 1
    for level, (first, count) in enumerate(codebook.ranges):
        relative = (first + np.arange(count) + (mask >> 1) + 1 & mask) - (mask >> 1) - 1 + center
        lengths = np.frombuffer(codebook.lengths, np.uint8)[number : number + count].astype(np.uint32)
        inside = (relative >= 0) & (relative < window) & (lengths > 0)
        costs[2 + level * window + relative[inside]] = lengths[inside]
        number += count
    return costs
