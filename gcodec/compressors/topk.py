"""Top-k: the values of greatest size (Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .contract import Memory, Place, check_share, n_kept, random_of, tick
from .selection import above, largest, sampled_threshold, strided_sample
from .sparse import Sparsifier


@dataclass(frozen=True)
class TopK(Sparsifier):
    """Keeps the ``density`` of greatest size: exactly that many (``sample=None``), or those above a threshold that a
    sample of this share of the values suggests: many times faster, and as many only about.

    ``least``: the sample has at least as many values as leave this many above the threshold, so that their number
    scatters by about 1 / sqrt(least). ``seed`` of where samples begin. No more than ``most`` times as many are sent as
    the density asks for.
    """

    sample: float | None = None
    least: int = 100
    most: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample is not None:
            check_share("sample", self.sample)

    def select(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        k = n_kept(flat.numel(), self.density)
        if self.sample is None:
            return largest(flat, k)
        random = random_of("topk", self.seed, place.name, place.rank, tick(memory))
        sample = strided_sample(flat, self.sample, round(self.least / self.density), random)
        limit = max(int(self.most * k), 1)
        indices = above(flat, sampled_threshold(sample, self.density), limit)
        return indices if indices.numel() <= limit else indices[largest(flat[indices], limit)]
