"""The codes of 64 symbols at a time, for CPUs with AVX-512 or AVX2: a vector step of :mod:`encode_streams`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX512, intrinsic_step
from ..core.simd import INDEX, Vector, load
from ..core.simd_avx512 import look_up_bytes
from ..core.vector_shuffles import look_up

NO_CODE_HIGH = 0xF0  #: the high byte of a symbol without a code: length 15


def _look_up(builder: Any, tables: Any, symbols: Vector, n_shuffles: Any) -> tuple[Vector, Vector]:
    """Return the low and the high bytes of 64 symbols' codes and lengths."""
    addresses = [tables, builder.gep(tables, [ir.Constant(INDEX, 256)])]
    if HAS_AVX512:
        low, high = (look_up_bytes(builder, table, symbols) for table in addresses)
        return low, high
    low, high = look_up(builder, addresses, symbols, n_shuffles)
    return low, high ^ NO_CODE_HIGH


def _generate_encode(builder: Any, args: list[Any], at: Any) -> Any:
    # Neighbors are joined three times, until eight codes are one word:
    #   16 bits     llllcccccccccccc of each symbol            two table look-ups of a byte each
    #   32 bits     codes of two symbols, at most 24 bits      in `codes`, their bits in `lengths`
    #   64 bits     codes of four, at most 48 bits             in `first` and `second`, which together make eight
    symbols, tables = load(builder, at(2, 8), 8, 64), at(0, 8)
    low, high = _look_up(builder, tables, symbols, args[7])
    # Symbols 2k and 2k + 1 of 16 bits each: the code below, its length in the upper four.
    pairs, upper = low.seen_as(16), high.seen_as(16)
    even = ((pairs & 255) | (upper << 8)).seen_as(32)
    odd = ((pairs >> 8) | (upper & 0xFF00)).seen_as(32)
    codes, lengths = [], []
    for shift in (0, 16):
        a, b = even >> shift, odd >> shift
        length = (a >> 12) & 15
        codes.append(((a & 0xFFF) | ((b & 0xFFF) << length)).seen_as(64))
        lengths.append((length + ((b >> 12) & 15)).seen_as(64))
    whole = (lengths[0].seen_as(32) + lengths[1].seen_as(32)).seen_as(64)
    low_word = 0xFFFFFFFF
    first = (codes[0] & low_word) | ((codes[1] & low_word) << (lengths[0] & low_word))
    second = (codes[0] >> 32) | ((codes[1] >> 32) << (lengths[0] >> 32))
    part = whole & low_word
    length = part + (whole >> 32)
    begin, end = args[6], length
    for step in (1, 2, 4):  # running sums: each word begins where those before it end
        end = end + end.pick([8 + k for k in range(step)] + list(range(8 - step)), length ^ length)
    place = end - length + begin
    bit = place & 7
    ((first | (second << part)) << bit).store(at(4, 8))
    # A word that is stored at its first byte leaves its last, unfinished byte to the next one.
    for k, numbers in enumerate((place >> 3, (bit + length) & 56), 1):
        numbers.store(builder.gep(at(4, 8), [ir.Constant(INDEX, 64 * k)]))
    escapes, long = high.compare(">=", NO_CODE_HIGH).number(), length.compare(">", 56).number()
    usable = builder.icmp_unsigned("==", builder.or_(escapes, long), ir.Constant(INDEX, 0))
    total = builder.extract_element(end.value, ir.Constant(ir.IntType(32), 7))
    return builder.select(usable, total, ir.Constant(INDEX, -1))


#: encode_64(tables, t, symbols, i, octets, k, begin, n_shuffles) -> bits of the codes of 64 symbols that are to follow
#: ``begin`` bits, or -1 where a symbol has no code or eight have more than 56 bits together. They come in eight groups:
#: ``octets[k ...]`` (bytes) gets eight uint64 of code bits, moved to where they begin in a byte, then the numbers of
#: these bytes, and then how many bits are in whole bytes. ``tables``: uint8[512], low bytes of all symbols'
#: ``length << 12 | code``, then high bytes; length 15: no code. Without AVX-512, high bytes have their upper four bits
#: inverted, and symbols from ``16 * n_shuffles`` on have no code.
encode_64 = intrinsic_step(types.intp, 8, _generate_encode)
