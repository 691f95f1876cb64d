"""The lane of a process group: a private Gloo group and one thread that does all communication, first in, first out.

Collectives of several threads, or from a future's callbacks, run in an order that differs from rank to rank; on Gloo
that hangs or mixes up buckets. A lane has one order. It also knows when it is broken: after an error the ranks no
longer agree on what comes next, so everything handed in later fails at once, with the first error as its cause.

A job on its way through a lane::

    any thread       submit(job) -> Future ..................................... future.wait()
                          |                                                           ^
                        queue                                                         | value, or error
                          v                                                           |
    lane's thread    job.run() --- value ---------------------------------------------+
                          |                                                           |
                          +------- StartedJob: the network has work, the rest waits   |
                                      advance() while there is no next job ...        |
                                      finish()  before a job that may wait -----------+

Started jobs let codec and network overlap: while the network carries one all-reduce, the thread encodes the next.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cached_property, partial
from queue import Empty, Full, Queue
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from ...errors import GcodecError, InvalidArgument, PeerError, Unsupported
from ...threads import start_thread
from .agreement import compare_options
from .arguments import check_group_member
from .failures import FailureRecords
from .jobs import Future, LaneJob, Place, StartedJob
from .transfers import Buffers, Transfers, labeled
from .work import lighten_orphans

_lanes: list[Lane] = []  #: the lane registry: those of this process
_lock = threading.Lock()
_MAX_QUEUED = 1 << 10  #: jobs: each holds on to memory
_POLL_SECONDS = 0.002  #: between looks whether what goes on by itself has ended, where there is nothing else to do
_MAX_STARTED = 2  #: started jobs that do not go on by themselves: one has the network, the next makes its messages


class ClosedError(GcodecError):
    """The lane is closed and takes no more jobs."""

    def __init__(self) -> None:
        super().__init__("the lane of this group is closed, by close_lanes() or with its process group")


class Lane:
    """A private group with the ranks of another one, and a thread. Making a lane is collective over those ranks.

    Args:
        parent: The process group.
        timeout: Time after which a silent peer is an error.

    Attributes:
        group: The private Gloo group, until the lane is closed.
        store: Where its ranks meet, and nobody else.
        buffers: Memory for messages; only the thread uses it.
        failure: The first error of any job; None so far.
        closed: True once :meth:`close` has been called.
        has_told: True once all ranks know that some rank has failed, as far as it is for this one to tell them
            (``small_exchange``); only the thread uses it.
        gpu_transports: How frames travel, by CUDA device; only the thread uses it.
        postponed: What a reduction on a device has left to be exchanged with the next one's frames; only the thread
            uses it.
        unconfirmed: Reductions on devices that ranks have yet to confirm to each other; only the thread uses it.
        parked: What failed jobs have handed to the network, which may still write to it: kept, so that it lives on.
    """

    def __init__(self, parent: dist.ProcessGroup, timeout: timedelta) -> None:
        self.store = store = _private_store(parent, timeout)
        self.parent, self.timeout = parent, timeout
        self.rank, self.size = parent.rank(), parent.size()
        self.group = private_group(store, self.rank, self.size, timeout)
        self.failure_records = FailureRecords(store, self.rank)
        self._sequence = 0  #: all-reduces begun, the same on all ranks; only the thread touches it
        self.buffers = Buffers()
        self.failure: BaseException | None = None
        self.closed = self.has_told = False
        self.gpu_transports: dict[torch.device, Any] = {}
        self.postponed: Any = None
        self.unconfirmed: list[Any] = []
        self.parked: list[Any] = []
        self._started: list[tuple[StartedJob, Future, Place]] = []
        self._queue: Queue[tuple[LaneJob, Future] | None] = Queue(_MAX_QUEUED)
        self._owner: int | None = None  #: the thread's number
        self._thread = start_thread(self._serve)

    @cached_property
    def others(self) -> list[int]:
        """Return all ranks but this one."""
        return [peer for peer in range(self.size) if peer != self.rank]

    def submit(self, work: LaneJob | Callable[[], Any], name: str = "") -> Future:
        """Hand in a job, from any thread, and return its future. Blocks while too many jobs wait.

        The order of these calls must be the same on all ranks.

        Args:
            work: The job, or a function that is all of it.
            name: As in :class:`Future`.

        Raises:
            PeerError: The lane is broken, or no job has ended for as long as a silent rank has time.
            ClosedError: The lane is closed.
            Unsupported: This is the lane's own thread, which calls what waits for a future: the job would come in
                another order on other ranks, and a wait for it would never end.
        """
        if self._is_own_thread():
            raise Unsupported(
                "a compressed collective must not be started by the callback of another one's future: wait for the "
                "future, and start it then"
            )
        if self.closed or not self._thread.is_alive():
            raise self._closed_error()
        job = work if isinstance(work, LaneJob) else LaneJob(work)
        future = Future(job.devices, name)
        try:
            self._queue.put((job, future), timeout=self._patience)
        except Full:
            raise PeerError(f"{_MAX_QUEUED} all-reduces wait, and none has ended within {self._patience:g} s") from None
        # The thread fails what is queued when it ends, but may have done so just before this job came.
        if not self._thread.is_alive():
            self._fail_queued()
        return future

    def has_next(self, devices: Sequence[torch.device]) -> bool:
        """Return True if a job waits that comes after the current one, and its value lies on the same devices. Called
        on the lane's thread."""
        job = self.next_job()
        return job is not None and list(job.devices) == list(devices)

    def next_job(self) -> LaneJob | None:
        """Return the job that comes after the current one, if it waits. Called on the lane's thread."""
        with self._queue.mutex:
            item = self._queue.queue[0] if self._queue.queue else None
        return None if item is None else item[0]

    def next_sequence(self) -> int:
        """Return the number of the all-reduce that begins now, the same on all ranks. Called on the lane's thread."""
        self._sequence += 1
        return self._sequence - 1

    def transfers(self, where: Callable[[int], str], buffers: Buffers | None = None) -> Transfers:
        """Return the sends and receives of one job, none so far.

        Args:
            where: Returns the text that errors about a peer begin with.
            buffers: The memory for messages; default the lane's.
        """
        return Transfers(self.group, self.timeout, buffers or self.buffers, where, self.failure_records)

    def _closed_error(self) -> GcodecError:
        failed = f"an earlier all-reduce of this group has failed: {self.failure}"
        return PeerError(failed) if self.broken else ClosedError()

    def _fail_queued(self) -> None:
        """Fail the jobs that are still queued."""
        with suppress(Empty):
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    item[1].complete(None, self._closed_error())

    @property
    def broken(self) -> bool:
        """True once a job has failed, so that ranks no longer agree on what comes next."""
        return self.failure is not None and not isinstance(self.failure, ClosedError)

    @property
    def _patience(self) -> float:
        return self.timeout.total_seconds()

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._owner and self._thread.is_alive()

    def _serve(self) -> None:
        """Do jobs until the lane is closed; called on the lane's thread."""
        self._owner = threading.get_ident()
        try:
            self._work()
        except BaseException as error:  # such as no memory, between two jobs: whoever waits for one learns of it
            self.failure = self.failure or error
            self._fail_queued()
            raise
        finally:
            self._end_transports()

    def _work(self) -> None:
        with torch.no_grad():
            while (item := self._next()) is not None:
                job, future = item
                self._attempt(partial(self._run_or_abort, job), future, job.place)
                del item, job, future  # they hold on to memory, and the next job may be long in coming
                self._end_ended()
                lighten_orphans()
                # More started jobs would take memory without making anything faster: the network is busy with one.
                while sum(started.advance is not None for started, *_ in self._started) > _MAX_STARTED:
                    self._go_on()
            self.drain()  # close() was called: None is the last item
            self._fail_queued()

    def _next(self) -> tuple[LaneJob, Future] | None:
        """Return the next item of the queue: a job, or None at the end. Until there is one, started jobs go on."""
        while self._queue.empty() and self._go_on():
            pass
        # What goes on by itself must complete though no next job asks for its end: with static_graph, DDP's first step
        # has no last bucket. The lane does not wait for it, as it could begin the next job meanwhile.
        while self._started:
            with suppress(Empty):
                return self._queue.get(timeout=_POLL_SECONDS)
            self._end_ended()
        return self._queue.get()

    def _end_ended(self) -> None:
        """End the first started jobs, as long as they have gone on by themselves and ended."""
        while self._started and self._started[0][0].has_ended():
            started, future, place = self._started.pop(0)
            self._attempt(started.finish, future, place)

    def _go_on(self) -> bool:
        """Advance the first started job that does not go on by itself; returns False if there is none."""
        for position, (started, future, place) in enumerate(self._started):
            if started.advance is not None:
                del self._started[position]
                self._attempt(started.advance, future, place, position)
                return True
        return False

    def _run_or_abort(self, job: LaneJob) -> Any:
        """Run a job, or on a broken lane abort it; returns what its ``run`` returned."""
        # A job that may wait for other ranks must not do so while one of them waits for messages of a job that this
        # one has started: neither would get what it waits for. What goes on by itself needs no messages of the lane's.
        if not job.begins and any(started.advance is not None for started, *_ in self._started):
            self.drain()
        if self.failure is not None and job.abort is not None:  # other ranks may expect messages: they get the reason
            job.abort(self.failure)
        self.check_unbroken()
        postponed, n_unconfirmed = self.postponed, len(self.unconfirmed)
        value = job.run()
        # This job has taken up nothing of what others have left.
        is_left = (postponed is not None and self.postponed is postponed) or 0 < len(self.unconfirmed) <= n_unconfirmed
        if is_left or not isinstance(value, StartedJob):
            self.drain()  # jobs complete in the order in which they were handed in
        return value

    def check_unbroken(self) -> None:
        """Raise an error if a job has failed."""
        if self.failure is not None:
            raise self._closed_error() from self.failure

    def drain(self) -> None:
        """Wait for the end of all started jobs; may be called by jobs, on the lane's thread."""
        jobs, self._started = self._started, []
        for started, future, place in jobs:
            self._attempt(started.finish, future, place)

    def _attempt(self, work: Callable[[], Any], future: Future, place: Place, position: int | None = None) -> None:
        """Do a part of a job, and complete its future unless there is more to do.

        Args:
            work: Does the part, and returns the job's value or, if there is more to do, a ``StartedJob``.
            future: The job's future.
            place: The context of the job.
            position: Where a started job goes among the others; None for the end.
        """
        with place():
            try:
                value = work()
            except BaseException as error:
                self.failure = self.failure or error
                future.complete(None, error)
                self.drain()  # started jobs still hear from the other ranks, or learn that they have failed, too
            else:
                if isinstance(value, StartedJob):
                    self._started.insert(len(self._started) if position is None else position, (value, future, place))
                else:
                    future.complete(value)

    def close(self, patience: float | None = None) -> None:
        """Finish what was handed in and end the thread.

        Args:
            patience: Seconds to wait for that; default the timeout.
        """
        if self._thread.is_alive() and not self._is_own_thread():
            self.closed = True
            patience = self._patience if patience is None else patience
            with suppress(Full):
                self._queue.put(None, timeout=patience)
            self._thread.join(patience)
            if self._thread.is_alive():
                self.failure = self.failure or self._closed_error()
            else:  # submit() may have queued a job behind the None
                self._fail_queued()
                self._end_group(patience)

    def _end_transports(self) -> None:
        """End the ways of frames on devices; called on the lane's thread, which alone has used them."""
        for transport in self.gpu_transports.values():
            with suppress(RuntimeError):  # such as a device's fault, of which jobs have told
                transport.close(self.broken)
        self.gpu_transports.clear()

    def _end_group(self, patience: float) -> None:
        """End the private group, and with it Gloo's threads, unless the lane is broken: these may then wait for long.

        A thread of Gloo that releases a tensor while the interpreter is being finalized ends the process by SIGABRT.
        """
        if self.broken:
            return
        backend = self.group._get_backend(torch.device("cpu"))
        held = [backend, self.group]
        del backend, self.group

        def release() -> None:
            held.pop()
            held.pop()  # the last reference to Gloo: its destructor waits for its threads, without the GIL

        with suppress(RuntimeError):  # where no thread can be started, the destructor waits here
            start_thread(release).join(patience)


