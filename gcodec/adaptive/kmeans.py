"""CGX's adaptation puts layers in clusters by size and error, and chooses a setting for each cluster.

Markov et al., Middleware 2022; as L-GreCo's paper describes it, section 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from ..compressors.contract import Compressor, check_whole
from ..errors import InvalidArgument
from .contract import Planner, Settings, check_settings, check_source, choices_from, choices_state
from .families import errors_of
from .losses import square

_ROUNDS = 100
_NONE = -1  #: in place of the number of a setting: the reference is still in force


@dataclass
class KMeans(Planner):
    """Clusters tensors at the end of every period, and gives each cluster a setting.

    A tensor is a point: the log of its number of values, and the log of the share of its squared norm that
    ``reference`` loses, both scaled to variance 1. There are as many clusters as settings. The cluster of large tensors
    with small errors, by its center, gets the harshest setting. Nothing bounds the error: this is for comparison.

    Attributes:
        reference: Setting of all tensors until the first decision.
        ranked: Settings to choose from, from mild to harsh.
        period: Steps between decisions.
        source: Gradients to decide from, see :class:`~gcodec.adaptive.contract.Planner`.
        choices: Number of each tensor's setting; empty before the first decision.
    """

    kind: ClassVar[str] = "KMeans"
    reference: Compressor
    ranked: tuple[Compressor, ...]
    period: int = 500
    source: str = "average"
    changing: ClassVar[tuple[str, ...]] = ("choices",)
    choices: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("period", self.period)
        check_source(self.source)
        if not self.ranked:
            raise InvalidArgument("ranked must have at least one setting to choose from, but is empty")
        check_settings("ranked", self.ranked)

    def settings(self, step: int, rate: float | None) -> Settings:
        if not self.choices:
            return dict.fromkeys(self.shapes, self.reference)
        return {name: self.ranked[choice] for name, choice in zip(self.shapes, self.choices, strict=True)}

    @property
    def n_numbers(self) -> int:
        return len(self.shapes)

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        """Return the number of each tensor's setting; where a mean is not finite, the settings stay as they are."""
        points = np.array([self._point(means[name]) for name in self.shapes])
        if not np.isfinite(points).all():
            return [*(self.choices or [_NONE] * len(self.shapes))]
        spread = points.std(0)
        points = (points - points.mean(0)) / np.where(spread > 0, spread, 1)
        clusters, centers = k_means(points, len(self.ranked))
        order = np.argsort(centers[:, 0] - centers[:, 1], kind="stable")  # small and lossy first
        place = np.empty(len(centers), np.int64)
        # Where there are fewer clusters than settings, they are spread over all settings, the mildest included.
        place[order] = np.round(np.linspace(0, len(self.ranked) - 1, len(centers)))
        return [float(place[cluster]) for cluster in clusters]

    def _point(self, mean: torch.Tensor) -> tuple[float, float]:
        whole = square(mean)
        share = float(errors_of([self.reference], mean)[0]) / whole if whole else 0.0
        size = math.log(max(mean.numel(), 1))  # an empty tensor counts as a single value
        return size, math.log(max(share, 1e-12)) if not math.isnan(share) else share

    def apply(self, numbers: Sequence[float]) -> None:
        self.choices = [int(number) for number in numbers if number != _NONE]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **choices_state(self.choices, [self.ranked] * len(self.choices))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.choices = choices_from(state, dict.fromkeys(self.shapes, self.ranked)) if self.choices else []


def k_means(points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster points by Lloyd's algorithm, deterministically.

    By hand: all ranks must find the same clusters, whichever version of scipy each of them has, if any.

    Centers start far apart: the first at the point farthest from the mean, each other at the point farthest from the
    centers before it. There are no more of them than different points.

    Args:
        points: float64[n, d].
        k: Max number of clusters.

    Returns:
        The cluster of each point, int64[n], and the centers, float64[n_clusters, d].
    """
    first = int(((points - points.mean(0)) ** 2).sum(1).argmax())
    centers = points[[first]]
    while len(centers) < k:
        nearest = _squares(points, centers).min(1)
        if not nearest.max() > 0:
            break
        centers = np.concatenate([centers, points[[int(nearest.argmax())]]])
    clusters = _squares(points, centers).argmin(1)
    for _ in range(_ROUNDS):
        for number in range(len(centers)):
            members = points[clusters == number]
            if len(members):
                centers[number] = members.mean(0)
        new = _squares(points, centers).argmin(1)
        if (new == clusters).all():
            break
        clusters = new
    return clusters, centers


def _squares(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the squared distances, float64[n_points, n_centers]."""
    squares: np.ndarray = ((points[:, None, :] - centers[None, :, :]) ** 2).sum(2)
    return squares
