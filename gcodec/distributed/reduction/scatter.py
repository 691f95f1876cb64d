"""The first half of the compressed all-reduce alone: every rank keeps the sum of its own part of the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist

from ...tensors import values_of
from ..stats import Counters
from ..transport.delegation import inner_method
from ..transport.jobs import LaneJob
from ..transport.lane import Lane
from ..transport.transfers import labeled
from .allreduce import digest_of
from .coder import BufferCodebooks, Coder
from .partition import Range, piece_length
from .reduce import Reduction
from .reduce_request import ReduceRequest
from .schedule import OneWay


class ScatterSchedule(OneWay):
    """Lists the messages of one rank: contributions. The parts are equal and lie one after another, by rank."""

    def __init__(self, n_values: int, rank: int, size: int) -> None:
        super().__init__(n_values, rank, size)
        part, length = n_values // size, piece_length(n_values, size)
        self.shares = [list(_pieces(owner * part, (owner + 1) * part, length)) for owner in range(size)]


def _pieces(begin: int, end: int, length: int) -> Iterator[Range]:
    return ((at, min(at + length, end)) for at in range(begin, end, length))


class Scatter(Reduction):
    """Runs one reduce-scatter. A value is encoded once, as a contribution; the result stays here, and is not rounded.

    Args:
        lane: the lane of the group.
        coder: the codec of the buffer.
        values: this rank's values, uintW[n], n a multiple of the ranks.
        result: takes this rank's part of the result, uintW[n / ranks].
        mean: divide by the number of ranks.
        terms: further facts that ranks must agree on.
        label: begins the texts of errors.
    """

    def __init__(
        self,
        lane: Lane,
        coder: Coder,
        values: np.ndarray,
        result: np.ndarray,
        *,
        mean: bool,
        terms: tuple[object, ...],
        label: str = "",
    ) -> None:
        # The buffer's length, for Reduction; only this rank's part of it is ever touched, and thus takes memory.
        whole = np.empty_like(values)
        super().__init__(lane, coder, values, whole, mean=mean, terms=(*terms, "scatter"), label=label)
        self.schedule = ScatterSchedule(len(values), lane.rank, lane.size)
        self.own = result

    def run(self) -> None:
        """Run the reduce-scatter to its end. Raises as :meth:`Reduction.run`."""
        super().run()
        begin = self.lane.rank * len(self.own)
        self.own[:] = self.result[begin : begin + len(self.own)]


def scattered(
    request: ReduceRequest, codebooks: BufferCodebooks | None = None, threads: int | None = None
) -> LaneJob:
    """Return the job that reduces a buffer and keeps this rank's part of it. Its value is the request's result.

    Args:
        request: what to reduce, and how; the mode is not NearLossless, which has no meaning without all gradients.
        codebooks: the codebooks that ranks share; None for frames that carry their own.
        threads: threads of the codec; default all cores.
    """
    scatter = partial(_scatter, request, codebooks, threads)

    def reduce_scatter() -> torch.Tensor:
        scatter().run()
        return request.result

    return LaneJob(reduce_scatter, lambda error: scatter().abort(error))


def _scatter(request: ReduceRequest, codebooks: BufferCodebooks | None, threads: int | None) -> Scatter:
    """Make the reduce-scatter of a request. Runs on the lane's thread."""
    dtype, mode = request.dtype, request.mode
    values, result = values_of(request.flat).bits, values_of(request.result).bits
    coder = Coder(dtype, mode.bit_layout(dtype), None, codebooks, [(len(values),)], threads, request.counters)
    terms = (*mode.terms, digest_of(codebooks))
    return Scatter(request.lane, coder, values, result, mean=request.mean, terms=terms, label=request.label)


def plain_scattered(
    lane: Lane, flat: torch.Tensor, own: torch.Tensor, mean: bool, counters: Counters, label: str
) -> LaneJob:
    """Return the job that reduces and scatters ``flat`` by Gloo's own collective, uncompressed."""

    def reduce_scatter() -> torch.Tensor:
        start, options = perf_counter(), dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
        scatter = inner_method(lane.group, "reduce_scatter_single")
        labeled(f"{label}, uncompressed", lambda: scatter(own, flat, options).wait())
        counters.add_dense(flat.nbytes, lane.size, perf_counter() - start, 1)
        return own

    return LaneJob(reduce_scatter)
