"""Scatter-reduce, then all-gather, of tensors on CUDA devices: :mod:`reduce` in one piece per rank.

A GPU encodes and decodes all parts of a buffer in one launch each, and many times faster than a network carries them:
pieces would gain little. In each half every rank encodes, and tells every other one how long its frame is, and what its
prelude says: in a small exchange of the lane's Gloo group (:mod:`~gcodec.distributed.transport.small_exchange`). Then
the frames go from device to device (:mod:`~gcodec.distributed.transport.gpu`). So no rank waits for a frame that
another could not make: that one sends abort messages in place of the sizes. What the host waits for is marked::

    every rank   encode a frame for each other rank      contributions, in one launch, on a stream of their own
                 sizes, preludes                         << the host waits for the device
                 sizes, preludes -> every other rank     << and for the other ranks: one small exchange
                 frames -> every other rank              NCCL, or Gloo through the host's memory
                 decode the received frames, and sum them in the order of ranks
                 encode the sum once; the same steps; decode the others' sums                   (not between two)
                 statuses of all that was decoded        when the device has come so far
    of a step    a small exchange confirms all of it

Nobody waits for frames: the host goes on, to encode the next buffer while the network carries this one.

The result has the bits that the same all-reduce of tensors in CPU memory has.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import ClassVar

import torch

from ...compressors.contract import parts_of
from ...errors import Corruption, GcodecError, LimitExceeded
from ..transport.gpu import gpu_transport_of
from ..transport.jobs import StartedJob
from ..transport.lane import Lane
from ..transport.message import CONTRIBUTION, RESULT, Header, agreement_of
from ..transport.small_exchange import SmallMessage, exchange, exchange_bytes, max_payload
from ..transport.transfers import labeled
from .gpu_coder import (
    EncodedFrame,
    GpuCoder,
    SideStream,
    StartedFrames,
    side_stream_of,
    sum_in_rank_order,
)
from .partition import Range

_ALIGN = 1 << 14  #: values of which parts are multiples
_SIZE_BYTES = 8  #: of a frame's size in a message, a u64


class GpuReduction:
    """Runs one all-reduce of flat tensors on a CUDA device. Its methods are called on the lane's thread.

    Args:
        lane: the lane of the group.
        coder: the codec of the buffer.
        values: this rank's values.
        result: takes the result, in other memory.
        mean: divide by the number of ranks.
        terms: further facts that ranks must agree on.
        label: begins the texts of errors.
    """

    #: What tells one kind of reduction from another where ranks compare what they are about to do.
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
        self.lane, self.coder = lane, coder
        self.source, self.target, self.mean, self.label = values, result, mean, label
        self.parts = self._parts_of(len(values))
        self.agreement = agreement_of(coder.dtype.name, len(values), lane.size, mean, (*terms, *self.kind_terms))
        self.sequence = -1
        self._others = [peer for peer in range(lane.size) if peer != lane.rank]
        self._unchecked: list[tuple[list[int], StartedFrames]] = []  #: what is being decoded, and whose frames

    def _parts_of(self, n_values: int) -> list[Range]:
        """Return the range that each rank sums. Two ranks send each other everything, and both add it up."""
        if self.lane.size == 2:
            return [(0, n_values)] * 2
        return [(part.start, part.stop) for part in parts_of(n_values, self.lane.size, _ALIGN)]

    def run(self, stream: SideStream) -> StartedJob:
        """Start the all-reduce: return when the device goes on by itself. What is returned ends when the result is
        there, and all of it was right.

        Args:
            stream: where contributions are encoded, once the values are there: the side stream, or one of their own.

        Raises:
            PeerError: another rank failed, is silent, or differs in what it does.
            Corruption: a message or a prelude arrived damaged.
            Exception: what encoding raised. It is for the caller to tell the other ranks.
        """
        start = perf_counter()
        self.sequence = self.lane.next_sequence()
        self._keep(self._own_part(stream))
        self.coder.counters.seconds += perf_counter() - start
        return StartedJob(self._check, None, self._has_ended)

    def _has_ended(self) -> bool:
        try:
            return self.lane.broken or all(started.ended() for _, started in self._unchecked)
        except RuntimeError:  # a fault of the device, which waiting for it raises, too
            return True

    def _check(self) -> None:
        """Wait for the device, and raise what is wrong with a frame, with the rank that sent it."""
        start = perf_counter()
        for ranks, started in self._unchecked:
            # On a broken lane the device may wait for the frames of a rank that is gone.
            if self.lane.broken and not started.ended():
                self.lane.check_unbroken()
            for number, error in sorted(started.errors().items()):
                raise self._of_rank(ranks[number], error) from error
        self._unchecked.clear()
        self.coder.counters.seconds += perf_counter() - start

    def _own_part(self, stream: SideStream) -> torch.Tensor:
        """Exchange contributions, encoded on ``stream``; return the sum of this rank's part, or the mean."""
        begin, end = self.parts[self.lane.rank]
        # Lossy: this rank, too, decodes the frame of its own values, to have them as the others do.
        lossy = self.coder.lossy
        with stream.current():
            frames = self._encode(lossy)
        ranges = [(begin, end)] * self.lane.size
        received = self._exchange(CONTRIBUTION, frames, ranges, stream)
        terms = self._decode_all(received, ranges, None if lossy else self.source[begin:end])
        return sum_in_rank_order(terms, self.lane.size if self.mean else 1)

    def _keep(self, own: torch.Tensor) -> None:
        """Put the result of this rank's part where it belongs, and those of the others, which it exchanges."""
        if self.lane.size == 2:
            self.target.copy_(own)
            return
        begin, end = self.parts[self.lane.rank]
        frame = self.coder.encode([(begin, own)], RESULT)[0] if end > begin else None
        stream = side_stream_of(self.source.device)
        received = self._exchange(RESULT, [frame] * self.lane.size, self.parts, stream)
        results = self._decode_all(received, self.parts, None if self.coder.lossy else own)
        for (first, last), part in zip(self.parts, results, strict=True):
            self.target[first:last] = part

    def _encode(self, with_self: bool) -> list[EncodedFrame | None]:
        """Return a frame for each rank, of the part that it sums; None where there is nothing to send.

        Args:
            with_self: make a frame for this rank, too.
        """
        filled = [rank for rank, (begin, end) in enumerate(self.parts) if end > begin]
        ranks = [rank for rank in filled if with_self or rank != self.lane.rank]
        alike = self.lane.size == 2 and with_self  # both parts are the same
        made = ranks[:1] if alike else ranks
        parts = [(self.parts[rank][0], self.source[slice(*self.parts[rank])]) for rank in made]
        frames = self.coder.encode(parts, CONTRIBUTION) if parts else []
        by_rank = dict(zip(ranks, frames * 2 if alike else frames, strict=True))
        return [by_rank.get(rank) for rank in range(self.lane.size)]

    def _exchange(
        self, kind: int, frames: Sequence[EncodedFrame | None], ranges: Sequence[Range], stream: SideStream
    ) -> list[EncodedFrame | None]:
        """Exchange sizes and preludes of frames, then the frames.

        Args:
            kind: CONTRIBUTION or RESULT.
            frames: a frame for each rank, this one's included, made on ``stream``.
            ranges: the range of the frame that each rank sends this one.
            stream: frames leave when it has come so far. The current stream waits for those that come.

        Returns:
            The frames of all ranks, by rank; this rank's own is the one in ``frames``.
        """
        rank, counters = self.lane.rank, self.coder.counters
        label, of_frames = self._where, f"{self.label or self._where}, frames"
        sent_range = self.parts if kind == CONTRIBUTION else [self.parts[rank]] * self.lane.size
        messages = {
            peer: SmallMessage(self._header(kind, rank, sent_range[peer]), self._described(frames[peer]))
            for peer in self._others
        }
        expected = {peer: self._header(kind, peer, ranges[peer]) for peer in self._others}
        start = perf_counter()
        payloads = exchange(self.lane, messages, expected, label)
        counters.wait_seconds += perf_counter() - start
        sizes, preludes = [0] * self.lane.size, dict[int, bytes]()
        for peer, payload in payloads.items():
            sizes[peer] = self._size_of(payload, ranges[peer], f"rank {peer} ({label})")
            preludes[peer] = payload[_SIZE_BYTES:]
        nothing = torch.empty(0, dtype=torch.uint8, device=self.source.device)
        outgoing = [nothing if to == rank or frame is None else frame.data for to, frame in enumerate(frames)]
        transport = gpu_transport_of(self.lane, self.source.device)
        with stream.current():
            collect = labeled(of_frames, lambda: transport.swap(outgoing, sizes))
            mark = stream.mark()
        side = side_stream_of(self.source.device)
        if stream is not side:
            side.after(mark, *(frame.data for frame in frames if frame is not None))
        received = labeled(of_frames, collect)
        counters.sent_bytes += sum(map(len, outgoing)) + exchange_bytes(self.lane.size)
        counters.received_bytes += sum(sizes) + exchange_bytes(self.lane.size)
        theirs = {
            peer: EncodedFrame(received[peer], prelude or None) for peer, prelude in preludes.items() if sizes[peer]
        }
        return [frames[rank] if peer == rank else theirs.get(peer) for peer in range(self.lane.size)]

    @property
    def _where(self) -> str:
        return f"{self.label}, all-reduce {self.sequence}" if self.label else f"all-reduce {self.sequence}"

    def _described(self, frame: EncodedFrame | None) -> bytes:
        """Return what a message says of a frame: its size, and its prelude, unless that is too long."""
        if frame is None:
            return bytes(_SIZE_BYTES)
        text = len(frame.data).to_bytes(_SIZE_BYTES, "little") + (frame.prelude or b"")
        return text if len(text) <= max_payload(self.lane.size) else text[:_SIZE_BYTES]

    def _header(self, kind: int, sender: int, of: Range) -> Header:
        return Header(kind, sender, 0, self.sequence, self.agreement, of[1] - of[0], 0)

    def _size_of(self, payload: bytes, of: Range, where: str) -> int:
        """Return the size of the frame that a peer is about to send."""
        size, n_values = int.from_bytes(payload[:_SIZE_BYTES], "little"), of[1] - of[0]
        n_bytes = n_values * self.coder.dtype.itemsize
        # Memory is taken for what a peer says it will send, so it must not be able to say anything.
        if len(payload) < _SIZE_BYTES or size % 8 or size > 2 * n_bytes + (1 << 20) or (size > 0) != (n_bytes > 0):
            raise Corruption(f"{where}: a frame of {size} bytes for {n_values} values")
        return size

    def _decode_all(
        self, frames: Sequence[EncodedFrame | None], ranges: Sequence[Range], local: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """Return the values of every rank's frame, by rank: those that they will have, if all is right.

        Args:
            frames: each rank's frame.
            ranges: the range of each.
            local: the values of this rank's frame, where they are known: it is not decoded then.

        Raises:
            GcodecError: what decoding raises, with the rank.
        """
        ranks = [r for r, (begin, end) in enumerate(ranges) if end > begin and (local is None or r != self.lane.rank)]
        by_rank = [self.source[:0]] * len(ranges)
        if local is not None:
            by_rank[self.lane.rank] = local
        if ranks:
            due = [frame for r in ranks if (frame := frames[r]) is not None]
            sizes = [ranges[r][1] - ranges[r][0] for r in ranks]
            try:
                started = self.coder.decode(due, sizes)
            except GcodecError:
                # All preludes are read at once, which does not say whose is damaged: read one at a time.
                for r, frame, size in zip(ranks, due, sizes, strict=True):
                    try:
                        self.coder.decode([frame], [size])
                    except GcodecError as error:
                        raise self._of_rank(r, error) from error
                raise
            self._unchecked.append((ranks, started))
            for r, values in zip(ranks, started.values, strict=True):
                by_rank[r] = values
        return by_rank

    def _of_rank(self, rank: int, error: GcodecError) -> GcodecError:
        """Return an error about the frame that a rank has sent, which names the rank."""
        kind = Corruption if isinstance(error, LimitExceeded) else type(error)
        return kind(f"rank {rank} ({self._where}): {error}")


class GpuScatter(GpuReduction):
    """Runs one reduce-scatter on a CUDA device: the first half of the all-reduce. The result is not rounded.

    Arguments are those of :class:`GpuReduction`, but that the number of values is a multiple of the ranks, and
    ``result`` takes this rank's part only. The parts are equal and lie one after another, by rank.
    """

    kind_terms = ("device", "scatter")

    def _parts_of(self, n_values: int) -> list[Range]:
        return [(part.start, part.stop) for part in parts_of(n_values, self.lane.size)]

    def _keep(self, own: torch.Tensor) -> None:
        """Put the result of this rank's part where it belongs."""
        self.target.copy_(own)
