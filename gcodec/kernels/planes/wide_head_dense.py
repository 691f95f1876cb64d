"""Split and merge planes behind a wide head of 64 float32 without a zero, for x86-64 without AVX-512: vector steps
of :mod:`wide_head`.

Weights have hardly a zero, so that no gaps have to be closed. The law is :func:`scalar.tail_of` and
:func:`scalar.value_of`, on every lane::

    values    s hhhhhhhhh mmmmmmmmmmmmmmmmmmmmmm
    upper               s mmmmmmmmmmmmmmm             64 lanes of 16 bits
    lower                                 mmmmmmm     64 bytes
"""

from __future__ import annotations

from typing import Any

from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import load
from ..core.value_parts import extract_tails, join_values


def _generate_split(builder: Any, args: list[Any], at: Any) -> None:
    tail = extract_tails(load(builder, at(0, 32), 32, 64), 22)
    (tail >> 7).to(16).store(at(2, 8))
    (tail & 127).to(8).store(at(4, 8))


def _generate_merge(builder: Any, args: list[Any], at: Any) -> None:
    upper, lower, symbols = (load(builder, at(i, 8), bits, 64).to(32) for i, bits in ((0, 16), (2, 8), (4, 8)))
    join_values(symbols + args[8], (upper << 7) | lower, 32, 22).store(at(6, 32))


#: split_23_all(values, i, out, at, seven, k): write the upper 16 bits of the tails of 64 float32 to ``out``, and the
#: lower 7 to ``seven``, a byte each, both uint8.
split_23_all = intrinsic_step(types.void, 6, _generate_split)
#: merge_23_all(data, at, seven, k, symbols, j, out, i, origin): join 64 float32, the inverse of split_23_all.
#: ``origin``: the head that symbol 0 would have if it had one; heads are symbols + origin, modulo 512.
merge_23_all = intrinsic_step(types.void, 9, _generate_merge)
