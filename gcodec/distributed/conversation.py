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
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..compressors.contract import AllGather, AllReduce, AllToAll, Request, check_conversation, parts_of, sum_by_rank
from ..errors import Corruption, GcodecError, InvalidArgument, PeerError
from ..tensors import kernel_view
from .stats import Counters
from .transport.jobs import LaneJob
from .transport.lane import Lane, lane_of
from .transport.message import CONTRIBUTION, HEADER, MAX_REASON, Header, abort_message, agreement_of, check
from .transport.transfers import Transfers

INLINE = 1 << 15  #: bytes of payload that may stand behind a header, in the same message
PAIRED = 1 << 20  #: the same between two ranks: up to there it beats Gloo's all-reduce
_SEQUENCES = 1 << 11  #: conversations after which tags repeat
_FIRST, _BODY = 2, 3  #: kinds of messages, in tags: a header with what fits behind it; a longer payload


class Message(NamedTuple):
    """A message to send.

    Attributes:
        buffer: the memory, which begins with room for a header, uint8.
        values: the values behind the header, a view of the buffer.
    """

    buffer: torch.Tensor
    values: torch.Tensor


class ConversationRunner:
    """Runs one conversation among the ranks of a lane. Its methods are called on the lane's thread.

    Args:
        lane: the lane.
        terms: facts that ranks must have in common, compared by repr.
        counters: counts bytes and seconds.
        label: names the conversation in errors.
    """

    def __init__(self, lane: Lane, terms: tuple[object, ...], counters: Counters, label: str = "") -> None:
        self.lane, self.counters, self.label = lane, counters, label
        self.agreement = agreement_of(terms, lane.size)
        self.others = [peer for peer in range(lane.size) if peer != lane.rank]
        self.inline = PAIRED if len(self.others) == 1 else INLINE
        self.first_bytes = HEADER + max(self.inline, MAX_REASON)  #: of the longest first message of any request
        self.sequence, self.piece = -1, 0  #: of the conversation, and of its exchanges so far

    def run(self, conversation: Generator[Request, Any, Any]) -> Any:
        """Run a conversation and return its value.

        Raises:
            PeerError: another rank failed, is silent, or has other terms.
            Corruption: a message arrived damaged.
            Exception: what the conversation itself raised; the other ranks are told.
        """
        transfers, start = self._start(), perf_counter()
        try:
            result = self._run(conversation, transfers)
            transfers.finish()
        except BaseException as error:
            self._send_aborts(transfers, error)
            raise
        self.counters.sent_bytes += transfers.sent_bytes
        self.counters.wait_seconds += transfers.wait_seconds
        self.counters.seconds += perf_counter() - start
        return result

    def abort(self, error: BaseException) -> None:
        """Tell all ranks that this one cannot take part."""
        self._send_aborts(self._start(), error)

    def _start(self) -> Transfers:
        self.sequence, self.piece = self.lane.next_sequence(), 0
        return self.lane.transfers(self._where)

    def _run(self, conversation: Generator[Request, Any, Any], transfers: Transfers) -> Any:
        answer: Any = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                return end.value
            match request:
                case AllReduce():
                    answer = self._answer_reduce(transfers, request)
                case AllGather(payload):
                    answer = self._exchange_payloads(transfers, [payload] * self.lane.size)
                case AllToAll(payloads):
                    answer = self._exchange_payloads(transfers, payloads)

    def _answer_reduce(self, transfers: Transfers, request: AllReduce) -> torch.Tensor:
        """Return the answer to a request. A device's values go through the host's memory, which waits for it."""
        buffer = request.buffer()
        if buffer.is_cpu:
            return request.result(self._reduce(transfers, buffer))
        return request.result(self._reduce(transfers, buffer.cpu())).to(buffer.device)

    def _reduce(self, transfers: Transfers, total: torch.Tensor) -> torch.Tensor:
        """Sum a contiguous tensor over the ranks, in its own memory, and return it."""
        if not self.others:
            return total
        if total.nbytes <= self.inline:
            self._reduce_everywhere(transfers, total.view(-1))
            return total
        if not self.piece:  # nobody knows yet that all ranks have a buffer of this size
            self._exchange_payloads(transfers, [b""] * self.lane.size)
        if len(self.others) == 1:
            self._reduce_pair(total)
        else:
            self._reduce_by_rank(transfers, total.view(-1))
        return total

    def _reduce_pair(self, total: torch.Tensor) -> None:
        """Sum a tensor between two ranks by Gloo's own all-reduce."""
        start = perf_counter()
        if total.numel():
            try:
                self.lane.group.allreduce([total]).wait()
            except RuntimeError as error:
                raise PeerError(f"{self._where(self.others[0])}: {str(error).splitlines()[0]}") from error
            self.counters.sent_bytes += total.nbytes
            self.counters.received_bytes += total.nbytes
        self.counters.wait_seconds += perf_counter() - start

    def _reduce_everywhere(self, transfers: Transfers, total: torch.Tensor) -> None:
        """Sum flat tensors in the order of ranks, on each of them."""
        rank, size = self.lane.rank, self.lane.size
        message = self._message(transfers, total)
        received = self._exchange_values(transfers, dict.fromkeys(self.others, message), [total] * size)
        terms = received | {rank: message.values}
        sum_by_rank((terms[peer] for peer in range(size)), total)

    def _reduce_by_rank(self, transfers: Transfers, total: torch.Tensor) -> None:
        """Sum flat tensors part by part, each on the rank that owns it, in the order of ranks."""
        # ``reduction.reduce`` exchanges frames in this way. The two stay apart: values need no codec, no rounding and
        # no pieces to overlap with it; there a lane goes on with other work between pieces.
        rank, size = self.lane.rank, self.lane.size
        parts = [total[part] for part in parts_of(len(total), size)]
        messages = {peer: self._message(transfers, parts[peer]) for peer in self.others}
        terms = self._exchange_values(transfers, messages, [parts[rank]] * size) | {rank: parts[rank]}
        result = self._message(transfers, parts[rank])  # summed where it is sent from
        sum_by_rank((terms[peer] for peer in range(size)), result.values)
        parts[rank].copy_(result.values)
        for peer, values in self._exchange_values(transfers, dict.fromkeys(self.others, result), parts).items():
            parts[peer].copy_(values)

    def _message(self, transfers: Transfers, values: torch.Tensor) -> Message:
        """Copy values into memory to send them from, with room for a header ahead of them."""
        buffer = transfers.buffers.acquire(HEADER + values.nbytes)
        transfers.release_after(buffer)
        body = buffer[HEADER : HEADER + values.nbytes].view(values.dtype)
        return Message(buffer, body.copy_(values))

    def _exchange_values(
        self, transfers: Transfers, messages: Mapping[int, Message], like: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """Exchange values, whose number is known on both sides.

        Args:
            transfers: the sends and receives.
            messages: what to send, by the rank that receives it.
            like: tensors like those that come, by the rank that sends them.

        Returns:
            The values that the other ranks have sent, by rank.
        """
        piece, self.piece = self.piece, self.piece + 1
        tag = self._tag(_FIRST, piece)
        # An abort message may come instead, and at first any message of a rank that is at something else.
        max_bytes = {
            peer: HEADER + max(like[peer].nbytes, MAX_REASON) if piece else self.first_bytes for peer in self.others
        }
        posted = {peer: transfers.post(peer, tag, n_bytes) for peer, n_bytes in max_bytes.items()}
        for peer, (buffer, values) in messages.items():
            self._header(self.lane.rank, piece, values.nbytes, values.nbytes).write_to(buffer.numpy())
            transfers.send(peer, tag, buffer, HEADER + values.nbytes)
        received = {}
        for peer, incoming in posted.items():
            size, where = like[peer].nbytes, self._where(peer)
            payload = check(transfers.receive(incoming, where), self._header(peer, piece, size), where)
            if len(payload) != size:
                raise Corruption(f"{where}: {len(payload)} bytes of values instead of {size}")
            received[peer] = torch.from_numpy(payload).view(like[peer].dtype)
            self.counters.received_bytes += HEADER + size
        return received

    def _exchange_payloads(self, transfers: Transfers, payloads: Sequence[bytes]) -> list[bytes]:
        """Exchange payloads, whose sizes only their senders know.

        Args:
            transfers: the sends and receives.
            payloads: what to send, by the rank that receives it; this rank's own goes nowhere.

        Returns:
            Every rank's payload for this one, by rank.
        """
        piece, self.piece = self.piece, self.piece + 1
        posted = {peer: transfers.post(peer, self._tag(_FIRST, piece), self.first_bytes) for peer in self.others}
        for peer in self.others:
            transfers.send_array(peer, self._tag(_FIRST, piece), self._first_message(payloads[peer], piece))
        received: dict[int, Any] = {self.lane.rank: payloads[self.lane.rank]}
        bodies = {}
        for peer, incoming in posted.items():
            size, inline = self._read(transfers.receive(incoming, self._where(peer)), peer, piece)
            received[peer] = inline
            if len(inline) < size:  # the payload follows by itself: now its size is known
                bodies[peer] = size, transfers.post(peer, self._tag(_BODY, piece), size)
        # This rank's receives are posted before it sends, as everywhere (``transfers``).
        for peer in self.others:
            if len(payloads[peer]) > self.inline:
                body = kernel_view(np.frombuffer(payloads[peer], np.uint8))
                transfers.send_array(peer, self._tag(_BODY, piece), body)
        for peer, (size, incoming) in bodies.items():
            received[peer] = transfers.receive(incoming, self._where(peer))[:size].tobytes()
        self.counters.received_bytes += sum(HEADER + len(received[peer]) for peer in self.others)
        return [received[rank] for rank in range(self.lane.size)]

    def _first_message(self, payload: bytes, piece: int) -> np.ndarray:
        """Return a header with the size of a payload and, if it is short, the payload: uint8."""
        inline = payload if len(payload) <= self.inline else b""
        message = np.empty(HEADER + len(inline), np.uint8)
        self._header(self.lane.rank, piece, len(payload), len(inline)).write_to(message)
        message[HEADER:] = np.frombuffer(inline, np.uint8)
        return message

    def _read(self, message: np.ndarray, peer: int, piece: int) -> tuple[int, bytes]:
        """Return the size of a peer's payload, and the payload if it is in its first message."""
        where = self._where(peer)
        size = Header.read_from(message, where).n_values
        return size, check(message, self._header(peer, piece, size), where).tobytes()

    def _header(self, sender: int, piece: int, size: int, payload: int = 0) -> Header:
        return Header(CONTRIBUTION, sender, piece, self.sequence, self.agreement, size, payload)

    def _tag(self, kind: int, piece: int) -> int:
        # Bits 29 ... 19: the conversation; 18 and 17: the kind; 16 ... 0: the exchange.
        return (self.sequence % _SEQUENCES << 2 | kind) << 17 | piece

    def _where(self, peer: int) -> str:
        return f"rank {peer} ({self.label}, conversation {self.sequence})"

    def _send_aborts(self, transfers: Transfers, error: BaseException) -> None:
        """Send abort messages in place of the next ones, and wait for nothing."""
        message = abort_message(self._header(self.lane.rank, self.piece, 0), error)
        for peer in self.others:
            try:
                transfers.send_array(peer, self._tag(_FIRST, self.piece), message)
            except (RuntimeError, GcodecError):  # that peer is gone
                continue
        self.lane.parked.append((transfers, message))  # the network may still read and write these


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
        conversation: a generator of requests (``gcodec.compressors.contract``).
        group: the process group; default the world.
        terms: facts that ranks must have in common, compared by repr.
        counters: takes the counts of bytes and seconds, if given.

    Returns:
        What the generator returned.

    Raises:
        InvalidArgument: ``conversation`` is no generator, or ``terms`` no tuple.
        PeerError: another rank failed, is silent, or has other terms; the error names it.
        Corruption: a message arrived damaged.
        Exception: what the conversation itself raised. After any of these the lane takes nothing more.
    """
    check_conversation(conversation)
    if not isinstance(terms, tuple):
        raise InvalidArgument(f"terms must be a tuple of facts, not {terms!r:.80}")
    lane, counted = lane_of(group), Counters() if counters is None else counters
    runner = ConversationRunner(lane, ("converse", *terms), counted, "converse")
    return lane.submit(LaneJob(lambda: runner.run(conversation), runner.abort)).wait()
