"""The laws of the futures that callers of a lane wait for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.distributed.transport.jobs import Future


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
