"""Split and merge several planes of at most 8 bits: ladders and fixed bits (docs/format.md sections 4 and 7).

    float32      s hhhhhhhh mmmmmmmmmmmmmmmmmmmmmmm
    tail                  s mmmmm mmmmmm mmmmmm ......     a level with items of planes 0, 1 and 2, of six bits each
    items                 |--0--| |--1-| |--2-|            which planes these are depends on the level

See :mod:`layouts` for the terms. Here is the path of CPUs without AVX-512, a sub-stream at a time and its planes one
after another; where there is AVX-512, groups of 64 values go through :mod:`narrow_avx512`, all planes together, and
:mod:`classes_shuffles` does float32 with SSSE3 where items lie within six bits. All of them share the packing below.
"""

from __future__ import annotations

from ..core.intrinsics import BY_CLASSES, HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U32, head_of_symbol, item_of, tail_of, value_of_symbol, with_item
from ..core.unaligned import subarray, width_of
from ..core.vector import compress_8, expand_8, look_up_64, look_up_some, pack_6, pack_64, unpack_6, unpack_64
from ..entropy.encode_streams import STREAM_PAD
from .layout_types import GROUP

if HAS_AVX512:
    from .narrow_avx512 import merge_groups, split_groups
if BY_CLASSES:
    from ..core.vector_shuffles import pack_3, unpack_3


@kernel
def find_marks(symbols, n, stream_len, mark_of, marks, n_shuffles):
    """Find the mark of every value: which planes it owns items of.

    Args:
        symbols: uint8, strided; 0 behind the last value up to a multiple of 64.
        n: Number of values.
        stream_len: Values per sub-stream.
        mark_of: uint8[256], marks by symbol.
        marks: uint8, laid out like ``symbols``, result.
        n_shuffles: All symbols are below 16 times that.
    """
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        for i in range(place, place + min(stream_len, n - s * stream_len), 64):
            look_up_some(mark_of, 0, symbols, i, marks, i, n_shuffles)


@kernel
def find_tails(values, start, count, words):
    """Find the tails of ``count`` values of 32 or 16 bits with 8 head bits, by :func:`scalar.tail_of`, in ``words``."""
    source = subarray(values, start, count)
    if width_of(values) == 32:
        for i in range(count):
            words[i] = tail_of(U32(source[i]), 32, 24)
    else:
        for i in range(count):
            words[i] = tail_of(U32(source[i]), 16, 8)


@kernel
def split_narrow(values, stream_len, tables, planes, scratch, out, at):
    """Write planes of at most 8 bits each; arguments and result as of :func:`layouts.split_planes`."""
    n, symbols, n_items, uniform = len(values), scratch.symbols, scratch.n_items, planes.uniform
    marks, words, item_bytes, items = (
        scratch.layout.marks,
        scratch.layout.words,
        scratch.layout.bytes,
        scratch.layout.items,
    )
    n_items[:] = 0
    if HAS_AVX512:
        split_groups(values, stream_len, tables, planes, scratch)
        for p in range(planes.n):
            at = pack_bytes(items[p], n_items[p], planes.widths[p], out, at)
        return at
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        for i in range(place, place + count, 64):
            look_up_64(tables.mark_of, 0, symbols, i, marks, i)
        find_tails(values, first, count, words)
        for p in range(planes.n):
            # tail          smmmmm iiiiii mmmmmm mmmmmm      iiiiii: item of plane p, ``right`` bits above the lowest
            # item_bytes        ?? iiiiii                    of every value, owned or not, and what lies above (?)
            # items         those of them that values own, one behind the other
            if uniform[p] >= 0:
                right = U32(uniform[p])
                for i in range(count):
                    item_bytes[i] = U8(item_of(U32(words[i]), right, 255))
            else:
                for i in range(0, count, 64):
                    look_up_64(tables.shift[p], 0, symbols, place + i, item_bytes, i)
                for i in range(count):
                    # In place: the shift of a value is replaced by its item.
                    item_bytes[i] = U8(item_of(U32(words[i]), item_bytes[i], 255))
            k = n_items[p]
            for i in range(0, count, 64):
                k += compress_8(item_bytes, i, marks, place + i, 1 << p, items[p], k)
            n_items[p] = k
    for p in range(planes.n):
        at = pack_bytes(items[p], n_items[p], planes.widths[p], out, at)
    return at


