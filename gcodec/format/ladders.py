"""Levels and ladders: how many mantissa bits a value may lose, in a few steps.

GComp (SoCC '24, mantissa compression) has four levels, which drop 0, 6, 12 and 18 of float32's 23 bits.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DTYPES
from ..errors import InvalidArgument

Array = np.ndarray[Any, np.dtype[Any]]
Levels = np.ndarray[Any, np.dtype[np.uint8]]


class FloatLayout(NamedTuple):
    """The widths in bits of a floating-point type's fields, next to its one sign bit.

    Attributes:
        exponent_bits: Width of the exponent.
        mantissa_bits: Width of the mantissa, without the implicit bit.
    """

    exponent_bits: int
    mantissa_bits: int

    @property
    def smallest_normal(self) -> float:
        """Return the smallest positive value that is not denormal."""
        return math.ldexp(1.0, 2 - (1 << (self.exponent_bits - 1)))


LAYOUTS = {t.name: FloatLayout(t.exponent_bits, t.mantissa_bits) for t in DTYPES if t.tail_bits}
MANTISSA_BITS = {name: layout.mantissa_bits for name, layout in LAYOUTS.items()}


@dataclass(frozen=True)
class Ladder:
    """The number of mantissa bits that each level drops.

    ``Ladder((n,))`` is the fixed-bits mode: one level for all.

    Attributes:
        drops: 1 to 16 strictly increasing counts of bits, the mildest first.

    Raises:
        InvalidArgument: The counts are anything else.
    """

    drops: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            drops = tuple(operator.index(n) for n in self.drops)
        except TypeError as error:
            raise InvalidArgument(f"drops must be a tuple of integers, not {self.drops!r}") from error
        if not 1 <= len(drops) <= 16:
            raise InvalidArgument(f"drops must have 1 to 16 levels, not {len(drops)}")
        if drops[0] < 0 or any(after <= before for before, after in pairwise(drops)):
            raise InvalidArgument(f"drops must be at least 0 and strictly increasing, not {drops}")
        object.__setattr__(self, "drops", drops)

    def check_fits(self, dtype: str) -> None:
        """Check that the mantissa of type ``dtype`` has as many bits as the ladder drops.

        Raises:
            InvalidArgument: The mantissa has fewer bits.
        """
        if self.drops[-1] > MANTISSA_BITS[dtype]:
            raise InvalidArgument(
                f"ladder must drop at most the {MANTISSA_BITS[dtype]} mantissa bits of {dtype}, not {self.drops[-1]}"
            )


#: The four levels of the GComp paper, by type. It gives float32's only; the others are in proportion.
PAPER_LADDER = {
    "float32": Ladder((0, 6, 12, 18)),
    "bfloat16": Ladder((0, 2, 4, 6)),
    "float16": Ladder((0, 3, 6, 9)),
    "float64": Ladder((0, 16, 32, 48)),
}
#: The default, by type. As levels are coded jointly with exponents, its finer steps save more than they cost.
FINE_LADDER = {
    "float32": Ladder((0, 3, 6, 9, 12, 15, 18, 21)),
    "bfloat16": Ladder((0, 1, 2, 3, 4, 5, 6, 7)),
    "float16": Ladder((0, 1, 2, 3, 4, 5, 6, 7)),
    "float64": Ladder((0, 7, 14, 21, 28, 35, 42, 49)),
}
