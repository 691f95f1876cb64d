"""Top-k keeps the values of max magnitude (Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import InvalidArgument
from .contract import Memory, Place, check_share, check_whole, n_kept, random_of, tick
from .selection import above, largest, sampled_threshold, strided_sample
from .sparse import Sparsifier


@dataclass(frozen=True)
class TopK(Sparsifier):
    """Keeps the values of the largest magnitudes.

    Attributes:
        sample: None to keep exactly as many values as the density asks for. Otherwise the share of values, in (0, 1],
            in a sample that gives a threshold: many times faster, but the number of values is met only approximately.
        least: The sample is at least so large that this many of it are above the threshold; so the number of values
            scatters by about 1 / sqrt(least).
        most: At most so many times as many values are sent as the density asks for.
        seed: Seed of where samples begin.
    """

    sample: float | None = None
    least: int = 100
    most: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample is not None:
            check_share("sample", self.sample)
        check_whole("least", self.least)
        if not 1 <= self.most < math.inf:
            raise InvalidArgument(f"most must be at least 1 and finite, not {self.most!r}")

    def select(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        k = n_kept(flat.numel(), self.density)
        if self.sample is None:
            return largest(flat, k)
        random = random_of("topk", self.seed, place.name, place.rank, tick(memory))
        sample = strided_sample(flat, self.sample, round(self.least / self.density), random)
        limit = max(int(self.most * k), 1)
        indices = above(flat, sampled_threshold(sample, self.density), limit)
        return indices if indices.numel() <= limit else indices[largest(flat[indices], limit)]
