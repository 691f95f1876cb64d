"""The messages of an all-reduce, and the order in which a rank sends them, from its rank and the number of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..transport.message import CONTRIBUTION, RECEIPT, RESULT
from ..transport.message_exchange import DueMessage
from .partition import Range, shares

_AFTER_ALL = (1 << 16) - 1  #: the piece of receipts, which come after all others


class Slot(NamedTuple):
    """A message to or from a peer.

    Attributes:
        peer: The other rank.
        kind: CONTRIBUTION, RESULT or RECEIPT.
        piece: Number of the piece within its owner's share.
        begin: Position of its first value in the buffer.
        end: Position behind its last value.
    """

    peer: int
    kind: int
    piece: int
    begin: int
    end: int

    @property
    def due(self) -> DueMessage:
        """The message, as the transport knows it."""
        return DueMessage(self.peer, self.kind, self.piece, self.end - self.begin)


#: Returns the pieces of each rank, given the number of values and of ranks.
SharesOf = Callable[[int, int], list[list[Range]]]


class Schedule:
    """Lists the messages of one rank, in the order in which it sends them.

    It sends all its contributions, a piece to each owner in turn, and then sums the pieces of its own. So a rank waits
    only for what the others send before they wait themselves.

    Args:
        n_values: Values of the buffer.
        size: The number of ranks.
        shares_of: Divides the buffer among the ranks.

    Attributes:
        shares: The pieces that each rank sums, by rank.
        others: The other ranks, from the next one on, so that not all ranks send to the same one at once.
    """

    def __init__(self, n_values: int, rank: int, size: int, shares_of: SharesOf = shares) -> None:
        self.rank, self.shares = rank, shares_of(n_values, size)
        self.others = [(rank + distance) % size for distance in range(1, size)]

    def contributed(self) -> list[Slot]:
        """Return the messages with this rank's contributions to the others' pieces, in the order of sending."""
        return self._others(CONTRIBUTION)

    def sums(self) -> list[Slot]:
        """Return the pieces that this rank sums (``peer`` is itself), in order."""
        return [self._slot(self.rank, RESULT, self.rank, piece) for piece in range(len(self.shares[self.rank]))]

    def outgoing(self) -> Iterator[Slot]:
        """Yield every message that this rank sends, in order."""
        yield from self.contributed()
        for due in self.sums():
            yield from self.copies(due)
        yield from self.receipts()

    def copies(self, due: Slot) -> list[Slot]:
        """Return the messages with the result of a piece of this rank's."""
        return [due._replace(peer=peer) for peer in self.others]

    def contributions(self) -> list[dict[int, Slot]]:
        """Return the contributions that this rank receives for each piece of its own, by peer."""
        pieces = range(len(self.shares[self.rank]))
        return [{peer: self._slot(peer, CONTRIBUTION, self.rank, piece) for peer in self.others} for piece in pieces]

    def results(self) -> list[Slot]:
        """Return the messages with the others' results, about in the order in which they come."""
        return self._others(RESULT)

    def receipts(self) -> list[Slot]:
        """Return the receipts that this rank sends all others at the end, and they send it: everything has arrived.

        So what has failed on one rank has failed on all, and none goes on with a step that another has not taken.
        """
        return [Slot(peer, RECEIPT, _AFTER_ALL, 0, 0) for peer in self.others]

    @classmethod
    def between(cls, n_values: int, rank: int, size: int) -> Schedule:
        """Return the schedule that moves the fewest bytes; arguments are those of the class."""
        return (Mutual if size == 2 else cls)(n_values, rank, size)

    def _others(self, kind: int) -> list[Slot]:
        """Return the messages about the others' pieces, one owner after the other."""
        pieces = range(max(map(len, self.shares)))
        owned = [(owner, piece) for piece in pieces for owner in self.others if piece < len(self.shares[owner])]
        return [self._slot(owner, kind, owner, piece) for owner, piece in owned]

    def _slot(self, peer: int, kind: int, owner: int, piece: int) -> Slot:
        return Slot(peer, kind, piece, *self.shares[owner][piece])


class OneWay(Schedule):
    """Lists contributions only: the rank that sums a value keeps the result."""

    def copies(self, due: Slot) -> list[Slot]:
        """Return an empty list: results stay where they are made."""
        return []

    def results(self) -> list[Slot]:
        """Return an empty list: results stay where they are made."""
        return []


class Mutual(OneWay):
    """Lists the messages of one of two ranks: each sends the other everything, and both sum it.

    That moves as many values as one half and then the other half's sums, but each is encoded once, and no message waits
    for a sum. Arguments are those of ``Schedule``.
    """

    def __init__(self, n_values: int, rank: int, size: int) -> None:
        super().__init__(n_values, rank, size)
        self.shares = shares(n_values, 1) * 2
