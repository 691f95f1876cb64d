"""Tables by class of symbols, for planes of float32 on CPUs with SSSE3 but not AVX-512.

A **class** is a run of symbols whose values own the same items (docs/format.md sections 4 and 5): zero, the symbols of
each level, and all behind these, up to the escape, which owns what level 0 owns. What AVX-512 looks up by symbol, in
256 bytes, is looked up by class here, in 16 bytes, which is one shuffle of SSSE3.

The tail of 24 bits is seen as four **digits** of six bits:

    tail     s mmmmm   mmmmmm   mmmmmm   mmmmmm
    digit    0         1        2        3

Items of ladders in steps of three or six bits lie within one digit. Tables are rows of 16 bytes in one array of
:data:`TABLE_BYTES`, by class k, plane p and digit q:

``tables[HEADS + k]``                    what is added to a symbol of class k to get its relative head, modulo 256
``tables[OWNERS + 16 * p + k]``          128 where class k owns an item of plane p, else 0
``tables[PARTS + 64 * p + 16 * q + k]``  255 where this item is a part of digit q, else 0
``tables[STARTS + 16 * k ...]``          16 times the last symbol of class k, with the topmost bit inverted, so that
                                         signed comparisons, the only ones that SSE has, order symbols as unsigned
``tables[DIGIT + p]``                    the digit of which plane p has the lowest bits, whatever the class; NO_DIGIT
                                         where there is none
``tables[PART_OF + p]``                  the digit of which plane p has a part, whatever the class, or NO_DIGIT
``tables[LEFT + p]``                     how far left in its digit an item of plane p lies
``tables[NUMBER]``                       how many classes there are
``tables[TAKEN]``                        bit q: digit q is a plane's; bit 4: there are planes without a digit
``tables[LAST]``                         the last plane without a digit, or 0
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U8

HEADS, OWNERS, PARTS, STARTS, DIGIT, LEFT, NUMBER, TAKEN, LAST = 0, 16, 144, 656, 896, 912, 928, 929, 930
PART_OF, TABLE_BYTES = 936, 944
CLASS_BYTES = TABLE_BYTES + 256  #: scratch of :mod:`classes_shuffles`: tables, and 64 values
NO_DIGIT, MAX_CLASSES = 4, 16


@kernel
def _add_class(k, symbol, mark, shift, widths, n_planes, heads, tables):
    """Fill in the tables of class ``k``, which begins with ``symbol``.

        digit          5 4 3 2 1 0
        item           . i i i . .       width 3, left 2; in the tail its lowest bit is 6 * (3 - digit) + left

    Args:
        k: Number of the class.
        symbol: Its first symbol.
        mark: Bit p: the class owns an item of plane p.
        shift: uint8[8, 256], by plane and symbol: the tail's bit at which the item begins.
        widths: int64[n_planes], bits of an item.
        heads: uint8[256], relative heads by symbol, or None to encode.
        tables: uint8[TABLE_BYTES], result.

    Returns:
        Whether each item lies within a digit, as far left in it as those of the plane's other classes.
    """
    # Classes are found by how many of them end before a symbol (class_steps_shuffles.classes_64): for each but the
    # last, its last symbol, in all 16 bytes, so that it is loaded as a vector. `^ 128` maps 0 ... 255 to -128 ... 127
    # in order.
    if k:
        for i in range(16):
            tables[STARTS + 16 * (k - 1) + i] = U8((symbol - 1) ^ 128)
    if heads is not None:
        # Relative heads of a level rise by 1 as its symbols do (docs/format.md section 5), so one difference does for
        # all.
        tables[HEADS + k] = U8(heads[symbol] - symbol)
    for p in range(n_planes):
        if (mark >> p) & 1:
            #     tail bit      23 ... 18   17 ... 12   11 ... 6   5 ... 0
            #     digit         0           1           2          3        3 - low // 6; low % 6 bits below the item
            low = np.int64(shift[p, symbol])
            digit, left = 3 - low // 6, low % 6
            if low >= 24 or left + widths[p] > 6 or (tables[LEFT + p] != 255 and tables[LEFT + p] != left):
                return False
            tables[LEFT + p] = U8(left)
            tables[OWNERS + 16 * p + k] = U8(128)
            tables[PARTS + 64 * p + 16 * digit + k] = U8(255)
    return True


@kernel
def _find_digits(uniform, n_planes, tables):
    """Find the planes whose items are the lowest bits of one digit in all classes, at most one plane for each digit.

    Items of these planes are moved to and from rows of digits directly; those of all other planes pass through a row of
    their own (:mod:`classes_shuffles`).

    Args:
        uniform: int64[8], the shift that a plane's items share in all classes, or -1.
        tables: ``DIGIT``, ``PART_OF``, ``TAKEN`` and ``LAST`` are results.
    """
    taken, last = 0, -1
    for p in range(n_planes):
        digit = 3 - uniform[p] // 6
        tables[PART_OF + p] = digit if uniform[p] >= 0 else NO_DIGIT
        if uniform[p] >= 0 and uniform[p] % 6 == 0 and not (taken >> digit) & 1:
            tables[DIGIT + p] = digit
            taken |= 1 << digit
        else:
            tables[DIGIT + p] = NO_DIGIT
            last = p
    tables[TAKEN] = U8(taken if last < 0 else taken | (1 << NO_DIGIT))
    tables[LAST] = U8(max(last, 0))


@kernel
def find_classes(mark_of, shift, heads, widths, uniform, n_planes, tables):
    """Fill the tables by class from those by symbol of a codebook.

    Args:
        mark_of: uint8[256], by symbol: bit p: its values own an item of plane p.
        shift: uint8[8, 256], by plane and symbol: the tail's bit at which the item begins.
        heads: uint8[256], relative heads by symbol, or None to encode.
        widths: int64[n_planes], bits of an item.
        uniform: int64[8], the shift that all items of a plane share, or -1.
        tables: uint8[TABLE_BYTES], result.

    Returns:
        The number of classes, 0 where there are more than MAX_CLASSES or an item is not a part of a digit: then planes
        are not of this kind.
    """
    for i in range(TABLE_BYTES):
        tables[i] = U8(0)
    for p in range(n_planes):
        tables[LEFT + p] = U8(255)
    # A class begins where the mark changes. Two levels in a row never have the same mark here: of float32 a level drops
    # at most 23 bits of 24, so levels with other drops keep other numbers of bits, and so other planes.
    k, last = 0, 0
    for symbol in range(256):
        mark = np.int64(mark_of[symbol])
        if symbol == 0 or mark != last:
            if k == MAX_CLASSES or not _add_class(k, symbol, mark, shift, widths, n_planes, heads, tables):
                tables[NUMBER] = U8(0)
                return 0
            k, last = k + 1, mark
    for p in range(n_planes):
        if tables[LEFT + p] == 255:
            tables[LEFT + p] = U8(0)
    _find_digits(uniform, n_planes, tables)
    tables[NUMBER] = U8(k)
    return k
