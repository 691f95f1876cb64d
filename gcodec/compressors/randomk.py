"""Random-k keeps a random subset of values (Stich et al., NeurIPS 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import InvalidArgument
from ..kernels.core.jit import kernel
from .contract import (
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    all_reduce_mean,
    check_gradient,
    check_share,
    key_of,
    n_kept,
    tick,
)
from .draws import below, draw64
from .outcome import SparseValues

#: A de Bruijn sequence: its product with 2**i has other six highest bits for each i ...
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACES = np.zeros(64, np.int64)  #: ... and this is i for each of them
_PLACES[[(int(_DE_BRUIJN) << place) % (1 << 64) >> 58 for place in range(64)]] = np.arange(64)


@dataclass(frozen=True)
class RandomK(Compressor):
    """Keeps a uniformly random subset, the same on all ranks: so no index is sent, and values are reduced densely.

    Attributes:
        density: Share of values that is kept, in (0, 1], at least one value.
        unbiased: Multiply kept values by n / k, so that their expectation is the gradient. That is for use without
            error feedback.
        seed: Seed that determines the subset, together with tensor and step.
    """

    knob: ClassVar[str | None] = "density"
    density: float
    unbiased: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("density", self.density)

    def check_feedback(self) -> None:
        if self.unbiased and self.density < 1:
            raise InvalidArgument(
                f"feedback must be None, as in CompressionPlan(..., feedback=None), for {self!r}: multiplied by n / k, "
                "values that are sent leave residuals of -(n / k - 1) times their size, which grow without bound"
            )

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        flat, n = gradient.reshape(-1), gradient.numel()
        k = n_kept(n, self.density) if n else 0
        indices = random_subset(n, k, key_of("random-k", self.seed, place.name, tick(memory))).to(flat.device)
        values = flat[indices] * (n / k) if self.unbiased and k else flat[indices]
        mean = yield from all_reduce_mean(values.clone(), place.size)
        average = torch.zeros_like(flat)
        average[indices] = mean
        return Outcome(average.view(gradient.shape), SparseValues(indices, values), k)

    def floats(self, shape: Sequence[int]) -> float:
        n = math.prod(shape)
        return n_kept(n, self.density) if n else 0


def random_subset(n: int, k: int, key: int) -> torch.Tensor:
    """Return a uniformly random subset of the numbers below ``n``.

    Numbers are drawn into a bitmap until there are k different ones, or n - k to leave out where those are fewer. That
    takes time in proportion to k and to n / 64 words. No step prefers a number, so neither does the result.

    Args:
        n: Number of values, below 2**32.
        k: Size of the subset.
        key: 64 bits that determine it.

    Returns:
        int64[k], ascending.

    Raises:
        InvalidArgument: ``n`` is too large.
    """
    if n >= 1 << 32:
        raise InvalidArgument(f"a tensor must have at most {(1 << 32) - 1} values for random-k, not {n}")
    bitmap, indices = np.zeros(-(-n // 64), np.uint64), np.empty(k, np.int64)
    inverse = 2 * k > n
    _mark(bitmap, n, n - k if inverse else k, np.uint64(key))
    _list(bitmap, n, inverse, indices)
    return torch.from_numpy(indices)


@kernel
def _mark(bitmap: Any, n: Any, k: Any, key: Any) -> None:
    """Mark k different numbers below n, in a bitmap that is zero."""
    place = np.uint64(0)
    while k > 0:
        number = np.int64(below(draw64(place, key), np.uint64(n)))
        place += np.uint64(1)
        bit = np.uint64(1) << np.uint64(number & 63)
        if not bitmap[number >> 6] & bit:
            bitmap[number >> 6] |= bit
            k -= 1


@kernel
def _list(bitmap: Any, n: Any, inverse: Any, indices: Any) -> None:
    """List the numbers that are marked, or those that are not."""
    at = 0
    for word in range(len(bitmap)):
        marks = ~bitmap[word] if inverse else bitmap[word]
        if word == len(bitmap) - 1 and n & 63:
            marks &= (np.uint64(1) << np.uint64(n & 63)) - np.uint64(1)
        while marks:
            lowest = marks & (~marks + np.uint64(1))
            indices[at] = 64 * word + _PLACES[np.uint64(lowest * _DE_BRUIJN) >> np.uint64(58)]
            at += 1
            marks ^= lowest
