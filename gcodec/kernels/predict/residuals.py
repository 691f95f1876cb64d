"""Prediction of rows from a template, and the residuals it leaves (docs/format.md section 8).

A row of a gradient that is nearly of rank one is a scale times a row that all rows share. What is coded then is how
far each value lies from that product, counted in steps of the last place: a number of W / 4 hexadecimal digits, most
of them leading zeros.

    template[i] * scale  ->  prediction    s eeeeeeee mmm...     rounded to the values' type
    values[i]                              s eeeeeeee mmm...
    both as ordered integers, their difference in zigzag       0 0 0 d d d     hexadecimal digits
                                                                     |   +-- the others: planes
                                                                     +------ number and first of them: the symbol

Some processors take denormal floats for zero, in arguments or in results, and whether they do is a mode that any
library may set. So what could be denormal counts as zero everywhere here: :func:`flush_tiny` says how.
"""

from __future__ import annotations

import numpy as np

from ..core.floats import from_bfloat16, from_half
from ..core.jit import kernel
from ..core.scalar import U8, U32
from ..core.unaligned import bits_of_float, float_from_bits, leading_zeros, subarray, width_of

FLOAT32, BFLOAT16, FLOAT16 = 1, 2, 3  #: dtype codes of the formats that can be predicted


@kernel
def _to_half(bits):
    """Return the bits of the float16 nearest to a float32's magnitude (halves away from zero), sign kept; 0 beyond its
    range.

        float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
        float16   s    eeeee mmmmmmmmmm                 exponent - 112, and the mantissa rounded at bit 13;
                  s    00000 000001mmmm                 denormal: the mantissa with its leading 1, moved down further
    """
    magnitude = U32(bits & U32(0x7FFFFFFF))
    # All three cases are computed and one is chosen, so that loops become vectors. `shift` is the s of docs/format.md
    # section 8; of magnitudes that are no denormal float16 it wraps around, and what it leads to is not taken: amounts
    # are cut to 5 bits, so that no shift is undefined.
    shift = U32(U32(126) - U32(magnitude >> U32(23)))
    normal = U32(U32(U32(magnitude - U32(0x38000000)) + U32(0x1000)) >> U32(13))
    bounded = U32(shift & U32(31))
    mantissa = U32(U32(magnitude & U32(0x7FFFFF)) | U32(0x800000))
    denormal = U32(U32(mantissa + U32(U32(1) << U32(U32(bounded - U32(1)) & U32(31)))) >> bounded)
    small = denormal if shift < U32(25) else U32(0)
    result = small if magnitude < U32(0x38800000) else normal
    result = result if magnitude < U32(0x47800000) else U32(0)
    return U32(result | U32(U32(bits >> U32(16)) & U32(0x8000)))


@kernel
def as_float(bits, dtype_code):
    """Return the float32 equal to a value of a predictable type, given its bits."""
    if dtype_code == FLOAT32:
        return float_from_bits(U32(bits))
    if dtype_code == BFLOAT16:
        return from_bfloat16(U32(bits))
    return from_half(U32(bits))


@kernel
def flush_denormal(value):
    """Return the float32, 0 where it is denormal: processors that take denormals for zero would, and others would
    not."""
    bits = bits_of_float(value)
    return float_from_bits(bits if bits & U32(0x7F800000) else U32(0))


@kernel
def flush_tiny(value):
    """Return the float32, 0 where it depends on the processor's mode: where it is denormal, and where rounding may have
    made the smallest normal number of it, whose exponent field is 1."""
    bits = bits_of_float(value)
    # 0x01000000 is the smallest number of exponent field 2.
    return float_from_bits(bits if U32(bits & U32(0x7FFFFFFF)) >= U32(0x01000000) else U32(0))


@kernel
def flushed_product(a, b):
    """Return the product of two float32, 0 where that depends on the processor's mode."""
    return flush_tiny(np.float32(flush_denormal(a) * flush_denormal(b)))


@kernel
def predict(scale, template, start, n, dtype_code, predictions):
    """Predict ``n`` values by a scale and a template.

    Args:
        scale: float32.
        template: float32[n_columns].
        start: The column of the first value.
        n: Number of values, which must not go beyond the template's end.
        predictions: uint32[n], result: bits of ``scale * template[start + i]`` in that type.
    """
    columns = subarray(template, start, n)
    scale = flush_denormal(np.float32(scale))
    for i in range(n):
        bits = bits_of_float(np.float32(scale * flush_denormal(columns[i])))
        # Less 2, as an unsigned number: 0 and 1 wrap around to the largest, so that one comparison finds 2 ... 254.
        exponent = U32(U32(bits >> U32(23)) & U32(255))
        # 2 ... 254: products below may have been flushed to zero, depending on the processor's mode; 255 is no number.
        predictions[i] = bits if U32(exponent - U32(2)) < U32(253) else U32(0)
    if dtype_code == BFLOAT16:
        for i in range(n):
            predictions[i] = U32(U32(predictions[i] + U32(0x8000)) >> U32(16))
    if dtype_code == FLOAT16:
        for i in range(n):
            predictions[i] = _to_half(predictions[i])


