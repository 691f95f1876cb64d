"""A process group of torch whose all-reduces and reduce-scatters of floats are compressed; the rest goes to Gloo.

    import gcodec.distributed
    torch.distributed.init_process_group("gcodec")

It is a Python ``ProcessGroup`` around two private Gloo groups: a plain one, to which everything else is handed on, and
the lane's. Their messages cannot get in each other's way, so it does not matter how the two kinds interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, Work

from ..errors import Unsupported
from .allreduce import TYPES, compressed
from .delegation import hands_on, inner_method
from .lane import Job, Lane, adopt, close_lanes, lane_of
from .modes import FixedBits, Lossless
from .scatter import scattered
from .stats import Tally
from .warm import warm
from .work import LaneWork

_warm: set[tuple[torch.dtype, type]] = set()


@hands_on
class CompressedGroup(dist.ProcessGroup):
    """What ``init_process_group("gcodec")`` makes; see :class:`gcodec.distributed.GroupOptions` for its options.

    Dense float32, float64, bfloat16 and float16 tensors in CPU memory of at least ``smallest`` bytes are compressed
    when they are summed or averaged by an all-reduce or a reduce-scatter of one tensor, alone or coalesced. Sums are
    then made in the order of ranks; every rank ends with the same bits. Tensors on other devices are refused.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        name: str,
        mode: Lossless | FixedBits,
        smallest: int,
        threads: int | None,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the constructor for Python groups, not in the stubs
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._gloo._set_sequence_number_for_group()
        self.inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self.inner):
            adopt(group, self._gloo)
        self._name, self._timeout = name, timeout
        self.mode, self.smallest, self.threads = mode, smallest, threads
        self._tally = Tally()
        self._results: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        if size > 1:
            self._make_warm(torch.float32)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """The name it is registered under."""
        return self._name

    def stats(self) -> dict[str, float]:
        """Counts of the compressed collectives so far, by name, as :class:`gcodec.distributed.stats.Tally` has them."""
        return self._tally.numbers()

    def allreduce(self, *arguments: Any, **options: Any) -> Work:
        """As ``ProcessGroup.allreduce``; compressed where that is possible."""
        return self._all_reduce("allreduce", *arguments, **options)

    def allreduce_coalesced(self, *arguments: Any, **options: Any) -> Work:
        """As ``ProcessGroup.allreduce_coalesced``; all tensors travel as one."""
        return self._all_reduce("allreduce_coalesced", *arguments, **options)

    def reduce_scatter_single(self, *arguments: Any, **options: Any) -> Work:
        """As ``ProcessGroup.reduce_scatter_single``; compressed where that is possible."""
        return self._reduce_scatter("reduce_scatter_single", *arguments, **options)

    def _reduce_scatter_base(self, *arguments: Any, **options: Any) -> Work:
        return self._reduce_scatter("reduce_scatter_single", *arguments, **options)

    def reduce_scatter_single_coalesced(self, *arguments: Any, **options: Any) -> Work:
        """As ``ProcessGroup.reduce_scatter_single_coalesced``; compressed where that is possible."""
        return self._reduce_scatter("reduce_scatter_single_coalesced", *arguments, **options)

    def reduce_scatter_tensor_coalesced(self, *arguments: Any, **options: Any) -> Work:
        """The same under its older name."""
        return self._reduce_scatter("reduce_scatter_single_coalesced", *arguments, **options)

    def shutdown(self) -> None:
        """End the lane and the connections; what ``destroy_process_group`` calls."""
        close_lanes(self)
        self.inner.shutdown()

    def _all_reduce(self, name: str, tensors: Any, *arguments: Any, **options: Any) -> Work:
        listed, mean = as_list(tensors), mean_of(arguments, options)
        if mean is None or not self._compresses(listed):
            work: Work = inner_method(self.inner, name)(tensors, *arguments, **options)
            return work
        return LaneWork(self._lane(listed[0].dtype).submit(self._reduction(listed, mean)))

    def _reduce_scatter(self, name: str, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Work:
        own, given, mean = as_list(outputs), as_list(inputs), mean_of(arguments, options)
        fits = len(own) == len(given) and all(
            whole.numel() == part.numel() * self.size() and whole.dtype == part.dtype
            for whole, part in zip(given, own, strict=True)
        )
        if mean is None or not fits or not self._compresses(given):
            work: Work = inner_method(self.inner, name)(outputs, inputs, *arguments, **options)
            return work
        lane = self._lane(given[0].dtype)
        return LaneWork(lane.submit(several([self._scatter(*pair, mean) for pair in zip(given, own, strict=True)])))

    def _compresses(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether reducing these is the lane's work: the same answer on all ranks."""
        first = tensors[0] if tensors else None
        if first is None or self.size() == 1 or first.dtype not in TYPES:
            return False
        if any(one.layout != torch.strided or one.dtype != first.dtype for one in tensors):
            return False
        elsewhere = next((one.device.type for one in tensors if not one.is_cpu), None)
        if elsewhere is not None:
            raise Unsupported(f"the {self._name} backend has no tensors on {elsewhere}: make their group with another")
        return sum(one.nbytes for one in tensors) >= max(self.smallest, 1)

    def _reduction(self, tensors: list[torch.Tensor], mean: bool) -> Job:
        """The job that all-reduces tensors of one type, in place; its value are the tensors."""
        parts = [one.detach().contiguous().view(-1) for one in tensors]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        lane, tally = self._lane(flat.dtype), Tally(calls=1, raw_bytes=flat.nbytes)
        result, dtype = self._room(flat), TYPES[flat.dtype]
        coded = compressed(lane, flat, result, dtype, self.mode, mean, None, None, self.threads, tally, self._name)

        def run() -> list[torch.Tensor]:
            coded.run()
            for one, part in zip(tensors, result.split([part.numel() for part in parts]), strict=True):
                one.detach().copy_(part.view(one.shape))
            self._count(tally, 2)
            return tensors

        return Job(run, coded.refuse)

    def _scatter(self, whole: torch.Tensor, own: torch.Tensor, mean: bool) -> Job:
        """The job of a reduce-scatter; its value is a list of one."""
        flat, result = whole.detach().contiguous().view(-1), own.detach().contiguous().view(-1)
        lane, tally = self._lane(flat.dtype), Tally(calls=1, raw_bytes=flat.nbytes)
        coded = scattered(lane, flat, result, self.mode, mean, self.threads, tally, self._name)

        def run() -> list[torch.Tensor]:
            coded.run()
            if not own.is_contiguous():
                own.detach().copy_(result.view(own.shape))
            self._count(tally, 1)
            return [own]

        return Job(run, coded.refuse)

    def _room(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for a result. The lane does one job after another and empties it at the end of each, so jobs share."""
        key = like.numel(), like.dtype
        if key not in self._results:
            if len(self._results) >= 64:
                self._results.clear()
            self._results[key] = torch.empty_like(like)
        return self._results[key]

    def _count(self, tally: Tally, turns: int) -> None:
        """``turns``: of a ring, that the dense collective would take: 2 for an all-reduce, 1 for half of it."""
        tally.dense_bytes = turns * (self.size() - 1) / self.size() * tally.raw_bytes
        self._tally.add(tally)

    def _lane(self, dtype: torch.dtype) -> Lane:
        self._make_warm(dtype)
        return lane_of(self, self._timeout)

    def _make_warm(self, dtype: torch.dtype) -> None:
        """Kernels are compiled before other ranks wait."""
        key = dtype, type(self.mode)
        if key not in _warm:
            warm(TYPES[dtype], self.mode, None)
            _warm.add(key)


def mean_of(arguments: Sequence[Any], options: dict[str, Any]) -> bool | None:
    """Whether a reduction is a mean (True) or a sum (False); None for any other operation.

    torch gives an options object, or the operation itself, or neither. Operations are compared one by one: ``in`` does
    not work on them.
    """
    given = [*arguments[:1], *(options[key] for key in ("opts", "op") if key in options)]
    op = getattr(given[0], "reduceOp", given[0]) if given else dist.ReduceOp.SUM
    if op == dist.ReduceOp.AVG:
        return True
    return False if op == dist.ReduceOp.SUM else None


def as_list(tensors: Any) -> list[torch.Tensor]:
    """One tensor, or a sequence of them, as a list."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def several(jobs: Sequence[Job]) -> Job:
    """One job of several whose values are lists; its value is the lists' sum."""

    def refuse(error: BaseException) -> None:
        for job in jobs:
            if job.refuse is not None:
                job.refuse(error)

    return Job(lambda: [tensor for job in jobs for tensor in job.run()], refuse)
