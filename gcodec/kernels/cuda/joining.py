"""From sub-streams and planes to values."""

from __future__ import annotations

from numba import cuda

from ..block.header import CODED_HEADER
from ..core.scalar import I32, U32, U64, lesser, spread, value_of
from ..entropy.prefix_code import ESCAPE
from .block_reader import column_reference, number_at
from .block_writer import ceil_bytes
from .grid import BAND, STRIDE, TILE, N, evens, gpu_function, marks_before, number_in, odds, scan_three, strip_mask
from .launch_tables import MOST_BLOCK_LOG2, MOST_STREAMS
from .words import get

#: Symbols lie four in a word, and rows of sub-streams a word apart, so that threads that write one each need not take
#: turns.
SYMBOL_WORDS = (1 << MOST_BLOCK_LOG2) // 4 + MOST_STREAMS


@gpu_function
def decode_stream(words, start, last, bit, count, row, lookup, head_bits, symbols, out, target):
    """The symbols of one sub-stream, from bit ``bit`` of its block on, to words ``row ...`` of ``symbols`` (shared,
    uint32); heads of escapes to where their values will lie in ``out``. Returns how many bits they take. By one
    thread."""
    word = U32(bit >> U32(5))
    inside = U32(bit & U32(31))
    window = U64(U64(words[start + U64(lesser(word, last))]) >> U64(inside))
    filled, used, packed = U32(U32(32) - inside), U32(0), U32(0)
    mask = U32(U32(U32(1) << head_bits) - U32(1))
    for i in range(count):
        if filled < U32(32):
            word = U32(word + U32(1))
            window = U64(window | U64(U64(words[start + U64(lesser(word, last))]) << U64(filled)))
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


@gpu_function
def fill_run(symbol, count, row, symbols):
    """The symbols of a sub-stream of no bytes."""
    four = U32(U32(symbol) * U32(0x01010101))
    for i in range(I32(I32(count + I32(3)) >> 2)):
        symbols[U32(row + U32(i))] = four


@gpu_function
def symbol_at(symbols, i, log2):
    """Symbol of value ``i`` of a block."""
    stream = I32(i >> log2)
    word = I32(I32(i >> 2) + stream)  # rows are a word longer than their symbols
    return U32(U32(U32(symbols[word]) >> U32(U32(U32(i) & U32(3)) << U32(3))) & U32(255))


@gpu_function
def count_planes(symbols, n, log2, infos, book, totals):
    """Count the items of each plane into ``totals`` (shared, uint64[2])."""
    even, odd = U64(0), U64(0)
    for j in range(I32(cuda.threadIdx.x), I32(I32(n + BAND) // STRIDE), N):
        begin, marks = I32(j * STRIDE), U64(0)
        for i in range(begin, lesser(I32(begin + STRIDE), n)):
            mark = U32(U32(U32(infos[book, symbol_at(symbols, i, log2)]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
        even, odd = U64(even + evens(marks)), U64(odd + odds(marks))
    cuda.atomic.add(totals, 0, even)
    cuda.atomic.add(totals, 1, odd)
    cuda.syncthreads()


@gpu_function
def plane_regions(coding, widths, totals, plane_bytes, region):
    """Find where each plane begins, in bits of the block, for ``region`` (shared, uint32[8]).

    Returns whether the planes take so many bytes."""
    at = U32(CODED_HEADER)
    cuda.syncthreads()
    for p in range(coding.n_planes):
        if cuda.threadIdx.x == 0:
            region[p] = U32(at << U32(3))
        at = U32(at + ceil_bytes(U32(number_in(totals[0], totals[1], U32(p)) * U32(widths[p]))))
    cuda.syncthreads()
    return at == U32(U32(CODED_HEADER) + plane_bytes)


@gpu_function
def tail_at(words, start, last, info, rank, masks, even, odd, coding, tables, region):
    """The tail of a value, from the planes."""
    mark, level, tail = U32(U32(info >> U32(16)) & U32(255)), U32(info >> U32(24)), U32(0)
    shifts = U64(tables.shifts[level])
    for p in range(coding.n_planes):
        plane = U32(p)
        if U32(U32(mark >> plane) & U32(1)):
            width = U32(tables.widths[p])
            number = U32(number_in(even, odd, plane) + marks_before(masks, plane, rank))
            item = get(words, start, last, U32(U32(region[p]) + U32(number * width)))
            item = U32(item & U32(U32(U32(1) << width) - U32(1)))
            tail = U32(tail | U32(item << U32(U64(shifts >> U64(U32(plane << U32(3)))) & U64(255))))
    return tail


@gpu_function
def write_values(words, start, last, n, log2, book, base, references_at, reference_width, column_value, first_span,
                n_spans, coding, tables, symbols, region, even_cells, odd_cells, bit_cells, mask_cells,
                out, target):
    """Heads and tails into values. ``column_value``: number of the block's first value, -1 where there are no column
    references; the cells: shared, uint64[THREADS], scratch."""
    lane, head_mask = I32(cuda.threadIdx.x), U32(U32(U32(1) << coding.head_bits) - U32(1))
    for tile in range(I32(0), n, TILE):
        begin, marks, masks = I32(tile + I32(lane * STRIDE)), U64(0), U64(0)
        for i in range(begin, lesser(I32(begin + STRIDE), n)):
            mark = U32(U32(U32(tables.infos[book, symbol_at(symbols, i, log2)]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
            masks = U64(masks | strip_mask(mark, U32(i - begin)))
        even, odd = evens(marks), odds(marks)
        even_cells[lane], odd_cells[lane], bit_cells[lane], mask_cells[lane] = even, odd, U64(0), masks
        scan_three(even_cells, odd_cells, bit_cells, coding.n_planes > U32(1))
        tile_even, tile_odd = U64(even_cells[N - I32(1)]), U64(odd_cells[N - I32(1)])
        cuda.syncthreads()
        even_cells[lane] = U64(U64(even_cells[lane]) - even)
        odd_cells[lane] = U64(U64(odd_cells[lane]) - odd)
        cuda.syncthreads()
        for i in range(I32(tile + lane), lesser(I32(tile + TILE), n), N):
            symbol, value = symbol_at(symbols, i, log2), U32(0)
            if symbol:
                info = U32(tables.infos[book, symbol])
                j = I32(I32(i - tile) // STRIDE)
                tail = tail_at(words, start, last, info, U32(i & BAND), mask_cells[j], even_cells[j], odd_cells[j],
                               coding, tables, region)
                if symbol == U32(ESCAPE):
                    head = U32(U32(out[target + U64(i)]) & head_mask)
                else:
                    head = U32(base + number_at(words, start, last, references_at, I32(i >> log2), reference_width))
                    head = U32(head + U32(info & U32(0xFFFF)))
                    if column_value >= 0:
                        more = column_reference(tables.spans, tables.heads, first_span, n_spans, column_value + i)
                        head = U32(head + more)
                    head = U32(head & head_mask)
                value = value_of(head, tail, coding.width, coding.tail_bits)
            out[target + U64(i)] = value
        cuda.syncthreads()
        if lane == 0:
            for p in range(coding.n_planes):
                items = number_in(tile_even, tile_odd, U32(p))
                region[p] = U32(U32(region[p]) + U32(items * U32(tables.widths[p])))
        cuda.syncthreads()
