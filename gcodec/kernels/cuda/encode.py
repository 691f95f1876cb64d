"""The encoding driver for CUDA: values in, each block in a slot of its own."""

from __future__ import annotations

import numpy as np
from numba import cuda

from ..blocks import CODED, CONSTANT, RAW
from ..prefix_code import ESCAPE, NO_CODE
from ..scalar import I32, U8, U32, U64, rounded, spread, symbol_of, tail_of
from .bits import finish, flush, put
from .grid import (
    BAND,
    STRIDE,
    STRIP,
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
    weighed,
)
from .parameters import BOOK, FIRST_BLOCK, LEVELS, N_VALUES, REFERENCES, SLOT, STREAM_LOG2, VALUES

BLOCK_LOG2 = 14  #: values per block, for all types that are encoded here
BLOCK = 1 << BLOCK_LOG2
STREAMS = BLOCK >> 6
PLANE_BITS, CODE_BITS = 28, 22  #: most that a value takes in all planes, and as an escape with its share of spare bits
WINDOW = max(THREADS * STRIP * (PLANE_BITS + CODE_BITS) // 32, STREAMS) + 64
REGIONS = 12  #: planes, sub-streams, lengths, references, and the end

#: Cells of the shared array of sums.
DIFFERENT, FAILED, FAULTY, LEAST, MOST, HEADS, NUMBER = range(7)


@device
def value_at(values, levels, at, level_at, i, form, drops):
    """Value ``i`` of a block as it is to be coded, and its level."""
    bits, level = U32(values[at + U64(i)]), U32(0)
    if form.n_levels > U32(1):
        level = U32(levels[level_at + U64(i)])
        level = U32(level & U32(15)) if U32(bits & U32(form.sign - U32(1))) < form.infinity else U32(0)
    if form.lossy:
        bits = U32(
            rounded(bits, drops[level], drops[0], form.sign, form.infinity, form.smallest_normal, form.nearest, form.prune)
        )
    return bits, level


@device
def write_raw(values, levels, at, level_at, n, form, drops, out, place):
    """A raw block's values and padding, from word ``place`` (uint64) of ``out``. Returns this thread's share of the
    checksum."""
    total, per_word = U64(0), I32(U32(32) // form.width)
    n_words = I32(U32(U32(I32(n + per_word) - I32(1)) // U32(per_word)) + U32(1)) & ~I32(1)
    for j in range(I32(cuda.threadIdx.x), n_words, N):
        word = U32(0)
        for k in range(per_word):
            i = I32(I32(j * per_word) + k)
            if i < n:
                bits, _ = value_at(values, levels, at, level_at, i, form, drops)
                word = U32(word | U32(bits << U32(U32(k) * form.width)))
        out[place + U64(j)] = word
        total = U64(total + weighed(word, U32(j + I32(4))))
    return total


@device
def write_header(kind, c, base, n, b, total, sums, out, place):
    """A block's first four words, once all threads have added up their shares, ``total``, in ``sums[0]`` (shared,
    uint64[1])."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        sums[0] = seed_of(b)
    cuda.syncthreads()
    cuda.atomic.add(sums, 0, U64(total))
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        first = U32(U32(kind) | U32(U32(U32(c) << U32(8)) | U32(U32(base) << U32(16))))
        found = U64(U64(sums[0]) + U64(weighed(first, 0) + weighed(U32(n), 1)))
        out[place] = first
        out[place + U64(1)] = U32(n)
        out[place + U64(2)] = U32(found & U64(0xFFFFFFFF))
        out[place + U64(3)] = U32(found >> U64(32))


@device
def ceil_bytes(bits):
    """Bytes that so many bits take."""
    return U32(U32(U32(bits) + U32(7)) >> U32(3))


@device
def bit_length(number):
    """Bits that a uint32 needs."""
    return U32(U32(32) - U32(cuda.clz(U32(number)))) if number else U32(0)


@device
def find_means(values, levels, at, level_at, n, log2, form, drops, heads, numbers, sums):
    """Add up heads and count the values that are not zero by sub-stream, ``heads`` and ``numbers`` (shared, uint32), and
    note what else there is to know in ``sums``."""
    shift, mask = U32(form.tail_bits - U32(1)), U32(U32(U32(1) << form.head_bits) - U32(1))
    first, _ = value_at(values, levels, at, level_at, I32(0), form, drops)
    different, faulty = U32(0), U32(0)
    for j in range(I32(cuda.threadIdx.x), I32(I32(n + BAND) // STRIDE), N):
        begin, total, number = I32(j * STRIDE), U32(0), U32(0)
        for i in range(begin, min(I32(begin + STRIDE), n)):
            bits, _ = value_at(values, levels, at, level_at, i, form, drops)
            total = U32(total + U32(U32(bits >> shift) & mask))
            number = U32(number + (U32(1) if bits else U32(0)))
            different = U32(different | U32(bits ^ first))
            if form.n_levels > U32(1) and U32(levels[level_at + U64(i)]) >= form.n_levels:
                faulty = U32(1)
        s = I32(begin >> log2)
        cuda.atomic.add(heads, s, total)
        cuda.atomic.add(numbers, s, number)
    if different:
        sums[DIFFERENT] = U32(1)
    if faulty:
        sums[FAULTY] = U32(1)
    cuda.syncthreads()


@device
def find_references(n_streams, with_references, heads, numbers, sums):
    """References of sub-streams from what :func:`find_means` left, into ``heads``. Returns the base and the references'
    width."""
    lane = I32(cuda.threadIdx.x)
    for s in range(lane, n_streams, N):
        number = U32(numbers[s])
        if with_references:
            heads[s] = U32(U32(heads[s]) // max(number, U32(1)))
            if number:
                cuda.atomic.min(sums, LEAST, U32(heads[s]))
                cuda.atomic.max(sums, MOST, U32(heads[s]))
        else:
            cuda.atomic.add(sums, HEADS, U32(heads[s]))
            cuda.atomic.add(sums, NUMBER, number)
            heads[s] = U32(0)
    cuda.syncthreads()
    if not with_references:
        return U32(U32(sums[HEADS]) // max(U32(sums[NUMBER]), U32(1))), U32(0)
    least, most = U32(sums[LEAST]), U32(sums[MOST])
    least = min(least, most)  # of a block of zeros
    for s in range(lane, n_streams, N):
        heads[s] = U32(U32(heads[s]) - least) if U32(heads[s]) > least else U32(0)
    cuda.syncthreads()
    return least, bit_length(U32(most - least))


@device
def measure_symbols(values, levels, at, level_at, n, log2, form, tables, book, base, references, symbols, bits, live, sums,
                    totals):
    """The symbol of each value, how many bits each sub-stream takes (``bits``), whether any of its values is not zero
    (``live``), and how many items each plane has (``totals``, shared, uint64[2])."""
    lane = I32(cuda.threadIdx.x)
    shift, mask = U32(form.tail_bits - U32(1)), U32(U32(U32(1) << form.head_bits) - U32(1))
    codes, ranges, infos = tables.codes, tables.ranges, tables.infos
    for i in range(lane, n, N):
        value, level = value_at(values, levels, at, level_at, i, form, tables.drops)
        reference = U32(base + U32(references[I32(i >> log2)]))
        symbol = symbol_of(value, reference, shift, mask, ranges[book, level, 0], ranges[book, level, 1],
                           ranges[book, level, 2])
        symbols[i] = U8(symbol) if U32(codes[book, symbol] & U32(255)) != U32(NO_CODE) else U8(ESCAPE)
    cuda.syncthreads()
    escape = U32(U32(tables.escapes[book, 1]) + form.head_bits)
    even, odd, failed = U64(0), U64(0), U32(0)
    for j in range(lane, I32(I32(n + BAND) // STRIDE), N):
        begin, total, some, marks = I32(j * STRIDE), U32(0), U32(0), U64(0)
        for i in range(begin, min(I32(begin + STRIDE), n)):
            symbol = U32(symbols[i])
            length = U32(U32(codes[book, symbol]) & U32(255))
            if length == U32(NO_CODE):
                length = escape
                failed = U32(1) if escape == form.head_bits else failed
            total = U32(total + length)
            some = U32(some | symbol)
            marks = U64(marks + U64(spread(U32(U32(infos[book, symbol]) >> U32(16)) & U32(255))))
        even, odd = U64(even + evens(marks)), U64(odd + odds(marks))
        s = I32(begin >> log2)
        cuda.atomic.add(bits, s, total)
        if some:
            live[s] = U32(1)
    cuda.atomic.add(totals, 0, even)
    cuda.atomic.add(totals, 1, odd)
    if failed:
        sums[FAILED] = U32(1)
    cuda.syncthreads()


@device
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


@device
def lay_out(n_streams, symbol_bytes, reference_width, form, widths, totals, sums, region):
    """The bits of the block at which its regions begin, and the body's end: ``region`` (shared, uint32[REGIONS]). Returns
    the body's bytes, the block header included."""
    if cuda.threadIdx.x == 0:
        at = U32(32)
        for p in range(form.n_planes):
            region[p] = U32(at << U32(3))
            at = U32(at + ceil_bytes(U32(number_in(totals[0], totals[1], U32(p)) * U32(widths[p]))))
        streams = I32(form.n_planes)
        region[streams] = U32(at << U32(3))
        at = U32(at + symbol_bytes)
        region[streams + 1] = U32(at << U32(3))
        length_width = bit_length(U32(U32(sums[MOST]) - U32(sums[LEAST])))
        at = U32(at + ceil_bytes(U32(U32(n_streams) * length_width)))
        region[streams + 2] = U32(at << U32(3))
        at = U32(at + ceil_bytes(U32(U32(n_streams) * reference_width)))
        region[streams + 3] = U32(at << U32(3))
    cuda.syncthreads()
    return U32(U32(region[I32(form.n_planes) + I32(3)]) >> U32(3))


@device
def clear_edges(form, region, size, out, place):
    """Set the words at which regions begin and end, and those behind the last one, to zero."""
    for q in range(I32(cuda.threadIdx.x), I32(I32(form.n_planes) + I32(4)), N):
        out[place + U64(U32(region[q]) >> U32(5))] = U32(0)
        out[place + U64(U32(U32(region[q]) - U32(1)) >> U32(5))] = U32(0)
    if cuda.threadIdx.x == 0:
        for word in range(I32(U32(region[I32(form.n_planes) + I32(3)]) >> U32(5)), I32(size >> U32(2))):
            out[place + U64(word)] = U32(0)


@device
def put_codes(begin, n, symbols, values, levels, at, level_at, form, tables, book, window, word, place):
    """The codes of a strip's values, from bit ``place`` of the part of ``window`` that begins at ``word``."""
    place = U32(place + U32(word << U32(5)))
    pending, filled = U64(0), U32(0)
    for i in range(begin, min(I32(begin + STRIDE), n)):
        entry = U32(tables.codes[book, U32(symbols[i])])
        length, code = U32(entry & U32(255)), U32(entry >> U32(8))
        if length == U32(NO_CODE):
            value, _ = value_at(values, levels, at, level_at, i, form, tables.drops)
            head = U32(U32(value >> U32(form.tail_bits - U32(1))) & U32(U32(U32(1) << form.head_bits) - U32(1)))
            length = U32(tables.escapes[book, 1])
            code = U32(U32(tables.escapes[book, 0]) | U32(head << length))
            length = U32(length + form.head_bits)
        pending = U64(pending | U64(U64(code) << U64(filled)))
        filled = U32(filled + length)
        if filled >= U32(32):
            put(window, place, U32(pending & U64(0xFFFFFFFF)), U32(32))
            pending = U64(pending >> U64(32))
            filled, place = U32(filled - U32(32)), U32(place + U32(32))
    if filled:
        put(window, place, U32(pending), filled)


@device
def put_items(i, value, symbol, level_info, rank, masks, even, odd, form, tables, parts, done, region, window):
    """The items that a value owns, into the planes' parts of the window."""
    mark, level = U32(U32(level_info >> U32(16)) & U32(255)), U32(level_info >> U32(24))
    tail = U32(tail_of(value, form.width, form.tail_bits))
    for p in range(form.n_planes):
        plane = U32(p)
        if U32(U32(mark >> plane) & U32(1)):
            width = U32(tables.widths[p])
            number = U32(number_in(even, odd, plane) + marks_before(masks, plane, rank))
            shift = U32(U64(U64(tables.shifts[level]) >> U64(U32(plane << U32(3)))) & U64(255))
            item = U32(U32(tail >> shift) & U32(U32(U32(1) << width) - U32(1)))
            inside = U32(U32(done[p]) & U32(31))
            place = U32(U32(U32(parts[p]) << U32(5)) + U32(inside + U32(number * width)))
            put(window, place, item, width)


@device
def put_numbers(n, least, width, numbers, begin, window):
    """A packed array of ``numbers[i] - least`` from bit ``begin`` of the window."""
    if width:
        for s in range(I32(cuda.threadIdx.x), n, N):
            put(window, U32(begin + U32(U32(s) * width)), U32(U32(numbers[s]) - least), width)


@kernel
def encode_blocks(values, levels, frames, owner, form, tables, out):
    """Encode a block of the grid's block of a frame into its slot.

    ``values``: uintW, ``levels``: uint8 (of several levels only): all frames' are reached from their starts on; ``frames``:
    int64[n_frames, 8], see :mod:`parameters`; ``owner``: int32[n_blocks], which frame a block is of; ``form``: a
    :class:`parameters.Form`; ``tables``: :class:`parameters.EncodeTables`; ``out``: :class:`parameters.Output`.
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
    n = I32(min(U64(U64(frames[f, N_VALUES]) - start), U64(BLOCK)))
    log2, book = I32(frames[f, STREAM_LOG2]), I32(frames[f, BOOK])
    n_streams = I32(I32(I32(n + I32(I32(1) << log2)) - I32(1)) >> log2)
    raw_words = U32(U32(4) + U32(U32(U32(BLOCK) * form.width) >> U32(5)))
    slots, place = out.slots, U64(U64(frames[f, SLOT]) + U64(U64(b) * U64(raw_words)))
    value_bytes = U32(form.width >> U32(3))

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
    find_means(values, levels, at, level_at, n, log2, form, tables.drops, references, bits, sums)
    if lane == 0 and sums[FAULTY]:
        out.faults[f] = U32(1)
    if U32(sums[DIFFERENT]) == U32(0) and n > 1:
        total = U64(0)
        if lane == 0:
            value, _ = value_at(values, levels, at, level_at, I32(0), form, tables.drops)
            slots[place + U64(4)] = value
            slots[place + U64(5)] = U32(0)
            total = weighed(value, 4)
            out.sizes[g], out.kinds[g] = U32(24), U8(CONSTANT)
        write_header(CONSTANT, 0, 0, n, b, total, totals, slots, place)
        return

    body, base, reference_width, symbol_bytes = U32(0xFFFFFFFF), U32(0), U32(0), U32(0)
    if book >= 0 and U32(sums[DIFFERENT]):
        base, reference_width = find_references(n_streams, frames[f, REFERENCES] != 0, references, bits, sums)
        for s in range(lane, n_streams, N):
            bits[s] = U32(0)
        cuda.syncthreads()
        measure_symbols(values, levels, at, level_at, n, log2, form, tables, book, base, references, symbols, bits, live,
                        sums, totals)
        symbol_bytes = place_streams(n_streams, bits, live, starts, bit_cells, sums)
        body = lay_out(n_streams, symbol_bytes, reference_width, form, tables.widths, totals, sums, region)
    if U32(sums[DIFFERENT]) == U32(0) or sums[FAILED] or body >= U32(U32(16) + U32(U32(n) * value_bytes)):
        if lane == 0:
            size = U32(U32(16) + U32(U32(U32(n) * value_bytes) + U32(7)) & ~U32(7))
            out.sizes[g], out.kinds[g] = size, U8(RAW)
        total = write_raw(values, levels, at, level_at, n, form, tables.drops, slots, U64(place + U64(4)))
        write_header(RAW, 0, 0, n, b, total, totals, slots, place)
        return

    size = U32(U32(body + U32(7)) & ~U32(7))
    planes = I32(form.n_planes)
    if lane == 0:
        out.sizes[g], out.kinds[g] = size, U8(CODED)
        word = U32(0)
        for q in range(I32(planes + I32(1))):
            done[q], parts[q] = region[q], word
            width = U32(tables.widths[q]) if q < planes else U32(0)
            word = U32(word + U32(U32(U32(U32(TILE) * width) >> U32(5)) + U32(3)))
    clear_edges(form, region, size, slots, place)
    cuda.syncthreads()
    total, code_bits = U64(0), U32(0)
    for tile in range(I32(0), n, TILE):
        begin = I32(tile + I32(lane * STRIDE))
        marks, masks, own = U64(0), U64(0), U32(0)
        for i in range(begin, min(I32(begin + STRIDE), n)):
            symbol = U32(symbols[i])
            mark = U32(U32(U32(tables.infos[book, symbol]) >> U32(16)) & U32(255))
            marks = U64(marks + U64(spread(mark)))
            masks = U64(masks | mask_of(mark, U32(i - begin)))
            length = U32(U32(tables.codes[book, symbol]) & U32(255))
            if length == U32(NO_CODE):
                length = U32(U32(tables.escapes[book, 1]) + form.head_bits)
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
            put_codes(begin, n, symbols, values, levels, at, level_at, form, tables, book, window, U32(parts[planes]), bit)
        cuda.syncthreads()
        for i in range(I32(tile + lane), min(I32(tile + TILE), n), N):
            symbol = U32(symbols[i])
            info = U32(tables.infos[book, symbol])
            if U32(info & U32(0xFF0000)):
                value, _ = value_at(values, levels, at, level_at, i, form, tables.drops)
                j = I32(I32(i - tile) // STRIDE)
                put_items(i, value, symbol, info, U32(i & BAND), mask_cells[j], even_cells[j], odd_cells[j], form, tables,
                          parts, done, region, window)
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
        plane_bytes = U32(U32(U32(region[planes]) >> U32(3)) - U32(32))
        widths = U32(U32(least & U32(0xFFFF)) | U32(U32(length_width << U32(16)) | U32(reference_width << U32(24))))
        slots[place + U64(4)] = symbol_bytes
        slots[place + U64(5)] = plane_bytes
        slots[place + U64(6)] = widths
        slots[place + U64(7)] = U32(0)
        total = U64(total + U64(weighed(symbol_bytes, 4) + U64(weighed(plane_bytes, 5) + weighed(widths, 6))))
    write_header(CODED, 0, base, n, b, total, totals, slots, place)
