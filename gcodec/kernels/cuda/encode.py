"""The encoding driver for CUDA: values in, each block in a slot of its own."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..block.header import (
    BLOCK_HEADER,
    CODED,
    CODED_HEADER,
    CONSTANT,
    MIN_STREAM_BYTES,
    PLANE_BYTES,
    RAW,
    RUN_SYMBOL,
    SYMBOL_BYTES,
)
from ..core.scalar import I32, U8, U32, U64, lesser
from ..entropy.prefix_code import NO_CODE
from .block_symbols import (
    DIFFERENT,
    FAILED,
    FAULTY,
    MAX,
    MIN,
    STREAMS,
    Streams,
    bit_length,
    find_means,
    measure_symbols,
    references_of_block,
)
from .block_writer import REGIONS, WINDOW, clear_edges, lay_out, place_streams, put_codes, put_items, put_numbers
from .grid import (
    BAND,
    STRIDE,
    THREADS,
    TILE,
    N,
    StripCells,
    StripItems,
    block_number,
    evens,
    gpu_function,
    gpu_kernel,
    number_in,
    odds,
    scan_strips,
    spread,
    strip_mask,
    weighed,
)
from .launch_tables import BOOK, REFERENCES, SLOT, STREAM_LOG2
from .values import BLOCK, block_in_frame, value_at, values_of_block, write_header, write_raw
from .words import BlockSlot, Window, finish, flush


@gpu_kernel
def encode_blocks(tensors, coding, tables, out):
    """Encode a block of the grid's block of a tensor into its slot.

    The block is read up to three times: for heads and whether values differ, for symbols and what they take, and for
    the bits themselves, once it is known where they go. Symbols stay in shared memory from the second time on.

    Args:
        tensors: :class:`launch_tables.Tensors`.
        coding: :class:`launch_tables.ValueCoding`.
        tables: :class:`launch_tables.EncodeTables`.
        out: :class:`launch_tables.Output`, results.
    """
    symbols = cuda.shared.array(BLOCK, np.uint8)
    window_words = cuda.shared.array(WINDOW, np.uint32)
    references = cuda.shared.array(STREAMS, np.uint32)
    bits = cuda.shared.array(STREAMS, np.uint32)
    live = cuda.shared.array(STREAMS, np.uint32)
    starts = cuda.shared.array(STREAMS, np.uint32)
    even_cells = cuda.shared.array(THREADS, np.uint64)
    odd_cells = cuda.shared.array(THREADS, np.uint64)
    bit_cells = cuda.shared.array(THREADS, np.uint64)
    mask_cells = cuda.shared.array(THREADS, np.uint64)
    region = cuda.shared.array(REGIONS, np.uint32)
    done = cuda.shared.array(REGIONS, np.uint32)
    parts = cuda.shared.array(REGIONS, np.uint32)
    sums = cuda.shared.array(8, np.uint32)
    totals = cuda.shared.array(2, np.uint64)

    lane, g = I32(cuda.threadIdx.x), block_number()
    f, b = block_in_frame(tensors)
    block = values_of_block(tensors, f, b, coding, tables.drops)
    log2, book = I32(tensors.rows[f, STREAM_LOG2]), I32(tensors.rows[f, BOOK])
    n_streams = I32(I32(I32(block.n + I32(I32(1) << log2)) - I32(1)) >> log2)
    raw_words = U32(U32(BLOCK_HEADER >> 2) + U32(U32(U32(BLOCK) * coding.width) >> U32(5)))
    slot = BlockSlot(out.slots, U64(U64(tensors.rows[f, SLOT]) + U64(U64(b) * U64(raw_words))))
    value_bytes = U32(coding.width >> U32(3))
    streams = Streams(n_streams, log2, references, bits, live, starts)
    cells = StripCells(even_cells, odd_cells, bit_cells, mask_cells)
    window = Window(window_words, region, done, parts)

    for s in range(lane, I32(STREAMS), N):
        references[s], bits[s], live[s] = U32(0), U32(0), U32(0)
    for i in range(lane, I32(WINDOW), N):
        window_words[i] = U32(0)
    if lane == 0:
        for k in range(8):
            sums[k] = U32(0)
        sums[MIN] = U32(0xFFFFFFFF)
        totals[0], totals[1] = U64(0), U64(0)
    cuda.syncthreads()
    find_means(block, log2, references, bits, sums)
    if lane == 0 and sums[FAULTY]:
        out.faults[f] = U32(1)
    if U32(sums[DIFFERENT]) == U32(0) and block.n > 1:
        total = U64(0)
        if lane == 0:
            value, _ = value_at(block, I32(0))
            slot.words[slot.at + U64(SYMBOL_BYTES >> 2)] = value
            slot.words[slot.at + U64(PLANE_BYTES >> 2)] = U32(0)
            total = weighed(value, 4)
            out.sizes[g], out.kinds[g] = U32(24), U8(CONSTANT)
        write_header(CONSTANT, 0, block.n, b, total, totals, slot)
        return

    body, base, reference_width, symbol_bytes = U32(0xFFFFFFFF), U32(0), U32(0), U32(0)
    if book >= 0 and U32(sums[DIFFERENT]):
        base, reference_width = references_of_block(streams, tensors.rows[f, REFERENCES] != 0, sums)
        for s in range(lane, n_streams, N):
            bits[s] = U32(0)
        cuda.syncthreads()
        measure_symbols(block, tables, book, streams, base, symbols, sums, totals)
        symbol_bytes = place_streams(streams, bit_cells, sums)
        body = lay_out(n_streams, symbol_bytes, reference_width, coding, tables.widths, totals, sums, region)
    raw_body = U32(U32(BLOCK_HEADER) + U32(U32(block.n) * value_bytes))
    if U32(sums[DIFFERENT]) == U32(0) or sums[FAILED] or body >= raw_body:
        if lane == 0:
            size = U32(U32(BLOCK_HEADER) + U32(U32(U32(block.n) * value_bytes) + U32(7)) & ~U32(7))
            out.sizes[g], out.kinds[g] = size, U8(RAW)
        total = write_raw(block, slot)
        write_header(RAW, 0, block.n, b, total, totals, slot)
        return

    size = U32(U32(body + U32(7)) & ~U32(7))
    planes = I32(coding.n_planes)
    if lane == 0:
        out.sizes[g], out.kinds[g] = size, U8(CODED)
        word = U32(0)
        for q in range(I32(planes + I32(1))):  # a part for the items of a tile, and the incomplete words at its ends
            done[q], parts[q] = region[q], word
            width = U32(tables.widths[q]) if q < planes else U32(0)
            word = U32(word + U32(U32(U32(U32(TILE) * width) >> U32(5)) + U32(3)))
    clear_edges(coding, region, size, slot)
    cuda.syncthreads()
    total = write_tiles(block, tables, book, streams, symbols, cells, window, slot)
    total = U64(total + write_numbers(streams, reference_width, sums, window, planes, slot))
    if lane == 0:
        low = U32(sums[MIN])
        length_width = bit_length(U32(U32(sums[MAX]) - low))
        plane_bytes = U32(U32(U32(region[planes]) >> U32(3)) - U32(CODED_HEADER))
        widths = U32(U32(low & U32(0xFFFF)) | U32(U32(length_width << U32(16)) | U32(reference_width << U32(24))))
        slot.words[slot.at + U64(SYMBOL_BYTES >> 2)] = symbol_bytes
        slot.words[slot.at + U64(PLANE_BYTES >> 2)] = plane_bytes
        slot.words[slot.at + U64(MIN_STREAM_BYTES >> 2)] = widths
        slot.words[slot.at + U64(RUN_SYMBOL >> 2)] = U32(0)
        total = U64(total + U64(weighed(symbol_bytes, 4) + U64(weighed(plane_bytes, 5) + weighed(widths, 6))))
    write_header(CODED, base, block.n, b, total, totals, slot)


@gpu_function
def write_tiles(block, tables, book, streams, symbols, cells, window, slot):
    """Write the planes and sub-streams of a coded block, tile by tile.

        1  each thread counts the items and bits of its strip; a scan says how many come before it in the tile
        2  each thread puts the codes of its strip into the window: codes of a sub-stream follow one another
        3  all threads put items into the window, value by value: an item's place is that of its number
        4  complete words of every region go to the slot, and the window begins anew with the incomplete ones

    Args:
        block: The :class:`values.BlockValues`.
        tables: The launch's :class:`launch_tables.EncodeTables`.
        book: Number of the block's codebook, int32.
        streams: The :class:`block_symbols.Streams`, placed.
        symbols: Symbols of the values, shared, uint8[BLOCK].
        cells: Scratch, :class:`grid.StripCells`.
        window: The :class:`words.Window`, zeroed.
        slot: Where the block goes, a :class:`words.BlockSlot`.

    Returns:
        This thread's share of the checksum, uint64.
    """
    lane, coding, log2 = I32(cuda.threadIdx.x), block.coding, streams.log2
    planes = I32(coding.n_planes)
    total, code_bits = U64(0), U32(0)
    for tile in range(I32(0), block.n, TILE):
        begin = I32(tile + I32(lane * STRIDE))
        marks, masks, strip_bits = U64(0), U64(0), U32(0)
        for i in range(begin, lesser(I32(begin + STRIDE), block.n)):
            symbol = U32(symbols[i])
            mark = U32(U32(U32(tables.infos[book, symbol]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
            masks = U64(masks | strip_mask(mark, U32(i - begin)))
            length = U32(U32(tables.codes[book, symbol]) & U32(255))
            if length == U32(NO_CODE):
                length = U32(U32(tables.escapes[book, 1]) + coding.head_bits)
            strip_bits = U32(strip_bits + length)
        even, odd = evens(marks), odds(marks)
        cells.even[lane], cells.odd[lane], cells.bits[lane], cells.masks[lane] = even, odd, U64(strip_bits), masks
        scan_strips(cells, planes > 1)
        before = U32(code_bits + U32(U32(cells.bits[lane]) - strip_bits))
        tile_even, tile_odd = U64(cells.even[N - I32(1)]), U64(cells.odd[N - I32(1)])
        code_bits = U32(code_bits + U32(cells.bits[N - I32(1)]))
        s = I32(begin >> log2)
        if begin < block.n and I32(begin & I32(I32(I32(1) << log2) - I32(1))) == 0:
            streams.live[s] = before  # from now on: the bits of all codes before the sub-stream
        cuda.syncthreads()
        cells.even[lane] = U64(U64(cells.even[lane]) - even)  # the items before the strip, not those up to its end
        cells.odd[lane] = U64(U64(cells.odd[lane]) - odd)
        if begin < block.n and streams.bits[s]:
            inside = U32(U32(U32(streams.starts[s]) << U32(3)) + U32(before - U32(streams.live[s])))
            bit = U32(U32(U32(window.region[planes]) + inside) - U32(U32(window.done[planes]) & ~U32(31)))
            place = U32(bit + U32(U32(window.parts[planes]) << U32(5)))
            put_codes(block, tables, book, symbols, begin, place, window.words)
        cuda.syncthreads()
        for i in range(I32(tile + lane), lesser(I32(tile + TILE), block.n), N):
            symbol = U32(symbols[i])
            info = U32(tables.infos[book, symbol])
            if U32(info & U32(0xFF0000)):
                value, _ = value_at(block, i)
                j = I32(I32(i - tile) // STRIDE)
                items = StripItems(cells.even[j], cells.odd[j], cells.masks[j])
                put_items(value, info, U32(i & BAND), items, coding, tables, window)
        cuda.syncthreads()
        # Sub-streams are padded to bytes, so the codes are done up to where the next tile's first code goes.
        following = I32(tile + TILE)
        code_end = U32(window.region[I32(planes + I32(1))])
        if following < block.n:
            s = I32(following >> log2)
            code_end = U32(U32(window.region[planes]) + U32(U32(streams.starts[s]) << U32(3)))
            if I32(following & I32(I32(I32(1) << log2) - I32(1))) and streams.bits[s]:
                code_end = U32(code_end + U32(code_bits - U32(streams.live[s])))
        for q in range(I32(planes + I32(1))):
            old, new = U32(window.done[q]), code_end
            if q < planes:
                new = U32(old + U32(number_in(tile_even, tile_odd, U32(q)) * U32(tables.widths[q])))
            total = U64(total + flush(window.words, window.parts[q], old, new, window.region[q], slot))
            cuda.syncthreads()
            if lane == 0:
                window.done[q] = new
        cuda.syncthreads()
    for q in range(lane, I32(planes + I32(1)), N):
        total = U64(total + finish(window.words, window.parts[q], window.done[q], slot))
    cuda.syncthreads()
    return total


@gpu_function
def write_numbers(streams, reference_width, sums, window, planes, slot):
    """Write the lengths and references of a block's sub-streams, which are few: each fit into the window at once.

    Args:
        streams: The :class:`block_symbols.Streams`, placed.
        reference_width: Bits of a packed reference, uint32.
        sums: Cells ``MIN`` and ``MAX`` are those of the sub-streams' bytes: shared, uint32[8].
        window: The :class:`words.Window`.
        planes: Number of planes, int32.
        slot: Where the block goes, a :class:`words.BlockSlot`.

    Returns:
        This thread's share of the checksum, uint64.
    """
    lane, total = I32(cuda.threadIdx.x), U64(0)
    for q in range(I32(2)):
        cuda.syncthreads()
        for i in range(lane, I32(WINDOW), N):
            window.words[i] = U32(0)
        cuda.syncthreads()
        from_bit, to_bit = U32(window.region[planes + I32(1) + q]), U32(window.region[planes + I32(2) + q])
        inside = U32(from_bit & U32(31))
        if q == 0:
            low = U32(sums[MIN])
            put_numbers(streams.bits, streams.n, low, bit_length(U32(U32(sums[MAX]) - low)), inside, window.words)
        else:
            put_numbers(streams.references, streams.n, U32(0), reference_width, inside, window.words)
        total = U64(total + flush(window.words, U32(0), from_bit, to_bit, from_bit, slot))
        cuda.syncthreads()
        if lane == 0:
            total = U64(total + finish(window.words, U32(0), to_bit, slot))
    return total