@kernel
def _ordered(bits, sign_bit, all_ones):
    """Return a float's bits as an integer in two's complement that is ordered as the floats are; and back, for it is
    its own inverse.

        s = 0     0 eeeeeeee mmmmmmm     stays:  0, 1, 2 ...
        s = 1     1 EEEEEEEE MMMMMMM     all but the sign inverted: -0 becomes -1, the next below -2 ...
    """
    return U32(U32(bits ^ all_ones) | sign_bit) if bits & sign_bit else bits


@kernel
def residuals(values, start, n, predictions, words):
    """Subtract predictions from values, both as ordered integers, and write the differences in zigzag.

        difference   0  -1   1  -2   2 ...     modulo 2**W
        zigzag       0   1   2   3   4 ...     small numbers for small differences of both signs

    Args:
        values: uintW.
        start: The first value.
        predictions: uint32[n].
        words: uint32[n], result.
    """
    part = subarray(values, start, n)
    width = width_of(values)
    sign_bit, all_ones = U32(1 << (width - 1)), U32((1 << width) - 1)
    for i in range(n):
        value, prediction = _ordered(U32(part[i]), sign_bit, all_ones), _ordered(predictions[i], sign_bit, all_ones)
        #     step        negative:  1xxx...      << 1, then all bits inverted: 2 |step| - 1
        #                 positive:  0xxx...      << 1: 2 step                              cut to W bits
        step = U32(U32(value - prediction) & all_ones)
        words[i] = U32(U32(U32(step << U32(1)) ^ (all_ones if step & sign_bit else U32(0))) & all_ones)


@kernel
def restore(words, predictions, n, start, out):
    """Add residuals to predictions: the inverse of :func:`residuals`, into ``out[start ...]``."""
    result = subarray(out, start, n)
    width = width_of(out)
    sign_bit, all_ones = U32(1 << (width - 1)), U32((1 << width) - 1)
    for i in range(n):
        word = words[i]
        step = U32(U32(word >> U32(1)) ^ (all_ones if word & U32(1) else U32(0)))
        value = U32(U32(_ordered(predictions[i], sign_bit, all_ones) + step) & all_ones)
        result[i] = _ordered(value, sign_bit, all_ones)


@kernel
def digits(words, n, symbols, at):
    """Part residuals into symbols and the digits that follow.

    A residual of N hexadecimal digits, the first of them d, has the symbol 15 (N - 1) + d; 0 has the symbol 0. Its
    other digits are stored two in a byte; an odd one out, the last, goes to where such digits are.

                     N = 4, three others                    N = 3, two others
        residual     0 0 0 0 f c b a                        0 0 0 0 0 f b a        in hexadecimal
        symbol       15 * 3 + f                             15 * 2 + f
        word         a 0 0 0 0 f c b                        a 0 0 0 0 f b a
                     |             +-- one byte: cb                       +-- one byte: ba
                     +-- the last digit                     (not used)

    Args:
        words: uint32[n], residuals; replaced by what their bytes are cut from.
        symbols: uint8, result, from ``at`` on.
        at: The first symbol.
    """
    result = subarray(symbols, at, n)
    for i in range(n):
        word = words[i]
        # The place of the highest bit, over four: digits behind the first. `| 1` lets 0 count as a number of one digit,
        # whose first digit is 0: the symbol 0.
        n_others = U32(U32(U32(31) - leading_zeros(U32(word | U32(1)))) >> U32(2))
        first = U32(word >> U32(n_others << U32(2)))
        result[i] = U8(U32(n_others * U32(15)) + first)
        #     word            . . f e d c b a      five digits behind f: odd
        #     >> 4 & FFFFFF   . . . f e d c b      bytes: ed, cb        the last digit goes to the top: a . . f e d c b
        #     four, even      . . . f d c b a      bytes: dc, ba        not moved
        odd = U32(n_others & U32(1))
        words[i] = U32(U32(U32(word >> U32(odd << U32(2))) & U32(0xFFFFFF)) | U32(word << U32(28)))
