"""Indexed blocks (docs/format.md section 10): what surrounds their inner blocks is checked and written here, and their
indices become values. The indices themselves are coded and decoded as bytes, by the drivers of coded blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.intrinsics import HAS_AVX512
from ..core.jit import kernel
from ..core.masks import lowest_one, reaching
from ..core.scalar import I64, U8, U32, U64
from ..core.unaligned import bits_of_float, load_u32, load_value, store_value, subarray, width_of
from ..index.products import product_of, sum_of, without_denormal
from ..index.value_tables import (
    N_ENTRIES,
    fill_planes,
    fill_product_planes,
    fill_sum_planes,
    look_up_all,
    look_up_groups,
)
from ..predict.residuals import BFLOAT16, FLOAT16, FLOAT32
from .header import (
    BAD_FIELD,
    BAD_SIZE,
    BLOCK_HEADER,
    CODEBOOK,
    CODED_HEADER,
    INDEXED,
    KIND,
    N_VALUES,
    OK,
    IndexedHeader,
    check_block,
    is_constant,
    is_zero,
    read_indexed,
    seal_block,
    store_constant,
    store_raw,
    write_indexed,
)
from .short_floats import (
    HEADER,
    are_finite,
    bytes_of_items,
    has_legal_fields,
    load_short_float,
    pack_short_floats,
    read_short_floats,
    shorten_floats,
    write_short_floats,
)

_GROUP = 64  #: indices that are looked at at a time


class IndexedRules(NamedTuple):
    """The numbers that the indexed blocks of a frame must fit.

    Attributes:
        n_values: Number of values of the array.
        block_log2: log2 of the values per block.
        number: Number of the dictionary, as blocks name it.
        has_factors: True if its entries are factors.
        has_offsets: True if offsets are added to their products.
        n_entries: How many it has.
        value_bytes: Bytes of a value.
    """

    n_values: int
    block_log2: int
    number: int
    has_factors: bool
    has_offsets: bool
    n_entries: int
    value_bytes: int


class Lookup(NamedTuple):
    """The values or factors that indices stand for.

    Attributes:
        factors: float32[256], the factors, none of them denormal; not looked at if there are none.
        dtype_code: Type of the values, if there are factors.
        table: uintW[256], the values that indices stand for; with factors, scratch.
        planes: uint8[256 * W / 8], for :func:`value_tables.look_up_all`; scratch.
    """

    factors: np.ndarray
    dtype_code: int
    table: np.ndarray
    planes: np.ndarray


@kernel
def _n_segments(header, n):
    return (header.skipped + n + header.segment - 1) // header.segment if header.segment else 0


@kernel
def _load_scale(data, at, scale_bytes):
    """Return the bits of a scale, of which the upper ``scale_bytes`` bytes are stored."""
    # Bytes come in from above, the last one highest, whatever their number; bits that are not stored are 0:
    #
    #     2 bytes b0 b1       b0 00 00 00   ->   b1 b0 00 00       highest byte first
    bits = U32(0)
    for i in range(scale_bytes):
        bits = U32(U32(bits >> U32(8)) | U32(U32(data[at + i]) << U32(24)))
    return bits


@kernel
def _check_block(data, at, size, n, rules):
    """Return the status of the indexed block of ``size`` bytes at ``at`` and ``n`` values, but for its inner block."""
    if size < CODED_HEADER or load_u32(data, at + N_VALUES) != n:
        return BAD_FIELD
    header = read_indexed(data, at)
    # The dictionary says which of these a block has: scales and offsets as short floats, whose fields tell their size;
    # scales of 2 to 4 bytes; or neither, where the dictionary has the values themselves.
    if rules.has_offsets:
        if header.scale_bytes or header.segment < 1 or header.skipped >= header.segment:
            return BAD_FIELD
    elif rules.has_factors:
        if not 2 <= header.scale_bytes <= 4 or header.segment < 1 or header.skipped >= header.segment:
            return BAD_FIELD
    elif header.scale_bytes or header.segment or header.skipped:
        return BAD_FIELD
    #     skipped       values of the first segment that are in the block before
    #     scales        |- s0 -|- s1 -|- s2 -
    #     values            |- block -------|       n_segments = ceil((skipped + n) / segment)
    n_segments = _n_segments(header, n)
    scales_at = CODED_HEADER + header.inner_bytes
    body = scales_at + n_segments * header.scale_bytes + header.n_exceptions * rules.value_bytes
    if rules.has_offsets:
        if scales_at + 2 * HEADER > size:
            return BAD_SIZE
        scales, offsets = read_short_floats(data, at + scales_at), read_short_floats(data, at + scales_at + HEADER)
        body += 2 * HEADER + bytes_of_items(scales, n_segments) + bytes_of_items(offsets, n_segments)
    # int64 sums of products of 32-bit fields with less than 256: they do not wrap around.
    if header.inner_bytes < BLOCK_HEADER or (body + 7) & ~7 != size:
        return BAD_SIZE
    if header.inner_bytes & 7 or header.n_exceptions > n or not is_zero(data, at + body, at + size):
        return BAD_FIELD
    if rules.has_offsets:
        return OK if _has_good_floats(data, at + scales_at, n_segments) else BAD_FIELD
    for s in range(n_segments):
        bits = _load_scale(data, at + scales_at + s * header.scale_bytes, header.scale_bytes)
        if U32(bits & U32(0x7F800000)) == 0x7F800000:
            return BAD_FIELD
    return OK


@kernel
def _has_good_floats(data, at, n_segments):
    """Return whether the scales and offsets at ``at`` are such as they must be."""
    scales, offsets = read_short_floats(data, at), read_short_floats(data, at + HEADER)
    if not (has_legal_fields(scales) and has_legal_fields(offsets)):
        return False
    scales_at = at + 2 * HEADER
    offsets_at = scales_at + bytes_of_items(scales, n_segments)
    return are_finite(data, scales_at, n_segments, scales) and are_finite(data, offsets_at, n_segments, offsets)


@kernel
def check_indexed(blocks, begin, end, rules, inner_offsets, inner_sizes):
    """Check indexed blocks of one dictionary from ``begin`` on, as many before ``end`` as are such, and find the blocks
    inside them.

    Args:
        blocks: A :class:`bundles.FrameBlocks`.
        begin: First block.
        rules: :class:`IndexedRules`.
        inner_offsets: int64[n_blocks], result: where inner blocks begin.
        inner_sizes: int64[n_blocks], result: their bytes.

    Returns:
        (status, block): the first block that is of another kind or dictionary (status OK) or faulty.
    """
    data = blocks.data
    for b in range(begin, end):
        at, size = blocks.offsets[b], blocks.sizes[b]
        if data[at + KIND] != INDEXED or data[at + CODEBOOK] != rules.number:
            return OK, b
        status = check_block(data, at, size, b)
        if status == OK:
            n = min(1 << rules.block_log2, rules.n_values - (b << rules.block_log2))
            status = _check_block(data, at, size, n, rules)
        if status != OK:
            return status, b
        inner_offsets[b], inner_sizes[b] = at + CODED_HEADER, read_indexed(data, at).inner_bytes
    return OK, end


@kernel
def _multiply(indices, n, scale, lookup, n_entries, out):
    """Write the products of a segment's scale and the factors that the first ``n`` indices stand for. What is behind
    these in ``out``, the values of the segments that follow, may be overwritten."""
    # Making some products in vain is quicker than making each where it is wanted: by far if 64 are looked up at once,
    # and in float16, where the loop over indices does not become one of vectors. Of 16 values or fewer, most of those
    # 64 would be looked up in vain, too.
    if HAS_AVX512 and n > 16 and 16 * n >= n_entries:
        fill_product_planes(lookup.factors, n_entries, bits_of_float(scale), lookup.dtype_code, lookup.planes)
        for i in range(look_up_groups(lookup.planes, indices, n, out), n):
            out[i] = product_of(scale, lookup.factors[indices[i]], lookup.dtype_code)
    elif n * (2 if lookup.dtype_code == FLOAT16 else 1) >= n_entries:
        for k in range(n_entries):
            lookup.table[k] = product_of(scale, lookup.factors[k], lookup.dtype_code)
        for i in range(n):
            out[i] = lookup.table[indices[i]]
    elif lookup.dtype_code == BFLOAT16:  # a loop for each type becomes vectors
        for i in range(n):
            out[i] = product_of(scale, lookup.factors[indices[i]], BFLOAT16)
    elif lookup.dtype_code == FLOAT16:
        for i in range(n):
            out[i] = product_of(scale, lookup.factors[indices[i]], FLOAT16)
    else:
        for i in range(n):
            out[i] = product_of(scale, lookup.factors[indices[i]], FLOAT32)


@kernel
def _multiply_and_add(indices, n, scale, offset, lookup, n_entries, out):
    """Write the sums of a segment's offset and the products of its scale, as :func:`_multiply` writes products."""
    if HAS_AVX512 and n > 16 and 16 * n >= n_entries:
        of_scale, of_offset = bits_of_float(scale), bits_of_float(offset)
        fill_sum_planes(lookup.factors, n_entries, of_scale, of_offset, lookup.dtype_code, lookup.planes)
        for i in range(look_up_groups(lookup.planes, indices, n, out), n):
            out[i] = sum_of(scale, lookup.factors[indices[i]], offset, lookup.dtype_code)
    elif 2 * n >= n_entries:
        for k in range(n_entries):
            lookup.table[k] = sum_of(scale, lookup.factors[k], offset, lookup.dtype_code)
        for i in range(n):
            out[i] = lookup.table[indices[i]]
    else:
        for i in range(n):
            out[i] = sum_of(scale, lookup.factors[indices[i]], offset, lookup.dtype_code)


