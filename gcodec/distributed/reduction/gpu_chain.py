"""Reductions on devices that ranks confirm to each other together, where nothing says at which of them a step ends.

The value of a collective is given out when no rank has found an error in it. To wait for the device, and ask the other
ranks, after each one leaves the network idle. So where the next collective waits already, on all ranks, it is begun
before that, and what comes last asks for all::

    lane of each rank    frames 0   frames 1   frames 2   statuses of 0, 1, 2   receipts   values of 0, 1, 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..transport.jobs import StartedJob
from ..transport.lane import Lane
from ..transport.small_exchange import confirmed_here
from .gpu_coder import devices_of

_MOST = 4  #: reductions that are confirmed together: each holds on to memory


class Link:
    """A reduction of a chain.

    Args:
        label: Begins the texts of errors.
        started: The reduction, as far as this rank is concerned.
        touched: The tensors that it reads and writes.
    """

    def __init__(self, lane: Lane, label: str, started: StartedJob, touched: Sequence[torch.Tensor]) -> None:
        self.label, self.storages = label, _storages(touched)
        self._lane, self._started = lane, started
        self._has_ended = self._is_confirmed = False
        self._value: Any = None
        self._error: BaseException | None = None

    def end(self) -> None:
        """Wait for the device; raises what this rank finds wrong."""
        if not self._has_ended:
            self._has_ended = True
            try:
                self._value = self._started.finish()
            except BaseException as error:
                self._error = error
        if self._error is not None:
            raise self._error

    def confirm(self, error: BaseException | None) -> None:
        """Note that all ranks have ended it, or the error of one."""
        self._is_confirmed, self._error = True, self._error or error

    def finish(self) -> Any:
        """Return the value, once all ranks have confirmed it. Called on all ranks at the same place of the lane's
        order."""
        if not self._is_confirmed:
            _confirm_all(self._lane)
        if self._error is not None:
            raise self._error
        return self._value

    def has_ended(self) -> bool:
        """Return True once :meth:`finish` does not wait."""
        if not self._has_ended and self._started.has_ended() and not self._lane.broken:
            try:
                self.end()  # gives up memory
            except BaseException:
                return False  # it is raised where all ranks are asked
        return self._is_confirmed


def may_wait(lane: Lane, touched: Sequence[torch.Tensor]) -> bool:
    """Return whether a reduction may be left to be confirmed with those that follow, as far as this rank is concerned.
    Called on the lane's thread.

    Args:
        lane: The lane, which has it begun now.
        touched: The tensors that it reads and writes. They have their values when it is confirmed: what follows must
            touch none of them, nor those of the reductions before.
    """
    job = lane.next_job() if lane.has_next(devices_of(touched[0])) else None
    if job is None or job.touched is None or len(lane.unconfirmed) + 1 >= _MOST:
        return False
    ours = _storages(touched).union(*(link.storages for link in lane.unconfirmed))
    return ours.isdisjoint(_storages(job.touched))


def add_link(lane: Lane, label: str, started: StartedJob, touched: Sequence[torch.Tensor], waits: bool) -> Any:
    """Return the value of a reduction that all ranks have confirmed, and those before with it; or a ``StartedJob``.

    Args:
        label: Begins the texts of errors.
        touched: As of :func:`may_wait`.
        waits: Whether all ranks leave it to be confirmed with those that follow.
    """
    link = Link(lane, label, started, touched)
    lane.unconfirmed.append(link)
    if waits:
        return StartedJob(link.finish, None, link.has_ended)
    lane.drain()  # jobs complete in the order in which they were handed in
    return link.finish()


def _confirm_all(lane: Lane) -> None:
    links, lane.unconfirmed = lane.unconfirmed, []
    failed: BaseException | None = None

    def end_all() -> None:
        lane.check_unbroken()
        for link in links:
            link.end()

    try:
        confirmed_here(lane, links[-1].label, end_all)
    except BaseException as error:
        failed = error
    for link in links:
        link.confirm(failed)


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
