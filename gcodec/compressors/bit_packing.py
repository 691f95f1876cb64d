"""Pack small whole numbers: each takes its bits, least significant first, back to back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Corruption
from ..kernels.core.jit import kernel
from ..tensors import kernel_view

_U8, _U64 = np.uint8, np.uint64


def packed_size(n_values: int, width: int) -> int:
    """Return the bytes that ``n_values`` numbers of ``width`` bits take."""
    return -(-n_values * width // 8)


def pack_bits(numbers: np.ndarray, width: int) -> bytes:
    """Pack numbers.

    Args:
        numbers: uint8[n], all below 2**width.
        width: Bits of a number, 1 ... 8.
    """
    packed = np.empty(packed_size(len(numbers), width), np.uint8)
    pack_into(kernel_view(np.ascontiguousarray(numbers)), width, packed)
    return packed.tobytes()


def unpack_bits(data: Any, n_values: int, width: int) -> np.ndarray:
    """Undo :func:`pack_bits`.

    Args:
        data: Bytes-like, exactly the packed numbers.
        n_values: How many numbers there are.
        width: Bits of a number, 1 ... 8.

    Returns:
        uint8[n_values].

    Raises:
        Corruption: There are more or fewer bytes than the numbers take, or bits after the last number are not zero.
    """
    packed = packed_view(data, n_values, width)
    numbers = np.empty(n_values, np.uint8)
    unpack_from(packed, width, numbers)
    return numbers


def packed_view(data: Any, n_values: int, width: int) -> np.ndarray:
    """Return packed bytes as kernels take them, uint8. Arguments and errors are those of :func:`unpack_bits`."""
    packed = np.frombuffer(data, np.uint8)
    n_bytes = packed_size(n_values, width)
    if len(packed) != n_bytes:
        raise Corruption(f"{n_values} packed numbers of {width} bits must take {n_bytes} bytes, not {len(packed)}")
    stray = 8 * len(packed) - n_values * width
    if stray and packed[-1] >> (8 - stray):
        raise Corruption("the bits after the last packed number must be zero")
    return kernel_view(packed)


@kernel
def pack_into(numbers: Any, width: Any, packed: Any) -> None:
    """Pack eight numbers, which take ``width`` bytes, at a time; the last byte is filled up with zeros.

    Of width 3, byte by byte, highest bit first; a digit is the number that the bit is from:

        22111000  54443332  77766655
    """
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
    """Undo :func:`pack_into`."""
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
