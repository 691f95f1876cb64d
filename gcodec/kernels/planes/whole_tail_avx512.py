"""Split and merge planes of whole tails, 64 values at a time, for CPUs with AVX-512: vector steps of :mod:`whole_tail`.

Their law is :func:`scalar.tail_of` and :func:`scalar.value_of`, on every lane; a lane owns an item where its symbol is
not 0.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import load, move
from ..core.value_parts import extract_tails, join_values

_INDEX = ir.IntType(64)
_THREE = ir.Constant(_INDEX, 3)


def _generate_split_24(builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that writes tails of 24 bits, in four registers of 16 values.

        lane           0             1             2
        values         s eeeeeeee m  0 00000000 0  s eeeeeeee m ...      symbols not 0: 1 0 1
        tails           . a2 a1 a0    .  0  0  0    . c2 c1 c0           32-bit lanes, highest byte first
        compressed      . a2 a1 a0    . c2 c1 c0
        out            a0 a1 a2 c0 c1 c2 ...      in memory: 64 bytes are stored, of which 3 * items matter

    Each register is stored where the items of the one before end: what lies behind them is overwritten.
    """
    # The low three bytes of each word; what the last 16 bytes of the register hold does not matter.
    picks = [4 * (k // 3) + k % 3 for k in range(48)] + [63] * 16
    symbols, out, total = load(builder, at(2, 8), 8, 64), at(4, 8), ir.Constant(_INDEX, 0)
    for k in range(4):
        words = load(builder, builder.gep(at(0, 32), [ir.Constant(_INDEX, 64 * k)]), 32, 16)
        mask = symbols.part(k, 16).compare("!=", 0)
        place = builder.gep(out, [builder.mul(total, _THREE)])
        move("compress", extract_tails(words), mask).seen_as(8).pick(picks).store(place)
        total = builder.add(total, mask.count())
    return total


#: split_24_64(values, i, symbols, j, out, at) -> number of items: write three bytes for each of 64 float32 whose symbol
#: is not 0. ``values``: uint32; ``symbols``, ``out``: uint8, with 64 bytes of margin.
split_24_64 = intrinsic_step(types.intp, 6, _generate_split_24)


def _generate_merge_24(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that reads tails of 24 bits and joins them with heads, in four registers of 16 values.

    data           a0 a1 a2 c0 c1 c2 ...      in memory: 64 bytes are loaded, of which 3 * items are used
    lane           0             1             2
    spaced          0 a2 a1 a0    0 c2 c1 c0   ...                   32-bit lanes, highest byte first
    expanded        0 a2 a1 a0    0  0  0  0    0 c2 c1 c0           symbols not 0: 1 0 1
    values         s eeeeeeee m  0 00000000 0  s eeeeeeee m ...      head = symbol + origin
    """
    picks = [64 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)]
    symbols, data, total = load(builder, at(2, 8), 8, 64), at(0, 8), ir.Constant(_INDEX, 0)
    for k in range(4):
        quarter = symbols.part(k, 16)
        mask = quarter.compare("!=", 0)
        packed = load(builder, builder.gep(data, [builder.mul(total, _THREE)]), 8, 64)
        tail = move("expand", packed.pick(picks, packed ^ packed).seen_as(32), mask)
        value = join_values(quarter.to(32) + args[6], tail)
        # Without the head a zero's bits are the expanded tail's, which are 0.
        mask.choose(value, tail).store(builder.gep(at(4, 32), [ir.Constant(_INDEX, 64 * k)]))
        total = builder.add(total, mask.count())


def _generate_merge_24_all(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that does the same where no value is zero: all places are known when it is compiled."""
    picks = [48 if k % 4 == 3 else 3 * (k // 4) + k % 4 for k in range(64)]
    symbols, data = load(builder, at(2, 8), 8, 64), at(0, 8)
    for k in range(4):
        packed = load(builder, builder.gep(data, [ir.Constant(_INDEX, 48 * k)]), 8, 64)
        value = join_values(symbols.part(k, 16).to(32) + args[6], packed.pick(picks).seen_as(32))
        value.store(builder.gep(at(4, 32), [ir.Constant(_INDEX, 64 * k)]))


#: merge_24_some(data, at, symbols, j, out, i, origin): join 64 float32, the inverse of split_24_64. ``origin``: the
#: head that symbol 0 would have if it had one; heads are symbols + origin, modulo 256. merge_24_all: where no symbol
#: is 0.
merge_24_some = intrinsic_step(types.void, 7, _generate_merge_24)
merge_24_all = intrinsic_step(types.void, 7, _generate_merge_24_all)


def splitter(rest: int, bits: int = 16) -> Any:
    """Make the step that cuts 64 values of 16 bits, or the upper halves of 64 values of 32, of which ``rest`` lie below
    the head.

        values     s hhhhhhhh mmmmmmm      rest = 7; 6 and 3 where the head has 9 and 12 bits
        tails               s mmmmmmm      moved to the lower byte, and compressed to those whose symbol is not 0
    """

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        values, mask = load(builder, at(0, bits), bits, 64), load(builder, at(2, 8), 8, 64).compare("!=", 0)
        values = (values >> (bits - 16)).to(16)
        tail = (values & (1 << rest) - 1) | ((values >> (15 - rest)) & (1 << rest))
        move("compress", tail.to(8), mask).store(at(4, 8))
        return mask.count()

    return intrinsic_step(types.intp, 6, generate)


def merger(rest: int, bits: int = 16) -> Any:
    """Make the step that joins heads and tails to 64 values of 16 bits, or of 32 whose lower halves are 0, the inverse
    of a step of :func:`splitter`.

        tails               s mmmmmmm      a byte each, expanded to where symbols are not 0
        heads        hhhhhhhh              symbol + origin, modulo 2**8, 2**9 or 2**12
        values     s hhhhhhhh mmmmmmm
    """

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        symbols = load(builder, at(2, 8), 8, 64)
        mask = symbols.compare("!=", 0)
        tail = move("expand", load(builder, at(0, 8), 8, 64), mask).to(16)
        # Heads of 8 bits are added up in bytes, of which there are twice as many to a register as of 16-bit lanes.
        head = (symbols + args[6]).to(16) if rest == 7 else symbols.to(16) + args[6]
        values = mask.choose(join_values(head, tail, 16, rest), tail)
        (values.to(bits) << (bits - 16)).store(at(4, bits))
        return mask.count()

    return intrinsic_step(types.intp, 7, generate)


#: split_8_64(values, i, symbols, j, out, at) -> number of items: write the tail of each of 64 bfloat16 or float16 whose
#: symbol is not 0, a byte each. ``values``: uint16; ``symbols``, ``out``: uint8, with 64 bytes of margin.
#: split_high_64: of the upper halves of 64 float32.
split_8_64, split_high_64 = splitter(7), splitter(7, 32)
#: merge_8_64(data, at, symbols, j, out, i, origin) -> number of items: join 64 values, the inverse of split_8_64.
#: ``origin`` as of merge_24_some. merge_high_64: 64 float32, the inverse of split_high_64.
merge_8_64, merge_high_64 = merger(7), merger(7, 32)
