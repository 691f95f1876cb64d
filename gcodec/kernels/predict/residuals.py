"""Prediction of rows from a template, and the residuals it leaves (docs/format.md section 8).

A row of a gradient that is nearly of rank one is a scale times a row that all rows share. What is coded then is how
far each value lies from that product, counted in steps of the last place: a number of W / 4 hexadecimal digits, most
of them leading zeros.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inlined, kernel
from ..core.scalar import U8, U32
from ..core.unaligned import bits_of, float_of, leading_zeros, view, width_of

FLOAT32, BFLOAT16, FLOAT16 = 1, 2, 3  #: dtype codes of the formats that can be predicted
LANES = 16  #: partial sums of a scale, fixed so that it does not depend on the machine


@kernel
def _to_half(bits):
    """Bits of the float16 nearest to a float32's magnitude (halves away from zero), sign kept; 0 beyond its range."""
    magnitude = U32(bits & U32(0x7FFFFFFF))
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
def _from_half(bits):
    """The float32 equal to a finite float16."""
    magnitude = U32(U32(bits & U32(0x7FFF)) << U32(13))
    normal = float_of(U32(magnitude + U32(0x38000000)))
    # No float32 on the way is denormal, which a processor might take for zero.
    denormal = np.float32(float_of(U32(magnitude + U32(0x38800000))) - np.float32(2.0**-14))
    size = normal if magnitude >= U32(0x800000) else denormal
    return float_of(U32(bits_of(size) | U32(U32(bits & U32(0x8000)) << U32(16))))


@kernel
def as_float(bits, form):
    """The float32 equal to a value of the format ``form``, given its bits."""
    if form == FLOAT32:
        return float_of(U32(bits))
    if form == BFLOAT16:
        return float_of(U32(U32(bits) << U32(16)))
    return _from_half(U32(bits))


@kernel
def _flush_denormal(value):
    """The value, 0 where it is denormal: processors that take denormals for zero would, and others would not."""
    bits = bits_of(value)
    return float_of(bits if bits & U32(0x7F800000) else U32(0))


@kernel
def flush_tiny(value):
    """The value, 0 where that depends on the processor's mode: where it is denormal, and where rounding may have made
    the smallest normal number of it."""
    bits = bits_of(value)
    return float_of(bits if U32(bits & U32(0x7FFFFFFF)) >= U32(0x01000000) else U32(0))


@kernel
def flushed_product(a, b):
    """The product, 0 where that depends on the processor's mode."""
    return flush_tiny(np.float32(_flush_denormal(a) * _flush_denormal(b)))


@kernel
def predict(scale, template, start, n, form, predictions):
    """Bits of ``scale * template[start + i]`` in the format ``form``, in ``predictions``: uint32[n]."""
    some = view(template, start, n)
    scale = _flush_denormal(np.float32(scale))
    for i in range(n):
        bits = bits_of(np.float32(scale * _flush_denormal(some[i])))
        exponent = U32(U32(bits >> U32(23)) & U32(255))
        # Products this small may have been flushed to zero, depending on the processor's mode.
        predictions[i] = bits if U32(exponent - U32(2)) < U32(253) else U32(0)
    if form == BFLOAT16:
        for i in range(n):
            predictions[i] = U32(U32(predictions[i] + U32(0x8000)) >> U32(16))
    if form == FLOAT16:
        for i in range(n):
            predictions[i] = _to_half(predictions[i])


@kernel
def residuals(values, start, n, predictions, words):
    """Zigzag difference of values and predictions as ordered integers: ``words``: uint32[n], result."""
    some = view(values, start, n)
    width = width_of(values)
    top, all_ones = U32(1 << (width - 1)), U32((1 << width) - 1)
    for i in range(n):
        own, other = U32(some[i]), predictions[i]
        own = U32(U32(own | top) ^ all_ones | top) if own & top else own
        other = U32(U32(other | top) ^ all_ones | top) if other & top else other
        step = U32(U32(own - other) & all_ones)
        words[i] = U32(U32(U32(step << U32(1)) ^ (all_ones if step & top else U32(0))) & all_ones)


@kernel
def restore(words, predictions, n, start, out):
    """Inverse of :func:`residuals`."""
    result = view(out, start, n)
    width = width_of(out)
    top, all_ones = U32(1 << (width - 1)), U32((1 << width) - 1)
    for i in range(n):
        other, word = predictions[i], words[i]
        other = U32(U32(other | top) ^ all_ones | top) if other & top else other
        step = U32(U32(word >> U32(1)) ^ (all_ones if word & U32(1) else U32(0)))
        own = U32(U32(other + step) & all_ones)
        own = U32(U32(own ^ all_ones) | top) if own & top else own
        result[i] = own


