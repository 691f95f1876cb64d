"""Random-k: some values, no matter which (Stich et al., NeurIPS 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from .contract import (
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    Values,
    check_share,
    check_type,
    kept,
    mean_of,
    random_of,
    tick,
)


@dataclass(frozen=True)
class RandomK(Compressor):
    """Keeps a uniformly random subset, the same on all ranks: so no index is sent, and values are reduced densely.

    ``density``: the share that is kept, at least one value; ``unbiased``: multiply what is kept by n / k, so that its
    expectation is the gradient: without error feedback; with it, leave that. ``seed``: with tensor and step it
    determines the subset.
    """

    knob: ClassVar[str | None] = "density"
    density: float
    unbiased: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_share("density", self.density)

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_type(gradient)
        flat, n = gradient.reshape(-1), gradient.numel()
        k = kept(n, self.density) if n else 0
        indices = random_subset(n, k, random_of("random-k", self.seed, place.name, tick(memory))).to(flat.device)
        own = flat[indices] * (n / k) if self.unbiased and k else flat[indices]
        mean = yield from mean_of(own.clone(), place.size)
        average = torch.zeros_like(flat)
        average[indices] = mean
        return Outcome(average.view(gradient.shape), Values(indices, own), k)

    def floats(self, shape: Sequence[int]) -> float:
        n = math.prod(shape)
        return kept(n, self.density) if n else 0


def random_subset(n: int, k: int, random: torch.Generator) -> torch.Tensor:
    """A uniformly random subset of k of the numbers below n: int64[k], ascending.

    Draws as many numbers as are missing until none is. No step prefers a number, so neither does the result.
    """
    if 2 * k > n:
        return torch.randperm(n, generator=random)[:k].sort().values
    found = torch.empty(0, dtype=torch.int64)
    while found.numel() < k:
        drawn = torch.randint(n, (k - found.numel(),), generator=random)
        found = torch.unique(torch.cat([found, drawn]))
    return found
