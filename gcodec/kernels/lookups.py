"""Sub-streams: bits to symbols, by table look-ups in four sub-streams at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .jit import kernel
from .memory import load_u64, pointer, prefetch, view
from .prefix_code import ESCAPE
from .scalar import U64
from .streams import STREAM_PAD

LANES = 4
LOOKUPS = 4  #: per lane and round: what 57 bits, all that a window is sure to hold, are enough for
ROUND = 6 * LOOKUPS  #: most symbols of a lane in a round
PARKED_ROUNDS = (2 * STREAM_PAD - 8) // ROUND  #: of a lane without a sub-stream: there are two pads behind the last
_INT, _BYTE = ir.IntType(64), ir.IntType(8)


@intrinsic
def decode_rounds(typingctx: Any, data: Any, table: Any, rounds: Any, lanes: Any, symbols: Any) -> Any:
    """``rounds`` (at least 1) times :data:`LOOKUPS` look-ups in each of four lanes, without a branch.

    ``data``: uint8; ``table``: uint64[4096] of :func:`prefix_code.decode_table`; ``lanes``: int64[3, 4], place
    in ``symbols`` (uint8) and bit in ``data`` of each lane, updated, and what is the caller's. An escape's entry is 0
    bits long: its lane stands still until the caller has dealt with it.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def base(i: int, kind: Any) -> Any:
            at = pointer(context, builder, signature.args[i], args[i], ir.Constant(_INT, 0))
            return builder.bitcast(at, kind.as_pointer())

        def number(value: int) -> Any:
            return ir.Constant(_INT, value)

        bytes_, entries, state, target = base(0, _BYTE), base(1, _INT), base(3, _INT), base(4, _BYTE)
        places = [builder.gep(state, [number(k)]) for k in range(2 * LANES)]
        slots = [cgutils.alloca_once_value(builder, builder.load(place)) for place in places]
        with cgutils.for_range(builder, args[2]):
            at = [builder.load(slot) for slot in slots[:LANES]]
            bit = [builder.load(slot) for slot in slots[LANES:]]
            windows, used = [], [number(0)] * LANES
            for lane in range(LANES):
                address = builder.gep(bytes_, [builder.lshr(bit[lane], number(3))])
                word = builder.load(builder.bitcast(address, _INT.as_pointer()), align=1)
                windows.append(builder.lshr(word, builder.and_(bit[lane], number(7))))
            for _ in range(LOOKUPS):
                for lane in range(LANES):
                    window = windows[lane]
                    entry = builder.load(builder.gep(entries, [builder.and_(window, number(4095))]))
                    address = builder.bitcast(builder.gep(target, [at[lane]]), _INT.as_pointer())
                    builder.store(builder.lshr(entry, number(8)), address, align=1)
                    at[lane] = builder.add(at[lane], builder.lshr(entry, number(56)))
                    windows[lane] = builder.lshr(window, builder.and_(entry, number(63)))
                    used[lane] = builder.add(used[lane], entry)  # the low bytes are at most 48 together
            for lane in range(LANES):
                builder.store(at[lane], slots[lane])
                bits = builder.and_(used[lane], number(255))
                builder.store(builder.add(bit[lane], bits), slots[LANES + lane])
        for place, slot in zip(places, slots, strict=True):
            builder.store(builder.load(slot), place)
        return context.get_dummy_value()

    return types.void(data, table, types.intp, lanes, symbols), generate


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
    stream,
    run_symbol,
    table,
    lengths,
    escape_length,
    head_bits,
    lanes,
    symbols,
    escapes,
    escape_heads,
    upcoming,
    n_upcoming,
):
    """Decode a block's sub-streams, four at a time for instruction-level parallelism.

    ``data``: uint8, readable for ``codec.margin`` bytes after every start; ``start``: int64[n_streams], byte positions;
    ``stream_bytes``: uint32[n_streams]; ``table``: uint64[4096] and ``lengths``: uint8[256] of the codebook; ``lanes``:
    int64[3, 4], scratch; ``symbols``: uint8, strided, result; ``escapes``: int64[n] and ``escape_heads``: uint16[n],
    results: where in ``symbols`` the escapes lie, and their heads; ``n_upcoming`` bytes of ``data`` from ``upcoming``
    will be wanted next and are fetched meanwhile. Returns the number of escapes, or -1 where a
    sub-stream does not end in its last byte. Every symbol is written unless the status is -1.

    A lane may run up to 50 symbols past its sub-stream's end, into the padding, before it is called back: the
    lengths of what it has read too much say where the end was.
    """
    n_streams = (n + stream - 1) // stream
    stride = stream + STREAM_PAD
    parked = n_streams * stride
    n_escapes = 0
    following = 0
    share = n_upcoming // n_streams
    most = np.int64(1 << 20)
    while following < n_streams:
        active = 0
        q = 0
        anchor = start[following] << 3
        while following < n_streams and q < 4:
            if stream_bytes[following]:
                lanes[0, q], lanes[1, q], lanes[2, q] = following * stride, start[following] << 3, following
                active |= 1 << q
                q += 1
            else:
                run = view(symbols, following * stride, min(stream, n - following * stream))
                for i in range(len(run)):
                    run[i] = run_symbol
            for line in range(0, share, 64):
                prefetch(data, upcoming + following * share + line)
            following += 1
        while active:
            # A lane that is parked has less room than one at work.
            rounds = most if active == 15 else min(most, np.int64(PARKED_ROUNDS))
            most = np.int64(1 << 20)
            for q in range(4):
                if (active >> q) & 1:
                    s = lanes[2, q]
                    room = s * stride + min(stream, n - s * stream) + 50 - lanes[0, q]
                    rounds = min(rounds, room // ROUND)
                else:
                    lanes[0, q], lanes[1, q] = parked, anchor
            decode_rounds(data, table, rounds, lanes, symbols)
            for q in range(4):
                if not (active >> q) & 1:
                    continue
                s = lanes[2, q]
                at, bit = lanes[0, q], lanes[1, q]
                end = s * stride + min(stream, n - s * stream)
                if at < end:
                    window = load_u64(data, bit >> 3) >> U64(bit & 7)
                    if table[window & U64(4095)] >> U64(56):
                        continue
                    symbols[at] = ESCAPE
                    escapes[n_escapes] = at
                    escape_heads[n_escapes] = (window >> U64(escape_length)) & U64((1 << head_bits) - 1)
                    n_escapes += 1
                    most = np.int64(1)  # more are likely to follow: look again soon
                    at += 1
                    bit += escape_length + head_bits
                    lanes[0, q], lanes[1, q] = at, bit
                if at >= end:
                    bit -= _bits_of(symbols, end, at, lengths)
                    if (bit + 7) >> 3 != start[s] + np.int64(stream_bytes[s]):
                        return -1
                    active &= ~(1 << q)
    return n_escapes