@kernel
def digits(words, n, symbols, at):
    """Symbol of every residual in ``symbols[at ...]`` (0, or 15 (N - 1) + its first of N digits), and what its bytes
    are cut from in ``words``: the other digits, less the last where their number is odd; the last digit in the top
    byte."""
    result = view(symbols, at, n)
    for i in range(n):
        word = words[i]
        others = U32(U32(U32(31) - leading_zeros(U32(word | U32(1)))) >> U32(2))
        first = U32(word >> U32(others << U32(2)))
        result[i] = U8(U32(others * U32(15)) + first)
        odd = U32(others & U32(1))
        words[i] = U32(U32(U32(word >> U32(odd << U32(2))) & U32(0xFFFFFF)) | U32(word << U32(28)))


@inlined
def _add_products(values, template, n, form, lanes):
    """Add the products of two rows to ``lanes``: float32[LANES]. ``form``: a constant, so that the loops become one
    of vectors."""
    whole = n - n % LANES
    for at in range(0, whole, LANES):
        some, column = view(values, at, LANES), view(template, at, LANES)
        for i in range(LANES):
            lanes[i] = _flush_denormal(np.float32(lanes[i] + flushed_product(as_float(some[i], form), column[i])))
    for i in range(n - whole):
        value = as_float(values[whole + i], form)
        lanes[i] = _flush_denormal(np.float32(lanes[i] + flushed_product(value, template[whole + i])))


@kernel
def sum_products(values, template, n, form, lanes):
    """Scalar product of a row of values and one of a template, both of ``n``. ``lanes``: float32[LANES], scratch. What
    is denormal counts as 0, so that the sum does not depend on the processor's mode."""
    for i in range(LANES):
        lanes[i] = np.float32(0)
    if form == FLOAT32:
        _add_products(values, template, n, FLOAT32, lanes)
    elif form == BFLOAT16:
        _add_products(values, template, n, BFLOAT16, lanes)
    else:
        _add_products(values, template, n, FLOAT16, lanes)
    total = np.float32(0)
    for i in range(LANES):
        total = _flush_denormal(np.float32(total + lanes[i]))
    return total


@kernel
def sum_squares(template, n, lanes):
    """The same of a template's row and itself."""
    for i in range(LANES):
        lanes[i] = np.float32(0)
    for at in range(0, n, LANES):
        for i in range(min(LANES, n - at)):
            lanes[i] = np.float32(lanes[i] + flushed_product(template[at + i], template[at + i]))
    total = np.float32(0)
    for i in range(LANES):
        total = np.float32(total + lanes[i])
    return total


@kernel
def _to_scale(value):
    """A float32 rounded to the 24 bits of a scale: uint32, its bits; 0 where that depends on the processor's mode."""
    bits = bits_of(value)
    bits = bits if U32(bits & U32(0x7FFFFFFF)) >= U32(0x01000000) else U32(0)
    return U32(U32(bits + U32(0x80)) & U32(0xFFFFFF00))


@kernel
def scale_of(products, squares):
    """The scale that fits a row to a template's best (least squares): uint32, its bits."""
    return _to_scale(np.float32(products / squares)) if squares > np.float32(0) else U32(0)


@kernel
def _is_exact(product, word):
    """1 where a product rounds to a bfloat16, given in the upper half of ``word``, else 0."""
    return U32(U32(U32(bits_of(product) + U32(0x8000)) ^ word) < U32(0x10000))


@kernel
def _times(scale, quarters):
    """A scale and so many quarters of a thousandth (1024th) more: its bits."""
    factor = np.float32(np.float32(1) + np.float32(quarters) * np.float32(2.0**-12))
    return _to_scale(np.float32(float_of(scale) * factor))


@kernel
def nearby_scale(values, template, n, scale):
    """Of a row's scale and four within a fifth of a bfloat16's last place, the one that predicts most values exactly,
    the first of equals: uint32, its bits. Least squares follow what rounding has done to each value; but one that it
    has moved too far is lost in any case. Values with an exponent field of 0 or 1 do not count: whether their products
    are met depends on the processor's mode."""
    first, second, third, fourth = _times(scale, -1), _times(scale, 1), _times(scale, -3), _times(scale, 3)
    s, a, b, c, d = float_of(scale), float_of(first), float_of(second), float_of(third), float_of(fourth)
    n_s, n_a, n_b, n_c, n_d = U32(0), U32(0), U32(0), U32(0), U32(0)
    for i in range(n):
        word, factor = U32(U32(values[i]) << U32(16)), _flush_denormal(template[i])
        # What no finite product rounds to.
        word = word if U32(word & U32(0x7FFFFFFF)) >= U32(0x01000000) else U32(0x7FFF0000)
        n_s += _is_exact(np.float32(s * factor), word)
        n_a += _is_exact(np.float32(a * factor), word)
        n_b += _is_exact(np.float32(b * factor), word)
        n_c += _is_exact(np.float32(c * factor), word)
        n_d += _is_exact(np.float32(d * factor), word)
    best, most = scale, n_s
    best, most = (first, n_a) if n_a > most else (best, most)
    best, most = (second, n_b) if n_b > most else (best, most)
    best, most = (third, n_c) if n_c > most else (best, most)
    best, most = (fourth, n_d) if n_d > most else (best, most)
    return best
