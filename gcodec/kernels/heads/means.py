"""The mean head of values that are not zero, which is the reference that their symbols are relative to.

    values     s hhhhhhhh mmm     0     s hhhhhhhh mmm    ...
    mean head  sum of the heads of values that are not zero // their number      :func:`scalar.mean_of`

Which reference a block or sub-stream has is the encoder's choice; it is stored (docs/format.md sections 6 and 7).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_SSSE3, intrinsic_step
from ..core.jit import kernel
from ..core.scalar import U32, U64, head_of, mean_of
from ..core.simd import INDEX, Vector, for_range, load, slot_for
from ..core.unaligned import width_of

#: How many values a vector step sums up: heads of at most 9 bits, so that their sum takes at most 20 bits, and at most
#: 64 in each lane of 16 bits, whose sum fits.
MAX_SUMMED = 2048
_BELOW = 2  #: exponents by which the reference of heads with mantissa bits and the sign lies below the mean
COUNT_AT = 20  #: the bit of a step's result at which its count begins


def _summer(bits: int) -> Any:
    """Make the step that sums the heads of values of 32 or 16 bits, 64 a turn; its law is :func:`scalar.head_of`.

        values      s hhhhhhhh mmm...      512 bits: 16 lanes of 32 bits, or 32 lanes of 16
        heads     + hhhhhhhh               each lane's sum of (value >> shift) & mask
        nonzero   + value != 0             each lane's count
        result      nnnnnnnnnnnn hhhhhhhhhhhhhhhhhhhh      count << COUNT_AT | sum, of all lanes

    Joined in one lane, the two take one sum over all lanes, and a step returns but one number.
    """
    n = 512 // bits

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        kind = ir.VectorType(ir.IntType(bits), n)
        zeros = Vector(builder, ir.Constant(kind, [0] * n))
        slots = [slot_for(builder, zeros.value) for _ in range(2)]
        with for_range(builder, args[2]) as index:
            group = builder.gep(at(0, bits), [builder.mul(index, ir.Constant(INDEX, 8 * bits))])
            for k in range(0, 8 * bits, 64):
                values = load(builder, builder.gep(group, [ir.Constant(INDEX, k)]), bits, n)
                heads, nonzero = (Vector(builder, builder.load(slot)) for slot in slots)
                builder.store((heads + ((values >> args[3]) & args[4])).value, slots[0])
                builder.store(values.compare("!=", 0).choose(nonzero + 1, nonzero).value, slots[1])
        heads, nonzero = (Vector(builder, builder.load(slot)) for slot in slots)
        if bits == 16:  # pairs of lanes become lanes of 32 bits, which hold the sum of all
            heads, nonzero = ((sums.seen_as(32) & 0xFFFF) + (sums.seen_as(32) >> 16) for sums in (heads, nonzero))
        return builder.zext((heads + (nonzero << COUNT_AT)).total(), INDEX)

    return intrinsic_step(types.intp, 5, generate)


#: sum_heads_32(values, i, n, shift, mask) -> the sum of the heads of 64 * n float32 (uint32), at most MAX_SUMMED, and
#: from bit COUNT_AT on how many are not zero. ``shift``: bits below the head; ``mask``: lowest bits, as many as the
#: head has. sum_heads_16: of values of 16 bits.
sum_heads_32, sum_heads_16 = _summer(32), _summer(16)


@kernel
def _sums_of_groups(values, head_shift, head_mask):
    """Return the sum of the heads of all whole groups of 64 values, and how many of these values are not zero."""
    total, n_nonzero = np.int64(0), np.int64(0)
    for i in range(0, len(values) & ~63, MAX_SUMMED):
        # The sum lies in 20 bits: 2048 heads below 512 are less than 2**20. Their count, at most 2048, lies in the 12
        # above.
        n_groups = min(MAX_SUMMED, len(values) - i) >> 6
        if width_of(values) == 32:
            both = sum_heads_32(values, i, n_groups, head_shift, head_mask)
        else:
            both = sum_heads_16(values, i, n_groups, head_shift, head_mask)
        total += both & ((1 << COUNT_AT) - 1)
        n_nonzero += both >> COUNT_AT
    return total, n_nonzero


@kernel
def mean_head(values, head_shift, head_mask):
    """Find the mean head of values that are not zero.

    Args:
        values: uintW[n], of any type.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.

    Returns:
        The mean, rounded down (0 if all are zero), and how many are not. Of one-byte types, whose head has the sign in
        it, the mean of the magnitudes plus 64, which is half way from plus to minus. Of 64-bit types, the mean of
        normal values alone, if there are any: with NaN, of missing ones, or -0, of those that a mask takes away, it
        would lie so far from them that they had no symbols.
    """
    signed = width_of(values) == 8
    middle = 64 if signed else 0
    if width_of(values) <= 32:
        # A block has at most 2**20 values and a head that is summed up at most 9 bits: 32 bits hold the sum. The head
        # of a zero is 0, so that it adds nothing and is just not counted.
        total, n_nonzero, mask = U32(0), U32(0), U32(head_mask >> 1 if signed else head_mask)
        whole = 0
        if HAS_SSSE3 and not signed:
            heads, nonzero = _sums_of_groups(values, head_shift, head_mask)
            total, n_nonzero, whole = U32(heads), U32(nonzero), len(values) & ~63
        for i in range(whole, len(values)):
            bits = U32(values[i])
            total = U32(total + head_of(bits, head_shift, mask))
            n_nonzero = U32(n_nonzero + U32(bits != U32(0)))
        return np.int64(mean_of(total, n_nonzero)) + middle, np.int64(n_nonzero)
    sum_64, number_64, n_beyond, n_normal = U64(0), U64(0), U64(0), U64(0)
    for i in range(len(values)):
        head = head_of(U64(values[i]), head_shift, head_mask)
        sum_64 += head
        number_64 += U64(values[i] != U64(0))
        n_beyond += U64(head == U64(head_mask))
        n_normal += U64(head != U64(0))
    n_normal -= n_beyond
    if n_normal > U64(0):
        mean = mean_of(U64(sum_64 - n_beyond * U64(head_mask)), n_normal)
    else:
        mean = mean_of(sum_64, number_64)
    return np.int64(mean) + middle, np.int64(number_64)


@kernel
def reference_head(values, head_shift, head_mask, fine_bits):
    """Find the head that values are relative to, and how many of them are not zero, as :func:`mean_head` does.

    Where the sign is in the head, the mean is that of the exponents, so that a difference of references changes neither
    signs nor mantissa bits::

        heads      eeeeeeee mmms      mean of eeeeeeee, and 0 for the others

    Args:
        values: uintW[n], turned where the sign is in the head.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        fine_bits: Low bits of the head that references leave as they are.
    """
    mean, n_nonzero = mean_head(values, head_shift + fine_bits, head_mask >> fine_bits)
    if fine_bits > 1:  # there are symbols for 16 exponents, and more of them are wanted below the mean than above it
        mean = max(mean - _BELOW, np.int64(0))
    return mean << fine_bits, n_nonzero
