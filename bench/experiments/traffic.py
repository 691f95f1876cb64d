"""Count what ranks send to each other, and the seconds that it takes on a link: the alpha-beta model."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gcodec.compressors.contract import AllGather, AllReduce, AllToAll, Request


class Link(NamedTuple):
    """A link. ``rate``: bits per second; ``latency``: seconds that a message takes before its first byte."""

    rate: float
    latency: float


LATENCY = 2e-4  #: about half of Gloo's all-reduce of 4 bytes between two workers (bench/results/cluster-allreduce.csv)
LINK = Link(1e9, LATENCY)
SLOW = Link(30e6, LATENCY)  #: on which these small models' dense sums take some 20 times as long as their computation


@dataclass
class Traffic:
    """One rank's traffic: ``messages`` in a row that it waits for, and ``wire_bytes`` through its end of the link, one
    way.

    Sums are rings, 2 (W - 1) messages and 2 (W - 1) / W of the bytes; payloads for all go round a ring, W - 1 messages;
    payloads for single ranks, likewise W - 1.
    """

    messages: int = 0
    wire_bytes: float = 0.0

    def seconds(self, link: Link) -> float:
        """Return the seconds on a link."""
        return self.messages * link.latency + 8 * self.wire_bytes / link.rate

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages + other.messages, self.wire_bytes + other.wire_bytes)

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages - other.messages, self.wire_bytes - other.wire_bytes)

    def copy(self) -> Traffic:
        """Return a copy of the counts as they are now."""
        return Traffic(self.messages, self.wire_bytes)

    def metered(self, conversation: Generator[Request, Any, Any], size: int) -> Generator[Request, Any, Any]:
        """Return the same conversation among ``size`` ranks, counted."""
        answer: Any = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield request
            self._count(request, answer, size)

    def _count(self, request: Request, answer: Any, size: int) -> None:
        match request:
            case AllReduce():
                self.messages += 2 * (size - 1)
                self.wire_bytes += 2 * (size - 1) / size * answer.nbytes
            case AllGather():
                self.messages += size - 1
                self.wire_bytes += sum(map(len, answer)) * (size - 1) / size
            case AllToAll():
                self.messages += size - 1
                self.wire_bytes += sum(map(len, answer)) * (size - 1) / size
