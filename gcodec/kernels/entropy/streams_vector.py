"""The codes of 64 symbols at a time, for CPUs with AVX-512 or AVX2: a vector step of :mod:`encode_streams`."""

from __future__ import annotations

from typing import Any, NamedTuple

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


class _Fours(NamedTuple):
    """Codes of 64 symbols, four by four.

    Attributes:
        first, second: uint64[8] each, the codes of four, at most 48 bits; these of one place are neighbors.
        part: uint64[8], how many bits those of ``first`` have.
        length: uint64[8], how many those of ``first`` and ``second`` have together.
        place: uint64[8], where those of ``first`` begin.
        total: Where all of them end.
        without: Tells, as a number that is not 0, that a symbol has no code.
    """

    first: Vector
    second: Vector
    part: Vector
    length: Vector
    place: Vector
    total: Any
    without: Any


def _fours(builder: Any, args: list[Any], at: Any) -> _Fours:
    # Neighbors are joined twice:
    #   16 bits     llllcccccccccccc of each symbol            two table look-ups of a byte each
    #   32 bits     codes of two symbols, at most 24 bits      in `codes`, their bits in `lengths`
    #   64 bits     codes of four, at most 48 bits             in `first` and `second`
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
    total = builder.extract_element(end.value, ir.Constant(ir.IntType(32), 7))
    return _Fours(first, second, part, length, end - length + begin, total, high.compare(">=", NO_CODE_HIGH).number())


def _store_words(builder: Any, codes: Vector, length: Vector, place: Vector, address: Any) -> None:
    """Store words of codes, moved to where they begin in a byte, then the numbers of these bytes, and then how many of
    their bits are in whole bytes: a word stored at its first byte leaves its last, unfinished byte to the next one."""
    bit = place & 7
    for k, words in enumerate((codes << bit, place >> 3, (bit + length) & 56)):
        words.store(builder.gep(address, [ir.Constant(INDEX, 64 * k)]))


def _total_unless(builder: Any, fours: _Fours, unusable: Any) -> Any:
    usable = builder.icmp_unsigned("==", unusable, ir.Constant(INDEX, 0))
    return builder.select(usable, fours.total, ir.Constant(INDEX, -1))


def _generate_encode(builder: Any, args: list[Any], at: Any) -> Any:
    fours = _fours(builder, args, at)
    eights = fours.first | (fours.second << fours.part)
    _store_words(builder, eights, fours.length, fours.place, at(4, 8))
    return _total_unless(builder, fours, builder.or_(fours.without, fours.length.compare(">", 56).number()))


def _generate_encode_long(builder: Any, args: list[Any], at: Any) -> Any:
    fours, after = _fours(builder, args, at), builder.gep(at(4, 8), [ir.Constant(INDEX, 3 * 64)])
    _store_words(builder, fours.first, fours.part, fours.place, at(4, 8))
    _store_words(builder, fours.second, fours.length - fours.part, fours.place + fours.part, after)
    return _total_unless(builder, fours, fours.without)


#: encode_64(tables, t, symbols, i, words, k, begin, n_shuffles) -> bits of the codes of 64 symbols that are to follow
#: ``begin`` bits, or -1 where a symbol has no code or eight have more than 56 bits together. They come in eight groups:
#: ``words[k ...]`` (bytes) gets eight uint64 of code bits, moved to where they begin in a byte, then the numbers of
#: these bytes, and then how many bits are in whole bytes. ``tables``: uint8[512], low bytes of all symbols'
#: ``length << 12 | code``, then high bytes; length 15: no code. Without AVX-512, high bytes have their upper four bits
#: inverted, and symbols from ``16 * n_shuffles`` on have no code.
encode_64 = intrinsic_step(types.intp, 8, _generate_encode)
#: As encode_64, but with words of four symbols, which never have too many bits: ``words[k ...]`` gets all of this for
#: the first four of every eight symbols, and then for the others.
encode_64_long = intrinsic_step(types.intp, 8, _generate_encode_long)
