"""The arithmetic that decides bytes, one value at a time; the same functions compile for the CPU and for CUDA.

Every intermediate result is cast back to its width: compiled numba widens ``uint32 op uint32`` to 64 bits where the
CUDA simulator wraps, and only a cast makes the two agree.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I32, I64 = np.int8, np.int32, np.int64
ESCAPE = 255  #: symbol number of the escape
NARROW = U32(31)  #: a shift by ``n & NARROW`` is vectorized 32 bits wide: numba's own shifts are of 64 bits


@kernel
def lesser(a, b):
    """The lesser of two numbers: numba has no ``min`` of unsigned integers for CUDA."""
    return a if a < b else b


@kernel
def greater(a, b):
    """The greater one."""
    return a if a > b else b


@kernel
def word_multiplier(index):
    """m(i) of docs/format.md section 3 for the 32-bit word at position ``index``; an odd uint32."""
    return U32(U32(U32(index + 1) * U32(0x9E3779B1)) | U32(1))


@kernel
def round_magnitude(bits, drop, infinity, nearest):
    """Drop ``drop`` low bits of a magnitude (a float's bits without its sign).

    ``bits``, ``infinity``: uint64, ``infinity`` being the bits of +inf of this type; ``drop``: 0 ... mantissa bits;
    ``nearest``: round to nearest even, else truncate. Infinity stays; a NaN stays a NaN (the lowest kept
    mantissa bit is set where dropping would leave none); rounding never carries into infinity.
    """
    low = U64((U64(1) << U64(drop)) - U64(1))
    kept = U64(bits & ~low)
    if bits >= infinity:
        if bits > infinity and kept == infinity:
            kept = U64(kept | U64(low + U64(1)))
        return kept
    if nearest and drop > 0:
        half = U64(low >> U64(1))
        odd = U64(U64(bits >> U64(drop)) & U64(1))
        rounded = U64(U64(bits + U64(half + odd)) & ~low)
        if rounded < infinity:
            return rounded
    return kept


@kernel
def round_value(bits, drop, first, sign_bit, infinity, smallest_normal, nearest, prune):
    """A value of at most 32 bits with ``drop`` mantissa bits rounded away, or ``first`` where it is not finite; all of
    them uint32. :func:`round_magnitude` on both signs, and denormals and -0 become +0 if ``prune``."""
    sign = U32(bits & sign_bit)
    magnitude = U32(bits ^ sign)
    finite = magnitude < infinity
    unit = U32(U32(1) << U32(U32(drop if finite else first) & U32(31)))
    low = U32(unit - U32(1))
    kept = U32(magnitude & ~low)
    odd = U32(1) if magnitude & unit else U32(0)
    half = U32(U32(low >> U32(1)) + odd)
    bump = half if low else U32(0)
    near = U32(U32(magnitude + bump) & ~low)
    near = near if finite else kept
    near = near if near < infinity else kept
    result = near if nearest else kept
    still_nan = U32(kept | unit) if kept == infinity else kept
    result = still_nan if magnitude > infinity else result
    result = U32(result | sign)
    return U32(0) if prune and magnitude < smallest_normal else result


@kernel
def symbol_of(bits, reference, head_shift, head_mask, first, count, number):
    """The symbol of a value of at most 32 bits, whether it has a code or not. ``reference``: head that relative heads
    are counted from; ``first``, ``count``, ``number``: its level's range, and the number of that's first symbol; all
    of them uint32."""
    head = U32(U32(bits >> head_shift) & head_mask)
    offset = U32(U32(head - U32(reference + first)) & head_mask)
    symbol = U32(number + offset) if offset < count else U32(ESCAPE)
    return symbol if bits else U32(0)


@kernel
def bin_of_head(head, origin, head_mask, window, center):
    """Return the bin of a value by its head alone (bits above the head do not matter), as if it were not zero; all of
    them uint32. See :func:`bin_of`."""
    half = U32(U32(head_mask + U32(1)) >> U32(1))
    place = U32(U32(U32(head + U32(half - origin)) & head_mask) - U32(half - center))
    return U32(1) if place >= window else U32(place + U32(2))


@kernel
def bin_of(bits, origin, head_shift, head_mask, window, center):
    """The bin of a value of at most 32 bits in a histogram of heads relative to ``origin`` (:mod:`costs`); all of them
    uint32."""
    result = bin_of_head(U32(bits >> head_shift), origin, head_mask, window, center)
    return result if bits else U32(0)


@kernel
def tail_of(bits, width, tail_bits):
    """Sign and low mantissa bits of a value of ``width`` bits (docs/format.md section 2); all of them uint32."""
    sign, below = U32(bits >> U32(width - U32(1))), U32(tail_bits - U32(1))
    return U32(U32(sign << below) | U32(bits & U32(U32(U32(1) << below) - U32(1))))


@kernel
def value_of(head, tail, width, tail_bits):
    """Inverse of :func:`tail_of`, with the head."""
    below = U32(tail_bits - U32(1))
    rest = U32(tail & U32(U32(U32(1) << below) - U32(1)))
    return U32(U32(U32(tail >> below) << U32(width - U32(1))) | U32(U32(head << below) | rest))


@kernel
def spread(mark):
    """Bit p of eight to bit 8 p of 64."""
    copies = U64(U64(mark) * U64(0x0101010101010101)) & U64(0x8040201008040201)
    return U64(U64(copies + U64(0x7F7F7F7F7F7F7F7F)) >> U64(7)) & U64(0x0101010101010101)
