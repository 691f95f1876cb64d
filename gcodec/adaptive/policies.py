"""The steps in which GraVAC's candidates rise (section IV-B of the paper)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real

from ..errors import InvalidArgument, check_field_types


class ScalingPolicy(ABC):
    """A rule that gives the candidates, in the order in which they are tried."""

    def __post_init__(self) -> None:
        check_field_types(self)

    @abstractmethod
    def factors(self, least: float, most: float) -> list[float]:
        """Return rising factors above ``least``, at least up to ``most``, if the rule goes as far."""

    def candidates(self, least: float, most: float) -> list[float]:
        """Return the factors below ``most``, and ``most`` itself."""
        return [*(factor for factor in self.factors(least, most) if factor < most), most]


@dataclass(frozen=True)
class Exponential(ScalingPolicy):
    """Candidates are the lowest factor times powers of a base, of exponents 1, 2, 4, 8 ...: 10, 20, 40, 160, 1000.

    Attributes:
        base: The base, above 1.
    """

    base: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.base > 1:
            raise InvalidArgument(f"base must be above 1, not {self.base}")

    def factors(self, least: float, most: float) -> list[float]:
        factors, power = [least * self.base], 2
        while factors[-1] < most:
            factors.append(least * self.base**power)
            power *= 2
        return factors


@dataclass(frozen=True)
class Geometric(ScalingPolicy):
    """Candidates are the lowest factor times powers of a ratio: 10, 20, 40, 80 ...

    Attributes:
        ratio: The ratio, above 1.
    """

    ratio: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ratio > 1:
            raise InvalidArgument(f"ratio must be above 1, not {self.ratio}")

    def factors(self, least: float, most: float) -> list[float]:
        factors = [least * self.ratio]
        while factors[-1] < most:
            factors.append(factors[-1] * self.ratio)
        return factors


@dataclass(frozen=True)
class Listed(ScalingPolicy):
    """Candidates are given.

    Attributes:
        values: The factors, rising.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(value, Real) and value == value for value in self.values):
            raise InvalidArgument(f"values must be numbers, not {self.values!r:.80}")
        if not self.values or sorted(set(self.values)) != list(self.values):
            raise InvalidArgument(f"values must be one or more rising factors, not {self.values}")

    def factors(self, least: float, most: float) -> list[float]:
        return [factor for factor in self.values if factor > least]
