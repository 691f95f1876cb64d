"""Scatter-reduce, then all-gather, of tensors on CUDA devices: :mod:`reduce` in one piece per rank.

A GPU encodes and decodes all parts of a buffer in one launch each, and many times faster than a network carries them:
pieces would gain little. In each half every rank encodes, and tells every other one how long its frame is, in a message
of the lane's Gloo group. When all lengths are known, the frames go from device to device
(:mod:`~gcodec.distributed.transport.gpu`). So no rank waits for a frame that another could not make: that one sends an
abort message in place of the length::

    every rank   post receives for all lengths and receipts
                 encode a frame for each other rank      contributions, in one launch
                 length -> every other rank              Gloo: a header and 8 bytes, or an abort message
                 frame  -> every other rank              NCCL, or Gloo through the host's memory
                 decode the received frames, and sum them in the order of ranks
                 encode the sum once; length and frame -> every other rank; decode theirs       (not between two)
                 receipt -> every other rank

The result has the bits that the same all-reduce of tensors in CPU memory has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from ...compressors.contract import parts_of
from ...errors import Corruption, GcodecError, LimitExceeded
from ..transport.gpu import gpu_transport_of
from ..transport.lane import Lane
from ..transport.message import CONTRIBUTION, HEADER, RESULT, check
from ..transport.transfers import Incoming, Transfers, labeled
from .gpu_coder import GpuCoder, sum_in_rank_order
from .partition import Range
from .reduce import Reduction
from .schedule import OneWay, Schedule, Slot

_ALIGN = 1 << 14  #: values of which parts are multiples


class Parts(Schedule):
    """Lists the messages of one rank, where every rank owns one part, which may be empty.

    Arguments are those of ``Schedule``.
    """

    def __init__(self, n_values: int, rank: int, size: int) -> None:
        super().__init__(n_values, rank, size)
        self.shares = [[(part.start, part.stop)] for part in parts_of(n_values, size, _ALIGN)]


class Halves(OneWay):
    """Lists the messages of one of two ranks, which send each other everything and both add it up.

    Arguments are those of ``Schedule``.
    """

    def __init__(self, n_values: int, rank: int, size: int) -> None:
        super().__init__(n_values, rank, size)
        self.shares = [[(0, n_values)]] * 2


class EqualParts(OneWay):
    """Lists the messages of one rank of a reduce-scatter: contributions. The parts lie one after another, by rank.

    Arguments are those of ``Schedule``, the number of values being a multiple of the ranks.
    """

    def __init__(self, n_values: int, rank: int, size: int) -> None:
        super().__init__(n_values, rank, size)
        self.shares = [[(part.start, part.stop)] for part in parts_of(n_values, size)]


class GpuReduction(Reduction):
    """Runs one all-reduce of flat tensors on a CUDA device.

    Arguments are those of :class:`Reduction`, with tensors in place of arrays.
    """

    kind_terms: ClassVar[tuple[str, ...]] = ("device",)

    def __init__(
        self,
        lane: Lane,
        coder: GpuCoder,
        values: torch.Tensor,
        result: torch.Tensor,
        *,
        mean: bool,
        terms: tuple[object, ...],
        label: str = "",
    ) -> None:
        on_gpu: Any = coder, values, result  # of which Reduction asks here no more than lengths, type and counters
        super().__init__(lane, *on_gpu, mean=mean, terms=terms, label=label)
        self.gpu_coder, self.source, self.target = coder, values, result
        self.two = isinstance(self.schedule, Halves)
        self.parts: list[Range] = [share[0] for share in self.schedule.shares]

    def _schedule_of(self, n_values: int) -> Schedule:
        return (Halves if self.lane.size == 2 else Parts)(n_values, self.lane.rank, self.lane.size)

    def _run(self, transfers: Transfers) -> Iterator[None]:
        (contributions,) = self.schedule.contributions()  # a rank owns one piece
        results = {slot.peer: slot for slot in self.schedule.results()}
        posted, posted_results = (
            {peer: self._post(transfers, slot) for peer, slot in slots.items()} for slots in (contributions, results)
        )
        receipts = [(slot, self._post(transfers, slot)) for slot in self.schedule.receipts()]
        self._keep(transfers, self._own_part(transfers, contributions, posted), results, posted_results)
        self._confirm(transfers, receipts)
        yield from ()  # all in one part

    def _own_part(self, transfers: Transfers, expected: dict[int, Slot], posted: dict[int, Incoming]) -> torch.Tensor:
        """Exchange contributions; return the sum of this rank's part, or the mean. Arguments as of `_exchange`."""
        begin, end = self.parts[self.lane.rank]
        # Lossy: this rank, too, decodes the frame of its own values, to have them as the others do.
        lossy = self.gpu_coder.lossy
        frames = self._encode(self.parts, CONTRIBUTION, lossy)
        received = self._exchange(transfers, expected, posted, frames)
        ranges = [(begin, end)] * self.lane.size
        terms = self._decode_all(received, ranges, expected, None if lossy else self.source[begin:end])
        return sum_in_rank_order(terms, self.lane.size if self.mean else 1)

    def _keep(
        self, transfers: Transfers, own: torch.Tensor, expected: dict[int, Slot], posted: dict[int, Incoming]
    ) -> None:
        """Put the result of this rank's part where it belongs, and those of the others, which it exchanges."""
        if self.two:
            self.target.copy_(own)
            return
        begin, end = self.parts[self.lane.rank]
        frame = self._encode_part((begin, end), own) if end > begin else self._nothing()
        received = self._exchange(transfers, expected, posted, [frame] * self.lane.size)
        local = None if self.gpu_coder.lossy else own
        results = self._decode_all(received, self.parts, expected, local)
        for (first, last), part in zip(self.parts, results, strict=True):
            self.target[first:last] = part

    def _encode(self, ranges: Sequence[Range], kind: int, with_self: bool) -> list[torch.Tensor]:
        """Return a frame for each rank, of the part that it sums; empty where there is nothing to send.

        Args:
            ranges: each rank's part.
            kind: CONTRIBUTION or RESULT.
            with_self: make a frame for this rank, too.
        """
        frames = [self._nothing() for _ in ranges]
        ranks = [
            rank for rank, (begin, end) in enumerate(ranges) if end > begin and (with_self or rank != self.lane.rank)
        ]
        if self.two and with_self:
            ranks = ranks[:1]  # both parts are the same
        parts = [(ranges[rank][0], self.source[slice(*ranges[rank])]) for rank in ranks]
        for rank, frame in zip(ranks, self.gpu_coder.encode(parts, kind) if parts else [], strict=True):
            frames[rank] = frame
        return [frames[ranks[0]]] * 2 if self.two and with_self and ranks else frames

    def _encode_part(self, part: Range, values: torch.Tensor) -> torch.Tensor:
        return self.gpu_coder.encode([(part[0], values)], RESULT)[0]

    def _nothing(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.source.device)

    def _exchange(
        self,
        transfers: Transfers,
        expected: dict[int, Slot],
        posted: dict[int, Incoming],
        frames: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Exchange the lengths of frames, then the frames.

        Args:
            transfers: the sends and receives of lengths.
            expected: the messages that come, by the rank that sends them.
            posted: the receives of their lengths.
            frames: a frame for each rank, this one's included.

        Returns:
            The frames of all ranks, by rank; this rank's own is the one in ``frames``.
        """
        rank, counters = self.lane.rank, self.coder.counters
        while self._unsent and self._unsent[0].kind == next(iter(expected.values())).kind:
            slot = self._unsent[0]
            message = np.empty(HEADER + 8, np.uint8)
            self._header(slot, 8).write_to(message)
            message[HEADER:] = np.array([len(frames[slot.peer])], "<u8").view(np.uint8)
            transfers.send_array(slot.peer, self._tag(slot), message)
            self._unsent.popleft()
        sizes = [0] * self.lane.size
        for peer, slot in expected.items():
            sizes[peer] = self._receive_size(transfers, slot, posted[peer])
        outgoing = [self._nothing() if peer == rank else frame for peer, frame in enumerate(frames)]
        where = f"{self.label or f'all-reduce {self.sequence}'}, frames"
        transport = gpu_transport_of(self.lane, self.source.device)
        received = labeled(where, lambda: transport.swap(outgoing, sizes))
        received[rank] = frames[rank]
        counters.sent_bytes += sum(map(len, outgoing))
        counters.received_bytes += sum(sizes) + (HEADER + 8) * len(expected)
        return received

    def _receive_size(self, transfers: Transfers, slot: Slot, incoming: Incoming) -> int:
        """Return the size of the frame that a peer is about to send."""
        where = self._where(slot.peer)
        payload = check(transfers.receive(incoming, where), self._header(slot, 0, slot.peer), where)
        size = int.from_bytes(payload.tobytes(), "little")
        n_bytes = (slot.end - slot.begin) * self.coder.dtype.itemsize
        # Memory is taken for what a peer says it will send, so it must not be able to say anything.
        if len(payload) != 8 or size % 8 or size > 2 * n_bytes + (1 << 20) or (size > 0) != (n_bytes > 0):
            raise Corruption(f"{where}: a frame of {size} bytes for {slot.end - slot.begin} values")
        return size

    def _decode_all(
        self,
        frames: list[torch.Tensor],
        ranges: Sequence[Range],
        expected: dict[int, Slot],
        local: torch.Tensor | None,
    ) -> list[torch.Tensor]:
        """Return the values of every rank's frame, by rank.

        Args:
            frames: each rank's frame.
            ranges: the range of each.
            expected: the messages that came, by the rank that sent them.
            local: the values of this rank's frame, where they are known: it is not decoded then.

        Raises:
            GcodecError: what decoding raises, with the rank.
        """
        ranks = [r for r, (begin, end) in enumerate(ranges) if end > begin and (local is None or r != self.lane.rank)]
        sizes = [ranges[r][1] - ranges[r][0] for r in ranks]
        by_rank = [self.source[:0]] * len(ranges)
        if local is not None:
            by_rank[self.lane.rank] = local
        try:
            decoded = self.gpu_coder.decode([frames[r] for r in ranks], sizes) if ranks else []
        except GcodecError:
            # All frames are decoded in one launch, which does not say whose was damaged: decode one at a time.
            for r, size in zip(ranks, sizes, strict=True):
                try:
                    self.gpu_coder.decode([frames[r]], [size])
                except GcodecError as error:
                    kind = Corruption if isinstance(error, LimitExceeded) else type(error)
                    raise kind(f"{self._where(r)}: {error}") from error
            raise
        for r, values in zip(ranks, decoded, strict=True):
            by_rank[r] = values
        return by_rank


class GpuScatter(GpuReduction):
    """Runs one reduce-scatter on a CUDA device: the first half of the all-reduce. The result is not rounded.

    Arguments are those of :class:`GpuReduction`, but that the number of values is a multiple of the ranks, and
    ``result`` takes this rank's part only.
    """

    kind_terms = ("device", "scatter")

    def _schedule_of(self, n_values: int) -> Schedule:
        return EqualParts(n_values, self.lane.rank, self.lane.size)

    def _keep(
        self, transfers: Transfers, own: torch.Tensor, expected: dict[int, Slot], posted: dict[int, Incoming]
    ) -> None:
        """Put the result of this rank's part where it belongs."""
        self.target.copy_(own)
