"""Ranks that are threads of one process, for exchanges among more ranks than there can be processes.

Their group keeps messages in memory, and has of torch's groups what a reduction on devices asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import Queue
from typing import Any

import torch

from gcodec.distributed.transport.gpu import NcclTransport
from gcodec.distributed.transport.lane import Lane
from gcodec.distributed.transport.transfers import Buffers

PATIENCE = 60  #: seconds after which a rank counts as silent


class _Done:
    """The handle of a message: what is left to do is done by ``wait``."""

    def __init__(self, rest: Callable[[], None] = lambda: None) -> None:
        self._rest = rest

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._rest()
        return True


class MemoryGroup:
    """One rank's end of a group. ``counts`` has how often each of its methods was called.

    Args:
        boxes: The messages of all ranks, by sender, receiver and tag.
        rank: This rank.
        size: The number of ranks.
    """

    def __init__(self, boxes: dict[Any, Queue[torch.Tensor]], rank: int, size: int) -> None:
        self._boxes, self._rank, self._size = boxes, rank, size
        self.counts: Counter[str] = Counter()

    def _box(self, sender: int, receiver: int, tag: Any) -> Queue[torch.Tensor]:
        return self._boxes.setdefault((sender, receiver, tag), Queue())  # at once: another thread may ask, too

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> _Done:
        self.counts["send"] += 1
        self._box(self._rank, peer, tag).put(tensors[0].clone())
        return _Done()

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> _Done:
        self.counts["recv"] += 1
        box = self._box(peer, self._rank, tag)

        def receive() -> None:
            message = box.get(timeout=PATIENCE)
            tensors[0][: len(message)] = message

        return _Done(receive)

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, output_sizes: Any, input_sizes: Any, *options: Any
    ) -> _Done:
        self.counts["alltoall"] += 1
        tag = "alltoall", self.counts["alltoall"]
        for peer, part in enumerate(_split(given, input_sizes, self._size)):
            self._box(self._rank, peer, tag).put(part.clone())

        def receive() -> None:
            for peer, part in enumerate(_split(output, output_sizes, self._size)):
                part.copy_(self._box(peer, self._rank, tag).get(timeout=PATIENCE))

        return _Done(receive)


def _split(tensor: torch.Tensor, sizes: Sequence[int], n: int) -> Sequence[torch.Tensor]:
    return tensor.split(list(sizes)) if sizes else tensor.chunk(n)


class ThreadLane(Lane):
    """A lane without a thread of its own: who makes it does its work. ``more``: whether a further job waits.

    Args:
        rank: This rank.
        size: The number of ranks.
        group: For messages.
        device_group: In NCCL's place.
    """

    def __init__(self, rank: int, size: int, group: MemoryGroup, device_group: MemoryGroup) -> None:
        self.rank, self.size, self.timeout = rank, size, timedelta(seconds=PATIENCE)
        self.group: Any = group
        self.buffers, self.parked, self.failure = Buffers(), [], None
        self.failure_records: Any = None
        self.gpu_transports = {torch.device("cpu"): NcclTransport(device_group)}  # type: ignore[arg-type]
        self._sequence, self._started, self.postponed, self.more = 0, [], None, False
        self.unconfirmed = []

    def has_next(self, devices: Sequence[torch.device]) -> bool:
        return self.more

    def next_job(self) -> None:
        return None


def run(size: int, case: Callable[[ThreadLane], Any]) -> list[tuple[Any, Counter[str], Counter[str]]]:
    """Run a case on so many ranks.

    Returns:
        By rank: what the case returned, and how often each method of the two groups was called.
    """
    boxes: dict[Any, Queue[torch.Tensor]] = {}
    device_boxes: dict[Any, Queue[torch.Tensor]] = {}
    lanes = []
    for rank in range(size):
        groups = MemoryGroup(boxes, rank, size), MemoryGroup(device_boxes, rank, size)
        lanes.append((ThreadLane(rank, size, *groups), *groups))
    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(case, [lane for lane, _, _ in lanes]))
    return [
        (result, group.counts, device_group.counts)
        for result, (_, group, device_group) in zip(results, lanes, strict=True)
    ]
