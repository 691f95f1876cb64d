"""Sub-streams: bits to symbols, by table look-ups in four sub-streams at a time.

A look-up takes the 12 lowest bits of a window and gives up to six symbols at once, with the bits they take:

    data       ... 00ddcccc cbbbbaaa       codes a (3 bits), b (4), c (5), d (2) from the lowest bit up
    window             cccccbbbbaaa        12 bits, the index into the table
    entry      number 3 | bits 12 | . . . c b a        eight bytes; all six symbols are stored, three are kept

Four such lanes, of four sub-streams, take turns: while one waits for its entry, the others' look-ups are under way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..core.jit import inlined, kernel
from ..core.scalar import U64
from ..core.simd import slot_for
from ..core.unaligned import fetch, load_u64, pointer, subarray, width_of
from .encode_streams import STREAM_PAD
from .prefix_code import ESCAPE

N_DECODERS = 4
LOOKUPS = 4  #: per lane and round: what 57 bits, all that a window is sure to hold, are enough for
PLACE, BIT, END, STREAM, FETCH = range(5)  #: rows of ``decoders``
_INT, _BYTE = ir.IntType(64), ir.IntType(8)


@intrinsic
def decode_rounds(typingctx: Any, data: Any, table: Any, decoders: Any, symbols: Any, target: Any) -> Any:
    """Decode rounds of :data:`LOOKUPS` look-ups in each of four lanes, without a branch, until all lanes have come to
    their ends, or one to an escape.

    A lane may run up to 23 symbols past its end in its last round, and stays there. An escape's entry is 0 bits long:
    its lane stands still until the caller has dealt with it.

    Args:
        data: uint8.
        table: uint64[4096] of :func:`prefix_code.decode_table`.
        decoders: int64[5, 4]: of each lane the place in ``symbols`` and the bit in ``data``, which are updated, the
            place where it ends, what is the caller's; then bytes of ``data`` and of ``target`` from which on cache
            lines are fetched meanwhile, about as many in a round as its symbols stand for, and where that stops.
        symbols: uint8, result.
        target: uintW, see ``decoders``.
    """
    # Emitted instruction by instruction, so that the places and bits of four lanes stay in registers (see slot_for),
    # and that the four chains of load, shift and add, each of which waits for its own look-up, are interleaved as they
    # stand.
    value_bytes = target.dtype.bitwidth // 8

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def base(i: int, kind: Any) -> Any:
            at = pointer(context, builder, signature.args[i], args[i], ir.Constant(_INT, 0))
            return builder.bitcast(at, kind.as_pointer())

        def number(value: int) -> Any:
            return ir.Constant(_INT, value)

        def row(k: int) -> list[Any]:
            return [builder.gep(state, [number(N_DECODERS * k + lane)]) for lane in range(N_DECODERS)]

        bytes_, entries, state, symbols_at = base(0, _BYTE), base(1, _INT), base(2, _INT), base(3, _BYTE)
        ends = [builder.load(place) for place in row(END)]
        limits = [builder.load(place) for place in row(FETCH)[2:]]
        places = [*row(PLACE), *row(BIT), *row(FETCH)[:2]]
        slots = [slot_for(builder, builder.load(place)) for place in places]
        fetched = ((bytes_, value_bytes // 2 or 1), (base(4, _BYTE), value_bytes))
        loop, after = builder.append_basic_block("round"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        first, bit = ([builder.load(slot) for slot in slots[k : k + N_DECODERS]] for k in (0, N_DECODERS))
        windows, targets, sums = [], [], [number(0)] * N_DECODERS
        for lane in range(N_DECODERS):
            address = builder.gep(bytes_, [builder.lshr(bit[lane], number(3))])
            word = builder.load(builder.bitcast(address, _INT.as_pointer()), align=1)
            windows.append(builder.lshr(word, builder.and_(bit[lane], number(7))))
            targets.append(builder.gep(symbols_at, [first[lane]]))
        for _ in range(LOOKUPS):
            for lane in range(N_DECODERS):
                entry = builder.load(builder.gep(entries, [builder.and_(windows[lane], number(4095))]))
                address = builder.gep(targets[lane], [builder.lshr(sums[lane], number(8))])
                builder.store(entry, builder.bitcast(address, _INT.as_pointer()), align=1)
                # The sum of entries' upper bytes is two sums in one number, which do not meet: at most 48 bits and 24
                # symbols.
                #
                #     counts      number | bits
                #     sums        all numbers | all bits      `>> 8`: how many symbols so far; `& 255`: how many bits
                #
                # `& 63` for the shift is the bits alone: they are at most 12, and x86 cuts off the amount there anyway.
                counts = builder.lshr(entry, number(48))  # bits, and in the next byte symbols
                windows[lane] = builder.lshr(windows[lane], builder.and_(counts, number(63)))
                sums[lane] = builder.add(sums[lane], counts)  # at most 48 bits together
        all_done, stuck = ir.Constant(ir.IntType(1), 1), ir.Constant(ir.IntType(1), 0)
        # One window for the whole round: loaded at the byte of the next bit, it has 57 to 64 bits of codes; the four
        # look-ups of 12 bits take at most 48 of them.
        #
        #     word       x x x x x x x x      8 bytes from byte bit >> 3 on
        #     window     codes ... cbbbaa     moved down by bit & 7: the next code is lowest
        for lane in range(N_DECODERS):
            # A lane that was done when the round began has looked up in vain, instead of a branch: its place and bit
            # stay, and what it stored is in the padding behind its sub-stream. First done after at most 23 symbols too
            # many, then 18 more and a store of 8 bytes: 49 bytes of the 64 of STREAM_PAD.
            done = builder.icmp_signed(">=", first[lane], ends[lane])
            place = builder.select(done, first[lane], builder.add(first[lane], builder.lshr(sums[lane], number(8))))
            bits = builder.and_(sums[lane], number(255))
            builder.store(place, slots[lane])
            builder.store(builder.select(done, bit[lane], builder.add(bit[lane], bits)), slots[N_DECODERS + lane])
            now = builder.icmp_signed(">=", place, ends[lane])
            all_done = builder.and_(all_done, now)
            # No bits in four look-ups: the first was the entry of an escape. A lane that comes to one within a round
            # stands still there and is found stuck in the next.
            stuck = builder.or_(stuck, builder.and_(builder.icmp_signed("==", bits, number(0)), builder.not_(now)))
        # At the end of the array the last lines are fetched again and again: of what may have no memory, the processor
        # would look for the page each time, which takes as long as a round.
        for slot, (start, n_lines), limit in zip(slots[-2:], fetched, limits, strict=True):
            line = builder.load(slot)
            for k in range(n_lines):
                fetch(builder, builder.gep(start, [builder.add(line, number(64 * k))]))
            following = builder.add(line, number(64 * n_lines))
            is_beyond = builder.icmp_signed(">", following, limit)
            builder.store(builder.select(is_beyond, limit, following), slot)
        builder.cbranch(builder.or_(all_done, stuck), after, loop)
        builder.position_at_end(after)
        for place, slot in zip(places, slots, strict=True):
            builder.store(builder.load(slot), place)
        return context.get_dummy_value()

    return types.void(data, table, decoders, symbols, target), generate


class PrefixDecoder(NamedTuple):
    """A prefix code to decode with.

    Attributes:
        table: uint64[4096] of :func:`prefix_code.decode_table`.
        lengths: uint8[256], bits of each symbol's code.
        escape_length: Bits of the escape's code.
        head_bits: Bits of the head that follows an escape.
        run_symbol: Symbol of the values of empty sub-streams.
    """

    table: np.ndarray
    lengths: np.ndarray
    escape_length: Any
    head_bits: Any
    run_symbol: Any


class DecodeBuffers(NamedTuple):
    """Memory that :func:`decode_streams` works on.

    Attributes:
        starts: int64[n_streams], byte of the data at which each sub-stream begins.
        stream_bytes: uint32[n_streams], bytes of each.
        symbols: uint8, strided, result.
        escapes: int64[n], result: where in ``symbols`` the escapes lie.
        escape_heads: uint16[n], result: their heads.
        decoders: int64[5, 4], scratch.
    """

    starts: np.ndarray
    stream_bytes: np.ndarray
    symbols: np.ndarray
    escapes: np.ndarray
    escape_heads: np.ndarray
    decoders: np.ndarray


@inlined
def decode_buffers(scratch):
    """Return the :class:`DecodeBuffers` among a thread's scratch, of whatever kind of blocks."""
    return DecodeBuffers(
        scratch.starts,
        scratch.stream_bytes,
        scratch.symbols,
        scratch.escapes,
        scratch.escape_heads,
        scratch.decoders,
    )


