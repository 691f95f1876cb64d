"""The first half of the compressed all-reduce alone: every rank keeps the sum of its own part of the buffer."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from ..stats import Counters
from ..transport.delegation import plain_reduce_scatter
from ..transport.jobs import LaneJob
from ..transport.lane import Lane
from ..transport.transfers import labeled
from .partition import equal_shares
from .reduce import Reduction
from .schedule import OneWay, Schedule


class Scatter(Reduction):
    """Runs one reduce-scatter. A value is encoded once, as a contribution; the result stays here, and is not rounded.

    Arguments are those of :class:`~gcodec.distributed.reduction.reduce.Reduction`, but that the number of values is a
    multiple of the ranks, and ``result`` takes this rank's part only: uintW[n / ranks]. The coder's mode is not
    ``NearLossless``, which has no meaning without all gradients.
    """

    kind_terms = ("scatter",)

    def _schedule_of(self, n_values: int) -> Schedule:
        return OneWay(n_values, self.lane.rank, self.lane.size, equal_shares)

    def run(self) -> None:
        """Run the reduce-scatter to its end. Raises as :meth:`Reduction.run`."""
        # A reduction writes to positions of the whole buffer. Only this rank's part of this one is ever touched, and
        # thus takes memory; the caller's is written to when every message has proved right.
        part, self.result = self.result, np.empty_like(self.values)
        super().run()
        begin = self.lane.rank * len(part)
        part[:] = self.result[begin : begin + len(part)]


def dense_reduce_scatter_job(
    lane: Lane, flat: torch.Tensor, part: torch.Tensor, mean: bool, counters: Counters, label: str
) -> LaneJob:
    """Return the job that reduces and scatters a tensor by Gloo's own collective, uncompressed. Its value is the part.

    Args:
        lane: The lane of the group.
        flat: This rank's values.
        part: Takes this rank's part of the result.
        mean: Divide the sum by the number of ranks.
        counters: Takes times and bytes.
        label: Begins the texts of errors.
    """

    def reduce_scatter() -> torch.Tensor:
        start = perf_counter()
        labeled(f"{label}, uncompressed", lambda: plain_reduce_scatter(lane.group, flat, part, mean))
        counters.add_dense(flat.nbytes, lane.size, perf_counter() - start, 1)
        return part

    return LaneJob(reduce_scatter)
