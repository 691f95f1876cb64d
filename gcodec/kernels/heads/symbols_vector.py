"""Symbols of 64 values at a time, for CPUs with AVX-512 or AVX2: vector steps of :mod:`symbols`.

The law of all of them is :func:`scalar.symbol_of`, on every element::

    values    s hhhhhhhh mmmmmmm      64 of 16 or 32 bits
    heads       hhhhhhhh              64 of 8 bits, or of 16 where a head has more
    offset    heads - origin          modulo the head's width
    symbols   offset < count ? offset + number : escape, and 0 where the value is 0
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.scalar import ESCAPE
from ..core.simd import load, splat
from ..core.value_parts import extract_heads, look_up_levels

_INDEX = ir.IntType(64)


def _symbols(bits: int, head_shift: int, head_bits: int = 8) -> Any:
    """Make the step that finds symbols of values of so many bits, all of one level."""

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        values = load(builder, at(0, bits), bits, 64)
        heads = extract_heads(values, head_shift) if head_bits == 8 else (values >> head_shift).to(16)
        offset = (heads - args[4]) & ((1 << head_bits) - 1)
        escape = splat(builder, ir.Constant(_INDEX, ESCAPE), 8, 64)
        symbols = offset.compare("<", args[5]).choose((offset + 1).to(8), escape)
        values.compare("==", 0).choose(0, symbols).store(at(2, 8))

    return intrinsic_step(types.void, 6, generate)


#: symbols_16(values, i, symbols, j, origin, count): find the symbols of 64 bfloat16 or float16 of one level, whose
#: range has ``count`` heads from head ``origin`` on. ``values``: uint16; ``symbols``: uint8. symbols_9 and
#: symbols_12: of bfloat16 with a head of 9 or 12 bits. Those of float32 come from heads in bytes
#: (``heads_vector._symbols``).
symbols_16, symbols_9, symbols_12 = _symbols(16, 7), _symbols(16, 6, 9), _symbols(16, 3, 12)
#: symbols_wide(values, i, symbols, j, origin, count): find those of 64 float32 with a head of 9 bits.
#: symbols_wide_12: with a head of 12.
symbols_wide, symbols_wide_12 = _symbols(32, 22, 9), _symbols(32, 19, 12)


def _generate_symbols_by_level(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that finds symbols of values of 16 bits by level.

    lane        0    1    2    3   ...
    levels      2    0    1    7           level 0 instead where the value has no level of its own
    origin      o2   o0   o1   o7          looked up in 64 bytes, as are count and number
    offset      heads - reference - origin
    """
    values, levels, ranges = load(builder, at(0, 16), 16, 64), load(builder, at(2, 8), 8, 64), at(4, 8)
    heads = extract_heads(values, 7)
    levels = heads.compare("<=", args[8]).choose(levels, levels ^ levels)
    tables = [builder.gep(ranges, [ir.Constant(_INDEX, 256 * k)]) for k in range(3)]
    origin, count, number = (look_up_levels(builder, table, levels) for table in tables)
    offset = heads - args[9] - origin
    escape = splat(builder, ir.Constant(_INDEX, ESCAPE), 8, 64)
    symbols = offset.compare("<", count).choose(offset + number, escape)
    values.compare("==", 0).choose(0, symbols).store(at(6, 8))


#: symbols_by_level_16(values, i, levels, j, ranges, 0, symbols, k, top, reference): find the symbols of 64 bfloat16 or
#: float16 with levels. ``values``: uint16; ``levels``, ``symbols``: uint8; ``ranges``: uint8[3, 256], see
#: ``symbols.SymbolRanges.by_level``; ``top``: the highest head of values with a level of their own; ``reference``: the
#: head that relative heads are counted from. Those of float32 come from heads in bytes
#: (``heads_vector._symbols_by_level``).
symbols_by_level_16 = intrinsic_step(types.void, 10, _generate_symbols_by_level)
