"""The law of started threads: nobody waits without end for one that dies before its first step, without memory."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from gcodec import compiling, threads
from gcodec.compiling import CompileNotice
from gcodec.errors import PeerError
from gcodec.threads import call_later, start_thread
from tests.test_floors import at, trees

pytest.importorskip("torch")


def no_thread(*_: Any) -> None:
    raise RuntimeError("can't start new thread")


def short_lived_thread(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """A thread that ends before its first step."""


STARTS = [no_thread, short_lived_thread]
#: What waits without end for the first step of a thread, or for the work of one.
WAITING = {"Thread", "Timer", "ThreadPoolExecutor", "ThreadPool"}


def test_threads_are_started_by_the_one_module_that_waits_for_none():
    for name, tree in trees().items():
        for node in ast.walk(tree):
            called = getattr(node, "func", None)
            word = getattr(called, "id", getattr(called, "attr", ""))
            is_own = word == "start_new_thread" and name == "gcodec.threads"
            assert word not in WAITING | {"start_new_thread"} or is_own, at(name, getattr(node, "lineno", 0))


@pytest.mark.parametrize("start", STARTS)
def test_a_thread_that_cannot_be_started_is_an_error_at_once(monkeypatch, start):
    monkeypatch.setattr(threads, "start_new_thread", start)
    with pytest.raises(RuntimeError, match="no thread can be started"):
        start_thread(lambda: None)
    with pytest.raises(RuntimeError, match="no thread can be started"):
        call_later(0, lambda: None)


def test_a_thread_that_ends_later_without_a_word_is_not_waited_for(monkeypatch):
    kept: list[Any] = []
    monkeypatch.setattr(threads, "start_new_thread", lambda function, arguments: kept.append(arguments))
    call = start_thread(lambda: None)
    assert call.is_alive()
    kept.clear()  # the thread's end
    assert not call.is_alive()
    call.join(60)


def test_a_started_thread_tells_of_its_end():
    go, calls = Event(), list[int]()

    def work() -> None:
        go.wait(30)
        calls.append(1)

    call = start_thread(work)
    call.join(0)
    assert call.is_alive() and not calls
    go.set()
    call.join(30)
    assert not call.is_alive() and calls == [1]
    failing = start_thread(lambda: 1 // 0)
    failing.join(30)
    assert isinstance(failing.error, ZeroDivisionError) and not failing.is_alive()
    ended = Event()
    call_later(0, ended.set)
    assert ended.wait(30)


@pytest.mark.parametrize("start", STARTS)
def test_a_notice_without_a_thread_fails_nothing(monkeypatch, start):
    monkeypatch.setattr(threads, "start_new_thread", start)
    monkeypatch.setattr(compiling, "_is_ours", lambda event: True)
    notice = CompileNotice(0)
    notice.begin(None)
    notice.end(None)


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of one rank."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("start", STARTS)
def test_a_lane_without_a_thread_is_an_error_and_a_record_without_one_is_left_out(group, monkeypatch, start):
    from torch._C._distributed_c10d import HashStore

    from gcodec.distributed.transport.failures import FailureRecords
    from gcodec.distributed.transport.lane import Lane

    monkeypatch.setattr(threads, "start_new_thread", start)
    with pytest.raises(RuntimeError, match="no thread can be started"):
        Lane(group, timedelta(seconds=30))
    records = FailureRecords(HashStore(), 0)
    records.record("a reason")
    assert records.reason_of(1) is None


def test_a_lane_whose_thread_has_failed_between_two_jobs_says_so(group, monkeypatch):
    from gcodec.distributed.transport.lane import Lane

    go = Event()

    def fail(self: Lane) -> None:
        go.wait(30)
        raise MemoryError("no memory for the next job")

    monkeypatch.setattr(Lane, "_next", fail)
    lane = Lane(group, timedelta(seconds=30))
    waiting = lane.submit(lambda: None)
    go.set()
    with pytest.raises(PeerError, match="no memory for the next job"):
        waiting.wait()
    lane._thread.join(30)
    with pytest.raises(PeerError, match="no memory for the next job"):
        lane.submit(lambda: None)
    lane.close()


def test_a_lane_ends_its_group_where_no_thread_can_be_started(group, monkeypatch):
    from gcodec.distributed.transport.lane import Lane

    lane = Lane(group, timedelta(seconds=30))
    assert lane.submit(lambda: 7).wait() == 7
    monkeypatch.setattr(threads, "start_new_thread", no_thread)
    lane.close()
    assert not hasattr(lane, "group")
