"""Scatter-reduce, then all-gather, over the codec: GComp's Figure 8.

Each rank sums one chunk of the buffer. It sends every other rank the values of that rank's chunk, adds up what it
receives for its own, and sends the result to all. However many ranks there are, a value is encoded twice: as a
contribution and as a result. A rank rounds its own contribution as the others round theirs, and decodes its own result
as they do: so all ranks end with the same bits, and these depend on the values alone, not on who sums which.
Contributions are added in the order of ranks.

Both halves work piece by piece. All receives are posted first; all contributions are encoded and handed to the network;
then each piece is summed as its last contribution arrives, and its result follows at once.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import NamedTuple

import numpy as np

from ..errors import Corruption, GcodecError, Unsupported
from ..sizes import max_encoded_size
from .coder import Coder
from .exchange import Exchange, Incoming
from .lane import Lane
from .message import CONTRIBUTION, HEADER, MAX_REASON, RESULT, Header, agreement_of, check, refusal
from .partition import chunks, piece_length, pieces
from .summation import Sum

_TRIAL = 1 << 18  #: bytes beyond a frame's limit that let the encoder work in place
_SEQUENCES = 1 << 11  #: all-reduces after which tags repeat


class Slot(NamedTuple):
    """One message of a reduction: values ``begin ... end``, to or from a peer."""

    peer: int
    kind: int
    piece: int
    begin: int
    end: int


class Reduction:
    """One all-reduce of ``values`` (uintW[n]) into ``result`` (uintW[n], not the same memory) on a lane.

    ``mean``: divide by the number of ranks; ``terms``: what else ranks must agree on; ``label``: for errors. Its
    methods run on the lane's thread.
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
        self.lane, self.coder = lane, coder
        self.values, self.result, self.mean, self.label = values, result, mean, label
        self.length = piece_length(len(values), lane.size)
        self.parts = [pieces(chunk, self.length) for chunk in chunks(len(values), lane.size)]
        facts = (coder.dtype.name, len(values), lane.size, self.length, mean, terms)
        self.agreement = agreement_of(*facts)
        self.sequence = -1
        self._left: deque[Slot] = deque()  #: messages that other ranks expect of this one, in the order of sending

    def run(self) -> None:
        """Do it. Raises PeerError, Corruption, or what encoding raised; then other ranks are told."""
        exchange = self._start()
        start = perf_counter()
        try:
            self._run(exchange)
            exchange.finish(self._where)
        except BaseException as error:
            self._give_up(exchange, error)
            raise
        tally = self.coder.tally
        tally.sent_bytes += exchange.sent
        tally.wait_seconds += exchange.waited
        tally.seconds += perf_counter() - start

    def refuse(self, error: BaseException) -> None:
        """Tell all ranks that this one cannot take part."""
        self._give_up(self._start(), error)

    def _start(self) -> Exchange:
        self.sequence = self.lane.sequence
        self.lane.sequence += 1
        self._left = deque([*self._contributions(), *self._results(self.lane.rank)])
        return Exchange(self.lane.group, self.lane.timeout, self.lane.buffers)

    def _others(self) -> list[int]:
        """The other ranks, the next one first, so that not all send to the same."""
        rank, size = self.lane.rank, self.lane.size
        return [(rank + distance) % size for distance in range(1, size)]

    def _contributions(self) -> list[Slot]:
        """What this rank sends first: a piece to everyone, then the next piece."""
        most = max(map(len, self.parts))
        return [
            Slot(owner, CONTRIBUTION, piece, *self.parts[owner][piece])
            for piece in range(most)
            for owner in self._others()
            if piece < len(self.parts[owner])
        ]

    def _results(self, owner: int) -> list[Slot]:
        """What this rank sends then, or what it receives from ``owner``."""
        rank = self.lane.rank
        return [
            Slot(peer, RESULT, piece, begin, end)
            for piece, (begin, end) in enumerate(self.parts[owner])
            for peer in (self._others() if owner == rank else [owner])
        ]

    def _run(self, exchange: Exchange) -> None:
        rank = self.lane.rank
        own = [
            [(peer, self._post(exchange, Slot(peer, CONTRIBUTION, piece, begin, end))) for peer in self._others()]
            for piece, (begin, end) in enumerate(self.parts[rank])
        ]
        most = max(map(len, self.parts))
        slots = [
            slot
            for piece in range(most)
            for owner in self._others()
            for slot in self._results(owner)
            if slot.piece == piece
        ]
        results = [(slot, self._post(exchange, slot)) for slot in slots]
        for slot in self._contributions():
            self._send(exchange, [slot], self.values[slot.begin : slot.end], slot)
        for piece, incoming in enumerate(own):
            self._reduce(exchange, piece, dict(incoming))
        for slot, message in results:
            self._decode(exchange, slot, message, self.result[slot.begin : slot.end])

    def _reduce(self, exchange: Exchange, piece: int, incoming: dict[int, Incoming]) -> None:
        """Sum one piece of this rank's chunk, send the result, and keep what the others will decode."""
        rank = self.lane.rank
        begin, end = self.parts[rank][piece]
        total, received = Sum(self.coder.dtype, end - begin), np.empty(end - begin, self.values.dtype)
        for peer in range(self.lane.size):
            if peer == rank:
                term = self.coder.round(self.values[begin:end], begin)
            else:
                term = received
                self._decode(exchange, Slot(peer, CONTRIBUTION, piece, begin, end), incoming[peer], term)
            start = perf_counter()
            total.add(term)
            self.coder.tally.sum_seconds += perf_counter() - start
        total.finish(self.lane.size if self.mean else 1, received)
        slots = [Slot(peer, RESULT, piece, begin, end) for peer in self._others()]
        frame = self._send(exchange, slots, received, slots[0])
        if self.coder.exact:
            self.result[begin:end] = received
        else:
            self.coder.decode(frame, self.result[begin:end])

    def _post(self, exchange: Exchange, slot: Slot) -> Incoming:
        return exchange.post(slot.peer, self._tag(slot), self._room(slot))

    def _room(self, slot: Slot) -> int:
        return max(HEADER + max_encoded_size(slot.end - slot.begin, self.coder.dtype.name), HEADER + MAX_REASON)

    def _tag(self, slot: Slot) -> int:
        return (self.sequence % _SEQUENCES << 1 | slot.kind) << 16 | slot.piece

    def _send(self, exchange: Exchange, slots: list[Slot], bits: np.ndarray, of: Slot) -> np.ndarray:
        """Encode once, send to every slot's peer; returns the frame."""
        buffer = self.lane.buffers.take(self._room(of) + _TRIAL)
        message: np.ndarray = buffer.numpy()
        size = self.coder.encode(bits, of.begin, of.kind, message[HEADER:])
        self._header(of, size).write_to(message)
        exchange.own(buffer)
        for slot in slots:
            exchange.send(slot.peer, self._tag(slot), buffer, HEADER + size)
            self._left.popleft()
        return message[HEADER : HEADER + size]

    def _header(self, slot: Slot, payload: int, sender: int | None = None) -> Header:
        sender = self.lane.rank if sender is None else sender
        return Header(slot.kind, sender, slot.piece, self.sequence, self.agreement, slot.end - slot.begin, payload)

    def _decode(self, exchange: Exchange, slot: Slot, incoming: Incoming, out: np.ndarray) -> None:
        where = self._where(slot.peer, slot.piece)
        message = exchange.receive(incoming, where)
        payload = check(message, self._header(slot, 0, slot.peer), where)
        self.coder.tally.received_bytes += HEADER + len(payload)
        try:
            self.coder.decode(payload, out)
        except (Corruption, Unsupported) as error:
            raise type(error)(f"{where}: {error}") from error

    def _where(self, peer: int, piece: int | None = None) -> str:
        label = f"{self.label}, " if self.label else ""
        return f"rank {peer} ({label}all-reduce {self.sequence}{'' if piece is None else f', piece {piece}'})"

    def _give_up(self, exchange: Exchange, error: BaseException) -> None:
        """Send refusals in place of what has not been sent, and wait for nothing."""
        for slot in self._left:
            try:
                message = refusal(self._header(slot, 0), error)
                exchange.send_array(slot.peer, self._tag(slot), message)
            except (RuntimeError, GcodecError):  # that peer is gone
                continue
        self.lane.parked.append((exchange, self.values, self.result))
