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

Nobody waits for frames: the host goes on, to encode the next buffer while the network carries this one. Where the next
buffer's job waits already, on all ranks, as they tell each other, the sums of this one are exchanged with its
contributions. So the host waits once for each buffer, and the network has sums to carry while the next ones are made::

    network     contributions 0 | contributions 1, sums 0 | contributions 2, sums 1 | sums 2
    device                      | sums 0                  | sums 1, results 0       | sums 2, results 1 | results 2

The result has the bits that the same all-reduce of tensors in CPU memory has, but in near-lossless mode where rows are
predicted: frames from the host then keep all bits of their values. Why the two share no code is in
docs/contributing/decisions/12-reductions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import ClassVar

import torch

from ...compressors.contract import parts_of
from ...errors import Corruption, GcodecError, LimitExceeded
from ..transport.jobs import StartedJob
from ..transport.lane import Lane
from ..transport.message import CONTRIBUTION, RESULT, agreement_of
from .gpu_coder import (
    EncodedFrame,
    GpuCoder,
    SideStream,
    StartedFrames,
    devices_of,
    side_stream_of,
    sum_in_rank_order,
)
from .gpu_halves import LATE_END, LATE_SUMS, Frames, Half, Identity, exchange_halves
from .partition import Range

_ALIGN = 1 << 14  #: values of which parts are multiples


