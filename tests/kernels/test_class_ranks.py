"""Ranks of values within classes agree with a count that looks at every value."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from gcodec.kernels.block.class_ranks import WINDOW, find_rank, have_tops, rank_groups, rank_of, reach_groups
from gcodec.memory import sparse_scratch_for


@njit
def _ranks(base, thresholds, classes, scratch):
    """Return the rank of each value, and where the member of that rank is found."""
    n = len(base)
    reach_groups(base, n, thresholds, scratch)
    rank_groups(base, n, thresholds, scratch)
    ranks, places = np.empty(n, np.int64), np.empty(n, np.int64)
    groups = np.zeros(len(thresholds), np.int64)
    for i in range(n):
        c = classes[i]
        ranks[i] = rank_of(i, c, scratch)
        places[i], groups[c] = find_rank(ranks[i], c, groups[c], scratch)
    return ranks, places


@njit
def _have_tops(base, thresholds):
    return have_tops(base, thresholds)


@pytest.mark.parametrize("n", [1, 63, 64, 515, WINDOW - 1, WINDOW])
@pytest.mark.parametrize(
    ("kind", "tops"), [(np.uint8, False), (np.uint16, False), (np.uint16, True), (np.uint32, True), (np.uint64, False)]
)
def test_ranks_are_counts_of_members_and_lead_back_to_them(kind, tops, n):
    bits = 8 * np.dtype(kind).itemsize
    generator = np.random.default_rng(n)
    base = generator.integers(0, 1 << bits, n, dtype=kind, endpoint=False) if bits < 64 else generator.integers(
        0, np.iinfo(np.uint64).max, n, dtype=kind, endpoint=True)  # fmt: skip
    rare = 1 << bits - 9 if tops else 3  # most of what is below it are zeros, and few others
    base[generator.random(n) < 0.3] = 0
    ends = [rare, 1 << bits - 4, 1 << bits - 1, 1 << bits - 1]
    thresholds = tuple(kind(end) for end in ends)
    assert _have_tops(base, thresholds) == tops
    magnitudes = base & kind((1 << bits - 1) - 1)
    classes = np.searchsorted(np.array(ends[:-1], kind), magnitudes, side="right")
    scratch = sparse_scratch_for(np.dtype(kind), n)
    ranks, places = _ranks(base, thresholds, classes, scratch)
    expected = np.empty(n, np.int64)
    for c in range(len(ends)):
        expected[classes == c] = np.arange(np.count_nonzero(classes == c))
        assert scratch.totals[c] == np.count_nonzero(classes == c)
    assert np.array_equal(ranks, expected)
    assert np.array_equal(places, np.arange(n))
