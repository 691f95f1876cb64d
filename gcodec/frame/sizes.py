"""Bounds on the size of frames."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import cache

from ..dtypes import BY_NAME, DType
from ..errors import InvalidArgument, check_choice
from ..format.levels import MAX_LEVELS, MAX_PLANES
from ..format.prelude import HEADER_BYTES
from ..kernels.block import header
from ..tensors import check_dimensions


def block_log2(dtype: DType) -> int:
    """Return log2 of the values per block that this encoder writes: at least 32 KiB of values."""
    return 15 if dtype.bits == 8 else 14


def max_encoded_size(shape: int | Sequence[int], dtype: str) -> int:
    """Return the largest number of bytes that a frame can take, whatever its values and its mode.

    Args:
        shape: Shape of the array, or its number of values.
        dtype: Name of its type.

    Returns:
        The number of bytes.

    Raises:
        InvalidArgument: For an unknown dtype, a negative size, or more dimensions than a frame holds.
    """
    try:
        # To ask isinstance for SupportsIndex takes as long as coding some ten thousand values.
        parts = (shape,) if hasattr(shape, "__index__") else shape
        dims = tuple(map(operator.index, parts))
    except TypeError:
        raise InvalidArgument(f"shape must be an integer or a sequence of them, not {shape!r}") from None
    if any(size < 0 for size in dims):
        raise InvalidArgument(f"shape must have no negative sizes, but is {dims}")
    check_dimensions(dims)
    check_choice("dtype", dtype, BY_NAME)
    n, log2 = math.prod(dims), block_log2(BY_NAME[dtype])
    planes_and_levels = MAX_PLANES + 2 * MAX_LEVELS
    prelude = HEADER_BYTES + 8 * len(dims) + planes_and_levels + 4 * -(-n >> log2) + 16
    return prelude + raw_bytes(n, BY_NAME[dtype], 1 << log2)


@cache
def block_sizes(dtype: DType, log2: int) -> tuple[int, int]:
    """Return the largest number of bytes of a block of 2**log2 values, and of its trial."""
    block = 1 << log2
    return header.BLOCK_HEADER + block * dtype.itemsize, block * 8 + block * (12 + dtype.head_bits) // 8 + 4096


def roomy_size(n_values: int, dtype: str) -> int:
    """Return the bytes of a buffer for a frame in which every block can be tried where it is to lie, so that none is
    copied; arguments and errors as of :func:`max_encoded_size`."""
    return max_encoded_size(n_values, dtype) + _largest_trial(dtype)


@cache
def _largest_trial(dtype: str) -> int:
    """Return the largest number of bytes of a trial of a block, whatever its head."""
    kind = BY_NAME[dtype]
    forms = (kind, kind.wide, kind.signed, kind.fine)
    return max(block_sizes(form, block_log2(form))[1] for form in forms if form is not None)


def raw_bytes(n_values: int, dtype: DType, block: int) -> int:
    """Return the bytes of the blocks of ``n_values`` values if all are stored raw."""
    last = n_values % block
    size = header.BLOCK_HEADER + block * dtype.itemsize
    return n_values // block * size + (header.BLOCK_HEADER + (last * dtype.itemsize + 7 & ~7) if last else 0)