def _timeout_of(parent: Any) -> timedelta:
    """Return the timeout that the user gave to a group, or torch's default where its backends do not tell."""
    for device in parent._device_types:
        options = getattr(parent._get_backend(device), "options", None)
        if isinstance(timeout := getattr(options, "_timeout", None), timedelta):
            return timeout
    return distributed_c10d.default_pg_timeout


def _private_store(parent: dist.ProcessGroup, timeout: timedelta) -> Store:
    """Return a part of the parent's own store, for a group of the same ranks. Raises InvalidArgument, PeerError."""
    store = _store_of(parent)
    if store is None:
        raise InvalidArgument("group must be one of torch.distributed's; this one is not, or has been destroyed")
    # Every private group needs keys of its own in the store, the same on all ranks. Names of groups are neither: torch
    # gives those of groups that have ended to others, and a rank knows only those of its own.
    prefix = f"gcodec-lane-{_shared_nonce(parent, timeout)}/"
    return PrefixStore(prefix, store)


def _store_of(parent: dist.ProcessGroup) -> Store | None:
    """Return the store of a group that torch.distributed knows, or that has said which; None for others."""
    if parent in distributed_c10d._world.pg_map:
        return distributed_c10d._get_process_group_store(parent)
    return getattr(parent, "own_store", None)


