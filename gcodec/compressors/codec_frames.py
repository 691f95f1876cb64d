"""The codec as a compressor: frames to the owners of parts, sums in frames to all (GComp, Figure 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from .. import codec
from ..errors import InvalidArgument
from ..format.ladders import FINE_LADDER
from ..options import EncoderOptions
from ..truncation.optimizers import levels_for
from .contract import Compressor, Conversation, Memory, Outcome, Place, check_whole
from .two_shot import PartCodec, average_by_parts

#: Leaves out the search for ways to keep all bits, which takes a third of the time and finds none among gradients.
_ROUNDED = EncoderOptions(exact_if_smaller=False, prediction=False, wide_heads=False)


@dataclass(frozen=True)
class Frames(Compressor):
    """Sends frames: lossless ones, unless ``bits`` or ``optimizer`` is given.

    A value is encoded twice, as a contribution and as a part of the average; the error of the second rounding counts as
    its owner's, so that error feedback telescopes all the same. For training by DDP,
    ``gcodec.distributed.CompressedAllreduce`` does the same faster: it overlaps codec and network, and shares
    codebooks.

    Attributes:
        bits: Mantissa bits to keep of every value; None for all.
        optimizer: The live torch optimizer that will take the step, for near-lossless encoding by its rule; tensors
            must come with their parameter then.
    """

    knob: ClassVar[str | None] = "bits"
    carries_nan: ClassVar[bool] = True
    bits: int | None = None
    optimizer: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is not None:
            check_whole("bits", self.bits)
            if self.optimizer is not None:
                raise InvalidArgument("bits and optimizer cannot both be given")

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        def encode(flat: torch.Tensor, parts: Sequence[slice], sent: torch.Tensor | None) -> list[bytes]:
            levels = self._levels(flat, gradient, place)
            frames = [self._encode(flat[part], levels, part) for part in parts]
            if sent is not None:
                for frame, part in zip(frames, parts, strict=True):
                    sent[part] = codec.decode(frame, out=torch.empty_like(flat[part]), threads=1)
            return frames

        keeps_all = self.bits is None and self.optimizer is None
        average, contribution, sent_bytes = yield from average_by_parts(
            gradient, place, PartCodec(encode, _decode, _add, keeps_all=keeps_all)
        )
        return Outcome(average, contribution, sent_bytes / 4)

    def _levels(self, flat: torch.Tensor, gradient: torch.Tensor, place: Place) -> np.ndarray | None:
        if self.optimizer is None:
            return None
        if place.param is None:
            raise InvalidArgument(f"place.param must be the parameter whose gradient {place.name!r} is, not None")
        levels = levels_for(self.optimizer, place.param, flat.view(gradient.shape))
        return np.asarray(levels).reshape(-1)

    def _encode(self, values: torch.Tensor, levels: np.ndarray | None, part: slice) -> bytes:
        if levels is not None:
            frame = codec.encode(values, levels=levels[part], ladder=FINE_LADDER[_name(values)], threads=1)
        else:
            max_bits = round(-math.log2(torch.finfo(values.dtype).eps))
            is_rounded = self.bits is not None and self.bits < max_bits
            frame = codec.encode(
                values,
                mantissa_bits=self.bits if is_rounded else None,
                options=_ROUNDED if is_rounded else None,
                threads=1,
            )
        return bytes(frame)

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape) * (32 if self.bits is None else min(self.bits + 9, 32)) / 32

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        bits = 8 * dtype.itemsize
        return math.prod(shape) * (bits if self.bits is None else min(self.bits + 9, bits)) / 8


def _name(values: torch.Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _decode(frame: bytes, out: torch.Tensor) -> None:
    codec.decode(frame, out=out, threads=1)


def _add(frame: bytes, total: torch.Tensor, dtype: torch.dtype) -> None:
    total += codec.decode(frame, out=torch.empty_like(total, dtype=dtype), threads=1)
