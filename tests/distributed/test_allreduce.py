"""The laws of compressed all-reduces among real Gloo processes: sums, bounds, layouts, order of jobs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.distributed import allreduce_cases as cases
from tests.support.rank_fixtures import ranks_of, with_sizes
from tests.support.ranks import agreed

SIZES = (1, 2, 3, 4)
ranks = ranks_of(*SIZES)
pair = ranks_of(2)


#: A single rank rounds nothing, and more than two round a sum once more, however many they are.
rounding = with_sizes(2, 3)


def all_equal(values: list[object]) -> bool:
    return all(value == values[0] for value in values)


# One all-reduce


@pytest.mark.parametrize(
    ("dtype", "sizes", "kinds"),
    [
        ("float32", (0, 1, 2, 1000, 70_001, 600_000), ("normal", "sparse", "special")),
        ("bfloat16", (1, 70_001), ("normal", "special")),
    ],
)
def test_a_lossless_allreduce_is_the_sum_in_the_order_of_ranks(ranks, dtype, sizes, kinds):
    assert all_equal(ranks.run(cases.exact, dtype=dtype, sizes=sizes, kinds=kinds, min_bytes=0))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_lossless_allreduce_of_float16_and_float64_is_the_sum_in_the_order_of_ranks(pair, dtype):
    assert all_equal(pair.run(cases.exact, dtype=dtype, sizes=(1, 70_001), kinds=("normal",), min_bytes=0))


def test_tensors_below_the_threshold_are_reduced_by_gloo(pair):
    # Two ranks: a sum of two has one order.
    assert all_equal(pair.run(cases.exact, dtype="float32", sizes=(0, 1, 999), kinds=("normal",), min_bytes=1 << 16))


def test_tensors_of_any_layout_are_reduced_several_at_a_time(ranks):
    assert all_equal(ranks.run(cases.layouts))


def test_jobs_of_a_lane_go_on_oldest_first(pair):
    log, ends = agreed(pair.run(cases.under_way, n_jobs=5, n_parts=3))
    done = [log.index(f"{name}2") for name in "ab"]
    begun = [log.index(f"{name} begins") for name in "abc"]
    assert begun[2] < done[0] < done[1]  # up to three at a time
    assert [entry for entry in log if entry[0] in "ab" and entry[1:].isdigit()] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert ends == ["A", "b: ZeroDivisionError", "C", "D", "e: PeerError"]


def test_allreduce_refuses_senseless_arguments(pair):
    pair.run(cases.refusals)


@rounding
@pytest.mark.parametrize(("mode", "dtype"), [("near", "float32"), ("near", "bfloat16"), ("fixed", "float32")])
def test_terms_and_result_of_an_allreduce_are_rounded_as_encode_does(ranks, mode, dtype):
    assert all_equal(ranks.run(cases.lossy_law, mode=mode, dtype=dtype))


@rounding
@pytest.mark.parametrize("bits", [3, 10])
def test_an_allreduce_with_fixed_bits_keeps_its_bound(ranks, bits):
    assert all_equal(ranks.run(cases.fixed_bound, bits=bits))


@rounding
@pytest.mark.parametrize(("op", "scale"), [("avg", 1.0), ("sum", 1.0), ("avg", 2.0)])
def test_a_near_lossless_allreduce_keeps_its_bound(ranks, op, scale):
    result = ranks.run(cases.near_bound, op=op, scale=scale)
    assert all_equal(result)
    assert result[0][1] > 0.01  # it does round
