"""Jobs for a lane, jobs that have started but not ended, and futures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

Place = Callable[[], AbstractContextManager[Any]]

#: Names under which torch's profiler shows collectives, as it shows those of torch's backends.
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "gcodec:all_reduce", "gcodec:reduce_scatter", "gcodec:all_gather"


class Future:
    """The value that a lane will produce: what callers wait for.

    Waiting makes the current CUDA stream wait for the stream that was current when the value was completed; the host
    does not wait for the device.

    Args:
        devices: The CUDA devices that the value lies on; empty for values in CPU memory.
        name: Under which torch's profiler, if it is on, shows the time from now to the value; empty to show nothing.
    """

    def __init__(self, devices: Sequence[torch.device] = (), name: str = "") -> None:
        self._box: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
        self._shown = self._box if not name or not _profiler_enabled() else _shown_until_done(name, self._box)
        self._error: BaseException | None = None

    def complete(self, value: Any, error: BaseException | None = None) -> None:
        """Set the value, or an error. Called once, by the lane.

        Args:
            value: The value.
            error: The error that :meth:`wait` is to raise; None for none.
        """
        self._error = error
        self._box.set_result(value)

    def done(self) -> bool:
        """Return True once there is a value or an error."""
        return self._shown.done()

    def wait(self) -> Any:
        """Return the value, waiting for it; raises what the job raised."""
        return self._checked(self._shown.wait())

    def get_future(self) -> torch.futures.Future[Any]:
        """Return torch's future of the value."""
        # Errors are raised in a `then`, as an exception that is set on a torch future does not reach C++ (DDP).
        return self._shown.then(lambda box: self._checked(box.value()))

    def without_value(self) -> Future:
        """Return a future that is done, with the error of this one, which must be done, and with no value."""
        other = Future()
        other.complete(None, self._error)
        return other

    # The error stands beside the box, which gets a value in any case: see get_future.
    def _checked(self, value: Any) -> Any:
        if self._error is not None:
            raise self._error
        return value


def _shown_until_done(name: str, future: torch.futures.Future[Any]) -> torch.futures.Future[Any]:
    """Return a future of the same value, which has it once torch's profiler has noted that ``name`` ended."""
    with record_function(name) as recording:
        return recording._call_end_callbacks_on_future(future)


class StartedJob:
    """A job that has started and not ended, which ``LaneJob.run`` may return in place of its value.

    Args:
        finish: Waits for the end and returns the value.
        advance: Works for a while and returns the value or, if there is more to do, a ``StartedJob``; None for work
            that goes on by itself, as Gloo's own all-reduce does.
        has_ended: Returns True once ``finish`` would not wait, for work that goes on by itself.
    """

    def __init__(
        self,
        finish: Callable[[], Any],
        advance: Callable[[], Any] | None = None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        self.finish, self.advance, self.has_ended = finish, advance, has_ended

    def then(self, end: Callable[[Any], Any]) -> StartedJob:
        """Return the same work with ``end`` applied to its value."""
        advance = self.advance
        return StartedJob(lambda: end(self.finish()), advance and (lambda: then(advance(), end)), self.has_ended)


def then(value: Any, end: Callable[[Any], Any]) -> Any:
    """Apply a function to a job's value: at once, or when a ``StartedJob`` ends.

    Args:
        value: What the job's ``run`` returned.
    """
    return value.then(end) if isinstance(value, StartedJob) else end(value)


def result_of(value: Any) -> Any:
    """Return a job's value, waiting for the end of a ``StartedJob``."""
    return value.finish() if isinstance(value, StartedJob) else value


class LaneJob:
    """Work for a lane.

    Attributes:
        run: Does the work and returns the value, or a :class:`StartedJob`, which goes on while there is no next job.
        abort: Called in place of ``run`` on a broken lane, to tell the other ranks; None where nobody waits for this
            one.
        devices: The CUDA devices of the value, for its :class:`Future`.
        place: Returns the context in which the job runs and is completed, such as a CUDA stream.
        begins: True if ``run`` may return a ``StartedJob`` and waits for no other rank before that. Jobs that may wait
            run only after all started jobs have ended that do not go on by themselves: another rank may be waiting for
            such an end, and does not begin its own waiting job before that.
        touched: The tensors that it reads and writes, where jobs before need to know; else None.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        abort: Callable[[BaseException], None] | None = None,
        devices: Sequence[torch.device] = (),
        place: Place = nullcontext,
        begins: bool = False,
        touched: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.touched = touched
        self.run, self.abort, self.devices, self.place, self.begins = run, abort, devices, place, begins
