"""What comes before what on the streams of a device while buckets are reduced: on streams that note it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gcodec.distributed as gd
from gcodec.distributed.reduction import gpu_coder, gpu_halves, gpu_jobs, gpu_reduce
from gcodec.distributed.reduction.reduce_request import ReduceRequest
from gcodec.distributed.stats import Counters
from gcodec.distributed.transport.jobs import Future, LaneJob
from gcodec.distributed.transport.lane import Lane
from tests.distributed import thread_ranks
from tests.distributed.gpu_allreduce_cases import CODEC
from tests.distributed.rank_basics import dense_sum, same_bits, values_at

N_BUCKETS = 3


class NotingStream:
    """A stream that does nothing, and knows what it would have done before.

    Attributes:
        done: All that comes before what is given to it next.
    """

    def __init__(self) -> None:
        self.done: frozenset[str] = frozenset()

    def note(self, what: str, before: dict[str, frozenset[str]]) -> None:
        before[what] = self.done
        self.done |= {what}

    def record_event(self) -> frozenset[str]:
        return self.done

    def wait_event(self, event: frozenset[str]) -> None:
        self.done |= event


class Streams(threading.local):
    """The streams of one rank, which is a thread.

    Attributes:
        training: The stream of its backward pass.
        current: The current one.
        before: By what was done, all that comes before it.
    """

    def __init__(self) -> None:
        self.training = self.current = NotingStream()
        self.before: dict[str, frozenset[str]] = {}
        self.side, self.encoding = (gpu_coder.SideStream(torch.device("cpu")) for _ in range(2))
        self.side._stream, self.encoding._stream = NotingStream(), NotingStream()  # type: ignore[assignment]

    def note(self, what: str) -> None:
        """Give the current stream something to do, the first, second, ... of its kind."""
        number = sum(name.startswith(what) for name in self.before)
        self.current.note(f"{what} {number}", self.before)


class NotingGroup:
    """A group in NCCL's place that works beside the streams, as NCCL does."""

    def __init__(self, group: Any, streams: Streams) -> None:
        self._group, self._streams = group, streams

    def alltoall_base(self, *arguments: Any) -> Any:
        nccl, work = NotingStream(), self._group.alltoall_base(*arguments)
        nccl.wait_event(self._streams.current.done)
        number = sum(name.startswith("travel") for name in self._streams.before)
        nccl.note(f"travel {number}", self._streams.before)
        wait = work.wait

        def make_wait() -> bool:
            self._streams.current.wait_event(nccl.done)
            return bool(wait())

        work.wait = make_wait
        return work


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    noting = Streams()

    @contextlib.contextmanager
    def entered(stream: Any) -> Iterator[None]:
        former, noting.current = noting.current, stream
        yield
        noting.current = former

    def noted(name: str, what: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            noting.note(what)
            return getattr(CODEC, name)(*arguments, **options)

        return call

    class Codec:
        fresh_codebook = CODEC.fresh_codebook
        start_batch = staticmethod(noted("start_batch", "encode"))
        start_decode = staticmethod(noted("start_decode", "decode"))

    monkeypatch.setattr(gpu_coder, "gpu", Codec)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: noting.current)
    for module in (gpu_jobs, gpu_halves, gpu_reduce):
        monkeypatch.setattr(module, "side_stream_of", lambda device: noting.side)
    monkeypatch.setattr(gpu_jobs, "encoding_stream_of", lambda device: noting.encoding)
    monkeypatch.setattr(gpu_reduce, "_ALIGN", 64)
    return noting


def reduce_buckets(
    streams: Streams, by_rank: list[torch.Tensor], are_apart: bool, queued: bool, lane: thread_ranks.ThreadLane
) -> Any:
    """Reduce buffers one after the other, as a lane does while none has to end, buckets being apart, and perhaps each
    waiting for the one before; return what came before what."""
    transport = lane.gpu_transports[torch.device("cpu")]
    transport.group = NotingGroup(transport.group, streams)
    results, started = [], []
    for number in range(N_BUCKETS):
        lane.more = queued and number + 1 < N_BUCKETS
        streams.note("backward")
        flat = by_rank[lane.rank]
        results.append(torch.empty_like(flat))
        request = ReduceRequest(lane, flat, results[-1], gd.Lossless(), True, Counters())
        job = gpu_jobs.gpu_reduction_job(request, goes_on=(lambda: True) if are_apart else None)
        with job.place():
            started.append(job.run())
    wanted = dense_sum(by_rank, True)
    for each in started:
        assert same_bits(each.finish() if are_apart else each, wanted)
    side: Any = streams.side._stream
    return streams.before, side.done


