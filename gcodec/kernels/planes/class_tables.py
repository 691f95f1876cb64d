"""Classes of symbols: runs of those whose values own the same items, which is one for each level, and one for zero.

What is looked up by symbol elsewhere is looked up by class here, in 16 bytes, which takes no more than SSSE3. Tails of
24 bits are seen as four **digits** of six bits, the uppermost first: items of ladders in steps of three or six bits
lie within one of them.

Tables are rows of 16 bytes in one array of :data:`TABLE_BYTES`:

``tables[HEADS + k]``                    what is added to a symbol of class k to get its relative head
``tables[OWNERS + 16 * p + k]``          128 where class k owns an item of plane p, else 0
``tables[PARTS + 64 * p + 16 * q + k]``  255 where this item is a part of digit q, else 0
``tables[STARTS + 16 * k ...]``          the first symbol of class k + 1, less 1 and as a signed number, 16 times
``tables[DIGIT + p]``                    the digit of which plane p has the lowest bits, whatever the class; NO_DIGIT
                                         where there is none
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
TABLE_BYTES = 944
CLASS_BYTES = TABLE_BYTES + 256  #: scratch of :mod:`classes_ssse3`: tables, and 64 values
NO_DIGIT, MOST = 4, 16


@kernel
def _add_class(k, symbol, mark, shift, widths, n_planes, heads, tables):
    """Class ``k``, which begins with this symbol. Returns whether all its items are parts of digits."""
    if k:
        for i in range(16):
            tables[STARTS + 16 * (k - 1) + i] = U8((symbol - 1) ^ 128)
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
    taken, last = 0, -1
    for p in range(n_planes):
        digit = 3 - uniform[p] // 6
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
    for p in range(n_planes):
        if tables[LEFT + p] == 255:
            tables[LEFT + p] = U8(0)
    _find_digits(uniform, n_planes, tables)
    tables[NUMBER] = U8(k)
    return k
