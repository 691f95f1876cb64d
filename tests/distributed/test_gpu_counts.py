"""What the host waits for, launches, copies and sends for the buckets of a step on CUDA devices, counted."""

from __future__ import annotations

from typing import NamedTuple

import pytest

pytest.importorskip("torch")

from tests.distributed import gpu_count_cases as cases
from tests.support.rank_fixtures import ranks_of

ranks = ranks_of(2, 4)


class Asked(NamedTuple):
    """What is asked for.

    Attributes:
        waits: waits of the host for the device.
        downloads: copies to the host.
        launches: of kernels.
        messages: that a rank sends to one other, by Gloo.
        exchanges: small collectives of Gloo's.
        swaps: collectives that move frames from device to device.
    """

    waits: int
    downloads: int
    launches: int
    messages: int
    exchanges: int
    swaps: int


#: Of each bucket whose codebooks are kept, and beyond that of each step, by mode and number of ranks.
EXPECTED = {
    ("lossless", 2): (Asked(3, 3, 4, 2, 0, 1), Asked(0, 0, 0, 0, 0, 0)),
    ("lossless", 4): (Asked(6, 6, 8, 9, 0, 2), Asked(0, 0, 0, 0, 0, 0)),
    ("fixed", 2): (Asked(3, 3, 4, 2, 0, 1), Asked(0, 0, 0, 0, 0, 0)),
    ("fixed", 4): (Asked(6, 6, 8, 9, 0, 2), Asked(0, 0, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("mode", ["lossless", "fixed"])
def test_a_bucket_on_devices_asks_for_as_little_as_is_promised(ranks, mode):
    bucket, step = EXPECTED[mode, ranks.size]
    for of_rank in ranks.run(cases.counts_of_a_step, mode=mode):
        for n_buckets, counts in zip((2, 4), of_rank, strict=True):
            asked = Asked(*(counts.get(name, 0) for name in Asked._fields))
            assert asked == Asked(*(n_buckets * each + more for each, more in zip(bucket, step, strict=True)))
