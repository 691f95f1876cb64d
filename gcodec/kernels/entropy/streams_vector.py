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
    # The look-up gives bytes apart, which are put together by neighbors; of symbols 0 ... 3, lowest byte right:
    #
    #     low       c3 c2 c1 c0              c: low 8 bits of a code
    #     high      h3 h2 h1 h0              h: length << 4 | high 4 bits of the code
    #     even      h2 c2 | h0 c0            32 bits: the entries of symbols 2 and 0, 16 bits each
    #     odd       h3 c3 | h1 c1            of symbols 3 and 1
    #
    # So one shift of a vector joins an even symbol with the odd one behind it, in all lanes at once.
    pairs, upper = low.seen_as(16), high.seen_as(16)
    even = ((pairs & 255) | (upper << 8)).seen_as(32)
    odd = ((pairs >> 8) | (upper & 0xFF00)).seen_as(32)
    codes, lengths = [], []
    # shift 0:  symbols 4j, 4j + 1;  shift 16:  4j + 2, 4j + 3.  In 32 bits, code b stands above code a:
    #
    #     llllcccccccccccc   ->   ........ bbbbbbbbbbbb aaaaaaaaa       a of length 9
    #
    # Lengths are at most 15 (no code), so that 12 + 15 bits do not leave the lane.
    for shift in (0, 16):
        a, b = even >> shift, odd >> shift
        length = (a >> 12) & 15
        codes.append(((a & 0xFFF) | ((b & 0xFFF) << length)).seen_as(64))
        lengths.append((length + ((b >> 12) & 15)).seen_as(64))
    # Lane m of 64 bits holds symbols 8m ... 8m + 7: fours in its low word, which become `first`, and in its high word,
    # which become `second`. Lengths of two are at most 30 and of four at most 60: no shift reaches the width of 64,
    # which LLVM leaves undefined, whether symbols have codes or not.
    whole = (lengths[0].seen_as(32) + lengths[1].seen_as(32)).seen_as(64)
    low_word = 0xFFFFFFFF
    first = (codes[0] & low_word) | ((codes[1] & low_word) << (lengths[0] & low_word))
    second = (codes[0] >> 32) | ((codes[1] >> 32) << (lengths[0] >> 32))
    part = whole & low_word
    length = part + (whole >> 32)
    begin, end = args[6], length
    #     length      3    5    2    7         each lane gets, step by step, what lanes 1, 2, 4 before it have
    #     step 1      3    8    7    9
    #     step 2      3    8   10   17         three additions instead of seven that wait for each other
    for step in (1, 2, 4):  # running sums: each word begins where those before it end
        end = end + end.pick([8 + k for k in range(step)] + list(range(8 - step)), length ^ length)
    total = builder.extract_element(end.value, ir.Constant(ir.IntType(32), 7))
    return _Fours(first, second, part, length, end - length + begin, total, high.compare(">=", NO_CODE_HIGH).number())


def _store_words(builder: Any, codes: Vector, length: Vector, place: Vector, address: Any) -> None:
    """Store words of codes, moved to where they begin in a byte, then the numbers of these bytes, and then how many of
    their bits are in whole bytes: a word stored at its first byte leaves its last, unfinished byte to the next one."""
    # A word begins `bit` bits into byte place >> 3. With at most 56 bits of codes it is within 63, so one store of
    # eight bytes writes all of it.
    bit = place & 7
    for k, words in enumerate((codes << bit, place >> 3, (bit + length) & 56)):
        words.store(builder.gep(address, [ir.Constant(INDEX, 64 * k)]))


def _total_unless(builder: Any, fours: _Fours, unusable: Any) -> Any:
    usable = builder.icmp_unsigned("==", unusable, ir.Constant(INDEX, 0))
    return builder.select(usable, fours.total, ir.Constant(INDEX, -1))


def _generate_encode(builder: Any, args: list[Any], at: Any) -> Any:
    fours = _fours(builder, args, at)
    # May have lost bits beyond 64: then the length is above 56, and the result below is -1.
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
