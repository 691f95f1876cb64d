"""Sub-streams: bits to symbols, by table look-ups in four sub-streams at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ..core.jit import kernel
from ..core.scalar import U64
from ..core.unaligned import fetch, load_u64, pointer, subarray
from .encode_streams import STREAM_PAD
from .prefix_code import ESCAPE

N_DECODERS = 4
LOOKUPS = 4  #: per lane and round: what 57 bits, all that a window is sure to hold, are enough for
PLACE, BIT, END, STREAM, FETCH = range(5)  #: rows of ``decoders``
_INT, _BYTE = ir.IntType(64), ir.IntType(8)


@intrinsic
def decode_rounds(typingctx: Any, data: Any, table: Any, decoders: Any, symbols: Any, target: Any) -> Any:
    """Rounds of :data:`LOOKUPS` look-ups in each of four lanes, without a branch, until all lanes have come to their
    ends, or one to an escape. A lane may run up to 23 symbols past its end in its last round, and stays there.

    ``data``: uint8; ``table``: uint64[4096] of :func:`prefix_code.decode_table`; ``decoders``: int64[5, 4], place
    in ``symbols`` (uint8) and bit in ``data`` of each lane, updated, the place where it ends, what is the caller's, and
    bytes of ``data`` and of ``target`` from which on cache lines are fetched meanwhile, about as many in a round as its
    symbols stand for. An escape's entry is 0 bits long: its lane stands still until the caller has dealt with it.
    """
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
        places = [*row(PLACE), *row(BIT), *row(FETCH)[:2]]
        slots = [cgutils.alloca_once_value(builder, builder.load(place)) for place in places]
        fetched = ((slots[-2], bytes_, value_bytes // 2 or 1), (slots[-1], base(4, _BYTE), value_bytes))
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
                counts = builder.lshr(entry, number(48))  # bits, and in the next byte symbols
                windows[lane] = builder.lshr(windows[lane], builder.and_(counts, number(63)))
                sums[lane] = builder.add(sums[lane], counts)  # at most 48 bits together
        all_done, stuck = ir.Constant(ir.IntType(1), 1), ir.Constant(ir.IntType(1), 0)
        for lane in range(N_DECODERS):
            done = builder.icmp_signed(">=", first[lane], ends[lane])
            place = builder.select(done, first[lane], builder.add(first[lane], builder.lshr(sums[lane], number(8))))
            bits = builder.and_(sums[lane], number(255))
            builder.store(place, slots[lane])
            builder.store(builder.select(done, bit[lane], builder.add(bit[lane], bits)), slots[N_DECODERS + lane])
            now = builder.icmp_signed(">=", place, ends[lane])
            all_done = builder.and_(all_done, now)
            stuck = builder.or_(stuck, builder.and_(builder.icmp_signed("==", bits, number(0)), builder.not_(now)))
        for slot, start, n_lines in fetched:
            line = builder.load(slot)
            for k in range(n_lines):
                fetch(builder, builder.gep(start, [builder.add(line, number(64 * k))]))
            builder.store(builder.add(line, number(64 * n_lines)), slot)
        builder.cbranch(builder.or_(all_done, stuck), after, loop)
        builder.position_at_end(after)
        for place, slot in zip(places, slots, strict=True):
            builder.store(builder.load(slot), place)
        return context.get_dummy_value()

    return types.void(data, table, decoders, symbols, target), generate


@kernel
def _bits_of(symbols, begin, end, lengths):
    """Length of the codes of some symbols."""
    total = np.int64(0)
    for i in range(begin, end):
        total += lengths[symbols[i]]
    return total


@kernel
def decode_streams(
    data,
    start,
    stream_bytes,
    n,
    stream_len,
    run_symbol,
    table,
    lengths,
    escape_length,
    head_bits,
    decoders,
    symbols,
    escapes,
    escape_heads,
    upcoming,
    target,
):
    """Decode a block's sub-streams, four at a time for instruction-level parallelism.

    ``data``: uint8, readable for ``codec.margin`` bytes after every start; ``start``: int64[n_streams], byte positions;
    ``stream_bytes``: uint32[n_streams]; ``table``: uint64[4096] and ``lengths``: uint8[256] of the codebook;
    ``decoders``: int64[5, 4], scratch; ``symbols``: uint8, strided, result; ``escapes``: int64[n] and ``escape_heads``:
    uint16[n],
    results: where in ``symbols`` the escapes lie, and their heads; bytes of ``data`` from ``upcoming`` on will be
    wanted next, and ``target`` be written, and are fetched meanwhile. Returns the number of escapes, or -1 where a
    sub-stream does not end in its last byte. Every symbol is written unless the status is -1.

    A lane may run past its sub-stream's end, into the padding: the lengths of what it has read too much say where the
    end was.
    """
    n_streams = (n + stream_len - 1) // stream_len
    stride = stream_len + STREAM_PAD
    parked = n_streams * stride
    n_escapes = 0
    following = 0
    decoders[FETCH, 0], decoders[FETCH, 1] = upcoming, 0
    while following < n_streams:
        anchor, q = start[following] << 3, 0
        while following < n_streams and q < N_DECODERS:
            place, count = following * stride, min(stream_len, n - following * stream_len)
            if stream_bytes[following]:
                decoders[PLACE, q], decoders[BIT, q], decoders[END, q] = place, start[following] << 3, place + count
                decoders[STREAM, q] = following
                q += 1
            else:
                run = subarray(symbols, place, count)
                for i in range(count):
                    run[i] = run_symbol
            following += 1
        n_decoders = q
        for q in range(n_decoders, N_DECODERS):  # at its end before it begins
            decoders[PLACE, q], decoders[BIT, q], decoders[END, q] = parked, anchor, parked
        left = n_decoders
        while left:
            decode_rounds(data, table, decoders, symbols, target)
            left = 0
            for q in range(n_decoders):
                at, bit = decoders[PLACE, q], decoders[BIT, q]
                if at >= decoders[END, q]:
                    continue
                left += 1
                window = load_u64(data, bit >> 3) >> U64(bit & 7)
                if table[window & U64(4095)] >> U64(56):
                    continue
                symbols[at] = ESCAPE
                escapes[n_escapes] = at
                escape_heads[n_escapes] = (window >> U64(escape_length)) & U64((1 << head_bits) - 1)
                n_escapes += 1
                decoders[PLACE, q], decoders[BIT, q] = at + 1, bit + escape_length + head_bits
        for q in range(n_decoders):
            s, end = decoders[STREAM, q], decoders[END, q]
            bits = decoders[BIT, q] - _bits_of(symbols, end, decoders[PLACE, q], lengths)
            if (bits + 7) >> 3 != start[s] + np.int64(stream_bytes[s]):
                return -1
    return n_escapes
