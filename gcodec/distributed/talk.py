"""A conversation (``gcodec.compressors.contract``) among the ranks of a lane.

A ``Reduce`` is Gloo's all-reduce. For ``Gather`` and ``Exchange`` every rank sends every other a note: the header of
``message``, in which the number of values is that of the payload's bytes, and the payload itself where it is short;
else that follows, when the receiver knows how much room it takes. The notes of a conversation's first request also
tell whether all ranks talk about the same; where that is a ``Reduce``, notes without payload go ahead of it.

A rank that fails sends refusals in the place of its next notes. Ranks that wait for it in an all-reduce, which carries
no notes, learn of it from the next conversation, or by the timeout.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ..compressors.contract import Exchange as ExchangeRequest
from ..compressors.contract import Gather, Reduce, Request
from ..errors import GcodecError, PeerError
from ..tensors import kernel_view
from .exchange import Exchange
from .lane import Lane
from .message import CONTRIBUTION, HEADER, MAX_REASON, Header, agreement_of, check, refusal
from .stats import Tally

INLINE = 1 << 15  #: bytes of payload that a note may have
_ROOM = HEADER + max(INLINE, MAX_REASON)
_SEQUENCES = 1 << 11  #: conversations after which tags repeat
_NOTE, _BODY = 2, 3  #: beside the two kinds of message of ``reduction``, whose tags are others


class Talk:
    """One conversation on a lane. ``terms``: what ranks must agree on; ``label``: for errors. Its methods run on the
    lane's thread."""

    def __init__(self, lane: Lane, terms: tuple[object, ...], tally: Tally, label: str = "") -> None:
        self.lane, self.tally, self.label = lane, tally, label
        self.agreement = agreement_of(terms, lane.size)
        self.others = [peer for peer in range(lane.size) if peer != lane.rank]
        self.sequence, self.piece = -1, 0

    def run(self, conversation: Generator[Request, Any, Any]) -> Any:
        """What it comes to. Raises PeerError, Corruption, or what the conversation raised."""
        exchange, start = self._start(), perf_counter()
        try:
            result = self._run(conversation, exchange)
            exchange.finish()
        except BaseException as error:
            self._give_up(exchange, error)
            raise
        self.tally.sent_bytes += exchange.sent
        self.tally.wait_seconds += exchange.waited
        self.tally.seconds += perf_counter() - start
        return result

    def refuse(self, error: BaseException) -> None:
        """Tell all ranks that this one cannot take part."""
        self._give_up(self._start(), error)

    def _start(self) -> Exchange:
        self.sequence, self.piece = self.lane.sequence, 0
        self.lane.sequence += 1
        lane = self.lane
        return Exchange(lane.group, lane.timeout, lane.buffers, self._where, lane.notices)

    def _run(self, conversation: Generator[Request, Any, Any], exchange: Exchange) -> Any:
        answer: Any = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                return end.value
            match request:
                case Reduce(tensor):
                    if not self.piece:
                        self._swap(exchange, [b""] * self.lane.size)
                    answer = self._reduce(tensor)
                case Gather(payload):
                    answer = self._swap(exchange, [payload] * self.lane.size)
                case ExchangeRequest(payloads):
                    answer = self._swap(exchange, payloads)

    def _reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gloo's sum."""
        total, start = tensor.contiguous(), perf_counter()
        if self.others and total.numel():
            try:
                self.lane.group.allreduce([total]).wait()
            except RuntimeError as error:
                raise PeerError(f"{self.label}, all-reduce {self.sequence}: {str(error).splitlines()[0]}") from error
            on_ring = 2 * len(self.others) / self.lane.size * total.nbytes
            self.tally.sent_bytes += on_ring
            self.tally.received_bytes += on_ring
        self.tally.wait_seconds += perf_counter() - start
        return total

    def _swap(self, exchange: Exchange, payloads: Sequence[bytes]) -> list[bytes]:
        """What every rank has for this one, this one's own included."""
        piece, self.piece = self.piece, self.piece + 1
        posted = {peer: exchange.post(peer, self._tag(_NOTE, piece), _ROOM) for peer in self.others}
        for peer in self.others:
            exchange.send_array(peer, self._tag(_NOTE, piece), self._note(payloads[peer], piece))
        found: dict[int, Any] = {self.lane.rank: payloads[self.lane.rank]}
        bodies = {}
        for peer, incoming in posted.items():
            size, inline = self._read(exchange.receive(incoming, self._where(peer)), peer, piece)
            found[peer] = inline
            if len(inline) < size:
                bodies[peer] = size, exchange.post(peer, self._tag(_BODY, piece), size)
        for peer in self.others:
            if len(payloads[peer]) > INLINE:
                body = kernel_view(np.frombuffer(payloads[peer], np.uint8))
                exchange.send_array(peer, self._tag(_BODY, piece), body)
        for peer, (size, incoming) in bodies.items():
            found[peer] = exchange.receive(incoming, self._where(peer))[:size].tobytes()
        self.tally.received_bytes += sum(HEADER + len(found[peer]) for peer in self.others)
        return [found[rank] for rank in range(self.lane.size)]

    def _note(self, payload: bytes, piece: int) -> np.ndarray:
        inline = payload if len(payload) <= INLINE else b""
        note = np.empty(HEADER + len(inline), np.uint8)
        self._header(self.lane.rank, piece, len(payload), len(inline)).write_to(note)
        note[HEADER:] = np.frombuffer(inline, np.uint8)
        return note

    def _read(self, note: np.ndarray, peer: int, piece: int) -> tuple[int, bytes]:
        """The size of a peer's payload, and the payload if it is here."""
        where = self._where(peer)
        size = Header.read_from(note, where).n_values
        return size, check(note, self._header(peer, piece, size), where).tobytes()

    def _header(self, sender: int, piece: int, size: int, payload: int = 0) -> Header:
        return Header(CONTRIBUTION, sender, piece, self.sequence, self.agreement, size, payload)

    def _tag(self, kind: int, piece: int) -> int:
        return (self.sequence % _SEQUENCES << 2 | kind) << 17 | piece

    def _where(self, peer: int) -> str:
        return f"rank {peer} ({self.label}, conversation {self.sequence})"

    def _give_up(self, exchange: Exchange, error: BaseException) -> None:
        """Send refusals in place of the next notes, and wait for nothing."""
        message = refusal(self._header(self.lane.rank, self.piece, 0), error)
        for peer in self.others:
            try:
                exchange.send_array(peer, self._tag(_NOTE, self.piece), message)
            except (RuntimeError, GcodecError):  # that peer is gone
                continue
        self.lane.parked.append((exchange, message))
