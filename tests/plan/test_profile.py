"""The laws of an array's profile: each count is what numpy counts at the same places."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.dtypes import BY_NAME
from gcodec.kernels.sample.look import N_PLACES
from gcodec.plan.profile import SHORT_BITS, VERY_SHORT_BITS, profile_of, spread_places
from gcodec.tensors import NUMPY, Values, kernel_view

TYPES = tuple(BY_NAME)
SIZES = (1, 2, 63, 64, 65, 1023, 1024, 1025, 2048, 4096, 65_536, 3 * 5 * 7 * 11 * 13 * 17)


def arrays(dtype: str, n: int) -> list[np.ndarray]:
    """Return arrays as unsigned integers: of any bits, of common values and of few, of short ones, of zeros."""
    kind, rng = BY_NAME[dtype], np.random.default_rng(n)
    whole = rng.integers(0, 1 << kind.bits, n, np.uint64, endpoint=False) if kind.bits < 64 else rng.integers(
        0, 2**64 - 1, n, np.uint64, endpoint=True)
    named = np.array([0, 1 << kind.bits - 1, kind.infinity, kind.infinity | 1, 3 << kind.bits - 2], np.uint64)
    some = np.where(rng.random(n) < 0.3, rng.choice(named, n), whole)
    short = whole & ~np.uint64((1 << min(5, kind.bits - 2)) - 1)
    mixed = np.where(rng.random(n) < 0.2, short, whole)
    every = [whole, some, short, mixed, np.zeros(n, np.uint64), np.full(n, named[2])]
    return [kernel_view(bits.astype(kind.uint)) for bits in every]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("drop", [0, 1, 3])
def test_counts_are_those_of_numpy_at_the_same_places(dtype, n, drop):
    kind = BY_NAME[dtype]
    for bits in arrays(dtype, n):
        profile, some = profile_of(Values(bits, kind, (n,), NUMPY), drop), bits[spread_places(n, N_PLACES)]
        assert profile.n_seen == len(some)
        merged = int(np.bitwise_or.reduce(some))
        assert profile.n_low_zeros == (next(k for k in range(64) if merged >> k & 1) if merged else 64)
        assert profile.n_zero == np.count_nonzero(some == 0)
        assert profile.n_minus_zero == np.count_nonzero(some == 1 << kind.bits - 1)
        assert profile.n_special == np.count_nonzero(some & kind.infinity == kind.infinity)
        for n_short, n_bits in ((profile.n_short, SHORT_BITS), (profile.n_very_short, VERY_SHORT_BITS)):
            mask = (1 << min(drop + n_bits, kind.bits - 1)) - 1
            assert n_short == np.count_nonzero((some & mask == 0) & (some != 0))
        assert profile.n_like_first == np.count_nonzero(some == bits[0])


@pytest.mark.parametrize("n", [1025, 4096, 16_384, 408 * 41, 65_535, 3 * 5 * 7 * 11 * 13 * 17])
def test_no_place_is_looked_at_twice(n):
    for size in (64, 256, N_PLACES):
        assert len(set(spread_places(n, size).tolist())) == size


@pytest.mark.parametrize("side", [256, 512, 1024])
def test_places_of_a_square_lie_on_both_sides_of_its_diagonal(side):
    row, column = np.divmod(spread_places(side * side, N_PLACES).astype(np.int64), side)
    assert 0.45 < np.mean(row < column) < 0.55
