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
from .simd import INDEX, Vector, constant, from_lanes, load, load_lane, mask_of_bits, move, pick_bits, splat, store

if HAS_AVX512:
    from .simd_avx512 import look_up_bytes
elif HAS_SSSE3:
    from . import vector_shuffles

#: Where the low three bytes of 16 words lie, one word after the other; and where bytes 0, 1, 2 of each go back, with
#: byte 48, a zero, above them.
_LOW_THREE = [4 * (k // 3) + k % 3 for k in range(48)]
_TO_WORDS = [48 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)]


def _pack_24(builder: Any, args: list[Any], at: Any) -> None:
    """Pack the low three bytes of 16 words.

    bytes, lowest first    a b c . | d e f . | g h i . | ...      64
    result                 a b c     d e f     g h i     ...      48
    """
    load(builder, at(0, 32), 32, 16).seen_as(8).pick(_LOW_THREE).store(at(2, 8))


def _unpack_24(builder: Any, args: list[Any], at: Any) -> None:
    """Unpack what :func:`_pack_24` packs, with zeros above."""
    load(builder, at(0, 8), 8, 48).pick(_TO_WORDS, constant(builder, [0] * 48)).store(at(2, 32))


#: pack_24(src uint32, i, dst uint8, k): the low three bytes of 16 words, 48 bytes.
pack_24 = intrinsic_step(types.void, 4, _pack_24)
#: unpack_24(src uint8, i, dst uint32, k): inverse.
unpack_24 = intrinsic_step(types.void, 4, _unpack_24)


def _pack_7(builder: Any, args: list[Any], at: Any) -> None:
    """Pack the low seven bits of 64 bytes: two neighbors become one of twice the width, three times.

    bytes      .hhhhhhh .ggggggg .fffffff .eeeeeee .ddddddd .ccccccc .bbbbbbb .aaaaaaa   highest bits first
    pairs      ..hhhhhhhggggggg  ..fffffffeeeeeee  ..dddddddccccccc  ..bbbbbbbaaaaaaa
    fours      ....hhhhhhhgggggggfffffffeeeeeee    ....dddddddcccccccbbbbbbbaaaaaaa
    packed     ........hhhhhhhgggggggfffffffeeeeeeedddddddcccccccbbbbbbbaaaaaaa         7 of 8 bytes
    """
    # In each step the upper of two items moves down by the gap between them: 1 bit, then 2, then 4.
    #
    #     pairs & 0x7F         . ....... aaaaaaa      >> 1 & 0x3F80      .. bbbbbbb .......
    #     fours & 0x3FFF       the lower pair         >> 2 & 0xFFFC000   the upper one, from bit 14 on
    #     eights & 0xFFFFFFF   the lower four         >> 4               the upper ones, from bit 28 on
    pairs = load(builder, at(0, 8), 16, 32)
    fours = ((pairs & 0x7F) | ((pairs >> 1) & 0x3F80)).seen_as(32)
    eights = ((fours & 0x3FFF) | ((fours >> 2) & 0xFFFC000)).seen_as(64)
    packed = (eights & 0xFFFFFFF) | ((eights >> 4) & (0xFFFFFFF << 28))
    packed.seen_as(8).pick([8 * (k // 7) + k % 7 for k in range(56)]).store(at(2, 8))


def _unpack_7(builder: Any, args: list[Any], at: Any) -> None:
    """Unpack what :func:`_pack_7` packs, from its last line to its first."""
    packed = load(builder, at(0, 8), 8, 56)
    picks = [56 if k % 8 == 7 else 7 * (k // 8) + k % 8 for k in range(64)]
    eights = packed.pick(picks, packed ^ packed).seen_as(64)
    fours = ((eights & 0xFFFFFFF) | ((eights << 4) & (0xFFFFFFF << 32))).seen_as(32)
    pairs = ((fours & 0x3FFF) | ((fours << 2) & 0x3FFF0000)).seen_as(16)
    ((pairs & 0x7F) | ((pairs << 1) & 0x7F00)).store(at(2, 8))


#: pack_7(src uint8, i, dst uint8, k): 64 bytes below 128 to 56 bytes; unpack_7: inverse.
pack_7 = intrinsic_step(types.void, 4, _pack_7)
unpack_7 = intrinsic_step(types.void, 4, _unpack_7)


def _pack_6(builder: Any, args: list[Any], at: Any) -> None:
    """Pack the low six bits of 64 bytes, of every four into three.

    word       ..dddddd ..cccccc ..bbbbbb ..aaaaaa        highest bits first
    packed              ddddddcc ccccbbbb bbaaaaaa        3 of 4 bytes
    """
    words = load(builder, at(0, 8), 32, 16)
    if HAS_AVX512:  # by products: a + 64 b and c + 64 d in 16 bits each, then both with 4096 in 32
        pairs = (words.seen_as(8) & 0x3F).multiply_pairs(constant(builder, [1, 64] * 32))
        packed = pairs.multiply_pairs(constant(builder, [1, 4096] * 16, 16))
        packed.seen_as(8).pick([*_LOW_THREE, *[63] * 16]).store(at(2, 8))
        return
    #     word       ..dddddd ..cccccc ..bbbbbb ..aaaaaa      item k of four: bits 8 k ... 8 k + 5
    #     >> 2 k              dddddd cccccc bbbbbb aaaaaa     to bits 6 k ... 6 k + 5
    packed = words & 0x3F
    for k in range(1, 4):
        packed = packed | ((words & (0x3F << 8 * k)) >> 2 * k)
    packed.seen_as(8).pick(_LOW_THREE).store(at(2, 8))


def _unpack_6(builder: Any, args: list[Any], at: Any) -> None:
    """Unpack what :func:`_pack_6` packs."""
    if HAS_AVX512:  # every six bytes to eight, of which each takes the eight bits from bit 0, 6, 12 ... 42 on
        eights = load(builder, at(0, 8), 8, 64).pick([min(6 * (k // 8) + k % 8, 63) for k in range(64)])
        picks = constant(builder, [6 * (k % 8) for k in range(64)])
        (pick_bits(picks, eights) & 0x3F).store(at(2, 8))
        return
    packed = load(builder, at(0, 8), 8, 48).pick(_TO_WORDS, constant(builder, [0] * 48)).seen_as(32)
    words = packed & 0x3F
    for k in range(1, 4):
        words = words | ((packed & (0x3F << 6 * k)) << 2 * k)
    words.store(at(2, 8))


#: pack_6(src uint8, i, dst uint8, k): the low 6 bits of 64 bytes, 48 bytes; unpack_6: inverse.
pack_6 = intrinsic_step(types.void, 4, _pack_6)
unpack_6 = intrinsic_step(types.void, 4, _unpack_6)


def _ones(builder: Any, width: Any) -> Any:
    """Return a number with its lowest ``width`` bits set, fewer than 64."""
    return builder.sub(builder.shl(ir.Constant(INDEX, 1), width), ir.Constant(INDEX, 1))


def _packed_bytes(builder: Any, width: Any) -> Vector:
    """Return the mask of the lowest ``width`` bytes of every eight."""
    # The factor repeats a byte eight times: width 3 makes 00000111 of each eight bits, lane 0 lowest.
    return mask_of_bits(builder, builder.mul(_ones(builder, width), ir.Constant(INDEX, 0x0101010101010101)))


def _places(builder: Any, start: Any, width: Any) -> list[Any]:
    """Addresses of eight groups of ``width`` bytes."""
    return [builder.gep(start, [builder.mul(width, ir.Constant(INDEX, lane))]) for lane in range(8)]


def _pack_64(builder: Any, args: list[Any], at: Any) -> None:
    """Pack the low ``width`` bits of 64 bytes as :func:`_pack_7` does seven; eight bytes become ``width`` bytes.

    bytes      ...hh ...gg ...ff ...ee ...dd ...cc ...bb ...aa     width 2, highest bits first
    pairs      ......hhgg  ......ffee  ......ddcc  ......bbaa
    fours      ............hhggffee    ............ddccbbaa
    eights     ........................hhggffee ddccbbaa           the lowest 8 * width bits of 64
    """
    width = args[2]
    items = load(builder, at(0, 8), 8, 64) & _ones(builder, width)
    # An item of `bits` bits has `width` that count, then twice as many, and so on: the gap above them closes each time.
    for bits in (8, 16, 32):
        pairs = items.seen_as(2 * bits)
        items = (pairs & (1 << bits) - 1) | ((pairs >> bits) << width)
        width = builder.shl(width, ir.Constant(INDEX, 1))
    if HAS_AVX512:
        move("compress", items.seen_as(8), _packed_bytes(builder, args[2])).store(at(3, 8))
        return
    for lane, place in enumerate(_places(builder, at(3, 8), args[2])):
        # Ascending, so that each store overwrites what the one before wrote too much.
        store(builder, items.lane(lane), place)


def _unpack_64(builder: Any, args: list[Any], at: Any) -> None:
    """Unpack what :func:`_pack_64` packs, from its last line to its first."""
    width = args[2]
    if HAS_AVX512:
        items = move("expand", load(builder, at(0, 8), 8, 64), _packed_bytes(builder, width)).seen_as(64)
    else:
        items = from_lanes(builder, [load_lane(builder, place, 64) for place in _places(builder, at(0, 8), width)])
    #     packed      ........ ........ hhggffee ddccbbaa      width 2: 16 bits of 64 count
    #     bits 32     ........ hhggffee ........ ddccbbaa      half = 4 * width bits move up to bit 32
    #     bits 16     ....hhgg ....ffee ....ddcc ....bbaa      half = 2 * width, in lanes of 32 bits; then width, in 16
    for bits in (32, 16, 8):
        half = builder.mul(width, ir.Constant(INDEX, bits // 8))
        pairs, low = items.seen_as(2 * bits), _ones(builder, half)
        items = (pairs & low) | (((pairs >> half) & low) << bits)
    items.store(at(3, 8))


#: pack_64(src uint8, i, width, dst uint8, k): the low ``width`` (1 ... 8) bits of 64 bytes; writes up to 64 bytes.
pack_64 = intrinsic_step(types.void, 5, _pack_64)
#: unpack_64(src uint8, i, width, dst uint8, k): inverse; reads up to 64 bytes.
unpack_64 = intrinsic_step(types.void, 5, _unpack_64)


def _marked(builder: Any, address: Any, bits: Any, n: int) -> Vector:
    """Return the mask of those of n bytes that have any of ``bits`` set."""
    return (load(builder, address, 8, n) & bits).compare("!=", 0)


#: count_64(marks, j, bits) -> how many of 64 bytes have any of ``bits``.
count_64 = intrinsic_step(types.intp, 3, lambda builder, args, at: _marked(builder, at(0, 8), args[2], 64).count())


def _copy(builder: Any, args: list[Any], at: Any) -> None:
    load(builder, at(0, 8), 8, 64).store(at(2, 8))


#: copy_64(src, i, dst, k): copy 64 bytes.
copy_64 = intrinsic_step(types.void, 4, _copy)


def _clearer(bits: int) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> None:
        (splat(builder, ir.Constant(INDEX, 0), bits, 64)).store(at(0, bits))

    return intrinsic_step(types.void, 2, generate)


#: clear_32(out, i): 64 zeros of 32 bits; clear_16: of 16; clear_8: of 8.
clear_32, clear_16, clear_8 = _clearer(32), _clearer(16), _clearer(8)


def _mover(verb: str, bits: int) -> Any:
    """Make a step that compresses or expands 64 bytes or 16 words.

    marked     1 0 0 1 1 0 ...
    compress   a b c d e f ...  ->  a d e 0 0 0 ...
    expand     a b c d e f ...  ->  a 0 0 b c 0 ...
    """
    n = 64 if bits == 8 else 16

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        mask = _marked(builder, at(2, 8), args[4], n)
        move(verb, load(builder, at(0, bits), bits, n), mask).store(at(5, bits))
        return mask.count()

    return intrinsic_step(types.intp, 7, generate)


def _look_up_64(builder: Any, args: list[Any], at: Any) -> None:
    look_up_bytes(builder, at(0, 8), load(builder, at(2, 8), 8, 64)).store(at(4, 8))


if HAS_AVX512:
    #: compress_8(src, i, mask, j, bits, dst, k) -> number moved: 64 bytes, marked where ``mask[j ...] & bits``.
    compress_8 = _mover("compress", 8)
    #: expand_8(src, i, mask, j, bits, dst, k) -> number taken from src.
    expand_8 = _mover("expand", 8)
    #: compress_32, expand_32: of 16 words (uint32), the mask in bytes.
    compress_32 = _mover("compress", 32)
    expand_32 = _mover("expand", 32)
    #: look_up_64(table uint8[256], 0, src, i, dst, k): 64 bytes through a table.
    look_up_64 = intrinsic_step(types.void, 6, _look_up_64)
    #: look_up_some(table, 0, src, i, dst, k, n_shuffles): the same, if bytes are below 16 * n_shuffles.
    look_up_some = intrinsic_step(types.void, 7, _look_up_64)
else:

    @kernel
    def compress_32(src, i, mask, j, bits, dst, k):
        """Gather the words whose bit is set in ``mask``, one after another: the loop that stands for ``_mover``."""
        at = k
        for lane in range(16):
            # Written in any case, and counted if it is marked: else the next one goes over it. No branch, which would
            # often be mispredicted.
            dst[at] = src[i + lane]
            at += (mask[j + lane] & bits) != 0
        return at - k

    @kernel
    def expand_32(src, i, mask, j, bits, dst, k):
        """Spread words to the places whose bit is set in ``mask``: the loop that stands for ``_mover``."""
        at = i
        for lane in range(16):
            marked = (mask[j + lane] & bits) != 0
            # Read in any case, and 0 unless it is marked: likewise.
            dst[k + lane] = src[at] * marked
            at += marked
        return at - i

    @kernel
    def look_up_64(table, zero, src, i, dst, k):
        """Look 64 bytes up in a table of 256, one after another: the loop that stands for ``_look_up_64``."""
        for lane in range(64):
            dst[k + lane] = table[src[i + lane]]

    @kernel
    def look_up_some(table, zero, src, i, dst, k, n_shuffles):
        """Look 64 bytes up as :func:`look_up_64`."""
        look_up_64(table, zero, src, i, dst, k)


if not HAS_AVX512 and HAS_SSSE3:
    compress_8, expand_8 = vector_shuffles.compress_8, vector_shuffles.expand_8
    pack_6, unpack_6 = vector_shuffles.pack_6, vector_shuffles.unpack_6
    look_up_level, look_up_some = vector_shuffles.look_up_16, vector_shuffles.look_up_some
else:
    look_up_level = look_up_64  #: the same where the bytes are levels, below 16

if not (HAS_AVX512 or HAS_SSSE3):

    @kernel
    def compress_8(src, i, mask, j, bits, dst, k):
        """Gather the bytes whose bit is set in ``mask``, one after another: the loop that stands for ``_mover``."""
        at = k
        for lane in range(64):
            # As of compress_32.
            dst[at] = src[i + lane]
            at += (mask[j + lane] & bits) != 0
        return at - k

    @kernel
    def expand_8(src, i, mask, j, bits, dst, k):
        """Spread bytes to the places whose bit is set in ``mask``: the loop that stands for ``_mover``."""
        at = i
        for lane in range(64):
            marked = (mask[j + lane] & bits) != 0
            dst[k + lane] = src[at] * marked
            at += marked
        return at - i
