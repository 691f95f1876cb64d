"""The laws of values that are turned, so that their signs are in their heads, and of the test that says where they are
worth it."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.dtypes import BY_CODE, BY_NAME, FINE_DTYPES, SIGNED_DTYPES
from gcodec.kernels.heads import sign_in_head
from tests.support import reference
from tests.support.bit_patterns import KINDS, from_floats, noise, specials

SIGNED = [kind for kind in BY_CODE.values() if kind.fine_bits]


@pytest.mark.parametrize("kind", SIGNED, ids=lambda kind: str(kind.code))
@pytest.mark.parametrize("n", [1, 63, 64, 1000])
def test_turned_values_have_head_and_tail_where_others_have_them(kind, n):
    spec = KINDS[kind.name]
    values = np.concatenate([noise(spec, np.random.default_rng(n), n), specials(spec)])
    result = np.empty_like(values)
    sign_in_head.turn_values(values, kind.head_shift, result)
    wide = result.astype(np.uint64)
    head = wide >> np.uint64(kind.head_shift) & np.uint64(kind.head_mask)
    low = np.uint64((1 << kind.head_shift) - 1)
    tail = wide >> np.uint64(kind.bits - 1) << np.uint64(kind.head_shift) | wide & low
    joined = reference.join(reference.DTYPES[kind.code], head, tail)
    assert np.array_equal(joined, values.astype(np.uint64))
    assert np.array_equal(result == 0, values == 0)
    sign_in_head.turn_in_place(result, kind.head_shift)
    assert np.array_equal(result, values)


def tell(dtype: str, values: np.ndarray, n_more: int) -> bool:
    """Return what the test says of floats."""
    kind, bits = BY_NAME[dtype], from_floats(KINDS[dtype], values)
    counts = np.full((2, sign_in_head.MAX_TOLD_HEADS << n_more + 1), 7, np.uint32)
    found = sign_in_head.bits_tell(bits, kind.head_shift, n_more, counts)
    if n_more:  # signs alone are asked for at the same time
        alone = sign_in_head.bits_tell(bits, kind.head_shift, 0, counts)
        assert found & 1 == alone & 1
    nonzero = values[values != 0]
    has_one_sign = bool((nonzero < 0).all() or (nonzero > 0).all())
    assert found >> 2 == (found & 3 > 0 and has_one_sign)
    return bool(found & (2 if n_more else 1))


@pytest.mark.parametrize("dtype", SIGNED_DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_signs_tell_where_they_depend_on_the_exponents_and_only_there(dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(int(rng.integers(4096, 100_000)))
    assert not tell(dtype, x, 0)
    assert not tell(dtype, x * np.exp2(rng.integers(-8, 8, len(x))), 0)
    assert tell(dtype, x * x, 0)
    assert tell(dtype, x + 0.5, 0)
    assert tell(dtype, np.where(x > 0, x, x / 64), 0)


@pytest.mark.parametrize("dtype", FINE_DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_mantissa_bits_tell_where_they_depend_on_the_exponents_and_only_there(dtype, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1 << 16, 1 << 18))
    mixed = np.exp2(rng.uniform(-3, 3, n)) * rng.choice([-1, 1], n)  # whose bits are as good as uniform
    assert not tell(dtype, mixed, 3)
    assert tell(dtype, 1 + 0.02 * rng.standard_normal(n), 3)
    assert not tell(dtype, np.abs(rng.standard_normal(n)), 3)  # by less than the signs do, which tell alone
    assert tell(dtype, np.abs(rng.standard_normal(n)), 0)


@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_few_values_tell_nothing_and_zeros_neither(n):
    assert not tell("float32", np.zeros(n), 0)
    assert not tell("float32", np.zeros(100_000), 0)
    assert not tell("float32", -np.ones(min(n, 2)), 0)
