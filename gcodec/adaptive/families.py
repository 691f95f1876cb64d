"""The settings of a family of compressors that are worth considering for a tensor, and what each of them loses.

A family is given by its reference setting. Errors are squared L2 norms, of a setting on its own: without error feedback
or warm start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..compressors import QSGD, Compressor, Frames, RandomK
from ..compressors.contract import check_whole, n_kept, random_of, wide
from ..compressors.lowrank import LowRank, matrix_shape, orthonormal
from ..compressors.sparse import Sparsifier
from ..errors import InvalidArgument
from .losses import cut, flat_values, left_out, loss, quantized, square, whole_values
from .thresholds import HardThreshold

METHODS = ("auto", "svd", "power")
_SVD_PASSES = 8  #: multiplications that singular values take, in units of m * n * min(m, n): about


@dataclass(frozen=True)
class Range:
    """Values of a knob, from the reference's D (section 5.1 of the paper): whole ones from D / ``below`` to D *
    ``above`` in steps of 1; densities from D / ``share`` to D * ``share`` in steps of D / ``share``. ``least`` and
    ``most``, if given, take the place of either end.
    """

    below: float = 2.0
    above: float = 2.0
    share: int = 10
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        check_whole("share", self.share)
        if not (self.below >= 1 and self.above >= 1):
            raise InvalidArgument(f"below={self.below}, above={self.above}: the reference is not in between")

    def settings(self, reference: Compressor, shape: Sequence[int]) -> list[Compressor]:
        """The settings for a tensor, in order of their knob; the reference is one of them."""
        middle = reference.value
        if reference.knob == "density":
            least, most = self._ends(middle / self.share, middle * self.share)
            unit = middle / self.share
            values = [n * unit for n in range(1, self.share**2 + 1) if n != self.share]
            values = [middle, *(value for value in values if least * 0.999999 <= value <= min(most * 1.000001, 1))]
        else:
            least, most = self._ends(math.ceil(middle / self.below), middle * self.above)
            whole = whole_values(reference, shape, math.ceil(least), int(most))
            values = [int(middle), *(value for value in whole if value <= most and value != middle)]
        return [reference if value == middle else reference.at(value) for value in sorted(values)]

    def _ends(self, least: float, most: float) -> tuple[float, float]:
        return least if self.least is None else self.least, most if self.most is None else self.most


def errors_of(
    settings: Sequence[Compressor], tensor: torch.Tensor, method: str = "auto", steps: int = 5
) -> np.ndarray:
    """The squared L2 norm of what each setting loses of a tensor: float64, in the order of settings.

    Sparsifiers of a density count as exact top-k; random choices and draws as they are expected. Low-rank
    approximations count as the best there is, by singular values ("svd"), or what ``steps`` steps of power iteration
    find ("power"); "auto" takes what is cheaper.
    """
    if method not in METHODS:
        raise InvalidArgument(f"method={method!r}; one of {METHODS}")
    tensor = tensor.detach().to(wide(tensor.dtype))
    found = np.empty(len(settings))
    groups: dict[str, list[int]] = {}
    for number, setting in enumerate(settings):
        groups.setdefault(_group(setting, tensor), []).append(number)
    for group, numbers in groups.items():
        alike: list[Any] = [settings[number] for number in numbers]
        if group == "sparse":
            n = tensor.numel()
            found[numbers] = left_out(flat_values(tensor), [n_kept(n, setting.value) for setting in alike])
        elif group == "ranks":
            found[numbers] = _ranks_left_out(alike, tensor, method, steps)
        elif group.startswith("QSGD"):
            found[numbers] = quantized(flat_values(tensor), alike)
        elif group == "bits":
            found[numbers] = cut(flat_values(tensor), [setting.bits for setting in alike])
        else:
            found[numbers] = [_single(setting, tensor) for setting in alike]
    return found


def _group(setting: Compressor, tensor: torch.Tensor) -> str:
    """Return a key that settings share if one pass over the tensor is enough for their errors."""
    if isinstance(setting, HardThreshold):
        return "other"
    if isinstance(setting, Sparsifier) and not getattr(setting, "same_sign", False):
        return "sparse"
    if isinstance(setting, LowRank) and setting.factored(tensor.shape):
        return "ranks"
    if isinstance(setting, QSGD):
        return f"QSGD {setting.bucket} {setting.norm} {setting.stochastic}"
    if isinstance(setting, Frames) and setting.bits is not None and tensor.dtype == torch.float32:
        return "bits"
    return "other"


def _single(setting: Compressor, tensor: torch.Tensor) -> float:
    if isinstance(setting, LowRank):  # sent dense
        return 0.0
    if isinstance(setting, RandomK):
        n = max(tensor.numel(), 1)
        share = n_kept(n, setting.density) / n
        return square(tensor) * ((1 / share - 1) if setting.unbiased else (1 - share))
    return loss(setting, tensor)


def _ranks_left_out(settings: Sequence[Compressor], tensor: torch.Tensor, method: str, steps: int) -> np.ndarray:
    """By singular values, all of them or those of the subspace that power iteration with the greatest rank has found:
    its best approximations of lower rank come with it."""
    matrix = tensor.reshape(matrix_shape(tensor.shape))
    if not bool(torch.isfinite(matrix).all()):
        return np.full(len(settings), math.nan)
    least = min(matrix.shape)
    ranks = [min(int(setting.value), least) for setting in settings]
    if method == "svd" or (method == "auto" and _SVD_PASSES * least <= 4 * steps * max(ranks)):
        values = torch.linalg.svdvals(matrix)
    else:
        q = torch.randn(matrix.shape[1], max(ranks), generator=random_of("errors", *matrix.shape)).to(matrix)
        for _ in range(steps):
            p = orthonormal(matrix @ q)
            q = matrix.T @ p
        values = torch.linalg.svdvals(q)
    kept_squares = torch.cat([torch.zeros(1, dtype=torch.float64), values.double().square().cumsum(0).cpu()])
    return np.maximum(square(matrix) - kept_squares[ranks].numpy(), 0.0)
