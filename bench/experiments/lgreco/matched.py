"""The control that a claim of better trade-offs needs: uniform settings of as many bytes as L-GreCo's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from gcodec.adaptive import LGreCo, Planner, Settings
from gcodec.compressors import Compressor

STEPS = 400  #: of densities, evenly in their logarithms, that are looked at


@dataclass
class Matched(Planner):
    """Lets L-GreCo decide, and gives all tensors the one setting whose bytes come nearest to that decision's.

    Attributes:
        inner: L-GreCo, whose decisions count by their bytes alone.
        value: The knob of all tensors.
    """

    kind: ClassVar[str] = "MatchedUniform"
    changing: ClassVar[tuple[str, ...]] = ("value",)
    inner: LGreCo
    value: float = field(init=False)

    def __post_init__(self) -> None:
        self.period, self.source, self.value = self.inner.period, self.inner.source, self.inner.reference.value

    def start(self, shapes: Mapping[str, tuple[int, ...]], size: int) -> None:
        super().start(shapes, size)
        self.inner.start(shapes, size)

    @property
    def n_numbers(self) -> int:
        return 1

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        choices = self.inner.decide(means)
        wanted = self._bytes(
            {name: self.inner.options[name][int(choice)] for name, choice in zip(self.shapes, choices, strict=True)}
        )
        return [min(self._values(), key=lambda value: abs(self._bytes(self._uniform(value)) - wanted))]

    def _values(self) -> list[float]:
        """Return the knob's values in L-GreCo's range, more of them where it need not be whole."""
        reference = self.inner.reference
        known = sorted({setting.value for options in self.inner.options.values() for setting in options})
        if reference.knob != "density":
            return known
        return [float(value) for value in np.geomspace(known[0], known[-1], STEPS)]

    def _uniform(self, value: float) -> dict[str, Compressor]:
        reference = self.inner.reference
        return dict.fromkeys(self.shapes, reference.at(value if reference.knob == "density" else round(value)))

    def _bytes(self, settings: Settings) -> float:
        return sum(setting.payload_bytes(self.shapes[name]) for name, setting in settings.items())

    def apply(self, numbers: Sequence[float]) -> None:
        self.value = numbers[0]

    def settings(self, step: int, rate: float | None) -> Settings:
        return self._uniform(self.value)
