"""Length-limited canonical prefix codes: lengths from counts, and the tables that encode and decode with them."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import ESCAPE as ESCAPE
from ..core.scalar import U32, U64
from ..core.unaligned import subarray

MAX_LENGTH = 12  #: longest code of the format, bits
TABLE_SIZE = 1 << MAX_LENGTH
MOST = 6  #: symbols of an entry of the table to decode with, at most
NO_CODE = 64  #: length stored for a symbol without a code: more than the encoder appends at once


@kernel
def _sort_by_count(counts, order, lengths):
    """Find the symbols that are counted, by (count, index), in ``order``, and set all lengths to 0; return how many
    they are. Arguments as of :func:`package_merge`."""
    # Sort by insertion: there are at most 256 symbols. Where a and b are sorted, and c, which is less, comes in:
    #
    #     order      a b .        b moves up, and so does a, as long as they count more than c
    #     then       c a b
    n = 0
    for i in range(len(counts)):
        lengths[i] = 0
        if counts[i]:
            place = n
            while place > 0 and counts[order[place - 1]] > counts[i]:
                order[place] = order[place - 1]
                place -= 1
            order[place] = i
            n += 1
    return n


@kernel
def package_merge(counts, limit, order, weight, is_leaf, n_items, lengths):
    """Find optimal code lengths for symbols of given counts (Larmore and Hirschberg 1990).

    Each level is a sorted list of the symbols (leaves) and of the pairs of the level before (packages). The 2 n - 2
    first items of the last level are taken; a package that is taken takes its two items of the level before:

        counts    a 1, b 2, c 4
        level 0   a 1, b 2, c 4                  pairs: ab 3
        level 1   a 1, b 2, ab 3, c 4            taken: all four, and with ab the items a and b of level 0
        length    a 2, b 2, c 1                  how often a symbol's leaf is taken

    Among equal weights a leaf precedes a package, and leaves go by (count, index): the result is a pure function of the
    counts.

    Args:
        counts: Integers[n], none negative.
        limit: Max bits of a code.
        order: int64[n], scratch: the symbols by count.
        weight: uint64[2, 2n], scratch: of the items of this level and of the one before.
        is_leaf: uint8[limit, 2n], scratch: 1 where an item is a leaf.
        n_items: int64[limit], scratch.
        lengths: uint8[n], result, 0 where the count is 0.

    Returns:
        The number of counts that are not 0; where it is not in 2 ... 2**limit there is no result.
    """
    n = _sort_by_count(counts, order, lengths)
    if n < 2 or n > 1 << limit:
        return n
    # Level k is a merge of two sorted lists, the symbols and the pairs of level k - 1. Levels are as many as a code may
    # have bits, so no symbol can be counted more often than that. Only two levels' weights are kept; of the others,
    # what the way back needs is whether an item is a leaf.
    n_previous = 0
    for level in range(limit):
        now, before = level & 1, (level + 1) & 1
        leaf, package, item = 0, 0, 0
        while leaf < n or 2 * package + 1 < n_previous:
            take_leaf = leaf < n
            count, pair = U64(0), U64(0)
            if take_leaf:
                count = U64(counts[order[leaf]])
            if 2 * package + 1 < n_previous:
                pair = U64(weight[before, 2 * package] + weight[before, 2 * package + 1])
                take_leaf = take_leaf and count <= pair
            if take_leaf:
                weight[now, item] = count
                leaf += 1
            else:
                weight[now, item] = pair
                package += 1
            is_leaf[level, item] = take_leaf
            item += 1
        n_items[level] = item
        n_previous = item
    # Items taken of a level are its first ones: so many leaves, in order, and the packages between them.
    take = 2 * n - 2
    for level in range(limit - 1, -1, -1):
        #     level    L L P L P        is_leaf 1 1 0 1 0; take = 5: three leaves, two packages
        #     below    take = 4         both packages' items, which are the first four there, as packages are sorted
        n_leaves = 0
        for item in range(take):
            n_leaves += is_leaf[level, item]
        for i in range(n_leaves):
            lengths[order[i]] += 1
        take = 2 * (take - n_leaves)
    return n


@kernel
def huffman(counts, order, weight, parent, lengths):
    """Find Huffman's code lengths, which nothing limits; ties go to the lower symbol, and to symbols before pairs.

    The two least of all symbols and pairs become a pair, until one is left. Pairs are made in rising order, so that the
    least is always the first of the symbols or the first of the pairs that are in no pair yet:

        counts    a 1, b 1, c 3            pairs: ab 2, abc 5
        parents   a ab, b ab, c abc, ab abc
        length    a 2, b 2, c 1            how many parents are above

    Args:
        counts: int64[n], none negative.
        order: int64[n], scratch: the symbols by count.
        weight: int64[2n], scratch: of symbols by count, and of pairs behind them.
        parent: int64[2n], scratch: the pair that each is in.
        lengths: int64[n], result, 0 where the count is 0; 1 of a symbol that is the only one.
    """
    n = _sort_by_count(counts, order, lengths)
    for k in range(n):
        weight[k] = counts[order[k]]
    #     weight      [0 ... n)  symbols, rising     [n ... 2n - 1)  pairs, rising, as they are made
    #                  ^ leaf                         ^ pair      ^ k: the next one
    leaf, pair = 0, n
    for k in range(n, 2 * n - 1):
        weight[k] = 0
        for _ in range(2):
            if leaf < n and (pair >= k or weight[leaf] <= weight[pair]):
                weight[k] += weight[leaf]
                parent[leaf] = k
                leaf += 1
            else:
                weight[k] += weight[pair]
                parent[pair] = k
                pair += 1
    # Parents come behind what is in them, so that their depth, which takes the place of their weight, is known first.
    if n:
        weight[2 * n - 2] = 0
    for k in range(2 * n - 3, -1, -1):
        weight[k] = weight[parent[k]] + 1
    for k in range(n):
        lengths[order[k]] = max(weight[k], 1)


@kernel
def canonical_codes(lengths, n_symbols, following, codes):
    """Find canonical codes, bit-reversed so that the first bit is the lowest (docs/format.md section 5).

        lengths    a 1, b 3, c 3, d 2        codes by (length, symbol): a 0, d 10, b 110, c 111
        reversed                                                        a 0, d 01, b 011, c 111

    Args:
        lengths: uint8[256], 0 for no code.
        n_symbols: Symbols besides zero and the escape: no code has a higher number than this, but the escape.
        following: uint32[MAX_LENGTH + 1], scratch: the next code of each length.
        codes: uint32[256], result, where there is a code.

    Returns:
        The Kraft sum in units of 2**-12.
    """
    for length in range(MAX_LENGTH + 1):
        following[length] = U32(0)
    for k in range(n_symbols + 2):
        length = lengths[k if k <= n_symbols else ESCAPE]
        if length <= MAX_LENGTH:
            following[length] += U32(1)
    # Two uses of `following`: how many codes of each length there are becomes the first code of that length. As in
    # Deflate: the first code of a length is the one after the last of the length before, with a 0 behind it.
    code, kraft = 0, 0
    for length in range(1, MAX_LENGTH + 1):
        number = np.int64(following[length])
        code <<= 1
        following[length] = U32(code)
        code += number
        kraft += number << (MAX_LENGTH - length)
    for k in range(n_symbols + 2):
        symbol = k if k <= n_symbols else ESCAPE
        length = np.int64(lengths[symbol])
        if 0 < length <= MAX_LENGTH:
            #     code          0000000000000110      110 of 3 bits, first bit highest, as it is counted
            #     reversed      0110000000000000
            #     >> 13         0000000000000011      011: first bit lowest, as it is written
            codes[symbol] = _reversed(following[length]) >> U32(16 - length)
            following[length] += U32(1)
    return kraft


@kernel
def _reversed(code):
    """Return 16 bits in the opposite order: neighbors are swapped, then pairs, then halves of bytes, then bytes."""
    code = U32(((code >> U32(1)) & U32(0x5555)) | ((code & U32(0x5555)) << U32(1)))
    code = U32(((code >> U32(2)) & U32(0x3333)) | ((code & U32(0x3333)) << U32(2)))
    code = U32(((code >> U32(4)) & U32(0x0F0F)) | ((code & U32(0x0F0F)) << U32(4)))
    return U32((code >> U32(8)) & U32(0xFF)) | U32((code & U32(0xFF)) << U32(8))


@kernel
def encode_table(lengths, codes, table):
    """Fill the table to encode with, uint32[256]: ``code << 8 | length`` of each symbol; the escape and symbols without
    a code get length NO_CODE."""
    for symbol in range(256):
        length = lengths[symbol]
        if length == 0 or symbol == ESCAPE:
            table[symbol] = U32(NO_CODE)
        else:
            table[symbol] = U32((codes[symbol] << U32(8)) | U32(length))


@kernel
def decode_table(lengths, n_symbols, codes, scratch, most, table):
    """Fill the table to decode with: by the next 12 bits, up to six symbols at once. Fewer are slower to decode, but
    quicker to fill in.

        byte     7        6      5   4   3   2   1   0
        entry    number | bits | f | e | d | c | b | a      the number is 0 where the bits start with the escape

    Args:
        lengths: uint8[256], 0 for no code.
        n_symbols: As of :func:`canonical_codes`.
        codes: uint32[256] of :func:`canonical_codes`.
        scratch: uint64[4096].
        most: Symbols of an entry at most, 1 to MOST.
        table: uint64[4096], result.
    """
    if most == 1:
        _single_symbols(lengths, n_symbols, codes, table)
        return
    # Tables of windows of 0 bits, of 1 bit and so on, up to 12, each made of those of fewer bits: what follows a code
    # has the entry of the bits that are left. A code that would reach beyond these is not known, and the entry 0, as
    # the escape's is. Of 3 bits, with codes a 0, b 01, c 11, first bit lowest:
    #     window    000   001   010   011   100   101   110   111
    #     entry     aaa   ba    ab    ca    aa    b     ac    c        after the first, the entry of the bits left
    scratch[1] = U64(0)  # the table of n bits begins at 1 << n
    for n_bits in range(1, MAX_LENGTH + 1):
        target = subarray(table, 0, TABLE_SIZE) if n_bits == MAX_LENGTH else subarray(scratch, 1 << n_bits, 1 << n_bits)
        for window in range(1 << n_bits):
            target[window] = U64(0)
        for symbol in range(n_symbols + 1):
            length = np.int64(lengths[symbol])
            if length == 0 or length > n_bits:
                continue
            n_left = np.int64(1) << n_bits - length
            left, first = subarray(scratch, n_left, n_left), np.int64(codes[symbol])
            for k in range(n_left):
                entry = left[k]
                if entry >> U64(56) == U64(most):  # one symbol less, whose place the first one takes
                    last = U64(lengths[np.int64(entry >> U64(8 * (most - 1))) & 255])
                    entry = (entry & ~(U64(255) << U64(8 * (most - 1)))) - (last << U64(48)) - (U64(1) << U64(56))
                # The two highest bytes, together: one symbol more, and as many bits as its code has.
                n_and_bits = (entry >> U64(48)) + U64(1 << 8 | length)
                target[first | k << length] = (
                    U64(symbol) | (entry & U64((1 << 40) - 1)) << U64(8) | n_and_bits << U64(48)
                )


@kernel
def _single_symbols(lengths, n_symbols, codes, table):
    """Fill the table to decode with one symbol in each entry; arguments as of :func:`decode_table`."""
    # A code of so many bits is the beginning of every window whose lowest bits it is. So the table is doubled, bit by
    # bit, and codes of as many bits are put in where they are whole:
    #     codes                 a 0, b 01, c 11           first bit lowest
    #     windows of 1 bit      a -
    #     windows of 2 bits     a - a -, then a b a c     0, 1, 2, 3
    # The code of all symbols is complete (the caller has checked its Kraft sum), so together they fill the table:
    # nothing is left of what it held before.
    for length in range(1, MAX_LENGTH + 1):
        half = 1 << length - 1
        source, target = subarray(table, 0, half), subarray(table, half, half)
        for window in range(half):
            target[window] = source[window]
        for k in range(n_symbols + 2):
            symbol = k if k <= n_symbols else ESCAPE
            if lengths[symbol] == length:
                entry = U64(symbol) | (U64(length) << U64(48)) | (U64(1) << U64(56)) if symbol != ESCAPE else U64(0)
                table[codes[symbol]] = entry
