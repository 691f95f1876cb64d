"""Rethink-GS has one hard threshold for all layers and steps (Sahu et al., NeurIPS 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..compressors.contract import Memory, Place, check_share, check_whole, n_kept
from ..compressors.selection import above, magnitudes_of
from ..compressors.sparse import Sparsifier
from ..errors import InvalidArgument
from .contract import Planner, Settings, check_source


@dataclass(frozen=True)
class HardThreshold(Sparsifier):
    """Sends the values whose magnitude reaches a threshold, however many they are; the largest one if none does.

    ``density``, of :class:`~gcodec.compressors.sparse.Sparsifier`, is an estimate for :meth:`floats` alone.

    Attributes:
        threshold: The threshold, at least 0.
    """

    threshold: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.threshold >= 0:
            raise InvalidArgument(f"threshold must be at least 0, not {self.threshold}")

    def chosen(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        return self.select(flat, memory, place)

    def select(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        indices = above(flat, self.threshold)
        return indices if indices.numel() or not flat.numel() else magnitudes_of(flat).argmax().view(1)


@dataclass
class GlobalThreshold(Planner):
    """A hard threshold for all tensors of a model, which layers of large gradients exceed more often.

    Attributes:
        initial: Sends tensors while there is no threshold; its density is the share of values that the threshold aims
            at.
        threshold: The paper's lambda, above 0. None to choose it after the first period, for good, so that the share
            of all values of the mean gradient reaches it.
        period: Steps after which the threshold is chosen.
        source: Gradients to decide from, see :class:`~gcodec.adaptive.contract.Planner`.
        found: The threshold in use; 0 while there is none. The name stands in saved states.
    """

    kind: ClassVar[str] = "GlobalThreshold"
    initial: Sparsifier
    threshold: float | None = None
    period: int = 1
    source: str = "own"
    changing: ClassVar[tuple[str, ...]] = ("found",)
    found: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("period", self.period)
        check_source(self.source)
        check_share("density", self.initial.density)
        if self.threshold is not None:
            if not self.threshold > 0:
                raise InvalidArgument(f"threshold must be above 0, not {self.threshold}")
            self.found = self.threshold

    @property
    def density(self) -> float:
        """The share of values that the threshold aims at."""
        return self.initial.density

    def settings(self, step: int, rate: float | None) -> Settings:
        setting = HardThreshold(self.density, self.initial.mantissa_bits, self.found) if self.found else self.initial
        return dict.fromkeys(self.shapes, setting)

    @property
    def n_numbers(self) -> int:
        return 1

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        """Return the threshold in use, or the one that suits these gradients; 0 if they are empty or not finite."""
        if self.found:
            return [self.found]
        sizes = torch.cat([magnitudes_of(means[name].reshape(-1).float()) for name in self.shapes])
        if not sizes.numel():
            return [0.0]
        k = n_kept(sizes.numel(), self.density)
        if not math.isfinite(float(sizes.max())):
            return [0.0]
        return [float(torch.kthvalue(sizes, sizes.numel() - k + 1).values)]

    def apply(self, numbers: Sequence[float]) -> None:
        (self.found,) = numbers

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; a threshold that is given stays in force, whatever the state's is."""
        super().load_state_dict(state)
        if self.threshold is not None:
            self.found = self.threshold
