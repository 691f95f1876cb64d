"""No compression: the reference that all others are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from .contract import Compressor, Conversation, Memory, Outcome, Place, all_reduce_mean, check_gradient


@dataclass(frozen=True)
class Dense(Compressor):
    """Every value, added up in its own dtype; float16 and bfloat16 are divided by the number of ranks before, as DDP
    does, the others after."""

    carries_nan: ClassVar[bool] = True

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        average = yield from all_reduce_mean(gradient.clone(), place.size)
        return Outcome(average, gradient, gradient.numel())

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape)
