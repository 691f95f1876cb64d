"""The law of codes for predicted residuals: they are fitted to the blocks that gain, which the code decides."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.format.codebook import limited_lengths
from gcodec.format.tables import digit_tables
from gcodec.kernels.predict.trials import SMOOTHING, fit_residuals


def defined_fit(
    counts: np.ndarray, every: int, digit_bits: np.ndarray, plain_bits: np.ndarray, overhead: float, n_symbols: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return code lengths and the bits of blocks by their definition, in whole arrays."""
    used = np.ones(len(counts), bool)
    for _ in range(2):
        sums = counts[used, :n_symbols].astype(np.uint64).sum(axis=0) * np.uint64(every)
        lengths = limited_lengths(sums * np.uint64(SMOOTHING) + np.uint64(1))
        bits = every * (counts[:, :n_symbols] @ (lengths.astype(np.float64) + digit_bits[:n_symbols])) + overhead
        bits[~counts.any(axis=1)] = np.inf
        used = bits < plain_bits
        if not used.any():
            break
    return lengths, bits


@pytest.mark.parametrize("n_digits", [4, 8])
@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("seed", range(8))
def test_a_code_is_fitted_to_the_blocks_that_gain_by_it(n_digits, every, seed):
    rng = np.random.default_rng(seed)
    n_blocks, n_symbols = int(rng.integers(1, 9)), 1 + 15 * n_digits
    digit_bits = digit_tables(n_digits)[2]
    counts = np.zeros((n_blocks, 256), np.uint32)
    for block in counts:  # of different kinds, and of different use
        shares = rng.dirichlet(np.full(n_symbols, 0.1))
        block[:n_symbols] = rng.multinomial(int(rng.integers(0, 5000)), shares)
    if seed % 2:
        counts[0] = 0
    typical = every * (counts[:, :n_symbols] @ (5.0 + digit_bits[:n_symbols])) + 100
    plain_bits = typical * rng.uniform(0.5, 1.5, n_blocks) * (seed != 2)  # in one case no block gains
    lengths, bits = np.empty(n_symbols, np.uint8), np.empty(n_blocks)
    saved = fit_residuals(counts, every, digit_bits, plain_bits, 100.0, lengths, bits)
    expected_lengths, expected = defined_fit(counts, every, digit_bits, plain_bits, 100.0, n_symbols)
    assert np.array_equal(lengths, expected_lengths)
    assert np.array_equal(bits, expected)
    assert saved == pytest.approx(float((plain_bits - expected)[expected < plain_bits].sum()))
    assert (saved > 0) == bool((expected < plain_bits).any())
