"""The law of codes one behind the other: each sub-stream is the number that its codes make, lowest bits first."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.entropy.encode_streams import (
    CHUNK_BYTES,
    STREAM_PAD,
    EncodeBuffers,
    NextValues,
    PrefixEncoder,
    encode_streams,
)
from gcodec.kernels.entropy.prefix_code import (
    ESCAPE,
    MAX_LENGTH,
    MOST,
    TABLE_SIZE,
    canonical_codes,
    decode_table,
    encode_table,
)
from tests.support.covering import each_pair

HEAD_BITS = 8
#: Lengths of complete codes, of which some are longer than 7 bits on average, so that eight do not go into a word.
CODES = {
    "codes of 8 bits": [8] * 256,
    "short codes": [1, 2, 3, 4, 5, 5],
    "few short codes and many of 12 bits": [1, 2, 3, 4, 9, *[12] * 248],
    "codes of 6 and 7 bits": [6] * 40 + [7] * 48,
}


def codes_of(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of symbols, and the table to encode with."""
    codes, table = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    assert canonical_codes(lengths, ESCAPE - 1, np.zeros(MAX_LENGTH + 1, np.uint32), codes) == 1 << MAX_LENGTH
    encode_table(lengths, codes, table)
    return codes, table


@each_pair(shape=CODES, escapes=[0, 0.01, 0.5], likely=["shortest", "longest", "any"], n=[1, 63, 64, 65, 257, 1000])
def test_sub_streams_are_their_codes_one_behind_the_other(shape, escapes, likely, n):
    rng, stream_len = np.random.default_rng(n), 512
    # The last code is that of the escape; all symbols that have none become it.
    lengths = np.zeros(256, np.uint8)
    used = sorted(CODES[shape])
    lengths[: len(used) - 1], lengths[ESCAPE] = used[:-1], used[-1]
    codes, table = codes_of(lengths)
    n_coded = len(used) - 1
    few = max(n_coded // 4, 1)
    first, stop = {"shortest": (0, few), "longest": (n_coded - few, n_coded), "any": (0, n_coded)}[likely]
    symbols = rng.integers(first, stop, n).astype(np.uint8)
    symbols[rng.random(n) < escapes] = ESCAPE
    values = rng.integers(0, 1 << 16, n).astype(np.uint16)
    n_streams = -(-n // stream_len)
    padded = np.zeros(n_streams * (stream_len + STREAM_PAD), np.uint8)
    for i, symbol in enumerate(symbols):
        padded[i + i // stream_len * STREAM_PAD] = symbol
    sizes, chunk, out = np.zeros(n_streams, np.uint32), np.zeros(CHUNK_BYTES, np.uint8), np.zeros(3 * n + 600, np.uint8)
    run = 254 if n_coded <= 254 else n_coded - 1
    code = PrefixEncoder(table, np.int64(codes[ESCAPE]), np.int64(lengths[ESCAPE]), HEAD_BITS, 7, run)
    end = encode_streams(values, stream_len, code, NextValues(values, 64), EncodeBuffers(padded, sizes, chunk), out, 3)
    at = 3
    for s in range(n_streams):
        bits, n_bits = 0, 0
        stream = range(s * stream_len, min((s + 1) * stream_len, n))
        if (symbols[stream.start : stream.stop] == run).all():
            assert sizes[s] == 0
            continue
        for i in stream:
            symbol = symbols[i]
            bits |= int(codes[symbol]) << n_bits
            n_bits += int(lengths[symbol])
            if symbol == ESCAPE:
                bits |= (int(values[i]) >> 7 & 0xFF) << n_bits
                n_bits += HEAD_BITS
        wanted = bits.to_bytes(-(-n_bits // 8), "little")
        assert out[at : at + len(wanted)].tobytes() == wanted
        assert sizes[s] == len(wanted)
        at += len(wanted)
    assert end == at


@each_pair(shape=CODES, most=range(1, MOST + 1), escape=["first", "last"])
def test_entries_to_decode_with_are_the_symbols_that_windows_begin_with(shape, most, escape):
    lengths = np.zeros(256, np.uint8)
    used = sorted(CODES[shape])
    if escape == "first":
        lengths[: len(used) - 1], lengths[ESCAPE] = used[1:], used[0]
    else:
        lengths[: len(used) - 1], lengths[ESCAPE] = used[:-1], used[-1]
    codes, _ = codes_of(lengths)
    n_symbols = len(used) - 2
    table = np.full(TABLE_SIZE, 7, np.uint64)
    decode_table(lengths, n_symbols, codes, np.full(TABLE_SIZE, 9, np.uint64), most, table)
    by_code = {(int(length), int(codes[symbol])): symbol for symbol, length in enumerate(lengths) if length}
    for window in range(TABLE_SIZE):
        found, used_bits, more = list[int](), 0, True
        while more and len(found) < most:
            left = range(1, MAX_LENGTH - used_bits + 1)
            begun = (by_code.get((n, (window >> used_bits) & (1 << n) - 1)) for n in left)
            symbol = next((one for one in begun if one is not None), ESCAPE)
            more = symbol != ESCAPE
            if more:
                found.append(symbol)
                used_bits += int(lengths[symbol])
        entry = sum(symbol << 8 * place for place, symbol in enumerate(found)) | used_bits << 48 | len(found) << 56
        assert int(table[window]) == entry, window
