"""One lane per process group: a private Gloo group and one thread that does all communication, first in, first out.

Collectives of several threads, or from a future's callbacks, run in an order that differs from rank to rank; on Gloo
that hangs or mixes up buckets. A lane has one order. It also knows when it is broken: after an error the ranks no
longer agree on what comes next, so everything handed in later fails at once, with the first error as its cause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from queue import Empty, Full, Queue
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from ...errors import GcodecError, InvalidArgument, PeerError
from .exchange import Buffers
from .failures import Notices

Place = Callable[[], AbstractContextManager[Any]]

_made: dict[str, int] = {}  #: private groups so far, by the parent's name
_MOST = 1 << 10  #: jobs that may wait: each holds on to memory
_UNDER_WAY = 2  #: jobs begun that do not go on by themselves: one has the network, the next makes its messages


class Pending:
    """What a lane will have done: as a ``dist.Work``, something to wait for.

    ``devices``: those other than the CPU that its value lies on. Waiting makes the current stream wait for the stream
    that was current where the work was completed, and not the host for the device.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self._box: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
        self._error: BaseException | None = None

    def complete(self, value: Any, error: BaseException | None = None) -> None:
        """For the lane: the work is done, or has failed."""
        self._error = error
        self._box.set_result(value)

    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self._box.done()

    def wait(self) -> Any:
        """The value; raises what the work raised."""
        return self._checked(self._box.wait())

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the value. Errors are raised in a ``then``: one that is set on a future does not reach C++."""
        return self._box.then(lambda box: self._checked(box.value()))

    def _checked(self, value: Any) -> Any:
        if self._error is not None:
            raise self._error
        return value


class Later:
    """What a job's ``run`` returns that has only begun its work: ``finish`` waits for the end and gives the value.

    ``advance``: goes on for a while, and returns the value or, if there is more to do, a ``Later``; None for work that
    goes on by itself.
    """

    def __init__(self, finish: Callable[[], Any], advance: Callable[[], Any] | None = None) -> None:
        self.finish, self.advance = finish, advance

    def then(self, end: Callable[[Any], Any]) -> Later:
        """The same work, with what ``end`` makes of its value."""
        advance = self.advance
        return Later(lambda: end(self.finish()), advance and (lambda: then(advance(), end)))


def then(value: Any, end: Callable[[Any], Any]) -> Any:
    """What ``end`` makes of a value, at once or ``Later``."""
    return value.then(end) if isinstance(value, Later) else end(value)


def ended(value: Any) -> Any:
    """A value that may be there ``Later``: waits for it."""
    return value.finish() if isinstance(value, Later) else value


class Job:
    """Work for a lane: ``run`` does it and returns the value, or a :class:`Later`, which goes on while there is no next
    job; ``refuse`` is called instead on a broken lane, to tell other ranks.

    ``begins``: it may return a ``Later``, and waits for no other rank before that. All that has begun comes to its end
    before a job that may wait: another rank may be waiting for that end, and not begin such a job before.
    ``devices``: of its value, see :class:`Pending`; ``place``: what is current there while it runs and is completed,
    such as a stream.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        refuse: Callable[[BaseException], None] | None = None,
        devices: Sequence[torch.device] = (),
        place: Place = nullcontext,
        begins: bool = False,
    ) -> None:
        self.run, self.refuse, self.devices, self.place, self.begins = run, refuse, devices, place, begins


class ClosedError(GcodecError):
    """Nothing more can be handed in."""

    def __init__(self) -> None:
        super().__init__("the lane of this group is closed, by close_lanes() or with its process group")


