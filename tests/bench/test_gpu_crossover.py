"""The model of which links all-reduces on devices pay for: what it must say whatever the numbers are."""

from __future__ import annotations

import pytest

from bench import gpu_crossover, report


@pytest.mark.parametrize("dtype", gpu_crossover.KERNELS)
@pytest.mark.parametrize("n_ranks", gpu_crossover.RANKS)
def test_at_the_rate_that_is_told_compressing_takes_as_long_as_not(dtype: str, n_ranks: int) -> None:
    each = gpu_crossover.bucket(report.RESULTS, dtype, 25e6, n_ranks)
    rate = each.alone()
    assert each.ratio * each.sent / rate + each.device + each.host == pytest.approx(each.sent / rate)
    rate = each.among_others()
    assert max(each.ratio * each.sent / rate, each.device, each.host) == pytest.approx(each.sent / rate)


def test_a_bucket_of_many_bytes_pays_on_faster_links_and_more_ranks_take_more_of_the_host() -> None:
    small, large = (gpu_crossover.bucket(report.RESULTS, "float32", n, 8) for n in (1e6, 1e9))
    assert small.alone() < large.alone() and small.host == large.host
    assert large.device == pytest.approx(1000 * small.device)
    of_two, of_three, of_many = (gpu_crossover.bucket(report.RESULTS, "float32", 1e6, n) for n in (2, 3, 64))
    assert of_two.host < of_three.host < of_many.host
    assert of_two.sent == 1e6 and of_three.sent == pytest.approx(4 / 3 * 1e6)
