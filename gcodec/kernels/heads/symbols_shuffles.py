"""Symbols of 64 values with levels, for CPUs with SSSE3 but not AVX-512: vector steps of :mod:`symbols`.

Sixteen or, with AVX2, 32 values at a time. The law is :func:`scalar.symbol_of`; what depends on the level is looked up
in 16 bytes by a shuffle, and choices are masks of bytes, as SSE has no select::

    lane        0    1    2   ...                    16 values of 16 or 32 bits
    values      s hhhhhhhh mmmmmmm
    head          hhhhhhhh                           in bytes from here on
    levels      level & (head <= top)                level 0 for values without a level of their own
    origin      origins[level]                       a shuffle of 16 bytes each, as for count and number
    offset      head - reference - origin            modulo 256
    symbols     ((offset + number) | outside) & nonzero      outside: 11111111 where offset >= count: the escape, 255
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import load, splat
from ..core.vector_shuffles import LANES, load_table, shuffle

_INDEX = ir.IntType(64)


def _address(builder: Any, start: Any, offset: int) -> Any:
    """Return the address so many bytes behind ``start``."""
    return builder.gep(start, [ir.Constant(_INDEX, offset)])


def _symbols_by_level(bits: int, head_shift: int) -> Any:
    """Make the step that finds symbols of values of so many bits by level."""

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        reference, top = splat(builder, args[9], 8, LANES), splat(builder, args[8], 8, LANES)
        tables = [load_table(builder, _address(builder, at(4, 8), 256 * k)) for k in range(3)]
        for k in range(0, 64, LANES):
            values = load(builder, _address(builder, at(0, bits), k * bits // 8), bits, LANES)
            head = (values >> head_shift).to(8)
            own = head.compare("<=", top).widened(8)
            levels = load(builder, _address(builder, at(2, 8), k), 8, LANES) & own
            origin, count, number = (shuffle(table, levels) for table in tables)
            offset = head - reference - origin
            outside = offset.compare(">=", count).widened(8)
            zero = values.compare("==", 0).widened(8)
            symbols = ((offset + number) | outside) & (zero ^ -1)
            symbols.store(_address(builder, at(6, 8), k))

    return intrinsic_step(types.void, 10, generate)


#: symbols_by_level_32(values, i, levels, j, ranges, 0, symbols, k, top, reference): find the symbols of 64 float32 with
#: levels. ``values``: uint32; ``levels``, ``symbols``: uint8; ``ranges``: uint8[3, 256], see
#: ``symbols.SymbolRanges.by_level``; ``top``: the highest head of values with a level of their own; ``reference``: the
#: head that relative heads are counted from. symbols_by_level_16: of values of 16 bits.
symbols_by_level_32, symbols_by_level_16 = _symbols_by_level(32, 23), _symbols_by_level(16, 7)
