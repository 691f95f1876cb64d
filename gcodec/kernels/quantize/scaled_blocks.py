"""Values as integers with a scale for each block of them, and back; float32, each operation rounded by itself.

A code is an integer k from -L to L in a byte:

    offset   k + L                            where it is packed, or framed with many bits
    signed   k < 0 in bit 7, and below |k|    where it is framed with few bits, as zeros prevail

A scale is the upper half of a float32, the bits of a bfloat16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, float_from_bits, subarray

U8, U16, I32, F32 = np.uint8, np.uint16, np.int32, np.float32
MAX = np.finfo(np.float32).max
INFINITE = 0x7F800000  #: the bits of infinity; those of NaN are above
NAN_SCALE = 0x7FC0  #: of a block with a value that is not finite
NORMAL_SCALE = 0x80  #: the least scale that is not denormal
ROUNDER = np.float32(3 << 22)  #: in a sum of this and a small number, the last bit is worth 1
ROUNDER_BITS = 0x4B400000
FITS = 3  #: times that integers and scale are fitted to each other; more gains little
FEW = 128  #: so many numbers are added up in eight sums
DEPTH = 64  #: of halves of halves of an array


class Integers(NamedTuple):
    """Says which integers stand for the values of a tensor.

    Attributes:
        block: Number of values that share a scale.
        top: The greatest integer, L.
        fitted: The scale is that of least squares; otherwise the max magnitude becomes L.
        signed: Form of the codes: sign and magnitude, otherwise the offset from -L.
    """

    block: int
    top: int
    fitted: bool
    signed: bool


class FittingScratch(NamedTuple):
    """Memory for fitting a block.

    Attributes:
        shares: The values over the greatest magnitude, float32[block].
        products: Each share times its integer, float32[block], with zeros behind those of a shorter block.
        lengths: Of the later halves that are still to be added up, int64.
        sums: Of the earlier halves, float32.
    """

    shares: np.ndarray
    products: np.ndarray
    lengths: np.ndarray
    sums: np.ndarray


@kernel
def quantize_blocks(values, integers, scratch, codes, scales, decoded):
    """Write the codes of values and the scales of their blocks.

    Args:
        values: float32[n].
        integers: The integers, :class:`Integers`.
        scratch: :class:`FittingScratch`, whose arrays of a block are empty where scales are not fitted.
        codes: uint8[n], result.
        scales: uint16, result, one for each block.
        decoded: float32[n] or float64[n], result: what codes and scales stand for; empty if that is not wanted.
    """
    n, block, top = len(values), integers.block, integers.top
    for number in range(len(scales)):
        begin = number * block
        count = min(block, n - begin)
        some, some_codes = subarray(values, begin, count), subarray(codes, begin, count)
        scale = _code_block(some, top, integers.fitted, integers.signed, scratch, some_codes)
        scales[number] = U16(scale)
        if len(decoded):
            _decode_block(some_codes, scale, top, integers.signed, False, subarray(decoded, begin, count))


@inlined
def _code_block(values, top, fitted, signed, scratch, codes):
    """Write the codes of a block, and return its scale, a uint32.

    Where the fitted scale is denormal, too few digits are left of it for the integers that it was fitted to.
    """
    # Without their signs, bits are in the order of magnitudes, with infinity above all numbers and NaNs above infinity:
    # one max of integers finds the greatest magnitude and what is not finite.
    max_bits = U32(0)
    for value in values:
        max_bits = max(max_bits, U32(bits_of_float(value) & U32(0x7FFFFFFF)))
    greatest = float_from_bits(max_bits)
    if _can_divide(greatest):
        if fitted:
            before, distance = _fit(values, greatest, top, scratch)
            scale = _scale_of(F32(distance * greatest), top)
            # The shares are of the greatest magnitude, and so is their distance. The integers are those of the last
            # round, which `distance` was fitted to: nearest for the distance before it.
            if scale >= U32(NORMAL_SCALE):
                _code_all(subarray(scratch.shares, 0, len(values)), before, top, signed, codes)
                return scale
        else:
            scale = _scale_of(F32(greatest / F32(top)), top)
        if _can_divide(_float_of(scale)):
            _code_all(values, _float_of(scale), top, signed, codes)
            return scale
    # Nothing can be divided: by zero, by what the processor takes for zero, or because a value is not finite. All
    # integers are 0, and the scale says which it was: 0, or NaN.
    zero = U8(0) if signed else U8(top)
    for i in range(len(codes)):
        codes[i] = zero
    return U32(NAN_SCALE) if max_bits >= U32(INFINITE) else U32(0)


@inlined
def _can_divide(number):
    """Tell whether a float32 is finite and no zero, and none for which this processor takes zero, as it may denormal
    ones: a comparison with zero would not tell, for LLVM compares bits instead."""
    return F32(number / number) == 1


@inlined
def _float_of(scale):
    return float_from_bits(U32(scale << U32(16)))


@inlined
def _scale_of(distance, top):
    """Return the scale for a distance of integers: the nearest with which the greatest integer is finite.

    A denormal one has few digits, and would cut off the greatest values if it were rounded down. It is rounded up, and
    never to zero, so that values keep what the least scale, 2**-133, leaves of them.
    """
    bits, end = bits_of_float(distance), U32(bits_of_float(F32(F32(MAX) / F32(top))) >> U32(16))
    #     distance    s eeeeeeee mmmmmmm rrrrrrrrrrrrrrrr
    #     scale       s eeeeeeee mmmmmmm
    #
    # 0x8000 is added to round to the nearest, 0xFFFF to round up; a carry out of the mantissa goes to the exponent.
    rounding = U32(0x8000) if bits >= U32(NORMAL_SCALE << 16) else U32(0xFFFF)
    return max(min(U32(U32(bits + rounding) >> U32(16)), end), U32(1))


@inlined
def _nearest(quotient, top):
    """Return the nearest integer of a float32 that is not above 2**21, ties to even, or the end that it is beyond."""
    #     quotient       -2**21 ... 2**21
    #     + ROUNDER      2**23 ... 2**24        1.5 * 2**23 + k, rounded where its last bit is: at 1
    #     - ROUNDER's bits                      k, as consecutive numbers there have consecutive bits; below 0, too
    rounded = I32(bits_of_float(F32(quotient + ROUNDER))) - I32(ROUNDER_BITS)
    return min(max(I32(rounded), I32(-top)), I32(top))


@inlined
def _code_all(values, distance, top, signed, codes):
    """Write the code of each value at a distance of the integers, which is not zero."""
    if signed:
        for i in range(len(values)):
            k = _nearest(F32(values[i] / distance), top)
            codes[i] = U8(U32(abs(k)) | U32(U32(k < 0) << U32(7)))
    else:
        for i in range(len(values)):
            codes[i] = U8(_nearest(F32(values[i] / distance), top) + I32(top))


@kernel
def _fit(values, greatest, top, scratch):
    """Fit integers to shares of the greatest magnitude, whose squares neither vanish nor overflow, and their distance
    to these integers, in turns. Return the distance that the last integers are nearest for, and theirs of least
    squares."""
    n, shares, products = len(values), scratch.shares, scratch.products
    for i in range(n):
        shares[i] = F32(values[i] / greatest)
    for i in range(n, len(products)):
        products[i] = F32(0)
    before = distance = F32(F32(1) / F32(top))
    for _ in range(FITS):
        before, squares = distance, 0
        for i in range(n):
            k = _nearest(F32(shares[i] / before), top)
            products[i] = F32(shares[i] * F32(k))
            # The distance d with the least sum of (share - k * d)**2 is the sum of share * k over that of k**2.
            squares += I32(k * k)
        distance = F32(sum_in_halves(products, scratch) / F32(squares))
    return before, distance


@kernel
def sum_in_halves(numbers, scratch):
    """Return the sum of float32s in numpy's order: of halves of halves, the last of which have at most 128 numbers.

    lengths, by depth   of the half that is still to come; 0 while that is being added up
    sums, by depth      of the half before it

    Args:
        numbers: float32[n], n at least 1.
        scratch: :class:`FittingScratch`.
    """
    lengths, sums = scratch.lengths, scratch.sums
    begin, count, depth = 0, len(numbers), 0
    while True:
        while count > FEW:
            half = count // 2
            # All halves but the last begin and end with whole groups of eight, as numpy's do.
            half -= half % 8
            lengths[depth] = count - half
            count = half
            depth += 1
        total = _sum_of_few(subarray(numbers, begin, count))
        begin += count
        # A later half has been added up: with the earlier one, it is the sum of what they are halves of, which may be a
        # later half itself.
        while depth > 0 and lengths[depth - 1] == 0:
            depth -= 1
            total = F32(sums[depth] + total)
        if depth == 0:
            return total
        # An earlier half has: its sum waits, and the later one comes next.
        count, lengths[depth - 1], sums[depth - 1] = lengths[depth - 1], 0, total


@kernel
def _sum_of_few(numbers):
    """Add up at most 128 numbers: every eighth in a sum of its own, and the last n % 8 one after the other."""
    n, total = len(numbers), F32(0)
    whole = n - n % 8
    if whole:
        a, b, c, d = numbers[0], numbers[1], numbers[2], numbers[3]
        e, f, g, h = numbers[4], numbers[5], numbers[6], numbers[7]
        for i in range(8, whole, 8):
            a += numbers[i]
            b += numbers[i + 1]
            c += numbers[i + 2]
            d += numbers[i + 3]
            e += numbers[i + 4]
            f += numbers[i + 5]
            g += numbers[i + 6]
            h += numbers[i + 7]
        total = F32(F32(F32(a + b) + F32(c + d)) + F32(F32(e + f) + F32(g + h)))
    for i in range(whole, n):
        total = F32(total + numbers[i])
    return total


@inlined
def _decode_block(codes, scale, top, signed, add, out):
    """Write the values of a block, or add them."""
    distance = _float_of(scale)
    if add:
        for i in range(len(codes)):
            out[i] += F32(F32(_integer_of(codes[i], top, signed)) * distance)
    else:
        for i in range(len(codes)):
            out[i] = F32(F32(_integer_of(codes[i], top, signed)) * distance)


@inlined
def _integer_of(code, top, signed):
    if signed:
        size = I32(code & U8(0x7F))
        return I32(-size) if code & U8(0x80) else size
    return I32(I32(code) - I32(top))


@kernel
def dequantize_blocks(codes, scales, integers, add, out):
    """Write or add the values of codes, and return whether all integers are within their range.

    Args:
        codes: uint8[n].
        scales: uint16, of each block.
        integers: The integers, :class:`Integers`.
        add: Add to what is in ``out``.
        out: float32[n] or float64[n], result.
    """
    n, block, top, signed = len(codes), integers.block, integers.top, integers.signed
    mask, greatest = (U8(0x7F) if signed else U8(0xFF)), U8(0)
    for number in range(len(scales)):
        begin = number * block
        some = subarray(codes, begin, min(block, n - begin))
        # No way out at a code that is too great: so LLVM makes vectors of the loop, and one look at the end is enough.
        for code in some:
            greatest = max(greatest, U8(code & mask))
        _decode_block(some, U32(scales[number]), top, signed, add, subarray(out, begin, len(some)))
    return greatest <= (top if signed else 2 * top)
