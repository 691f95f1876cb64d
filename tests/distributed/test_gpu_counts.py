"""What the host waits for, launches, copies and sends for the buckets of a step on CUDA devices, counted."""

from __future__ import annotations

from typing import NamedTuple

import pytest

pytest.importorskip("torch")

import torch

import gcodec.distributed as gd
from gcodec.distributed.reduction import gpu_coder, gpu_reduce
from gcodec.distributed.stats import Counters
from gcodec.dtypes import BY_NAME
from tests.distributed import gpu_count_cases as cases
from tests.distributed import thread_ranks
from tests.distributed.gpu_allreduce_cases import CODEC
from tests.distributed.rank_basics import dense_sum, same_bits, values_at
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
    ("lossless", 2): (Asked(1, 2, 4, 0, 1, 1), Asked(1, 0, 0, 0, 1, 0)),
    ("lossless", 4): (Asked(2, 4, 8, 0, 2, 2), Asked(1, 0, 0, 0, 1, 0)),
    ("fixed", 2): (Asked(1, 2, 4, 0, 1, 1), Asked(1, 0, 0, 0, 1, 0)),
    ("fixed", 4): (Asked(2, 4, 8, 0, 2, 2), Asked(1, 0, 0, 0, 1, 0)),
}


@pytest.mark.parametrize("mode", ["lossless", "fixed"])
def test_a_bucket_on_devices_asks_for_as_little_as_is_promised(ranks, mode):
    bucket, step = EXPECTED[mode, ranks.size]
    for of_rank in ranks.run(cases.counts_of_a_step, mode=mode):
        for n_buckets, counts in zip((2, 4), of_rank, strict=True):
            asked = Asked(*(counts.get(name, 0) for name in Asked._fields))
            assert asked == Asked(*(n_buckets * each + more for each, more in zip(bucket, step, strict=True)))


@pytest.mark.parametrize(
    ("size", "n_values", "room"), [(2, 500, None), (3, 500, None), (3, 500, 8), (64, 64 * 64, None), (64, 100, None)]
)
def test_an_all_reduce_among_many_ranks_sends_what_is_promised(size, n_values, room, monkeypatch):
    """Also where preludes have no room in a message, and are read from the frames."""
    monkeypatch.setattr(gpu_coder, "gpu", CODEC)
    if room is not None:
        monkeypatch.setattr(gpu_reduce, "max_payload", lambda size: room)
    monkeypatch.setattr(gpu_reduce, "_ALIGN", 64)
    terms = [values_at(who, n_values, torch.float32) for who in range(size)]
    wanted = dense_sum(terms, True)

    def reduce(lane: thread_ranks.ThreadLane) -> bool:
        coder = gpu_coder.GpuCoder(BY_NAME["float32"], gd.Lossless(), None, None, Counters())
        result = torch.empty_like(terms[0])
        reduction = gpu_reduce.GpuReduction(lane, coder, terms[lane.rank], result, mean=True, terms=())
        reduction.run(gpu_coder.side_stream_of(result.device)).finish()
        return same_bits(result, wanted)

    n_halves = 1 if size == 2 else 2
    for same, messages, swaps in thread_ranks.run(size, reduce):
        assert same
        assert messages == swaps == {"alltoall": n_halves}
