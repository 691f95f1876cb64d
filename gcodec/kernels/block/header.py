"""Headers, statuses and packed numbers, which all kinds of blocks share (docs/format.md sections 6 to 8)."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U8, U64
from ..core.unaligned import load_u64

CONSTANT, RAW, CODED, PREDICTED = range(4)  #: block kinds
BLOCK_HEADER, CODED_HEADER = 16, 32  #: bytes
HAS_COLUMNS = 1  #: flag of a coded block
SEED = 0x9E3779B97F4A7C15


#: What can be wrong with a block, in the order of the binding's messages.
OK, BAD_CHECKSUM, BAD_KIND, BAD_FIELD, BAD_SIZE, BAD_STREAM, BAD_PLANES, IS_PREDICTED = range(8)


@kernel
def is_constant(values, n):
    """Return whether all of the first ``n`` values have the same bits."""
    first = values[0]
    if values[n - 1] != first or values[n >> 1] != first:
        return False
    different = first ^ first
    for i in range(n):
        different |= values[i] ^ first
    return different == 0


@kernel
def pack_numbers(numbers, n, least, width, out, at):
    """Packed array of ``numbers[i] - least``; ``out`` has 8 bytes of margin. Returns the end."""
    window = U64(0)
    filled = 0
    for i in range(n):
        window |= U64(np.int64(numbers[i]) - least) << U64(filled)
        filled += width
        while filled >= 8:
            out[at] = U8(window & U64(255))
            at += 1
            window >>= U64(8)
            filled -= 8
    if filled > 0:
        out[at] = U8(window & U64(255))
        at += 1
    return at


@kernel
def unpack_numbers(data, at, n, width, numbers):
    """Inverse of :func:`pack_numbers`, without the least; ``width`` <= 16. Reads up to 8 bytes past the array."""
    for i in range(n):
        bit = i * width
        window = load_u64(data, at + (bit >> 3)) >> U64(bit & 7)
        numbers[i] = window & U64((1 << width) - 1)
