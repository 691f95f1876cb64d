"""The encoding driver of coded blocks, and of the constant and raw ones that they may turn into: values in, blocks
out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.bundles import Books, Choices, Columns, FloatBits, Geometry, Planes, Rounding
from ..core.jit import inlined, kernel
from ..core.scalar import U8, U64
from ..core.unaligned import subarray, subarray_if_any, width_of
from ..entropy.encode_streams import NextValues, encode_buffers, encode_streams, prefix_encoder
from ..heads.column_references import fill_columns, remove_columns
from ..heads.sign_in_head import turn_values
from ..heads.symbols import find_block_symbols, symbol_ranges
from ..levels.rounding import round_values
from ..planes.layouts import plane_tables, split_planes
from .header import (
    BLOCK_HEADER,
    CODED_HEADER,
    HAS_COLUMNS,
    CodedHeader,
    is_constant,
    min_and_width,
    pack_numbers,
    seal_block,
    store_constant,
    store_raw,
    write_coded,
)


class CodedEncoding(NamedTuple):
    """An array to be encoded, and what all its coded blocks have in common.

    Attributes:
        values: uintW[n_values].
        levels: uint8[n_values], or None: all are of level 0.
        geometry: Sizes of the array and its parts.
        float_bits: The value type.
        rounding: How values are rounded.
        choices: What the plan says of each block.
        columns: Column references.
        books: Tables of the codebooks.
        planes: The planes.
        sizes: uint32[n_blocks], result: bytes of each block.
    """

    values: np.ndarray
    levels: np.ndarray | None
    geometry: Geometry
    float_bits: FloatBits
    rounding: Rounding
    choices: Choices
    columns: Columns
    books: Books
    planes: Planes
    sizes: np.ndarray


@kernel
def are_levels(levels, n_levels):
    """Return whether all of uint8[n] are below ``n_levels``; None stands for zeros."""
    if levels is None:
        return True
    max_level = U8(0)
    for i in range(len(levels)):
        max_level = max(max_level, levels[i])
    return np.int64(max_level) < n_levels


@inlined
def encode_coded(values, levels, b, following, coding, scratch, out, at):
    """Write block number ``b`` as a coded one at ``at``, all but its number of values and its checksum.

    ``values``: uintW[n], ``levels``: uint8[n] or None; ``following``: :class:`encode_streams.NextValues`. Returns the
    end, or -1 if the block cannot be coded.
    """
    float_bits, books, stream_len = coding.float_bits, coding.books, coding.geometry.stream_len
    c, n, start = coding.choices.codebook[b], len(values), b * coding.geometry.block
    n_streams = (n + stream_len - 1) // stream_len
    # Three forms of the block, each made only where it is wanted (docs/format.md sections 2 and 7):
    #
    #     values      s eeeeeeee mmmmmmm      as given
    #     turned      m eeeeeeee S mmmmmm     codes 16 to 21: bits W - 1 and T - 1 swapped, the sign is in the head
    #     shifted     m (e - c)  S mmmmmm     less the column's reference c, to find symbols in
    turned = values
    if float_bits.fine_bits:
        turn_values(values, float_bits.head_shift, scratch.turned)
        turned = subarray(scratch.turned, 0, n)
    shifted, flags = turned, 0
    infinity = U64(0) if levels is None else float_bits.infinity  # only levels ask what is finite
    # Symbols are found in the values less their columns' references, planes in the values themselves: a reference
    # changes nothing but the head.
    if (
        len(coding.columns.spans)
        and fill_columns(coding.columns.spans, coding.columns.heads, start, n, scratch.columns)
        and remove_columns(
            turned,
            n,
            scratch.columns,
            float_bits.head_shift,
            (1 << float_bits.head_bits) - 1,
            infinity,
            scratch.shifted,
        )
    ):
        shifted, flags = subarray(scratch.shifted, 0, n), HAS_COLUMNS
    base, width = find_block_symbols(
        shifted,
        levels,
        stream_len,
        float_bits,
        coding.choices.base[b],
        coding.choices.references,
        symbol_ranges(books, c),
        scratch,
    )
    # The body is written front to back; how long planes and sub-streams are is known behind them, when the header is
    # written, too. Planes are cut before codes are written: both read the symbols that were just found.
    #
    #     at       at + 32     streams_at       end
    #     header | planes    | sub-streams    | lengths | references
    planes_at = at + CODED_HEADER
    tables = plane_tables(books, c)
    streams_at = split_planes(turned, stream_len, float_bits, tables, coding.planes, scratch, out, planes_at)
    code = prefix_encoder(books, c, float_bits)
    # From `turned`, not `shifted`: an escape is followed by the whole head, relative to nothing.
    end = encode_streams(turned, stream_len, code, following, encode_buffers(scratch), out, streams_at)
    if end >= 0:
        min_bytes, length_width = min_and_width(scratch.stream_bytes, n_streams)
        symbol_bytes, plane_bytes = end - streams_at, streams_at - planes_at
        header = CodedHeader(base, symbol_bytes, plane_bytes, min_bytes, length_width, width, code.run_symbol, flags)
        write_coded(out, at, c, header)
        end = pack_numbers(scratch.stream_bytes, n_streams, min_bytes, length_width, out, end)
        end = pack_numbers(scratch.references, n_streams, np.int64(0), width, out, end)
    return end


@kernel
def encode_blocks(coding, rounded, begin, end, scratch, out, at):
    """Encode blocks ``begin ... end`` back to back, each as the smallest of a constant, a coded and a raw one.

    Args:
        coding: A :class:`CodedEncoding`, whose results are filled in.
        rounded: None where nothing is rounded; else uintW[n_values], takes what decoding will return, or uintW[block]
            for one block after another, where nobody asks for that.
        begin: First block.
        scratch: A :class:`bundles.Scratch`.
        out: uint8, with room for the raw size of these blocks, 24 bytes a block and the worst case of one coded block.
        at: Where to write.

    Returns:
        The end, or -1 where a level does not exist.
    """
    values, geometry = coding.values, coding.geometry
    width = width_of(values) // 8
    for b in range(begin, end):
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        n_following = min(n, geometry.n_values - start - n)  # none after the last block
        block_values, following = subarray(values, start, n), subarray(values, start + n, n_following)
        block_levels = subarray_if_any(coding.levels, start, n)
        if not are_levels(block_levels, coding.rounding.n_levels):
            return -1
        # ``rounded`` is an argument of its own because numba drops this branch only where an argument is None.
        if rounded is not None:
            result = subarray(rounded, start if len(rounded) == geometry.n_values else 0, n)
            float_bits, rounding = coding.float_bits, coding.rounding
            round_values(block_values, block_levels, float_bits, rounding, scratch.symbols, following, result)
            block_values = result
        stop = -1
        if is_constant(block_values, n):
            stop = store_constant(out, at, block_values[0], width)
        elif coding.choices.codebook[b] >= 0:
            # Of rounded values every other line is fetched: rounding has fetched the others.
            line_step = np.int64(64 if rounded is None else 128)
            stop = encode_coded(
                block_values, block_levels, b, NextValues(following, line_step), coding, scratch, out, at
            )
        # Too large is found out after the fact, for which `out` has room: to count beforehand costs a pass over all
        # symbols. Raw values then overwrite the try.
        if stop < 0 or stop >= at + BLOCK_HEADER + n * width:
            stop = store_raw(out, at, block_values, n, width)
        stop = seal_block(out, at, stop, n, b)
        coding.sizes[b] = stop - at
        at = stop
    return at
