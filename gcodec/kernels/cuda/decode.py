"""The decoding driver for CUDA: blocks in, values out. Trusts nothing in a block but its size."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..blocks import (
    BAD_CHECKSUM,
    BAD_FIELD,
    BAD_KIND,
    BAD_PLANES,
    BAD_SIZE,
    BAD_STREAM,
    CODED,
    CONSTANT,
    HAS_COLUMNS,
    IS_PREDICTED,
    OK,
    PREDICTED,
)
from ..prefix_code import ESCAPE, TABLE_SIZE
from ..scalar import I32, U32, U64, spread, value_of
from .bits import get
from .encode import ceil_bytes
from .grid import (
    BAND,
    STRIDE,
    THREADS,
    TILE,
    N,
    block_number,
    device,
    evens,
    kernel,
    marks_before,
    mask_of,
    number_in,
    odds,
    scan,
    scan_three,
    seed_of,
    sum_of_words,
    weighed,
)
from .parameters import (
    BLOCK_BYTES,
    BLOCK_LOG2,
    COUNT,
    FIRST,
    FIRST_BOOK,
    FIRST_SPAN,
    FRAME,
    MOST_BLOCK_LOG2,
    MOST_STREAMS,
    N_BOOKS,
    N_SPANS,
    STREAM,
    TARGET,
)

#: Symbols lie four in a word, and rows of sub-streams a word apart, so that threads that write one each do not wait for each
#: other.
SYMBOL_WORDS = (1 << MOST_BLOCK_LOG2) // 4 + MOST_STREAMS
HEADER, CODED_HEADER = 16, 32
#: Cells of the shared array of sums.
STATUS, ANY = range(2)


@device
def number_at(words, start, last, at, index, width):
    """Item ``index`` of a packed array that begins at byte ``at`` of a block; ``width`` at most 16."""
    bits = get(words, start, last, U32(U32(at << U32(3)) + U32(U32(index) * width)))
    return U32(bits & U32(U32(U32(1) << width) - U32(1)))


@device
def has_zeros(words, start, begin, end):
    """Whether bytes ``begin ... end`` of a block are all zero."""
    found = U32(0)
    for i in range(begin, end):
        found = U32(found | U32(U32(words[start + U64(U32(i) >> U32(2))]) >> U32(U32(U32(i) & U32(3)) << U32(3))))
    return U32(found & U32(255)) == U32(0)


@device
def column_reference(spans, heads, first, n_spans, value):
    """The column reference of value number ``value`` (int64) of a frame: uint32, modulo 2**32."""
    for k in range(first, first + n_spans):
        begin = spans[k, 0]
        if begin <= value and value < spans[k, 1]:
            return U32(I32(heads[spans[k, 3] + ((value - begin) % spans[k, 2]) // spans[k, 4]]) & I32(0xFFFF))
    return U32(0)


@device
def decode_stream(words, start, last, bit, count, row, lookup, head_bits, symbols, out, target):
    """The symbols of one sub-stream, from bit ``bit`` of its block on, to words ``row ...`` of ``symbols`` (shared,
    uint32); heads of escapes to where their values will lie in ``out``. Returns how many bits they take. By one
    thread."""
    word = U32(bit >> U32(5))
    inside = U32(bit & U32(31))
    window = U64(U64(words[start + U64(min(word, last))]) >> U64(inside))
    filled, used, packed = U32(U32(32) - inside), U32(0), U32(0)
    mask = U32(U32(U32(1) << head_bits) - U32(1))
    for i in range(count):
        if filled < U32(32):
            word = U32(word + U32(1))
            window = U64(window | U64(U64(words[start + U64(min(word, last))]) << U64(filled)))
            filled = U32(filled + U32(32))
        entry = U32(lookup[U32(window & U64(4095))])
        symbol, length = U32(entry & U32(255)), U32(entry >> U32(8))
        if symbol == U32(ESCAPE):
            out[target + U64(i)] = U32(U32(U64(window >> U64(length)) & U64(0xFFFFFFFF)) & mask)
            length = U32(length + head_bits)
        window = U64(window >> U64(length))
        filled, used = U32(filled - length), U32(used + length)
        packed = U32(packed | U32(symbol << U32(U32(U32(i) & U32(3)) << U32(3))))
        if I32(i & 3) == 3:
            symbols[U32(row + U32(U32(i) >> U32(2)))] = packed
            packed = U32(0)
    if I32(count & 3):
        symbols[U32(row + U32(U32(count) >> U32(2)))] = packed
    return used


@device
def fill_run(symbol, count, row, symbols):
    """The symbols of a sub-stream of no bytes."""
    four = U32(U32(symbol) * U32(0x01010101))
    for i in range(I32(I32(count + I32(3)) >> 2)):
        symbols[U32(row + U32(i))] = four


@device
def symbol_at(symbols, i, log2):
    """Symbol of value ``i`` of a block."""
    stream = I32(i >> log2)
    word = I32(I32(i >> 2) + stream)  # rows are a word longer than their symbols
    return U32(U32(U32(symbols[word]) >> U32(U32(U32(i) & U32(3)) << U32(3))) & U32(255))


@device
def place_streams(words, start, last, at, n_streams, width, least, sizes, begins, cells, first):
    """Bytes of each sub-stream and where it begins, the first at byte ``first`` of the block. Returns the end of the last
    one, or 0 where that is far off."""
    lane, done = I32(cuda.threadIdx.x), U64(first)
    for tile in range(I32(0), n_streams, N):
        s, size = I32(tile + lane), U32(0)
        if s < n_streams:
            size = U32(least + number_at(words, start, last, at, s, width))
        cells[lane] = U64(size)
        scan(cells)
        if s < n_streams:
            sizes[s] = size
            begins[s] = U32(U64(done + U64(U64(cells[lane]) - U64(size))) & U64(0xFFFFFFFF))
        done = U64(done + U64(cells[N - I32(1)]))
        cuda.syncthreads()
    return U32(0) if done > U64(BLOCK_BYTES) else U32(done & U64(0xFFFFFFFF))


@device
def check_fields(words, start, size, n, n_streams, form, most, n_spans):
    """Status of a coded block's header and sizes."""
    w0, w5, w6, w7 = U32(words[start]), U32(words[start + U64(5)]), U32(words[start + U64(6)]), U32(words[start + U64(7)])
    symbol_bytes, base = U32(words[start + U64(4)]), U32(w0 >> U32(16))
    length_width, reference_width = U32(U32(w6 >> U32(16)) & U32(255)), U32(w6 >> U32(24))
    if (
        base >> form.head_bits
        or length_width > U32(16)
        or reference_width > form.head_bits
        or U32(w7 & U32(255)) > most
        or U32(U32(w7 >> U32(8)) & U32(255)) > (U32(HAS_COLUMNS) if n_spans else U32(0))
        or U32(w7 >> U32(16))
    ):
        return BAD_FIELD
    if symbol_bytes > U32(BLOCK_BYTES) or w5 > U32(BLOCK_BYTES):
        return BAD_SIZE
    body = U32(U32(CODED_HEADER) + U32(symbol_bytes + w5))
    body = U32(body + U32(ceil_bytes(U32(U32(n_streams) * length_width))))
    body = U32(body + U32(ceil_bytes(U32(U32(n_streams) * reference_width))))
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(words, start, body, U32(size)) else BAD_FIELD


