"""Classes of symbols: runs of those whose values own the same items, which is one for each level, and one for zero.

What is looked up by symbol elsewhere is looked up by class here, in 16 bytes, which takes no more than SSSE3. Tails of
24 bits are seen as four **digits** of six bits, the uppermost first: items of ladders in steps of three or six bits
lie within one of them.

Tables are rows of 16 bytes in one array of :data:`TABLE_BYTES`:

``tables[STARTS + k]``                   the first symbol of class k + 1, as a signed number and less 1
``tables[HEADS + k]``                    what is added to a symbol of class k to get its relative head
``tables[OWNERS + 16 * p + k]``          128 where class k owns an item of plane p, else 0
``tables[PARTS + 64 * p + 16 * q + k]``  255 where this item is a part of digit q, else 0
``tables[DIGIT + p]``                    the digit of which plane p has the lowest bits, whatever the class; NO_DIGIT
                                         where there is none
``tables[LEFT + p]``                     how far left in its digit an item of plane p lies
``tables[NUMBER]``                       of classes
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .scalar import U8

STARTS, HEADS, OWNERS, PARTS, DIGIT, LEFT, NUMBER, TABLE_BYTES = 0, 16, 32, 160, 672, 688, 704, 720
NO_DIGIT, MOST = 4, 16


@kernel
def _add_class(k, symbol, mark, shift, widths, n_planes, heads, tables):
    """Class ``k``, which begins with this symbol. Returns whether all its items are parts of digits."""
    if k:
        tables[STARTS + k - 1] = U8((symbol - 1) ^ 128)
    if heads is not None:
        tables[HEADS + k] = U8(heads[symbol] - symbol)
    for p in range(n_planes):
        if (mark >> p) & 1:
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
    """Digits of planes, no two of which have the same."""
    taken = 0
    for p in range(n_planes):
        digit = 3 - uniform[p] // 6
        tables[DIGIT + p] = NO_DIGIT
        if uniform[p] >= 0 and uniform[p] % 6 == 0 and not (taken >> digit) & 1:
            tables[DIGIT + p] = digit
            taken |= 1 << digit


@kernel
def find_classes(mark_of, shift, heads, widths, uniform, n_planes, tables):
    """Fill ``tables`` (uint8[TABLE_BYTES]) from a codebook's. ``heads``: uint8[256], relative heads, or None to encode.
    Returns the number of classes, 0 where there are too many or an item is not a part of a digit."""
    for i in range(TABLE_BYTES):
        tables[i] = U8(0)
    for p in range(n_planes):
        tables[LEFT + p] = U8(255)
    k, last = 0, 0
    for symbol in range(256):
        mark = np.int64(mark_of[symbol])
        if symbol == 0 or mark != last:
            if k == MOST or not _add_class(k, symbol, mark, shift, widths, n_planes, heads, tables):
                tables[NUMBER] = U8(0)
                return 0
            k, last = k + 1, mark
    _find_digits(uniform, n_planes, tables)
    tables[NUMBER] = U8(k)
    return k
