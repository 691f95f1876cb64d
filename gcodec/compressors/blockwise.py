"""Integers in blocks, each with a scale, in a two-shot all-reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from .. import codec
from ..errors import Corruption
from ..options import EncoderOptions
from .bit_packing import pack_bits, packed_size, unpack_bits
from .contract import Compressor, Conversation, Memory, Outcome, Place, check_whole, wide
from .payload import BLOCKS, ENVELOPE, seal, unseal
from .two_shot import PartCodec, average_by_parts

_RUN = 1 << 15  #: about so many values are coded at a time: they stay in cache
_MIN_FRAMED = 512  #: fewer codes or scales are not tried as a frame, whose header alone takes 48 bytes
_CODES_FRAMED, _SCALES_FRAMED = 1, 2  #: flags
_HEAD = 5  #: bytes ahead of the scales: flags, and how many bytes the scales take
_MAX_FITTED = 3  #: bits up to which scales are fitted, as nearly all values of a block would become zero otherwise
_FITS = 3  #: times that integers and scale are fitted to each other; more gains little
_PLAIN = EncoderOptions(prediction=False)


@dataclass(frozen=True)
class Blockwise(Compressor):
    """Sends every value as a small integer, and a scale for each block of values: int8, int4, 3 or 2 bits.

    Contributions go to the owners of parts, and their averages to all, both quantized (``two_shot``); the error of the
    second time counts as the owner's, so that error feedback makes good both. A value v of a block with scale d becomes
    the nearest of -L*d ... -d, 0, d ... L*d with L = 2**(bits - 1) - 1. From 4 bits on, d is the block's max magnitude
    / L, rounded to bfloat16: no value is off by more than d / 2, and the max magnitude becomes L, so that quantizing
    the result again leaves it as it is. With 2 and 3 bits that would leave little but
    zeros of most blocks: there d is that of least squares for the integers, and the integers are the nearest for d, in
    turns, three times from max magnitude / L on. So the error never exceeds the block in norm.

    Integers and scales are entropy-coded by the codec, each where that makes them smaller.

    Where a value of a block is NaN, infinite, or of float64 and beyond float32's range, all values of the block become
    NaN.

    Attributes:
        bits: Bits per integer before they are entropy-coded, 2 ... 8.
        block: Number of values that share a scale.
    """

    knob: ClassVar[str | None] = "bits"
    bits: int = 4
    block: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("bits", self.bits, 2, 8)
        check_whole("block", self.block)

    @property
    def top(self) -> int:
        """The greatest integer, L."""
        return (1 << self.bits - 1) - 1

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        parts = PartCodec(self._encode, self.unpack, self.block)
        average, contribution, _ = yield from average_by_parts(gradient, place, parts)
        return Outcome(average, contribution, self.floats(gradient.shape))

    def _encode(self, flat: torch.Tensor, parts: Sequence[slice]) -> list[bytes]:
        return [self.pack(flat[part]) for part in parts]

    def pack(self, flat: torch.Tensor) -> bytes:
        """Return the payload of a flat tensor: flags, the size of the scales, scales, integers."""
        values = flat.detach().cpu().float().contiguous().numpy()
        integers, scales = self.quantize(values)
        flags, sections = 0, [scales.tobytes(), pack_bits((integers + self.top).astype(np.uint8), self.bits)]
        if len(scales) >= _MIN_FRAMED:
            frame = codec.encode(scales, dtype="bfloat16", options=_PLAIN, threads=1)
            if len(frame) < len(sections[0]):
                flags, sections[0] = flags | _SCALES_FRAMED, bytes(frame)
        if len(integers) >= _MIN_FRAMED:
            frame = codec.encode(self._as_bytes(integers), dtype="float8_e4m3fn", options=_PLAIN, threads=1)
            if len(frame) < len(sections[1]):
                flags, sections[1] = flags | _CODES_FRAMED, bytes(frame)
        head = flags.to_bytes(1, "little") + len(sections[0]).to_bytes(4, "little")
        return seal(BLOCKS, flat.dtype, flat.numel(), head, *sections)

    def unpack(self, payload: bytes, like: torch.Tensor) -> torch.Tensor:
        """Return the payload's values, on the device of ``like`` and in the dtype in which they are added up.

        Raises:
            InsufficientData, Corruption: As :func:`~gcodec.compressors.payload.unseal` does; Corruption also for
                sections of another length, or integers beyond their range.
        """
        body, n = unseal(payload, BLOCKS, like.dtype, like.numel()), like.numel()
        n_scales = -(-n // self.block)
        flags, size = (body[0] if len(body) else 4), int.from_bytes(body[1:_HEAD], "little")
        if flags > (_CODES_FRAMED | _SCALES_FRAMED) or len(body) < _HEAD + size:
            raise Corruption(f"{len(body)} bytes with flags {flags} must hold {size} bytes of scales, and integers")
        scales, integers = _bytes_of(body[_HEAD : _HEAD + size]), body[_HEAD + size :]
        if flags & _SCALES_FRAMED:
            scales = codec.decode(scales, out=np.empty(n_scales, np.uint16), threads=1)
        elif len(scales) != 2 * n_scales:
            raise Corruption(f"{n_scales} scales of blocks must take {2 * n_scales} bytes, not {len(scales)}")
        if flags & _CODES_FRAMED:
            codes = self._from_bytes(codec.decode(integers, out=np.empty(n, np.uint8), threads=1))
        else:
            codes = unpack_bits(integers, n, self.bits).astype(np.int16) - self.top
        if n and max(int(codes.max()), -int(codes.min())) > self.top:
            raise Corruption(f"integers of {self.bits} bits must be from {-self.top} to {self.top}")
        values = self.dequantize(codes, scales.view(np.uint16))
        return torch.from_numpy(values).to(like.device, wide(like.dtype))

    def quantize(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the integers of float32 values, int16[n], and the scales of their blocks: bfloat16's bits, uint16."""
        n, block = len(values), self._block_of(len(values))
        n_blocks = -(-n // block)
        integers, scales = np.empty(n_blocks * block, np.int16), np.empty(n_blocks, np.uint16)
        many = max(_RUN // block, 1)
        for first in range(0, n_blocks, many):
            part = values[first * block : (first + many) * block]
            rows = np.zeros((-(-len(part) // block), block), np.float32)
            rows.reshape(-1)[: len(part)] = part
            here = slice(first, first + len(rows))
            integers.reshape(n_blocks, block)[here], scales[here] = self._quantize(rows)
        return integers[:n], scales

    @np.errstate(all="ignore")  # a block of zeros, or with a value that is not finite
    def _quantize(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return integers and scales of whole blocks, a row each."""
        greatest = np.abs(rows).max(axis=1)
        if self.bits > _MAX_FITTED:
            scales = self._rounded(greatest / np.float32(self.top))
            found = self._nearest(rows, _floats_of(scales))
        else:
            shares = rows / np.where(greatest > 0, greatest, 1)[:, None]  # whose squares neither vanish nor overflow
            fitted = np.full(len(rows), 1 / self.top, np.float32)
            for _ in range(_FITS):
                found = self._nearest(shares, fitted)
                fitted = (shares * found).sum(axis=1) / np.maximum(np.square(found).sum(axis=1), 1)
                fitted = np.where(fitted > 0, fitted, 1)  # of zeros, whose scale is 0 as their magnitude is
            scales = self._rounded(fitted * greatest)
        return np.where(_usable(scales)[:, None], found, 0).astype(np.int16), scales

    def _rounded(self, positive: np.ndarray) -> np.ndarray:
        """Return float32 scales as the nearest bfloat16's bits, but of a finite one none that has the greatest integer
        stand for infinity."""
        bits = positive.view(np.uint32).astype(np.uint64)
        most = (np.finfo(np.float32).max / np.float32(self.top)).view(np.uint32) >> 16
        nearest = np.where(np.isfinite(positive), np.minimum((bits + 0x8000) >> 16, most), 0x7FC0)
        return nearest.astype(np.uint16)

    def _nearest(self, rows: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Return the nearest integers of values over each row's distance, float32."""
        found: np.ndarray = np.clip(np.rint(rows / distance[:, None]), -self.top, self.top)
        return found

    def dequantize(self, integers: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return the float32 values of integers, int16[n], and scales, bfloat16's bits, uint16."""
        n, block = len(integers), self._block_of(len(integers))
        values = np.zeros(len(scales) * block, np.float32)
        values[:n] = integers
        with np.errstate(all="ignore"):  # 0 * infinity is NaN, and says so
            values.reshape(-1, block)[:] *= _floats_of(scales)[:, None]
        return values[:n]

    def _block_of(self, n: int) -> int:
        """Return how many of ``n`` values share a scale: a block that is longer than all is filled up with nothing."""
        return min(self.block, max(n, 1))

    def _as_bytes(self, integers: np.ndarray) -> np.ndarray:
        """Return integers as the bytes that the codec takes for float8_e4m3fn, of which it entropy-codes the upper
        bits: with sign and magnitude where zeros prevail, else counted from the lowest."""
        if self.bits <= _MAX_FITTED:
            return (np.abs(integers) | (integers < 0).astype(np.int16) << 7).astype(np.uint8)
        return (integers + self.top).astype(np.uint8)

    def _from_bytes(self, data: np.ndarray) -> np.ndarray:
        """Undo :meth:`_as_bytes`: int16."""
        wide_bytes = data.astype(np.int16)
        if self.bits <= _MAX_FITTED:
            size = wide_bytes & 127
            return np.where(wide_bytes > 127, -size, size)
        return wide_bytes - self.top

    def floats(self, shape: Sequence[int]) -> float:
        n = math.prod(shape)
        return n * self.bits / 32 + -(-n // self.block) / 2

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        n = math.prod(shape)
        return ENVELOPE + _HEAD + packed_size(n, self.bits) + 2 * -(-n // self.block)


def _floats_of(scales: np.ndarray) -> np.ndarray:
    """Return bfloat16's bits as float32."""
    return (scales.astype(np.uint32) << 16).view(np.float32)


def _usable(scales: np.ndarray) -> np.ndarray:
    """Return whether scales are positive and finite."""
    return (scales > 0) & (scales < 0x7F80)


def _bytes_of(data: memoryview) -> np.ndarray:
    return np.frombuffer(data, np.uint8).copy()