@kernel
def _bits_of(symbols, begin, end, lengths):
    """Return the bits that the codes of ``symbols[begin:end]`` take."""
    total = np.int64(0)
    for i in range(begin, end):
        total += lengths[symbols[i]]
    return total


@kernel
def decode_streams(data, stream_len, code, buffers, out, next_at):
    """Decode a block's sub-streams, four at a time for instruction-level parallelism.

    A lane may run past its sub-stream's end, into the padding: the lengths of what it has read too much say where the
    end was.

    Args:
        data: uint8, readable for ``frame.decode.margin`` bytes after every start.
        stream_len: Values per sub-stream.
        code: The :class:`PrefixDecoder`.
        buffers: :class:`DecodeBuffers`, with the starts and sizes of the sub-streams.
        out: uintW[n], where the values will be written, which is fetched meanwhile.
        next_at: Byte of ``data`` that will be wanted next, from which on it is fetched meanwhile; perhaps its end.

    Returns:
        The number of escapes, or -1 where a sub-stream does not end in its last byte. Every symbol is written unless it
        is -1.
    """
    # Nothing is checked while codes are read: whatever the bits are, the code is complete (docs/format.md section 5),
    # so every window of 12 bits has an entry, and a lane stops after as many symbols as its sub-stream has values. It
    # reads at most stream_len + STREAM_PAD codes from its start on, for which `frame.decode.margin` has bytes. That it
    # ended where it should is asked once, behind the loop.
    n, starts, symbols, decoders = len(out), buffers.starts, buffers.symbols, buffers.decoders
    escape_length, head_bits = code.escape_length, code.head_bits
    n_streams = (n + stream_len - 1) // stream_len
    stride = stream_len + STREAM_PAD
    # Where lanes without a sub-stream write: memory.py leaves room for one more sub-stream's padding there.
    parked = n_streams * stride
    n_escapes = 0
    s_next = 0
    width = width_of(out) >> 3
    # Lines of a round are those from here on: at most as many as a value has bytes.
    last_data, last_out = max(len(data) - 64 * width, 0), max((n - 64) * width, 0)
    decoders[FETCH, 0], decoders[FETCH, 1] = min(next_at, last_data), 0
    decoders[FETCH, 2], decoders[FETCH, 3] = last_data, last_out
    while s_next < n_streams:
        # Fill the lanes with the next sub-streams that are not empty.
        anchor, lane = starts[s_next] << 3, 0
        while s_next < n_streams and lane < N_DECODERS:
            place, count = s_next * stride, min(stream_len, n - s_next * stream_len)
            if buffers.stream_bytes[s_next]:
                decoders[PLACE, lane], decoders[BIT, lane] = place, starts[s_next] << 3
                decoders[END, lane], decoders[STREAM, lane] = place + count, s_next
                lane += 1
            else:
                run = subarray(symbols, place, count)
                for i in range(count):
                    run[i] = code.run_symbol
            s_next += 1
        n_decoders = lane
        for lane in range(n_decoders, N_DECODERS):  # at its end before it begins
            decoders[PLACE, lane], decoders[BIT, lane], decoders[END, lane] = parked, anchor, parked
        # Rounds until all lanes are at their ends. The step returns early at escapes, which it leaves to the loop
        # below.
        left = n_decoders
        while left:
            decode_rounds(data, code.table, decoders, symbols, out)
            left = 0
            for lane in range(n_decoders):
                at, bit = decoders[PLACE, lane], decoders[BIT, lane]
                if at >= decoders[END, lane]:
                    continue
                left += 1
                window = load_u64(data, bit >> 3) >> U64(bit & 7)
                # Not an escape: its entry has symbols. The lane is where it was when another one was stuck.
                if code.table[window & U64(4095)] >> U64(56):
                    continue
                # An escape: its code, then the head, from the lowest bit of the window up.
                symbols[at] = ESCAPE
                head = (window >> U64(escape_length)) & U64((1 << head_bits) - 1)
                buffers.escapes[n_escapes], buffers.escape_heads[n_escapes] = at, head
                n_escapes += 1
                decoders[PLACE, lane], decoders[BIT, lane] = at + 1, bit + escape_length + head_bits
        for lane in range(n_decoders):
            s, end = decoders[STREAM, lane], decoders[END, lane]
            # Where the last code ended: less the codes that were read beyond the sub-stream's last value. Its last byte
            # must be the last of the sub-stream (section 7). An escape has a length here, too, but none lies beyond the
            # end: lanes stand still there.
            bits = decoders[BIT, lane] - _bits_of(symbols, end, decoders[PLACE, lane], code.lengths)
            if (bits + 7) >> 3 != starts[s] + np.int64(buffers.stream_bytes[s]):
                return -1
    return n_escapes
