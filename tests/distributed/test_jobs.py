"""The laws of the futures that callers of a lane wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import gcodec
from gcodec.distributed.transport.jobs import Future, LaneJob, StartedJob
from gcodec.distributed.transport.lane import Lane
from gcodec.distributed.transport.work import LaneWork


def test_a_future_that_the_profiler_shows_gives_and_raises_what_others_do():
    value, error = torch.arange(3.0), gcodec.PeerError("a fault on purpose")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        good, bad = Future(name="one"), Future(name="another")
        assert not good.done()
        good.complete(value)
        bad.complete(None, error)
        assert good.done()
        assert good.wait() is value
        assert good.get_future().wait() is value
        for wait in (bad.wait, bad.without_value().wait):
            with pytest.raises(gcodec.PeerError, match="a fault on purpose"):
                wait()
        with pytest.raises(RuntimeError, match="PeerError: a fault on purpose"):  # as torch says it in a callback
            bad.get_future().wait()
    assert {"one", "another"} <= {event.name for event in profile.events()}


def test_a_work_gives_up_its_tensors_though_two_threads_ask_it_to_at_once():
    future = Future()
    work = LaneWork(future)
    future.complete([torch.zeros(1 << 12)])
    for _ in range(2):
        work._drop_large_tensors(None)  # torch would print an exception of this callback, and go on
        assert work.wait()
        assert work.result() is None


@pytest.fixture
def lane() -> Iterator[Lane]:
    """Yield the lane of a group of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    made = Lane(dist.group.WORLD, timedelta(seconds=60))
    yield made
    made.close()
    dist.destroy_process_group()


@pytest.mark.parametrize("goes_on_by_itself", [True, False])
def test_a_job_that_may_wait_for_ranks_waits_for_started_jobs_that_need_the_lane(lane, goes_on_by_itself):
    """What goes on by itself may still be under way, and ends when it has come so far, before the lane is closed."""
    happened = list[str]()
    begin, other_has_begun, ended = threading.Event(), threading.Event(), threading.Event()

    def finish() -> None:
        happened.append("end")

    def advance() -> StartedJob:
        return StartedJob(finish, advance)

    def start() -> StartedJob:
        begin.wait()  # until the next job is there: else the lane would go on with this one
        return StartedJob(finish, None if goes_on_by_itself else advance, ended.is_set)

    def start_another() -> StartedJob:
        happened.append("another job")
        other_has_begun.set()
        return StartedJob(lambda: None, None, ended.is_set)

    futures = [lane.submit(LaneJob(start, begins=True)), lane.submit(LaneJob(start_another))]
    begin.set()
    if goes_on_by_itself:
        assert other_has_begun.wait(60)
        assert not any(future.done() for future in futures)
    ended.set()
    for future in futures:
        future.wait()
    assert happened == (["another job", "end"] if goes_on_by_itself else ["end", "another job"])


def test_started_jobs_that_have_ended_are_read_before_the_next_one_is_waited_for(lane):
    """The lane holds on to nothing that has ended, however many jobs follow."""
    happened, begin = list[str](), threading.Event()

    def job(name: str) -> LaneJob:
        def start() -> StartedJob:
            begin.wait()
            happened.append(f"{name} begins")
            return StartedJob(lambda: happened.append(f"{name} ends"), None, lambda: True)

        return LaneJob(start)

    futures = [lane.submit(job(name)) for name in "abc"]
    begin.set()
    for future in futures:
        future.wait()
    assert happened == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
