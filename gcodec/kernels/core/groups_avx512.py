"""Fused steps on 64 values at a time, for CPUs with AVX-512 (VBMI and VBMI2); the loops they stand for are the path of
all other CPUs. Bytes are the same.

All of them read and write whole groups: arrays need up to 64 items of margin.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from .intrinsics import intrinsic_step
from .simd import Lanes, call, constant, load, mask_of, move, pick_bits, splat

_BYTES = ir.VectorType(ir.IntType(8), 64)
_INDEX = ir.IntType(64)
_TWO, _THREE = ir.Constant(_INDEX, 2), ir.Constant(_INDEX, 3)


def tail_of(words: Lanes, rest: int = 23) -> Lanes:
    """Tails of float32, with ``rest`` bits below the head."""
    return (words & (1 << rest) - 1) | ((words >> (31 - rest)) & (1 << rest))


def float_of(head: Lanes, tail: Lanes, bits: int = 32, rest: int | None = None) -> Lanes:
    """float32 from heads (any upper bits) and tails, or ``bits`` 16: bfloat16 or float16, with ``rest`` bits below the
    head, by default 23 or 7."""
    rest = rest or {32: 23, 16: 7}[bits]
    low, sign = (1 << rest) - 1, 1 << (bits - 1)
    return ((head << rest) & (sign - 1 & ~low)) | (tail & low) | ((tail << (bits - 1 - rest)) & sign)


def look_up(builder: Any, table: Any, source: Lanes, n: int = 256) -> Lanes:
    """64 bytes through a table of 64 or 256 bytes at an address; of 64, the indices' low six bits count."""
    parts = [load(builder, builder.gep(table, [ir.Constant(ir.IntType(64), k)]), 8, 64).value for k in range(0, n, 64)]
    if n == 64:
        return permute(Lanes(builder, parts[0]), source)
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (call(builder, name, _BYTES, [parts[k], source.value, parts[k + 1]]) for k in (0, 2))
    return source.compare(">=", 128).choose(Lanes(builder, high), Lanes(builder, low))


_LETTERS = {8: "qi", 16: "hi", 32: "si"}


def permute(table: Lanes, source: Lanes) -> Lanes:
    """Lanes of a register by their numbers, of which the low bits count."""
    name = f"llvm.x86.avx512.permvar.{_LETTERS[table.bits]}.512"
    return Lanes(table.builder, call(table.builder, name, table.value.type, [table.value, source.value]))


