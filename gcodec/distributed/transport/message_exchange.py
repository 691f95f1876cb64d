"""The messages of one job between the ranks of a lane: each has a header, which its receiver compares with what is due.

A rank that fails sends abort messages in place of those that other ranks still expect of it, so that nobody waits for
these. Gloo tells messages between two ranks apart by a tag::

    bit 29 ... 19  sequence   18, 17  kind    16 ... 0  piece
                              CONTRIBUTION, RESULT, RECEIPT or REST; an abort message has that of the one it replaces
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from ...errors import GcodecError
from ..stats import Counters
from .lane import Lane
from .message import ABORT, HEADER, Header, abort_message, check
from .transfers import Incoming

REST = ABORT  #: in tags alone, where abort messages have no kind of their own: a payload without a header
_SEQUENCES = 1 << 11  #: jobs after which tags repeat


class DueMessage(NamedTuple):
    """A message that is due to or from a peer.

    Attributes:
        peer: The other rank.
        kind: CONTRIBUTION, RESULT, RECEIPT or REST.
        piece: Number of the piece.
        n_values: Values that the payload holds.
    """

    peer: int
    kind: int
    piece: int
    n_values: int = 0


class MessageExchange:
    """Sends and receives the messages of one job. It runs on the lane's thread.

    Args:
        agreement: Hash of what all ranks must have in common.
        counters: Takes the bytes, and the seconds of waiting.
        label: Begins the texts of errors.
        job: What the job is called in these.

    Attributes:
        sequence: Number of the job on its lane.
        where: Returns what the text of an error begins with that is about a peer, or about a piece of what it sends.
        transfers: The sends and receives.
    """

    def __init__(self, lane: Lane, agreement: int, counters: Counters, label: str, job: str = "all-reduce") -> None:
        self.lane, self.agreement, self.counters = lane, agreement, counters
        self.sequence = lane.next_sequence()
        name = f"{job} {self.sequence}"
        # No method: the transfers would hold what holds them, and the lane's group would not end with the lane.
        self.where = partial(_where, f"{label}, {name}" if label else name)
        self.transfers = lane.transfers(self.where)

    def post(self, due: DueMessage, max_bytes: int) -> Incoming:
        """Expect a message, of so many bytes at most, be it that or an abort message."""
        return self.transfers.post(due.peer, self._tag(due), max_bytes)

    def send(self, due: DueMessage, buffer: torch.Tensor, n_bytes: int) -> None:
        """Send the first bytes of a buffer, uint8, which stays as it is until :meth:`finish`."""
        self.transfers.send(due.peer, self._tag(due), buffer, n_bytes)

    def send_array(self, due: DueMessage, message: np.ndarray) -> None:
        """Send all of an array, uint8."""
        self.transfers.send_array(due.peer, self._tag(due), message)

    def write_header(self, due: DueMessage, payload: int, message: np.ndarray) -> None:
        """Write the header of a message of this rank's, uint8; ``payload``: the bytes that stand behind it."""
        self._header(due, self.lane.rank, payload).write_to(message)

    def receive(self, due: DueMessage, incoming: Incoming, where: str) -> np.ndarray:
        """Wait for a message, and return its payload, a view (uint8).

        Args:
            incoming: What :meth:`post` returned.
            where: Names the sender in errors.

        Raises:
            PeerError: The peer has aborted, does something else, or is silent.
            Corruption: The message is damaged.
        """
        return self.checked(due, self.transfers.receive(incoming, where), where)

    def checked(self, due: DueMessage, message: np.ndarray, where: str) -> np.ndarray:
        """Return the payload of a message that has arrived, uint8; otherwise as :meth:`receive`."""
        payload = check(message, self._header(due, due.peer, 0), where)
        self.counters.received_bytes += HEADER + len(payload)
        return payload

    def finish(self) -> None:
        """Wait until everything has been sent, release all buffers, and count what the job took."""
        self.transfers.finish()
        self.counters.sent_bytes += self.transfers.sent_bytes
        self.counters.wait_seconds += self.transfers.wait_seconds

    def abort(self, unsent: Iterable[DueMessage], error: BaseException, *memory: object) -> None:
        """Send abort messages in place of those that other ranks still expect, and wait for nothing.

        Args:
            error: Why this rank fails.
            memory: What the network may still read from and write to.
        """
        for due in unsent:
            try:
                self.send_array(due, abort_message(self._header(due, self.lane.rank, 0), error))
            except (RuntimeError, GcodecError):  # that peer is gone
                continue
        self.lane.parked.append((self.transfers, *memory))

    def _header(self, due: DueMessage, sender: int, payload: int) -> Header:
        return Header(due.kind, sender, due.piece, self.sequence, self.agreement, due.n_values, payload)

    def _tag(self, due: DueMessage) -> int:
        return (self.sequence % _SEQUENCES << 2 | due.kind) << 17 | due.piece


def _where(label: str, peer: int, piece: int | None = None) -> str:
    return f"rank {peer} ({label}{'' if piece is None else f', piece {piece}'})"
