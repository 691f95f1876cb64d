"""Places of the parts of a coded block, and the bits of its codes, items and numbers."""

from __future__ import annotations

from numba import cuda

from ..block.header import CODED_HEADER
from ..core.scalar import I32, U32, U64, lesser, tail_of
from ..entropy.prefix_code import NO_CODE
from .block_symbols import LEAST, MOST, STREAMS, bit_length
from .grid import STRIDE, STRIP, THREADS, N, gpu_function, marks_before, number_in, scan
from .values import value_at
from .words import put

PLANE_BITS, CODE_BITS = 28, 22  #: most that a value takes in all planes, and as an escape with its share of spare bits
WINDOW = max(THREADS * STRIP * (PLANE_BITS + CODE_BITS) // 32, STREAMS) + 64  #: words; a few are incomplete
REGIONS = 12  #: planes, sub-streams, lengths, references, and the end


@gpu_function
def ceil_bytes(bits):
    """Bytes that so many bits take."""
    return U32(U32(U32(bits) + U32(7)) >> U32(3))


@gpu_function
def place_streams(n_streams, bits, live, starts, cells, sums):
    """Bytes of each sub-stream (``bits``, which were bits), where it begins (``starts``), the least and most of them in
    ``sums``. Returns how many they take together."""
    lane, done = I32(cuda.threadIdx.x), U32(0)
    if lane == 0:
        sums[LEAST], sums[MOST] = U32(0xFFFFFFFF), U32(0)
    for first in range(I32(0), n_streams, N):
        s, size = I32(first + lane), U32(0)
        if s < n_streams and live[s]:
            size = ceil_bytes(bits[s])
        cells[lane] = U64(size)
        scan(cells)
        if s < n_streams:
            bits[s] = size
            starts[s] = U32(U32(done + U32(cells[lane])) - size)
            cuda.atomic.min(sums, LEAST, size)
            cuda.atomic.max(sums, MOST, size)
        done = U32(done + U32(cells[N - I32(1)]))
        cuda.syncthreads()
    return done


@gpu_function
def lay_out(n_streams, symbol_bytes, reference_width, coding, widths, totals, sums, region):
    """The bits of the block at which its regions begin, and the body's end: ``region`` (shared, uint32[REGIONS]).
    Returns the body's bytes, the block header included."""
    if cuda.threadIdx.x == 0:
        at = U32(CODED_HEADER)
        for p in range(coding.n_planes):
            region[p] = U32(at << U32(3))
            at = U32(at + ceil_bytes(U32(number_in(totals[0], totals[1], U32(p)) * U32(widths[p]))))
        streams = I32(coding.n_planes)
        region[streams] = U32(at << U32(3))
        at = U32(at + symbol_bytes)
        region[streams + 1] = U32(at << U32(3))
        length_width = bit_length(U32(U32(sums[MOST]) - U32(sums[LEAST])))
        at = U32(at + ceil_bytes(U32(U32(n_streams) * length_width)))
        region[streams + 2] = U32(at << U32(3))
        at = U32(at + ceil_bytes(U32(U32(n_streams) * reference_width)))
        region[streams + 3] = U32(at << U32(3))
    cuda.syncthreads()
    return U32(U32(region[I32(coding.n_planes) + I32(3)]) >> U32(3))


@gpu_function
def clear_edges(coding, region, size, out, place):
    """Set the words at which regions begin and end, and those behind the last one, to zero."""
    for q in range(I32(cuda.threadIdx.x), I32(I32(coding.n_planes) + I32(4)), N):
        out[place + U64(U32(region[q]) >> U32(5))] = U32(0)
        out[place + U64(U32(U32(region[q]) - U32(1)) >> U32(5))] = U32(0)
    if cuda.threadIdx.x == 0:
        for word in range(I32(U32(region[I32(coding.n_planes) + I32(3)]) >> U32(5)), I32(size >> U32(2))):
            out[place + U64(word)] = U32(0)


@gpu_function
def put_codes(begin, n, symbols, values, levels, at, level_at, coding, tables, book, window, word, place):
    """The codes of a strip's values, from bit ``place`` of the part of ``window`` that begins at ``word``."""
    place = U32(place + U32(word << U32(5)))
    pending, filled = U64(0), U32(0)
    for i in range(begin, lesser(I32(begin + STRIDE), n)):
        entry = U32(tables.codes[book, U32(symbols[i])])
        length, code = U32(entry & U32(255)), U32(entry >> U32(8))
        if length == U32(NO_CODE):
            value, _ = value_at(values, levels, at, level_at, i, coding, tables.drops)
            head = U32(U32(value >> U32(coding.tail_bits - U32(1))) & U32(U32(U32(1) << coding.head_bits) - U32(1)))
            length = U32(tables.escapes[book, 1])
            code = U32(U32(tables.escapes[book, 0]) | U32(head << length))
            length = U32(length + coding.head_bits)
        pending = U64(pending | U64(U64(code) << U64(filled)))
        filled = U32(filled + length)
        if filled >= U32(32):
            put(window, place, U32(pending & U64(0xFFFFFFFF)), U32(32))
            pending = U64(pending >> U64(32))
            filled, place = U32(filled - U32(32)), U32(place + U32(32))
    if filled:
        put(window, place, U32(pending), filled)


@gpu_function
def put_items(value, info, rank, masks, even, odd, coding, tables, parts, done, window):
    """The items that a value owns, into the planes' parts of the window."""
    mark, level = U32(U32(info >> U32(16)) & U32(255)), U32(info >> U32(24))
    tail = U32(tail_of(value, coding.width, coding.tail_bits))
    for p in range(coding.n_planes):
        plane = U32(p)
        if U32(U32(mark >> plane) & U32(1)):
            width = U32(tables.widths[p])
            number = U32(number_in(even, odd, plane) + marks_before(masks, plane, rank))
            shift = U32(U64(U64(tables.shifts[level]) >> U64(U32(plane << U32(3)))) & U64(255))
            item = U32(U32(tail >> shift) & U32(U32(U32(1) << width) - U32(1)))
            inside = U32(U32(done[p]) & U32(31))
            place = U32(U32(U32(parts[p]) << U32(5)) + U32(inside + U32(number * width)))
            put(window, place, item, width)


@gpu_function
def put_numbers(n, least, width, numbers, begin, window):
    """A packed array of ``numbers[i] - least`` from bit ``begin`` of the window."""
    if width:
        for s in range(I32(cuda.threadIdx.x), n, N):
            put(window, U32(begin + U32(U32(s) * width)), U32(U32(numbers[s]) - least), width)
