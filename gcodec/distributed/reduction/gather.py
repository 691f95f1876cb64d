"""The second half of the compressed all-reduce alone: every rank sends its own part of a buffer to all others."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import torch
from torch._C._distributed_c10d import AllgatherOptions

from ..stats import Counters
from ..transport.delegation import inner_method
from ..transport.jobs import LaneJob
from ..transport.lane import Lane
from ..transport.message_exchange import MessageExchange
from ..transport.transfers import labeled
from .partition import equal_shares
from .reduce import Reduction
from .schedule import Schedule, Slot


class GatherSchedule(Schedule):
    """Lists the messages of one rank: results, which are the values themselves."""

    def contributed(self) -> list[Slot]:
        """Return an empty list: nothing is summed."""
        return []


class Gather(Reduction):
    """Runs one all-gather, without loss. A value is encoded once, for all ranks.

    Arguments are those of :class:`~gcodec.distributed.reduction.reduce.Reduction`, but that ``values`` are this rank's
    part only, uintW[n / ranks]; it may lie where ``result`` has it. The coder's mode is ``Lossless``.
    """

    kind_terms = ("gather",)

    def _schedule_of(self, n_values: int) -> Schedule:
        return GatherSchedule(n_values * self.lane.size, self.lane.rank, self.lane.size, equal_shares)

    def _run(self, exchange: MessageExchange) -> Iterator[None]:
        answers = self._answers(exchange)
        begin = self.lane.rank * len(self.values)
        for due in self.schedule.sums():
            self._send(exchange, self.schedule.copies(due), self.values[due.begin - begin : due.end - begin])
        yield
        own = self.result[begin : begin + len(self.values)]
        if own.ctypes.data != self.values.ctypes.data:
            own[:] = self.values
        yield from self._take(exchange, *answers)


def dense_gather_job(lane: Lane, part: torch.Tensor, whole: torch.Tensor, counters: Counters, label: str) -> LaneJob:
    """Return the job that gathers a tensor by Gloo's own collective, uncompressed. Its value is ``whole``.

    Args:
        lane: The lane of the group.
        part: This rank's values.
        whole: Takes those of all ranks.
        counters: Takes times and bytes.
        label: Begins the texts of errors.
    """

    def all_gather() -> torch.Tensor:
        start, gather = perf_counter(), inner_method(lane.group, "all_gather_single")
        labeled(f"{label}, uncompressed", lambda: gather(whole, part, AllgatherOptions()).wait())
        counters.add_dense(whole.nbytes, lane.size, perf_counter() - start, 1)
        return whole

    return LaneJob(all_gather)
