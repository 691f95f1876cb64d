"""ACP-SGD: PowerSGD that reduces one factor per step (Zhang et al., arXiv 2306.08881)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from .lowrank import Alternating, orthonormal, thin_product


@dataclass(frozen=True)
class ACPSGD(Alternating):
    """Reduces one factor of PowerSGD per step: P = M Q at one step, Q = M^T P at the next.

    The factor that all ranks know from the step before is orthogonalized first. Arguments are those of
    :class:`Alternating`.
    """

    memory_prefix: ClassVar[str] = "acpsgd"

    def fixed(self, factor: torch.Tensor) -> torch.Tensor:
        return orthonormal(factor)

    def fit(self, matrix: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
        return thin_product(matrix, fixed)
