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
from torch._C._distributed_c10d import Work

from ..errors import Unsupported
from .allreduce import TYPES, compressed
from .delegation import adopt, hands_on, inner_method, plain_group
from .lane import Job, Lane, close_lanes, lane_of
from .modes import FixedBits, Lossless
from .stats import Tally
from .warm import warm
from .work import LaneWork

_warm: set[tuple[torch.dtype, type]] = set()


@hands_on
class CompressedGroup(dist.ProcessGroup):
    """What ``init_process_group("gcodec")`` makes; see :class:`gcodec.distributed.GroupOptions` for its options.

    Dense float32, float64, bfloat16 and float16 tensors in CPU memory of at least ``smallest`` bytes are compressed
    when they are summed or averaged by an all-reduce, alone or coalesced. Sums are then made in the order of ranks;
    every rank ends with the same bits. Tensors on other devices are refused.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        name: str,
        mode: Lossless | FixedBits,
        smallest: int,
        threads: int | None,
    ) -> None:
        super().__init__(rank, size)
        self.inner, self._gloo = plain_group(store, rank, size, timeout)
        adopt(self, self._gloo)
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

    def allreduce(self, tensors: Any, *arguments: Any, **options: Any) -> Work:
        """As ``ProcessGroup.allreduce``; compressed where that is possible."""
        return self._all_reduce("allreduce", tensors, arguments, options)

    def allreduce_coalesced(self, tensors: Any, *arguments: Any, **options: Any) -> Work:
        """As ``ProcessGroup.allreduce_coalesced``; all tensors travel as one."""
        return self._all_reduce("allreduce_coalesced", tensors, arguments, options)

    def shutdown(self) -> None:
        """End the lane and the connections; what ``destroy_process_group`` calls."""
        close_lanes(self)
        self.inner.shutdown()

    def _all_reduce(self, name: str, tensors: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Work:
        listed = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        mean = mean_of(arguments, options)
        if mean is None or not self._compresses(listed):
            work: Work = inner_method(self.inner, name)(listed, *arguments, **options)
            return work
        return LaneWork(self._lane(listed[0].dtype).submit(self._reduction(listed, mean)))

    def _compresses(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether all-reducing these is the lane's work: the same answer on all ranks."""
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
        result = self._room(flat)
        shapes = None
        coded = compressed(
            lane, flat, result, TYPES[flat.dtype], self.mode, mean, shapes, None, self.threads, tally, self._name
        )

        def run() -> list[torch.Tensor]:
            coded.run()
            for one, part in zip(tensors, result.split([part.numel() for part in parts]), strict=True):
                one.detach().copy_(part.view(one.shape))
            self._count(tally, lane)
            return tensors

        return Job(run, coded.refuse)

    def _room(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for a result. The lane does one job after another and empties it at the end of each, so jobs share."""
        key = like.numel(), like.dtype
        if key not in self._results:
            if len(self._results) >= 64:
                self._results.clear()
            self._results[key] = torch.empty_like(like)
        return self._results[key]

    def _count(self, tally: Tally, lane: Lane) -> None:
        tally.dense_bytes = 2 * (lane.size - 1) / lane.size * tally.raw_bytes
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