@pytest.mark.parametrize("size", [2, 3])
def test_a_bucket_is_encoded_while_the_one_before_travels(size: int, streams: Streams) -> None:
    by_rank = [values_at(who, 64 * 9, torch.float32) for who in range(size)]
    n_swaps = 1 if size == 2 else 2
    for (before, at_the_end), *_ in thread_ranks.run(size, partial(reduce_buckets, streams, by_rank, True, False)):
        assert len(before) == N_BUCKETS * (1 + 3 * n_swaps) and at_the_end >= set(before) - {f"backward {N_BUCKETS}"}
        for bucket in range(N_BUCKETS):
            first = bucket * n_swaps  # the number of the bucket's first swap, and what belongs to it
            encoding = before[f"encode {first}"]
            # It waits for its own values and for nothing of other buckets but that they were encoded.
            assert f"backward {bucket}" in encoding and f"backward {bucket + 1}" not in encoding
            assert all(what.startswith(("backward", "encode")) for what in encoding)
            for swap in range(first, first + n_swaps):
                assert f"encode {swap}" in before[f"travel {swap}"]
                assert f"travel {swap}" in before[f"decode {swap}"]
            if size > 2:  # the sum
                assert f"decode {first}" in before[f"encode {first + 1}"]


def test_sums_travel_with_the_contributions_of_the_next_bucket_where_that_waits(streams: Streams) -> None:
    """And the network carries them while the next sums are made: those do not wait for it."""
    by_rank = [values_at(who, 64 * 9, torch.float32) for who in range(3)]
    #: In the order in which they leave: contributions (c) and sums (s) of each bucket.
    order = ["c0", "c1", "s0", "c2", "s1", "s2"]
    for (before, at_the_end), *_ in thread_ranks.run(3, partial(reduce_buckets, streams, by_rank, True, True)):
        assert len(before) == N_BUCKETS * 7 and at_the_end >= set(before) - {f"backward {N_BUCKETS}"}
        # The codec's own order: sums are encoded before the next bucket's contributions.
        encoded = {what: number for number, what in enumerate(["c0", "s0", "c1", "s1", "c2", "s2"])}
        for number, what in enumerate(order):
            assert f"encode {encoded[what]}" in before[f"travel {number}"]
            assert f"travel {number}" in before[f"decode {number}"]
        for bucket in range(1, N_BUCKETS):
            sums = before[f"encode {encoded[f's{bucket}']}"]
            assert f"travel {order.index(f'c{bucket}')}" in sums
            assert f"travel {order.index(f's{bucket - 1}')}" not in sums


def test_sums_wait_only_for_a_job_on_the_same_device() -> None:
    """Each device has streams of its own, on which its halves are exchanged."""
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    for item, expected in (
        ((LaneJob(list, devices=[first]), Future()), [first]),
        ((LaneJob(list, devices=[second]), Future()), [second]),
        ((LaneJob(list), Future()), []),
        (None, None),  # the lane is being closed
    ):
        lane: Any = SimpleNamespace(_queue=Queue())
        lane.next_job = partial(Lane.next_job, lane)
        assert not any(Lane.has_next(lane, devices) for devices in ([], [first], [second]))
        lane._queue.put(item)
        for devices in ([], [first], [second]):
            assert Lane.has_next(lane, devices) == (devices == expected)


def test_a_tensor_is_encoded_when_the_reduction_before_has_ended(streams: Streams) -> None:
    """It may have written to it: collectives in place, one after the other, need no wait between them."""
    by_rank = [values_at(who, 64 * 9, torch.float32) for who in range(2)]
    for (before, _), *_ in thread_ranks.run(2, partial(reduce_buckets, streams, by_rank, False, False)):
        for later in range(1, N_BUCKETS):
            assert f"decode {later - 1}" in before[f"encode {later}"]
