"""Accordion sends tensors by a mild setting in critical regimes, else by a harsh one (Agarwal et al., MLSys 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..compressors.contract import Compressor, check_whole
from ..errors import InvalidArgument
from .contract import Planner, Settings, Shapes, check_source
from .losses import square


@dataclass
class Accordion(Planner):
    """Each tensor is sent by one of two settings: the mild one in critical regimes, the harsh one outside.

    A tensor is in a critical regime if the norm of its gradients, added up over a period, differs from that of the
    period before by a share of ``threshold`` or more. All tensors count as critical before the first comparison, and
    also from a step at which the learning rate falls by more than the share ``drop`` until the end of that period. With
    a rate that falls at every step, the default never leaves the mild setting, as published.

    Attributes:
        mild: Setting for critical regimes.
        harsh: Setting for all else.
        period: Steps between decisions (the paper's epochs).
        threshold: Relative change of norms that is critical, above 0 (the paper's eta).
        drop: Relative fall of the learning rate that is not critical yet, in [0, 1).
        source: Gradients to decide from, see :class:`~gcodec.adaptive.contract.Planner`.
        norms: Norm of each tensor in the period before.
        critical: Whether each tensor is in a critical regime now.
        rate: Learning rate of the last step.
        dropped: True if the rate has fallen in this period.
    """

    kind: ClassVar[str] = "Accordion"
    mild: Compressor
    harsh: Compressor
    period: int = 100
    threshold: float = 0.5
    drop: float = 0.0
    source: str = "average"
    changing: ClassVar[tuple[str, ...]] = ("norms", "critical", "rate", "dropped")
    norms: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    critical: dict[str, bool] = field(default_factory=dict, init=False, repr=False)
    rate: float = field(default=math.nan, init=False, repr=False)
    dropped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("period", self.period)
        check_source(self.source)
        if not self.threshold > 0:
            raise InvalidArgument(f"threshold must be above 0, not {self.threshold}")
        if not 0 <= self.drop < 1:
            raise InvalidArgument(f"drop must be at least 0 and below 1, not {self.drop}")

    def start(self, shapes: Shapes, size: int) -> None:
        super().start(shapes, size)
        self.critical = dict.fromkeys(shapes, True)

    def settings(self, step: int, rate: float | None) -> Settings:
        if rate is not None:
            if rate < self.rate * (1 - self.drop):
                self.dropped = True
            self.rate = rate
        return {name: self.mild if self.dropped or self.critical[name] else self.harsh for name in self.shapes}

    @property
    def n_numbers(self) -> int:
        return len(self.shapes)

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        """Return the norms of the period, tensor by tensor."""
        return [math.sqrt(square(means[name])) for name in self.shapes]

    def apply(self, numbers: Sequence[float]) -> None:
        self.critical = self.regimes(numbers)
        self.norms = dict(zip(self.shapes, numbers, strict=True))
        self.dropped = False

    def regimes(self, numbers: Sequence[float]) -> dict[str, bool]:
        """Return which tensors are in a critical regime by these norms and the last period's. Changes nothing."""
        critical = {}
        for name, norm in zip(self.shapes, numbers, strict=True):
            before = self.norms.get(name)
            critical[name] = before is None or not abs(before - norm) < self.threshold * before
        return critical
