"""Predicted blocks (docs/format.md section 8): the drivers that write and read them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.bundles import Books, Geometry
from ..core.intrinsics import HAS_AVX512
from ..core.jit import inlined, kernel
from ..core.scalar import U8, U32
from ..core.unaligned import load_u32, store_u32, subarray, subarray_if_any, width_of
from ..core.vector import clear_8, compress_8, count_64, expand_8, look_up_some
from ..entropy.decode_streams import PrefixDecoder, decode_buffers, decode_streams
from ..entropy.encode_streams import STREAM_PAD, NextValues, PrefixEncoder, encode_buffers, encode_streams
from ..planes import narrow
from ..planes.layout_types import GROUP
from ..planes.layouts import count_items
from ..predict.residuals import restore
from ..predict.rows import copy_base, predict_block, residuals_of_block
from .decode import locate_streams
from .header import (
    BAD_FIELD,
    BAD_PLANES,
    BAD_SIZE,
    BAD_STREAM,
    BLOCK_HEADER,
    CODEBOOK,
    CODED_HEADER,
    KIND,
    N_VALUES,
    OK,
    PREDICTED,
    PredictedHeader,
    check_block,
    is_constant,
    is_zero,
    min_and_width,
    pack_numbers,
    read_predicted,
    seal_block,
    store_constant,
    store_raw,
    write_predicted,
)

if HAS_AVX512:
    from ..predict.digits_avx512 import merge_digits_16, merge_digits_32, split_digits_16, split_digits_32

SCALE_BYTES = 3
NO_ESCAPE = 64  #: length of an escape that does not exist: no look-up reaches it


class PredictionSources(NamedTuple):
    """The rows and arrays that blocks of a frame are predicted from.

    Attributes:
        templates: float32, the templates end to end; one of no columns stands for the base.
        spans: int64[n_templates, 2], where each begins and ends in it.
        base: uintW[n_values], or None: no template stands for it, which the caller has made sure of.
        dtype_code: The values' type, for ``predict.residuals``.
        digit_tables: uint8[4, 256], by symbol: plane marks, first digit, and by how many bits that and the bytes are
            shifted left.
    """

    templates: np.ndarray
    spans: np.ndarray
    base: np.ndarray | None
    dtype_code: int
    digit_tables: np.ndarray


class PredictedEncoding(NamedTuple):
    """An array to be encoded, and what all its predicted blocks have in common.

    Attributes:
        values: uintW[n_values].
        geometry: Sizes of the array and its parts.
        sources: What blocks are predicted from.
        origins: int64[n_templates], where in the array a row begins that a template predicts.
        choice: int64[n_blocks], number of each block's template and residual codebook.
        tables: uint32[n_templates, 256], to encode with these codebooks.
        sizes: uint32[n_blocks], result: bytes of each block.
    """

    values: np.ndarray
    geometry: Geometry
    sources: PredictionSources
    origins: np.ndarray
    choice: np.ndarray
    tables: np.ndarray
    sizes: np.ndarray


class PredictedDecoding(NamedTuple):
    """The part of decoding that all predicted blocks of a frame have in common.

    Attributes:
        geometry: Sizes of the array and its parts.
        sources: What blocks are predicted from.
        books: Tables of the residual codebooks.
    """

    geometry: Geometry
    sources: PredictionSources
    books: Books


@inlined
def _split_group(i, place, n_planes, scratch):
    """Append the items of 64 values, from number ``i`` of the block on, whose symbols begin at ``place``."""
    words, marks, items, n_items = scratch.words, scratch.marks, scratch.items, scratch.n_items
    if n_planes == 2:
        split_digits_16(words, i, marks, place, items, 0, items.shape[1], n_items, 0)
    else:
        split_digits_32(words, i, marks, place, items, 0, items.shape[1], n_items, 0)


@inlined
def _merge_group(i, place, n_planes, tables, scratch):
    """Join the items and symbols of 64 values, from number ``i`` of the block on, whose symbols begin at ``place``."""
    words, symbols, marks = scratch.words, scratch.symbols, scratch.marks
    items, n_items = scratch.items, scratch.n_items
    if n_planes == 2:
        merge_digits_16(words, i, symbols, place, marks, place, items, 0, items.shape[1], tables, 0, n_items, 0)
    else:
        merge_digits_32(words, i, symbols, place, marks, place, items, 0, items.shape[1], tables, 0, n_items, 0)


@kernel
def split_digits(n, stream_len, n_planes, mark_of, scratch, out, at):
    """Write the planes of a block: ``n_planes - 1`` of bytes, the last of half bytes. Returns the end.

    Planes are cut from words as :func:`residuals.digits` leaves them. Which of them have an item of a value the mark of
    its symbol says; ``mark_of``: uint8[256], by symbol, bit p for plane p. A float32 with five digits after the first:

        word        a | . f | e d | c b     in hexadecimal; f is in the symbol, a the odd one of the five
        plane       3     2     1     0
        mark        1     0     1     1
    """
    marks, n_items, items = scratch.marks, scratch.n_items, scratch.items
    narrow.find_marks(scratch.symbols, n, stream_len, mark_of, marks, 2 * n_planes)
    n_items[:] = 0
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        if HAS_AVX512:
            for i in range(0, count, GROUP):
                if count_64(marks, place + i, 255):  # most residuals have few digits
                    _split_group(s * stream_len + i, place + i, n_planes, scratch)
            continue
        words = subarray(scratch.words, s * stream_len, count)
        for p in range(n_planes):
            # Cut the plane's item out of every word, then keep those that are owned, 64 at a time.
            #     word        aaaa .... .... ffff eeee dddd cccc bbbb       bits 31 ... 0, a digit each
            #     plane 3     aaaa                                          >> 28
            #     plane 1                         eeee dddd                 >> 8, cut to a byte
            right = U32(28 if p == n_planes - 1 else 8 * p)
            for i in range(count):
                scratch.bytes[i] = U8(U32(words[i]) >> right)
            k = n_items[p]
            for i in range(0, count, 64):
                if count_64(marks, place + i, 1 << p):
                    k += compress_8(scratch.bytes, i, marks, place + i, 1 << p, items[p], k)
            n_items[p] = k
    for p in range(n_planes):
        at = narrow.pack_bytes(items[p], n_items[p], 4 if p == n_planes - 1 else 8, out, at)
    return at


@kernel
def merge_digits(data, at, n, stream_len, n_planes, tables, scratch):
    """Join planes and symbols into residuals: the inverse of :func:`split_digits` and of :func:`residuals.digits`.

        planes 0 ... n_planes - 2       . . . . e d c b       shifted left by 4 where there is an odd digit
        the last plane                                  a     below them
        the symbol                          f                 above them, shifted left by 4 for each other digit

    Args:
        data: uint8, the block.
        at: Where the planes begin.
        n: Values of the block.
        stream_len: Values per sub-stream.
        tables: ``PredictionSources.digit_tables``.
        scratch: A :class:`bundles.Residuals`; ``words`` is the result.
    """
    marks, n_items, items, symbols = scratch.marks, scratch.n_items, scratch.items, scratch.symbols
    for p in range(n_planes):
        width = 4 if p == n_planes - 1 else 8
        narrow.unpack_bytes(data, at, n_items[p], width, items[p])
        at += (n_items[p] * width + 7) >> 3
    n_items[:] = 0
    # A residual of 2 * n_planes digits has a symbol below 16 times that, and so have all others.
    # One byte of every value of a sub-stream in the lower half, and by how much to shift it in the upper.
    halves = scratch.bytes
    middle = len(halves) >> 1
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        if HAS_AVX512:
            for i in range(0, count, GROUP):
                _merge_group(s * stream_len + i, place + i, n_planes, tables, scratch)
            continue
        words = subarray(scratch.words, s * stream_len, count)
        for i in range(count):
            words[i] = U32(0)
        for p in range(n_planes):
            k = n_items[p]
            for i in range(0, count, 64):
                if count_64(marks, place + i, 1 << p):
                    k += expand_8(items[p], k, marks, place + i, 1 << p, halves, i)
                else:
                    clear_8(halves, i)
            n_items[p] = k
            # Planes come lowest first, so the bytes are all in place when the odd digit, of the last plane, moves them
            # up:
            #
            #     bytes            . . . . e d c b
            #     an odd digit     . . . e d c b a       << 4; without one, << 0 and OR with the 0 of a cleared item
            if p < n_planes - 1:
                left = U32(8 * p)
                for i in range(count):
                    words[i] = U32(words[i] | U32(U32(halves[i]) << left))
            else:
                shift = subarray(halves, middle, count)
                for i in range(0, count, 64):
                    look_up_some(tables[3], 0, symbols, place + i, halves, middle + i, 2 * n_planes)
                for i in range(count):
                    words[i] = U32(U32(words[i] << U32(shift[i])) | U32(halves[i]))
        first, shift = subarray(halves, 0, count), subarray(halves, middle, count)
        for i in range(0, count, 64):
            look_up_some(tables[1], 0, symbols, place + i, halves, i, 2 * n_planes)
            look_up_some(tables[2], 0, symbols, place + i, halves, middle + i, 2 * n_planes)
        for i in range(count):
            words[i] = U32(words[i] | U32(U32(first[i]) << U32(shift[i])))


@inlined
def encode_predicted(values, b, coding, scratch, out, at):
    """Write block number ``b`` as a predicted one at ``at``, all but its number of values and its checksum.

    ``values``: uintW[n]. Returns the end, or -1 if the block cannot be coded.
    """
    stream_len, sources, c = coding.geometry.stream_len, coding.sources, coding.choice[b]
    n, start, n_planes = len(values), b * coding.geometry.block, width_of(values) // 8
    n_streams = (n + stream_len - 1) // stream_len
    first, end_of_row = sources.spans[c, 0], sources.spans[c, 1]
    template = subarray(sources.templates, first, end_of_row - first)
    # A row need not begin where the array does: the tensor that a template is for may lie anywhere in it.
    column = (start - coding.origins[c]) % max(len(template), 1)
    base_values = subarray_if_any(sources.base, start, n)
    n_rows = residuals_of_block(values, base_values, stream_len, template, column, sources.dtype_code, scratch)
    planes_at = at + CODED_HEADER
    streams_at = split_digits(n, stream_len, n_planes, sources.digit_tables[0], scratch, out, planes_at)
    none = np.int64(0)
    # run_symbol is 0, too: sub-streams in which all is as predicted are left empty.
    code = PrefixEncoder(coding.tables[c], U32(0), none, none, none, none)  # residuals have no escape
    n_following = min(n, len(coding.values) - start - n)  # none after the last block
    following = NextValues(subarray(coding.values, start + n, n_following), np.int64(64))
    end = encode_streams(values, stream_len, code, following, encode_buffers(scratch), out, streams_at)
    if end >= 0:
        min_bytes, length_width = min_and_width(scratch.stream_bytes, n_streams)
        symbol_bytes, plane_bytes = end - streams_at, streams_at - planes_at
        header = PredictedHeader(c, symbol_bytes, plane_bytes, min_bytes, length_width, 0, column)
        write_predicted(out, at, c, header)
        end = pack_numbers(scratch.stream_bytes, n_streams, min_bytes, length_width, out, end)
        for row in range(n_rows):
            # Three bytes count (docs/format.md section 8: bits 8 ... 31 of a float32); the fourth, 0, is written over
            # next.
            store_u32(out, end, U32(scratch.scales[row] >> U32(8)))
            end += SCALE_BYTES
    return end


@kernel
def encode_predicted_blocks(coding, begin, end, scratch, out, at):
    """Encode blocks ``begin ... end`` back to back, each as the smallest of a constant, a predicted and a raw one.

    Args:
        coding: A :class:`PredictedEncoding`, whose results are filled in.
        begin: First block.
        end: End of the blocks, which all have a template.
        scratch: A :class:`bundles.Residuals`.
        out: uint8, with room as for :func:`encode.encode_blocks`.
        at: Where to write.

    Returns:
        The end.
    """
    values, geometry = coding.values, coding.geometry
    width = width_of(values) // 8
    for b in range(begin, end):
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        block_values = subarray(values, start, n)
        if is_constant(block_values, n):
            stop = store_constant(out, at, block_values[0], width)
        else:
            stop = encode_predicted(block_values, b, coding, scratch, out, at)
        if stop < 0 or stop >= at + BLOCK_HEADER + n * width:
            stop = store_raw(out, at, block_values, n, width)
        stop = seal_block(out, at, stop, n, b)
        coding.sizes[b] = stop - at
        at = stop
    return at


@kernel
def decode_predicted(data, at, size, start, coding, scratch, out):
    """Decode the predicted block of ``size`` bytes at ``at``; return a status.

    Its codebook and its template exist; its values, those from number ``start`` of the frame on, go to ``out``
    (uintW[n]).
    """
    sources, books, c = coding.sources, coding.books, np.int64(data[at + CODEBOOK])
    n, stream_len, n_planes = len(out), coding.geometry.stream_len, width_of(out) // 8
    number, symbol_bytes, plane_bytes, min_bytes, length_width, run_symbol, column = read_predicted(data, at)
    first, end_of_row = sources.spans[number, 0], sources.spans[number, 1]
    template = subarray(sources.templates, first, end_of_row - first)
    if length_width > 16 or run_symbol > books.n_symbols[c] or column >= max(len(template), 1):
        return BAD_FIELD
    n_streams = (n + stream_len - 1) // stream_len
    # Templates have two columns at least (docs/format.md section 4), so that a block has at most n / 2 + 1 rows, for
    # which scratch.scales has room. With a base there are no rows.
    n_rows = (column + n + len(template) - 1) // len(template) if len(template) else 0
    streams_at = at + CODED_HEADER + plane_bytes
    lengths_at = streams_at + symbol_bytes
    scales_at = lengths_at + (n_streams * length_width + 7) // 8
    body = scales_at + SCALE_BYTES * n_rows - at
    if (body + 7) & ~7 != size:
        return BAD_SIZE
    if not is_zero(data, at + body, at + size):
        return BAD_FIELD
    if not locate_streams(data, streams_at, lengths_at, n_streams, length_width, min_bytes, scratch):
        return BAD_STREAM
    code = PrefixDecoder(books.table[c], books.lengths[c], np.int64(NO_ESCAPE), np.int64(0), run_symbol)
    # 0 escapes, or -1: residual codebooks have no escape.
    if decode_streams(data, stream_len, code, decode_buffers(scratch), out, at + size):
        return BAD_STREAM
    tables = sources.digit_tables
    # As for coded blocks: only if the items that symbols ask for take just the bytes that there are, planes are read.
    count_items(scratch.symbols, n, stream_len, n_planes, tables[0], scratch.marks, scratch.n_items, 2 * n_planes)
    total = 0
    for p in range(n_planes):
        total += (scratch.n_items[p] * (4 if p == n_planes - 1 else 8) + 7) >> 3
    if total != plane_bytes:
        return BAD_PLANES
    merge_digits(data, at + CODED_HEADER, n, stream_len, n_planes, tables, scratch)
    for row in range(n_rows):
        # The fourth byte is the next scale's, and leaves at the top; behind the last scale the block's margin is read.
        scratch.scales[row] = U32(load_u32(data, scales_at + SCALE_BYTES * row) << U32(8))
    if n_rows:
        predict_block(scratch, template, column, n, sources.dtype_code)
    else:
        copy_base(sources.base, start, n, scratch.predictions)
    restore(scratch.words, scratch.predictions, n, 0, out)
    return OK


@kernel
def decode_predicted_blocks(blocks, begin, end, coding, scratch, out, out_first):
    """Decode blocks from ``begin`` on, as many before ``end`` as are predicted.

    Args:
        blocks: A :class:`bundles.FrameBlocks`.
        begin: First block.
        coding: A :class:`PredictedDecoding`.
        scratch: A :class:`bundles.Residuals`.
        out: uintW, result: value i of the frame goes to ``out[i - out_first]``.
        out_first: The frame's value that ``out`` begins with.

    Returns:
        (status, block): the first block that is of another kind (status OK) or faulty; ``end`` if there is none.
    """
    data, geometry = blocks.data, coding.geometry
    for b in range(begin, end):
        at, size = blocks.offsets[b], blocks.sizes[b]
        if data[at + KIND] != PREDICTED:
            return OK, b
        status = check_block(data, at, size, b)
        if status != OK:
            return status, b
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        if size < CODED_HEADER or load_u32(data, at + N_VALUES) != n:
            return BAD_FIELD, b
        if data[at + CODEBOOK] >= len(coding.books.n_symbols) or read_predicted(data, at).template >= len(
            coding.sources.spans
        ):
            return BAD_FIELD, b
        status = decode_predicted(data, at, size, start, coding, scratch, subarray(out, start - out_first, n))
        if status != OK:
            return status, b
    return OK, end
