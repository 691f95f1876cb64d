"""Messages of unknown size between two ranks of a group.

Gloo moves a message straight into the receiver's buffer, and the buffer may be larger than the message. So each receive
is posted with room for the largest message there can be, and no sizes are sent ahead. Receives are posted before sends:
on Gloo a rank that sends first makes a connection half duplex.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ...errors import PeerError
from .failures import FailureRecords

_MAX_KEPT = 64  #: buffers of one size that are kept


def labeled(label: str, operation: Callable[[], Any]) -> Any:
    """Return the result of an operation of torch's groups, with a label for its errors.

    Args:
        label: Names the operation.

    Raises:
        PeerError: With ``label`` ahead of torch's text, which does not say which rank it has waited for. Errors of the
            device itself are raised as they are.
    """
    try:
        return operation()
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except PeerError as error:
        raise PeerError(f"{label}: {error}") from error
    except RuntimeError as error:
        raise PeerError(f"{label}: some rank, it is not known which: {str(error).splitlines()[0]}") from error


class Buffers:
    """Keeps memory for messages to be used again: fresh pages cost as much as encoding does. For one thread.

    Args:
        pinned: Take memory that a CUDA device copies to and from by itself.
    """

    def __init__(self, pinned: bool = False) -> None:
        self._kept: dict[int, list[torch.Tensor]] = {}
        self._pinned = pinned

    def acquire(self, size: int) -> torch.Tensor:
        """Return a buffer, uint8, of at least ``size`` bytes."""
        # Sizes are rounded up to a multiple of an eighth of the next power of two, so that messages of about one size
        # share buffers and at most a quarter of a large one is wasted.
        unit = max(1 << 12, 1 << (size - 1).bit_length() - 3)
        n_bytes = unit * -(-size // unit)
        kept = self._kept.get(n_bytes)
        if kept:
            return kept.pop()
        with torch.inference_mode(False):  # the memory outlives the caller's mode
            return torch.empty(n_bytes, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)

    def release(self, buffer: torch.Tensor) -> None:
        """Take back a buffer that is no longer in use."""
        kept = self._kept.setdefault(buffer.numel(), [])
        if len(kept) < _MAX_KEPT:
            kept.append(buffer)


class Incoming:
    """A posted receive; the message takes the first part of the buffer.

    Args:
        peer: The sender's rank.
        buffer: The memory for the message, uint8.
        work: torch's handle of the receive.
    """

    def __init__(self, peer: int, buffer: torch.Tensor, work: Any) -> None:
        self.peer, self.buffer, self.work = peer, buffer, work

    @property
    def bytes(self) -> np.ndarray:
        """The memory of the buffer, uint8."""
        array: np.ndarray = self.buffer.numpy()
        return array


class Transfers:
    """Makes the sends and receives of one job. All methods raise PeerError.

    A message of unknown size, from rank 0 to rank 1::

        rank 1   post(0, tag, max_bytes)   the receive waits in Gloo, with a buffer that is large enough
        rank 0   send(1, tag, ...)         Gloo writes straight into that buffer; the header says how much is there
        rank 1   receive(incoming)         waits until it has
        both     finish()                  wait for the rest, and release all buffers

    Args:
        group: The process group.
        timeout: Time after which a silent peer is an error.
        buffers: Where memory comes from and goes back to.
        where: Returns the text that errors about a peer begin with.
        failure_records: The reasons that failed ranks have left; None for a group without a store.

    Attributes:
        wait_seconds: Seconds spent waiting for the network.
        sent_bytes: Bytes handed to it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        timeout: timedelta,
        buffers: Buffers,
        where: Callable[[int], str],
        failure_records: FailureRecords | None = None,
    ) -> None:
        self.group, self.buffers, self.where, self.failure_records = group, buffers, where, failure_records
        self._deadline = monotonic() + timeout.total_seconds()
        self._timeout = timeout
        self._receives: list[Incoming] = []
        self._sends: list[tuple[int, torch.Tensor, Any]] = []
        self._to_release: list[torch.Tensor] = []
        self.wait_seconds, self.sent_bytes = 0.0, 0

    def post(self, peer: int, tag: int, max_bytes: int) -> Incoming:
        """Expect a message from a rank of the group.

        Args:
            peer: The sender's rank.
            tag: The number by which sender and receiver know the message.
            max_bytes: Bytes of the longest message that the sender may send.
        """
        buffer = self.buffers.acquire(max_bytes)
        incoming = Incoming(peer, buffer, self._begin(self.group.recv, buffer, peer, tag))
        self._receives.append(incoming)
        return incoming

    def release_after(self, buffer: torch.Tensor) -> None:
        """Return a buffer that is sent from to the pool once everything has been sent."""
        self._to_release.append(buffer)

    def send(self, peer: int, tag: int, buffer: torch.Tensor, size: int) -> None:
        """Send the first bytes of a buffer.

        Args:
            peer: The receiver's rank.
            tag: The number by which sender and receiver know the message.
            buffer: The buffer, uint8, which must stay as it is until :meth:`finish`.
        """
        part = buffer[:size]
        self._sends.append((peer, part, self._begin(self.group.send, part, peer, tag)))
        self.sent_bytes += size

    def send_array(self, peer: int, tag: int, message: np.ndarray) -> None:
        """Send all of an array, uint8; other arguments as for :meth:`send`."""
        self.send(peer, tag, torch.from_numpy(message), len(message))

    def receive(self, incoming: Incoming, where: str) -> np.ndarray:
        """Wait for a message, and return its buffer, uint8, of which the message takes the first part.

        Args:
            incoming: What :meth:`post` returned.
            where: Begins the text of an error.
        """
        self._wait(incoming.work, incoming.peer, where)
        return incoming.bytes

    def finish(self) -> None:
        """Wait until everything has been sent, and release all buffers."""
        for peer, _, work in self._sends:
            self._wait(work, peer, self.where(peer))
        for buffer in self._to_release:
            self.buffers.release(buffer)
        for incoming in self._receives:
            self.buffers.release(incoming.buffer)

    def _begin(self, operation: Callable[..., Any], buffer: torch.Tensor, peer: int, tag: int) -> Any:
        try:
            return operation([buffer], peer, tag)
        except RuntimeError as error:  # Gloo knows already that the peer is gone
            raise self._failed(peer, self.where(peer), error) from error

    def _failed(self, peer: int, where: str, error: RuntimeError) -> PeerError:
        """Return the error to raise, with the peer's failure record: one that had failed before is not to blame."""
        timed_out = "imed out" in str(error)
        what = f"no answer within {self._timeout.total_seconds():g} s" if timed_out else "the connection has failed"
        text, reason = f"{where}: {what} ({in_short(error)})", None
        if self.failure_records is not None:
            # First the record of this rank: a wait that timed out has closed all of its connections, so that others
            # are about to find it gone.
            self.failure_records.record(text)
            reason = self.failure_records.reason_of(peer)
        return PeerError(text if reason is None else f"{text}; that rank had aborted: {reason}")

    def _wait(self, work: Any, peer: int, where: str) -> None:
        start = perf_counter()
        remaining = timedelta(seconds=max(self._deadline - monotonic(), 0.001))  # 0 stands for the group's timeout
        try:
            done = work.wait(remaining)
        except RuntimeError as error:
            raise self._failed(peer, where, error) from error
        finally:
            self.wait_seconds += perf_counter() - start
        if not done:
            raise PeerError(f"{where}: the operation was aborted")


def in_short(error: RuntimeError) -> str:
    """Return Gloo's message without the source location before it and the advice after it."""
    line = str(error).splitlines()[0]
    return (line.partition("] ")[2] if line.startswith("[") else line).partition(". ")[0]