@device
def count_planes(symbols, n, log2, infos, book, totals):
    """How many items each plane has: ``totals`` (shared, uint64[2])."""
    even, odd = U64(0), U64(0)
    for j in range(I32(cuda.threadIdx.x), I32(I32(n + BAND) // STRIDE), N):
        begin, marks = I32(j * STRIDE), U64(0)
        for i in range(begin, min(I32(begin + STRIDE), n)):
            mark = U32(U32(U32(infos[book, symbol_at(symbols, i, log2)]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
        even, odd = U64(even + evens(marks)), U64(odd + odds(marks))
    cuda.atomic.add(totals, 0, even)
    cuda.atomic.add(totals, 1, odd)
    cuda.syncthreads()


@device
def plane_regions(form, widths, totals, plane_bytes, region):
    """Where each plane begins, in bits of the block: ``region`` (shared, uint32[8]). Returns whether they take so many
    bytes."""
    at = U32(CODED_HEADER)
    cuda.syncthreads()
    for p in range(form.n_planes):
        if cuda.threadIdx.x == 0:
            region[p] = U32(at << U32(3))
        at = U32(at + ceil_bytes(U32(number_in(totals[0], totals[1], U32(p)) * U32(widths[p]))))
    cuda.syncthreads()
    return at == U32(U32(CODED_HEADER) + plane_bytes)


@device
def tail_at(words, start, last, info, rank, masks, even, odd, form, tables, region):
    """The tail of a value, from the planes."""
    mark, level, tail = U32(U32(info >> U32(16)) & U32(255)), U32(info >> U32(24)), U32(0)
    shifts = U64(tables.shifts[level])
    for p in range(form.n_planes):
        plane = U32(p)
        if U32(U32(mark >> plane) & U32(1)):
            width = U32(tables.widths[p])
            number = U32(number_in(even, odd, plane) + marks_before(masks, plane, rank))
            item = get(words, start, last, U32(U32(region[p]) + U32(number * width)))
            item = U32(item & U32(U32(U32(1) << width) - U32(1)))
            tail = U32(tail | U32(item << U32(U64(shifts >> U64(U32(plane << U32(3)))) & U64(255))))
    return tail


@device
def merge(words, start, last, n, log2, book, base, references_at, reference_width, column_value, first_span, n_spans, form,
          tables, symbols, region, even_cells, odd_cells, bit_cells, mask_cells, out, target):
    """Heads and tails into values."""
    lane, head_mask = I32(cuda.threadIdx.x), U32(U32(U32(1) << form.head_bits) - U32(1))
    for tile in range(I32(0), n, TILE):
        begin, marks, masks = I32(tile + I32(lane * STRIDE)), U64(0), U64(0)
        for i in range(begin, min(I32(begin + STRIDE), n)):
            mark = U32(U32(U32(tables.infos[book, symbol_at(symbols, i, log2)]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
            masks = U64(masks | mask_of(mark, U32(i - begin)))
        even, odd = evens(marks), odds(marks)
        even_cells[lane], odd_cells[lane], bit_cells[lane], mask_cells[lane] = even, odd, U64(0), masks
        scan_three(even_cells, odd_cells, bit_cells, form.n_planes > U32(1))
        tile_even, tile_odd = U64(even_cells[N - I32(1)]), U64(odd_cells[N - I32(1)])
        cuda.syncthreads()
        even_cells[lane] = U64(U64(even_cells[lane]) - even)
        odd_cells[lane] = U64(U64(odd_cells[lane]) - odd)
        cuda.syncthreads()
        for i in range(I32(tile + lane), min(I32(tile + TILE), n), N):
            symbol, value = symbol_at(symbols, i, log2), U32(0)
            if symbol:
                info = U32(tables.infos[book, symbol])
                j = I32(I32(i - tile) // STRIDE)
                tail = tail_at(words, start, last, info, U32(i & BAND), mask_cells[j], even_cells[j], odd_cells[j], form,
                               tables, region)
                if symbol == U32(ESCAPE):
                    head = U32(U32(out[target + U64(i)]) & head_mask)
                else:
                    head = U32(base + number_at(words, start, last, references_at, I32(i >> log2), reference_width))
                    head = U32(head + U32(info & U32(0xFFFF)))
                    if column_value >= 0:
                        more = column_reference(tables.spans, tables.heads, first_span, n_spans, column_value + i)
                        head = U32(head + more)
                    head = U32(head & head_mask)
                value = value_of(head, tail, form.width, form.tail_bits)
            out[target + U64(i)] = value
        cuda.syncthreads()
        if lane == 0:
            for p in range(form.n_planes):
                items = number_in(tile_even, tile_odd, U32(p))
                region[p] = U32(U32(region[p]) + U32(items * U32(tables.widths[p])))
        cuda.syncthreads()


@device
def copy_values(words, start, n, n_stored, form, out, target):
    """The values of a raw block, or of a constant one, of which one is stored."""
    per_word = I32(U32(32) // form.width)
    mask = U32(U64(U64(U64(1) << U64(form.width)) - U64(1)) & U64(0xFFFFFFFF))
    for i in range(I32(cuda.threadIdx.x), n, N):
        k = i if n_stored > 1 else I32(0)
        word = U32(words[start + U64(I32(I32(4) + I32(k // per_word)))])
        out[target + U64(i)] = U32(U32(word >> U32(U32(k % per_word) * form.width)) & mask)


@device
def check_plain(words, start, size, n_stored, form):
    """Status of a constant or raw block's header and sizes."""
    if U32(words[start]) >> U32(8):
        return BAD_FIELD
    body = U32(U32(HEADER) + U32(U32(n_stored) * U32(form.width >> U32(3))))
    if U32(U32(body + U32(7)) & ~U32(7)) != U32(size):
        return BAD_SIZE
    return OK if has_zeros(words, start, body, U32(size)) else BAD_FIELD


@kernel
def decode_blocks(words, frames, owner, offsets, sizes, form, tables, out, statuses):
    """Decode a block of the grid's block of a frame.

    ``words``: uint32, ``out``: uintW: all frames and their values are reached from their places on; ``frames``:
    int64[n_frames, 10], see :mod:`parameters`; ``owner``: int32[n_blocks], which frame a block is of; ``offsets``,
    ``sizes``: int64[n_blocks], bytes from the frame's start, checked to lie inside it and multiples of 8; ``form``: a
    :class:`parameters.Form`; ``tables``: :class:`parameters.DecodeTables`; ``statuses``: int32[n_blocks], results as of
    :mod:`gcodec.kernels.blocks`. Values of a block that is not OK are undefined.
    """
    symbols = cuda.shared.array(SYMBOL_WORDS, np.uint32)
    lookup = cuda.shared.array(TABLE_SIZE, np.uint16)
    stream_bytes = cuda.shared.array(MOST_STREAMS, np.uint32)
    begins = cuda.shared.array(MOST_STREAMS, np.uint32)
    even_cells = cuda.shared.array(THREADS, np.uint64)
    odd_cells = cuda.shared.array(THREADS, np.uint64)
    bit_cells = cuda.shared.array(THREADS, np.uint64)
    mask_cells = cuda.shared.array(THREADS, np.uint64)
    region = cuda.shared.array(8, np.uint32)
    totals = cuda.shared.array(2, np.uint64)
    sums = cuda.shared.array(2, np.uint32)

    lane, g = I32(cuda.threadIdx.x), block_number()
    f = owner[g]
    b = I32(g - I32(frames[f, FIRST]))
    block_log2, log2 = U64(frames[f, BLOCK_LOG2]), I32(frames[f, STREAM])
    first_value = U64(U64(b) << block_log2)
    n = I32(min(U64(U64(frames[f, COUNT]) - first_value), U64(U64(1) << block_log2)))
    n_streams = I32(I32(I32(n + I32(I32(1) << log2)) - I32(1)) >> log2)
    start = U64(U64(frames[f, FRAME]) + U64(U64(offsets[g]) >> U64(2)))
    target, size = U64(U64(frames[f, TARGET]) + first_value), sizes[g]
    if size < HEADER or size > BLOCK_BYTES:
        if lane == 0:
            statuses[g] = BAD_SIZE
        return
    if lane == 0:
        totals[0], totals[1], sums[STATUS] = U64(0), U64(0), U32(OK)
    cuda.syncthreads()
    cuda.atomic.add(totals, 0, sum_of_words(words, start, I32(size >> 2)))
    cuda.syncthreads()
    w0, w1, w2, w3 = U32(words[start]), U32(words[start + U64(1)]), U32(words[start + U64(2)]), U32(words[start + U64(3)])
    found = U64(U64(totals[0]) + U64(seed_of(b) - U64(weighed(w2, 2) + weighed(w3, 3))))
    kind, c = U32(w0 & U32(255)), U32(U32(w0 >> U32(8)) & U32(255))
    status = OK
    if found != U64(U64(w2) | U64(U64(w3) << U64(32))):
        status = BAD_CHECKSUM
    elif kind > U32(CODED):
        status = IS_PREDICTED if kind == U32(PREDICTED) else BAD_KIND
    elif w1 != U32(n):
        status = BAD_FIELD
    elif kind == U32(CODED):
        if size < CODED_HEADER or c >= U32(frames[f, N_BOOKS]):
            status = BAD_FIELD
    else:
        n_stored = I32(1) if kind == U32(CONSTANT) else n
        status = check_plain(words, start, size, n_stored, form)
        if status == OK:
            copy_values(words, start, n, n_stored, form, out, target)
    if status != OK or kind != U32(CODED):
        if lane == 0:
            statuses[g] = status
        return
    book = I32(I32(frames[f, FIRST_BOOK]) + I32(c))
    n_spans = I32(frames[f, N_SPANS])
    status = check_fields(words, start, size, n, n_streams, form, U32(tables.most[book]), n_spans)
    last = U32(I32(size >> 2) - I32(1))
    w4, w5 = U32(words[start + U64(4)]), U32(words[start + U64(5)])
    w6, w7 = U32(words[start + U64(6)]), U32(words[start + U64(7)])
    streams_at = U32(U32(CODED_HEADER) + w5)
    lengths_at = U32(streams_at + w4)
    length_width = U32(U32(w6 >> U32(16)) & U32(255))
    if status == OK:
        cuda.syncthreads()
        if lane == 0:
            totals[0] = U64(0)
        end = place_streams(words, start, last, lengths_at, n_streams, length_width, U32(w6 & U32(0xFFFF)), stream_bytes,
                            begins, bit_cells, streams_at)
        if end != lengths_at:
            status = BAD_STREAM
    if status == OK:
        for i in range(lane, I32(TABLE_SIZE), N):
            lookup[i] = tables.lookups[book, i]
        cuda.syncthreads()
        for s in range(lane, n_streams, N):
            count = min(I32(I32(1) << log2), I32(n - I32(s << log2)))
            row = U32(U32(U32(s) << U32(log2 - I32(2))) + U32(s))
            if stream_bytes[s]:
                used = decode_stream(words, start, last, U32(U32(begins[s]) << U32(3)), count, row, lookup,
                                     form.head_bits, symbols, out, U64(target + U64(I32(s << log2))))
                if ceil_bytes(used) != U32(stream_bytes[s]):
                    sums[STATUS] = U32(BAD_STREAM)
            else:
                fill_run(U32(w7 & U32(255)), count, row, symbols)
        cuda.syncthreads()
        status = BAD_STREAM if sums[STATUS] else OK
    if status == OK:
        count_planes(symbols, n, log2, tables.infos, book, totals)
        if not plane_regions(form, tables.widths, totals, w5, region):
            status = BAD_PLANES
    if status == OK:
        references_at = U32(lengths_at + ceil_bytes(U32(U32(n_streams) * length_width)))
        column_value = np.int64(first_value) if U32(w7 >> U32(8)) else np.int64(-1)
        merge(words, start, last, n, log2, book, U32(w0 >> U32(16)), references_at, U32(w6 >> U32(24)), column_value,
              I32(frames[f, FIRST_SPAN]), n_spans, form, tables, symbols, region, even_cells, odd_cells, bit_cells,
              mask_cells, out, target)
    if lane == 0:
        statuses[g] = status
