"""GradZip: alternating matrix factorization (Cho et al., NeurIPS 2019 workshop, equation 1 and Figure 2 c), and GradNA,
its comparison without alternation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..errors import InvalidArgument
from .contract import Memory
from .lowrank import Alternating, product

_FLOOR = 1e-12  #: of the mean eigenvalue: what keeps a singular system solvable


@dataclass(frozen=True)
class GradZip(Alternating):
    """With V fixed, U = G V^T (V V^T + lambda I)^-1 is fitted on every rank and reduced; at the next step V, with U
    fixed.

    ``regularization``: lambda; ``relative``: in units of the mean eigenvalue of V V^T, so that the scale of gradients
    does not matter. ``average``: what is fixed is a moving average of the factors, in which the one before weighs this
    much: 0 for the last one alone. The paper leaves open what V starts from: orthonormal rows, random by ``seed``.
    """

    regularization: float = 1e-5
    relative: bool = False
    average: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.regularization < math.inf or not 0 <= self.average < 1:
            raise InvalidArgument(f"regularization={self.regularization} < 0, or average={self.average} not in [0, 1)")

    def fixed(self, factor: torch.Tensor) -> torch.Tensor:
        return factor

    def fit(self, matrix: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
        wide = fixed.double()
        system = wide.T @ wide
        scale = float(system.diagonal().mean())
        ridge = self.regularization * (scale if self.relative else 1.0) + _FLOOR * scale
        system.diagonal().add_(ridge)
        root, _ = torch.linalg.cholesky_ex(system)
        return product(matrix, torch.cholesky_solve(wide.T, root).T.to(matrix.dtype))

    def remember(self, mean: torch.Tensor, side: int, memory: Memory) -> None:
        before = memory.get(self._key(side))
        if self.average and before is not None and before.shape == mean.shape:
            mean = self.average * before + (1 - self.average) * mean
        super().remember(mean, side, memory)


@dataclass(frozen=True)
class GradNA(GradZip):
    """The same without alternation: V stays what it was at the start, and only U is ever fitted."""

    alternate: ClassVar[bool] = False
