"""Deep Gradient Compression's choice of values (Lin et al., ICLR 2018): a threshold from a sample.

The rest of its recipe composes with any compressor: ``gcodec.averaging.feedback`` has momentum correction, momentum
factor masking, local clipping and the warm-up of densities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import InvalidArgument
from .contract import Memory, Place, check_share, check_whole, n_kept, random_of, tick
from .selection import above, largest, sampled_threshold, strided_sample
from .sparse import Sparsifier


@dataclass(frozen=True)
class DGC(Sparsifier):
    """Top-k by a threshold from a strided sample, adjusted until about k values exceed it; never more than k are sent.

    Defaults are those of the authors' code.

    Attributes:
        sample: Share of values in the sample; more where fewer than ``least`` of it would be above the threshold.
        lower: A threshold that fewer than ``lower`` * k values exceed is multiplied by this.
        upper: More than ``upper`` * k values above the threshold are too many.
        rounds: The threshold is adjusted at most so many times.
        reselect: Of too many values, choose the k largest; otherwise multiply the threshold by ``upper``.
        least: Values of the sample that are to be above the threshold, at least.
        seed: Seed of where samples begin.
    """

    sample: float = 0.01
    lower: float = 0.8
    upper: float = 1.3
    rounds: int = 10
    reselect: bool = True
    least: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("sample", self.sample)
        check_share("lower", self.lower)
        if not 1 <= self.upper < math.inf:
            raise InvalidArgument(f"upper must be at least 1 and finite, not {self.upper!r}")
        check_whole("rounds", self.rounds, 0)
        check_whole("least", self.least)

    def select(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        k = n_kept(flat.numel(), self.density)
        random = random_of("dgc", self.seed, place.name, place.rank, tick(memory))
        sample = strided_sample(flat, self.sample, round(self.least / self.density), random)
        indices = self._about(flat, k, sampled_threshold(sample, self.density))
        if not indices.numel():  # raised beyond the greatest: without reselect, and many equal values
            return largest(flat, k)
        return indices if indices.numel() <= k else indices[largest(flat[indices], k)]

    def _about(self, flat: torch.Tensor, k: int, threshold: float) -> torch.Tensor:
        """Return where values reach a threshold, adjusted until about k do; one pass if it need not be adjusted."""
        for _ in range(self.rounds):
            indices = above(flat, threshold, int(self.upper * k))
            if indices.numel() < self.lower * k:
                threshold *= self.lower
            elif indices.numel() > self.upper * k and not self.reselect:
                threshold *= self.upper
            else:
                return indices
        return above(flat, threshold, int(self.upper * k))
