"""Compressing and expanding 64 bytes by shuffles of eight at a time, for x86-64 without AVX-512."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .intrinsics import intrinsic_step
from .simd import Vector, call, load

_INDEX, _BYTE, _WORD = ir.IntType(64), ir.IntType(8), ir.IntType(32)
_SIXTEEN = ir.VectorType(_BYTE, 16)


def _shuffles(verb: str) -> list[int]:
    """For every mask of eight bytes the shuffle that compresses or expands them; 128 gives zero."""
    result = []
    for mask in range(256):
        marked = [k for k in range(8) if mask >> k & 1]
        if verb == "compress":
            result += marked + [128] * (8 - len(marked))
        else:
            result += [marked.index(k) if k in marked else 128 for k in range(8)]
    return result


def _table(builder: Any, verb: str) -> Any:
    """Address of :func:`_shuffles`, a constant of the module."""
    name = f"gcodec.{verb}_8"
    found = builder.module.globals.get(name)
    if found is None:
        kind = ir.ArrayType(_BYTE, 2048)
        found = ir.GlobalVariable(builder.module, kind, name)
        found.initializer = ir.Constant(kind, bytearray(_shuffles(verb)))
        found.linkage, found.global_constant = "internal", True
    return builder.bitcast(found, _BYTE.as_pointer())


def move_8(builder: Any, verb: str, source: Any, masks: list[Any], target: Any) -> Any:
    """Compress or expand groups of eight bytes by masks of eight bits each, from address to address. Returns how many
    were moved."""
    moved, table, results = _index(0), _table(builder, verb), []
    for k, own in enumerate(masks):
        moving = _half(builder, builder.gep(table, [builder.shl(own, _index(3))]))
        here = moved if verb == "expand" else _index(8 * k)
        results.append(shuffle(_half(builder, builder.gep(source, [here])), moving))
        if verb == "compress":
            results[k].part(0, 8).store(builder.gep(target, [moved]))
        elif k % 2:  # two at a time: what was stored in pieces is slow to read as a whole
            both = results[k - 1].seen_as(64).pick([0, 2], results[k].seen_as(64))
            both.store(builder.gep(target, [_index(8 * k - 8)]))
        moved = builder.add(moved, call(builder, "llvm.ctpop.i64", _INDEX, [own]))
    return moved


def _mover(verb: str) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        bits = builder.trunc(args[4], _BYTE)
        mask = (load(builder, at(2, 8), 8, 64) & bits).compare("!=", 0).number()
        eights = [builder.and_(builder.lshr(mask, _index(k)), _index(255)) for k in range(0, 64, 8)]
        return move_8(builder, verb, at(0, 8), eights, at(5, 8))

    return intrinsic_step(types.intp, 7, generate)


def _index(place: int) -> Any:
    return ir.Constant(_INDEX, place)


def _half(builder: Any, address: Any) -> Vector:
    """Sixteen bytes, the first eight of them from an address."""
    eight = builder.load(builder.bitcast(address, _INDEX.as_pointer()), align=1)
    both = ir.Constant(ir.VectorType(_INDEX, 2), ir.Undefined)
    return Vector(builder, builder.insert_element(both, eight, ir.Constant(_WORD, 0))).seen_as(8)


def shuffle(table: Vector, source: Vector) -> Vector:
    """16 bytes of a table of 16: their low four bits count, and from 128 on it is 0."""
    found = call(table.builder, "llvm.x86.ssse3.pshuf.b.128", _SIXTEEN, [table.value, source.value])
    return Vector(table.builder, found)


compress_8, expand_8 = _mover("compress"), _mover("expand")


def sums(items: Vector, factor: int) -> Vector:
    """Two in a row become one of twice the width: the first, and the second times a factor of up to 64, or 4096."""
    name = {8: "llvm.x86.ssse3.pmadd.ub.sw.128", 16: "llvm.x86.sse2.pmadd.wd"}[items.bits]
    kind = ir.VectorType(ir.IntType(2 * items.bits), items.n // 2)
    factors = ir.Constant(items.value.type, [1, factor] * (items.n // 2))
    return Vector(items.builder, call(items.builder, name, kind, [items.value, factors]))


def _pack_sixes(items: Vector, target: Any) -> None:
    """The low six bits of sixteen bytes, twelve bytes; writes sixteen."""
    packed = sums(sums(items & 63, 64), 4096).seen_as(8)
    packed.pick([4 * (k // 3) + k % 3 for k in range(12)] + [15] * 4).store(target)


def _unpack_sixes(builder: Any, source: Any) -> Vector:
    """Inverse; reads sixteen bytes."""
    # Of every three bytes both the lower and the upper two: items 0 and 1 below, 2 and 3 four bits higher.
    picks = [3 * (k // 4) + (0, 1, 1, 2)[k % 4] for k in range(16)]
    words = load(builder, source, 8, 16).pick(picks).seen_as(16)
    words = words.pick([k + 8 * (k % 2) for k in range(8)], words >> 4)
    return ((words & 0x3F) | ((words << 2) & 0x3F00)).seen_as(8)


def _generate_pack_6(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(4):
        items = load(builder, builder.gep(at(0, 8), [_index(16 * k)]), 8, 16)
        _pack_sixes(items, builder.gep(at(2, 8), [_index(12 * k)]))


def _generate_unpack_6(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(4):
        items = _unpack_sixes(builder, builder.gep(at(0, 8), [_index(12 * k)]))
        items.store(builder.gep(at(2, 8), [_index(16 * k)]))


def _generate_pack_3(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(2):
        halves = [load(builder, builder.gep(at(0, 8), [_index(32 * k + i)]), 8, 16) & 7 for i in (0, 16)]
        low, high = (sums(half, 8).seen_as(8) for half in halves)
        _pack_sixes(low.pick(list(range(0, 32, 2)), high), builder.gep(at(2, 8), [_index(12 * k)]))


def _generate_unpack_3(builder: Any, args: list[Any], at: Any) -> None:
    for k in range(2):
        pairs = _unpack_sixes(builder, builder.gep(at(0, 8), [_index(12 * k)]))
        both = (pairs & 7).pick([i + half for i in range(16) for half in (0, 16)], pairs >> 3)
        both.store(builder.gep(at(2, 8), [_index(32 * k)]))


#: pack_6(src uint8, i, dst uint8, k): the low 6 bits of 64 bytes, 48 bytes and 4 more; unpack_6: inverse. pack_3,
#: unpack_3: the low 3 bits.
pack_6, unpack_6 = intrinsic_step(types.void, 4, _generate_pack_6), intrinsic_step(types.void, 4, _generate_unpack_6)
pack_3, unpack_3 = intrinsic_step(types.void, 4, _generate_pack_3), intrinsic_step(types.void, 4, _generate_unpack_3)


def _generate_look_up(builder: Any, args: list[Any], at: Any) -> None:
    table = load(builder, at(0, 8), 8, 16)
    for k in range(0, 64, 16):
        source = load(builder, builder.gep(at(2, 8), [_index(k)]), 8, 16) & 15
        shuffle(table, source).store(builder.gep(at(4, 8), [_index(k)]))


#: look_up_16(table, 0, src, i, dst, k): 64 bytes through the first 16 entries of a table.
look_up_16 = intrinsic_step(types.void, 6, _generate_look_up)
