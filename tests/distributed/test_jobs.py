"""The laws of the futures that callers of a lane wait for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.distributed.transport.jobs import Future
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