@kernel
def merge_narrow(data, at, stream_len, tables, planes, scratch, out):
    """Join heads and planes of at most 8 bits into values: the inverse of :func:`split_narrow`; arguments as of
    :func:`layouts.merge_planes`."""
    n, symbols, n_items, uniform = len(out), scratch.symbols, scratch.n_items, planes.uniform
    marks, words, item_bytes, items = (
        scratch.layout.marks,
        scratch.layout.words,
        scratch.layout.bytes,
        scratch.layout.items,
    )
    for p in range(planes.n):
        unpack_bytes(data, at, n_items[p], planes.widths[p], items[p])
        at += (n_items[p] * planes.widths[p] + 7) >> 3
    n_items[:] = 0
    if HAS_AVX512:
        merge_groups(stream_len, tables, planes, scratch, out)
        return
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        # ``words`` become tails: items, expanded to the values that own them and 0 elsewhere, shifted left and joined.
        for i in range(count):
            words[i] = 0
        for p in range(planes.n):
            k = n_items[p]
            for i in range(0, count, 64):
                k += expand_8(items[p], k, marks, place + i, 1 << p, item_bytes, i)
            n_items[p] = k
            if uniform[p] >= 0:
                left = U32(uniform[p])
                for i in range(count):
                    words[i] = with_item(words[i], item_bytes[i], left)
            else:
                # The second half of the scratch: the first has this plane's items.
                shifts = subarray(item_bytes, stream_len + GROUP, stream_len + GROUP)
                for i in range(0, count, 64):
                    look_up_64(tables.shift[p], 0, symbols, place + i, shifts, i)
                for i in range(count):
                    words[i] = with_item(words[i], item_bytes[i], shifts[i])
        for i in range(0, count, 64):
            look_up_64(tables.narrow_head_of, 0, symbols, place + i, item_bytes, i)
        base = U32(scratch.bases[s])
        row, result = subarray(symbols, place, count), subarray(out, first, count)
        # The value of zeros, too, and then the choice: LLVM makes no vectors of loops with loads in a branch.
        if width_of(out) == 32:
            for i in range(count):
                head = head_of_symbol(U32(item_bytes[i]), base, 255)
                result[i] = value_of_symbol(row[i], head, U32(words[i]), 32, 24)
        else:
            for i in range(count):
                head = head_of_symbol(U32(item_bytes[i]), base, 255)
                result[i] = value_of_symbol(row[i], head, U32(words[i]), 16, 8)


@kernel
def pack_bytes(items, n, width, out, at):
    """Pack items, a byte each, into a plane: a packed array (docs/format.md section 1).

        items     ??aaaaaa ??bbbbbb ??cccccc ??dddddd      bytes, first on the left
        out       bbaaaaaa ccccbbbb ddddddcc               each byte's lowest bit on the right; width 6

    Args:
        items: uint8[n + 64]; the last 64 become 0; what is above an item in its byte is cut off.
        width: Bits of an item, 1 ... 8.
        out: uint8, result, with 72 bytes of margin.
        at: Byte at which the plane begins.

    Returns:
        The byte behind the plane.
    """
    # So that spare bits of the last byte are zero (docs/format.md section 1), and what packing writes behind it, too.
    for k in range(n, n + 64):
        items[k] = 0
    for i in range(0, n, 64):
        # 64 items of w bits are 8 * w bytes: each group begins at a byte of its own, whatever the width, and needs
        # nothing of the one before. The last group is packed as a whole; its surplus goes to the margin or is
        # overwritten.
        if width == 6:
            pack_6(items, i, out, at + (i >> 3) * 6)
        elif BY_CLASSES and width == 3:
            pack_3(items, i, out, at + (i >> 3) * 3)
        else:
            pack_64(items, i, width, out, at + (i >> 3) * width)
    return at + (n * width + 7) // 8


@kernel
def unpack_bytes(data, at, n, width, items):
    """Unpack a plane into items, a byte each with zeros above: the inverse of :func:`pack_bytes`.

    Args:
        data: uint8, readable 72 bytes past the plane.
        at: Byte at which the plane begins.
        width: Bits of an item, 1 ... 8.
        items: uint8[n + 64], result.
    """
    for i in range(0, n, 64):
        if width == 6:
            unpack_6(data, at + (i >> 3) * 6, items, i)
        elif BY_CLASSES and width == 3:
            unpack_3(data, at + (i >> 3) * 3, items, i)
        else:
            unpack_64(data, at + (i >> 3) * width, width, items, i)
