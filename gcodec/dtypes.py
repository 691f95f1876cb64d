"""The value types and how each is split (docs/format.md section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)  # there is one of each, which makes a fast key
class DType:
    """One row of the table of docs/format.md section 2. Sizes in bits."""

    code: int
    name: str
    bits: int
    head_bits: int
    tail_bits: int
    mantissa_bits: int
    exponent_bits: int

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return self.bits // 8

    @cached_property
    def uint(self) -> np.dtype:
        """The numpy unsigned integer of the same width."""
        return np.dtype(f"uint{self.bits}")

    @property
    def predictable(self) -> bool:
        """Whether there are predicted blocks of this type."""
        return self.name in ("float32", "bfloat16", "float16")

    @property
    def narrow(self) -> DType:
        """This type with its default head: the exponent field, or what plays its part."""
        return BY_NAME[self.name]

    @property
    def wide(self) -> DType | None:
        """This type with a head of one mantissa bit more, or None where there is no such type."""
        return WIDE_DTYPES.get(self.name)

    @cached_property
    def head_shift(self) -> int:
        """How far left the head lies in a value."""
        return max(self.tail_bits - 1, 0)

    @cached_property
    def head_mask(self) -> int:
        """2**head_bits - 1."""
        return (1 << self.head_bits) - 1

    @cached_property
    def infinity(self) -> int:
        """Bits of +inf (for types with infinities): the exponent field full, the mantissa empty."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @cached_property
    def smallest_normal(self) -> int:
        """Bits of the smallest normal magnitude."""
        return 1 << self.mantissa_bits


DTYPES = (
    DType(1, "float32", 32, 8, 24, 23, 8),
    DType(2, "bfloat16", 16, 8, 8, 7, 8),
    DType(3, "float16", 16, 8, 8, 10, 5),
    DType(4, "float64", 64, 11, 53, 52, 11),
    DType(5, "float8_e4m3fn", 8, 8, 0, 3, 4),
    DType(6, "float8_e5m2", 8, 8, 0, 2, 5),
)
WIDE_DTYPES = {
    "bfloat16": DType(7, "bfloat16", 16, 9, 7, 7, 8),
    "float32": DType(8, "float32", 32, 9, 23, 23, 8),
}
BY_NAME = {t.name: t for t in DTYPES}
BY_CODE = {t.code: t for t in (*DTYPES, *WIDE_DTYPES.values())}