def _shared_nonce(parent: dist.ProcessGroup, timeout: timedelta) -> int:
    """Return a random number, the same on all ranks of a group.

    A store may outlive the processes: torchrun restarts workers with that of the first attempt, where the addresses of
    its lanes still stand. What restarts do not share is the group's connections.
    """
    device = distributed_c10d._get_object_coll_device(parent)  # CUDA's for a group of NCCL
    nonce = torch.tensor([secrets.randbits(62)], device=device)
    if parent.size() > 1:
        work = labeled("making a lane", lambda: parent.broadcast(nonce, 0))
        labeled("making a lane", lambda: work.wait(timeout))
    return int(nonce.item())


def private_group(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """Make a Gloo group. It is collective over its ranks alone.

    ``new_group`` with local synchronization would name it after how many groups this process is in, which is not the
    same on all ranks, and falls when one is destroyed.

    Args:
        store: The store that the ranks meet through.
        size: The number of ranks.
        timeout: Time after which a silent peer is an error.
    """
    group = dist.ProcessGroup(store, rank, size)
    adopt(group, dist.ProcessGroupGloo(store, rank, size, timeout=timeout))
    return group


def adopt(group: dist.ProcessGroup, gloo: dist.ProcessGroupGloo) -> None:
    """Let a group use a Gloo backend for tensors in CPU memory, and for all that has no device."""
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)


