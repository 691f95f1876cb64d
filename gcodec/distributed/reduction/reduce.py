"""Scatter-reduce, then all-gather, over the codec: GComp's Figure 8.

Each rank sums its share of the buffer. It sends every other rank the values of that rank's share, adds up what it
receives for its own, and sends the result to all. However many ranks there are, a value is encoded twice: as a
contribution and as a result. A rank rounds its own contribution, and its own result, as the others will find them
rounded when they decode them: so all ranks end with the same bits, and these depend on the values alone, not on who
sums which; but near-lossless frames keep all bits of rows that are predicted, which a rank's own contribution does not
have. Contributions are added in the order of ranks.

Two ranks exchange everything instead, and each adds up all of it: that is as much to send and to encode, but only
contributions are rounded, and nothing waits for a sum.

Who sends what to whom, for three ranks and the pieces a, b, c, which ranks 0, 1, 2 own::

                   rank 0              rank 1              rank 2
    begin()        post all receives   post all receives   post all receives
                   b0 -> 1, c0 -> 2    c1 -> 2, a1 -> 0    a2 -> 0, b2 -> 1    contributions, encoded
    advance()      a = a0 + a1 + a2    b = b0 + b1 + b2    c = c0 + c1 + c2    in the order of ranks, once decoded
                   a -> 1, 2           b -> 2, 0           c -> 0, 1           results, encoded
    advance()      decode b, c         decode c, a         decode a, b
                   receipt -> 1, 2     receipt -> 2, 0     receipt -> 0, 1     nobody goes on before all have everything

Two ranks both own every piece::

    begin()        a0 -> 1             a1 -> 0
    advance()      a = a0 + a1         a = a0 + a1                             the same bits: rounded, then added
                   receipt -> 1        receipt -> 0

Both halves work piece by piece (``schedule``), and all receives are posted first: the network has always something to
carry in both directions. A reduction that has begun has encoded all its contributions, and the network has them; what
is left to do, a lane may do by and by, and begin another one meanwhile. Sums that compressors ask for, which need no
codec, have a simpler exchange of this form in ``conversation``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from time import perf_counter
from typing import ClassVar

import numpy as np

from ...errors import Corruption, Unsupported
from ...frame.sizes import max_encoded_size
from ..transport.lane import Lane
from ..transport.message import HEADER, agreement_of
from ..transport.message_exchange import MessageExchange
from ..transport.transfers import Incoming
from .coder import Coder
from .partition import MAX_PIECE
from .schedule import Mutual, Schedule, Slot
from .summation import RankSum

#: Bytes of any message that any rank may send, be it of another type or size than is expected here: Gloo ends the
#: process of a rank that receives more than it has room for. Memory that is never written to costs nothing.
MAX_MESSAGE = HEADER + max_encoded_size(MAX_PIECE, "float64")
Messages = list[tuple[Slot, Incoming]]  #: that other ranks are to send
_max_size = cache(max_encoded_size)  #: of frames: pieces are of few lengths
_TRIAL = 1 << 18  #: bytes beyond a frame's limit that let the encoder work in place


class Reduction:
    """Runs one all-reduce on a lane. Its methods are called on the lane's thread.

    Args:
        lane: The lane of the group.
        coder: The codec of the buffer.
        values: This rank's values, uintW[n].
        result: Takes the result, uintW[n], in other memory; or in that of ``values``, unless two ranks round theirs.
        mean: Divide by the number of ranks.
        terms: Further facts that ranks must agree on.
        label: Begins the texts of errors.
    """

    #: What tells one kind of reduction from another where ranks compare what they are about to do.
    kind_terms: ClassVar[tuple[str, ...]] = ()

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
        self.schedule = self._schedule_of(len(values))
        self.agreement = agreement_of(coder.dtype.name, len(values), lane.size, mean, (*terms, *self.kind_terms))
        self._unsent: deque[Slot] = deque()  #: messages that other ranks expect of this one, in the order of sending
        self._parts: Iterator[None] = iter(())  #: of the work, those still to do

    def _schedule_of(self, n_values: int) -> Schedule:
        return Schedule.between(n_values, self.lane.rank, self.lane.size)

    def run(self) -> None:
        """Run the all-reduce to its end.

        Raises PeerError, Corruption, or what encoding raised; then other ranks are told.
        """
        self.begin()
        while self.advance():
            pass

    def begin(self) -> None:
        """Hand all contributions to the network. Raises as :meth:`run`."""
        self._parts = self._work(self._start())
        self.advance()

    def advance(self) -> bool:
        """Go on by about a piece, for whose messages it waits. Return True if there is more. Raises as :meth:`run`."""
        start = perf_counter()
        more = next(self._parts, self) is None  # every part yields None; at the end of all there is ``self``
        self.coder.counters.seconds += perf_counter() - start
        return more

    def _work(self, exchange: MessageExchange) -> Iterator[None]:
        try:
            yield from self._run(exchange)
            exchange.finish()
        except GeneratorExit:  # nobody wants the rest
            raise
        except BaseException as error:
            self._send_aborts(exchange, error)
            raise

    def abort(self, error: BaseException) -> None:
        """Tell all ranks that this one cannot take part."""
        self._send_aborts(self._start(), error)

    def _start(self) -> MessageExchange:
        self._unsent = deque(self.schedule.outgoing())
        return MessageExchange(self.lane, self.agreement, self.coder.counters, self.label)

    def _run(self, exchange: MessageExchange) -> Iterator[None]:
        """Do all work, part by part: a part ends with a ``yield``, where the lane may do something else."""
        # All receives first, so that every message meets a buffer that waits for it.
        contributions = [
            {peer: (slot, exchange.post(slot.due, MAX_MESSAGE)) for peer, slot in slots.items()}
            for slots in self.schedule.contributions()
        ]
        answers = self._answers(exchange)
        for slot in self.schedule.contributed():
            # Between two ranks both sum everything: each needs its own values as the other will decode them, and the
            # encoder, which knows them, leaves them where the sum will stand.
            rounded = self.result[slot.begin : slot.end] if self._mutual and not self.coder.exact else None
            self._send(exchange, [slot], self.values[slot.begin : slot.end], rounded)
        yield
        longest = max((end - begin for share in self.schedule.shares for begin, end in share), default=0)
        total, buffers = RankSum(self.coder.dtype, longest), self._term_buffers(exchange, longest)
        for due in self.schedule.sums():
            self._reduce(exchange, due, contributions[due.piece], total, buffers[:, : due.end - due.begin])
            yield
        yield from self._take(exchange, *answers)

    def _answers(self, exchange: MessageExchange) -> tuple[Messages, Messages]:
        """Post the receives of results and receipts, which come when all contributions are summed."""
        results, receipts = (
            [(slot, exchange.post(slot.due, MAX_MESSAGE)) for slot in slots]
            for slots in (self.schedule.results(), self.schedule.receipts())
        )
        return results, receipts

    def _take(self, exchange: MessageExchange, results: Messages, receipts: Messages) -> Iterator[None]:
        """Decode results as they come, part by part, and confirm them."""
        for slot, message in results:
            self._decode(exchange, slot, message, self.result[slot.begin : slot.end])
            yield
        self._confirm(exchange, receipts)

    def _term_buffers(self, exchange: MessageExchange, n_values: int) -> np.ndarray:
        """Return memory for two contributions of so many values, uintW[2, n], as long as the exchange lasts."""
        n_bytes = 2 * n_values * self.values.itemsize
        buffer = self.lane.buffers.acquire(max(n_bytes, HEADER))
        exchange.transfers.release_after(buffer)
        memory: np.ndarray = buffer.numpy()[:n_bytes]
        return memory.view(self.values.dtype).reshape(2, n_values)

    def _confirm(self, exchange: MessageExchange, receipts: Messages) -> None:
        """Tell the others that everything has arrived, and wait until they say so."""
        for slot, _ in receipts:
            message = np.empty(HEADER, np.uint8)
            exchange.write_header(slot.due, 0, message)
            exchange.send_array(slot.due, message)
            self._unsent.popleft()
        for slot, incoming in receipts:
            exchange.receive(slot.due, incoming, exchange.where(slot.peer))

    def _reduce(
        self,
        exchange: MessageExchange,
        due: Slot,
        incoming: dict[int, tuple[Slot, Incoming]],
        total: RankSum,
        buffers: np.ndarray,
    ) -> None:
        """Sum one piece of this rank's share, send the result, and keep what the others will decode.

        Args:
            exchange: Sends and receives messages.
            incoming: The other ranks' contributions to it, by rank.
            total: Makes the sum.
            buffers: Memory for two contributions, uintW[2, n]. They take turns, as the sum reads the first term until
                the second has been added; from then on it has memory of its own.
        """
        result, copies = self.result[due.begin : due.end], self.schedule.copies(due)
        last = self.lane.size - 1
        for peer in range(self.lane.size):
            term = buffers[peer & 1]
            if peer != self.lane.rank:
                self._decode(exchange, *incoming[peer], term)
            elif self._mutual:  # where it was left when it was sent
                term = self.values[due.begin : due.end] if self.coder.exact else result
            else:
                self.coder.round(self.values[due.begin : due.end], due.begin, term)
            start = perf_counter()
            if peer < last:
                total.add(term)
            else:
                total.finish(term, self.lane.size if self.mean else 1, buffers[0] if copies else result)
            self.coder.counters.sum_seconds += perf_counter() - start
        # Encoding leaves in ``result`` what the others will decode, so that all ranks end with the same bits.
        if copies:
            self._send(exchange, copies, buffers[0], result)

    @property
    def _mutual(self) -> bool:
        return isinstance(self.schedule, Mutual)

    def _send(
        self, exchange: MessageExchange, slots: list[Slot], bits: np.ndarray, rounded: np.ndarray | None = None
    ) -> None:
        """Encode once and send the frame to every slot's peer.

        Args:
            exchange: Sends and receives messages.
            slots: The messages, which differ in their peers only.
            bits: The values, uintW[n].
            rounded: Takes what the peers will decode, uintW[n]; None if nobody asks.
        """
        first = slots[0]
        max_bytes = HEADER + _max_size(len(bits), self.coder.dtype.name) + _TRIAL
        buffer = self.lane.buffers.acquire(max_bytes)
        message: np.ndarray = buffer.numpy()
        size = self.coder.encode(bits, first.begin, first.kind, message[HEADER:], rounded)
        exchange.write_header(first.due, size, message)
        exchange.transfers.release_after(buffer)
        for slot in slots:
            exchange.send(slot.due, buffer, HEADER + size)
            self._unsent.popleft()

    def _decode(self, exchange: MessageExchange, slot: Slot, incoming: Incoming, out: np.ndarray) -> None:
        where = exchange.where(slot.peer, slot.piece)
        payload = exchange.receive(slot.due, incoming, where)
        try:
            self.coder.decode(payload, out)
        except (Corruption, Unsupported) as error:
            raise type(error)(f"{where}: {error}") from error

    def _send_aborts(self, exchange: MessageExchange, error: BaseException) -> None:
        """Send abort messages in place of what has not been sent, and wait for nothing."""
        exchange.abort((slot.due for slot in self._unsent), error, self.values, self.result)
