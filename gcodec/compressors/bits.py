"""Small whole numbers, packed: each takes its bits, least significant first, back to back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Corruption
from ..kernels.jit import kernel
from ..tensors import kernel_view


def packed_size(n_values: int, width: int) -> int:
    """Bytes of so many numbers of ``width`` bits."""
    return -(-n_values * width // 8)


def pack(numbers: np.ndarray, width: int) -> bytes:
    """uint8[n] of numbers below 2**width, width 1 ... 8."""
    packed = np.empty(packed_size(len(numbers), width), np.uint8)
    _pack(kernel_view(np.ascontiguousarray(numbers)), width, packed)
    return packed.tobytes()


def unpack(data: Any, n_values: int, width: int) -> np.ndarray:
    """The inverse of :func:`pack`. Raises Corruption for other than the right number of bytes, or stray bits."""
    packed = np.frombuffer(data, np.uint8)
    if len(packed) != packed_size(n_values, width):
        raise Corruption(f"{len(packed)} bytes for {n_values} numbers of {width} bits")
    stray = 8 * len(packed) - n_values * width
    if stray and packed[-1] >> (8 - stray):
        raise Corruption("bits after the last number")
    numbers = np.empty(n_values, np.uint8)
    _unpack(kernel_view(packed), width, numbers)
    return numbers


@kernel
def _pack(numbers: Any, width: Any, packed: Any) -> None:
    held, n_held, at = np.uint32(0), 0, 0
    for number in numbers:
        held |= np.uint32(np.uint32(number) << np.uint32(n_held))
        n_held += width
        if n_held >= 8:
            packed[at] = np.uint8(held & np.uint32(255))
            at += 1
            held = np.uint32(held >> np.uint32(8))
            n_held -= 8
    if n_held:
        packed[at] = np.uint8(held)


@kernel
def _unpack(packed: Any, width: Any, numbers: Any) -> None:
    held, n_held, at = np.uint32(0), 0, 0
    mask = np.uint32((1 << width) - 1)
    for i in range(len(numbers)):
        if n_held < width:
            held |= np.uint32(np.uint32(packed[at]) << np.uint32(n_held))
            at += 1
            n_held += 8
        numbers[i] = np.uint8(held & mask)
        held = np.uint32(held >> np.uint32(width))
        n_held -= width
