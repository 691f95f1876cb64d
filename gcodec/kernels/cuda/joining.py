"""From sub-streams and planes to values."""

from __future__ import annotations

from numba import cuda

from ..block.header import CODED_HEADER
from ..core.scalar import I32, U32, U64, head_of_symbol, lesser, value_of, with_item
from ..entropy.prefix_code import ESCAPE
from .block_reader import column_reference
from .block_writer import ceil_bytes
from .grid import (
    BAND,
    STRIDE,
    TILE,
    N,
    StripItems,
    evens,
    gpu_function,
    number_in,
    number_of_item,
    odds,
    scan_strips,
    spread,
    strip_mask,
)
from .launch_tables import MAX_BLOCK_LOG2, MAX_STREAMS
from .words import get, number_at

#: Symbols lie four in a word. A row, the symbols of a sub-stream, is followed by a word of nothing, so that threads
#: that write to the same word of their rows reach different banks of shared memory, and need not take turns.
SYMBOL_WORDS = (1 << MAX_BLOCK_LOG2) // 4 + MAX_STREAMS


@gpu_function
def row_of(block, s):
    """Return the word of ``symbols`` at which those of sub-stream ``s`` begin: uint32."""
    return U32(U32(U32(s) << U32(block.log2 - I32(2))) + U32(s))


@gpu_function
def length_of(block, s):
    """Return the number of values of sub-stream ``s``: int32."""
    return lesser(I32(I32(1) << block.log2), I32(block.n - I32(s << block.log2)))


@gpu_function
def decode_stream(source, bit, s, lookup, head_bits, block):
    """Decode the symbols of one sub-stream, by one thread; heads of escapes go to where their values will lie.

        window    next word << filled | ...ccbbbbaa      12 bits of it say the first symbol and the length of its code
        packed    s3 s2 s1 s0                            four symbols to a word of ``symbols``

    Args:
        source: The :class:`words.BlockWords`.
        bit: Bit of it at which the sub-stream begins, uint32.
        s: Number of the sub-stream, int32.
        lookup: The codebook's table, shared, uint16[4096], see :class:`launch_tables.DecodeTables`.
        head_bits: Bits of a head, uint32.
        block: The :class:`block_reader.DecodedBlock`; ``symbols`` are results.

    Returns:
        How many bits the codes take, uint32.
    """
    count, row, target = length_of(block, s), row_of(block, s), U64(block.at + U64(I32(s << block.log2)))
    words, start, last = source.words, source.start, source.last
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
            block.out[target + U64(i)] = U32(U32(U64(window >> U64(length)) & U64(0xFFFFFFFF)) & mask)
            length = U32(length + head_bits)
        window = U64(window >> U64(length))
        filled, used = U32(filled - length), U32(used + length)
        packed = U32(packed | U32(symbol << U32(U32(U32(i) & U32(3)) << U32(3))))
        if I32(i & 3) == 3:
            block.symbols[U32(row + U32(U32(i) >> U32(2)))] = packed
            packed = U32(0)
    if I32(count & 3):
        block.symbols[U32(row + U32(U32(count) >> U32(2)))] = packed
    return used


@gpu_function
def fill_run(symbol, s, block):
    """Give all values of sub-stream ``s``, which has no bytes, the same symbol (uint32)."""
    row, four = row_of(block, s), U32(U32(symbol) * U32(0x01010101))
    for i in range(I32(I32(length_of(block, s) + I32(3)) >> 2)):
        block.symbols[U32(row + U32(i))] = four


@gpu_function
def symbol_at(block, i):
    """Return the symbol of value ``i`` of a block: uint32."""
    s = I32(i >> block.log2)
    word = I32(I32(i >> 2) + s)  # rows are a word longer than their symbols
    return U32(U32(U32(block.symbols[word]) >> U32(U32(U32(i) & U32(3)) << U32(3))) & U32(255))


