"""No compression: the reference that all others are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from .contract import Compressor, Conversation, Memory, Outcome, Place, check_type, mean_of


@dataclass(frozen=True)
class Dense(Compressor):
    """Every value, added up in its own dtype; float16 and bfloat16 are divided by the number of ranks before, as DDP
    does, the others after."""

    carries_nan: ClassVar[bool] = True

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_type(gradient)
        average = yield from mean_of(gradient.clone(), place.size)
        return Outcome(average, gradient, gradient.numel())

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape)
