"""Detection of where a training step ends, from nothing but its collectives.

A process group is not told about steps. But the collectives of a step come again in the next one, in the same order and
of the same sizes, on all ranks: a step is a period of that sequence. It is cut where ranks wait longest for the next
collective, which is where the forward pass lies, as all of them measured it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter

import numpy as np
import torch

from ..stats import Counters
from ..transport.jobs import LaneJob
from ..transport.lane import Lane
from .allreduce import dense_allreduce
from .bypass import TIMED, Bypass, BypassController

_TIMES = 4  #: repetitions that make a period
_MIN_CALLS = 16  #: calls before the first search; then at twice as many, and so on
COMPRESSED, PLAIN, PLAIN_TIMED = range(3)  #: how to make a collective: the last two are uncompressed
_MAX_CALLS = 1 << 13  #: calls after which those before are forgotten

#: Sums an array over all ranks.
Sum = Callable[[np.ndarray], np.ndarray]


class StepDetector:
    """Finds the period of a sequence of calls, and follows it. For one thread at a time.

    Its answers depend on the calls and on sums over the ranks alone, so they are the same on all of them.

    Args:
        summed: Sums an array over all ranks.
    """

    def __init__(self, summed: Sum) -> None:
        self._summed = summed
        self._forget()

    def _forget(self, period: list[Hashable] | None = None, place: int = 0) -> None:
        self._period, self._place = period, place
        self._calls: list[Hashable] = []
        self._times: list[float] = []
        self._search_at = _MIN_CALLS

    @property
    def known(self) -> bool:
        """True once a period has been found."""
        return self._period is not None

    def begins(self, call: Hashable, now: float) -> bool:
        """Return True if a step begins with a call; False as long as there is no period.

        Args:
            call: The call, which is equal to itself when it comes again.
            now: The time, in seconds.
        """
        if self._period is not None:
            if call == self._period[self._place]:
                first = self._place == 0
                self._place = (self._place + 1) % len(self._period)
                return first
            self._forget()
        self._calls.append(call)
        self._times.append(now)
        if len(self._calls) == self._search_at:
            self._search()
        return False

    def _search(self) -> None:
        """Search the second half of the calls for a period, as DDP's first step differs from those that follow."""
        half = self._search_at // 2
        length = period_of(self._calls[half:])
        if length is not None:
            # gaps[r, p]: seconds before the call at place p of repetition r. The step begins where they are longest, in
            # the median over the repetitions and the sum over the ranks.
            gaps = np.diff(self._times[half - 1 :])[-_TIMES * length :].reshape(_TIMES, length)
            first = int(np.argmax(self._summed(np.median(gaps, axis=0))))
            last = self._calls[-length:]
            self._forget(last[first:] + last[:first], -first % length)
        elif self._search_at == _MAX_CALLS:
            self._forget()
        else:
            self._search_at *= 2


def period_of(calls: list[Hashable]) -> int | None:
    """Return the shortest length that ``calls`` repeat, four times or more; None if there is none."""
    lengths = range(1, len(calls) // _TIMES + 1)
    return next((length for length in lengths if calls[length:] == calls[:-length]), None)


class GroupBypass:
    """A :class:`bypass.BypassController` whose steps are the periods of a lane's collectives.

    It runs on the thread that asks for these, and on the lane's only where it measures or ranks agree.

    Args:
        config: The policy.
        label: Begins what is logged.
    """

    def __init__(self, config: Bypass, lane: Lane, label: str) -> None:
        self._bypass, self._lane, self._label = BypassController(config, label), lane, label
        self._detector = StepDetector(self._summed)

    def kind(self, call: Hashable, n_bytes: int) -> int:
        """Return how to make the next collective: COMPRESSED, PLAIN, or PLAIN_TIMED, which is plain but on the lane.

        Ranks ask in the same order.

        Args:
            call: The collective, as for :meth:`StepDetector.begins`.
            n_bytes: Bytes of its tensors.

        Raises:
            PeerError: Another rank failed or is silent.
        """
        if self._detector.begins(call, perf_counter()):
            self._end_step()
        elif self._bypass.trying and not self._detector.known:
            self._lane.submit(self._bypass.restart).wait()
        if self._bypass.compresses(n_bytes):
            return COMPRESSED
        return PLAIN_TIMED if self._bypass.kind == TIMED else PLAIN

    @property
    def trying(self) -> bool:
        """True in the steps of a trial, whose seconds are measured."""
        return self._bypass.trying

    @property
    def numbers(self) -> dict[str, float]:
        """The results of the last trial, by the names of ``bypass.NUMBERS``."""
        return self._bypass.numbers

    def _end_step(self) -> None:
        """End a step, on the lane's thread where needed: measurements are complete there, and nothing else runs."""
        if self._bypass.communicates_next:
            self._lane.submit(lambda: self._bypass.end_step(self._lane)).wait()
        else:
            self._bypass.end_step(self._lane)

    def add(self, n_bytes: int, counters: Counters) -> None:
        """Record that the lane has made a collective.

        Args:
            n_bytes: Bytes of its tensors.
        """
        self._bypass.add(n_bytes, counters)

    def _summed(self, numbers: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(numbers)
        self._lane.submit(LaneJob(lambda: dense_allreduce(self._lane, total, False, Counters(), self._label))).wait()
        return total.numpy()