@gpu_function
def count_planes(block, infos, book, totals):
    """Count the items of each plane of a block, strip by strip.

    Args:
        block: The :class:`block_reader.DecodedBlock`, its symbols known.
        infos: As in :class:`launch_tables.DecodeTables`.
        book: Number of the block's codebook, int32.
        totals: Numbers, as of :func:`grid.evens` and :func:`grid.odds`: results, shared, uint64[2], zeroed.
    """
    even, odd = U64(0), U64(0)
    for j in range(I32(cuda.threadIdx.x), I32(I32(block.n + BAND) // STRIDE), N):
        begin, marks = I32(j * STRIDE), U64(0)
        for i in range(begin, lesser(I32(begin + STRIDE), block.n)):
            mark = U32(U32(U32(infos[book, symbol_at(block, i)]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
        even, odd = U64(even + evens(marks)), U64(odd + odds(marks))
    cuda.atomic.add(totals, 0, even)
    cuda.atomic.add(totals, 1, odd)
    cuda.syncthreads()


@gpu_function
def plane_regions(coding, widths, totals, plane_bytes, region):
    """Find the bit of the block at which each plane begins; return whether the planes take ``plane_bytes``.

    Args:
        coding: The launch's :class:`launch_tables.ValueCoding`.
        widths: Bits of the items of each plane, uint32[8].
        totals: Number of items of each plane, as of :func:`count_planes`.
        plane_bytes: Bytes of all planes, uint32.
        region: Results: shared, uint32[8].
    """
    at = U32(CODED_HEADER)
    cuda.syncthreads()
    for p in range(coding.n_planes):
        if cuda.threadIdx.x == 0:
            region[p] = U32(at << U32(3))
        at = U32(at + ceil_bytes(U32(number_in(totals[0], totals[1], U32(p)) * U32(widths[p]))))
    cuda.syncthreads()
    return at == U32(U32(CODED_HEADER) + plane_bytes)


@gpu_function
def tail_at(source, info, rank, items, coding, tables, region):
    """Return the tail of a value, put together from the planes that it owns items of: uint32.

        plane p    ... | items of the tile before | this item | ...
        tail       item of plane 0 << shift 0 | item of plane 1 << shift 1 | ...

    Args:
        source: The :class:`words.BlockWords`.
        info: What the value's symbol says, as of :func:`launch_tables.info_of`, uint32.
        rank: Number of the value in its strip, uint32.
        items: The strip's :class:`grid.StripItems`.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        tables: Its :class:`launch_tables.DecodeTables`.
        region: Bit of the block at which the tile's items of each plane begin: shared, uint32[8].
    """
    mark, level, tail = U32(U32(info >> U32(16)) & U32(255)), U32(info >> U32(24)), U32(0)
    shifts = U64(tables.shifts[level])
    for p in range(coding.n_planes):
        plane = U32(p)
        if U32(U32(mark >> plane) & U32(1)):
            width = U32(tables.widths[p])
            number = number_of_item(items, plane, rank)
            item = get(source, U32(U32(region[p]) + U32(number * width)))
            item = U32(item & U32(U32(U32(1) << width) - U32(1)))
            shift = U32(U64(shifts >> U64(U32(plane << U32(3)))) & U64(255))
            tail = U32(with_item(tail, item, shift))
    return tail


@gpu_function
def write_values(source, block, heads, tables, book, coding, region, cells):
    """Put heads and tails together to values, tile by tile.

        1  each thread counts the items of its strip; a scan says how many come before it in the tile
        2  all threads write values: an item's place in its plane is that of its number
        3  the planes' regions go on to the next tile

    Args:
        source: The :class:`words.BlockWords`.
        block: The :class:`block_reader.DecodedBlock`, its symbols known; ``out`` is the result.
        heads: The :class:`block_reader.HeadSources`.
        tables: The launch's :class:`launch_tables.DecodeTables`.
        book: Number of the block's codebook, int32.
        coding: The launch's :class:`launch_tables.ValueCoding`.
        region: As of :func:`plane_regions`; then, the bit at which the tile's items of each plane begin.
        cells: Scratch, :class:`grid.StripCells`; ``bits`` is not needed.
    """
    lane, head_mask = I32(cuda.threadIdx.x), U32(U32(U32(1) << coding.head_bits) - U32(1))
    for tile in range(I32(0), block.n, TILE):
        begin, marks, masks = I32(tile + I32(lane * STRIDE)), U64(0), U64(0)
        for i in range(begin, lesser(I32(begin + STRIDE), block.n)):
            mark = U32(U32(U32(tables.infos[book, symbol_at(block, i)]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
            masks = U64(masks | strip_mask(mark, U32(i - begin)))
        even, odd = evens(marks), odds(marks)
        cells.even[lane], cells.odd[lane], cells.bits[lane], cells.masks[lane] = even, odd, U64(0), masks
        scan_strips(cells, coding.n_planes > U32(1))
        tile_even, tile_odd = U64(cells.even[N - I32(1)]), U64(cells.odd[N - I32(1)])
        cuda.syncthreads()
        cells.even[lane] = U64(U64(cells.even[lane]) - even)  # the items before the strip, not those up to its end
        cells.odd[lane] = U64(U64(cells.odd[lane]) - odd)
        cuda.syncthreads()
        for i in range(I32(tile + lane), lesser(I32(tile + TILE), block.n), N):
            symbol, value = symbol_at(block, i), U32(0)
            if symbol:
                info = U32(tables.infos[book, symbol])
                j = I32(I32(i - tile) // STRIDE)
                items = StripItems(cells.even[j], cells.odd[j], cells.masks[j])
                tail = tail_at(source, info, U32(i & BAND), items, coding, tables, region)
                if symbol == U32(ESCAPE):
                    head = U32(U32(block.out[block.at + U64(i)]) & head_mask)
                else:
                    reference = U32(heads.base + number_at(source, heads.references, I32(i >> block.log2)))
                    if heads.first_value >= 0:
                        reference = U32(reference + column_reference(tables, heads, heads.first_value + i))
                    head = U32(head_of_symbol(U32(info & U32(0xFFFF)), reference, head_mask))
                value = value_of(head, tail, coding.width, coding.tail_bits)
            block.out[block.at + U64(i)] = value
        cuda.syncthreads()
        if lane == 0:
            for p in range(coding.n_planes):
                number = number_in(tile_even, tile_odd, U32(p))
                region[p] = U32(U32(region[p]) + U32(number * U32(tables.widths[p])))
        cuda.syncthreads()