def lane_of(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> Lane:
    """Return the lane of a group, made on the first call, which is collective over the group.

    Making one closes those of groups that have been destroyed.

    Args:
        group: A process group; default the world's.
        timeout: Time after which a silent peer is an error; default the group's own. Only the first call's counts.

    Raises:
        InvalidArgument: torch.distributed is not initialized, or this process is not in the group.
    """
    check_group_member(group)
    if not dist.is_initialized() and (group is None or _store_of(group) is None):
        raise InvalidArgument("torch.distributed is not initialized: call init_process_group first")
    parent: Any = dist.group.WORLD if group is None else group
    with _lock:
        for lane in _lanes:
            if lane.parent is parent:
                return lane
        _close_orphans()
        lane = Lane(parent, timeout or _timeout_of(parent))
        _lanes.append(lane)
        return lane


def lane_with_options(
    lane: Lane | None,
    group: dist.ProcessGroup | None,
    timeout: timedelta | None,
    options: Callable[[], Mapping[str, object]],
) -> Lane:
    """Return the lane that a caller has used before, or a new one: the first time, and where it has been closed.

    A lane that was broken stays so, as ranks no longer agree on what comes next.

    Args:
        lane: The lane of the caller's last step, if any.
        group: As for :func:`lane_of`.
        timeout: As for :func:`lane_of`.
        options: Returns what ranks must have in common to use a new lane.

    Raises:
        PeerError: Ranks have different options.
    """
    if lane is not None and (lane.broken or not lane.closed):
        return lane
    lane = lane_of(group, timeout)
    lane.submit(lambda: compare_options(lane.group, options(), "the first all-reduce")).wait()
    return lane


def close_lanes(group: dist.ProcessGroup | None = None, patience: float | None = None) -> None:
    """Close the lane of a group, or all lanes, on all ranks alike; before ``destroy_process_group``.

    A job that needs a lane later makes a new one.

    Args:
        group: The process group; None for all.
        patience: Seconds to wait for what is under way; default the timeout.

    Raises:
        InvalidArgument: ``group`` is no process group, or ``patience`` no number of seconds.
    """
    check_group_member(group)
    is_number = isinstance(patience, int | float) and not isinstance(patience, bool)
    if patience is not None and not (is_number and patience >= 0):
        raise InvalidArgument(f"patience must be None or a number of seconds, not negative, and not {patience!r:.80}")
    with _lock:
        closing = [lane for lane in _lanes if group is None or lane.parent is group]
        _lanes[:] = [lane for lane in _lanes if lane not in closing]
    for lane in closing:
        lane.close(patience)


def _close_orphans() -> None:
    """Close the lanes of destroyed groups, for which nobody waits."""
    for lane in [lane for lane in _lanes if _store_of(lane.parent) is None]:
        _lanes.remove(lane)
        lane.close(0.0)


def _forget() -> None:
    """Forget all lanes: neither threads nor connections survive a fork."""
    global _lock
    _lanes.clear()
    _lock = threading.Lock()


def close_at_exit() -> None:
    """Close all lanes when the interpreter ends; after an error that nobody caught, leave it as a failure record.

    The other ranks find the connections closed, and read there why. They may never send what this rank still waits for.
    """
    error = getattr(sys, "last_value", None)
    if error is not None:
        for lane in _lanes:
            lane.failure_records.record(f"{type(error).__name__}: {error}")
    close_lanes(None, 5.0 if error is None else 0.5)


atexit.register(close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
