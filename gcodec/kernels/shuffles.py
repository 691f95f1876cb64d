"""Compressing and expanding 64 bytes by shuffles of eight at a time, for x86-64 without AVX-512."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from .lanes import Lanes, call, load
from .steps import intrinsic_step

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
    moved, table = ir.Constant(_INDEX, 0), _table(builder, verb)
    for k, own in enumerate(masks):
        here, there = (moved, _index(8 * k)) if verb == "expand" else (_index(8 * k), moved)
        moving = _half(builder, builder.gep(table, [builder.shl(own, ir.Constant(_INDEX, 3))]))
        result = shuffle(_half(builder, builder.gep(source, [here])), moving)
        result.part(0, 8).store(builder.gep(target, [there]))
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


def _half(builder: Any, address: Any) -> Lanes:
    """Sixteen bytes, the first eight of them from an address."""
    eight = builder.load(builder.bitcast(address, _INDEX.as_pointer()), align=1)
    both = ir.Constant(ir.VectorType(_INDEX, 2), ir.Undefined)
    return Lanes(builder, builder.insert_element(both, eight, ir.Constant(_WORD, 0))).seen_as(8)


def shuffle(table: Lanes, source: Lanes) -> Lanes:
    """16 bytes of a table of 16: their low four bits count, and from 128 on it is 0."""
    found = call(table.builder, "llvm.x86.ssse3.pshuf.b.128", _SIXTEEN, [table.value, source.value])
    return Lanes(table.builder, found)


compress_8, expand_8 = _mover("compress"), _mover("expand")


def _generate_look_up(builder: Any, args: list[Any], at: Any) -> None:
    table = load(builder, at(0, 8), 8, 16)
    for k in range(0, 64, 16):
        source = load(builder, builder.gep(at(2, 8), [_index(k)]), 8, 16) & 15
        shuffle(table, source).store(builder.gep(at(4, 8), [_index(k)]))


#: look_up_16(table, 0, src, i, dst, k): 64 bytes through the first 16 entries of a table.
look_up_16 = intrinsic_step(types.void, 6, _generate_look_up)
