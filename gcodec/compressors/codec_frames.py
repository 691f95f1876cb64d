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
from .contract import (
    AllGather,
    AllToAll,
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    check_gradient,
    check_whole,
    parts_of,
    wide,
)
from .payload import errors_of_rank

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
        check_gradient(gradient)
        flat = gradient.detach().cpu().reshape(-1)
        parts = parts_of(flat.numel(), place.size)
        levels = self._levels(flat, gradient, place)
        sent = [self._encode(flat[part], levels, part) for part in parts]
        contribution = flat
        if self.bits is not None or self.optimizer is not None:
            contribution = torch.cat([_decode(frame, flat[part]) for frame, part in zip(sent, parts, strict=True)])
        received = yield AllToAll(sent)
        owned = parts[place.rank]
        total = torch.zeros_like(flat[owned], dtype=wide(flat.dtype))
        for rank, frame in enumerate(received):
            with errors_of_rank(rank):
                total += _decode(frame, flat[owned])
        mean = torch.zeros_like(flat)
        mean[owned] = exact = total / place.size
        results = yield AllGather(self._encode(mean[owned], self._levels(mean, gradient, place), owned))
        for rank, (frame, part) in enumerate(zip(results, parts, strict=True)):
            with errors_of_rank(rank):
                mean[part] = _decode(frame, flat[part])
        if contribution is not flat:  # the owner's residual makes good what the second rounding took from all ranks
            contribution = contribution.to(total.dtype)  # of all ranks: more than the gradient's type may have room for
            contribution[owned] += (mean[owned] - exact) * place.size
        average, contribution = (x.view(gradient.shape).to(gradient.device) for x in (mean, contribution))
        return Outcome(average, contribution, sum(map(len, sent)) / 4)

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


def _decode(frame: bytes, like: torch.Tensor) -> torch.Tensor:
    return codec.decode(frame, out=torch.empty_like(like), threads=1)
