"""Scales: by how much a template has to be multiplied to come close to a row (docs/format.md section 8).

    row         v0 v1 v2 ...
    template    t0 t1 t2 ...
    scale       sum of v * t / sum of t * t        least squares; for bfloat16 that one or one nearby

How an encoder chooses scales is up to it. These are the same on every machine: sums are of a fixed order, and what
depends on whether a processor takes denormals for zero counts as zero, as in :mod:`residuals`.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, float_from_bits
from .residuals import BFLOAT16, FLOAT32, as_float, flush_denormal, flushed_product
from .scale_steps import N_SUMS, best_scale, products_bfloat16, products_float16, products_float32

_FEW = 16  #: values of a row, of which no scale but that of least squares is tried; on every CPU


@kernel
def _total_of(sums):
    """Return the total of partial sums: the upper half added to the lower, and so on."""
    #     sums        s0       s1       s2       s3     | s4  s5  s6  s7
    #     first       s0 + s4  s1 + s5  s2 + s6  s3 + s7
    #     then        ... + (s2 + s6)   ... + (s3 + s7)
    #
    # The order in which vectors add up their halves: float32s depend on it, and so would the bytes of a frame.
    half = N_SUMS
    while half > 1:
        half //= 2
        for k in range(half):
            sums[k] = flush_denormal(np.float32(sums[k] + sums[k + half]))
    return sums[0]


@kernel
def sum_products(values, template, n, dtype_code, sums):
    """Return the scalar product of a row of values and one of a template, both of ``n``, as a float32. ``sums``:
    float32[N_SUMS], scratch."""
    if n < N_SUMS:  # the last lanes take them, as they take the end of a longer row
        for k in range(N_SUMS):
            sums[k] = np.float32(0)
        for i in range(n):
            sums[N_SUMS - n + i] = flushed_product(as_float(values[i], dtype_code), template[i])
        return _total_of(sums)
    if dtype_code == FLOAT32:
        return products_float32(values, 0, template, 0, n)
    if dtype_code == BFLOAT16:
        return products_bfloat16(values, 0, template, 0, n)
    return products_float16(values, 0, template, 0, n)


@kernel
def dot(a, b, n, sums):
    """Return the scalar product of two rows, float32[n], as a float32. ``sums``: float32[N_SUMS], scratch."""
    if n >= N_SUMS:
        return products_float32(a, 0, b, 0, n)
    for k in range(N_SUMS):
        sums[k] = np.float32(0)
    for i in range(n):
        sums[N_SUMS - n + i] = flushed_product(a[i], b[i])
    return _total_of(sums)


@kernel
def _to_scale(value):
    """Return the bits of a float32 rounded to the 24 bits of a scale (its upper three bytes), as uint32; 0 where that
    depends on the processor's mode."""
    bits = bits_of_float(value)
    bits = bits if U32(bits & U32(0x7FFFFFFF)) >= U32(0x01000000) else U32(0)
    #     bits        s eeeeeeee mmmmmmmmmmmmmmm rrrrrrrr      the lower 8 bits are not stored
    #     0x80                                   10000000      half of their range is added, and they are cut off
    #
    # A carry that goes on into the exponent gives the next power of two, as it should.
    return U32(U32(bits + U32(0x80)) & U32(0xFFFFFF00))


@kernel
def scale_of(products, squares):
    """Return the bits of the scale that fits a row to a template's best (least squares), as uint32."""
    # The scale s with the least sum of (value - s * template)**2 is the sum of value * template over that of
    # template**2.
    return _to_scale(np.float32(products / squares)) if squares > np.float32(0) else U32(0)


@kernel
def _times(scale, quarters):
    """Return a scale, a float32, and so many quarters of a thousandth (1024th) more."""
    factor = np.float32(np.float32(1) + np.float32(quarters) * np.float32(2.0**-12))
    return float_from_bits(_to_scale(np.float32(scale * factor)))


@kernel
def nearby_scale(values, template, n, scale, scales):
    """Return, of a row's scale and four within a fifth of a bfloat16's last place, the one that predicts most values
    exactly, the first of equals: its bits, as uint32. A row of few values keeps its scale.

    Least squares follow what rounding has done to each value; but one that it has moved too far is lost in any case.
    Values with an exponent field of 0 or 1 do not count: whether their products are met depends on the processor's
    mode.

    Args:
        values: uint16[n], bfloat16.
        template: float32[n].
        scale: The row's scale, as uint32.
        scales: float32[N_SUMS], scratch.
    """
    if n < _FEW:
        return scale
    first = float_from_bits(scale)
    scales[0] = first
    for k, quarters in enumerate((-1, 1, -3, 3)):
        scales[k + 1] = _times(first, quarters)
    return bits_of_float(scales[best_scale(values, 0, template, 0, scales, 0, n)])
