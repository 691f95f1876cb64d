"""List the settings of a family of compressors that are worth considering for a tensor, and compute their errors.

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

from ..averaging.feedback import WarmUp
from ..compressors import QSGD, Compressor, Frames, RandomK
from ..compressors.contract import check_whole, n_kept, random_of, wide
from ..compressors.lowrank import LowRank, matrix_shape, norm_of, orthonormal, scaled
from ..compressors.sparse import Sparsifier
from ..errors import InvalidArgument, check_choice, check_field_types
from .losses import cut, flat_values, left_out, loss, quantized, square, whole_values
from .thresholds import HardThreshold

METHODS = ("auto", "svd", "power")
_SVD_PASSES = 8  #: multiplications that singular values take, about, in units of m * n * min(m, n)


@dataclass(frozen=True)
class Range:
    """A range of a knob's values around the reference's value D (section 5.1 of L-GreCo's paper).

    Whole numbers go from D / ``below`` to D * ``above`` in steps of 1; densities from D / ``share`` to D * ``share`` in
    steps of D / ``share``.

    Attributes:
        below: Factor down to the lowest whole number, finite and at least 1.
        above: Factor up to the highest whole number, finite and at least 1.
        share: Factor down to the lowest density and up to the highest one, a whole number.
        least: Lowest value, in place of the rule's.
        most: Highest value, in place of the rule's.
    """

    below: float = 2.0
    above: float = 2.0
    share: int = 10
    least: float | None = None
    most: float | None = None

    def __post_init__(self) -> None:
        check_field_types(self)
        check_whole("share", self.share)
        for name in ("below", "above"):
            if not 1 <= getattr(self, name) < math.inf:
                raise InvalidArgument(f"{name} must be finite and at least 1, not {getattr(self, name)}")
        for name in ("least", "most"):
            if not math.isfinite(getattr(self, name) or 0):
                raise InvalidArgument(f"{name} must be None or finite, not {getattr(self, name)}")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise InvalidArgument(f"most must be at least {self.least}, as least is, not {self.most}")

    def settings(self, reference: Compressor, shape: Sequence[int]) -> list[Compressor]:
        """Return the settings for a tensor of this shape, in order of their knob; the reference is one of them."""
        middle = reference.value
        if reference.knob == "density":
            low, high = self._ends(middle / self.share, middle * self.share)
            unit = middle / self.share
            values = [n * unit for n in range(1, self.share**2 + 1) if n != self.share]
            values = [middle, *(value for value in values if low * 0.999999 <= value <= min(high * 1.000001, 1))]
        else:
            low, high = self._ends(math.ceil(middle / self.below), middle * self.above)
            whole = whole_values(reference, shape, math.ceil(low), int(high))
            values = [int(middle), *(value for value in whole if value <= high and value != middle)]
        return [reference if value == middle else reference.at(value) for value in sorted(values)]

    def _ends(self, low: float, high: float) -> tuple[float, float]:
        return low if self.least is None else self.least, high if self.most is None else self.most


def errors_of(settings: Sequence[Compressor], tensor: torch.Tensor, method: str = "auto", steps: int = 5) -> np.ndarray:
    """Return the squared L2 norm of what each setting loses of a tensor.

    Sparsifiers of a density count as exact top-k; random choices and draws count by their expectation; settings that
    warm up count as what they become.

    Args:
        tensor: The tensor, of any shape.
        method: How errors of low-rank approximations are found: those of the best ones by singular values ("svd"),
            those of power iteration ("power"), or the cheaper of the two ("auto").
        steps: Steps of power iteration.

    Returns:
        float64[n_settings].

    Raises:
        InvalidArgument: The method is unknown.
    """
    check_choice("method", method, METHODS)
    settings = [setting.compressor if isinstance(setting, WarmUp) else setting for setting in settings]
    tensor = tensor.detach().to(wide(tensor.dtype))
    errors = np.empty(len(settings))
    groups: dict[str, list[int]] = {}
    for number, setting in enumerate(settings):
        groups.setdefault(_group(setting, tensor), []).append(number)
    for group, numbers in groups.items():
        members: list[Any] = [settings[number] for number in numbers]
        if group == "sparse":
            n = tensor.numel()
            errors[numbers] = left_out(flat_values(tensor), [n_kept(n, setting.value) for setting in members])
        elif group == "ranks":
            errors[numbers] = _ranks_left_out(members, tensor, method, steps)
        elif group.startswith("QSGD"):
            errors[numbers] = quantized(flat_values(tensor), members)
        elif group == "bits":
            errors[numbers] = cut(flat_values(tensor), [setting.bits for setting in members])
        else:
            errors[numbers] = [_single(setting, tensor) for setting in members]
    return errors


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
    """Return the errors of low-rank settings, by singular values.

    They are those of the matrix, or of the subspace that power iteration with the greatest rank finds: its best
    approximations of lower rank come with it.
    """
    matrix = tensor.reshape(matrix_shape(tensor.shape))
    if not bool(torch.isfinite(matrix).all()):
        return np.full(len(settings), math.nan)
    full_rank = min(matrix.shape)
    ranks = [min(int(setting.value), full_rank) for setting in settings]
    if method == "svd" or (method == "auto" and _SVD_PASSES * full_rank <= 4 * steps * max(ranks)):
        values = torch.linalg.svdvals(matrix)
    else:
        random = random_of("errors", *matrix.shape)
        columns = torch.randn(matrix.shape[1], max(ranks), generator=random, dtype=torch.float32, device="cpu")
        q = columns.to(matrix)
        for _ in range(steps):
            p = orthonormal(matrix @ scaled(q, norm_of(q)))
            q = matrix.T @ p
        values = torch.linalg.svdvals(q)
    squares = values.double().square().cumsum(0).cpu()
    kept_squares = torch.cat([squares.new_zeros(1), squares])
    return np.maximum(square(matrix) - kept_squares[ranks].numpy(), 0.0)
