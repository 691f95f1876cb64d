"""Groups of 64 bytes or 16 words at a time: the steps that LLVM does not vectorize by itself.

``pack_24`` and ``unpack_24`` are byte shuffles that every target has. Compressing, expanding and 256-entry look-ups
use AVX-512 (VBMI and VBMI2) where the code is compiled for it, compressing and expanding bytes at least SSSE3, and
otherwise there are plain loops; the results are the same.
All of them read and write whole groups, so arrays need up to 64 bytes of margin behind the last value.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .intrinsics import HAS_AVX512, HAS_SSSE3, intrinsic_step
from .jit import kernel
from .simd import Vector, load, move, pick_bits, splat

if HAS_SSSE3:
    from . import vector_ssse3

_BYTE, _WORD, _INDEX = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BYTES, _WORDS = ir.VectorType(_BYTE, 64), ir.VectorType(_WORD, 16)


def _vector(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.bitcast(address, value.type.as_pointer()), align=1)


def _constant(kind: Any, values: list[int]) -> Any:
    return ir.Constant(kind, values)


def _call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def _generate_pack_24(builder: Any, args: list[Any], at: Any) -> None:
    words = builder.bitcast(_vector(builder, at(0, 32), _WORDS), _BYTES)
    picks = _constant(ir.VectorType(_WORD, 48), [4 * (k // 3) + k % 3 for k in range(48)])
    _store(builder, builder.shuffle_vector(words, words, picks), at(2, 8))


def _generate_unpack_24(builder: Any, args: list[Any], at: Any) -> None:
    packed = _vector(builder, at(0, 8), ir.VectorType(_BYTE, 48))
    zero = _constant(packed.type, [0] * 48)
    picks = _constant(ir.VectorType(_WORD, 64), [48 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)])
    _store(builder, builder.shuffle_vector(packed, zero, picks), at(2, 32))


#: pack_24(src uint32, i, dst uint8, k): the low three bytes of 16 words, 48 bytes.
pack_24 = intrinsic_step(types.void, 4, _generate_pack_24)
#: unpack_24(src uint8, i, dst uint32, k): inverse.
unpack_24 = intrinsic_step(types.void, 4, _generate_unpack_24)


def _fields(builder: Any, word: Any, moves: list[tuple[int, int]]) -> Any:
    """OR of ``(word & mask) shifted`` over (mask, shift left, negative for right) pairs, lane by lane."""
    total = None
    for mask, shift in moves:
        amount = ir.Constant(word.type, [abs(shift)] * word.type.count)
        part = builder.and_(word, ir.Constant(word.type, [mask] * word.type.count))
        if shift:
            part = builder.shl(part, amount) if shift > 0 else builder.lshr(part, amount)
        total = part if total is None else builder.or_(total, part)
    return total


def _generate_pack_7(builder: Any, args: list[Any], at: Any) -> None:
    pairs = load(builder, at(0, 8), 16, 32)
    fours = ((pairs & 0x7F) | ((pairs >> 1) & 0x3F80)).seen_as(32)
    eights = ((fours & 0x3FFF) | ((fours >> 2) & 0xFFFC000)).seen_as(64)
    packed = (eights & 0xFFFFFFF) | ((eights >> 4) & (0xFFFFFFF << 28))
    packed.seen_as(8).pick([8 * (k // 7) + k % 7 for k in range(56)]).store(at(2, 8))


def _generate_unpack_7(builder: Any, args: list[Any], at: Any) -> None:
    packed = load(builder, at(0, 8), 8, 56)
    picks = [56 if k % 8 == 7 else 7 * (k // 8) + k % 8 for k in range(64)]
    eights = packed.pick(picks, packed ^ packed).seen_as(64)
    fours = ((eights & 0xFFFFFFF) | ((eights << 4) & (0xFFFFFFF << 32))).seen_as(32)
    pairs = ((fours & 0x3FFF) | ((fours << 2) & 0x3FFF0000)).seen_as(16)
    ((pairs & 0x7F) | ((pairs << 1) & 0x7F00)).store(at(2, 8))


#: pack_7(src uint8, i, dst uint8, k): 64 bytes below 128 to 56 bytes; unpack_7: inverse.
pack_7 = intrinsic_step(types.void, 4, _generate_pack_7)
unpack_7 = intrinsic_step(types.void, 4, _generate_unpack_7)


def _generate_pack_6(builder: Any, args: list[Any], at: Any) -> None:
    if HAS_AVX512:
        below_64 = load(builder, at(0, 8), 8, 64) & 0x3F
        pairs = below_64.multiply_pairs(Vector(builder, _constant(_BYTES, [1, 64] * 32)))
        fours = pairs.multiply_pairs(Vector(builder, _constant(_WORDS, [1 | 64 * 64 << 16] * 16)))
        fours.seen_as(8).pick([4 * (k // 3) + k % 3 for k in range(48)] + [63] * 16).store(at(2, 8))
        return
    words = _vector(builder, at(0, 8), _WORDS)
    packed = _fields(builder, words, [(0x3F, 0), (0x3F00, -2), (0x3F0000, -4), (0x3F000000, -6)])
    picks = _constant(ir.VectorType(_WORD, 48), [4 * (k // 3) + k % 3 for k in range(48)])
    flat = builder.bitcast(packed, _BYTES)
    _store(builder, builder.shuffle_vector(flat, flat, picks), at(2, 8))


def _generate_unpack_6(builder: Any, args: list[Any], at: Any) -> None:
    if HAS_AVX512:
        eights = load(builder, at(0, 8), 8, 64).pick([min(6 * (k // 8) + k % 8, 63) for k in range(64)])
        picks = Vector(builder, _constant(_BYTES, [6 * (k % 8) for k in range(64)]))
        (pick_bits(picks, eights) & 0x3F).store(at(2, 8))
        return
    packed = _vector(builder, at(0, 8), ir.VectorType(_BYTE, 48))
    picks = _constant(ir.VectorType(_WORD, 64), [48 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)])
    zero = _constant(packed.type, [0] * 48)
    words = builder.bitcast(builder.shuffle_vector(packed, zero, picks), _WORDS)
    _store(builder, _fields(builder, words, [(0x3F, 0), (0xFC0, 2), (0x3F000, 4), (0xFC0000, 6)]), at(2, 8))


#: pack_6(src uint8, i, dst uint8, k): the low 6 bits of 64 bytes, 48 bytes; unpack_6: inverse.
pack_6 = intrinsic_step(types.void, 4, _generate_pack_6)
unpack_6 = intrinsic_step(types.void, 4, _generate_unpack_6)


def _packed_bytes(builder: Any, width: Any) -> Vector:
    """Mask of the lowest ``width`` bytes of every eight."""
    one, eight = ir.Constant(_INDEX, 1), ir.Constant(_INDEX, 0x0101010101010101)
    every = builder.mul(builder.sub(builder.shl(one, width), one), eight)
    return Vector(builder, builder.bitcast(every, ir.VectorType(ir.IntType(1), 64)))


def _places(builder: Any, start: Any, width: Any) -> list[Any]:
    """Addresses of eight groups of ``width`` bytes."""
    return [builder.gep(start, [builder.mul(width, ir.Constant(_INDEX, lane))]) for lane in range(8)]


def _generate_pack_64(builder: Any, args: list[Any], at: Any) -> None:
    width = args[2]
    one = ir.Constant(_INDEX, 1)
    items = load(builder, at(0, 8), 8, 64) & builder.sub(builder.shl(one, width), one)
    for bits in (8, 16, 32):  # two in a row become one of twice the width
        both = items.seen_as(2 * bits)
        items = (both & (1 << bits) - 1) | ((both >> bits) << width)
        width = builder.shl(width, one)
    if HAS_AVX512:
        move("compress", items.seen_as(8), _packed_bytes(builder, args[2])).store(at(3, 8))
        return
    for lane, place in enumerate(_places(builder, at(3, 8), args[2])):
        # Ascending, so that each store overwrites what the one before wrote too much.
        _store(builder, builder.extract_element(items.value, ir.Constant(_WORD, lane)), place)


def _generate_unpack_64(builder: Any, args: list[Any], at: Any) -> None:
    width, one = args[2], ir.Constant(_INDEX, 1)
    if HAS_AVX512:
        items = move("expand", load(builder, at(0, 8), 8, 64), _packed_bytes(builder, width)).seen_as(64)
    else:
        packed = ir.Constant(ir.VectorType(_INDEX, 8), ir.Undefined)
        for lane, place in enumerate(_places(builder, at(0, 8), width)):
            packed = builder.insert_element(packed, _vector(builder, place, _INDEX), ir.Constant(_WORD, lane))
        items = Vector(builder, packed)
    for bits in (32, 16, 8):
        half = builder.mul(width, ir.Constant(_INDEX, bits // 8))
        both = items.seen_as(2 * bits)
        low = builder.sub(builder.shl(one, half), one)
        items = (both & low) | (((both >> half) & low) << bits)
    items.store(at(3, 8))


#: pack_64(src uint8, i, width, dst uint8, k): the low ``width`` (1 ... 8) bits of 64 bytes; writes up to 64 bytes.
pack_64 = intrinsic_step(types.void, 5, _generate_pack_64)
#: unpack_64(src uint8, i, width, dst uint8, k): inverse; reads up to 64 bytes.
unpack_64 = intrinsic_step(types.void, 5, _generate_unpack_64)


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


def _mask(builder: Any, address: Any, bits: Any, n: int) -> Any:
    """<n x i1>: which of n bytes have any of ``bits`` set."""
    kind = ir.VectorType(_BYTE, n)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), builder.trunc(bits, _BYTE), ir.Constant(_WORD, 0))
    all_bits = builder.shuffle_vector(one, one, _constant(ir.VectorType(_WORD, n), [0] * n))
    tested = builder.and_(_vector(builder, address, kind), all_bits)
    return builder.icmp_unsigned("!=", tested, _constant(kind, [0] * n))


def _count(builder: Any, mask: Any, n: int) -> Any:
    number = builder.bitcast(mask, ir.IntType(n))
    return (
        builder.zext(_call(builder, f"llvm.ctpop.i{n}", number.type, [number]), _INDEX)
        if n < 64
        else _call(builder, "llvm.ctpop.i64", number.type, [number])
    )


def _mover(verb: str, bits: int) -> Any:
    """compress: dst[k ...] = those of a group of src[i ...] that are marked; expand: the inverse, zero where not
    marked."""
    n = 64 if bits == 8 else 16
    kind = ir.VectorType(ir.IntType(bits), n)

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        mask = _mask(builder, at(2, 8), args[4], n)
        moved = _call(
            builder,
            f"llvm.x86.avx512.mask.{verb}.v{n}i{bits}",
            kind,
            [_vector(builder, at(0, bits), kind), _constant(kind, [0] * n), mask],
        )
        _store(builder, moved, at(5, bits))
        return _count(builder, mask, n)

    return intrinsic_step(types.intp, 7, generate)


def _generate_lookup(builder: Any, args: list[Any], at: Any) -> None:
    source = _vector(builder, at(2, 8), _BYTES)
    quarters = [_vector(builder, builder.gep(at(0, 8), [ir.Constant(_INDEX, 64 * q)]), _BYTES) for q in range(4)]
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low = _call(builder, name, _BYTES, [quarters[0], source, quarters[1]])
    high = _call(builder, name, _BYTES, [quarters[2], source, quarters[3]])
    upper = builder.icmp_signed("<", source, _constant(_BYTES, [0] * 64))
    _store(builder, builder.select(upper, high, low), at(4, 8))


if HAS_AVX512:
    #: compress_8(src, i, mask, j, bits, dst, k) -> number moved: 64 bytes, marked where ``mask[j ...] & bits``.
    compress_8 = _mover("compress", 8)
    #: expand_8(src, i, mask, j, bits, dst, k) -> number taken from src.
    expand_8 = _mover("expand", 8)
    #: The same for 16 words (uint32), the mask in bytes.
    compress_32 = _mover("compress", 32)
    expand_32 = _mover("expand", 32)
    #: look_up_64(table uint8[256], 0, src, i, dst, k): 64 bytes through a table.
    look_up_64 = intrinsic_step(types.void, 6, _generate_lookup)
else:

    @kernel
    def compress_32(src, i, mask, j, bits, dst, k):
        """Gather the words whose bit is set in ``mask``, one after another: the loop that stands for ``_mover``."""
        at = k
        for lane in range(16):
            dst[at] = src[i + lane]
            at += (mask[j + lane] & bits) != 0
        return at - k

    @kernel
    def expand_32(src, i, mask, j, bits, dst, k):
        """Spread words to the places whose bit is set in ``mask``: the loop that stands for ``_mover``."""
        at = i
        for lane in range(16):
            own = (mask[j + lane] & bits) != 0
            dst[k + lane] = src[at] * own
            at += own
        return at - i

    @kernel
    def look_up_64(table, zero, src, i, dst, k):
        """Look 64 bytes up in a table of 256, one after another: the loop that stands for ``_generate_lookup``."""
        for lane in range(64):
            dst[k + lane] = table[src[i + lane]]


if not HAS_AVX512 and HAS_SSSE3:
    compress_8, expand_8 = vector_ssse3.compress_8, vector_ssse3.expand_8
    pack_6, unpack_6 = vector_ssse3.pack_6, vector_ssse3.unpack_6
    look_up_level = vector_ssse3.look_up_16
else:
    look_up_level = look_up_64  #: the same where the bytes are levels, below 16

if not (HAS_AVX512 or HAS_SSSE3):

    @kernel
    def compress_8(src, i, mask, j, bits, dst, k):
        """Gather the bytes whose bit is set in ``mask``, one after another: the loop that stands for ``_mover``."""
        at = k
        for lane in range(64):
            dst[at] = src[i + lane]
            at += (mask[j + lane] & bits) != 0
        return at - k

    @kernel
    def expand_8(src, i, mask, j, bits, dst, k):
        """Spread bytes to the places whose bit is set in ``mask``: the loop that stands for ``_mover``."""
        at = i
        for lane in range(64):
            own = (mask[j + lane] & bits) != 0
            dst[k + lane] = src[at] * own
            at += own
        return at - i
