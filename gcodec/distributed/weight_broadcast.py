"""Weight sync over a process group: versions of weights from one rank to all others (docs/weight-sync.md)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import xxhash

from ..errors import Corruption, InvalidArgument, PeerError, check_int
from ..sync import PendingVersion, Subscriber, UpdateStats, WeightVersion
from .transport.arguments import check_group_member
from .transport.transfers import labeled

#: Begins what every rank says of itself: protocol and its version.
PROTOCOL = 0x67637362 << 8 | 1
#: A message travels in parts of at most so many bytes.
PART_BYTES = 1 << 28
#: Bytes of the text in which a rank says why it could not use a version.
MAX_REASON = 400


class _RankState(NamedTuple):
    """The weights that a rank holds, or sends, as all ranks learn before a version travels.

    Attributes:
        protocol: ``PROTOCOL``.
        is_source: 1 on the rank that sends, 0 elsewhere.
        source: The rank that it takes for the source.
        number: Number of the version that it holds; on the source that of the version to send.
        state: Hash of its weights, as a signed integer; on the source of the version to send.
        base: On the source, hash of the weights that the difference applies to; 0 elsewhere, and without a difference.
    """

    protocol: int
    is_source: int
    source: int
    number: int
    state: int
    base: int


class WeightBroadcast:
    """Sends versions of weights from one rank of a group to all others, each of which has a subscriber.

        broadcast = WeightBroadcast(group)
        broadcast.send(publisher.publish(state))        # on the source
        broadcast.receive(subscriber)                   # on every other rank, as often

    All ranks take part in each version. They first say what they hold: if all hold the version before, the difference
    is sent, and else the anchor, so that a rank that is new, or could not use a version, needs nothing else. A version
    is applied on all ranks after all have checked it, or on none.

    Args:
        group: The process group; None: the world.
        source: The rank in the group that sends.

    Raises:
        InvalidArgument: The group has no such rank, or this process is not in it.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, source: int = 0) -> None:
        check_group_member(group)
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.source = check_int("source", source, 0, self.size - 1)
        on_gpu = dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def send(self, version: WeightVersion) -> int:
        """Send a version to all other ranks; on the source rank, while they call :meth:`receive`.

        Args:
            version: The version that the publisher has just made.

        Returns:
            The bytes of the message: of the difference, of the anchor, or 0 if all ranks have these weights already.

        Raises:
            InvalidArgument: This is not the source rank, or ``version`` is none, such as its bytes alone.
            PeerError: A rank could not use the version, and none has applied it; or a rank is gone.
        """
        if self.rank != self.source:
            raise InvalidArgument(f"send() is for rank {self.source}, the source; rank {self.rank} calls receive()")
        if not isinstance(version, WeightVersion):
            raise InvalidArgument(f"version must be what publish returns, not a {type(version).__name__}")
        base = 0 if version.difference is None or version.info.base is None else _signed(version.info.base)
        mine = _RankState(PROTOCOL, 1, self.source, version.number, _signed(version.state), base)
        kind = _kind_of_message(self._exchange(mine), self.source)
        if kind == "nothing":
            return 0
        label = f"version {version.number}"
        try:
            data = version.anchor() if kind == "anchor" else version.data
        except BaseException as error:
            self._send_size(label, -1, 0)
            raise error
        self._send_size(label, len(data), _signed(xxhash.xxh3_64_hexdigest(data)))
        message = torch.from_numpy(np.frombuffer(data, np.uint8).copy()).to(self._device)
        self._broadcast(label, message)
        self._agree(label, None)
        return len(data)

    def receive(self, subscriber: Subscriber) -> UpdateStats | None:
        """Receive the version that the source sends, and apply it.

        Args:
            subscriber: This rank's subscriber.

        Returns:
            What was applied; None if all ranks had these weights already.

        Raises:
            InvalidArgument: This is the source rank, or ``subscriber`` is none.
            PeerError: Another rank could not use the version; or a rank is gone. The weights are those of before.
            GcodecError: This rank could not use the version, as :meth:`gcodec.sync.Subscriber.read` says.
        """
        if self.rank == self.source:
            raise InvalidArgument(f"receive() is for other ranks than {self.source}, the source, which calls send()")
        if not isinstance(subscriber, Subscriber):
            raise InvalidArgument(f"subscriber must be this rank's Subscriber, not a {type(subscriber).__name__}")
        state = _signed(subscriber.state) if subscriber.state else 0
        states = self._exchange(_RankState(PROTOCOL, 0, self.source, subscriber.number, state, 0))
        if _kind_of_message(states, self.source) == "nothing":
            return None
        label = f"version {states[self.source].number}"
        size_and_hash = torch.zeros(2, dtype=torch.int64, device=self._device)
        self._broadcast(label, size_and_hash)
        size, digest = size_and_hash.tolist()
        if size < 0:
            raise PeerError(f"{label}: rank {self.source}, the source, could not make its message")
        message = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._broadcast(label, message)
        pending: PendingVersion | None = None
        problem: Exception | None = None
        try:
            data = message.cpu().numpy()
            if _signed(xxhash.xxh3_64_hexdigest(data.data)) != digest:
                raise Corruption(f"{label}: the message of {size} bytes arrived damaged")
            pending = subscriber.read(data)
            pending.try_out()  # for what apply() would refuse here after the others have applied it
        except Exception as error:  # whatever it is, the others have to hear of it
            problem = error
        self._agree(label, problem)
        assert pending is not None  # or _agree has raised
        return pending.apply()

    def _exchange(self, mine: _RankState) -> list[_RankState]:
        """Return what all ranks say of themselves. Raises PeerError if they are not ready for a version."""
        sent = torch.tensor(list(mine), dtype=torch.int64, device=self._device)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        labeled("weight broadcast", lambda: dist.all_gather(received, sent, group=self.group))
        states = [_RankState(*state.tolist()) for state in received]
        for rank, state in enumerate(states):
            if state.protocol != PROTOCOL:
                raise PeerError(f"rank {rank} does not speak this version of the weight broadcast")
            if state.source != states[0].source:
                raise PeerError(f"on rank {rank} the source is rank {state.source}, on rank 0 it is {states[0].source}")
        return states

    def _send_size(self, label: str, size: int, digest: int) -> None:
        self._broadcast(label, torch.tensor([size, digest], dtype=torch.int64, device=self._device))

    def _broadcast(self, label: str, tensor: torch.Tensor) -> None:
        for part in tensor.split(max(PART_BYTES // tensor.element_size(), 1)):
            if part.numel():
                labeled(label, lambda part=part: dist.broadcast(part, group=self.group, group_src=self.source))  # type: ignore[misc]

    def _agree(self, label: str, problem: Exception | None) -> None:
        """Return once all ranks can use the version. Raises ``problem``, or PeerError with another rank's."""
        text = b"" if problem is None else f"{type(problem).__name__}: {problem}".encode()[:MAX_REASON]
        sent = torch.zeros(MAX_REASON, dtype=torch.uint8, device="cpu")
        sent[: len(text)] = torch.from_numpy(np.frombuffer(text, np.uint8).copy()) if text else sent[:0]
        sent = sent.to(self._device)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        labeled(label, lambda: dist.all_gather(received, sent, group=self.group))
        if problem is not None:
            raise problem
        for rank, answer in enumerate(received):
            reason = bytes(answer.cpu().numpy()).rstrip(b"\0").decode(errors="replace")
            if reason:
                raise PeerError(f"{label} was applied on no rank, because rank {rank} could not use it: {reason}")


def _kind_of_message(states: list[_RankState], source: int) -> str:
    """Return which message all ranks need: "difference", "anchor" or "nothing"."""
    sent = states[source]
    others = [state for rank, state in enumerate(states) if rank != source]
    if all(state.state == sent.state and state.number == sent.number for state in others):
        return "nothing"
    return "difference" if sent.base and all(state.state == sent.base for state in others) else "anchor"


def _signed(digest: str) -> int:
    """Return a hash of 64 bits as a signed integer."""
    return int.from_bytes(bytes.fromhex(digest), "big", signed=True)
