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
from ..core.scalar import I32, U8, U32, U64, lesser, spread
from ..entropy.prefix_code import NO_CODE
from .block_symbols import (
    DIFFERENT,
    FAILED,
    FAULTY,
    LEAST,
    MOST,
    STREAMS,
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
    block_number,
    evens,
    gpu_kernel,
    number_in,
    odds,
    scan_three,
    strip_mask,
    weighed,
)
from .launch_tables import BOOK, FIRST_BLOCK, LEVELS, N_VALUES, REFERENCES, SLOT, STREAM_LOG2, VALUES
from .values import BLOCK, BLOCK_LOG2, value_at, write_header, write_raw
from .words import finish, flush


@gpu_kernel
def encode_blocks(values, levels, frames, owner, coding, tables, out):
    """Encode a block of the grid's block of a frame into its slot.

    ``values``: uintW, ``levels``: uint8 (of several levels only): all frames' are reached from their starts on;
    ``frames``: int64[n_frames, 8], see :mod:`launch_tables`; ``owner``: int32[n_blocks], which frame a block is of;
    ``coding``: a :class:`launch_tables.ValueCoding`; ``tables``: :class:`launch_tables.EncodeTables`; ``out``:
    :class:`launch_tables.Output`.
    """
    symbols = cuda.shared.array(BLOCK, np.uint8)
    window = cuda.shared.array(WINDOW, np.uint32)
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
    f = owner[g]
    b = I32(g - I32(frames[f, FIRST_BLOCK]))
    start = U64(U64(b) << U64(BLOCK_LOG2))
    at, level_at = U64(U64(frames[f, VALUES]) + start), U64(U64(frames[f, LEVELS]) + start)
    n = I32(lesser(U64(U64(frames[f, N_VALUES]) - start), U64(BLOCK)))
    log2, book = I32(frames[f, STREAM_LOG2]), I32(frames[f, BOOK])
    n_streams = I32(I32(I32(n + I32(I32(1) << log2)) - I32(1)) >> log2)
    raw_words = U32(U32(BLOCK_HEADER >> 2) + U32(U32(U32(BLOCK) * coding.width) >> U32(5)))
    slots, place = out.slots, U64(U64(frames[f, SLOT]) + U64(U64(b) * U64(raw_words)))
    value_bytes = U32(coding.width >> U32(3))

    for s in range(lane, I32(STREAMS), N):
        references[s], bits[s], live[s] = U32(0), U32(0), U32(0)
    for i in range(lane, I32(WINDOW), N):
        window[i] = U32(0)
    if lane == 0:
        for k in range(8):
            sums[k] = U32(0)
        sums[LEAST] = U32(0xFFFFFFFF)
        totals[0], totals[1] = U64(0), U64(0)
    cuda.syncthreads()
    find_means(values, levels, at, level_at, n, log2, coding, tables.drops, references, bits, sums)
    if lane == 0 and sums[FAULTY]:
        out.faults[f] = U32(1)
    if U32(sums[DIFFERENT]) == U32(0) and n > 1:
        total = U64(0)
        if lane == 0:
            value, _ = value_at(values, levels, at, level_at, I32(0), coding, tables.drops)
            slots[place + U64(SYMBOL_BYTES >> 2)] = value
            slots[place + U64(PLANE_BYTES >> 2)] = U32(0)
            total = weighed(value, 4)
            out.sizes[g], out.kinds[g] = U32(24), U8(CONSTANT)
        write_header(CONSTANT, 0, 0, n, b, total, totals, slots, place)
        return

    body, base, reference_width, symbol_bytes = U32(0xFFFFFFFF), U32(0), U32(0), U32(0)
    if book >= 0 and U32(sums[DIFFERENT]):
        base, reference_width = references_of_block(n_streams, frames[f, REFERENCES] != 0, references, bits, sums)
        for s in range(lane, n_streams, N):
            bits[s] = U32(0)
        cuda.syncthreads()
        measure_symbols(values, levels, at, level_at, n, log2, coding, tables, book, base, references, symbols, bits,
                        live, sums, totals)
        symbol_bytes = place_streams(n_streams, bits, live, starts, bit_cells, sums)
        body = lay_out(n_streams, symbol_bytes, reference_width, coding, tables.widths, totals, sums, region)
    if U32(sums[DIFFERENT]) == U32(0) or sums[FAILED] or body >= U32(U32(BLOCK_HEADER) + U32(U32(n) * value_bytes)):
        if lane == 0:
            size = U32(U32(BLOCK_HEADER) + U32(U32(U32(n) * value_bytes) + U32(7)) & ~U32(7))
            out.sizes[g], out.kinds[g] = size, U8(RAW)
        total = write_raw(values, levels, at, level_at, n, coding, tables.drops, slots, U64(place + U64(4)))
        write_header(RAW, 0, 0, n, b, total, totals, slots, place)
        return

    size = U32(U32(body + U32(7)) & ~U32(7))
    planes = I32(coding.n_planes)
    if lane == 0:
        out.sizes[g], out.kinds[g] = size, U8(CODED)
        word = U32(0)
        for q in range(I32(planes + I32(1))):
            done[q], parts[q] = region[q], word
            width = U32(tables.widths[q]) if q < planes else U32(0)
            word = U32(word + U32(U32(U32(U32(TILE) * width) >> U32(5)) + U32(3)))
    clear_edges(coding, region, size, slots, place)
    cuda.syncthreads()
    total, code_bits = U64(0), U32(0)
    for tile in range(I32(0), n, TILE):
        begin = I32(tile + I32(lane * STRIDE))
        marks, masks, own = U64(0), U64(0), U32(0)
        for i in range(begin, lesser(I32(begin + STRIDE), n)):
            symbol = U32(symbols[i])
            mark = U32(U32(U32(tables.infos[book, symbol]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
            masks = U64(masks | strip_mask(mark, U32(i - begin)))
            length = U32(U32(tables.codes[book, symbol]) & U32(255))
            if length == U32(NO_CODE):
                length = U32(U32(tables.escapes[book, 1]) + coding.head_bits)
            own = U32(own + length)
        even, odd = evens(marks), odds(marks)
        even_cells[lane], odd_cells[lane], bit_cells[lane], mask_cells[lane] = even, odd, U64(own), masks
        scan_three(even_cells, odd_cells, bit_cells, planes > 1)
        before = U32(code_bits + U32(U32(bit_cells[lane]) - own))
        tile_even, tile_odd = U64(even_cells[N - I32(1)]), U64(odd_cells[N - I32(1)])
        code_bits = U32(code_bits + U32(bit_cells[N - I32(1)]))
        s = I32(begin >> log2)
        if begin < n and I32(begin & I32(I32(I32(1) << log2) - I32(1))) == 0:
            live[s] = before  # from now on: the bits of all codes before the sub-stream
        cuda.syncthreads()
        even_cells[lane] = U64(U64(even_cells[lane]) - even)
        odd_cells[lane] = U64(U64(odd_cells[lane]) - odd)
        if begin < n and bits[s]:
            bit = U32(U32(region[planes]) + U32(U32(U32(starts[s]) << U32(3)) + U32(before - U32(live[s]))))
            bit = U32(bit - U32(U32(done[planes]) & ~U32(31)))
            part = U32(parts[planes])
            put_codes(begin, n, symbols, values, levels, at, level_at, coding, tables, book, window, part, bit)
        cuda.syncthreads()
        for i in range(I32(tile + lane), lesser(I32(tile + TILE), n), N):
            symbol = U32(symbols[i])
            info = U32(tables.infos[book, symbol])
            if U32(info & U32(0xFF0000)):
                value, _ = value_at(values, levels, at, level_at, i, coding, tables.drops)
                j = I32(I32(i - tile) // STRIDE)
                put_items(value, info, U32(i & BAND), mask_cells[j], even_cells[j], odd_cells[j], coding, tables, parts,
                          done, window)
        cuda.syncthreads()
        following = I32(tile + TILE)
        code_end = U32(region[I32(planes + I32(1))])
        if following < n:
            s = I32(following >> log2)
            code_end = U32(U32(region[planes]) + U32(U32(starts[s]) << U32(3)))
            if I32(following & I32(I32(I32(1) << log2) - I32(1))) and bits[s]:
                code_end = U32(code_end + U32(code_bits - U32(live[s])))
        for q in range(I32(planes + I32(1))):
            old, new = U32(done[q]), code_end
            if q < planes:
                new = U32(old + U32(number_in(tile_even, tile_odd, U32(q)) * U32(tables.widths[q])))
            total = U64(total + flush(window, parts[q], old, new, region[q], slots, place))
            cuda.syncthreads()
            if lane == 0:
                done[q] = new
        cuda.syncthreads()
    for q in range(lane, I32(planes + I32(1)), N):
        total = U64(total + finish(window, parts[q], done[q], slots, place))
    cuda.syncthreads()
    # Lengths and references are few: both fit into the window at once.
    for q in range(I32(2)):
        cuda.syncthreads()
        for i in range(lane, I32(WINDOW), N):
            window[i] = U32(0)
        cuda.syncthreads()
        from_bit, to_bit = U32(region[planes + I32(1) + q]), U32(region[planes + I32(2) + q])
        inside = U32(from_bit & U32(31))
        if q == 0:
            least = U32(sums[LEAST])
            put_numbers(n_streams, least, bit_length(U32(U32(sums[MOST]) - least)), bits, inside, window)
        else:
            put_numbers(n_streams, U32(0), reference_width, references, inside, window)
        total = U64(total + flush(window, U32(0), from_bit, to_bit, from_bit, slots, place))
        cuda.syncthreads()
        if lane == 0:
            total = U64(total + finish(window, U32(0), to_bit, slots, place))
    if lane == 0:
        least = U32(sums[LEAST])
        length_width = bit_length(U32(U32(sums[MOST]) - least))
        plane_bytes = U32(U32(U32(region[planes]) >> U32(3)) - U32(CODED_HEADER))
        widths = U32(U32(least & U32(0xFFFF)) | U32(U32(length_width << U32(16)) | U32(reference_width << U32(24))))
        slots[place + U64(SYMBOL_BYTES >> 2)] = symbol_bytes
        slots[place + U64(PLANE_BYTES >> 2)] = plane_bytes
        slots[place + U64(MIN_STREAM_BYTES >> 2)] = widths
        slots[place + U64(RUN_SYMBOL >> 2)] = U32(0)
        total = U64(total + U64(weighed(symbol_bytes, 4) + U64(weighed(plane_bytes, 5) + weighed(widths, 6))))
    write_header(CODED, 0, base, n, b, total, totals, slots, place)
