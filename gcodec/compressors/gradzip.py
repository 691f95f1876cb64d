"""GradZip: alternating matrix factorization, and GradNA, its comparison without alternation.

Cho et al., NeurIPS 2019 workshop, equation 1 and Figure 2 c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..errors import InvalidArgument
from ..kernels.core.jit import allocating
from .contract import Memory
from .lowrank import Alternating, thin_product

_FLOOR = 1e-12  #: added to the diagonal, in units of the mean eigenvalue, so that singular systems can be solved
_MAX_KERNEL_PRODUCTS = 1 << 14  #: up to so many multiplications the kernel takes less time than a dozen calls of torch


@dataclass(frozen=True)
class GradZip(Alternating):
    """Fits U = G V^T (V V^T + lambda I)^-1 to a fixed V on every rank and reduces it; at the next step V, with U fixed.

    The paper leaves open what V starts from; here it starts from random orthonormal rows.

    Attributes:
        regularization: The paper's lambda, at least 0.
        relative: Take lambda in units of the mean eigenvalue of V V^T, so that the scale of gradients does not matter.
        average: Weight of the earlier ones in a moving average of factors, in [0, 1), which is what is fixed; 0 for the
            last factor alone.
    """

    memory_prefix: ClassVar[str] = "gradzip"
    regularization: float = 1e-5
    relative: bool = False
    average: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.regularization < math.inf:
            raise InvalidArgument(f"regularization must be finite and at least 0, not {self.regularization}")
        if not 0 <= self.average < 1:
            raise InvalidArgument(f"average must be at least 0 and below 1, not {self.average}")

    def fixed(self, factor: torch.Tensor) -> torch.Tensor:
        return factor

    def fit(self, matrix: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
        return thin_product(matrix, self._solved(fixed))

    def _solved(self, fixed: torch.Tensor) -> torch.Tensor:
        """Return V^T (V V^T + lambda I)^-1, of shape [n, rank], from V^T."""
        n, rank = fixed.shape
        if fixed.is_cpu and fixed.is_contiguous() and n * rank * rank <= _MAX_KERNEL_PRODUCTS:
            solved = torch.empty_like(fixed)
            _solve(fixed.numpy(), self.regularization, self.relative, solved.numpy())
            return solved
        wide = fixed.double()
        system = wide.T @ wide
        diagonal = system.diagonal()
        scale = float(diagonal.sum()) / rank
        diagonal += self.regularization * (scale if self.relative else 1.0) + _FLOOR * scale
        root, _ = torch.linalg.cholesky_ex(system)
        return (wide @ torch.cholesky_inverse(root)).to(fixed.dtype)

    def remember(self, mean: torch.Tensor, side: int, memory: Memory) -> None:
        before = memory.get(self._key(side))
        if self.average and before is not None and before.shape == mean.shape:
            mean = self.average * before + (1 - self.average) * mean
        super().remember(mean, side, memory)


@dataclass(frozen=True)
class GradNA(GradZip):
    """GradZip without alternation: V stays as it was at the start, and only U is ever fitted."""

    memory_prefix: ClassVar[str] = "gradna"
    alternate: ClassVar[bool] = False


@allocating
def _solve(fixed: Any, regularization: Any, relative: Any, solved: Any) -> None:
    """Do what ``GradZip._solved`` does for a small matrix, in double precision.

    It finds the Cholesky factor, then solves for both triangles row by row.
    """
    n, rank = fixed.shape
    root, row = np.zeros((rank, rank)), np.empty(rank)
    for i in range(n):
        for a in range(rank):
            row[a] = fixed[i, a]
        for a in range(rank):
            for b in range(a + 1):
                root[a, b] += row[a] * row[b]
    scale = np.trace(root) / rank
    ridge = regularization * (scale if relative else 1.0) + _FLOOR * scale
    for a in range(rank):
        root[a, a] += ridge
        for b in range(a + 1):
            total = root[a, b]
            for c in range(b):
                total -= root[a, c] * root[b, c]
            root[a, b] = np.sqrt(total) if a == b else total / root[b, b]
    for i in range(n):
        for a in range(rank):
            total = np.float64(fixed[i, a])
            for c in range(a):
                total -= root[a, c] * row[c]
            row[a] = total / root[a, a]
        for a in range(rank - 1, -1, -1):
            total = row[a]
            for c in range(a + 1, rank):
                total -= root[c, a] * row[c]
            row[a] = total / root[a, a]
            solved[i, a] = row[a]
