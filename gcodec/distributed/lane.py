"""One lane per process group: a private Gloo group and one thread that does all communication, first in, first out.

Collectives of several threads, or from a future's callbacks, run in an order that differs from rank to rank; on Gloo
that hangs or mixes up buckets. A lane has one order. It also knows when it is broken: after an error the ranks no
longer agree on what comes next, so everything handed in later fails at once, with the first error as its cause.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ..errors import GcodecError, InvalidArgument, PeerError
from .exchange import Buffers

_lanes: list[Lane] = []
_lanes_lock = threading.Lock()


class Pending:
    """What a lane will have done: as a ``dist.Work``, something to wait for."""

    def __init__(self) -> None:
        self._box: torch.futures.Future[Any] = torch.futures.Future()

    def complete(self, value: Any, error: BaseException | None = None) -> None:
        """For the lane: the work is done, or has failed."""
        self._box.set_result((value, error))

    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._box.done()

    def wait(self) -> Any:
        """The value; raises what the work raised."""
        return _unpacked(self._box.wait())

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the value. Errors are raised in a ``then``: one that is set on a future does not reach C++."""
        return self._box.then(lambda box: _unpacked(box.value()))


def _unpacked(result: tuple[Any, BaseException | None]) -> Any:
    value, error = result
    if error is not None:
        raise error
    return value


class Job:
    """Work for a lane: ``run`` does it; ``refuse`` is called instead on a broken lane, to tell other ranks."""

    def __init__(self, run: Callable[[], Any], refuse: Callable[[BaseException], None] | None = None) -> None:
        self.run, self.refuse = run, refuse


class Lane:
    """A private group with the ranks of ``parent``, and its thread. Making one is collective over ``parent``."""

    def __init__(self, parent: dist.ProcessGroup, timeout: timedelta) -> None:
        self.parent, self.timeout = parent, timeout
        ranks = dist.get_process_group_ranks(parent)
        self.group = dist.new_group(ranks, timeout=timeout, backend="gloo", use_local_synchronization=True)
        if not isinstance(self.group, dist.ProcessGroup):
            raise InvalidArgument("this process is not in the group")
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.sequence = 0  #: all-reduces begun, the same on all ranks; only the thread touches it
        self.buffers = Buffers()
        self.failure: BaseException | None = None
        self.parked: list[Any] = []  #: operations of failed jobs: what the network may still write to must live on
        self._queue: SimpleQueue[tuple[Job, Pending] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="gcodec-lane", daemon=True)
        self._thread.start()

    def submit(self, work: Job | Callable[[], Any]) -> Pending:
        """Hand in something to do, from any thread; the order of these calls must be the same on all ranks."""
        pending = Pending()
        self._queue.put((work if isinstance(work, Job) else Job(work), pending))
        return pending

    def _work(self) -> None:
        with torch.no_grad():
            while (taken := self._queue.get()) is not None:
                self._do(*taken)
                del taken

    def _do(self, job: Job, pending: Pending) -> None:
        try:
            if self.failure is not None:
                if job.refuse is not None:
                    job.refuse(self.failure)
                raise PeerError(f"an earlier all-reduce of this group has failed: {self.failure}") from self.failure
            value = job.run()
        except BaseException as error:
            self.failure = self.failure or error
            pending.complete(None, error)
        else:
            pending.complete(value)

    def close(self, patience: float | None = None) -> None:
        """Finish what was handed in and end the thread. ``patience``: seconds to wait for it, default the timeout."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._queue.put(None)
            self._thread.join(self.timeout.total_seconds() if patience is None else patience)
        self.failure = self.failure or GcodecError("this lane is closed")


def lane_of(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> Lane:
    """The lane of a group (default: the world's), made on the first call, which is collective over the group.

    ``timeout``: after which a silent peer is an error; default 5 minutes; only the first call's counts.
    """
    if not dist.is_initialized():
        raise InvalidArgument("torch.distributed is not initialized: call init_process_group first")
    parent = dist.group.WORLD if group is None else group
    if not isinstance(parent, dist.ProcessGroup):
        raise InvalidArgument("this process is not in the group")
    with _lanes_lock:
        for lane in _lanes:
            if lane.parent is parent:
                return lane
        lane = Lane(parent, timeout or timedelta(minutes=5))
        _lanes.append(lane)
        return lane


def close_lanes(group: dist.ProcessGroup | None = None, patience: float | None = None) -> None:
    """Close the lane of ``group``, or all lanes; before ``destroy_process_group``. ``patience``: seconds to wait for
    what is under way, default the timeout."""
    with _lanes_lock:
        closing = [lane for lane in _lanes if group is None or lane.parent is group]
        _lanes[:] = [lane for lane in _lanes if lane not in closing]
    for lane in closing:
        lane.close(patience)


def _forget() -> None:
    """Neither threads nor connections survive a fork."""
    global _lanes_lock
    _lanes.clear()
    _lanes_lock = threading.Lock()


atexit.register(close_lanes, None, 5.0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