class Lane:
    """A private group with the ranks of ``parent``, and its thread. Making one is collective over ``parent``."""

    def __init__(self, parent: dist.ProcessGroup, timeout: timedelta) -> None:
        store = _private_store(parent)
        self.parent, self.timeout = parent, timeout
        self.rank, self.size = parent.rank(), parent.size()
        self.group, self.notices = private_group(store, self.rank, self.size, timeout), Notices(store, self.rank)
        self.sequence = 0  #: all-reduces begun, the same on all ranks; only the thread touches it
        self.buffers = Buffers()
        self.failure: BaseException | None = None
        self.closed = False
        self.gpu_transports: dict[torch.device, Any] = {}  #: how frames travel, by CUDA device; only the thread uses it
        self.parked: list[Any] = []  #: operations of failed jobs: what the network may still write to must live on
        self._begun: list[tuple[Later, Pending, Place]] = []
        self._queue: Queue[tuple[Job, Pending] | None] = Queue(_MOST)
        self._thread = threading.Thread(target=self._work, name="gcodec-lane", daemon=True)
        self._thread.start()

    def submit(self, work: Job | Callable[[], Any]) -> Pending:
        """Hand in something to do, from any thread; the order of these calls must be the same on all ranks.

        Waits where too much is waiting. Raises PeerError if that lasts as long as a silent rank may; GcodecError if the
        lane is closed.
        """
        if self.closed or not self._thread.is_alive():
            raise self._ended()
        job = work if isinstance(work, Job) else Job(work)
        pending = Pending(job.devices)
        try:
            self._queue.put((job, pending), timeout=self._patience)
        except Full:
            raise PeerError(f"{_MOST} all-reduces wait, and none has ended within {self._patience:g} s") from None
        if not self._thread.is_alive():  # closed meanwhile
            self._drain()
        return pending

    def _ended(self) -> GcodecError:
        failed = f"an earlier all-reduce of this group has failed: {self.failure}"
        return PeerError(failed) if self.broken else ClosedError()

    def _drain(self) -> None:
        """Nobody is going to do what is still there."""
        with suppress(Empty):
            while True:
                taken = self._queue.get_nowait()
                if taken is not None:
                    taken[1].complete(None, self._ended())

    @property
    def broken(self) -> bool:
        """Whether something has failed, so that ranks no longer agree on what comes next."""
        return self.failure is not None and not isinstance(self.failure, ClosedError)

    @property
    def _patience(self) -> float:
        return self.timeout.total_seconds()

    def _work(self) -> None:
        with torch.no_grad():
            while (taken := self._next()) is not None:
                self._do(*taken)
                del taken
                while sum(later.advance is not None for later, *_ in self._begun) > _UNDER_WAY:
                    self._go_on()
            self.settle()
            self._drain()

    def _next(self) -> tuple[Job, Pending] | None:
        """What was handed in; until there is something, what has begun goes on."""
        while self._queue.empty() and self._go_on():
            pass
        return self._queue.get()

    def _go_on(self) -> bool:
        """Do some of the first work that does not go on by itself; whether there is any."""
        for turn, (later, pending, place) in enumerate(self._begun):
            if later.advance is not None:
                del self._begun[turn]
                self._attempt(later.advance, pending, place, turn)
                return True
        return False

    def _do(self, job: Job, pending: Pending) -> None:
        def run() -> Any:
            if not job.begins:
                self.settle()
            if self.failure is not None:
                if job.refuse is not None:
                    job.refuse(self.failure)
                raise self._ended() from self.failure
            value = job.run()
            if not isinstance(value, Later):
                self.settle()
            return value

        self._attempt(run, pending, job.place)

    def settle(self) -> None:
        """Wait for the end of what has begun; for jobs, on the lane's thread."""
        begun, self._begun = self._begun, []
        for later, pending, place in begun:
            self._attempt(later.finish, pending, place)

    def _attempt(self, run: Callable[[], Any], pending: Pending, place: Place, turn: int | None = None) -> None:
        """``turn``: which of the works begun this is, should it go on."""
        with place():
            try:
                value = run()
            except BaseException as error:
                self.failure = self.failure or error
                pending.complete(None, error)
                self.settle()
            else:
                if isinstance(value, Later):
                    self._begun.insert(len(self._begun) if turn is None else turn, (value, pending, place))
                else:
                    pending.complete(value)

    def close(self, patience: float | None = None) -> None:
        """Finish what was handed in and end the thread. ``patience``: seconds to wait for it, default the timeout."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self.closed = True
            patience = self._patience if patience is None else patience
            with suppress(Full):
                self._queue.put(None, timeout=patience)
            self._thread.join(patience)
            if self._thread.is_alive():
                self.failure = self.failure or self._ended()
            else:
                self._drain()


def _private_store(parent: dist.ProcessGroup) -> Store:
    """A part of the parent's own store, for a group of the same ranks. Raises InvalidArgument."""
    if parent not in distributed_c10d._world.pg_map:
        raise InvalidArgument("this process group has been destroyed, or is none of torch.distributed's")
    name = str(parent.group_name)
    _made[name] = _made.get(name, 0) + 1
    return PrefixStore(f"gcodec-lane-{_made[name]}/", distributed_c10d._get_process_group_store(parent))


def private_group(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """A Gloo group of those that meet through ``store``, which is all that it needs to be collective over.

    ``new_group`` with local synchronization would name it after how many groups this process is in, which is not the
    same on all ranks, and falls when one is destroyed.
    """
    group = dist.ProcessGroup(store, rank, size)
    adopt(group, dist.ProcessGroupGloo(store, rank, size, timeout=timeout))
    return group


def adopt(group: dist.ProcessGroup, gloo: dist.ProcessGroupGloo) -> None:
    """Make a Gloo backend the one of a group for tensors in CPU memory, and for all that has no device."""
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
