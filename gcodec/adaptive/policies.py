"""The steps in which GraVAC's candidates rise (section IV-B of the paper)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..errors import InvalidArgument


class ScalingPolicy(ABC):
    """A rule that gives the candidates, in the order in which they are tried."""

    @abstractmethod
    def factors(self, least: float, most: float) -> list[float]:
        """Rising factors above ``least``, at least up to ``most``, if the rule goes as far."""

    def candidates(self, least: float, most: float) -> list[float]:
        """Return the factors below ``most``, and ``most`` itself."""
        return [*(factor for factor in self.factors(least, most) if factor < most), most]


@dataclass(frozen=True)
class Exponential(ScalingPolicy):
    """``least`` times ``base`` to the power of 1, 2, 4, 8 ...: 10, 20, 40, 160, 1000."""

    base: float = 2.0

    def __post_init__(self) -> None:
        if not self.base > 1:
            raise InvalidArgument(f"base={self.base} is not above 1")

    def factors(self, least: float, most: float) -> list[float]:
        found, power = [least * self.base], 2
        while found[-1] < most:
            found.append(least * self.base**power)
            power *= 2
        return found


@dataclass(frozen=True)
class Geometric(ScalingPolicy):
    """``least`` times powers of ``ratio``: 10, 20, 40, 80 ..."""

    ratio: float = 2.0

    def __post_init__(self) -> None:
        if not self.ratio > 1:
            raise InvalidArgument(f"ratio={self.ratio} is not above 1")

    def factors(self, least: float, most: float) -> list[float]:
        found = [least * self.ratio]
        while found[-1] < most:
            found.append(found[-1] * self.ratio)
        return found


@dataclass(frozen=True)
class Listed(ScalingPolicy):
    """Candidates from a list of factors, which must rise."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values or sorted(set(self.values)) != list(self.values):
            raise InvalidArgument(f"values={self.values} do not rise")

    def factors(self, least: float, most: float) -> list[float]:
        return [factor for factor in self.values if factor > least]
