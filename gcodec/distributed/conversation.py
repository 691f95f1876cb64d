"""A conversation (``gcodec.compressors.contract``) among the ranks of a lane.

A conversation is a generator that yields requests and is sent their answers. Its runner turns each request into
messages between every two ranks::

    AllGather, AllToAll    header [payload]  ->     a header of ``message``, whose number of values is the payload's
                           payload           ->     bytes; the payload in the same message if it is short, else in
                                                    another one, for which the receiver now has a buffer
    AllReduce, small       header values     ->     every rank adds up all values, in the order of ranks
    AllReduce, large       header part       ->     the values of the part that the receiver owns, which it adds up
                           header sum        ->     the sum of the part that the sender owns
    AllReduce, two ranks   header            ->     large values go through Gloo's own all-reduce: a sum of two has
                           (Gloo)                   the same bits in any order

So sums do not depend on where in a buffer a value lies.

Headers carry a hash of what ranks must have in common. Gloo ends the process of a rank that receives a message larger
than its buffer, so until the first headers of a conversation have been compared, no message is longer than any rank has
room for: a large ``AllReduce`` that comes first has empty headers ahead of it.

A rank that fails sends abort messages in place of its next messages. The other of two ranks that waits for it in Gloo's
all-reduce learns of it from the next conversation, or by the timeout.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..compressors.contract import (
    AllGather,
    AllReduce,
    AllToAll,
    Request,
    check_conversation,
    drive,
    parts_of,
    sum_by_rank,
)
from ..errors import Corruption, InvalidArgument, PeerError
from ..tensors import kernel_view
from .stats import Counters
from .transport.jobs import LaneJob
from .transport.lane import Lane, lane_of
from .transport.message import CONTRIBUTION, HEADER, MAX_REASON, Header, agreement_of
from .transport.message_exchange import REST, DueMessage, MessageExchange

INLINE = 1 << 15  #: bytes of payload that may stand behind a header, in the same message
PAIRED = 1 << 20  #: the same between two ranks: up to there it beats Gloo's all-reduce


class Message(NamedTuple):
    """A message to send.

    Attributes:
        buffer: The memory, which begins with room for a header, uint8.
        values: The values behind the header, a view of the buffer.
    """

    buffer: torch.Tensor
    values: torch.Tensor


class ConversationRunner:
    """Runs one conversation among the ranks of a lane. Its methods are called on the lane's thread.

    Args:
        terms: Facts that ranks must have in common, compared by repr.
        counters: Counts bytes and seconds.
        label: Names the conversation in errors.
    """

    def __init__(self, lane: Lane, terms: tuple[object, ...], counters: Counters, label: str = "") -> None:
        self.lane, self.counters, self.label = lane, counters, label
        self.agreement = agreement_of(terms, lane.size)
        self.others = lane.others
        self.inline = PAIRED if len(self.others) == 1 else INLINE
        self.first_bytes = HEADER + max(self.inline, MAX_REASON)  #: of the longest first message of any request
        self.piece = 0  #: the number of the next request's messages, which may be two to answer it

    def run(self, conversation: Generator[Request, Any, Any]) -> Any:
        """Run a conversation and return its value.

        Raises:
            PeerError: Another rank failed, is silent, or has other terms.
            Corruption: A message arrived damaged.
            Exception: What the conversation itself raised; the other ranks are told.
        """
        exchange, start = self._start(), perf_counter()
        try:
            result = drive(conversation, partial(self._answer, exchange))
            exchange.finish()
        except BaseException as error:
            self._send_aborts(exchange, error)
            raise
        self.counters.seconds += perf_counter() - start
        return result

    def abort(self, error: BaseException) -> None:
        """Tell all ranks that this one cannot take part."""
        self._send_aborts(self._start(), error)

    def _start(self) -> MessageExchange:
        self.piece = 0
        return MessageExchange(self.lane, self.agreement, self.counters, self.label, "conversation")

    def _answer(self, exchange: MessageExchange, request: Request) -> Any:
        match request:
            case AllReduce():
                return self._answer_reduce(exchange, request)
            case AllGather(payload):
                return self._exchange_payloads(exchange, [payload] * self.lane.size)
            case AllToAll(payloads):
                return self._exchange_payloads(exchange, payloads)

    def _answer_reduce(self, exchange: MessageExchange, request: AllReduce) -> torch.Tensor:
        """Return the answer to a request. A device's values go through the host's memory, which waits for it."""
        buffer = request.buffer()
        if buffer.is_cpu:
            return request.result(self._reduce(exchange, buffer))
        return request.result(self._reduce(exchange, buffer.cpu())).to(buffer.device)

    def _reduce(self, exchange: MessageExchange, total: torch.Tensor) -> torch.Tensor:
        """Sum a contiguous tensor over the ranks, in its own memory, and return it."""
        if not self.others:
            return total
        if total.nbytes <= self.inline:
            self._reduce_everywhere(exchange, total.view(-1))
            return total
        if not self.piece:  # nobody knows yet that all ranks have a buffer of this size
            self._exchange_payloads(exchange, [b""] * self.lane.size)
        if len(self.others) == 1:
            self._reduce_pair(exchange, total)
        else:
            self._reduce_by_rank(exchange, total.view(-1))
        return total

    def _reduce_pair(self, exchange: MessageExchange, total: torch.Tensor) -> None:
        """Sum a tensor between two ranks by Gloo's own all-reduce."""
        start = perf_counter()
        if total.numel():
            try:
                self.lane.group.allreduce([total]).wait()
            except RuntimeError as error:
                raise PeerError(f"{exchange.where(self.others[0])}: {str(error).splitlines()[0]}") from error
            self.counters.sent_bytes += total.nbytes
            self.counters.received_bytes += total.nbytes
        self.counters.wait_seconds += perf_counter() - start

    def _reduce_everywhere(self, exchange: MessageExchange, total: torch.Tensor) -> None:
        """Sum flat tensors in the order of ranks, on each of them."""
        rank, size = self.lane.rank, self.lane.size
        message = self._message(exchange, total)
        received = self._exchange_values(exchange, dict.fromkeys(self.others, message), [total] * size)
        terms = received | {rank: message.values}
        sum_by_rank((terms[peer] for peer in range(size)), total)

    def _reduce_by_rank(self, exchange: MessageExchange, total: torch.Tensor) -> None:
        """Sum flat tensors part by part, each on the rank that owns it, in the order of ranks."""
        # ``reduction.reduce`` exchanges frames in this way. The two stay apart: values need no codec, no rounding and
        # no pieces to overlap with it; there a lane goes on with other work between pieces.
        rank, size = self.lane.rank, self.lane.size
        parts = [total[part] for part in parts_of(len(total), size)]
        messages = {peer: self._message(exchange, parts[peer]) for peer in self.others}
        terms = self._exchange_values(exchange, messages, [parts[rank]] * size) | {rank: parts[rank]}
        result = self._message(exchange, parts[rank])  # summed where it is sent from
        sum_by_rank((terms[peer] for peer in range(size)), result.values)
        parts[rank].copy_(result.values)
        for peer, values in self._exchange_values(exchange, dict.fromkeys(self.others, result), parts).items():
            parts[peer].copy_(values)

    def _message(self, exchange: MessageExchange, values: torch.Tensor) -> Message:
        """Copy values into memory to send them from, with room for a header ahead of them."""
        buffer = self.lane.buffers.acquire(HEADER + values.nbytes)
        exchange.transfers.release_after(buffer)
        body = buffer[HEADER : HEADER + values.nbytes].view(values.dtype)
        return Message(buffer, body.copy_(values))

    def _exchange_values(
        self, exchange: MessageExchange, messages: Mapping[int, Message], like: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Exchange values, whose number is known on both sides.

        Args:
            exchange: Sends and receives messages.
            messages: What to send, by the rank that receives it.
            like: Tensors like those that come, by the rank that sends them.

        Returns:
            The values that the other ranks have sent, by rank.
        """
        piece, self.piece = self.piece, self.piece + 1
        # An abort message may come instead, and at first any message of a rank that is at something else.
        max_bytes = {
            peer: HEADER + max(like[peer].nbytes, MAX_REASON) if piece else self.first_bytes for peer in self.others
        }
        due = {peer: DueMessage(peer, CONTRIBUTION, piece, like[peer].nbytes) for peer in self.others}
        posted = {peer: exchange.post(due[peer], n_bytes) for peer, n_bytes in max_bytes.items()}
        for peer, (buffer, values) in messages.items():
            mine = DueMessage(peer, CONTRIBUTION, piece, values.nbytes)
            exchange.write_header(mine, values.nbytes, buffer.numpy())
            exchange.send(mine, buffer, HEADER + values.nbytes)
        received = {}
        for peer, incoming in posted.items():
            size, where = like[peer].nbytes, exchange.where(peer)
            payload = exchange.receive(due[peer], incoming, where)
            if len(payload) != size:
                raise Corruption(f"{where}: {len(payload)} bytes of values instead of {size}")
            received[peer] = torch.from_numpy(payload).view(like[peer].dtype)
        return received

    def _exchange_payloads(self, exchange: MessageExchange, payloads: Sequence[bytes]) -> list[bytes]:
        """Exchange payloads, whose sizes only their senders know.

        Args:
            exchange: Sends and receives messages.
            payloads: What to send, by the rank that receives it; this rank's own goes nowhere.

        Returns:
            Every rank's payload for this one, by rank.
        """
        piece, self.piece = self.piece, self.piece + 1
        mine = {peer: DueMessage(peer, CONTRIBUTION, piece, len(payloads[peer])) for peer in self.others}
        posted = {peer: exchange.post(due, self.first_bytes) for peer, due in mine.items()}
        for peer, due in mine.items():
            exchange.send_array(due, self._first_message(exchange, due, payloads[peer]))
        received: dict[int, Any] = {self.lane.rank: payloads[self.lane.rank]}
        rests = {}
        for peer, incoming in posted.items():
            where = exchange.where(peer)
            message = exchange.transfers.receive(incoming, where)
            size = Header.read_from(message, where).n_values  # only its sender knows it
            received[peer] = exchange.checked(mine[peer]._replace(n_values=size), message, where).tobytes()
            if len(received[peer]) < size:  # the payload follows by itself: now its size is known
                rests[peer] = size, exchange.post(DueMessage(peer, REST, piece), size)
        # This rank's receives are posted before it sends, as everywhere (``transfers``).
        for peer in self.others:
            if len(payloads[peer]) > self.inline:
                rest = kernel_view(np.frombuffer(payloads[peer], np.uint8))
                exchange.send_array(DueMessage(peer, REST, piece), rest)
        for peer, (size, incoming) in rests.items():
            received[peer] = exchange.transfers.receive(incoming, exchange.where(peer))[:size].tobytes()
            self.counters.received_bytes += size
        return [received[rank] for rank in range(self.lane.size)]

    def _first_message(self, exchange: MessageExchange, due: DueMessage, payload: bytes) -> np.ndarray:
        """Return a header with the size of a payload and, if it is short, the payload: uint8."""
        inline = payload if len(payload) <= self.inline else b""
        message = np.empty(HEADER + len(inline), np.uint8)
        exchange.write_header(due, len(inline), message)
        message[HEADER:] = np.frombuffer(inline, np.uint8)
        return message

    def _send_aborts(self, exchange: MessageExchange, error: BaseException) -> None:
        """Send abort messages in place of the next ones, and wait for nothing."""
        exchange.abort((DueMessage(peer, CONTRIBUTION, self.piece) for peer in self.others), error)


def converse(
    conversation: Generator[Request, Any, Any],
    group: dist.ProcessGroup | None = None,
    terms: tuple[object, ...] = (),
    counters: Counters | None = None,
) -> Any:
    """Run this rank's side of a conversation and return its value. All ranks of the group must call it together.

        optimizer = AdaptiveOptimizer(optimizer, model.named_parameters(), adaptive, gcodec.distributed.converse)

    It runs on the group's lane, after all that was submitted before, and the call waits for its end.

    Args:
        conversation: A generator of requests (``gcodec.compressors.contract``).
        group: The process group; default the world.
        terms: Facts that ranks must have in common, compared by repr.
        counters: Takes the counts of bytes and seconds, if given.

    Returns:
        What the generator returned.

    Raises:
        InvalidArgument: ``conversation`` is no generator, or ``terms`` no tuple.
        PeerError: Another rank failed, is silent, or has other terms; the error names it.
        Corruption: A message arrived damaged.
        Exception: What the conversation itself raised. After any of these the lane takes nothing more.
    """
    check_conversation(conversation)
    if not isinstance(terms, tuple):
        raise InvalidArgument(f"terms must be a tuple of facts, not {terms!r:.80}")
    lane, counted = lane_of(group), Counters() if counters is None else counters
    runner = ConversationRunner(lane, ("converse", *terms), counted, "converse")
    return lane.submit(LaneJob(lambda: runner.run(conversation), runner.abort)).wait()
