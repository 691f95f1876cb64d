"""Changes of sparse blocks as bits and back: gaps, steps, and the tables of their codes (docs/format.md section 9).

    change     code of class c | bits of the gap | code of the step | bits of the step
                 3 * g + k                         only where k is OTHER

The category g of a number is twice the place of its highest bit, plus the bit below that; the other bits follow. So a
category is half an octave:

    number     0  1  2  3  4 5  6 7  8 ... 11  12 ... 15  16 ... 23
    category   0  1  2  3   4    5      6          7          8
    bits       0  0  0  0   1    1      2          2          3
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import inlined, kernel
from ..core.masks import highest_one
from ..core.scalar import U16, U32, U64, lesser, wrap
from ..core.unaligned import load_u64, store_u32
from .prefix_code import TABLE_SIZE

MAX_CATEGORIES = 41  #: of numbers up to the values of the longest block
MAX_CLASSES = 16
UP, DOWN, OTHER = 0, 1, 2  #: what a symbol says of the step: +1, -1, or that it follows
NO_STEP = 3  #: in a table of gaps or counts alone
STEP_OF_KIND = np.array([1, (1 << 64) - 1, 0, 1], np.uint64)  #: modulo 2**64; of ``NO_STEP`` any but 0
CODE_MASK = 0xFFF
SHORT_GAPS = 64  #: gaps below are written by a table
_MAX_STEP_BITS = 32  #: that are read or written at a time


class ChangeTables(NamedTuple):
    """The tables of a codebook of changes to decode with.

    Attributes:
        classes: uint32[n_classes * 4096], by class and the next 12 bits: length of the code, 0 of none (bits 0 to 3),
            how many bits of the gap follow (4 to 8), ``UP``, ``DOWN``, ``OTHER`` or ``NO_STEP`` (9 and 10), the
            category's first gap (from 11 on).
        steps: uint16[4096], likewise: length of the code (bits 0 to 3) and symbol (from 4 on).
        counts: uint32[4096], as ``classes``.
        is_empty: bool[n_classes], the code of a class has no symbols.
    """

    classes: np.ndarray
    steps: np.ndarray
    counts: np.ndarray
    is_empty: np.ndarray


class ChangeCodes(NamedTuple):
    """The codes of a codebook of changes to encode with.

    Attributes:
        classes: uint32[n_classes, n_symbols], the code (from bit 4 on) and its length (bits 0 to 3), 0 of none.
        steps: uint32[2 * W + 1], likewise.
        counts: uint32[41], likewise.
        n_kinds: 3, or 1 where symbols are gaps alone.
        is_empty: bool[n_classes], the code of a class has no symbols.
    """

    classes: np.ndarray
    steps: np.ndarray
    counts: np.ndarray
    n_kinds: int
    is_empty: np.ndarray


@kernel
def category_bits(category):
    """Return how many bits follow a category."""
    return max((category >> 1) - 1, 0)


@kernel
def first_of(category):
    """Return the smallest number of a category."""
    return category if category < 2 else (2 + (category & 1)) << ((category >> 1) - 1)


@kernel
def category_of(number):
    """Return the category of a gap or of another number below 2**21."""
    #     number      0 0 1 b x x x       place = 4: bits below are read as they are, all but b
    #     category    2 * 4 + b
    #
    # The same of 0 and 1, which are categories of their own, has place 0, and the number itself for b. There is no
    # branch on them: where much differs, they come at random.
    place = highest_one(U64(number) | U64(1))
    return 2 * place + ((number >> max(place - 1, 0)) & 1)


@kernel
def step_symbol(step):
    """Return the symbol of a step, modulo 2**W, an unsigned integer of W bits."""
    if step == 0:
        return 0
    negative = wrap(U64(0) - U64(step), step)
    # Which sign it has is as good as random, so there is no branch on it.
    # Of a step and its negative, both modulo 2**W, the lesser is the magnitude: the other is at least 2**(W - 1). That
    # number is its own negative, and counts as positive.
    #
    #     step        +1  -1  +2  -2  +3  -3  +4 ...
    #     length l     1   1   2   2   2   2   3         place of the highest bit of the magnitude, and 1
    #     symbol       1   2   3   4   3   4   5         2 l - 1 or 2 l
    return 2 * (highest_one(U64(lesser(step, negative))) + 1) - np.int64(step <= negative)


@kernel
def step_kind(symbol):
    """Return ``UP`` or ``DOWN`` for the symbol of such a step, else ``OTHER``."""
    # Symbols 1 and 2 give UP and DOWN. Symbol 0 becomes 2**64 - 1, so that the minimum makes OTHER of it, as of all
    # that are larger.
    return np.int64(min(U64(symbol - 1), U64(OTHER)))


@kernel
def ordered(bits, sign_bit):
    """Return o(v) of docs/format.md section 8 in the type of ``bits``; it is its own inverse.

        value      ... -1.0 ... -0 | 0 ... 1.0 ...        as real numbers
        ordered    ...      ... -1 | 0 ...                in two's complement

    Args:
        bits: v, an unsigned integer of W bits.
        sign_bit: 2**(W - 1), of the same type.
    """
    return bits if bits < sign_bit else wrap(U64(U64(sign_bit) - U64(1)) - U64(bits - sign_bit) + U64(sign_bit), bits)


@kernel
def fill_class_table(lengths, codes, n_kinds, table):
    """Fill a class's row of :attr:`ChangeTables.classes`; return whether any symbol has a code.

    Args:
        lengths: uint8[n_symbols], bits of each symbol's code; 0: none.
        codes: uint32[n_symbols], the codes, first bit lowest.
        n_kinds: 3, or 1 where symbols are gaps alone.
        table: uint32[4096], result.
    """
    any_code = False
    table[:] = U32(0)
    for symbol in range(len(lengths)):
        length = np.int64(lengths[symbol])
        if length:
            any_code = True
            category = symbol // n_kinds
            kind = symbol % n_kinds if n_kinds > 1 else NO_STEP
            #     bit      31 ......... 11   10 9   8 ... 4   3 ... 0
            #     entry    first number      kind   bits      length       of category 40: 2**20 in the uppermost bit
            #
            # A symbol with a code has a length, so an entry of 0 says that there is none: only where the code is empty,
            # for any other is complete.
            entry = U32(length | category_bits(category) << 4 | kind << 9 | first_of(category) << 11)
            for place in range(np.int64(codes[symbol]), TABLE_SIZE, 1 << length):
                table[place] = entry
    return any_code


@kernel
def fill_step_table(lengths, codes, table):
    """Fill :attr:`ChangeTables.steps`; arguments as for :func:`fill_class_table`, ``table``: uint16[4096]."""
    table[:] = U16(0)
    for symbol in range(len(lengths)):
        length = np.int64(lengths[symbol])
        if length:
            for place in range(np.int64(codes[symbol]), TABLE_SIZE, 1 << length):
                table[place] = U16(length | symbol << 4)


@kernel
def read_bits(data, bit, count):
    """Return the next ``count`` bits, at most 57, as a uint64."""
    return U64((load_u64(data, bit >> 3) >> U64(bit & 7)) & U64(U64(U64(1) << U64(count)) - U64(1)))


@kernel
def read_step(data, bit, table):
    """Read a step that is neither +1 nor -1.

    Returns:
        (step modulo 2**64 as uint64, the bit behind it); -1 for the bit where there is no such code.
    """
    entry = np.int64(table[read_bits(data, bit, 12)])
    if entry == 0:
        return U64(0), -1
    bit += entry & 15
    symbol = entry >> 4
    if symbol == 0:
        return U64(0), bit
    count = ((symbol + 1) >> 1) - 1
    # Of float64 up to 63 bits follow, more than the 57 that a window is sure to hold: they are read in two parts, the
    # second of which has no bits as a rule.
    low = min(count, _MAX_STEP_BITS)
    magnitude = U64(read_bits(data, bit, low) | U64(read_bits(data, bit + low, count - low) << U64(low)))
    magnitude = U64(magnitude | U64(U64(1) << U64(count)))
    return magnitude if symbol & 1 else U64(U64(0) - magnitude), bit + count


@inlined
def read_number(data, bit, table):
    """Read a number.

    Args:
        data: uint8, the frame.
        bit: Where the number begins.
        table: uint32[4096], a row of :attr:`ChangeTables.classes` or the like.

    Returns:
        (number, what else the entry of its symbol says, the bit behind it); -1 for the bit where there is no such code.
    """
    #     window      ... next | bits of the number | code        at most 19 + 12 of 57 bits: one load does
    window = U64(load_u64(data, bit >> 3) >> U64(bit & 7))
    entry = np.int64(table[window & U64(CODE_MASK)])
    length, count = entry & 15, (entry >> 4) & 31
    number = (entry >> 11) + np.int64(U64(window >> U64(length)) & U64(U64(U64(1) << U64(count)) - U64(1)))
    return number, (entry >> 9) & 3, bit + length + count if length else -1


@inlined
def append(waiting, n_waiting, at, number, count, out):
    """Append ``count`` bits, at most 32, of ``number`` to bits that wait, and write a word of them where there is one.

    These steps are inlined, so that what they hand on stays in registers.

    Args:
        waiting: uint64, the bits that are not written yet.
        n_waiting: How many they are, below 32.
        at: Byte of ``out`` where they go.
        number: Unsigned, below 2**count.
        out: uint8, with 8 bytes of margin.

    Returns:
        (waiting, n_waiting, at) afterwards.
    """
    #     waiting               wwwww        n_waiting = 5, at most 31
    #     joined      nnnnnnnnnnwwwww        at most 63 bits: nothing is lost
    #
    # The lower 32 bits are stored whether or not they are all there yet, over and over at the same place until they
    # are, instead of a branch that depends on the lengths of codes.
    joined = U64(waiting | U64(U64(number) << U64(n_waiting)))
    n_joined = n_waiting + count
    store_u32(out, at, U32(joined & U64(0xFFFFFFFF)))
    is_full = n_joined >= 32
    return (U64(joined >> U64(32)) if is_full else joined), n_joined & 31, at + (4 if is_full else 0)


@kernel
def finish_bits(waiting, n_waiting, at, out):
    """Write the bits that :func:`append` left, and return the byte behind them."""
    store_u32(out, at, U32(waiting & U64(0xFFFFFFFF)))
    return at + ((n_waiting + 7) >> 3)


@inlined
def write_number(waiting, n_waiting, at, number, category, entry, out):
    """Append a number of a category, of whose symbol ``entry`` is the code; otherwise as :func:`append`."""
    length, count = np.int64(entry & U32(15)), category_bits(category)
    # The category says how large the number is, so its highest bit and the one below need not be written:
    #
    #     number      1 b r r r       bits      r r r | code        at most 19 + 12 = 31
    rest = U64(U64(number) & U64(U64(U64(1) << U64(count)) - U64(1)))
    bits = U64(U64(entry >> U32(4)) | U64(rest << U64(length)))
    return append(waiting, n_waiting, at, bits, length + count, out)


@kernel
def fill_short_gaps(codes, table):
    """Write what stands for each short gap of a change without a step, for :func:`write_gaps`.

    Args:
        codes: uint32[n_symbols], the codes of categories, as :attr:`ChangeCodes.classes` has them.
        table: uint64[SHORT_GAPS], result: how many bits (bits 0 to 7), and these (from 8 on).
    """
    for gap in range(len(table)):
        category = category_of(np.int64(gap))
        entry = codes[category] if category < len(codes) else U32(0)  # one without a code is not met
        length, count = np.int64(entry & U32(15)), category_bits(category)
        rest = U64(U64(gap) & U64(U64(U64(1) << U64(count)) - U64(1)))
        bits = U64(U64(entry >> U32(4)) | U64(rest << U64(length)))
        table[gap] = U64(U64(bits << U64(8)) | U64(length + count))


@inlined
def write_gaps(waiting, n_waiting, at, gaps, first, stop, codes, out):
    """Append the changes ``first ... stop - 1`` of ``gaps``, which have no steps; otherwise as :func:`append`.
    ``codes`` are those and the table of :func:`fill_short_gaps`."""
    (of_categories, table), i = codes, first
    while i < stop:
        gap, following = gaps[i], gaps[i + 1] if i + 1 < stop else U32(SHORT_GAPS)
        if (gap | following) < U32(SHORT_GAPS):  # two at a time, of at most 12 + 4 bits each
            entry, other = table[gap], table[following]
            length, other_length = np.int64(entry & U64(255)), np.int64(other & U64(255))
            bits = U64(U64(entry >> U64(8)) | U64(U64(other >> U64(8)) << U64(length)))
            waiting, n_waiting, at = append(waiting, n_waiting, at, bits, length + other_length, out)
            i += 2
        else:
            category = category_of(np.int64(gap))
            waiting, n_waiting, at = write_number(
                waiting, n_waiting, at, np.int64(gap), category, of_categories[category], out
            )  # fmt: skip
            i += 1
    return waiting, n_waiting, at


@inlined
def write_step(waiting, n_waiting, at, symbol, step, entry, out):
    """Append a step, of whose symbol ``entry`` is the code; otherwise as :func:`append`.

    Args:
        symbol: As :func:`step_symbol` gives it, not that of +1 or -1.
        step: Modulo 2**W, an unsigned integer of W bits.
    """
    waiting, n_waiting, at = append(waiting, n_waiting, at, entry >> U32(4), np.int64(entry & U32(15)), out)
    count = max(((symbol + 1) >> 1) - 1, 0)
    magnitude = U64(step) if symbol & 1 else U64(wrap(U64(0) - U64(step), step))
    rest = U64(magnitude & U64(U64(U64(1) << U64(count)) - U64(1)))
    low = min(count, _MAX_STEP_BITS)
    waiting, n_waiting, at = append(
        waiting, n_waiting, at, rest & U64(U64(U64(1) << U64(low)) - U64(1)), low, out
    )  # fmt: skip
    return append(waiting, n_waiting, at, rest >> U64(low), count - low, out)
