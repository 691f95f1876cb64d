"""PowerSGD: one step of power iteration (Vogels et al., NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .contract import Conversation, Memory, Outcome, Place, all_reduce_mean, check_whole, tick
from .lowrank import LowRank, norm_of, orthonormal, scaled, thin_product, usable
from .outcome import Product

_KEY = "powersgd.q"


@dataclass(frozen=True)
class PowerSGD(LowRank):
    """Approximates M by P Q^T: P = M Q, all-reduced and orthogonalized, then Q = M^T P, all-reduced.

    Attributes:
        warm_start: Start from the last step's Q, however often the rank changes; otherwise from random columns, other
            ones in each step: what was not sent lies across those of its own step, which would never find it.
        iterations: Iterations of both halves per step, each of which sends both factors.
    """

    warm_start: bool = True
    iterations: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("iterations", self.iterations)

    def factorize(self, matrix: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        m, n = matrix.shape
        rank = min(self.rank, m, n)
        key = _KEY if self.warm_start else f"{_KEY}.{tick(memory)}"
        q = self.start(key, n, rank, matrix, memory, place)
        for iteration in range(self.iterations):
            q = scaled(q, norm_of(q)) if iteration else q
            mean = yield from all_reduce_mean(thin_product(matrix, q), place.size)
            p = orthonormal(mean)
            q_term = thin_product(matrix.T, p)
            q = yield from all_reduce_mean(q_term, place.size, preserve=True)
        norm = norm_of(q)
        if self.warm_start and usable(norm):
            memory[_KEY] = scaled(q, norm)
        floats = self.iterations * rank * (m + n)
        return Outcome(Product(p, q), Product(p, q_term), floats, bound=2 * norm)  # norms of p's rows are at most 1

    def floats(self, shape: Sequence[int]) -> float:
        return super().floats(shape) * (self.iterations if self.factored(shape) else 1)
