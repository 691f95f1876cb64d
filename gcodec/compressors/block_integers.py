"""Integers in blocks: from values to codes and scales, and back; float32 on the CPU."""

from __future__ import annotations

import numpy as np

from ..errors import Corruption
from ..kernels.quantize.scaled_blocks import DEPTH, FittingScratch, Integers, dequantize_blocks, quantize_blocks
from ..tensors import kernel_view


def quantize_in_blocks(
    values: np.ndarray, integers: Integers, decoded: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes of values, uint8[n], and the scales of their blocks, uint16.

    Args:
        values: float32[n].
        integers: The integers, and the form of the codes.
        decoded: Where the values go that codes and scales stand for: float32[n] or float64[n].
    """
    n, size = len(values), integers.block if integers.fitted else 0
    codes, scales = np.empty(n, np.uint8), np.empty(-(-n // integers.block), np.uint16)
    scratch = FittingScratch(
        np.empty(size, np.float32), np.empty(size, np.float32), np.empty(DEPTH, np.int64), np.empty(DEPTH, np.float32)
    )
    out = np.empty(0, np.float32) if decoded is None else decoded
    quantize_blocks(kernel_view(values), integers, scratch, codes, scales, out)
    return codes, scales


def dequantize_in_blocks(
    codes: np.ndarray, scales: np.ndarray, integers: Integers, out: np.ndarray, add: bool = False
) -> None:
    """Write the values that codes stand for, or add them to what is there.

    Args:
        codes: uint8[n].
        scales: Scales of the blocks, uint16.
        integers: The integers, and the form of the codes.
        out: Where the values go, float32[n] or float64[n].

    Raises:
        Corruption: An integer is beyond the greatest; ``out`` may be written to.
    """
    if not dequantize_blocks(kernel_view(codes), kernel_view(scales), integers, add, out):
        raise Corruption(f"integers must be from {-integers.top} to {integers.top}")


def offsets_of(codes: np.ndarray, integers: Integers) -> np.ndarray:
    """Return codes as offsets from -L, whatever their form is, uint8[n].

    Args:
        codes: uint8[n].
    """
    if not integers.signed:
        return codes
    sizes, top = codes & np.uint8(0x7F), np.uint8(integers.top)
    offsets: np.ndarray = np.where(codes > 0x7F, top - sizes, top + sizes)
    return offsets
