"""The value types: one row for each, from which every other table of types in the package is derived.

A row says how a value splits into head and tail (docs/format.md section 2), how other libraries call the type, and what
can be done with it. Numbers that stand in frames or messages are fields of the row, never positions in a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)  # there is one object of each, which makes a fast key
class DType:
    """A value type: a row of the table from which all others are derived.

    Attributes:
        code: Number of the type in a frame's header.
        name: Name of the type in torch, and in numpy and ml_dtypes.
        bits: Width of a value.
        head_bits: Width of its head, which is coded by a codebook.
        tail_bits: Width of its tail, which is stored in planes.
        mantissa_bits: Width of the mantissa field.
        exponent_bits: Width of the exponent field.
        safetensors: Name of the type in safetensors files.
        torch_storage: Name of the class of its storages in torch's older pickles, or None.
        in_numpy: Whether numpy itself has the type.
        predictable: Whether there are predicted blocks of this type.
        on_gpu: Whether the CUDA kernels code it.
        reducible: Whether gradients of this type can be averaged between ranks.
        sums_in_float32: Whether terms of a sum are added in float32, and only the sum is rounded.
        payload_number: Number of the type in a compressor's payload; None where no payload may be of it.
        float_kind: Number of the type where a device reads gradients (``source/levels.cu``); None where it never does.
        min_saving: Least share of a frame that another head than the usual one has to save, because it is slower.
        fine_bits: How many of the head's lowest bits are the sign and mantissa bits that go with it; 0 where the
            sign is in the tail.
    """

    code: int
    name: str
    bits: int
    head_bits: int
    tail_bits: int
    mantissa_bits: int
    exponent_bits: int
    safetensors: str
    torch_storage: str | None = None
    in_numpy: bool = False
    predictable: bool = False
    on_gpu: bool = False
    reducible: bool = False
    sums_in_float32: bool = False
    payload_number: int | None = None
    float_kind: int | None = None
    min_saving: float = 0.0
    fine_bits: int = 0

    def __reduce__(self) -> tuple[Callable[[int], DType], tuple[int]]:
        """Copy and unpickle a type as the one object that there is of it: a copied encoder would not know its own."""
        return dtype_of_code, (self.code,)

    @cached_property
    def itemsize(self) -> int:
        """Return the bytes of a value."""
        return self.bits // 8

    @cached_property
    def uint(self) -> np.dtype:
        """Return the numpy unsigned integer of the same width."""
        return np.dtype(f"uint{self.bits}")

    @property
    def narrow(self) -> DType:
        """Return this type with its default head: the exponent field, or the bits in its place."""
        return BY_NAME[self.name]

    @property
    def wide(self) -> DType | None:
        """Return this type with a head of one mantissa bit more, or None where there is no such type."""
        return WIDE_DTYPES.get(self.name)

    @property
    def signed(self) -> DType | None:
        """Return this type with the sign in the head, or None where there is no such type."""
        return SIGNED_DTYPES.get(self.name)

    @property
    def fine(self) -> DType | None:
        """Return this type with three mantissa bits and the sign in the head, or None where there is no such type."""
        return FINE_DTYPES.get(self.name)

    @cached_property
    def head_shift(self) -> int:
        """Return by how many bits the head is shifted left in a value."""
        return max(self.tail_bits - 1, 0)

    @cached_property
    def head_mask(self) -> int:
        """Return 2**head_bits - 1."""
        return (1 << self.head_bits) - 1

    @cached_property
    def infinity(self) -> int:
        """Return the bits of +inf, for types with infinities: the exponent field full, the mantissa empty."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @cached_property
    def smallest_normal(self) -> int:
        """Return the bits of the smallest normal magnitude."""
        return 1 << self.mantissa_bits


DTYPES = (
    DType(
        1,
        "float32",
        32,
        8,
        24,
        23,
        8,
        safetensors="F32",
        torch_storage="FloatStorage",
        in_numpy=True,
        predictable=True,
        on_gpu=True,
        reducible=True,
        payload_number=0,
        float_kind=0,
    ),
    DType(
        2,
        "bfloat16",
        16,
        8,
        8,
        7,
        8,
        safetensors="BF16",
        torch_storage="BFloat16Storage",
        predictable=True,
        on_gpu=True,
        reducible=True,
        sums_in_float32=True,
        payload_number=3,
        float_kind=1,
    ),
    DType(
        3,
        "float16",
        16,
        8,
        8,
        10,
        5,
        safetensors="F16",
        torch_storage="HalfStorage",
        in_numpy=True,
        predictable=True,
        on_gpu=True,
        reducible=True,
        sums_in_float32=True,
        payload_number=2,
        float_kind=2,
    ),
    DType(
        4,
        "float64",
        64,
        11,
        53,
        52,
        11,
        safetensors="F64",
        torch_storage="DoubleStorage",
        in_numpy=True,
        reducible=True,
        payload_number=1,
    ),
    DType(5, "float8_e4m3fn", 8, 8, 0, 3, 4, safetensors="F8_E4M3"),
    DType(6, "float8_e5m2", 8, 8, 0, 2, 5, safetensors="F8_E5M2"),
)
BY_NAME = {t.name: t for t in DTYPES}
#: Types with a head of one mantissa bit more; all but head, tail and code is as in the type of the default head.
WIDE_DTYPES = {
    "bfloat16": replace(BY_NAME["bfloat16"], code=7, head_bits=9, tail_bits=7, min_saving=0.005),
    "float32": replace(BY_NAME["float32"], code=8, head_bits=9, tail_bits=23, min_saving=0.004),
}
#: Types whose heads end with the sign. In float16 it takes the place of a mantissa bit: a head has 8 bits still.
SIGNED_DTYPES = {
    "bfloat16": replace(WIDE_DTYPES["bfloat16"], code=16, fine_bits=1),
    "float32": replace(WIDE_DTYPES["float32"], code=17, fine_bits=1),
    "float16": replace(BY_NAME["float16"], code=18, min_saving=0.005, fine_bits=1),
    "float64": replace(BY_NAME["float64"], code=19, head_bits=12, tail_bits=52, min_saving=0.003, fine_bits=1),
}
#: Types whose heads end with three mantissa bits and the sign.
FINE_DTYPES = {
    "bfloat16": replace(BY_NAME["bfloat16"], code=20, head_bits=12, tail_bits=4, min_saving=0.025, fine_bits=4),
    "float32": replace(BY_NAME["float32"], code=21, head_bits=12, tail_bits=20, min_saving=0.015, fine_bits=4),
}
BY_CODE = {t.code: t for t in (*DTYPES, *WIDE_DTYPES.values(), *SIGNED_DTYPES.values(), *FINE_DTYPES.values())}


def dtype_of_code(code: int) -> DType:
    """Return the type of a number of docs/format.md, section 2."""
    return BY_CODE[code]
