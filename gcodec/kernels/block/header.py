"""Headers, statuses and packed numbers, which all kinds of blocks share (docs/format.md sections 6 to 10)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.checksum import checksum
from ..core.jit import kernel
from ..core.scalar import U8, U16, U32, U64
from ..core.unaligned import load_u16, load_u32, load_u64, store_u16, store_u32, store_u64, store_value

CONSTANT, RAW, CODED, PREDICTED, SPARSE, INDEXED = range(6)  #: block kinds
BLOCK_HEADER, CODED_HEADER = 16, 32  #: bytes; predicted, sparse and indexed blocks have as large ones as coded
NO_BASE = 0xFFFF  #: in place of the template of a sparse block whose values are predicted as 0
HAS_COLUMNS = 1  #: flag of a coded block
SEED = 0x9E3779B97F4A7C15

# Where the fields of a block lie, in bytes from its beginning. No other file has these numbers.
#
#     0     1          2      4          8                                         16
#     kind | codebook | base | n_values | checksum                                | ...    every block (section 6)
#
#     16             20            24                 26             27                28           29      30
#     symbol_bytes | plane_bytes | min_stream_bytes | length_width | reference_width | run_symbol | flags | 0    coded
#     symbol_bytes | plane_bytes | min_stream_bytes | length_width | run_symbol      | column                predicted
#
#     16             20                 24             25           26  28            32
#     symbol_bytes | min_stream_bytes | length_width | stream_log2 | 0 | inner_bytes | ...                     sparse
#
#     2              16            20             24        28        32
#     scale_bytes    inner_bytes | n_exceptions | segment | skipped | ...                                      indexed
KIND, CODEBOOK, BASE, N_VALUES, CHECKSUM = 0, 1, 2, 4, 8
TEMPLATE = BASE  #: of a predicted block
SYMBOL_BYTES, PLANE_BYTES, MIN_STREAM_BYTES, LENGTH_WIDTH = 16, 20, 24, 26
REFERENCE_WIDTH, RUN_SYMBOL, FLAGS, RESERVED = 27, 28, 29, 30
RESIDUAL_RUN_SYMBOL, COLUMN = 27, 28
MIN_CHANGE_BYTES, CHANGE_LENGTH_WIDTH, CHANGE_STREAM_LOG2, CHANGE_RESERVED, INNER_BYTES = 20, 24, 25, 26, 28
SCALE_BYTES = BASE
INDEXED_INNER_BYTES, N_EXCEPTIONS, SEGMENT, SKIPPED = 16, 20, 24, 28

#: What can be wrong with a block. BAD_KIND is said by devices only, of blocks that the host has to look at; on the host
#: each driver leaves blocks of other kinds alone.
OK, BAD_CHECKSUM, BAD_KIND, BAD_FIELD, BAD_SIZE, BAD_STREAM, BAD_PLANES = range(7)


class CodedHeader(NamedTuple):
    """The fields of a coded block's header (docs/format.md section 7).

    Attributes:
        base: Reference head of the block.
        symbol_bytes: Bytes of all sub-streams.
        plane_bytes: Bytes of all planes.
        min_stream_bytes: Bytes of the shortest sub-stream.
        length_width: Bits of each packed sub-stream length.
        reference_width: Bits of each packed reference.
        run_symbol: Symbol of the values of an empty sub-stream.
        flags: ``HAS_COLUMNS`` or 0.
    """

    base: Any
    symbol_bytes: Any
    plane_bytes: Any
    min_stream_bytes: Any
    length_width: Any
    reference_width: Any
    run_symbol: Any
    flags: Any


class PredictedHeader(NamedTuple):
    """The fields of a predicted block's header (docs/format.md section 8).

    Attributes:
        template: Number of the template.
        symbol_bytes: Bytes of all sub-streams.
        plane_bytes: Bytes of all planes.
        min_stream_bytes: Bytes of the shortest sub-stream.
        length_width: Bits of each packed sub-stream length.
        run_symbol: Symbol of the values of an empty sub-stream.
        column: Column of the template at which the block begins.
    """

    template: Any
    symbol_bytes: Any
    plane_bytes: Any
    min_stream_bytes: Any
    length_width: Any
    run_symbol: Any
    column: Any


@kernel
def write_coded(out, at, c, header):
    """Write the header of a coded block with codebook ``c``, all but its number of values and its checksum."""
    out[at + KIND], out[at + CODEBOOK] = U8(CODED), U8(c)
    store_u16(out, at + BASE, U16(header.base))
    store_u32(out, at + SYMBOL_BYTES, U32(header.symbol_bytes))
    store_u32(out, at + PLANE_BYTES, U32(header.plane_bytes))
    store_u16(out, at + MIN_STREAM_BYTES, U16(header.min_stream_bytes))
    out[at + LENGTH_WIDTH], out[at + REFERENCE_WIDTH] = U8(header.length_width), U8(header.reference_width)
    out[at + RUN_SYMBOL], out[at + FLAGS] = U8(header.run_symbol), U8(header.flags)
    store_u16(out, at + RESERVED, U16(0))


@kernel
def read_coded(data, at):
    """Return the :class:`CodedHeader` of the block at ``at``, unchecked."""
    return CodedHeader(
        np.int64(load_u16(data, at + BASE)),
        np.int64(load_u32(data, at + SYMBOL_BYTES)),
        np.int64(load_u32(data, at + PLANE_BYTES)),
        np.int64(load_u16(data, at + MIN_STREAM_BYTES)),
        np.int64(data[at + LENGTH_WIDTH]),
        np.int64(data[at + REFERENCE_WIDTH]),
        data[at + RUN_SYMBOL],
        data[at + FLAGS],
    )


@kernel
def write_predicted(out, at, c, header):
    """Write the header of a predicted block with residual codebook ``c``, all but its number of values and its
    checksum."""
    out[at + KIND], out[at + CODEBOOK] = U8(PREDICTED), U8(c)
    store_u16(out, at + TEMPLATE, U16(header.template))
    store_u32(out, at + SYMBOL_BYTES, U32(header.symbol_bytes))
    store_u32(out, at + PLANE_BYTES, U32(header.plane_bytes))
    store_u16(out, at + MIN_STREAM_BYTES, U16(header.min_stream_bytes))
    out[at + LENGTH_WIDTH], out[at + RESIDUAL_RUN_SYMBOL] = U8(header.length_width), U8(header.run_symbol)
    store_u32(out, at + COLUMN, U32(header.column))


@kernel
def read_predicted(data, at):
    """Return the :class:`PredictedHeader` of the block at ``at``, unchecked."""
    return PredictedHeader(
        np.int64(load_u16(data, at + TEMPLATE)),
        np.int64(load_u32(data, at + SYMBOL_BYTES)),
        np.int64(load_u32(data, at + PLANE_BYTES)),
        np.int64(load_u16(data, at + MIN_STREAM_BYTES)),
        np.int64(data[at + LENGTH_WIDTH]),
        data[at + RESIDUAL_RUN_SYMBOL],
        np.int64(load_u32(data, at + COLUMN)),
    )


class SparseHeader(NamedTuple):
    """The fields of a sparse block's header (docs/format.md section 9).

    Attributes:
        template: Number of the template that stands for the base, or ``NO_BASE``.
        symbol_bytes: Bytes of all sub-streams.
        min_stream_bytes: Bytes of the shortest sub-stream.
        length_width: Bits of each packed sub-stream length.
        stream_log2: log2 of the values per sub-stream.
        inner_bytes: Bytes of the inner block.
    """

    template: Any
    symbol_bytes: Any
    min_stream_bytes: Any
    length_width: Any
    stream_log2: Any
    inner_bytes: Any


@kernel
def write_sparse(out, at, c, header):
    """Write the header of a sparse block with codebook ``c``, all but its number of values and its checksum."""
    out[at + KIND], out[at + CODEBOOK] = U8(SPARSE), U8(c)
    store_u16(out, at + TEMPLATE, U16(header.template))
    store_u32(out, at + SYMBOL_BYTES, U32(header.symbol_bytes))
    store_u32(out, at + MIN_CHANGE_BYTES, U32(header.min_stream_bytes))
    out[at + CHANGE_LENGTH_WIDTH], out[at + CHANGE_STREAM_LOG2] = U8(header.length_width), U8(header.stream_log2)
    store_u16(out, at + CHANGE_RESERVED, U16(0))
    store_u32(out, at + INNER_BYTES, U32(header.inner_bytes))


@kernel
def read_sparse(data, at):
    """Return the :class:`SparseHeader` of the block at ``at``, unchecked."""
    return SparseHeader(
        np.int64(load_u16(data, at + TEMPLATE)),
        np.int64(load_u32(data, at + SYMBOL_BYTES)),
        np.int64(load_u32(data, at + MIN_CHANGE_BYTES)),
        np.int64(data[at + CHANGE_LENGTH_WIDTH]),
        np.int64(data[at + CHANGE_STREAM_LOG2]),
        np.int64(load_u32(data, at + INNER_BYTES)),
    )


class IndexedHeader(NamedTuple):
    """The fields of an indexed block's header (docs/format.md section 10).

    Attributes:
        scale_bytes: Bytes of a scale; 0 if there are none.
        inner_bytes: Bytes of the inner block.
        n_exceptions: Number of values that the dictionary lacks.
        segment: Number of values that share a scale.
        skipped: How many of the first segment's values lie before the block.
    """

    scale_bytes: Any
    inner_bytes: Any
    n_exceptions: Any
    segment: Any
    skipped: Any


@kernel
def write_indexed(out, at, c, header):
    """Write the header of an indexed block with dictionary ``c``, all but its number of values and its checksum."""
    out[at + KIND], out[at + CODEBOOK] = U8(INDEXED), U8(c)
    store_u16(out, at + SCALE_BYTES, U16(header.scale_bytes))
    store_u32(out, at + INDEXED_INNER_BYTES, U32(header.inner_bytes))
    store_u32(out, at + N_EXCEPTIONS, U32(header.n_exceptions))
    store_u32(out, at + SEGMENT, U32(header.segment))
    store_u32(out, at + SKIPPED, U32(header.skipped))


@kernel
def read_indexed(data, at):
    """Return the :class:`IndexedHeader` of the block at ``at``, unchecked."""
    return IndexedHeader(
        np.int64(load_u16(data, at + SCALE_BYTES)),
        np.int64(load_u32(data, at + INDEXED_INNER_BYTES)),
        np.int64(load_u32(data, at + N_EXCEPTIONS)),
        np.int64(load_u32(data, at + SEGMENT)),
        np.int64(load_u32(data, at + SKIPPED)),
    )


@kernel
def store_constant(out, at, value, width):
    """Write a block of equal values of ``width`` bytes, all but its number of values and checksum; return its end."""
    # Kind, codebook and base, which are bytes 0 to 3, at once: the latter two are 0.
    store_u32(out, at, U32(CONSTANT))
    store_value(out, at + BLOCK_HEADER, value)
    return at + BLOCK_HEADER + width


@kernel
def store_raw(out, at, values, n, width):
    """Write a block of values as they are, all but their number and the checksum; return its end."""
    # Bytes 0 to 3, as above.
    store_u32(out, at, U32(RAW))
    for i in range(n):
        store_value(out, at + BLOCK_HEADER + i * width, values[i])
    return at + BLOCK_HEADER + n * width


@kernel
def block_checksum(data, at, size, b):
    """Return the checksum of block number ``b``, of ``size`` bytes at ``at``; the field that holds it counts as 0."""
    return checksum(data, at, size >> 2, CHECKSUM >> 2, U64(b + 1) * U64(SEED))


@kernel
def check_block(data, at, size, b):
    """Return the status of block number ``b``, of ``size`` bytes at ``at``, as far as it is the same for all kinds."""
    if size < BLOCK_HEADER:
        return BAD_SIZE
    if block_checksum(data, at, size, b) != load_u64(data, at + CHECKSUM):
        return BAD_CHECKSUM
    return OK


@kernel
def seal_block(out, at, stop, n, b):
    """Finish block number ``b`` of ``n`` values, which begins at ``at`` and has its body up to ``stop``.

    Pads it to a multiple of 8 bytes, writes the number of values and the checksum, and returns the end.
    """
    while (stop - at) & 7:
        out[stop] = U8(0)
        stop += 1
    store_u32(out, at + N_VALUES, U32(n))
    store_u64(out, at + CHECKSUM, U64(block_checksum(out, at, stop - at, b)))
    return stop


@kernel
def is_constant(values, n):
    """Return whether all of the first ``n`` values have the same bits."""
    first = values[0]
    # The ends and the middle first; then all without a branch, so that it becomes a loop of vectors.
    if values[n - 1] != first or values[n >> 1] != first:
        return False
    different = first ^ first
    for i in range(n):
        different |= values[i] ^ first
    return different == 0


@kernel
def is_zero(data, start, stop):
    """Return whether bytes ``start ... stop`` are all zero."""
    union = 0
    for i in range(start, stop):
        union |= data[i]
    return union == 0


@kernel
def min_and_width(numbers, n):
    """Return the smallest of the first ``n`` numbers, and the bits that the largest difference from it needs."""
    min_number, max_number = numbers[0], numbers[0]
    for i in range(1, n):
        min_number, max_number = min(min_number, numbers[i]), max(max_number, numbers[i])
    width = 0
    # 0 where all are equal: the packed array takes no bytes then (docs/format.md section 1).
    while (max_number - min_number) >> width:
        width += 1
    return np.int64(min_number), width


@kernel
def pack_numbers(numbers, n, min_number, width, out, at):
    """Write a packed array of ``numbers[i] - min_number``, ``width`` bits each from the lowest bit of each byte up.

        numbers a, b, c of 3 bits     byte 0: ccbbbaaa     byte 1: 0000000c

    ``out`` has 8 bytes of margin. Returns the end.
    """
    window = U64(0)
    n_bits = 0
    for i in range(n):
        # At most 7 bits wait here: numbers of up to 57 bits fit above them.
        window |= U64(np.int64(numbers[i]) - min_number) << U64(n_bits)
        n_bits += width
        while n_bits >= 8:
            out[at] = U8(window & U64(255))
            at += 1
            window >>= U64(8)
            n_bits -= 8
    if n_bits > 0:
        out[at] = U8(window & U64(255))
        at += 1
    return at


@kernel
def unpack_numbers(data, at, n, width, numbers):
    """Read a packed array, without adding ``min_number``: the inverse of :func:`pack_numbers`.

    ``width`` <= 16. Reads up to 8 bytes past the array.
    """
    for i in range(n):
        # Each by itself, not through a window that is carried on: so the loop has no chain, and with 7 bits to skip the
        # 16 of a number are within the 57 that a load is sure to bring.
        bit = i * width
        window = load_u64(data, at + (bit >> 3)) >> U64(bit & 7)
        numbers[i] = window & U64((1 << width) - 1)
