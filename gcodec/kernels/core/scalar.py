"""The arithmetic that decides bytes, one value at a time.

Scalar loops of the CPU's kernels call these functions, which LLVM inlines and, where nothing hinders it, turns into
vectors. A vector step of a CPU's instruction set names the function here that is its law, and ``tests/kernels``
compares the two. Kernels for CUDA devices are written apart, and held to the same bytes.

Integers. Functions that say so take unsigned integers of any width and compute in the width of their first argument.
Compiled numba widens ``uint32 op uint32`` to 64 bits where plain numpy wraps, and vectors of 64 bits are slow:
:func:`wrap` cuts every intermediate result back to its width, which makes all agree and tells LLVM how wide a vector's
elements are. Shifts are :func:`shift_left` and :func:`shift_right`, as numba's own are of 64 bits. Functions of uint32
and uint64 alone cast in plain Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import kernel

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I32, I64 = np.int8, np.int32, np.int64
ESCAPE = 255  #: symbol number of the escape


def _resized(builder: Any, kind: Any, value: Any, bits: int) -> Any:
    """Return an integer of numba's type ``kind`` in so many bits, cut or extended by its sign, in LLVM's terms."""
    width = value.type.width
    if width >= bits:
        return builder.trunc(value, ir.IntType(bits)) if width > bits else value
    signed = getattr(kind, "signed", False)  # a boolean is neither
    return (builder.sext if signed else builder.zext)(value, ir.IntType(bits))


@intrinsic
def wrap(typingctx: Any, number: Any, like: Any) -> Any:
    """Return ``number`` modulo ``2**w`` as an unsigned integer of w bits, the type of ``like``."""
    result, number = types.unliteral(like), types.unliteral(number)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _resized(builder, number, args[0], result.bitwidth)

    return result(number, result), generate


def _shift(operation: str) -> Any:
    def typer(typingctx: Any, bits: Any, amount: Any) -> Any:
        kind, amount = types.unliteral(bits), types.unliteral(amount)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            by = _resized(builder, amount, args[1], kind.bitwidth)
            # What a shift by the width or more gives is undefined in LLVM. Widths are powers of two, so that this is
            # the amount modulo the width.
            inside = builder.and_(by, ir.Constant(by.type, kind.bitwidth - 1))
            return getattr(builder, operation)(args[0], inside)

        return kind(kind, amount), generate

    return intrinsic(typer)


shift_left = _shift("shl")  #: shift_left(bits, amount): in the type of ``bits``, by ``amount`` modulo its width
shift_right = _shift("lshr")  #: shift_right(bits, amount): likewise, unsigned


@kernel
def lesser(a, b):
    """Return the lesser of two numbers of one type."""
    return a if a < b else b


@kernel
def greater(a, b):
    """Return the greater of two numbers of one type."""
    return a if a > b else b


@kernel
def word_multiplier(index):
    """Return m(i) of docs/format.md section 3 for the 32-bit word at position ``index``: an odd uint32."""
    # About 2**32 over the golden ratio, whose multiples are spread evenly. Odd, so that a product with it loses
    # nothing: two different words have different products.
    return U32(U32(U32(index + 1) * U32(0x9E3779B1)) | U32(1))


@kernel
def level_of(bits, level, sign_bit, infinity):
    """Return the level that a value of any width is coded with: its own, or 0 where its magnitude is ``infinity`` or
    more.

        bits      s 11111111 mmmmmmm      an infinity or a NaN: level 0
        others    s eeeeeeee mmmmmmm      ``level``

    Args:
        bits: The value, an unsigned integer.
        level: Its level, unsigned; the result has the same type.
        sign_bit: The value's highest bit.
        infinity: Bits of +inf of this type; or the sign bit where all values have levels of their own.
    """
    return level if wrap(bits & ~wrap(sign_bit, bits), bits) < wrap(infinity, bits) else wrap(0, level)


@kernel
def round_magnitude(bits, drop, infinity, nearest):
    """Drop ``drop`` low bits of a magnitude (a float's bits without its sign).

    Infinity stays; a NaN stays a NaN (the lowest kept mantissa bit is set where dropping would leave none); rounding
    never carries into infinity.

        float32     eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm      drop = 5
        low         ........ ..................11111      what is dropped
        half        ........ ...................1111      1 more where the kept part is odd: to the nearest even
        kept        eeeeeeee mmmmmmmmmmmmmmmmmm00000

    Args:
        bits: uint64.
        drop: 0 ... mantissa bits.
        infinity: uint64, the bits of +inf of this type.
        nearest: Round to nearest even, else truncate.
    """
    low = U64((U64(1) << U64(drop)) - U64(1))
    kept = U64(bits & ~low)
    if bits >= infinity:
        # A NaN that has no bits but in what is dropped would become an infinity: low + 1 is the lowest bit that is
        # kept.
        if bits > infinity and kept == infinity:
            kept = U64(kept | U64(low + U64(1)))
        return kept
    if nearest and drop > 0:
        # `half + odd` is one less than half a unit, or just that where the kept part is odd: a tie, 100...0 in the bits
        # that are dropped, carries into the unit exactly then. So ties go to even.
        half = U64(low >> U64(1))
        odd = U64(U64(bits >> U64(drop)) & U64(1))
        result = U64(U64(bits + U64(half + odd)) & ~low)
        # Of the largest finite magnitudes the carry runs on through the exponent, and ends as an infinity:
        #
        #     0 11111110 1111...1 + unit = 0 11111111 0000...0
        #
        # These are truncated instead.
        if result < infinity:
            return result
    return kept


@kernel
def round_value(bits, drop, first, sign_bit, infinity, smallest_normal, nearest, prune):
    """Round ``drop`` mantissa bits away from a value of at most 32 bits, or ``first`` where it is not finite.

    All arguments are uint32. :func:`round_magnitude` on both signs, and denormals and -0 become +0 if ``prune``.
    Without branches, so that LLVM makes vectors of it.

        float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm      drop = 5
        unit      . ........ .................1.....      the lowest bit that is kept
        low       . ........ ..................11111      what is dropped
        bump      . ........ ...................1111      half of unit less 1, and 1 more where the kept part is odd:
                                                          adding it carries into unit where the value is rounded up
    """
    sign = U32(bits & sign_bit)
    magnitude = U32(bits ^ sign)
    finite = magnitude < infinity
    # Not more than 31, which LLVM cannot know: beyond that, it would have to allow for shifts that are undefined.
    unit = U32(U32(1) << U32(U32(drop if finite else first) & U32(31)))
    low = U32(unit - U32(1))
    kept = U32(magnitude & ~low)
    odd = U32(1) if magnitude & unit else U32(0)
    half = U32(U32(low >> U32(1)) + odd)
    # Where nothing is dropped, `odd` is the value's own lowest bit, and must not be added.
    bump = half if low else U32(0)
    near = U32(U32(magnitude + bump) & ~low)
    near = near if finite else kept
    near = near if near < infinity else kept
    result = near if nearest else kept
    # As above: a NaN whose bits are all dropped would look like an infinity.
    still_nan = U32(kept | unit) if kept == infinity else kept
    result = still_nan if magnitude > infinity else result
    result = U32(result | sign)
    return U32(0) if prune and magnitude < smallest_normal else result


@kernel
def head_of(bits, head_shift, head_mask):
    """Return the head of a value of any width: the bits of ``head_mask`` from bit ``head_shift`` on."""
    return wrap(shift_right(bits, head_shift) & wrap(head_mask, bits), bits)


@kernel
def add_to_head(bits, difference, head_shift, head_mask):
    """Return a value of any width with ``difference`` added to its head, modulo the head's width.

    bits      s hhhhhhhh mmmmmmm
    result    s (h + d)  mmmmmmm
    """
    field = shift_left(wrap(head_mask, bits), head_shift)
    moved = wrap(bits + shift_left(wrap(difference, bits), head_shift), bits)
    # A carry out of the head would change the sign above it, which is left out with all else outside of the field.
    return wrap(wrap(bits & ~field, bits) | wrap(moved & field, bits), bits)


@kernel
def mean_of(total, number):
    """Return the mean of ``number`` heads whose sum is ``total``, rounded down, and 0 of none; both of one unsigned
    type."""
    # Of no heads the sum is 0, too, and 0 over 1 is what is wanted: no branch, and no division by 0.
    return wrap(total // greater(number, wrap(1, number)), total)


@kernel
def reference_of(mean, base):
    """Return the reference of a sub-stream with this mean head: how far it lies above the block's base, the min mean of
    its sub-streams, and 0 where it does not, as that of zeros alone may; both of one unsigned type."""
    return wrap(mean - base, mean) if mean > base else wrap(0, mean)


@kernel
def symbol_of_head(head, reference, head_mask, first, count, number):
    """Return the symbol of a value by its head alone, as if it were not zero; see :func:`symbol_of`."""
    # Modulo the head's width, heads below the range become large offsets, so that one unsigned comparison finds those
    # on both sides of it.
    relative = wrap(head - wrap(reference + first, head), head)
    offset = wrap(relative & wrap(head_mask, head), head)
    return wrap(number + offset, head) if offset < wrap(count, head) else wrap(ESCAPE, head)


@kernel
def symbol_of(bits, reference, head_shift, head_mask, first, count, number):
    """Return the symbol of a value of any width, whether it has a code or not (docs/format.md sections 5 and 7).

    Args:
        bits: The value, an unsigned integer that all is computed in.
        reference: Head that relative heads are counted from.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        first: First relative head of the range of the value's level.
        count: How many heads the range has.
        number: Symbol of the first of them.

    Returns:
        0 for zero, ``number`` ... within the range, else the escape::

            relative head   ... first - 1 | first     first + 1   ... | first + count ...
            symbol          escape        | number    number + 1  ... | escape
    """
    symbol = symbol_of_head(head_of(bits, head_shift, head_mask), reference, head_mask, first, count, number)
    return symbol if bits else wrap(0, bits)


@kernel
def bin_of_head(head, origin, head_mask, window, center):
    """Return the bin of a value by its head alone, as if it were not zero; see :func:`bin_of`. Bits above the head do
    not matter. All arguments are uint32."""
    # As a number with sign: half a turn is added before the mask, so that relative heads from -half on rise from 0 on,
    # and taken off again; heads below the window wrap to large numbers, so that one comparison finds both sides.
    half = U32(U32(head_mask + U32(1)) >> U32(1))
    place = U32(U32(U32(head + U32(half - origin)) & head_mask) - U32(half - center))
    return U32(1) if place >= window else U32(place + U32(2))


@kernel
def bin_of(bits, origin, head_shift, head_mask, window, center):
    """Return the bin of a value of at most 32 bits in a histogram of heads (:mod:`code_costs`), uint32.

        relative head   ... | -center  ...  0          ...  window - center - 1 | ...
        bin             1   | 2        ...  2 + center ...  window + 1          | 1         zero: bin 0

    Args:
        bits: The value. All arguments are uint32.
        origin: Head that relative heads are counted from.
        head_shift: Bits below the head.
        head_mask: Lowest bits, as many as the head has.
        window: How many relative heads have a bin of their own.
        center: How many of them are negative.
    """
    result = bin_of_head(shift_right(bits, head_shift), origin, head_mask, window, center)
    return result if bits else U32(0)


@kernel
def bin_of_level(number, level, max_level, window):
    """Return the bin of a value with a level, given its bin as of level 0, in whose type all is computed.

        bin       0      1         2 ... window + 1    window + 2 ... 2 * window + 1    ...
        values    zeros  outside   heads of level 0    heads of level 1                 heads of max_level

    Args:
        number: Bin of the value by :func:`bin_of`.
        level: The value's level; one above ``max_level`` counts as that.
        max_level: The last level that the histogram has bins for.
        window: How many bins a level has.
    """
    row = lesser(wrap(level, number), wrap(max_level, number))
    return wrap(number + wrap(wrap(window, number) * row, number), number) if number > 1 else number


@kernel
def tail_of(bits, width, tail_bits):
    """Return sign and low mantissa bits of a value of any type (docs/format.md section 2).

    Args:
        bits: The value, an unsigned integer of at least ``width`` bits that all is computed in.
        tail_bits: Bits of the tail; the head has the others.

    Returns:
        The sign above the mantissa bits below the head::

            bits      s hhhhhhhh mmmmmmm
            result             s mmmmmmm
    """
    below = tail_bits - 1
    mantissa = wrap(shift_left(wrap(1, bits), below) - wrap(1, bits), bits)
    return wrap(shift_left(shift_right(bits, width - 1), below) | wrap(bits & mantissa, bits), bits)


@kernel
def value_of(head, tail, width, tail_bits):
    """Return a value from its head, which has nothing above it, and its tail: the inverse of :func:`tail_of`, computed
    in the type of ``tail``."""
    below = tail_bits - 1
    mantissa = wrap(shift_left(wrap(1, tail), below) - wrap(1, tail), tail)
    sign = shift_left(shift_right(tail, below), width - 1)
    return wrap(sign | wrap(shift_left(wrap(head, tail), below) | wrap(tail & mantissa, tail), tail), tail)


@kernel
def head_of_symbol(relative, reference, head_mask):
    """Return the head of a value from its symbol's relative head, computed in the type of ``relative``: the inverse of
    :func:`symbol_of_head`, modulo the head's width as that is.

    Args:
        relative: Relative head of the symbol, unsigned.
        reference: Head that relative heads are counted from.
        head_mask: Lowest bits, as many as the head has.
    """
    return wrap(wrap(relative + wrap(reference, relative), relative) & wrap(head_mask, relative), relative)


@kernel
def value_of_symbol(symbol, head, tail, width, tail_bits):
    """Return a value from its head and tail by :func:`value_of`, but 0 where the symbol is 0, whatever these are.

    Loops that branch on the symbol, because zeros own no items that could be read, call :func:`value_of` in the branch.
    """
    value = value_of(head, tail, width, tail_bits)
    return value if symbol else wrap(0, tail)


@kernel
def item_of(tail, shift, mask):
    """Return a plane's item of a tail of any width (docs/format.md section 4).

    tail      s mmmmm iiiiii mmmmm      ``shift`` bits below the item
    result            . iiiiii          as many as ``mask`` has, which is 0 where the value owns no item
    """
    return wrap(shift_right(tail, shift) & wrap(mask, tail), tail)


@kernel
def with_item(tail, item, shift):
    """Return a tail of any width, which is 0 there so far, with a plane's item ``shift`` bits above its lowest: the
    inverse of :func:`item_of`."""
    return wrap(tail | shift_left(wrap(item, tail), shift), tail)
