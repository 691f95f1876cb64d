"""Count the heads of a sub-stream by comparisons of 64 values at a time, which takes less time than adding to a counter
for each value.

Of a head the upper eight bits are taken as a byte. The bytes of a sub-stream lie close together: for each one from the
least to the greatest, those that are equal to it are counted. Where heads have a ninth bit, which lies below the byte,
they are counted once more among odd bytes, whose topmost bit is flipped where the ninth is 0:

    heads       101 1   110 0   101 0   110 1 ...      a byte (here of three bits), and the bit below it
    bytes       101     110     101     110            two are 101: heads 1010 and 1011 together
    odd bytes   101     010     001     110            one is 101: head 1011

The law is :func:`scalar.head_of`, on every value. :mod:`count` has the path of all else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX512, HAS_SSSE3, intrinsic_step
from ..core.jit import inlined
from ..core.scalar import U32, mean_of
from ..core.simd import INDEX, Vector, call, for_range, load, slot_for, store
from ..core.unaligned import subarray, width_of
from ..core.value_parts import extract_heads

_LANES, EIGHT = 64, 8  #: values of a register; counters that are counted in together
#: How far the least byte of a sub-stream lies from the greatest at most: counting more by comparisons takes too long,
#: and flipping the topmost bit of a byte must lead out of their range.
MAX_SPREAD = 48
_SPARE = 528  #: counters of a sub-stream that no head has, from here on
_FLIPPED = 128  #: the topmost bit of a byte
N_NONZERO, SUM, N_ODD, LEAST, GREATEST, N_FOUND = range(6)  #: what is found out about a sub-stream


def _number(value: int) -> Any:
    return ir.Constant(INDEX, value)


def _sum_of_bytes(values: Vector) -> Any:
    """Return the sum of 64 bytes as a scalar."""
    if HAS_AVX512:
        kind = ir.VectorType(INDEX, _LANES // 8)
        eights = call(values.builder, "llvm.x86.avx512.psad.bw.512", kind, [values.value, values.fill(0).value])
        return Vector(values.builder, eights).total()
    return values.builder.zext(values.to(16).total(), INDEX)


def _surveyor(bits: int) -> Any:
    """Make the step that extracts the heads of values of 32 or 16 bits.

    values      s hhhhhhhh b mmm...     64 a turn; b is the bit below the byte
    bytes       hhhhhhhh                where to: argument 2, and odd bytes argument 4
    found       n_nonzero  sum  n_odd  least  greatest      argument 6; the least of values that are not zero
    """
    kind = ir.VectorType(ir.IntType(8), _LANES)

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        n, shift = args[8], args[9]
        least, greatest = (slot_for(builder, ir.Constant(kind, [extreme] * _LANES)) for extreme in (255, 0))
        totals = [slot_for(builder, _number(0)) for _ in range(3)]
        below = builder.shl(_number(1), builder.sub(shift, _number(1)))
        with for_range(builder, builder.lshr(n, _number(6))) as index:
            start = builder.mul(index, _number(_LANES))
            address = builder.gep(at(0, bits), [builder.mul(start, _number(bits // 8))])
            values = load(builder, address, bits, _LANES)
            heads, nonzero = extract_heads(values, shift), values.compare("!=", 0)
            is_odd = (values & below).compare("!=", 0)
            heads.store(builder.gep(at(2, 8), [start]))
            is_odd.choose(heads, heads ^ _FLIPPED).store(builder.gep(at(4, 8), [start]))
            before = Vector(builder, builder.load(least))
            smaller = nonzero.choose(heads, before)
            builder.store(smaller.compare("<", before).choose(smaller, before).value, least)
            before = Vector(builder, builder.load(greatest))
            builder.store(heads.compare(">", before).choose(heads, before).value, greatest)
            for slot, more in zip(totals, (nonzero.count(), _sum_of_bytes(heads), is_odd.count()), strict=True):
                builder.store(builder.add(builder.load(slot), more), slot)
        extremes = [
            call(builder, f"llvm.vector.reduce.{name}.v{_LANES}i8", kind.element, [builder.load(slot)])
            for name, slot in (("umin", least), ("umax", greatest))
        ]
        found = [*map(builder.load, totals), *(builder.zext(extreme, INDEX) for extreme in extremes)]
        for k, value in enumerate(found):
            place = builder.gep(at(6, 64), [_number(8 * k)])
            builder.store(value, builder.bitcast(place, INDEX.as_pointer()))

    return intrinsic_step(types.void, 10, generate)


#: _survey_32(values, i, bytes, j, odd_bytes, k, found, l, n, shift): extract the heads of n float32 (uint32), a
#: multiple of 64. ``shift``: bits below the byte. _survey_16: of values of 16 bits.
_survey_32, _survey_16 = _surveyor(32), _surveyor(16)


def _generate_count(builder: Any, args: list[Any], at: Any) -> None:
    """Generate the step that counts the bytes that are equal to each of eight in a row."""
    n, first = args[4], args[5]
    totals = [slot_for(builder, _number(0)) for _ in range(EIGHT)]
    with for_range(builder, builder.lshr(n, _number(6))) as index:
        some = load(builder, builder.gep(at(0, 8), [builder.mul(index, _number(_LANES))]), 8, _LANES)
        for k, slot in enumerate(totals):
            number = some.compare("==", builder.add(first, _number(k))).count()
            builder.store(builder.add(builder.load(slot), number), slot)
    for k, slot in enumerate(totals):
        store(builder, builder.trunc(builder.load(slot), ir.IntType(32)), builder.gep(at(2, 32), [_number(4 * k)]))


#: _count_eight(bytes, i, counts, j, n, first): count those of n bytes, a multiple of 64, that are equal to ``first``,
#: ``first`` + 1 ... ``first`` + 7, in eight counters (uint32).
_count_eight = intrinsic_step(types.void, 6, _generate_count)


@inlined
def may_be_compared(values, head_mask, fine_bits):
    """Return whether the heads of a sub-stream of this type and length may be compared."""
    has_bits = (head_mask == 255 and fine_bits == 0) or (head_mask == 511 and fine_bits <= 1)
    return HAS_SSSE3 and has_bits and width_of(values) >= 16 and len(values) & (_LANES - 1) == 0


@inlined
def survey_heads(values, head_shift, head_mask, scratch):
    """Extract the heads of a sub-stream, and find out about them.

    Args:
        values: uintW[n], for which :func:`may_be_compared` is True.
        head_shift: Bits below the head.
        head_mask: 255, or 511 of heads of nine bits.
        scratch: See :class:`bundles.SampleScratch`: ``heads`` and ``means``, what was found, are results.

    Returns:
        True if the heads are close enough to be compared.
    """
    shift, found = head_shift + (head_mask >> 8), scratch.means
    if width_of(values) == 32:
        _survey_32(values, 0, scratch.heads, 0, scratch.heads, len(values), found, 0, len(values), shift)
    else:
        _survey_16(values, 0, scratch.heads, 0, scratch.heads, len(values), found, 0, len(values), shift)
    return found[GREATEST] <= found[LEAST] + MAX_SPREAD


@inlined
def mean_found(head_mask, fine_bits, found):
    """Return what :func:`means.reference_head` does of a sub-stream that has been surveyed."""
    # A head of nine bits is 2 * byte + ninth bit, so the sum of heads is 2 * SUM + N_ODD, without another pass.
    total, number = found[SUM], U32(found[N_NONZERO])
    if head_mask > 255 and fine_bits == 0:
        return np.int64(mean_of(U32(2 * total + found[N_ODD]), number)), found[N_NONZERO]
    return np.int64(mean_of(U32(total), number)) << fine_bits, found[N_NONZERO]


@inlined
def count_compared(n, head_mask, scratch, block_counts):
    """Count the heads of a sub-stream that has been surveyed, as they are.

    Args:
        n: Its values.
        head_mask: 255, or 511 of heads of nine bits.
        scratch: See :class:`bundles.SampleScratch`: ``stream_counts`` is the result, zeros behind the last head; but
            for heads below the min and above the max, which are left as they were.
        block_counts: uint32[head_mask + 2], what the result is added to.

    Returns:
        The min and the max head that is counted.
    """
    found, counts, n_zero = scratch.means, scratch.stream_counts, U32(n - scratch.means[N_NONZERO])
    # Eight at a time, so that few branches depend on how many there are.
    #
    #     heads       LEAST ........ GREATEST
    #     counted     |--- eight ---|--- eight ---|       from `least`, which is lower where that would go beyond 255
    n_heads = (found[GREATEST] - found[LEAST] + EIGHT) & ~(EIGHT - 1)
    least = min(found[LEAST], 256 - n_heads)
    low, size = least, n_heads
    if head_mask > 255:
        low, size, eight = 2 * least, 2 * n_heads, subarray(counts, _SPARE, 2 * EIGHT)
        for head in range(least, least + n_heads, EIGHT):
            _count_eight(scratch.heads, 0, eight, 0, n, head)
            _count_eight(scratch.heads, n, eight, EIGHT, n, head)
            pairs = subarray(counts, 2 * head, 2 * EIGHT)
            for k in range(EIGHT):
                #     counted     bytes equal to h: eight[k]     odd bytes equal to h: eight[8 + k]
                #     pairs       2 h: the difference            2 h + 1
                pairs[2 * k] = eight[k] - eight[EIGHT + k]
                pairs[2 * k + 1] = eight[EIGHT + k]
        if least <= _FLIPPED < least + n_heads:  # as the odd bytes of zeros are
            counts[2 * _FLIPPED] += n_zero
            counts[2 * _FLIPPED + 1] -= n_zero
    else:
        for head in range(least, least + n_heads, EIGHT):
            _count_eight(scratch.heads, 0, counts, head, n, head)
    if least == 0:  # zeros have this head, too
        counts[0] -= n_zero
    own, sums = subarray(counts, low, size), subarray(block_counts, low, size)
    for i in range(0, size, EIGHT):
        for k in range(EIGHT):
            sums[i + k] += own[i + k]
    counts[head_mask + 1] = n_zero
    block_counts[head_mask + 1] += n_zero
    return low, low + size - 1
