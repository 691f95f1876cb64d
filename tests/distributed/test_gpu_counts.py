"""What the host waits for, launches, copies and sends for the buckets of a step on CUDA devices, counted."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

import torch

import gcodec.distributed as gd
from gcodec import gpu
from gcodec.distributed.reduction import gpu_coder, gpu_halves, gpu_reduce
from gcodec.distributed.reduction.gpu_coder import GpuCodebooks
from gcodec.distributed.reduction.gpu_jobs import gpu_in_place_allreduce_job
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
        waits: Waits of the host for the device.
        downloads: Copies to the host.
        launches: Of kernels.
        messages: That a rank sends to one other, by Gloo.
        exchanges: Small collectives of Gloo's.
        swaps: Collectives that move frames from device to device.
    """

    waits: int
    downloads: int
    launches: int
    messages: int
    exchanges: int
    swaps: int


#: Of each bucket whose codebooks are kept, and beyond that of each step, by the number of ranks, and by whether buckets
#: come one by one or wait for each other.
EXPECTED = {
    (2, "alone"): (Asked(1, 2, 4, 0, 1, 1), Asked(1, 0, 0, 0, 1, 0)),
    (2, "queued"): (Asked(1, 2, 4, 0, 1, 1), Asked(1, 0, 0, 0, 1, 0)),
    (4, "alone"): (Asked(2, 4, 8, 0, 2, 2), Asked(1, 0, 0, 0, 1, 0)),
    (4, "queued"): (Asked(1, 4, 8, 0, 1, 2), Asked(2, 0, 0, 0, 2, 0)),
}


@pytest.mark.parametrize(("mode", "how"), [("lossless", "alone"), ("fixed", "alone"), ("lossless", "queued")])
def test_a_bucket_on_devices_asks_for_as_little_as_is_promised(ranks, mode, how):
    bucket, step = EXPECTED[ranks.size, how]
    for of_rank in ranks.run(cases.counts_of_a_step, mode=mode, how=how):
        for n_buckets, counts in zip((2, 4), of_rank, strict=True):
            asked = Asked(*(counts.get(name, 0) for name in Asked._fields))
            assert asked == Asked(*(n_buckets * each + more for each, more in zip(bucket, step, strict=True)))


@pytest.mark.parametrize("n", [1, 3])
def test_collectives_of_a_group_on_devices_that_wait_ask_for_as_little_as_buckets(ranks, n):
    """And ranks confirm all of them to each other at the last one."""
    for counts in ranks.run(cases.counts_of_collectives, n=n):
        asked = Asked(*(counts.get(name, 0) for name in Asked._fields))
        assert asked == Asked(*(n * each + more for each, more in zip(*EXPECTED[ranks.size, "queued"], strict=True)))


@pytest.mark.parametrize("n", [1, 3])
def test_plain_all_reduces_on_devices_ask_for_as_little_as_buckets(ranks, n):
    """One that is waited for at once has the waits of a step of one bucket: for sizes, and for statuses, without which
    it must not return."""
    bucket, step = EXPECTED[ranks.size, "alone" if n == 1 else "queued"]
    for counts in ranks.run(cases.counts_of_plain_allreduces, n=n):
        asked = Asked(*(counts.get(name, 0) for name in Asked._fields))
        assert asked == Asked(*(n * each + more for each, more in zip(bucket, step, strict=True)))


def test_a_unit_of_fsdp_on_devices_asks_for_as_little_as_a_bucket_of_two_ranks(ranks):
    """And ranks confirm all of them to each other once, at the end of the backward pass."""
    for counts, n_units in ranks.run(cases.counts_of_fsdp):
        assert n_units == 3
        asked = Asked(*(counts.get(name, 0) for name in Asked._fields))
        assert asked == Asked(*(n_units * each + more for each, more in zip(*EXPECTED[2, "alone"], strict=True)))


@pytest.mark.parametrize(
    ("size", "n_values", "room"),
    [
        (2, 500, None),
        (3, 500, None),
        (3, 500, 8),
        (16, 16 * 64, None),
        (16, 25, None),
        pytest.param(64, 64 * 64, None, marks=pytest.mark.slow),
        pytest.param(64, 100, None, marks=pytest.mark.slow),
    ],
)
def test_an_all_reduce_among_many_ranks_sends_what_is_promised(size, n_values, room, monkeypatch):
    """Also where preludes have no room in a message, and are read from the frames."""
    monkeypatch.setattr(gpu_coder, "gpu", CODEC)
    if room is not None:
        monkeypatch.setattr(gpu_halves, "max_payload", lambda size: room)
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


