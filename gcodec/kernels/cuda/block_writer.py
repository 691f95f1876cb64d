"""Places of the parts of a coded block, and the bits of its codes, items and numbers."""

from __future__ import annotations

from numba import cuda

from ..block.header import CODED_HEADER
from ..core.scalar import I32, U32, U64, head_of, item_of, lesser, tail_of
from ..entropy.prefix_code import NO_CODE
from .block_symbols import MAX, MIN, STREAMS, bit_length
from .grid import STRIDE, STRIP, THREADS, N, gpu_function, number_in, number_of_item, scan
from .values import value_at
from .words import put

PLANE_BITS, CODE_BITS = 28, 22  #: max that a value takes in all planes, and as an escape with its share of spare bits
WINDOW = max(THREADS * STRIP * (PLANE_BITS + CODE_BITS) // 32, STREAMS) + 64  #: words; a few are incomplete
REGIONS = 12  #: planes, sub-streams, lengths, references, and the end


@gpu_function
def ceil_bytes(bits):
    """Return the bytes that so many bits take."""
    return U32(U32(U32(bits) + U32(7)) >> U32(3))


@gpu_function
def place_streams(streams, cells, sums):
    """Find the bytes of each sub-stream and where it begins; one whose values are all zero takes none.

    Args:
        streams: The :class:`block_symbols.Streams`; ``bits`` become bytes, ``starts`` are results.
        cells: Scratch, shared, uint64[THREADS].
        sums: Cells ``MIN`` and ``MAX`` become those of the sub-streams' bytes: shared, uint32[8].

    Returns:
        The bytes of all sub-streams, uint32.
    """
    lane, done = I32(cuda.threadIdx.x), U32(0)
    if lane == 0:
        sums[MIN], sums[MAX] = U32(0xFFFFFFFF), U32(0)
    for first in range(I32(0), streams.n, N):  # a thread for each sub-stream
        s, size = I32(first + lane), U32(0)
        if s < streams.n and streams.live[s]:
            size = ceil_bytes(streams.bits[s])
        cells[lane] = U64(size)
        scan(cells)
        if s < streams.n:
            streams.bits[s] = size
            streams.starts[s] = U32(U32(done + U32(cells[lane])) - size)
            cuda.atomic.min(sums, MIN, size)
            cuda.atomic.max(sums, MAX, size)
        done = U32(done + U32(cells[N - I32(1)]))
        cuda.syncthreads()
    return done


@gpu_function
def lay_out(n_streams, symbol_bytes, reference_width, coding, widths, totals, sums, region):
    """Find the bits of the block at which its regions begin.

        header | plane 0 | plane 1 | ... | sub-streams | lengths | references | zeros up to a multiple of 8 bytes
               ^ 0       ^ 1             ^ n_planes    ^ + 1     ^ + 2        ^ + 3                       of region

    Args:
        n_streams: Number of sub-streams, int32.
        symbol_bytes: Bytes of all sub-streams, uint32.
        reference_width: Bits of a packed reference, uint32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        widths: Bits of the items of each plane, uint32[8].
        totals: Number of items of each plane, as of :func:`grid.evens` and :func:`grid.odds`: uint64[2].
        sums: Cells ``MIN`` and ``MAX`` are those of the sub-streams' bytes: shared, uint32[8].
        region: Results: shared, uint32[REGIONS].

    Returns:
        The body's bytes, the block header included, uint32.
    """
    if cuda.threadIdx.x == 0:
        at = U32(CODED_HEADER)
        for p in range(coding.n_planes):
            region[p] = U32(at << U32(3))
            at = U32(at + ceil_bytes(U32(number_in(totals[0], totals[1], U32(p)) * U32(widths[p]))))
        streams = I32(coding.n_planes)
        region[streams] = U32(at << U32(3))
        at = U32(at + symbol_bytes)
        region[streams + 1] = U32(at << U32(3))
        length_width = bit_length(U32(U32(sums[MAX]) - U32(sums[MIN])))
        at = U32(at + ceil_bytes(U32(U32(n_streams) * length_width)))
        region[streams + 2] = U32(at << U32(3))
        at = U32(at + ceil_bytes(U32(U32(n_streams) * reference_width)))
        region[streams + 3] = U32(at << U32(3))
    cuda.syncthreads()
    return U32(U32(region[I32(coding.n_planes) + I32(3)]) >> U32(3))


@gpu_function
def clear_edges(coding, region, size, slot):
    """Set the words at which regions begin and end, and those behind the last one, to zero.

    Two regions put their bits into such a word by an atomic OR; all other words are written once, and need no zeros.

    Args:
        coding: The launch's :class:`launch_tables.ValueCoding`.
        region: Bits at which regions begin, as of :func:`lay_out`.
        size: Bytes of the block, uint32.
        slot: Where the block goes, a :class:`words.BlockSlot`.
    """
    for q in range(I32(cuda.threadIdx.x), I32(I32(coding.n_planes) + I32(4)), N):
        slot.words[slot.at + U64(U32(region[q]) >> U32(5))] = U32(0)
        slot.words[slot.at + U64(U32(U32(region[q]) - U32(1)) >> U32(5))] = U32(0)
    if cuda.threadIdx.x == 0:
        for word in range(I32(U32(region[I32(coding.n_planes) + I32(3)]) >> U32(5)), I32(size >> U32(2))):
            slot.words[slot.at + U64(word)] = U32(0)


@gpu_function
def put_codes(block, tables, book, symbols, begin, place, window):
    """Put the codes of a strip's values into the window; an escape's is followed by its head.

        pending    .... cccbbbbaa      codes a, b, c from the lowest bit up; 32 bits go to the window at a time

    Args:
        block: The :class:`values.BlockValues`.
        tables: The launch's :class:`launch_tables.EncodeTables`.
        book: Number of the block's codebook, int32.
        symbols: Symbols of the block's values, shared, uint8[BLOCK].
        begin: First value of the strip, int32.
        place: Bit of the window for the first code, uint32.
        window: The window's words, shared, uint32.
    """
    pending, filled, coding = U64(0), U32(0), block.coding
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    for i in range(begin, lesser(I32(begin + STRIDE), block.n)):
        entry = U32(tables.codes[book, U32(symbols[i])])
        length, code = U32(entry & U32(255)), U32(entry >> U32(8))
        if length == U32(NO_CODE):
            value, _ = value_at(block, i)
            head = U32(head_of(value, shift, mask))
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
def put_items(value, info, rank, items, coding, tables, window):
    """Put the items that a value owns into the planes' parts of the window.

        tail       s mmmmmmm mmmmmmmm mmmmmmmm      a value's sign and mantissa
        items      [plane 0] [plane 1] ...          each from bit ``shift`` of the tail on, ``width`` bits
        plane p    ... | items of the tile before | this item | ...        of the same width, one after another

    Args:
        value: The value, uint32.
        info: What its symbol says, as of :func:`launch_tables.info_of`, uint32.
        rank: Number of the value in its strip, uint32.
        items: The strip's :class:`grid.StripItems`.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        tables: Its :class:`launch_tables.EncodeTables`.
        window: The :class:`words.Window`.
    """
    mark, level = U32(U32(info >> U32(16)) & U32(255)), U32(info >> U32(24))
    tail = U32(tail_of(value, coding.width, coding.tail_bits))
    for p in range(coding.n_planes):
        plane = U32(p)
        if U32(U32(mark >> plane) & U32(1)):
            width = U32(tables.widths[p])
            number = number_of_item(items, plane, rank)
            shift = U32(U64(U64(tables.shifts[level]) >> U64(U32(plane << U32(3)))) & U64(255))
            item = U32(item_of(tail, shift, U32(U32(U32(1) << width) - U32(1))))
            inside = U32(U32(window.done[p]) & U32(31))
            place = U32(U32(U32(window.parts[p]) << U32(5)) + U32(inside + U32(number * width)))
            put(window.words, place, item, width)


@gpu_function
def put_numbers(numbers, n, low, width, begin, window):
    """Put a packed array of ``numbers[i] - low`` into the window; a thread for each number.

    Args:
        numbers: The numbers, shared, uint32.
        n: How many they are, int32.
        low: The lowest of them, uint32.
        width: Bits of each, uint32.
        begin: Bit of the window for the first one, uint32.
        window: The window's words, shared, uint32.
    """
    if width:
        for s in range(I32(cuda.threadIdx.x), n, N):
            put(window, U32(begin + U32(U32(s) * width)), U32(U32(numbers[s]) - low), width)
