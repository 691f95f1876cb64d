"""Fit a code to counted residuals, and tell which blocks it makes smaller than they are otherwise.

A trial counts the residuals of a sample of some blocks. Only blocks that gain by being predicted have a say in the
code, and which ones gain depends on the code:

    counts of all blocks  ->  code  ->  blocks that gain  ->  code of these  ->  what each block takes
"""

from __future__ import annotations

import numpy as np

from ..core.jit import allocating, kernel
from ..core.unaligned import subarray
from ..entropy.prefix_code import MAX_LENGTH, package_merge

SMOOTHING = 16  #: a symbol that was not counted gets a code, too, as if it were one so many times rarer than one event


@kernel
def _sum_rows(counts, marked, weight, sums):
    """Add up histograms for a code: of each symbol its events in the marked rows, times ``weight``, and 1.

    Args:
        counts: uint32[n_blocks, 256].
        marked: bool[n_blocks], the rows that are added up.
        weight: Factor of an event.
        sums: int64[n_symbols], result; there are no other symbols.
    """
    for symbol in range(len(sums)):
        sums[symbol] = 0
    for b in range(len(counts)):
        if marked[b]:
            row = subarray(counts, b * counts.shape[1], len(sums))
            for symbol in range(len(sums)):
                sums[symbol] += np.int64(row[symbol])
    for symbol in range(len(sums)):
        sums[symbol] = sums[symbol] * weight + 1


@kernel
def _bits_of_blocks(counts, every, lengths, digit_bits, overhead, bits):
    """Find what blocks take as predicted ones.

    Args:
        counts: uint32[n_blocks, 256].
        every: One value in so many was counted.
        lengths: uint8[n_symbols], bits of each symbol's code.
        digit_bits: uint8[256], bits of its digits.
        overhead: Bits that a block takes besides.
        bits: float64[n_blocks], result; infinite where nothing was counted.
    """
    for b in range(len(counts)):
        row, total, number = subarray(counts, b * counts.shape[1], len(lengths)), np.int64(0), np.int64(0)
        for symbol in range(len(lengths)):
            count = np.int64(row[symbol])
            total += count * (np.int64(lengths[symbol]) + np.int64(digit_bits[symbol]))
            number += count
        bits[b] = np.float64(total * every) + overhead if number else np.inf


@allocating
def fit_residuals(counts, every, digit_bits, plain_bits, overhead, lengths, bits):
    """Fit a code to the residuals of the blocks that gain by being predicted.

    Args:
        counts: uint32[n_blocks, 256], residuals of a sample of each block's values.
        every: One value in so many was counted.
        digit_bits: uint8[256], bits of each symbol's digits.
        plain_bits: float64[n_blocks], what each block takes if it is not predicted.
        overhead: Bits that a predicted block takes besides its residuals.
        lengths: uint8[n_symbols], result: bits of each symbol's code.
        bits: float64[n_blocks], result: what each block takes if it is predicted; infinite where nothing was counted.

    Returns:
        The bits that are saved by predicting the blocks that gain.
    """
    n = len(lengths)
    sums, order, weight = np.empty(n, np.int64), np.empty(n, np.int64), np.empty((2, 2 * n), np.uint64)
    is_leaf, n_items = np.empty((MAX_LENGTH, 2 * n), np.uint8), np.empty(MAX_LENGTH, np.int64)
    marked = np.ones(len(counts), np.bool_)
    for last in (False, True):
        _sum_rows(counts, marked, np.int64(SMOOTHING * every), sums)
        package_merge(sums, MAX_LENGTH, order, weight, is_leaf, n_items, lengths)
        _bits_of_blocks(counts, every, lengths, digit_bits, overhead, bits)
        any_gains = False
        for b in range(len(counts)):
            marked[b] = bits[b] < plain_bits[b]
            any_gains |= marked[b]
        if not any_gains or last:
            break
    saved = 0.0
    for b in range(len(counts)):
        if marked[b]:
            saved += plain_bits[b] - bits[b]
    return saved
