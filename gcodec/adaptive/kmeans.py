"""CGX's adaptation: layers in clusters by size and error, and a setting for each cluster (Markov et al., Middleware
2022; as L-GreCo's paper describes it, section 5.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from ..compressors.contract import Compressor, check_whole
from ..errors import InvalidArgument
from .contract import Planner, Settings, check_source
from .families import errors_of
from .losses import square

_ROUNDS = 100


@dataclass
class KMeans(Planner):
    """At the end of every ``period`` steps: tensors as points (log of their number of values, log of the share of their
    squared norm that ``reference`` loses), both scaled to variance 1; as many clusters as there are ``ranked``
    settings, from mild to harsh; and the cluster whose center has the largest tensors of least error gets the harshest.

    Nothing bounds the error: this is for comparison. Until the first decision ``reference`` is everybody's setting.
    """

    kind: ClassVar[str] = "KMeans"
    reference: Compressor
    ranked: tuple[Compressor, ...]
    period: int = 500
    source: str = "average"
    changing: ClassVar[tuple[str, ...]] = ("choices",)
    choices: list[int] = field(default_factory=list, init=False, repr=False)  #: of each tensor's settings; [] so far

    def __post_init__(self) -> None:
        check_whole("period", self.period)
        check_source(self.source)
        if not self.ranked:
            raise InvalidArgument("no settings to choose from")

    def settings(self, step: int, rate: float | None) -> Settings:
        if not self.choices:
            return dict.fromkeys(self.shapes, self.reference)
        return {name: self.ranked[choice] for name, choice in zip(self.shapes, self.choices, strict=True)}

    @property
    def n_numbers(self) -> int:
        return len(self.shapes)

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        points = np.array([self._point(means[name]) for name in self.shapes])
        if not np.isfinite(points).all():
            return [*(self.choices or [len(self.ranked) // 2] * len(self.shapes))]
        spread = points.std(0)
        points = (points - points.mean(0)) / np.where(spread > 0, spread, 1)
        clusters, centers = k_means(points, len(self.ranked))
        order = np.argsort(centers[:, 0] - centers[:, 1], kind="stable")  # small and lossy first
        place = np.empty(len(centers), np.int64)
        # fewer clusters than settings, where tensors are few: spread over all settings, the mildest included
        place[order] = np.round(np.linspace(0, len(self.ranked) - 1, len(centers)))
        return [float(place[cluster]) for cluster in clusters]

    def _point(self, mean: torch.Tensor) -> tuple[float, float]:
        whole = square(mean)
        share = float(errors_of([self.reference], mean)[0]) / whole if whole else 0.0
        return math.log(mean.numel()), math.log(max(share, 1e-12)) if not math.isnan(share) else share

    def apply(self, numbers: Sequence[float]) -> None:
        self.choices = [int(number) for number in numbers]


def k_means(points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Lloyd's algorithm: the cluster of each point, int64[n], and the centers, float64[at most k, d]; the same for the
    same points always. Centers start far apart: each at the point that is farthest from those before it, the first at
    the one farthest from the mean. There are no more of them than different points."""
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
            own = points[clusters == number]
            if len(own):
                centers[number] = own.mean(0)
        new = _squares(points, centers).argmin(1)
        if (new == clusters).all():
            break
        clusters = new
    return clusters, centers


def _squares(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Squared distances, [points, centers]."""
    found: np.ndarray = ((points[:, None, :] - centers[None, :, :]) ** 2).sum(2)
    return found
