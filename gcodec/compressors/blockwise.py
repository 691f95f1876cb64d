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
from ..kernels.quantize.scaled_blocks import Integers
from ..options import EncoderOptions
from .bit_packing import pack_bits, packed_size, unpack_bits
from .block_integers import dequantize_in_blocks, offsets_of, quantize_in_blocks
from .contract import Compressor, Conversation, Memory, Outcome, Place, check_whole, wide
from .payload import BLOCKS, ENVELOPE, seal, unseal
from .two_shot import PartCodec, average_by_parts

_MIN_FRAMED = 512  #: fewer codes or scales are not tried as a frame, whose header alone takes 48 bytes
_CODES_FRAMED, _SCALES_FRAMED = 1, 2  #: flags
_HEAD = 5  #: bytes ahead of the scales: flags, and how many bytes the scales take
_MAX_FITTED = 3  #: bits up to which scales are fitted, as nearly all values of a block would become zero otherwise
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
    turns, three times from max magnitude / L on. So the error never exceeds the block in norm. A d below 2**-126 is
    rounded up to a multiple of bfloat16's least number, 2**-133; integers are then the nearest for what it became.

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
        parts = PartCodec(self._encode, self._decode, self._add, self.block)
        average, contribution, _ = yield from average_by_parts(gradient, place, parts)
        return Outcome(average, contribution, self.floats(gradient.shape))

    def _encode(self, flat: torch.Tensor, parts: Sequence[slice], sent: torch.Tensor | None) -> list[bytes]:
        return [self.pack(flat[part], None if sent is None else sent[part]) for part in parts]

    def pack(self, flat: torch.Tensor, decoded: torch.Tensor | None = None) -> bytes:
        """Return the payload of a flat tensor: flags, the size of the scales, scales, integers.

        Args:
            flat: The tensor, flat.
            decoded: Where the values go that :meth:`unpack` would return, contiguous on the CPU, in the dtype in which
                they are added up.
        """
        values, n = flat.detach().cpu().float().contiguous().numpy(), flat.numel()
        integers = self._integers(n, n >= _MIN_FRAMED)
        codes, scales = quantize_in_blocks(values, integers, None if decoded is None else decoded.numpy())
        flags, sections = 0, [b"", b""]
        if len(scales) >= _MIN_FRAMED:
            frame = codec.encode(scales, dtype="bfloat16", options=_PLAIN, threads=1)
            if len(frame) < scales.nbytes:
                flags, sections[0] = flags | _SCALES_FRAMED, bytes(frame)
        if len(codes) >= _MIN_FRAMED:
            frame = codec.encode(codes, dtype="float8_e4m3fn", options=_PLAIN, threads=1)
            if len(frame) < packed_size(n, self.bits):
                flags, sections[1] = flags | _CODES_FRAMED, bytes(frame)
        if not flags & _SCALES_FRAMED:
            sections[0] = scales.tobytes()
        if not flags & _CODES_FRAMED:
            sections[1] = pack_bits(offsets_of(codes, integers), self.bits)
        head = flags.to_bytes(1, "little") + len(sections[0]).to_bytes(4, "little")
        return seal(BLOCKS, flat.dtype, n, head, *sections)

    def unpack(self, payload: bytes, like: torch.Tensor) -> torch.Tensor:
        """Return the payload's values, on the device of ``like`` and in the dtype in which they are added up.

        Raises:
            InsufficientData, Corruption: As :func:`~gcodec.compressors.payload.unseal` does; Corruption also for
                sections of another length, or integers beyond their range.
        """
        values = torch.empty(like.numel(), dtype=wide(like.dtype), device="cpu")
        self._read(payload, like.dtype, values)
        return values.to(like.device)

    def _decode(self, payload: bytes, out: torch.Tensor) -> None:
        if out.dtype == wide(out.dtype):
            self._read(payload, out.dtype, out)
        else:
            out.copy_(self.unpack(payload, out))

    def _add(self, payload: bytes, total: torch.Tensor, dtype: torch.dtype) -> None:
        self._read(payload, dtype, total, add=True)

    def _read(self, payload: bytes, dtype: torch.dtype, out: torch.Tensor, add: bool = False) -> None:
        """Write or add the values of a payload of this dtype; errors are those of :meth:`unpack`."""
        n = out.numel()
        body, n_scales = unseal(payload, BLOCKS, dtype, n), -(-n // self.block)
        flags, size = (body[0] if len(body) else 4), int.from_bytes(body[1:_HEAD], "little")
        if flags > (_CODES_FRAMED | _SCALES_FRAMED) or len(body) < _HEAD + size:
            raise Corruption(f"{len(body)} bytes with flags {flags} must hold {size} bytes of scales, and integers")
        scales, codes = np.frombuffer(body[_HEAD : _HEAD + size], np.uint8), body[_HEAD + size :]
        if flags & _SCALES_FRAMED:
            scales = codec.decode(scales, out=np.empty(n_scales, np.uint16), threads=1)
        elif len(scales) != 2 * n_scales:
            raise Corruption(f"{n_scales} scales of blocks must take {2 * n_scales} bytes, not {len(scales)}")
        else:
            scales = scales.copy().view(np.uint16)  # which may not be aligned
        if flags & _CODES_FRAMED:
            numbers = codec.decode(codes, out=np.empty(n, np.uint8), threads=1)
        else:
            numbers = unpack_bits(codes, n, self.bits)
        dequantize_in_blocks(numbers, scales, self._integers(n, bool(flags & _CODES_FRAMED)), out.numpy(), add)

    def _integers(self, n: int, framed: bool) -> Integers:
        """Return the integers of ``n`` values, and the form of their codes in a frame or packed. A block that is longer
        than all values ends with them."""
        is_fitted = self.bits <= _MAX_FITTED
        return Integers(min(self.block, max(n, 1)), self.top, is_fitted, is_fitted and framed)

    def floats(self, shape: Sequence[int]) -> float:
        n = math.prod(shape)
        return n * self.bits / 32 + -(-n // self.block) / 2

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        n = math.prod(shape)
        return ENVELOPE + _HEAD + packed_size(n, self.bits) + 2 * -(-n // self.block)
