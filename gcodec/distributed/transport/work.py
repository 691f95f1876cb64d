"""The ``dist.Work`` that a process group returns for something that a lane does."""

from __future__ import annotations

import threading
from collections import deque
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from ...errors import PeerError
from .jobs import Future

#: Works that only torch's C++ code may still hold, in the order of their ends.
_orphans: deque[LaneWork] = deque(maxlen=1 << 12)
_MAX_KEPT = 1 << 10  #: bytes of an orphan's tensors: what DDP asks for has a single value


class LaneWork(Work):
    """The work of one lane job, whose value is a list of tensors.

    Errors are raised by :meth:`wait` and by the future; DDP and functional collectives ask one or the other.

    Args:
        future: The job's future.
    """

    _is_light = True  #: whether it will give up large tensors when it is done, if it has any

    def __init__(self, future: Future) -> None:
        lighten_orphans()
        super().__init__()
        self._future = future
        self._torch_future: torch.futures.Future[Any] = future.get_future()
        self._is_light = False

    # At its end it lives on among the orphans: torch may hold the C++ half of this object, as DDP does under ``join``,
    # and that half's ``wait`` would be the one of torch's base class once this half is gone, and would never return.
    # This is ``def __del__(self): _orphans.append(self)`` without a function of Python, in which an interrupt would be
    # lost: the property gives a partial of ``append`` with the object, which is called.
    __del__ = property(partial(partial, _orphans.append))

    def lighten(self) -> None:
        """Give up large tensors, as soon as the job is done."""
        if not self._is_light:
            self._torch_future.add_done_callback(self._drop_large_tensors)
            self._is_light = True

    def _drop_large_tensors(self, _: object) -> None:
        # Two threads may have asked for this at once, of which the second finds no value any more.
        if self._error() is not None or sum(tensor.nbytes for tensor in self._future.wait() or ()) > _MAX_KEPT:
            self._future = self._future.without_value()
            self._torch_future = self._future.get_future()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the job is done, and return True.

        Args:
            timeout: How long to wait, if positive. When it is over the job still goes on: do not touch its tensors.

        Raises:
            PeerError: The timeout is over.
            Exception: The error of the job.
        """
        if timeout > timedelta(0) and not self._future.done():
            ended = threading.Event()
            self._torch_future.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                raise PeerError(f"the collective has not ended within {timeout.total_seconds():g} s")
        try:
            self._torch_future.wait()
        except RuntimeError:  # torch's, whose text has that of the job's error
            if (error := self._error()) is not None:
                raise error from None
            raise
        return True

    def synchronize(self) -> None:
        """Call :meth:`wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the job has ended, with a result or an error."""
        return self._future.done()

    def is_success(self) -> bool:
        """Return whether the job has ended without an error."""
        return self._future.done() and self._error() is None

    def exception(self) -> Any:
        """Return the error of a job that has failed, or None."""
        return self._error() if self._future.done() else None

    def _error(self) -> BaseException | None:
        try:
            self._future.wait()
        except BaseException as error:
            return error
        return None

    def result(self) -> list[torch.Tensor]:
        """Wait for the tensors and return them."""
        tensors: list[torch.Tensor] = self._torch_future.wait()
        return tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the list of tensors."""
        return self._torch_future


def lighten_orphans() -> None:
    """Have orphans give up large tensors: those that have come since the last call. Made for each new work, and by a
    lane after each job, because nothing can be done at a work's end."""
    heavy: list[LaneWork] = []
    while len(heavy) < len(_orphans) and not (work := _orphans[-1 - len(heavy)])._is_light:
        heavy.append(work)
    for work in reversed(heavy):  # after an interrupt, all that are left come after those that are light
        work.lighten()
