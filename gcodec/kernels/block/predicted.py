"""Predicted blocks (docs/format.md section 8): the drivers that write and read them."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U8, U32
from ..core.unaligned import (
    load_u16,
    load_u32,
    load_u64,
    store_u32,
    subarray,
    subarray_if_any,
    width_of,
)
from ..core.vector import compress_8, expand_8, look_up_64
from ..entropy.decode_streams import PrefixDecoder, decode_buffers, decode_streams
from ..entropy.encode_streams import STREAM_PAD, NextValues, PrefixEncoder, encode_buffers, encode_streams
from ..planes import narrow
from ..planes.layouts import count_items
from ..predict.residuals import restore
from ..predict.rows import copy_base, predict_block, residuals_of_block
from .decode import is_zero
from .header import (
    BAD_CHECKSUM,
    BAD_FIELD,
    BAD_PLANES,
    BAD_SIZE,
    BAD_STREAM,
    BLOCK_HEADER,
    CHECKSUM,
    CODEBOOK,
    CODED_HEADER,
    KIND,
    N_VALUES,
    OK,
    PREDICTED,
    TEMPLATE,
    PredictedHeader,
    block_checksum,
    is_constant,
    pack_numbers,
    read_predicted,
    seal_block,
    store_constant,
    store_raw,
    unpack_numbers,
    write_predicted,
)

SCALE_BYTES = 3
NO_ESCAPE = 64  #: length of an escape that does not exist: no look-up reaches it


@kernel
def split_digits(n, stream_len, n_planes, mark_of, scratch, out, at):
    """The planes of a block: ``n_planes - 1`` of bytes, the last of half bytes. Returns the end."""
    marks, n_items, items = scratch.marks, scratch.n_items, scratch.items
    narrow.find_marks(scratch.symbols, n, stream_len, mark_of, marks)
    n_items[:] = 0
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        words = subarray(scratch.words, s * stream_len, count)
        for p in range(n_planes):
            right = U32(28 if p == n_planes - 1 else 8 * p)
            for i in range(count):
                scratch.bytes[i] = U8(U32(words[i]) >> right)
            k = n_items[p]
            for i in range(0, count, 64):
                k += compress_8(scratch.bytes, i, marks, place + i, 1 << p, items[p], k)
            n_items[p] = k
    for p in range(n_planes):
        at = narrow.pack_bytes(items[p], n_items[p], 4 if p == n_planes - 1 else 8, out, at)
    return at


@kernel
def merge_digits(data, at, n, stream_len, n_planes, tables, scratch):
    """Inverse of :func:`split_digits` and of :func:`residuals.digits`: residuals into ``scratch.words``. ``tables``:
    uint8[4, 256], by symbol: marks, first digit, and by how many bits it and the bytes are shifted left."""
    marks, n_items, items, symbols = scratch.marks, scratch.n_items, scratch.items, scratch.symbols
    for p in range(n_planes):
        width = 4 if p == n_planes - 1 else 8
        narrow.unpack_bytes(data, at, n_items[p], width, items[p])
        at += (n_items[p] * width + 7) >> 3
    n_items[:] = 0
    own = scratch.bytes
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        words = subarray(scratch.words, s * stream_len, count)
        for i in range(count):
            words[i] = U32(0)
        for p in range(n_planes):
            k = n_items[p]
            for i in range(0, count, 64):
                k += expand_8(items[p], k, marks, place + i, 1 << p, own, i)
            n_items[p] = k
            if p < n_planes - 1:
                left = U32(8 * p)
                for i in range(count):
                    words[i] = U32(words[i] | U32(U32(own[i]) << left))
            else:
                shift = subarray(own, len(own) >> 1, count)
                for i in range(0, count, 64):
                    look_up_64(tables[3], 0, symbols, place + i, own, (len(own) >> 1) + i)
                for i in range(count):
                    words[i] = U32(U32(words[i] << U32(shift[i])) | U32(own[i]))
        first, shift = subarray(own, 0, count), subarray(own, len(own) >> 1, count)
        for i in range(0, count, 64):
            look_up_64(tables[1], 0, symbols, place + i, own, i)
            look_up_64(tables[2], 0, symbols, place + i, own, (len(own) >> 1) + i)
        for i in range(count):
            words[i] = U32(words[i] | U32(U32(first[i]) << U32(shift[i])))


@kernel
def encode_predicted_blocks(
    values, base, geometry, form, begin, end, template, origin, tables, code, c, scratch, out, at, sizes
):
    """Encode blocks ``begin ... end`` as predicted ones, from one template or from ``base``, and with one residual
    codebook; see :func:`encode.encode_blocks`.

    ``base``: uintW[n_values], or None, and then it is the template; ``c``: number of the template and of its
    codebook; ``template``: float32[n_columns], ``origin``: where in the array a row begins; ``tables``: see
    :func:`merge_digits`; ``code``: uint32[256], encode table.
    """
    width = width_of(values) // 8
    stream_len = geometry.stream_len
    for b in range(begin, end):
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        block_values = subarray(values, start, n)
        n_streams = (n + stream_len - 1) // stream_len
        column = (start - origin) % len(template) if base is None else 0
        stop = -1
        if is_constant(block_values, n):
            stop = store_constant(out, at, block_values[0], width)
        else:
            base_values = subarray_if_any(base, start, n)
            n_rows = residuals_of_block(block_values, base_values, stream_len, template, column, form, scratch)
            planes_at = at + CODED_HEADER
            streams_at = split_digits(n, stream_len, width, tables[0], scratch, out, planes_at)
            none = np.int64(0)
            encoder = PrefixEncoder(code, U32(0), none, none, none, none)  # residuals have no escape
            following = NextValues(subarray(values, start + n, n), np.int64(64))
            lengths_at = encode_streams(
                block_values, stream_len, encoder, following, encode_buffers(scratch), out, streams_at
            )
            if lengths_at >= 0:
                least, most = scratch.stream_bytes[0], scratch.stream_bytes[0]
                for s in range(1, n_streams):
                    least, most = min(least, scratch.stream_bytes[s]), max(most, scratch.stream_bytes[s])
                length_width = 0
                while (most - least) >> length_width:
                    length_width += 1
                part_bytes = lengths_at - streams_at, streams_at - planes_at
                header = PredictedHeader(c, part_bytes[0], part_bytes[1], least, length_width, 0, column)
                write_predicted(out, at, c, header)
                stop = pack_numbers(scratch.stream_bytes, n_streams, np.int64(least), length_width, out, lengths_at)
                for row in range(n_rows):
                    store_u32(out, stop, U32(scratch.scales[row] >> U32(8)))
                    stop += SCALE_BYTES
        if stop < 0 or stop >= at + BLOCK_HEADER + n * width:
            stop = store_raw(out, at, block_values, n, width)
        stop = seal_block(out, at, stop, n, b)
        sizes[b] = stop - at
        at = stop
    return at


@kernel
def decode_predicted(
    data,
    at,
    size,
    n,
    stream_len,
    form,
    n_planes,
    base,
    start,
    template,
    tables,
    lengths,
    table,
    n_symbols,
    scratch,
    out,
):
    """Decode the predicted block of ``size`` bytes at ``at`` into ``out`` (uintW[n]); return a status."""
    _, symbol_bytes, plane_bytes, least, length_width, run_symbol, column = read_predicted(data, at)
    if length_width > 16 or run_symbol > n_symbols or column >= max(len(template), 1):
        return BAD_FIELD
    n_streams = (n + stream_len - 1) // stream_len
    n_rows = (column + n + len(template) - 1) // len(template) if len(template) else 0
    streams_at = at + CODED_HEADER + plane_bytes
    lengths_at = streams_at + symbol_bytes
    scales_at = lengths_at + (n_streams * length_width + 7) // 8
    body = scales_at + SCALE_BYTES * n_rows - at
    if (body + 7) & ~7 != size:
        return BAD_SIZE
    if not is_zero(data, at + body, at + size):
        return BAD_FIELD
    unpack_numbers(data, lengths_at, n_streams, length_width, scratch.stream_bytes)
    position = streams_at
    for s in range(n_streams):
        scratch.stream_bytes[s] += least
        scratch.starts[s] = position
        position += scratch.stream_bytes[s]
        if position > lengths_at:
            break
    if position != lengths_at:
        return BAD_STREAM
    code = PrefixDecoder(table, lengths, np.int64(NO_ESCAPE), np.int64(0), run_symbol)
    n_escapes = decode_streams(data, stream_len, code, decode_buffers(scratch), out, at + size)
    if n_escapes:
        return BAD_STREAM
    count_items(scratch.symbols, n, stream_len, n_planes, tables[0], scratch.marks, scratch.n_items)
    total = 0
    for p in range(n_planes):
        total += (scratch.n_items[p] * (4 if p == n_planes - 1 else 8) + 7) >> 3
    if total != plane_bytes:
        return BAD_PLANES
    merge_digits(data, at + CODED_HEADER, n, stream_len, n_planes, tables, scratch)
    for row in range(n_rows):
        scratch.scales[row] = U32(load_u32(data, scales_at + SCALE_BYTES * row) << U32(8))
    if n_rows:
        predict_block(scratch, template, column, n, form)
    elif base is not None:
        copy_base(base, start, n, scratch.predictions)
    restore(scratch.words, scratch.predictions, n, 0, out)
    return OK


@kernel
def decode_predicted_blocks(
    data, offsets, sizes, begin, end, geometry, form, base, templates, spans, tables, books, scratch, out, out_first
):
    """Decode predicted blocks from ``begin`` on, as many as there are before ``end``; see :func:`decode.decode_blocks`.

    ``base``: uintW[n_values], what a template of no columns stands for; None where there is none, which the caller has
    made sure of; ``templates``: float32, all templates of the frame end to end; ``spans``: int64[n_templates, 2],
    where each begins and ends; ``books``: of the residual codebooks. Returns (status, block): the first block that is
    of another kind, or faulty.
    """
    n_planes = width_of(out) // 8
    for b in range(begin, end):
        at, size = offsets[b], sizes[b]
        if size < BLOCK_HEADER or data[at + KIND] != PREDICTED:
            return OK, b
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        if block_checksum(data, at, size, b) != load_u64(data, at + CHECKSUM):
            return BAD_CHECKSUM, b
        c, number = np.int64(data[at + CODEBOOK]), np.int64(load_u16(data, at + TEMPLATE))
        if size < CODED_HEADER or load_u32(data, at + N_VALUES) != n:
            return BAD_FIELD, b
        if c >= len(books.n_symbols) or number >= len(spans):
            return BAD_FIELD, b
        template = subarray(templates, spans[number, 0], spans[number, 1] - spans[number, 0])
        status = decode_predicted(
            data,
            at,
            size,
            n,
            geometry.stream_len,
            form,
            n_planes,
            base,
            start,
            template,
            tables,
            books.lengths[c],
            books.table[c],
            books.n_symbols[c],
            scratch,
            subarray(out, start - out_first, n),
        )
        if status != OK:
            return status, b
    return OK, end