class GpuReduction:
    """Runs one all-reduce of flat tensors on a CUDA device. Its methods are called on the lane's thread.

    Args:
        lane: The lane of the group.
        coder: The codec of the buffer.
        values: This rank's values.
        result: Takes the result, in other memory.
        mean: Divide by the number of ranks.
        terms: Further facts that ranks must agree on.
        label: Begins the texts of errors.

    Attributes:
        ends_late: Whether all ranks let it end when it is asked for.
    """

    #: What tells one kind of reduction from another where ranks compare what they are about to do.
    kind_terms: ClassVar[tuple[object, ...]] = ("device", 2)

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
        self.sequence, self.ends_late = -1, False
        self._unchecked: list[tuple[list[int], StartedFrames]] = []  #: what is being decoded, and whose frames
        self._sums: Half | None = None  #: what is left to exchange
        self._failure: BaseException | None = None

    def _parts_of(self, n_values: int) -> list[Range]:
        """Return the range that each rank sums. Two ranks send each other everything, and both add it up."""
        if self.lane.size == 2:
            return [(0, n_values)] * 2
        return [(part.start, part.stop) for part in parts_of(n_values, self.lane.size, _ALIGN)]

    def run(self, stream: SideStream, goes_on: bool = False) -> StartedJob:
        """Start the all-reduce: return when the device goes on by itself. What is returned ends when the result is
        there, and all of it was right.

        Args:
            stream: Where contributions are encoded, once the values are there: the side stream, or one of their own.
            goes_on: Whether it need not end now, as far as this rank is concerned, and may leave its sums to the
                lane's next job, if there is one.

        Raises:
            PeerError: Another rank failed, is silent, or differs in what it does.
            Corruption: A message or a prelude arrived damaged.
            Exception: What encoding raised. It is for the caller to tell the other ranks.
        """
        start, lane = perf_counter(), self.lane
        self.sequence = lane.next_sequence()
        before, lane.postponed = lane.postponed, None
        halves = [self._contributions(stream)] + ([] if before is None else [before])
        offers = 0 if not goes_on else LATE_END + LATE_SUMS * lane.has_next(devices_of(self.source))
        agreed = exchange_halves(lane, halves, self.source.device, offers)
        self.ends_late = bool(agreed & LATE_END)
        if agreed & LATE_SUMS:
            lane.postponed = self._sums
        else:
            self._exchange_sums()
        self.coder.counters.seconds += perf_counter() - start
        return StartedJob(self._finish, None, self._has_ended)

    def _has_ended(self) -> bool:
        try:
            return self.lane.broken or (self._sums is None and all(started.ended() for _, started in self._unchecked))
        except RuntimeError:  # a fault of the device, which waiting for it raises, too
            return True

    def _finish(self) -> None:
        """Exchange what is left, wait for the device, and raise what is wrong with a frame, with the rank that sent it.

        Called on all ranks at the same place of the lane's order if anything is left.
        """
        if self._failure is not None:
            raise self._failure
        start = perf_counter()
        if self._sums is not None:
            self.lane.postponed = None
            self.lane.check_unbroken()
            self._exchange_sums()
        for ranks, started in self._unchecked:
            # On a broken lane the device may wait for the frames of a rank that is gone.
            if self.lane.broken and not started.ended():
                self.lane.check_unbroken()
            for number, error in sorted(started.errors().items()):
                raise self._of_rank(ranks[number], error) from error
        self._unchecked.clear()
        self.coder.counters.seconds += perf_counter() - start

    def _exchange_sums(self) -> None:
        """Exchange the sums, if there are any, with nothing else."""
        if self._sums is not None:
            exchange_halves(self.lane, [self._sums], self.source.device)

    def _contributions(self, stream: SideStream) -> Half:
        """Start to encode contributions on ``stream``, and return the first half."""
        # Lossy: this rank, too, decodes the frame of its own values, to have them as the others do.
        own = [self.parts[self.lane.rank]] * self.lane.size
        with stream.current():
            return self._half(CONTRIBUTION, self._encode(self.coder.lossy), self.parts, own, stream, self._sum_up)

    def _half(
        self,
        kind: int,
        make: Callable[[], Frames],
        sent: Sequence[Range],
        due: Sequence[Range],
        stream: SideStream,
        take: Callable[[Frames], None],
    ) -> Half:
        """Return a half of this reduction, whose frames are made on the current stream; arguments are those of
        :class:`Half`."""
        identity = Identity(self.sequence, self.agreement, self._where, self.label or self._where)
        return Half(
            identity,
            kind,
            make,
            sent,
            due,
            self.coder.dtype.itemsize,
            stream,
            stream.mark(),
            take,
            self._fail,
            self.coder.counters,
        )

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _sum_up(self, frames: Frames) -> None:
        """Sum the contributions to this rank's part. That is the result, or is exchanged as the second half."""
        own = self.parts[self.lane.rank]
        local = None if self.coder.lossy else self.source[slice(*own)]
        terms = self._decode_all(frames, [own] * self.lane.size, local)
        self._keep(sum_in_rank_order(terms, self.lane.size if self.mean else 1))

    def _keep(self, own: torch.Tensor) -> None:
        """Put the result of this rank's part where it belongs, or start to encode it for the others."""
        if self.lane.size == 2:
            self.target.copy_(own)
            return
        begin, end = self.parts[self.lane.rank]
        work = self.coder.encode([(begin, own)], RESULT) if end > begin else None

        def make() -> Frames:
            return [None if work is None else work.frames()[0]] * self.lane.size

        def take(frames: Frames) -> None:
            self._sums = None
            results = self._decode_all(frames, self.parts, None if self.coder.lossy else own)
            for (first, last), part in zip(self.parts, results, strict=True):
                self.target[first:last] = part

        sent = [self.parts[self.lane.rank]] * self.lane.size
        self._sums = self._half(RESULT, make, sent, self.parts, side_stream_of(own.device), take)

    def _encode(self, with_self: bool) -> Callable[[], Frames]:
        """Start to make a frame for each rank, of the part that it sums; return a function that waits for them and
        returns them, None where there is nothing to send.

        Args:
            with_self: Make a frame for this rank, too.
        """
        filled = [rank for rank, (begin, end) in enumerate(self.parts) if end > begin]
        ranks = [rank for rank in filled if with_self or rank != self.lane.rank]
        alike = len({self.parts[rank] for rank in ranks}) < len(ranks)  # all are, of an all-reduce of two ranks
        made = ranks[:1] if alike else ranks
        parts = [(self.parts[rank][0], self.source[slice(*self.parts[rank])]) for rank in made]
        work = self.coder.encode(parts, CONTRIBUTION) if parts else None

        def make() -> Frames:
            frames = [] if work is None else work.frames()
            by_rank = dict(zip(ranks, frames * 2 if alike else frames, strict=True))
            return [by_rank.get(rank) for rank in range(self.lane.size)]

        return make

    @property
    def _where(self) -> str:
        return f"{self.label}, all-reduce {self.sequence}" if self.label else f"all-reduce {self.sequence}"

    def _decode_all(
        self, frames: Sequence[EncodedFrame | None], ranges: Sequence[Range], local: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """Return the values of every rank's frame, by rank: those that they will have, if all is right.

        Args:
            local: The values of this rank's frame, where they are known: it is not decoded then.

        Raises:
            GcodecError: What decoding raises, with the rank.
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

    kind_terms = ("device", 2, "scatter")

    def _parts_of(self, n_values: int) -> list[Range]:
        return [(part.start, part.stop) for part in parts_of(n_values, self.lane.size)]

    def _keep(self, own: torch.Tensor) -> None:
        """Put the result of this rank's part where it belongs."""
        self.target.copy_(own)
