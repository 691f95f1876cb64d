"""What a lane is handed and what it returns: jobs, jobs that have started but not ended, and futures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Place = Callable[[], AbstractContextManager[Any]]


class Future:
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


class StartedJob:
    """What a job's ``run`` returns that has only begun its work: ``finish`` waits for the end and gives the value.

    ``advance``: goes on for a while, and returns the value or, if there is more to do, a ``Later``; None for work that
    goes on by itself.
    """

    def __init__(self, finish: Callable[[], Any], advance: Callable[[], Any] | None = None) -> None:
        self.finish, self.advance = finish, advance

    def then(self, end: Callable[[Any], Any]) -> StartedJob:
        """The same work, with what ``end`` makes of its value."""
        advance = self.advance
        return StartedJob(lambda: end(self.finish()), advance and (lambda: then(advance(), end)))


def then(value: Any, end: Callable[[Any], Any]) -> Any:
    """What ``end`` makes of a value, at once or ``Later``."""
    return value.then(end) if isinstance(value, StartedJob) else end(value)


def result_of(value: Any) -> Any:
    """A value that may be there ``Later``: waits for it."""
    return value.finish() if isinstance(value, StartedJob) else value


class LaneJob:
    """Work for a lane: ``run`` does it and returns the value, or a :class:`Later`, which goes on while there is no next
    job; ``abort`` is called instead on a broken lane, to tell other ranks.

    ``begins``: it may return a ``Later``, and waits for no other rank before that. All that has begun comes to its end
    before a job that may wait: another rank may be waiting for that end, and not begin such a job before.
    ``devices``: of its value, see :class:`Future`; ``place``: what is current there while it runs and is completed,
    such as a stream.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        abort: Callable[[BaseException], None] | None = None,
        devices: Sequence[torch.device] = (),
        place: Place = nullcontext,
        begins: bool = False,
    ) -> None:
        self.run, self.abort, self.devices, self.place, self.begins = run, abort, devices, place, begins
