"""Blocks: the drivers that turn ranges of values into ranges of bytes and back (docs/format.md sections 6 and 7)."""

from __future__ import annotations

import numpy as np

from . import planes
from .jit import kernel
from .memory import load_u16, load_u32, load_u64, store_u16, store_u32, store_u64
from .prefix_code import ESCAPE
from .scalar import U8, U16, U32, U64, round_magnitude
from .streams import STREAM_PAD, checksum, decode_streams, encode_streams

CONSTANT, RAW, CODED = 0, 1, 2  #: block kinds
BLOCK_HEADER, CODED_HEADER = 16, 32  #: bytes
SEED = 0x9E3779B97F4A7C15


#: What can be wrong with a block, in the order of the binding's messages.
OK, BAD_CHECKSUM, BAD_KIND, BAD_FIELD, BAD_SIZE, BAD_STREAM, BAD_PLANES = range(7)


@kernel
def load_value(data, at, out, i):
    """``out[i]`` = the value at byte ``at``."""
    if out.itemsize == 1:
        out[i] = data[at]
    elif out.itemsize == 2:
        out[i] = load_u16(data, at)
    elif out.itemsize == 4:
        out[i] = load_u32(data, at)
    else:
        out[i] = load_u64(data, at)


@kernel
def store_value(out, at, values, i):
    """Write ``values[i]`` at byte ``at``."""
    if values.itemsize == 1:
        out[at] = U8(values[i])
    elif values.itemsize == 2:
        store_u16(out, at, U16(values[i]))
    elif values.itemsize == 4:
        store_u32(out, at, U32(values[i]))
    else:
        store_u64(out, at, U64(values[i]))


@kernel
def round_values(values, levels, n, drops, single, infinity, smallest_normal, nearest, prune, out):
    """Drop mantissa bits by level. ``drops``: uint8[16]; ``single``: all values are of level 0 and ``levels`` is not read;
    ``infinity``, ``smallest_normal``: bits of these magnitudes; ``prune``: denormals and -0 become +0. Infinities and NaNs are
    of level 0 whatever ``levels`` says."""
    sign_bit = U64(1) << U64(8 * values.itemsize - 1)
    for i in range(n):
        bits = U64(values[i])
        magnitude = bits & ~sign_bit
        drop = drops[0] if single or magnitude >= U64(infinity) else drops[levels[i]]
        if prune and magnitude < U64(smallest_normal):
            out[i] = U64(0)
        else:
            out[i] = round_magnitude(magnitude, U64(drop), U64(infinity), nearest) | (bits & sign_bit)


@kernel
def is_constant(values, n):
    """Whether all of the first ``n`` values have the same bits."""
    first = values[0]
    if values[n - 1] != first or values[n >> 1] != first:
        return False
    different = first ^ first
    for i in range(n):
        different |= values[i] ^ first
    return different == 0


@kernel
def find_references(values, n, stream, head_shift, head_mask, references):
    """Mean head of each sub-stream's non-zero values, less the least of them, in ``references``: uint16[n_streams].

    Returns (the least, bits that the largest difference needs).
    """
    n_streams = (n + stream - 1) // stream
    least, most = 1 << 30, 0
    for s in range(n_streams):
        total = U64(0)
        number = U64(0)
        for i in range(s * stream, min(n, (s + 1) * stream)):
            bits = U64(values[i])
            total += (bits >> U64(head_shift)) & U64(head_mask)
            number += bits != 0
        mean = np.int64(total) // max(np.int64(number), 1)
        references[s] = mean
        if number:
            least, most = min(least, mean), max(most, mean)
    if least > most:
        least = most
    for s in range(n_streams):
        references[s] = max(np.int64(references[s]) - least, 0)
    width = 0
    while (most - least) >> width:
        width += 1
    return least, width


@kernel
def find_symbols(values, levels, n, stream, single, infinity, base, references, head_shift, head_mask, first, count,
                 number, heads, symbols):
    """Symbol of every value. ``first``, ``count``, ``number``: int64[16], the codebook's ranges and the number of their first
    symbols; ``heads``: uint16[n] and ``symbols``: uint8, strided, results. Infinities and NaNs are of level 0."""
    n_streams = (n + stream - 1) // stream
    mask = U32(head_mask)
    magnitude_mask = ~(U64(1) << U64(8 * values.itemsize - 1))
    for s in range(n_streams):
        reference = base + np.int64(references[s])
        begin = s * stream
        place = s * (stream + STREAM_PAD)
        length = min(stream, n - begin)
        if single:
            origin = U32((reference + first[0]) & head_mask)
            limit = U32(count[0])
            for i in range(length):
                bits = values[begin + i]
                head = U32(U32(bits >> head_shift) & mask)
                heads[begin + i] = head
                offset = U32(head - origin) & mask
                symbol = U32(offset + U32(1)) if offset < limit else U32(ESCAPE)
                symbols[place + i] = symbol if bits else U32(0)
        else:
            for i in range(length):
                bits = values[begin + i]
                level = levels[begin + i] if (U64(bits) & magnitude_mask) < U64(infinity) else U8(0)
                head = np.int64(U64(bits) >> U64(head_shift)) & head_mask
                heads[begin + i] = head
                offset = (head - reference - first[level]) & head_mask
                symbol = number[level] + offset if offset < count[level] else ESCAPE
                symbols[place + i] = symbol if bits else 0


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


@kernel
def split(layout, values, symbols, n, stream, n_planes, widths, owns, shift, tail_bits, tail, items, n_items, out, at):
    """All planes of a block, by the layout's kernels. Returns the end."""
    if layout == planes.LAYOUT_24:
        return planes.split_24(values, n, out, at)
    if layout == planes.LAYOUT_8:
        return planes.split_8(values, n, out, at)
    if layout == planes.LAYOUT_NONE:
        return at
    planes.tails(values, n, tail_bits, tail)
    if layout == planes.LAYOUT_NARROW:
        planes.split_narrow(tail, symbols, n, stream, owns, shift, n_planes, items, n_items)
        for p in range(n_planes):
            at = planes.pack_bytes(items[p], n_items[p], widths[p], out, at)
        return at
    for p in range(n_planes):
        at = planes.split_plane(tail, symbols, n, stream, owns[p], shift[p], widths[p], out, at)
    return at
