"""The laws of the search for the scales of quantized weights: its work is bounded by the number of values, whatever
they are, and outliers keep it from no scales that it finds without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.dtypes import BY_NAME
from gcodec.kernels.index.segment_scales import MOST_WORK, MOST_WORK_FIRST, ScaleSearch, find_scales
from gcodec.plan import indexing
from gcodec.plan.indexing import factor_sets, find_indexing
from tests.plan.test_indexing import NOT_INDEXED, SHORT, Quantized, request_for
from tests.support.bit_patterns import KINDS, Array, Bits, from_floats, infinity, noise, typed

GROUPS = (16, 32, 64, 128, 256, 1024)
OUTLIERS = (0, 0.003, 0.01, 0.03)  # shares of values that were not quantized
N = 1 << 14


def symmetric(rng: np.random.Generator, n_groups: int, group: int) -> Array:
    """Return normally distributed numbers, the largest of each group 127."""
    values = rng.standard_normal((n_groups, group))
    return np.rint(values / np.abs(values).max(1, keepdims=True) * 127)


def from_zero_points(rng: np.random.Generator, n_groups: int, group: int) -> Array:
    """Return normally distributed numbers that span 255, less the one that stands for 0."""
    values = rng.standard_normal((n_groups, group))
    least = values.min(1, keepdims=True)
    scales = (values.max(1, keepdims=True) - least) / 255
    zero_points = np.rint(-least / scales)
    return np.clip(np.rint(values / scales) + zero_points, 0, 255) - zero_points


def positive(rng: np.random.Generator, n_groups: int, group: int) -> Array:
    """Return numbers from -3 to 127 that are as frequent as each other."""
    return rng.integers(-3, 128, (n_groups, group)).astype(np.float64)


def of_4_bits(rng: np.random.Generator, n_groups: int, group: int) -> Array:
    """Return normally distributed numbers from -8 to 7."""
    values = rng.standard_normal((n_groups, group))
    return np.clip(np.rint(values / np.abs(values).max(1, keepdims=True) * 7.5), -8, 7)


NUMBERS = (symmetric, from_zero_points, positive, of_4_bits)


def quantized(numbers: Callable[..., Array], group: int, n: int, seed: int) -> Quantized:
    """Return weights in groups whose scales differ."""
    rng = np.random.default_rng(seed)
    scales = (0.02 / 127 * np.exp(0.5 * rng.standard_normal((n // group, 1)))).astype(np.float32)
    drawn = numbers(rng, n // group, group)
    return Quantized(drawn, scales * np.float32(16 if np.abs(drawn).max() < 16 else 1), (n // 1024, 1024))


def with_outliers(weights: Quantized, dtype: str, share: float, seed: int) -> Bits:
    """Return the weights, a share of them replaced by others that are larger for the most part."""
    bits, rng = weights.bits(dtype), np.random.default_rng(seed)
    others = rng.random(bits.shape) < share
    bits[others] = from_floats(KINDS[dtype], 0.05 * rng.standard_normal(int(others.sum())))
    return bits


def hard_arrays(dtype: str, rng: np.random.Generator) -> Iterator[Bits]:
    """Yield arrays whose segments have many guesses that nearly fit, or none that is ruled out soon."""
    kind = KINDS[dtype]
    yield noise(kind, rng, N)
    yield rng.permuted(np.tile(from_floats(kind, rng.standard_normal(256)), N // 256))
    near = from_floats(kind, np.full(N, 1.0))
    yield near + rng.integers(0, 2, N).astype(near.dtype)  # two numbers next to each other
    rare = near.copy()
    rare[::13] = from_floats(kind, rng.random(len(rare[::13])))
    yield rare
    yield from_floats(kind, np.exp2(-rng.integers(0, 12, N)) * (1 + rng.integers(0, 3, N) / 64))
    yield from_floats(kind, rng.integers(1, 1000, N) / 7)
    yield rng.integers(0, infinity(kind), N).astype(kind.container) & ~kind.container.type((1 << kind.M // 2) - 1)


def work_of(bits: Bits, dtype: str, segment: int, number_of_set: int) -> int:
    """Return how much work it is to search all segments of an array for scales."""
    search, scales = indexing._new_search(), np.empty(bits.size // segment, np.uint32)
    find_scales(bits.reshape(-1), segment, 0, factor_sets(BY_NAME[dtype])[number_of_set], search, scales)
    assert search.work[1] <= bits.size
    return int(search.work[0])


@pytest.mark.parametrize("dtype", SHORT)
def test_the_work_of_a_search_is_bounded_by_the_number_of_values(dtype):
    """That of whole segments, of parts of them, and of more than have one scale; beyond the bound only what one segment
    takes that is searched when it is met."""
    cases = [(with_outliers(quantized(numbers, group, N, 1), dtype, share, 2), segment)
             for group, share, numbers in product(GROUPS, OUTLIERS, NUMBERS)
             for segment in {group, max(group // 4, 16), min(4 * group, 1024)}]  # fmt: skip
    cases += [(bits, segment) for bits in hard_arrays(dtype, np.random.default_rng(3)) for segment in GROUPS]
    for (bits, segment), number_of_set in product(cases, range(3)):
        assert work_of(bits, dtype, segment, number_of_set) <= MOST_WORK_FIRST + MOST_WORK * N + 16 * 256 + 2 * segment


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_groups_whose_largest_values_have_one_factor_are_looked_at_once(dtype, group):
    """Weights that were divided by the largest of their group are such."""
    bits, search = quantized(symmetric, group, N, 11).bits(dtype).reshape(-1), indexing._new_search()
    scales = np.empty(N // group, np.uint32)
    assert find_scales(bits, group, 0, factor_sets(BY_NAME[dtype])[0], search, scales) == 0
    assert search.of_largest[0] == 127
    assert search.small_work.sum() <= (1.1 + 32 / group) * N


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """Return a list to which the work of every search of a plan is appended."""
    work: list[int] = []

    def counting(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            search = next(argument for argument in args if isinstance(argument, ScaleSearch))
            before = int(search.work[0])
            result = kernel(*args)
            work.append(int(search.work[0]) - before)
            return result

        return call

    for name in ("_find_scales", "_try_segments"):
        monkeypatch.setattr(indexing, name, counting(getattr(indexing, name)))
    return work


@pytest.mark.parametrize("dtype", SHORT)
def test_a_plan_holds_24_values_against_bounds_for_each_value_at_most(dtype, counted):
    """Samples included, whether it finds scales or not: that takes about as long as to encode a few times."""
    arrays = [with_outliers(quantized(numbers, group, N, 4), dtype, share, 5)
              for group, share, numbers in product(GROUPS, OUTLIERS, NUMBERS)]  # fmt: skip
    for bits in [*arrays, *hard_arrays(dtype, np.random.default_rng(6))]:
        counted.clear()
        find_indexing(request_for(dtype, bits))
        assert sum(counted) <= 24 * N


@pytest.mark.parametrize("seed", [0, 4, 5])
def test_groups_of_which_some_have_no_scale_still_shrink_an_array(seed):
    """Of groups with 3 % of outliers, one in 15 has more outliers than a search looks past."""
    bits = with_outliers(quantized(positive, 64, 1 << 18, seed), "bfloat16", 0.03, seed)
    usual = gcodec.encode(bits, dtype="bfloat16", options=NOT_INDEXED)
    assert len(gcodec.encode(bits, dtype="bfloat16")) <= 0.93 * len(usual)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_outliers_take_what_they_take_as_exceptions(dtype, numbers):
    """Where the type tells the numbers of a group apart, and an array with and without them is indexed."""
    for group, share in product((64, 128, 256), (0.003, 0.01)):
        weights = quantized(numbers, group, 1 << 16, 7)
        if dtype == "bfloat16" and np.abs(weights.numbers).max() > 128:
            continue
        bits = with_outliers(weights, dtype, share, 8)
        frame = gcodec.encode(typed(dtype, bits), dtype=dtype)
        assert gcodec.inspect(frame).kinds["indexed"]
        n_others = share * bits.size
        assert 8 * len(frame) <= weights.bound() + 2 * n_others * (KINDS[dtype].W + 16) + 0.75 * bits.size


def test_a_part_that_was_quantized_shrinks_beside_one_that_was_not():
    """The search goes on behind a part without scales, for which it has done all the work that it may."""
    weights = quantized(of_4_bits, 64, 1 << 18, 9)
    bits = weights.bits("float32")
    whole = gcodec.encode(typed("float32", bits), dtype="float32")
    usual = gcodec.encode(typed("float32", bits), dtype="float32", options=NOT_INDEXED)
    bits.reshape(-1)[: bits.size // 8] = from_floats(KINDS["float32"], np.random.default_rng(10).random(bits.size // 8))
    frame = gcodec.encode(typed("float32", bits), dtype="float32")
    assert len(frame) <= len(whole) + len(usual) / 4
