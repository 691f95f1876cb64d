"""A half of a reduction on devices: a frame from each rank to each other one, and what they are told of it before.

The halves of two reductions can be exchanged together, the sums of one with the contributions of the next. What a rank
tells another one is then a single message::

    byte    offers    what the sender could leave to later, as below
    of each half:
    u64     size      of the frame; 0 for none
    u32     length    of its prelude; 0 if it is to be read from the frame
            prelude
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ...errors import Corruption
from ..stats import Counters
from ..transport.gpu import Collect, gpu_transport_of
from ..transport.lane import Lane
from ..transport.message import Header
from ..transport.small_exchange import SmallMessage, exchange, exchange_bytes, max_payload
from ..transport.transfers import labeled
from .gpu_coder import EncodedFrame, SideStream, side_stream_of
from .partition import Range

#: What a rank offers: to end the reduction when it is asked for, and confirm it then; and to exchange sums with what
#: its lane's next job exchanges, which waits already. Done is what all ranks offer.
LATE_END, LATE_SUMS = 1, 2
_FRAME = struct.Struct("<QI")  #: size of a frame, and of its prelude

Frames = list[EncodedFrame | None]  #: by rank; None where there is nothing to send


class Identity(NamedTuple):
    """Names a reduction, in messages and in errors.

    Attributes:
        sequence: Its number on the lane.
        agreement: Hash of what ranks must agree on.
        where: Begins the texts of errors about what it exchanges.
        label: Begins those of errors that do not know the number.
    """

    sequence: int
    agreement: int
    where: str
    label: str


@dataclass
class Half:
    """A half of a reduction.

    Attributes:
        identity: Of the reduction.
        kind: CONTRIBUTION or RESULT.
        make: Waits for the device, and returns this rank's frame for each rank, its own included.
        sent: The range of the frame for each rank, by rank.
        due: The range of the frame that each rank sends this one, by rank.
        itemsize: Bytes of a value.
        stream: On which this rank's frames are made.
        mark: An event behind that.
        take: Goes on with the frames of all ranks, of which its own is the one that it has made.
        fail: Is told of an error in what ranks sent in this half.
        counters: Takes times and bytes.
    """

    identity: Identity
    kind: int
    make: Callable[[], Frames]
    sent: Sequence[Range]
    due: Sequence[Range]
    itemsize: int
    stream: SideStream
    mark: Any
    take: Callable[[Frames], None]
    fail: Callable[[BaseException], None]
    counters: Counters

    def header(self, sender: int, of: Range) -> Header:
        """Return the header of a message that is about this half first."""
        return Header(self.kind, sender, 0, self.identity.sequence, self.identity.agreement, of[1] - of[0], 0)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Return a context whose errors are this half's."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def check_size(self, size: int, peer: int) -> int:
        """Return the size of the frame that a peer is about to send. Raises Corruption if no frame has it."""
        n_values = self.due[peer][1] - self.due[peer][0]
        n_bytes = n_values * self.itemsize
        # Memory is taken for what a peer says it will send, so it must not be able to say anything.
        if size % 8 or size > 2 * n_bytes + (1 << 20) or (size > 0) != (n_bytes > 0):
            raise Corruption(f"{where(self, peer)}: a frame of {size} bytes for {n_values} values")
        return size

    def send(
        self, lane: Lane, frames: Frames, sizes: Sequence[int], device: torch.device, stream: SideStream
    ) -> Collect:
        """Start to send the frames. Return a function that returns those that come, by rank, on the side stream.

        Args:
            frames: Those that this rank has made.
            sizes: The bytes that each rank sends this one.
            stream: On which they leave.
        """
        nothing = torch.empty(0, dtype=torch.uint8, device=device)
        outgoing = [nothing if to == lane.rank or frame is None else frame.data for to, frame in enumerate(frames)]
        made, label = [frame.data for frame in frames if frame is not None], f"{self.identity.label}, frames"
        transport, side = gpu_transport_of(lane, device), side_stream_of(device)
        if stream is not self.stream:
            stream.after(self.mark, *made)
        with stream.current():
            collect = labeled(label, lambda: transport.swap(outgoing, sizes))
            mark = stream.mark()
        if stream is not side:
            side.after(mark, *made)
        self.counters.sent_bytes += sum(map(len, outgoing))
        self.counters.received_bytes += sum(sizes)
        return lambda: labeled(label, collect)


def where(half: Half, peer: int) -> str:
    """Return what the text of an error about a rank begins with."""
    return f"rank {peer} ({half.identity.where})"


def exchange_halves(lane: Lane, halves: Sequence[Half], device: torch.device, offers: int = 0) -> int:
    """Exchange the frames of halves, and go on with each: the host waits once for the device, if the last of them was
    made last, and once for the other ranks. Called on the lane's thread.

    Args:
        halves: The halves, the same on all ranks.
        offers: What this rank offers: 0, or LATE_END and LATE_SUMS.

    Returns:
        What all ranks offer, which all of them learn alike.

    Raises:
        PeerError: Another rank failed, is silent, or differs in what it does.
        Corruption: A message or a prelude arrived damaged.
    """
    first = halves[0]
    made = []
    for half in halves:
        with half.blamed():
            made.append(half.make())
    messages = {
        peer: SmallMessage(
            first.header(lane.rank, first.sent[peer]), _text([of[peer] for of in made], offers, max_payload(lane.size))
        )
        for peer in lane.others
    }
    expected = {peer: first.header(peer, first.due[peer]) for peer in lane.others}
    start = perf_counter()
    payloads = exchange(lane, messages, expected, first.identity.where)
    first.counters.wait_seconds += perf_counter() - start
    first.counters.sent_bytes += exchange_bytes(lane.size)
    first.counters.received_bytes += exchange_bytes(lane.size)
    told = {peer: _read(payload, len(halves), where(first, peer)) for peer, payload in payloads.items()}
    collects = []
    for number, (half, frames) in enumerate(zip(halves, made, strict=True)):
        with half.blamed():
            sizes = [0] * lane.size
            for peer, (_, of_halves) in told.items():
                sizes[peer] = half.check_size(of_halves[number][0], peer)
            collects.append((half.send(lane, frames, sizes, device, first.stream), sizes))
    for number, (half, frames, (collect, sizes)) in enumerate(zip(halves, made, collects, strict=True)):
        with half.blamed():
            received = collect()
            for peer, (_, of_halves) in told.items():
                prelude = of_halves[number][1] or None
                frames[peer] = EncodedFrame(received[peer], prelude) if sizes[peer] else None
            half.take(frames)
    for offered, _ in told.values():
        offers &= offered
    return offers


def _text(frames: Sequence[EncodedFrame | None], offers: int, room: int) -> bytes:
    """Return what a message says of a frame of each half: preludes as long as there is room for them."""
    room -= 1 + len(frames) * _FRAME.size
    text = bytes([offers])
    for frame in frames:
        prelude = b"" if frame is None or frame.prelude is None or len(frame.prelude) > room else frame.prelude
        room -= len(prelude)
        text += _FRAME.pack(0 if frame is None else len(frame.data), len(prelude)) + prelude
    return text


def _read(payload: bytes, n_halves: int, whose: str) -> tuple[int, list[tuple[int, bytes]]]:
    """Return what a message says: what the sender offers, and size and prelude of a frame of each half.

    Args:
        whose: Begins the texts of errors.
    """
    at, found = 1, []
    for _ in range(n_halves):
        if len(payload) < at + _FRAME.size:
            break
        size, length = _FRAME.unpack_from(payload, at)
        at += _FRAME.size + length
        found.append((size, payload[at - length : at]))
    if len(found) < n_halves or at != len(payload) or payload[0] > LATE_END + LATE_SUMS:
        raise Corruption(f"{whose}: {len(payload)} bytes that tell of {n_halves} frames are damaged")
    return payload[0], found