def heads_of(values: Lanes, head_shift: int) -> Lanes:
    """Heads of 64 values, of eight bits."""
    if values.bits == 16:
        return (values >> head_shift).to(8)
    # Each quarter's heads go to two bytes of every eight that are its own.
    found = values.part(0, 16).seen_as(8)
    picks = constant(values.builder, [head_shift + 32 * (lane & 1) for lane in range(64)])
    for k in range(4):
        own = mask_of(values.builder, [lane % 8 // 2 == k for lane in range(64)])
        found = own.choose(pick_bits(picks, values.part(k, 16).seen_as(8)), found)
    return found.pick([8 * (lane % 16 // 2) + lane // 16 * 2 + lane % 2 for lane in range(64)])


def bytes_of(words: list[Lanes]) -> list[Lanes]:
    """Of 64 words in four registers the lowest bytes, the next, and so on: four registers of 64 bytes."""
    a, b, c, d = (one.seen_as(8).pick([4 * j + k for k in range(4) for j in range(16)]).seen_as(64) for one in words)
    found = []
    for half in (0, 4):  # quarters of registers, as a matrix of four times four, transposed
        pick = [*range(half, half + 4), *range(half + 8, half + 12)]
        left, right = a.pick(pick, b), c.pick(pick, d)
        found += [left.pick([k, k + 1, k + 4, k + 5, k + 8, k + 9, k + 12, k + 13], right).seen_as(8) for k in (0, 2)]
    return found


def _generate_encode(builder: Any, args: list[Any], at: Any) -> Any:
    symbols, tables = load(builder, at(2, 8), 8, 64), at(0, 8)
    low = look_up(builder, tables, symbols)
    high = look_up(builder, builder.gep(tables, [ir.Constant(ir.IntType(64), 256)]), symbols)
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
    for step in (1, 2, 4):  # sums of the first one, two ... lengths
        end = end + end.pick([8 + k for k in range(step)] + list(range(8 - step)), length ^ length)
    place = end - length + begin
    bit = place & 7
    ((first | (second << part)) << bit).store(at(4, 8))
    for k, numbers in enumerate((place >> 3, (bit + length) & 56), 1):
        numbers.store(builder.gep(at(4, 8), [ir.Constant(_INDEX, 64 * k)]))
    escapes, long = high.compare(">=", 0xF0).number(), length.compare(">", 56).number()
    usable = builder.icmp_unsigned("==", builder.or_(escapes, long), ir.Constant(_INDEX, 0))
    total = builder.extract_element(end.value, ir.Constant(ir.IntType(32), 7))
    return builder.select(usable, total, ir.Constant(_INDEX, -1))


#: encode_64(tables, t, symbols, i, octets, k, begin) -> bits of the codes of 64 symbols that are to follow ``begin``
#: bits, or -1 where the group has to be coded one by one. They come in eight groups of eight: ``octets[k ...]`` (bytes)
#: gets eight uint64 of code bits, moved to where they begin in a byte, then the numbers of these bytes, and then how
#: many bits are in whole bytes. ``tables``: uint8[512], low bytes of all symbols' ``length << 12 | code``, then high
#: bytes; length 15: no code.
encode_64 = intrinsic_step(types.intp, 7, _generate_encode)


def _symbols(bits: int, head_shift: int, head_bits: int = 8) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        values = load(builder, at(0, bits), bits, 64)
        heads = heads_of(values, head_shift) if head_bits == 8 else (values >> head_shift).to(16)
        offset = (heads - args[4]) & ((1 << head_bits) - 1)
        escape = splat(builder, ir.Constant(_INDEX, 255), 8, 64)
        symbols = offset.compare("<", args[5]).choose((offset + 1).to(8), escape)
        values.compare("==", 0).choose(0, symbols).store(at(2, 8))

    return intrinsic_step(types.void, 6, generate)


#: symbols_16(values, i, symbols, j, origin, count): symbols of 64 bfloat16 or float16 of one level, the range starting
#: at ``origin``; symbols_9: of bfloat16 with a head of 9 bits. Of float32 there is ``heads._symbols``.
symbols_16, symbols_9 = _symbols(16, 7), _symbols(16, 6, 9)
#: The same of float32 with a head of 9 bits.
symbols_wide = _symbols(32, 22, 9)


def _generate_split_24(builder: Any, args: list[Any], at: Any) -> Any:
    picks = [4 * (k // 3) + k % 3 for k in range(48)] + [63] * 16
    symbols, out, total = load(builder, at(2, 8), 8, 64), at(4, 8), ir.Constant(_INDEX, 0)
    for k in range(4):
        words = load(builder, builder.gep(at(0, 32), [ir.Constant(_INDEX, 64 * k)]), 32, 16)
        mask = symbols.part(k, 16).compare("!=", 0)
        place = builder.gep(out, [builder.mul(total, _THREE)])
        move("compress", tail_of(words), mask).seen_as(8).pick(picks).store(place)
        total = builder.add(total, mask.count())
    return total


#: split_24_64(values, i, symbols, j, out, at) -> how many: three bytes for each of 64 float32 whose symbol is not 0.
split_24_64 = intrinsic_step(types.intp, 6, _generate_split_24)


def _generate_merge_24(builder: Any, args: list[Any], at: Any) -> Any:
    picks = [64 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)]
    symbols, data, total = load(builder, at(2, 8), 8, 64), at(0, 8), ir.Constant(_INDEX, 0)
    for k in range(4):
        some = symbols.part(k, 16)
        mask = some.compare("!=", 0)
        packed = load(builder, builder.gep(data, [builder.mul(total, _THREE)]), 8, 64)
        tail = move("expand", packed.pick(picks, packed ^ packed).seen_as(32), mask)
        value = float_of(some.to(32) + args[6], tail)
        mask.choose(value, tail).store(builder.gep(at(4, 32), [ir.Constant(_INDEX, 64 * k)]))
        total = builder.add(total, mask.count())
    return total


#: merge_24_64(data, at, symbols, j, out, i, origin) -> how many items: inverse; ``origin``: head of symbol 0.
merge_24_64 = intrinsic_step(types.intp, 7, _generate_merge_24)


def _generate_count(builder: Any, args: list[Any], at: Any) -> Any:
    marks = load(builder, at(0, 8), 8, 64)
    return (marks & args[2]).compare("!=", 0).count()


#: count_64(marks, j, bits) -> how many of 64 bytes have any of ``bits``.
count_64 = intrinsic_step(types.intp, 3, _generate_count)


def _clearer(bits: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        (splat(builder, ir.Constant(_INDEX, 0), bits, 64)).store(at(0, bits))

    return intrinsic_step(types.void, 2, generate)


#: clear_32(out, i): 64 zeros of 32 bits; clear_16: of 16; clear_8: of 8.
clear_32, clear_16, clear_8 = _clearer(32), _clearer(16), _clearer(8)


def _splitter(rest: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        values, mask = load(builder, at(0, 16), 16, 64), load(builder, at(2, 8), 8, 64).compare("!=", 0)
        tail = (values & (1 << rest) - 1) | ((values >> (15 - rest)) & (1 << rest))
        move("compress", tail.to(8), mask).store(at(4, 8))
        return mask.count()

    return intrinsic_step(types.intp, 6, generate)


def _merger(rest: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        symbols = load(builder, at(2, 8), 8, 64)
        mask = symbols.compare("!=", 0)
        tail = move("expand", load(builder, at(0, 8), 8, 64), mask).to(16)
        head = (symbols + args[6]).to(16) if rest == 7 else symbols.to(16) + args[6]
        mask.choose(float_of(head, tail, 16, rest), tail).store(at(4, 16))
        return mask.count()

    return intrinsic_step(types.intp, 7, generate)


#: split_8_64(values, i, symbols, j, out, at) -> how many: the tail of each of 64 bfloat16 whose symbol is not 0, a byte
#: each; split_7_64: with a head of 9 bits, and seven bits in each byte.
split_8_64, split_7_64 = _splitter(7), _splitter(6)
#: merge_8_64(data, at, symbols, j, out, i, origin) -> how many items: inverse; ``origin``: head of symbol 0.
merge_8_64, merge_7_64 = _merger(7), _merger(6)


def _generate_split_23(builder: Any, args: list[Any], at: Any) -> Any:
    values, mask = load(builder, at(0, 32), 32, 64), load(builder, at(2, 8), 8, 64).compare("!=", 0)
    tail = tail_of(values, 22)
    upper, total = (tail >> 7).to(16), ir.Constant(_INDEX, 0)
    for k in range(2):
        half = mask.part(k, 32)
        move("compress", upper.part(k, 32), half).store(builder.gep(at(4, 8), [builder.mul(total, _TWO)]))
        total = builder.add(total, half.count())
    move("compress", (tail & 127).to(8), mask).store(at(6, 8))
    return total


def _generate_merge_23(builder: Any, args: list[Any], at: Any) -> Any:
    symbols, total, upper = load(builder, at(4, 8), 8, 64), ir.Constant(_INDEX, 0), []
    mask = symbols.compare("!=", 0)
    for k in range(2):
        half = mask.part(k, 32)
        packed = load(builder, builder.gep(at(0, 8), [builder.mul(total, _TWO)]), 16, 32)
        upper.append(move("expand", packed, half))
        total = builder.add(total, half.count())
    lower = move("expand", load(builder, at(2, 8), 8, 64), mask)
    tail = (upper[0].pick(list(range(64)), upper[1]).to(32) << 7) | lower.to(32)
    value = float_of(symbols.to(32) + args[8], tail, 32, 22)
    mask.choose(value, tail).store(at(6, 32))
    return total


#: split_23_64(values, i, symbols, j, out, at, seven, k) -> how many: of each of 64 float32 whose symbol is not 0 the
#: tail of 23 bits: the upper 16 to ``out`` (bytes), the lower 7 to ``seven``.
split_23_64 = intrinsic_step(types.intp, 8, _generate_split_23)
#: merge_23_64(data, at, seven, k, symbols, j, out, i, origin) -> how many: inverse; ``origin``: head of symbol 0.
merge_23_64 = intrinsic_step(types.intp, 9, _generate_merge_23)
