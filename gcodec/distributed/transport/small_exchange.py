"""Small messages of every rank to every other one, by one collective of the lane's Gloo group.

All messages of an exchange lie in slots of one size, which depends on nothing but the number of ranks: ranks that
disagree about what they do still understand each other well enough to say so. A rank that fails takes part in the
exchange that the others come to next, with abort messages; so nobody waits for it::

    rank 0    exchange   exchange     exchange -> PeerError: rank 1 has aborted: ...
    rank 1    exchange   fails, tell
    rank 2    exchange   exchange     exchange -> PeerError: rank 1 has aborted: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...errors import PeerError
from .delegation import inner_method
from .failures import WAITED
from .lane import Lane
from .message import CONTRIBUTION, HEADER, RECEIPT, Header, abort_message, agreement_of, check
from .transfers import in_short

_LEAST = 1 << 10  #: bytes of a slot at least: an abort message fits
_ALL = 1 << 14  #: bytes of all slots, while there are few ranks
_NAMED = 4  #: ranks that an error names at most

Result = TypeVar("Result")


class SmallMessage(NamedTuple):
    """A message to one rank.

    Attributes:
        header: Its header, but for the payload's size.
        payload: What stands behind it, :func:`max_payload` bytes at most.
    """

    header: Header
    payload: bytes = b""


def max_payload(size: int) -> int:
    """Return the bytes that a message may have behind its header, among so many ranks."""
    return _slot_bytes(size) - HEADER


def exchange_bytes(size: int) -> int:
    """Return the bytes that a rank sends in an exchange of so many ranks, and those that it receives."""
    return (size - 1) * _slot_bytes(size)


def _slot_bytes(size: int) -> int:
    return max(_LEAST, _ALL // size // 64 * 64)


def exchange(
    lane: Lane, messages: Mapping[int, SmallMessage], expected: Mapping[int, Header], label: str
) -> dict[int, bytes]:
    """Send a message to each other rank, and return the payloads of theirs, by rank. Called on the lane's thread.

    Args:
        expected: The headers of those that come, whose payloads may be of any size, by the rank that sends them.
        label: Says in errors what ranks were at.

    Raises:
        PeerError: A rank has aborted, differs in what it does, or is silent: it is named if that is known.
        Corruption: A message is damaged.
    """
    if lane.size == 1:
        return {}
    sent, received = _Slots(lane), _Slots(lane)
    for peer, (header, payload) in messages.items():
        header._replace(payload=len(payload)).write_to(sent.slots[peer])
        sent.slots[peer, HEADER : HEADER + len(payload)] = np.frombuffer(payload, np.uint8)
    try:
        _begin(lane, sent, received).wait()
    except RuntimeError as error:
        lane.has_told = True  # by closing its connections, as Gloo does
        lane.parked.append((sent, received))  # the network may still read and write these
        raise _failed(lane, label, error) from error
    try:
        return {
            peer: check(received.slots[peer], header, f"rank {peer} ({label})").tobytes()
            for peer, header in expected.items()
        }
    except PeerError:
        lane.has_told = True  # all ranks have found the same here, or that ranks differ
        raise
    finally:
        lane.buffers.release(sent.buffer)
        lane.buffers.release(received.buffer)


def tell(lane: Lane, error: BaseException) -> None:
    """Tell all ranks, in the exchange that they come to next, that this one has failed; waits for nothing.

    Once is enough: after that, none of them goes on. Called on the lane's thread.
    """
    if lane.has_told or lane.size == 1:
        return
    lane.has_told = True
    message = abort_message(Header(CONTRIBUTION, lane.rank, 0, 0, 0, 0, 0), error)
    sent, received = _Slots(lane), _Slots(lane)
    sent.slots[:, : len(message)] = message
    with suppress(RuntimeError):  # all are gone
        lane.parked.append((_begin(lane, sent, received), sent, received))


def confirmed(lane: Lane, label: str, work: Callable[[], Result]) -> Result:
    """Call :func:`confirmed_here` when all jobs have ended that were started on this lane before, without an error."""

    def drain_and_work() -> Result:
        lane.drain()
        lane.check_unbroken()
        return work()

    return confirmed_here(lane, label, drain_and_work)


def confirmed_here(lane: Lane, label: str, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, once no rank has failed in it.

    So what has failed on one rank has failed on all, and none goes on with a step that another has not taken. Called on
    the lane's thread, in the same order on all ranks.

    Args:
        label: Says in errors what ranks were at.
        work: Waits for no other rank.

    Raises:
        PeerError: Another rank has failed.
        Exception: What ``work`` raises; the other ranks are told.
    """
    try:
        result = work()
    except BaseException as error:
        tell(lane, error)
        raise
    sequence, agreement = lane.next_sequence(), agreement_of("receipt")
    mine, *theirs = (Header(RECEIPT, rank, 0, sequence, agreement, 0, 0) for rank in (lane.rank, *lane.others))
    exchange(lane, dict.fromkeys(lane.others, SmallMessage(mine)), dict(zip(lane.others, theirs, strict=True)), label)
    return result


class _Slots:
    """The memory for the messages of one exchange.

    Attributes:
        buffer: The memory, which is the lane's.
        tensor: The part of it that all slots take.
        slots: The slots: uint8[ranks, bytes].
    """

    def __init__(self, lane: Lane) -> None:
        n_bytes = lane.size * _slot_bytes(lane.size)
        self.buffer = lane.buffers.acquire(n_bytes)
        self.tensor = self.buffer[:n_bytes]
        self.slots: np.ndarray = self.tensor.numpy().reshape(lane.size, -1)


def _begin(lane: Lane, sent: _Slots, received: _Slots) -> Any:
    return inner_method(lane.group, "alltoall_base")(received.tensor, sent.tensor, [], [])


def _failed(lane: Lane, label: str, error: RuntimeError) -> PeerError:
    """Return the error to raise for one of Gloo's, which does not say which rank it has waited for: that is one that
    has left no failure record, while those that have waited for it leave one each."""
    timed_out = "imed out" in str(error)
    what = f"no answer within {lane.timeout.total_seconds():g} s" if timed_out else "the connection has failed"
    lane.failure_records.record(f"{WAITED}{label}: {what}")
    reasons = lane.failure_records.reasons_of(lane.others)
    silent = [peer for peer in lane.others if reasons[peer] is None]
    told = {peer: reason for peer, reason in reasons.items() if reason is not None and not reason.startswith(WAITED)}
    if told:
        peer, reason = next(iter(told.items()))
        return PeerError(f"rank {peer} ({label}): {what}; that rank had aborted: {reason}")
    if (silent and len(silent) < len(lane.others)) or len(lane.others) == 1:
        ranks = ", ".join(map(str, (silent or lane.others)[:_NAMED])) + ", ..." * (len(silent) > _NAMED)
        return PeerError(f"rank{'s' * (len(silent) > 1)} {ranks} ({label}): {what} ({in_short(error)})")
    return PeerError(f"{label}: some rank, it is not known which: {what} ({in_short(error)})")
