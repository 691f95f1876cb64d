"""Heads of float32 as bytes, extracted once for mean heads and for symbols, for CPUs with AVX-512 or AVX2.

    values (4 bytes each)    s hhhhhhhh mmmmmmmmmmmmmmmmmmmmmmm
    heads (1 byte)             hhhhhhhh                            their sum, over those not zero, gives the mean
    nonzero (1 bit)            n                                   symbols are computed from the two alone

Means and symbols then read a quarter of the bytes. The loops of :mod:`symbols` and :mod:`means` are the path of all
other CPUs and types; the law is :func:`scalar.head_of` and :func:`scalar.symbol_of` here as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX512, intrinsic_step
from ..core.jit import kernel
from ..core.scalar import ESCAPE, U8, U32, U64, head_of, mean_of
from ..core.simd import INDEX, Vector, call, for_range, load, mask_from, slot_for, splat
from ..core.value_parts import extract_heads, look_up_levels
from ..core.vector import look_up_64
from ..entropy.encode_streams import STREAM_PAD

GROUP = 64  #: values of a vector step


def _generate_store(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that extracts heads, and which values are not zero.

    values     s hhhhhhhh mmm...    64 of 32 bits, in four registers
    heads        hhhhhhhh           64 of 8 bits, in one
    nonzero      n                  64 of 1 bit, value 0 in the lowest
    """
    values = load(builder, at(0, 32), 32, GROUP)
    extract_heads(values, 23).store(at(2, 8))
    builder.store(values.compare("!=", 0).number(), builder.bitcast(at(4, 64), INDEX.as_pointer()))


#: _store_64(values, i, heads, j, nonzero, k): store the heads of 64 float32 (uint32) as uint8, and a uint64 with a bit
#: for each that says whether the value is not zero.
_store_64 = intrinsic_step(types.void, 6, _generate_store)


