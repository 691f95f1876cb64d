"""The first half of the compressed all-reduce alone: every rank keeps the sum of its own part of the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist

from ...tensors import values_of
from ..modes import FixedBits, Lossless
from ..stats import Counters
from ..transport.delegation import inner_method
from ..transport.jobs import LaneJob
from ..transport.lane import Lane
from ..transport.transfers import labeled
from .allreduce import TYPES, digest_of
from .coder import BufferCodebooks, Coder
from .partition import Range, piece_length
from .reduce import Reduction
from .schedule import OneWay


class ScatterSchedule(OneWay):
    """The messages of one rank: contributions. The parts are equal and lie one after another, by rank."""

    def __init__(self, n_values: int, rank: int, size: int) -> None:
        super().__init__(n_values, rank, size)
        part, length = n_values // size, piece_length(n_values, size)
        self.shares = [list(_pieces(owner * part, (owner + 1) * part, length)) for owner in range(size)]


def _pieces(begin: int, end: int, length: int) -> Iterator[Range]:
    return ((at, min(at + length, end)) for at in range(begin, end, length))


class Scatter(Reduction):
    """One reduce-scatter of ``values`` (uintW[n], n a multiple of the ranks) into ``result`` (uintW[n / ranks]).

    A value is encoded once, as a contribution; the result stays here, and is not rounded. Else as Reduction.
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
        """Do it; as :meth:`Reduction.run`."""
        super().run()
        begin = self.lane.rank * len(self.own)
        self.own[:] = self.result[begin : begin + len(self.own)]


def scattered(
    lane: Lane,
    flat: torch.Tensor,
    own: torch.Tensor,
    mode: Lossless | FixedBits,
    mean: bool,
    shared: BufferCodebooks | None,
    threads: int | None,
    counters: Counters,
    label: str = "",
) -> LaneJob:
    """The job that reduces ``flat`` (contiguous, of a type in ``TYPES``) and puts this rank's part into ``own``
    (contiguous), which it returns."""

    def scatter() -> Scatter:
        dtype = TYPES[flat.dtype]
        coder = Coder(dtype, mode.bit_layout(dtype), None, shared, [(flat.numel(),)], threads, counters)
        values, result = values_of(flat).bits, values_of(own).bits
        terms = (*mode.terms, digest_of(shared))
        return Scatter(lane, coder, values, result, mean=mean, terms=terms, label=label)

    def run() -> torch.Tensor:
        scatter().run()
        return own

    return LaneJob(run, lambda error: scatter().abort(error))


def plain_scattered(
    lane: Lane, flat: torch.Tensor, own: torch.Tensor, mean: bool, counters: Counters, label: str
) -> LaneJob:
    """Return the job that reduces and scatters ``flat`` by Gloo's own collective, uncompressed."""

    def run() -> torch.Tensor:
        start, options = perf_counter(), dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
        scatter = inner_method(lane.group, "reduce_scatter_single")
        labeled(f"{label}, uncompressed", lambda: scatter(own, flat, options).wait())
        counters.add_dense(flat.nbytes, lane.size, perf_counter() - start, 1)
        return own

    return LaneJob(run)
