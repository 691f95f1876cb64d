"""The laws of an array's profile: each count, and each flag that follows, is what numpy finds at the same places."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.dtypes import BY_NAME
from gcodec.kernels.sample import look
from gcodec.kernels.sample.look import N_PLACES, SHORT_BITS, VERY_SHORT_BITS
from gcodec.plan.profile import CODED_HEAD_BITS, profile_of, rules_of, spread_places, step_between
from gcodec.tensors import NUMPY, Values, kernel_view
from tests.support.covering import each_pair

TYPES = tuple(BY_NAME)
SIZES = (1, 2, 63, 64, 65, 1023, 1024, 1025, 2048, 4096, 65_536, 3 * 5 * 7 * 11 * 13 * 17)


def arrays(dtype: str, n: int) -> list[np.ndarray]:
    """Return arrays as unsigned integers: of any bits, of common values and of few, of short ones, of zeros."""
    kind, rng = BY_NAME[dtype], np.random.default_rng(n)
    whole = (
        rng.integers(0, 1 << kind.bits, n, np.uint64, endpoint=False)
        if kind.bits < 64
        else rng.integers(0, 2**64 - 1, n, np.uint64, endpoint=True)
    )
    named = np.array([0, 1 << kind.bits - 1, kind.infinity, kind.infinity | 1, 3 << kind.bits - 2], np.uint64)
    some = np.where(rng.random(n) < 0.3, rng.choice(named, n), whole)
    short = whole & ~np.uint64((1 << min(5, kind.bits - 2)) - 1)
    mixed = np.where(rng.random(n) < 0.2, short, whole)
    every = [whole, some, short, mixed, np.zeros(n, np.uint64), np.full(n, named[2])]
    return [kernel_view(bits.astype(kind.uint)) for bits in every]


@each_pair(n=SIZES, dtype=TYPES, drop=[0, 1, 3])
def test_counts_and_flags_are_those_of_numpy_at_the_same_places(dtype, n, drop):
    kind, rules = BY_NAME[dtype], rules_of(BY_NAME[dtype], drop)
    has_tail, has_codes = kind.tail_bits > 0, kind.tail_bits > 0 and kind.head_bits <= CODED_HEAD_BITS
    for bits in arrays(dtype, n):
        profile, some = profile_of(Values(bits, kind, (n,), NUMPY), drop), bits[spread_places(n, N_PLACES)]
        seen, found = np.empty(N_PLACES, kind.uint), np.empty(look.N_COUNTS, np.int64)
        look.count_some(bits, step_between(n) if n > N_PLACES else 1, rules.compared, seen, found)
        assert np.array_equal(seen[: len(some)], some)

        n_seen, merged = len(some), int(np.bitwise_or.reduce(some))
        n_zero, n_minus_zero = np.count_nonzero(some == 0), np.count_nonzero(some == 1 << kind.bits - 1)
        n_special = np.count_nonzero(some & kind.infinity == kind.infinity)
        masks = [(1 << min(drop + n_bits, kind.bits - 1)) - 1 for n_bits in (SHORT_BITS, VERY_SHORT_BITS)]
        n_short, n_very_short = (np.count_nonzero((some & mask == 0) & (some != 0)) for mask in masks)
        n_like_first = np.count_nonzero(some == bits[0])
        counts = n_seen, merged, n_zero, n_minus_zero, n_special, n_short, n_very_short, n_like_first
        assert (found.view(np.uint64) == np.array(counts, np.uint64)).all()

        is_mixed = (
            n_short * look.SHORT_SHARE > n_seen - n_zero
            or (drop + VERY_SHORT_BITS < kind.tail_bits and n_very_short * look.VERY_SHORT_SHARE > n_seen - n_zero)
            or (has_codes and n_minus_zero * look.MASKED_SHARE >= n_seen)
        )
        flags = {
            look.MAY_BE_CONSTANT: n_like_first == n_seen,
            look.MAY_BE_SPARSE: n_seen - n_zero <= look.MAX_NONZERO * n_seen,
            look.MAY_DROP_BITS: has_tail and n >= look.MIN_VALUES and merged % (2 << drop) == 0,
            look.MAY_HAVE_LEVELS: has_tail and n >= look.MIN_MIXED and is_mixed,
            look.HAS_MANY_SPECIAL: has_codes and n_special * look.SPECIAL_SHARE >= n_seen,
        }
        assert profile == sum(flag for flag, holds in flags.items() if holds)


@pytest.mark.parametrize("n", [1025, 4096, 16_384, 408 * 41, 65_535, 3 * 5 * 7 * 11 * 13 * 17])
def test_no_place_is_looked_at_twice(n):
    for size in (64, 256, N_PLACES):
        assert len(set(spread_places(n, size).tolist())) == size


@pytest.mark.parametrize("side", [256, 512, 1024])
def test_places_of_a_square_lie_on_both_sides_of_its_diagonal(side):
    row, column = np.divmod(spread_places(side * side, N_PLACES).astype(np.int64), side)
    assert 0.45 < np.mean(row < column) < 0.55