@kernel
def _add_offsets(data, at, n, header, lookup, n_entries, indices, out):
    """Write the values of a block of ``n`` that has offsets, given where scales and offsets begin; return their
    end."""
    scales, offsets, n_segments = (
        read_short_floats(data, at),
        read_short_floats(data, at + HEADER),
        _n_segments(header, n),
    )
    scales_at = at + 2 * HEADER
    #     at      fields of scales | of offsets | items of scales | items of offsets
    offsets_at = scales_at + bytes_of_items(scales, n_segments)
    for s in range(n_segments):
        scale = without_denormal(U32(load_short_float(data, scales_at, s, scales)))
        offset = without_denormal(U32(load_short_float(data, offsets_at, s, offsets)))
        end_of_segment = (s + 1) * header.segment - header.skipped
        first, stop = max(end_of_segment - header.segment, 0), min(end_of_segment, n)
        part, rest = subarray(indices, first, n - first), subarray(out, first, n - first)
        _multiply_and_add(part, stop - first, scale, offset, lookup, n_entries, rest)
    return offsets_at + bytes_of_items(offsets, n_segments)


@kernel
def _restore_exceptions(data, at, indices, n_entries, n_exceptions, out):
    """Write exceptions to where indices say that they are; return whether these are as many as there must be."""
    # Counted first, without a branch, because there are none as a rule; and because only then is it known that all that
    # are read exist.
    n_found = 0
    for i in range(len(indices)):
        n_found += indices[i] >= n_entries
    if n_found != n_exceptions:
        return False
    k = 0
    if n_found:
        for i in range(len(indices)):
            if indices[i] >= n_entries:
                out[i] = load_value(data, at + k * (width_of(out) // 8), out)
                k += 1
    return True


@kernel
def look_up_values(blocks, begin, end, rules, lookup, indices, out, out_first):
    """Write the values of indexed blocks that :func:`check_indexed` has found good.

    Args:
        blocks: A :class:`bundles.FrameBlocks`.
        begin: First block.
        rules: :class:`IndexedRules`.
        lookup: :class:`Lookup`.
        indices: uint8, those of the first block's values and all that follow.
        out: uintW, result: value i of the frame goes to ``out[i - out_first]``.
        out_first: The frame's value that ``out`` begins with.

    Returns:
        (status, block): the first block that is faulty; ``end`` if there is none.
    """
    data = blocks.data
    for b in range(begin, end):
        at, start = blocks.offsets[b], b << rules.block_log2
        n = min(1 << rules.block_log2, rules.n_values - start)
        header = read_indexed(data, at)
        of_block = subarray(indices, start - (begin << rules.block_log2), n)
        result = subarray(out, start - out_first, n)
        # From here on `at` walks along: scale after scale as segments are done, then it stands at the exceptions.
        #
        #     at    header | inner block | scales ... | exceptions ... |
        at += CODED_HEADER + header.inner_bytes
        if rules.has_offsets:
            at = _add_offsets(data, at, n, header, lookup, rules.n_entries, of_block, result)
        elif rules.has_factors:
            for s in range(_n_segments(header, n)):
                scale = without_denormal(_load_scale(data, at, header.scale_bytes))
                end_of_segment = (s + 1) * header.segment - header.skipped
                first, stop = max(end_of_segment - header.segment, 0), min(end_of_segment, n)
                part, rest = subarray(of_block, first, n - first), subarray(result, first, n - first)
                _multiply(part, stop - first, scale, lookup, rules.n_entries, rest)
                at += header.scale_bytes
        else:
            fill_planes(lookup.table, rules.n_entries, lookup.planes)
            look_up_all(lookup.table, lookup.planes, of_block, n, result)
        if not _restore_exceptions(data, at, of_block, rules.n_entries, header.n_exceptions, result):
            return BAD_SIZE, b
    return OK, end


class IndexedWriting(NamedTuple):
    """The part of writing that all indexed blocks of a frame have in common.

    Attributes:
        values: uintW[n_values], the array.
        indices: uint8[n_values].
        scales: uint32[n_segments], bits of the scales; empty if there are none.
        offsets: uint32[n_segments], bits of the offsets; empty if there are none.
        segment: Number of values that share a scale, 0 if there are none.
        rules: :class:`IndexedRules`.
        sizes: uint32[n_blocks], result, bytes of each block.
    """

    values: np.ndarray
    indices: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    segment: int
    rules: IndexedRules
    sizes: np.ndarray


@kernel
def write_if_constant(writing, b, out, at):
    """Write block ``b`` as a constant one if its values are equal; return its end, or ``at`` if they are not."""
    rules = writing.rules
    start = b << rules.block_log2
    n = min(1 << rules.block_log2, rules.n_values - start)
    values = subarray(writing.values, start, n)
    if not is_constant(values, n):
        return at
    end = seal_block(out, at, store_constant(out, at, values[0], rules.value_bytes), n, b)
    writing.sizes[b] = end - at
    return end


@kernel
def _scale_bytes(scales, first, stop):
    """Return how many bytes the scales ``first ... stop - 1`` take each."""
    # Bytes that the union has not, no scale has: those that all lack are left out, lowest first.
    union = U32(0)
    for s in range(first, stop):
        union = U32(union | scales[s])
    return 2 if U32(union & U32(0xFFFF)) == 0 else 3 if U32(union & U32(0xFF)) == 0 else 4


@kernel
def _write_pairs(writing, first, last, out, at):
    """Write scales and offsets ``first ... last - 1``; return their end."""
    scales = shorten_floats(writing.scales, first, last)
    offsets = shorten_floats(writing.offsets, first, last)
    write_short_floats(out, at, scales)
    write_short_floats(out, at + HEADER, offsets)
    at = pack_short_floats(writing.scales, first, last, scales, out, at + 2 * HEADER)
    return pack_short_floats(writing.offsets, first, last, offsets, out, at)


@kernel
def finish_indexed(writing, b, out, at, inner_end):
    """Write what surrounds the inner block of block ``b``, which ends at ``inner_end``; or the block as a raw one, if
    that is smaller. Return its end."""
    rules, segment = writing.rules, writing.segment
    start = b << rules.block_log2
    n = min(1 << rules.block_log2, rules.n_values - start)
    values, indices = subarray(writing.values, start, n), subarray(writing.indices, start, n)
    stop, scale_bytes, skipped = inner_end, 0, 0
    if segment:
        # Segments are counted from the array's first value: the first one here may have begun in the block before,
        # which has its scale, too.
        skipped = start % segment
        first, last = start // segment, (start + n + segment - 1) // segment
        if rules.has_offsets:
            stop = _write_pairs(writing, first, last, out, stop)
        else:
            scale_bytes = _scale_bytes(writing.scales, first, last)
            for s in range(first, last):
                # The upper bytes alone, least significant first: _scale_bytes has made sure that the others are 0.
                for i in range(4 - scale_bytes, 4):
                    out[stop] = U8(writing.scales[s] >> U32(8 * i))
                    stop += 1
    n_exceptions, exceptions = 0, stop
    whole = n & -_GROUP if rules.n_entries < N_ENTRIES else 0
    for first in range(0, whole, _GROUP):
        absent = reaching(indices, first, rules.n_entries)
        while absent:
            store_value(out, exceptions + n_exceptions * rules.value_bytes, values[first + lowest_one(absent)])
            n_exceptions += 1
            absent = U64(absent & U64(absent - U64(1)))
    for i in range(whole, n):
        # Each is written, and stays only if it is one: without branches, of which many would be mispredicted.
        store_value(out, exceptions + n_exceptions * rules.value_bytes, values[i])
        n_exceptions += I64(indices[i] >= rules.n_entries)
    stop += n_exceptions * rules.value_bytes
    # Everything but the header's fields stands by now. `at` is where the block begins, so the values overwrite all of
    # it.
    if stop - at >= BLOCK_HEADER + n * rules.value_bytes:
        stop = store_raw(out, at, values, n, rules.value_bytes)
    else:
        inner_bytes = inner_end - at - CODED_HEADER
        header = IndexedHeader(scale_bytes, inner_bytes, n_exceptions, segment, skipped)
        write_indexed(out, at, rules.number, header)
    end = seal_block(out, at, stop, n, b)
    writing.sizes[b] = end - at
    return end
