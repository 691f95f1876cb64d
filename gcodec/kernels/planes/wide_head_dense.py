"""Split and merge planes behind a wide head of 64 float32 without a zero, for x86-64 without AVX-512: vector steps
of :mod:`wide_head`.

Weights have hardly a zero, so that no gaps have to be closed. The law is :func:`scalar.tail_of` and
:func:`scalar.value_of`, on every lane::

    values    s hhhhhhhhh mmmmmmmmmmmmmmmmmmmmmm
    upper               s mmmmmmmmmmmmmmm             64 lanes of 16 bits
    lower                                 mmmmmmm     64 bytes; four bits where the head has 12
"""

from __future__ import annotations

from typing import Any

from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import load
from ..core.value_parts import extract_tails, join_values


def _splitter(low_bits: int) -> Any:
    """Make the step that writes tails of 16 bits and ``low_bits``."""

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        tail = extract_tails(load(builder, at(0, 32), 32, 64), 15 + low_bits)
        (tail >> low_bits).to(16).store(at(2, 8))
        (tail & (1 << low_bits) - 1).to(8).store(at(4, 8))

    return intrinsic_step(types.void, 6, generate)


def _merger(low_bits: int) -> Any:
    """Make the inverse of a step of :func:`_splitter`."""

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        upper, lower, symbols = (load(builder, at(i, 8), bits, 64).to(32) for i, bits in ((0, 16), (2, 8), (4, 8)))
        join_values(symbols + args[8], (upper << low_bits) | lower, 32, 15 + low_bits).store(at(6, 32))

    return intrinsic_step(types.void, 9, generate)


#: split_23_all(values, i, out, at, items, k): write the upper 16 bits of the tails of 64 float32 to ``out``, and the
#: lower 7 to ``items``, a byte each, both uint8. split_20_all: the lower 4 of tails of 20 bits, behind a head of 12.
split_23_all, split_20_all = _splitter(7), _splitter(4)
#: merge_23_all(data, at, items, k, symbols, j, out, i, origin): join 64 float32, the inverse of split_23_all.
#: ``origin``: the head that symbol 0 would have if it had one; heads are symbols + origin, modulo 512. merge_20_all:
#: the inverse of split_20_all; heads are modulo 4096.
merge_23_all, merge_20_all = _merger(7), _merger(4)