def _generate_sum(builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that sums bytes: psadbw adds up absolute differences of eight bytes each, here from zero.

    heads      h0 ... h7 | h8 ... h15 | ...      64 bytes
    eights     sum       | sum        | ...      eight sums of 64 bits, which are accumulated over groups
    """
    lanes = GROUP if HAS_AVX512 else GROUP // 2
    name = "llvm.x86.avx512.psad.bw.512" if HAS_AVX512 else "llvm.x86.avx2.psad.bw"
    sums = ir.VectorType(INDEX, lanes // 8)
    slot = slot_for(builder, ir.Constant(sums, [0] * (lanes // 8)))
    with for_range(builder, args[2]) as index:
        heads = load(builder, builder.gep(at(0, 8), [builder.mul(index, ir.Constant(INDEX, GROUP))]), 8, GROUP)
        for k in range(GROUP // lanes):
            part = heads.part(k, lanes)
            eights = call(builder, name, sums, [part.value, (part ^ part).value])
            builder.store(builder.add(builder.load(slot), eights), slot)
    return Vector(builder, builder.load(slot)).total()


#: _sum(heads, i, n_groups) -> the sum of 64 * n_groups bytes. Heads of zeros are 0 and add nothing.
_sum = intrinsic_step(types.intp, 3, _generate_sum)


def _generate_count(builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that counts the bits that are set in a uint64 (popcnt)."""
    return call(builder, "llvm.ctpop.i64", INDEX, [builder.load(builder.bitcast(at(0, 64), INDEX.as_pointer()))])


#: _count(nonzero, k) -> how many bits of a uint64 are set.
_count = intrinsic_step(types.intp, 2, _generate_count)


def _escape(builder: Any) -> Vector:
    """Return the escape's symbol in all lanes."""
    return splat(builder, ir.Constant(INDEX, ESCAPE), 8, GROUP)


def _generate_symbols(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that turns heads into symbols where all values are of one level.

    offset      heads - origin                               modulo 256, in bytes
    symbols     offset < count ? offset + 1 : escape         0 where the value is zero
    """
    nonzero = mask_from(builder, at(2, 64), GROUP)
    # Bytes wrap around as heads of 8 bits do, so there is no mask; heads below the origin become large offsets.
    offset = load(builder, at(0, 8), 8, GROUP) - args[6]
    symbols = offset.compare("<", args[7]).choose(offset + 1, _escape(builder))
    nonzero.choose(symbols, symbols ^ symbols).store(at(4, 8))


#: _symbols(heads, i, nonzero, j, symbols, k, origin, count): find the symbols of 64 values of one level, whose range
#: has ``count`` heads from head ``origin`` on. ``heads``, ``symbols``: uint8; ``nonzero``: uint64.
_symbols = intrinsic_step(types.void, 8, _generate_symbols)


def _generate_symbols_by_level(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that turns heads into symbols by level.

    lane        0    1    2    3   ...
    levels      2    0    1    7           level 0 instead where the head is above the top
    origin      o2   o0   o1   o7          looked up in 64 bytes, as are count and number
    offset      heads - reference - origin                   modulo 256, in bytes
    symbols     offset < count ? offset + number : escape    0 where the value is zero
    """
    nonzero = mask_from(builder, at(2, 64), GROUP)
    heads, levels, ranges = load(builder, at(0, 8), 8, GROUP), load(builder, at(4, 8), 8, GROUP), at(6, 8)
    levels = heads.compare("<=", args[11]).choose(levels, levels ^ levels)
    origin, count, number = (
        look_up_levels(builder, builder.gep(ranges, [ir.Constant(INDEX, 256 * k)]), levels) for k in range(3)
    )
    offset = heads - args[10] - origin
    symbols = offset.compare("<", count).choose(offset + number, _escape(builder))
    nonzero.choose(symbols, symbols ^ symbols).store(at(8, 8))


#: _symbols_by_level(heads, i, nonzero, j, levels, k, ranges, 0, symbols, l, reference, top): find the symbols of 64
#: values with levels. ``heads``, ``levels``, ``symbols``: uint8; ``nonzero``: uint64; ``ranges``: uint8[3, 256], see
#: ``symbols.SymbolRanges.by_level``; ``reference``: the head that relative heads are counted from; ``top``: the highest
#: head of values with a level of their own.
_symbols_by_level = intrinsic_step(types.void, 12, _generate_symbols_by_level)


@kernel
def store_heads(values, n, heads, nonzero):
    """Store the heads of float32 as bytes, and which values are not zero as bits.

    Args:
        values: uint32[n].
        heads: uint8[n, rounded up to a multiple of 64], result.
        nonzero: uint64[n / 64, rounded up], result, a bit for each value. What lies behind the last value is zero.
    """
    whole = n & ~(GROUP - 1)
    for i in range(0, whole, GROUP):
        _store_64(values, i, heads, i, nonzero, i >> 6)
    if whole < n:
        word = U64(0)
        for i in range(GROUP):
            bits = U32(values[whole + i]) if whole + i < n else U32(0)
            heads[whole + i] = U8(head_of(bits, U32(23), U32(255)))
            word |= U64(bits != U32(0)) << U64(i)
        nonzero[whole >> 6] = word


@kernel
def mean_of_heads(heads, nonzero, begin, n):
    """Find the mean head of values that are not zero.

    Args:
        heads: uint8, as :func:`store_heads` leaves them.
        nonzero: uint64, likewise.
        begin: Number of the first value, a multiple of 64.
        n: Number of values; a multiple of 64 unless they are the last.

    Returns:
        The mean, rounded down, 0 if all are zero; and how many are not.
    """
    # The last group may not be whole: store_heads has left heads of 0 behind its end, and clear bits.
    n_groups, n_nonzero = (n + GROUP - 1) >> 6, np.int64(0)
    for k in range(begin >> 6, (begin >> 6) + n_groups):
        n_nonzero += _count(nonzero, k)
    return np.int64(mean_of(U64(_sum(heads, begin, n_groups)), U64(n_nonzero))), n_nonzero


@kernel
def find_symbols_from_heads(levels, n, stream_len, base, top, ranges, scratch):
    """Find the symbol of every value from heads, as :func:`symbols.find_symbols_from_values` does from values.

    Args:
        levels: uint8[n], or None where all are of level 0.
        stream_len: Values per sub-stream, a multiple of 64.
        base: Head that ``scratch.references`` are relative to.
        top: The highest head of values with a level of their own; those above are of level 0.
        ranges: The codebook's :class:`symbols.SymbolRanges`.
        scratch: ``heads`` and ``others`` are what :func:`store_heads` has stored, ``references`` are known; ``symbols``
            is the result, 0 behind the last value up to a multiple of 64; ``chunk`` is overwritten.
    """
    heads, nonzero, symbols, chunk = scratch.heads, scratch.others, scratch.symbols, scratch.chunk
    for s in range((n + stream_len - 1) // stream_len):
        reference = base + np.int64(scratch.references[s])
        begin, place = s * stream_len, s * (stream_len + STREAM_PAD)
        length = min(stream_len, n - begin)
        if levels is None:
            origin = (reference + ranges.first[0]) & 255
            for i in range(0, length, GROUP):
                at = begin + i
                _symbols(heads, at, nonzero, at >> 6, symbols, place + i, origin, ranges.counts[0])
        else:
            whole = length & ~(GROUP - 1)
            for i in range(0, whole, GROUP):
                at = begin + i
                _symbols_by_level(
                    heads, at, nonzero, at >> 6, levels, at, ranges.by_level, 0, symbols, place + i, reference, top
                )
            if whole < length:  # levels are read in whole groups, and are the caller's, who has no margin
                for i in range(GROUP):
                    chunk[i] = levels[begin + whole + i] if whole + i < length else U8(0)
                at = begin + whole
                _symbols_by_level(
                    heads, at, nonzero, at >> 6, chunk, 0, ranges.by_level, 0, symbols, place + whole, reference, top
                )
        if ranges.with_gaps:
            for i in range(0, length, GROUP):
                look_up_64(ranges.coded, 0, symbols, place + i, symbols, place + i)
            for i in range(length, (length + GROUP - 1) & ~(GROUP - 1)):
                symbols[place + i] = 0
