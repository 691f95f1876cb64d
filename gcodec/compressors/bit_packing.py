"""Small whole numbers, packed: each takes its bits, least significant first, back to back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Corruption
from ..kernels.core.jit import kernel
from ..tensors import kernel_view

_U8, _U64 = np.uint8, np.uint64


def packed_size(n_values: int, width: int) -> int:
    """Bytes of so many numbers of ``width`` bits."""
    return -(-n_values * width // 8)


def pack_bits(numbers: np.ndarray, width: int) -> bytes:
    """uint8[n] of numbers below 2**width, width 1 ... 8."""
    packed = np.empty(packed_size(len(numbers), width), np.uint8)
    pack_into(kernel_view(np.ascontiguousarray(numbers)), width, packed)
    return packed.tobytes()


def unpack_bits(data: Any, n_values: int, width: int) -> np.ndarray:
    """The inverse of :func:`pack_bits`. Raises Corruption for other than the right number of bytes, or stray bits."""
    packed = packed_view(data, n_values, width)
    numbers = np.empty(n_values, np.uint8)
    unpack_from(packed, width, numbers)
    return numbers


def packed_view(data: Any, n_values: int, width: int) -> np.ndarray:
    """Bytes that hold so many packed numbers, as kernels take them. Raises Corruption as :func:`unpack_bits` does."""
    packed = np.frombuffer(data, np.uint8)
    if len(packed) != packed_size(n_values, width):
        raise Corruption(f"{len(packed)} bytes for {n_values} numbers of {width} bits")
    stray = 8 * len(packed) - n_values * width
    if stray and packed[-1] >> (8 - stray):
        raise Corruption("bits after the last number")
    return kernel_view(packed)


@kernel
def pack_into(numbers: Any, width: Any, packed: Any) -> None:
    """Eight numbers, which take ``width`` bytes, at a time; the rest is filled up with zeros."""
    at, n = 0, len(numbers)
    for begin in range(0, n - 7, 8):
        word = _U64(0)
        for j in range(8):
            word |= _U64(numbers[begin + j]) << _U64(j * width)
        for j in range(width):
            packed[at + j] = _U8((word >> _U64(8 * j)) & _U64(255))
        at += width
    word = _U64(0)
    for j in range(n & 7):
        word |= _U64(numbers[(n & ~7) + j]) << _U64(j * width)
    for j in range(len(packed) - at):
        packed[at + j] = _U8((word >> _U64(8 * j)) & _U64(255))


@kernel
def unpack_from(packed: Any, width: Any, numbers: Any) -> None:
    """The inverse of :func:`pack_into`."""
    at, n, mask = 0, len(numbers), _U64((1 << width) - 1)
    for begin in range(0, n - 7, 8):
        word = _U64(0)
        for j in range(width):
            word |= _U64(packed[at + j]) << _U64(8 * j)
        for j in range(8):
            numbers[begin + j] = _U8((word >> _U64(j * width)) & mask)
        at += width
    word = _U64(0)
    for j in range(len(packed) - at):
        word |= _U64(packed[at + j]) << _U64(8 * j)
    for j in range(n & 7):
        numbers[(n & ~7) + j] = _U8((word >> _U64(j * width)) & mask)
