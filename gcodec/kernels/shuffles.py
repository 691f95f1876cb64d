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


def _mover(verb: str) -> Any:
    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        bits = builder.trunc(args[4], _BYTE)
        mask = (load(builder, at(2, 8), 8, 64) & bits).compare("!=", 0).number()
        source, target, table = at(0, 8), at(5, 8), _table(builder, verb)
        moved = ir.Constant(_INDEX, 0)
        for k in range(0, 64, 8):
            own = builder.and_(builder.lshr(mask, ir.Constant(_INDEX, k)), ir.Constant(_INDEX, 255))
            here, there = (moved, k) if verb == "expand" else (k, moved)
            shuffle = _half(builder, builder.gep(table, [builder.shl(own, ir.Constant(_INDEX, 3))]))
            eight = _half(builder, builder.gep(source, [_index(here)]))
            result = Lanes(builder, call(builder, "llvm.x86.ssse3.pshuf.b.128", _SIXTEEN, [eight, shuffle]))
            result.part(0, 8).store(builder.gep(target, [_index(there)]))
            moved = builder.add(moved, call(builder, "llvm.ctpop.i64", _INDEX, [own]))
        return moved

    return intrinsic_step(types.intp, 7, generate)


def _index(place: Any) -> Any:
    return ir.Constant(_INDEX, place) if isinstance(place, int) else place


def _half(builder: Any, address: Any) -> Any:
    """Sixteen bytes, the first eight of them from an address."""
    return load(builder, address, 8, 8).pick([*range(8), *range(8)]).value


compress_8, expand_8 = _mover("compress"), _mover("expand")


def _generate_look_up(builder: Any, args: list[Any], at: Any) -> None:
    table = load(builder, at(0, 8), 8, 16).value
    for k in range(0, 64, 16):
        offset = ir.Constant(_INDEX, k)
        source = load(builder, builder.gep(at(2, 8), [offset]), 8, 16) & 15
        found = call(builder, "llvm.x86.ssse3.pshuf.b.128", _SIXTEEN, [table, source.value])
        Lanes(builder, found).store(builder.gep(at(4, 8), [offset]))


#: look_up_16(table, 0, src, i, dst, k): 64 bytes through the first 16 entries of a table.
look_up_16 = intrinsic_step(types.void, 6, _generate_look_up)