class CodecOfRank:
    """The codec of ranks that are threads: the device's own for the first one, which counts, and for the others the
    host's, which is faster."""

    def __getattr__(self, name: str) -> object:
        return getattr(gpu if cases.OF_THREAD.counts is not None else CODEC, name)


@pytest.mark.parametrize(
    ("size", "how"), [(2, "queued"), (4, "alone"), (16, "queued"), pytest.param(64, "queued", marks=pytest.mark.slow)]
)
def test_buckets_among_many_ranks_ask_for_as_much_as_those_among_few(size, how, monkeypatch):
    n_buckets = 2
    monkeypatch.setattr(gpu_coder, "gpu", CodecOfRank())
    monkeypatch.setattr(gpu_reduce, "_ALIGN", 64)
    terms = [values_at(who, 64 * size, torch.float32) for who in range(size)]
    wanted = dense_sum(terms, True)

    def reduce(lane: thread_ranks.ThreadLane) -> Counter[str] | None:
        books = GpuCodebooks(gd.Refresh(100, 9.0))
        for n_left in ([0], [*reversed(range(n_buckets))]):  # the first step makes codebooks
            results, started = [], []
            if lane.rank == 0:
                cases.OF_THREAD.counts = Counter()
            for later in n_left:
                lane.more = how == "queued" and later > 0
                coder = gpu_coder.GpuCoder(BY_NAME["float32"], gd.Lossless(), None, books, Counters())
                results.append(torch.empty_like(terms[0]))
                reduction = gpu_reduce.GpuReduction(lane, coder, terms[lane.rank], results[-1], mean=True, terms=())
                started.append(reduction.run(gpu_coder.side_stream_of(results[-1].device), goes_on=True))
            for each in started:
                each.finish()
            assert all(same_bits(result, wanted) for result in results)
        return cases.OF_THREAD.counts if lane.rank == 0 else None

    (waits, downloads, launches, _, exchanges, swaps), more = EXPECTED[min(size, 4), how]
    with cases.on_a_device():
        found = thread_ranks.run(size, reduce)
    counts, *_ = found[0]
    assert counts == {
        "waits": n_buckets * waits + more.waits,
        "downloads": n_buckets * downloads,
        "launches": n_buckets * launches,
    }
    for _, messages, of_device in found:  # of both steps, of which each would have an exchange of receipts, too
        assert messages == {"alltoall": (1 + n_buckets) * exchanges + 2 * (more.exchanges - 1)}
        assert of_device == {"alltoall": (1 + n_buckets) * swaps}


@pytest.mark.parametrize("size", [3, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_a_plain_all_reduce_among_many_ranks_asks_for_as_much_as_one_among_few(size, monkeypatch):
    monkeypatch.setattr(gpu_coder, "gpu", CodecOfRank())
    monkeypatch.setattr(gpu_reduce, "_ALIGN", 64)
    terms = [values_at(who, 64 * size, torch.float32) for who in range(size)]
    wanted = dense_sum(terms, True)

    def reduce(lane: thread_ranks.ThreadLane) -> Counter[str] | None:
        for _ in range(2):  # the first one makes codebooks
            if lane.rank == 0:
                cases.OF_THREAD.counts = Counter()
            tensor = terms[lane.rank].clone()
            gpu_in_place_allreduce_job(lane, tensor, tensor, gd.Lossless(), True, None, compress=True).run()
            assert same_bits(tensor, wanted)
        return cases.OF_THREAD.counts

    each, more = EXPECTED[4, "alone"]
    with cases.on_a_device():
        found = thread_ranks.run(size, reduce)
    assert found[0][0] == {
        "waits": each.waits + more.waits,
        "downloads": each.downloads,
        "launches": each.launches,
    }
    for _, messages, of_device in found:
        assert messages == {"alltoall": 2 * (each.exchanges + more.exchanges)}
        assert of_device == {"alltoall": 2 * each.swaps}
