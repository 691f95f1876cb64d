"""The codec of one rank for a buffer on a CUDA device, and the stream it works on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import torch

from ... import gpu
from ...compressors.contract import sum_by_rank, wide
from ...dtypes import DTYPES, DType
from ...errors import Corruption, GcodecError
from ...stream import is_refresh_due
from ..modes import FixedBits, Mode, NearLossless
from ..stats import Counters
from .gpu_levels import GpuLevelChooser
from .shared_codebooks import Refresh

NAMES = tuple(t.name for t in DTYPES if t.on_gpu)  #: of the types that are coded on devices
TYPES = tuple(getattr(torch, name) for name in NAMES)

_MAX_KINDS = 256  #: of collectives whose codebooks are kept

Part = tuple[int, torch.Tensor]  #: the position of the first value in a buffer, and the values, flat


def devices_of(flat: torch.Tensor) -> list[torch.device]:
    """Return the CUDA devices of a job's value."""
    return [] if flat.is_cpu else [flat.device]


class SideStream:
    """A stream for the codec beside training's; on the host, one that does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Of high priority: its kernels are short and the network waits for them, while those of a backward pass fill
        # the device for milliseconds.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def mark(self) -> Any:
        """Record and return an event behind all work that the current stream has been given so far."""
        return None if self._stream is None else torch.cuda.current_stream(self.device).record_event()

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which this stream is the current one."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def after(self, mark: Any, *tensors: torch.Tensor) -> None:
        """Make this stream wait for an event, if there is one, and tell torch that it uses these tensors."""
        if self._stream is not None:
            if mark is not None:
                self._stream.wait_event(mark)
            for tensor in tensors:
                tensor.record_stream(self._stream)

    def finish(self) -> None:
        """Make the host wait for all work on this stream."""
        if self._stream is not None:
            self._stream.synchronize()


@cache
def side_stream_of(device: torch.device) -> SideStream:
    """Return the side stream of a device, always the same one."""
    return SideStream(device)


@cache
def encoding_stream_of(device: torch.device) -> SideStream:
    """Return the stream on which a device encodes contributions of buffers that share no memory with those before,
    always the same one: it does not wait for what the side stream waits for, which is the frames of the buffer before.
    """
    return SideStream(device)


class _InUse(NamedTuple):
    """A codebook in use.

    Attributes:
        codebook: The codebook.
        age: Steps since it was made.
        bits: Bits per value that frames took then.
    """

    codebook: Any
    age: int
    bits: float | None


class GpuCodebooks:
    """Keeps the codebooks of one buffer's frames, by kind. Every rank has its own, as frames carry them.

    Args:
        refresh: When they are made anew, which takes another pass over the values; its ``trigger`` counts bits per
            value here.
    """

    def __init__(self, refresh: Refresh) -> None:
        self.refresh = refresh
        self._in_use: dict[int, _InUse] = {}

    def current(self, kind: int) -> Any:
        """Return the codebook to use, or None if a new one is to be made; ``kind`` as for :meth:`record`."""
        in_use = self._in_use.get(kind)
        return None if in_use is None else in_use.codebook

    def record(self, kind: int, codebook: Any, bits: float) -> None:
        """Record that frames were made with a codebook.

        Args:
            kind: 0 for frames of this rank's own values, 1 for frames of results.
            bits: Bits per value that the frames took.
        """
        in_use = self._in_use.get(kind)
        fresh = in_use is None or in_use.codebook is not codebook
        usual = bits if fresh or in_use is None or in_use.bits is None else in_use.bits
        age = 0 if fresh or in_use is None else in_use.age + 1
        # Bits per value in place of the excess: their growth is the same while the entropy stays as it is.
        if codebook is None or is_refresh_due(age, bits, self.refresh.interval, self.refresh.trigger, usual):
            self._in_use.pop(kind, None)
        else:
            self._in_use[kind] = _InUse(codebook, age, usual)


class KeptCodebooks:
    """Keeps the codebooks of collectives that repeat, each kind for itself: what tells one kind from others is a key.

    Args:
        refresh: When they are made anew.
    """

    def __init__(self, refresh: Refresh) -> None:
        self.refresh = refresh
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, GpuCodebooks] = {}

    def of(self, key: Hashable) -> GpuCodebooks:
        """Return the codebooks of one kind of collectives. Called on any thread."""
        with self._lock:
            if len(self._kinds) >= _MAX_KINDS and key not in self._kinds:
                self._kinds.pop(next(iter(self._kinds)))
            return self._kinds.setdefault(key, GpuCodebooks(self.refresh))


class EncodedFrame(NamedTuple):
    """A frame on a device.

    Attributes:
        data: The frame, uint8.
        prelude: Its prelude, on the host; None where it is to be read from the frame.
    """

    data: torch.Tensor
    prelude: bytes | None


class FramesInWork(NamedTuple):
    """Frames that a device makes.

    Attributes:
        batch: Has the frames, and knows when they are done.
        record: Is told how many bytes they take.
        counters: Takes times.
    """

    batch: Any
    record: Callable[[int], None]
    counters: Counters

    def frames(self) -> list[EncodedFrame]:
        """Return the frames; waits once for their sizes and preludes, and for nothing that was given to the device
        later."""
        start = perf_counter()
        preludes = list(map(bytes, self.batch.preludes))  # first: the sizes come with them
        frames = [EncodedFrame(*made) for made in zip(self.batch.frames, preludes, strict=True)]
        self.record(sum(len(frame.data) for frame in frames))
        self.counters.encode_seconds += perf_counter() - start
        return frames


class StartedFrames(NamedTuple):
    """Frames that a device decodes.

    Attributes:
        values: The values of each frame, flat, for what comes later on the stream.
        batch: Tells when they were decoded, and whether they could be.
        counters: Takes times.
    """

    values: list[torch.Tensor]
    batch: Any
    counters: Counters

    def ended(self) -> bool:
        """Return True once :meth:`errors` does not wait."""
        return bool(self.batch.ended())

    def errors(self) -> dict[int, GcodecError]:
        """Return what is wrong with frames, by number; waits for their statuses."""
        start = perf_counter()
        errors: dict[int, GcodecError] = self.batch.errors
        self.counters.decode_seconds += perf_counter() - start
        return errors


@dataclass(frozen=True)
class GpuCoder:
    """Encodes and decodes parts of a buffer of one type on a device.

    Attributes:
        dtype: Type of the values.
        mode: How values may be changed.
        level_chooser: Chooses levels, where the mode has any.
        codebooks: The codebooks that are kept, or None to make new ones every time.
        counters: Takes times and bytes.
    """

    dtype: DType
    mode: Mode
    level_chooser: GpuLevelChooser | None
    codebooks: GpuCodebooks | None
    counters: Counters

    @property
    def lossy(self) -> bool:
        """True if decoding may return other values than were encoded."""
        return bool(self.mode.bit_layout(self.dtype).lossy)

    def encode(self, parts: Sequence[Part], kind: int) -> FramesInWork:
        """Start to make a frame of each part. Waits for a histogram where a codebook is made, and else for nothing.

        Args:
            parts: The values, and where they begin in the buffer.
            kind: 0 for this rank's own values, 1 for results.
        """
        start = perf_counter()
        tensors = [values for _, values in parts]
        options: dict[str, Any] = {}
        if isinstance(self.mode, FixedBits):
            options["mantissa_bits"] = min(self.mode.mantissa_bits, self.dtype.mantissa_bits)
        elif isinstance(self.mode, NearLossless):
            assert self.level_chooser is not None
            options = {"levels": self.level_chooser.graded(parts, kind), "ladder": self.mode.ladder_of(self.dtype)}
        book = None if self.codebooks is None else self.codebooks.current(kind)
        if book is None:
            book = gpu.fresh_codebook(tensors, **options)
        batch = gpu.start_batch(tensors, codebook=book, **options)
        batch.begin_preludes()
        n_values = sum(values.numel() for values in tensors)

        def record(n_bytes: int) -> None:
            if self.codebooks is not None and n_values:
                self.codebooks.record(kind, book, 8 * n_bytes / n_values)

        self.counters.encode_seconds += perf_counter() - start
        self.counters.encoded_bytes += n_values * self.dtype.itemsize
        return FramesInWork(batch, record, self.counters)

    def decode(self, frames: Sequence[EncodedFrame], sizes: Sequence[int]) -> StartedFrames:
        """Start to decode frames. Waits for those preludes that are not known.

        Args:
            sizes: The number of values that each must have.

        Raises:
            Corruption: A prelude is damaged, or a frame has other values than are due.
            GcodecError: Whatever else ``gcodec.decode`` raises of preludes.
        """
        start = perf_counter()
        n_bytes = sum(sizes) * self.dtype.itemsize
        batch = gpu.start_decode(
            [frame.data for frame in frames],
            device=frames[0].data.device,
            max_output_bytes=n_bytes,
            preludes=[frame.prelude for frame in frames],
        )
        expected = getattr(torch, self.dtype.name)
        for part, size in zip(batch.tensors, sizes, strict=True):
            if part.dtype != expected or part.numel() != size:
                raise Corruption(f"a frame of {part.numel()} values of {part.dtype} instead of {size} of {expected}")
        self.counters.decode_seconds += perf_counter() - start
        self.counters.decoded_bytes += n_bytes
        return StartedFrames([part.view(-1) for part in batch.tensors], batch, self.counters)


def sum_in_rank_order(terms: Sequence[torch.Tensor], divisor: int) -> torch.Tensor:
    """Return the sum of tensors in this order, divided by ``divisor``.

    Narrow types are added in float32, divided, and rounded once, so that bits are those of :class:`summation.RankSum`.

    Args:
        terms: Each rank's tensor, of one shape and type.
        divisor: 1 for a sum, the number of ranks for a mean.
    """
    total = sum_by_rank(terms, torch.empty_like(terms[0], dtype=wide(terms[0].dtype)))
    if divisor != 1:
        # By a tensor on the device: by a number, torch would multiply with its reciprocal there, and round twice.
        total /= torch.full((), divisor, dtype=total.dtype, device=total.device)
    return total.to(terms[0].dtype)
