"""Compressors that send all values, as they are (:class:`Dense`) or as narrower floats (:class:`Cast`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..dtypes import DTYPES
from ..errors import check_choice
from .contract import AllReduce, Compressor, Conversation, Memory, Outcome, Place, all_reduce_mean, check_gradient
from .outcome import Narrow, Rounded

NARROW_DTYPES = {t.name: getattr(torch, t.name) for t in DTYPES if t.sums_in_float32}


@dataclass(frozen=True)
class Dense(Compressor):
    """Sends every value and adds up in its dtype.

    As in DDP, float16 and bfloat16 are divided by the number of ranks before they are added up; the others after.
    """

    carries_nan: ClassVar[bool] = True

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        average = yield from all_reduce_mean(gradient.clone(), place.size)
        return Outcome(average, gradient, gradient.numel())

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape)


@dataclass(frozen=True)
class Cast(Compressor):
    """Divides values by the number of ranks, rounds them to a narrow type, and adds up in it.

    The sum is rounded too, once, and no error feedback sees that. Values beyond the narrow type's range become
    infinite.

    Attributes:
        dtype: The narrow type, "float16" or "bfloat16".
    """

    carries_nan: ClassVar[bool] = True
    dtype: str = "float16"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("dtype", self.dtype, NARROW_DTYPES)

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        sent = Rounded(gradient, NARROW_DTYPES[self.dtype], place.size).cached()
        total = yield AllReduce(sent.narrow(), preserve=sent.known is not None)
        return Outcome(Narrow(total), sent, self.floats(gradient.shape), gradient.shape, gradient.dtype)

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape) / 2

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        return 2 * math.prod(shape)
