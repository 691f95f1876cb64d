"""Compressed all-reduces and reduce-scatters of tensors about which nothing else is known: what the process group and
FSDP's adapters have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import InvalidArgument, Unsupported
from .allreduce import SMALLEST, TYPES, compressed
from .lane import Job, Lane, lane_of
from .modes import FixedBits, Lossless
from .scatter import scattered
from .stats import Tally
from .warm import warm
from .work import LaneWork

_ROOMS = 64  #: results whose memory is kept
_warm: set[tuple[torch.dtype, type]] = set()


@dataclass(frozen=True)
class GroupOptions:
    """How a process group compresses; the same on all of its ranks.

    ``mode``: ``Lossless()`` or ``FixedBits``; NearLossless needs parameters, which a process group does not see and of
    which FSDP has but shards. ``smallest``: tensors of fewer bytes go through Gloo as they are. ``threads`` of the
    codec: default the cores divided by the ranks on this host (as torchrun tells). ``timeout``: after which a silent
    rank is an error; default what torch was told (``timeout=``). Raises InvalidArgument for another mode.
    """

    mode: Lossless | FixedBits = field(default_factory=Lossless)
    smallest: int = SMALLEST
    threads: int | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, Lossless | FixedBits):
            raise InvalidArgument(
                f"mode={self.mode!r}: Lossless() or FixedBits(k); NearLossless needs the parameters and their "
                "optimizer, which only the DDP hook and DiLoCo see"
            )

    @property
    def _timeout(self) -> timedelta | None:
        """Under this name device meshes ask for it."""
        return self.timeout


class Collectives:
    """Starts them on lanes, and counts. ``label``: begins what errors say of where they happened."""

    def __init__(self, options: GroupOptions, label: str) -> None:
        self.options, self.label = options, label
        self.threads = options.threads or threads_here()
        self._tally = Tally()
        self._results: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def stats(self) -> dict[str, float]:
        """Counts so far, by name, as :class:`gcodec.distributed.stats.Tally` has them."""
        return self._tally.numbers()

    def suits(self, tensors: Sequence[torch.Tensor], size: int) -> bool:
        """Whether reducing these among ``size`` ranks is work for a lane: the same answer on all ranks.

        Raises Unsupported for floats on another device.
        """
        first = tensors[0] if tensors else None
        if first is None or size == 1 or first.dtype not in TYPES:
            return False
        if any(one.layout != torch.strided or one.dtype != first.dtype for one in tensors):
            return False
        elsewhere = next((one.device.type for one in tensors if not one.is_cpu), None)
        if elsewhere is not None:
            raise Unsupported(f"{self.label}: tensors on {elsewhere} are not reduced yet; those in CPU memory are")
        return sum(one.nbytes for one in tensors) >= max(self.options.smallest, 1)

    def all_reduce(self, group: dist.ProcessGroup, tensors: list[torch.Tensor], mean: bool) -> LaneWork:
        """Of tensors of one type, in place; they travel as one. The work's value is the list."""
        parts = [one.detach().contiguous().view(-1) for one in tensors]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        lane, tally = self._lane(group, flat.dtype), Tally(calls=1, raw_bytes=flat.nbytes)
        mode, threads, dtype, result = self.options.mode, self.threads, TYPES[flat.dtype], self._room(lane, flat)
        job = compressed(lane, flat, result, dtype, mode, mean, None, None, threads, tally, self.label)

        def end() -> list[torch.Tensor]:
            for one, part in zip(tensors, result.split([part.numel() for part in parts]), strict=True):
                one.detach().copy_(part.view(one.shape))
            self._count(tally, 2, lane)
            return tensors

        return LaneWork(lane.submit(_with_end(job, end)))

    def reduce_scatter(
        self, group: dist.ProcessGroup, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], mean: bool
    ) -> LaneWork:
        """Of pairs: the whole, and what takes this rank's part. The work's value is the list of parts."""
        lane = self._lane(group, pairs[0][0].dtype)
        return LaneWork(lane.submit(_several([self._scatter(lane, whole, own, mean) for whole, own in pairs])))

    def _scatter(self, lane: Lane, whole: torch.Tensor, own: torch.Tensor, mean: bool) -> Job:
        flat, result = whole.detach().contiguous().view(-1), own.detach().contiguous().view(-1)
        tally = Tally(calls=1, raw_bytes=flat.nbytes)
        job = scattered(lane, flat, result, self.options.mode, mean, self.threads, tally, self.label)

        def end() -> list[torch.Tensor]:
            if not own.is_contiguous():
                own.detach().copy_(result.view(own.shape))
            self._count(tally, 1, lane)
            return [own]

        return _with_end(job, end)

    def _room(self, lane: Lane, like: torch.Tensor) -> torch.Tensor:
        """Memory for a result. A lane does one job after another and empties it at the end of each, so jobs share."""
        key = id(lane), like.numel(), like.dtype
        if key not in self._results:
            if len(self._results) >= _ROOMS:
                self._results.clear()
            self._results[key] = torch.empty_like(like)
        return self._results[key]

    def _count(self, tally: Tally, turns: int, lane: Lane) -> None:
        """``turns``: of a ring, that the dense collective would take: 2 for an all-reduce, 1 for half of it."""
        tally.dense_bytes = turns * (lane.size - 1) / lane.size * tally.raw_bytes
        self._tally.add(tally)

    def _lane(self, group: dist.ProcessGroup, dtype: torch.dtype) -> Lane:
        self.make_warm(dtype)
        return lane_of(group, self.options.timeout)

    def make_warm(self, dtype: torch.dtype) -> None:
        """Compile the kernels before other ranks wait."""
        key = dtype, type(self.options.mode)
        if key not in _warm:
            warm(TYPES[dtype], self.options.mode, None)
            _warm.add(key)


def threads_here() -> int:
    """Threads for the codec that leave the other ranks on this host theirs, as torchrun counts them."""
    return max((os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


def mean_of(op: Any) -> bool | None:
    """Whether a reduction is a mean (True) or a sum (False); None for any other operation.

    Operations are compared one by one: ``in`` does not work on them.
    """
    if op == dist.ReduceOp.AVG:
        return True
    return False if op == dist.ReduceOp.SUM else None


def _with_end(job: Job, end: Callable[[], list[torch.Tensor]]) -> Job:
    def run() -> list[torch.Tensor]:
        job.run()
        return end()

    return Job(run, job.refuse)


def _several(jobs: Sequence[Job]) -> Job:
    """One job of several whose values are lists; its value is the lists' sum."""

    def refuse(error: BaseException) -> None:
        for job in jobs:
            if job.refuse is not None:
                job.refuse(error)

    return Job(lambda: [tensor for job in jobs for tensor in job.run()], refuse)
