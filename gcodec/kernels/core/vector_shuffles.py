"""Compressing and expanding 64 bytes by shuffles of eight at a time, for x86-64 without AVX-512."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .intrinsics import HAS_AVX2, intrinsic_step
from .simd import Vector, call, for_range, from_lanes, load, load_lane, slot_for

_INDEX, _BYTE = ir.IntType(64), ir.IntType(8)
LANES = 32 if HAS_AVX2 else 16  #: bytes of a register
LANE_BYTES = 16  #: bytes that one shuffle moves among each other: AVX2 has two such lanes in a register


def _shuffles(verb: str) -> list[int]:
    """Return for every mask of eight bytes the shuffle that compresses or expands them; 128 gives zero.

    mask         0 1 1 0 0 0 0 1                      byte 0 first
    compress     1 2 7 128 128 128 128 128            result k is this byte of the source
    expand       128 0 1 128 128 128 128 2
    """
    result = []
    for mask in range(256):
        marked = [k for k in range(8) if mask >> k & 1]
        if verb == "compress":
            result += marked + [128] * (8 - len(marked))
        else:
            result += [marked.index(k) if k in marked else 128 for k in range(8)]
    return result


def constant_table(builder: Any, name: str, entries: list[int]) -> Any:
    """Return the address of a table of bytes, a constant of the module.

    Args:
        builder: llvmlite's.
        name: Name of the table, which no other has.
    """
    table = builder.module.globals.get(name)
    if table is None:
        kind = ir.ArrayType(_BYTE, len(entries))
        table = ir.GlobalVariable(builder.module, kind, name)
        table.initializer = ir.Constant(kind, bytearray(entries))
        table.linkage, table.global_constant = "internal", True
    return builder.bitcast(table, _BYTE.as_pointer())


def move_8(builder: Any, verb: str, source: Any, masks: list[Any], target: Any) -> Any:
    """Compress or expand groups of eight bytes, one shuffle each.

    compress     source  |a b c d e f g h|i j k l m n o p|     masks 01100001, 10000000
                 target  |b c h|i|                             each group at the place where the one before ended
    expand       the other way round, zeros between

    Args:
        builder: llvmlite's.
        source: Address of the bytes.
        masks: A mask of eight bits for each group, as scalars of 64 bits.
        target: Address of the result; up to eight bytes behind it are written, too.

    Returns:
        How many bytes were moved, a scalar.
    """
    moved, table, results = _index(0), constant_table(builder, f"gcodec.{verb}_8", _shuffles(verb)), []
    for k, mask in enumerate(masks):
        moving = _half(builder, builder.gep(table, [builder.shl(mask, _index(3))]))
        group = moved if verb == "expand" else _index(8 * k)
        results.append(shuffle(_half(builder, builder.gep(source, [group])), moving))
        if verb == "compress":
            # All eight bytes, also those behind the ones that were moved: the next store begins where these end, over
            # the rest.
            results[k].part(0, 8).store(builder.gep(target, [moved]))
        elif k % 2:  # two at a time: what was stored in pieces is slow to read as a whole
            pair = results[k - 1].seen_as(64).pick([0, 2], results[k].seen_as(64))
            pair.store(builder.gep(target, [_index(8 * k - 8)]))
        moved = builder.add(moved, call(builder, "llvm.ctpop.i64", _INDEX, [mask]))
    return moved


def _mover(verb: str) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        bits = builder.trunc(args[4], _BYTE)
        mask = (load(builder, at(2, 8), 8, 64) & bits).compare("!=", 0).number()
        #     mask     63 ... 56 | ... | 15 ... 8 | 7 ... 0        a byte for each eight values, the first lowest
        eights = [builder.and_(builder.lshr(mask, _index(k)), _index(255)) for k in range(0, 64, 8)]
        return move_8(builder, verb, at(0, 8), eights, at(5, 8))

    return intrinsic_step(types.intp, 7, generate)


def _index(place: int) -> Any:
    return ir.Constant(_INDEX, place)


def _half(builder: Any, address: Any) -> Vector:
    """Read eight bytes as the first of sixteen; the others are undefined."""
    halves = [load_lane(builder, address, 64), ir.Constant(_INDEX, ir.Undefined)]
    return from_lanes(builder, halves).seen_as(8)


def shuffle(table: Vector, source: Vector) -> Vector:
    """Return the entries of a table of 16 bytes at 16 indices, of which the low four bits count; from 128 on it is 0.
    With AVX2 also of two tables, one behind the other, each at indices of its own.

    table      a b c d e ...
    source     2 0 128 3 1 ...
    result     c a 0   d b ...
    """
    name = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b"}[source.n]
    return Vector(table.builder, call(table.builder, name, source.value.type, [table.value, source.value]))


def load_table(builder: Any, address: Any) -> Vector:
    """Read a table of 16 bytes, as often as :data:`LANES` has room for it."""
    return load(builder, address, 8, 16).pick([k % LANE_BYTES for k in range(LANES)])


def zip_lanes(low: Vector, high: Vector, half: int) -> Vector:
    """Join lanes of two registers, in the lower or upper half of every 16 bytes, to lanes of twice the width.

    low         l0 l1 l2 l3 | l4 l5 l6 l7          here four lanes in 16 bytes
    high        h0 h1 h2 h3 | h4 h5 h6 h7
    half 0      h0l0 h1l1   | h4l4 h5l5
    half 1      h2l2 h3l3   | h6l6 h7l7
    """
    n = 8 * LANE_BYTES // low.bits
    lanes = [start + half * n // 2 + k for start in range(0, low.n, n) for k in range(n // 2)]
    return low.pick([lane + register for lane in lanes for register in (0, low.n)], high).seen_as(2 * low.bits)


def look_up(builder: Any, tables: list[Any], source: Vector, n_shuffles: Any) -> list[Vector]:
    """Return the entries of tables of bytes at indices, sixteen entries at a time: a byte whose highest bit is set
    gives 0 when it is shuffled.

        source               3     20     255      the table's entries 16 to 31
        less 16            243      4     239      modulo 256
        plus 0x70          255    116     255      saturating
        shuffled             0   entry 4    0      joined with what the other sixteens give

    Args:
        builder: llvmlite's.
        tables: Their addresses.
        source: Indices, bytes, as many as registers hold.
        n_shuffles: For how many times sixteen entries, a scalar; those behind them count as 0.
    """
    slots = [slot_for(builder, (source ^ source).value) for _ in tables]
    with for_range(builder, n_shuffles) as index:
        begin = builder.mul(index, _index(LANE_BYTES))
        entries = source - begin
        # pshufb gives 0 where the topmost bit is set, and else takes the low four bits. 0x70 leaves these as they are:
        #
        #     0 ... 15  + 0x70   ->   0x70 ... 0x7F     entries 0 ... 15
        #     16 ...    + 0x70   ->   0x80 ... 0xFF     0; saturating, as larger sums would wrap around to small ones
        adding = f"llvm.uadd.sat.v{source.n}i8"
        limit = entries.fill(0x70)
        entries = Vector(builder, call(builder, adding, source.value.type, [entries.value, limit.value]))
        for slot, table in zip(slots, tables, strict=True):
            sixteen, found = load_table(builder, builder.gep(table, [begin])), Vector(builder, builder.load(slot))
            parts = [shuffle(sixteen, entries.part(k, LANES)) for k in range(source.n // LANES)]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [low.pick(list(range(2 * low.n)), high) for low, high in pairs]
            builder.store((found | parts[0]).value, slot)
    return [Vector(builder, builder.load(slot)) for slot in slots]


def _look_up_some(builder: Any, args: list[Any], at: Any) -> None:
    (found,) = look_up(builder, [at(0, 8)], load(builder, at(2, 8), 8, 64), args[6])
    found.store(at(4, 8))


#: look_up_some(table, 0, src, i, dst, k, n_shuffles): 64 bytes through the first 16 * n_shuffles entries of a table; 0
#: for those beyond.
look_up_some = intrinsic_step(types.void, 7, _look_up_some)


compress_8, expand_8 = _mover("compress"), _mover("expand")


def sums(items: Vector, factor: int) -> Vector:
    """Return sums of two lanes in a row, the second times a factor, in lanes of twice the width.

    items      d        c        b        a             highest lane first
    result     d * factor + c    b * factor + a

    Args:
        items: 16 bytes, or 8 words of 16 bits; with AVX2 also twice as many.
        factor: Up to 64 for bytes, up to 4096 for words.
    """
    name = {
        (8, 16): "llvm.x86.ssse3.pmadd.ub.sw.128",
        (16, 8): "llvm.x86.sse2.pmadd.wd",
        (8, 32): "llvm.x86.avx2.pmadd.ub.sw",
        (16, 16): "llvm.x86.avx2.pmadd.wd",
    }[items.bits, items.n]
    kind = ir.VectorType(ir.IntType(2 * items.bits), items.n // 2)
    factors = ir.Constant(items.value.type, [1, factor] * (items.n // 2))
    return Vector(items.builder, call(items.builder, name, kind, [items.value, factors]))


def _pack_sixes(items: Vector, target: Any) -> None:
    """Write the low six bits of sixteen bytes as twelve bytes, and four more behind them.

    items      ..dddddd ..cccccc ..bbbbbb ..aaaaaa      highest bits first
    sums       ....dddddd cccccc ....bbbbbb aaaaaa      c + 64 d and a + 64 b
    packed     ........ ddddddccccccbbbbbbaaaaaa        with 4096; 3 of 4 bytes
    """
    packed = sums(sums(items & 63, 64), 4096).seen_as(8)
    packed.pick([4 * (k // 3) + k % 3 for k in range(12)] + [15] * 4).store(target)


def _unpack_sixes(builder: Any, source: Any) -> Vector:
    """Return sixteen items of six bits, the inverse of :func:`_pack_sixes`; reads sixteen bytes.

    three bytes      ddddddcc ccccbbbb bbaaaaaa         highest bits first
    words            ddddddccccccbbbb ccccbbbbbbaaaaaa  the upper two, and the lower two
    shifted          ....ddddddcccccc ccccbbbbbbaaaaaa  the upper ones, by four
    result           ..dddddd..cccccc ..bbbbbb..aaaaaa  low six bits, and the next six two bits higher
    """
    picks = [3 * (k // 4) + (0, 1, 1, 2)[k % 4] for k in range(16)]
    words = load(builder, source, 8, 16).pick(picks).seen_as(16)
    words = words.pick([k + 8 * (k % 2) for k in range(8)], words >> 4)
    return ((words & 0x3F) | ((words << 2) & 0x3F00)).seen_as(8)


def _pack_6(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(4):
        items = load(builder, builder.gep(at(0, 8), [_index(16 * k)]), 8, 16)
        _pack_sixes(items, builder.gep(at(2, 8), [_index(12 * k)]))


def _unpack_6(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(4):
        items = _unpack_sixes(builder, builder.gep(at(0, 8), [_index(12 * k)]))
        items.store(builder.gep(at(2, 8), [_index(16 * k)]))


def _pack_3(builder: Any, args: list[Any], at: Any) -> None:
    """Pack the low three bits of 64 bytes: two bytes in a row become one of six bits, and these are packed as six.

    bytes      .....bbb .....aaa         highest bits first
    sums       ..bbbaaa                  a + 8 b
    """
    for k in range(2):
        halves = [load(builder, builder.gep(at(0, 8), [_index(32 * k + i)]), 8, 16) & 7 for i in (0, 16)]
        low, high = (sums(half, 8).seen_as(8) for half in halves)
        _pack_sixes(low.pick(list(range(0, 32, 2)), high), builder.gep(at(2, 8), [_index(12 * k)]))


def _unpack_3(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(2):
        pairs = _unpack_sixes(builder, builder.gep(at(0, 8), [_index(12 * k)]))
        items = (pairs & 7).pick([i + half for i in range(16) for half in (0, 16)], pairs >> 3)
        items.store(builder.gep(at(2, 8), [_index(32 * k)]))


#: pack_6(src uint8, i, dst uint8, k): the low 6 bits of 64 bytes, 48 bytes and 4 more; unpack_6: inverse. pack_3,
#: unpack_3: the low 3 bits.
pack_6, unpack_6 = intrinsic_step(types.void, 4, _pack_6), intrinsic_step(types.void, 4, _unpack_6)
pack_3, unpack_3 = intrinsic_step(types.void, 4, _pack_3), intrinsic_step(types.void, 4, _unpack_3)


def _look_up_16(builder: Any, args: list[Any], at: Any) -> None:
    table = load(builder, at(0, 8), 8, 16)
    for k in range(0, 64, 16):
        source = load(builder, builder.gep(at(2, 8), [_index(k)]), 8, 16) & 15
        shuffle(table, source).store(builder.gep(at(4, 8), [_index(k)]))


#: look_up_16(table, 0, src, i, dst, k): 64 bytes through the first 16 entries of a table.
look_up_16 = intrinsic_step(types.void, 6, _look_up_16)
