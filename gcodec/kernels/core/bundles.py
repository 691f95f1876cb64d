"""Argument bundles of the block kernels: named tuples, which cost nothing in numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Geometry(NamedTuple):
    """Sizes of a frame's array and of its parts, in values.

    Attributes:
        n_values: Values of the frame.
        block: Values per block; the last may have fewer.
        stream_len: Values per sub-stream; the last of a block may have fewer.
    """

    n_values: int
    block: int
    stream_len: int


class FloatBits(NamedTuple):
    """A value type (docs/format.md section 2).

        bfloat16     s eeeeeeee mmmmmmm
        head           +------+             head_bits = 8, head_shift = 7
        tail         +          +-----+     sign and mantissa, tail_bits = 8

    Attributes:
        head_bits: Bits of the head.
        head_shift: Bits below the head.
        tail_bits: Bits of the tail.
        infinity: Bits of that magnitude. From there on, values with levels are of level 0, as rounding leaves them as
            they are. The highest bit where nothing is rounded, and infinities and NaN have levels as others do.
        smallest_normal: Bits of that magnitude.
        fine_bits: How many of the head's lowest bits references leave as they are: the sign, and mantissa bits above it
            (:mod:`gcodec.kernels.heads.sign_in_head`); 0 where the sign is in the tail.
    """

    head_bits: int
    head_shift: int
    tail_bits: int
    infinity: np.uint64
    smallest_normal: np.uint64
    fine_bits: int


class Rounding(NamedTuple):
    """A way to round values before they are coded.

    Attributes:
        drops: uint8[256], mantissa bits to drop by level.
        n_levels: Number of levels.
        nearest: Round to nearest, ties to even; else truncate.
        prune: Denormals and -0 become +0.
    """

    drops: np.ndarray
    n_levels: int
    nearest: bool
    prune: bool


class Choices(NamedTuple):
    """The plan's decisions on each coded block.

    Attributes:
        codebook: int64[n_blocks], number of the codebook; -1: store raw.
        base: int64[n_blocks], reference head; -1: to be found.
        references: Sub-streams have references of their own.
    """

    codebook: np.ndarray
    base: np.ndarray
    references: bool


class Books(NamedTuple):
    """The tables of a frame's codebooks; the first axis is the codebook. ``code_tables`` fills them."""

    n_symbols: np.ndarray  #: int64[n], symbols besides zero and the escape
    lengths: np.ndarray  #: uint8[n, 256], bits of each symbol's code; 0: none
    first: np.ndarray  #: int64[n, 16], first relative head of each level
    counts: np.ndarray  #: int64[n, 16], number of heads of each level
    number: np.ndarray  #: int64[n, 16], symbol of the first head of each level
    ranges: np.ndarray  #: uint8[n, 3, 256], these three in bytes
    coded: np.ndarray  #: uint8[n, 256], the symbol, or the escape where it has no code
    with_gaps: np.ndarray  #: bool[n], any symbol has no code
    mark_of: np.ndarray  #: uint8[n, 256], planes of which a symbol's values own an item
    shift: np.ndarray  #: uint8[n, 8, 256], where in the tail that item lies
    head_of: np.ndarray  #: uint16[n, 256], relative head, modulo 2**head_bits
    narrow_head_of: np.ndarray  #: uint8[n, 256], its low byte
    run_symbol: np.ndarray  #: int64[n], symbol of empty sub-streams
    escape_code: np.ndarray  #: uint32[n], code of the escape
    table: np.ndarray  #: uint32[n, 256] to encode with, uint64[n, 4096] to decode with


class Planes(NamedTuple):
    """The planes of a frame.

    Attributes:
        n: Number of planes.
        widths: int64[n], bits of an item of each.
        uniform: int64[8], see ``tables.uniform_shifts``.
        chunks: int64[12], see ``tables.chunks_of``.
    """

    n: int
    widths: np.ndarray
    uniform: np.ndarray
    chunks: np.ndarray


class Columns(NamedTuple):
    """The column references of a frame.

    Attributes:
        spans: int64[5 * n], of each first and last value, number of columns, where in ``heads`` they lie, and how many
            columns share one.
        heads: int8, of all of them.
    """

    spans: np.ndarray
    heads: np.ndarray


class FrameBlocks(NamedTuple):
    """The blocks of a frame, to be decoded.

    Attributes:
        data: uint8, readable for ``frame.decode.margin`` bytes after the last block that is decoded.
        offsets: int64[n_blocks], byte of ``data`` where each begins, checked to lie inside the frame.
        sizes: int64[n_blocks], bytes of each, likewise.
    """

    data: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


class SampleSpec(NamedTuple):
    """A sample of an array to count, and how to count it.

    Attributes:
        block: Values per block.
        stream_len: Values per sub-stream.
        piece: Values per piece.
        every: One piece in so many is counted,
        step: Of one block in so many.
        head_shift: Bits below the head in a value.
        head_mask: Mask of the head, shifted down.
        window: Bins of a level in histograms, see ``kernels.sample.code_costs``.
        center: Bin of a level for head 0.
        infinity: Bits of that magnitude, for values of several levels; else 0.
        by_block: Heads are counted relative to the mean of their block.
        by_stream: Heads are counted relative to the mean of their sub-stream.
        fine_bits: As of :class:`FloatBits`.
    """

    block: int
    stream_len: int
    piece: int
    every: int
    step: int
    head_shift: int
    head_mask: int
    window: int
    center: int
    infinity: np.uint64
    by_block: bool
    by_stream: bool
    fine_bits: int


class SampleScratch(NamedTuple):
    """Working memory of one thread for counting a sample, one block at a time."""

    references: np.ndarray  #: int8[piece], of columns
    shifted: np.ndarray  #: uintW[block + piece], values without them, or turned (:mod:`sign_in_head`)
    means: np.ndarray  #: int64[n_streams]; or what was found out about one (:mod:`compared_heads`)
    numbers: np.ndarray  #: int64[n_streams], of values that are not zero
    is_shifted: np.ndarray  #: bool[n_streams]
    bins: np.ndarray  #: uint16[stream_len]
    counts: np.ndarray  #: uint32[count.BOTH, n_bins]
    parts: np.ndarray  #: uint16[4 * count.PART], zeros
    stream_counts: np.ndarray  #: uint32[count.PART], heads as they are
    block_counts: np.ndarray  #: uint32[count.PART], likewise
    heads: np.ndarray  #: uint8[2 * stream_len], see :mod:`compared_heads`: bytes, then odd bytes


class Scratch(NamedTuple):
    """Working memory of one thread: arrays of one block, and that of the layout of its planes
    (:mod:`gcodec.kernels.planes.layout_types`). What a direction does not use is None, and is compiled away.
    """

    symbols: np.ndarray  #: uint8, strided
    references: np.ndarray  #: uint32[n_streams]
    stream_bytes: np.ndarray  #: uint32[n_streams]
    n_items: np.ndarray  #: int64[8]
    chunk: np.ndarray  #: uint8[4 * (stream_len + 64)], and at least CHUNK_BYTES and CLASS_BYTES
    columns: np.ndarray  #: int8[block]
    shifted: np.ndarray  #: uintW[block], to encode
    turned: np.ndarray  #: uintW[block], to encode values with the sign in the head
    heads: np.ndarray  #: uint8[block + 64], to encode float32
    others: np.ndarray  #: uint64[block / 64 + 1], likewise
    layout: Any  #: of layout_types.Layout
    rounded: np.ndarray | None  #: uintW[block], where values are rounded
    starts: np.ndarray | None  #: int64[n_streams], to decode, as all below
    bases: np.ndarray | None  #: uint16[n_streams]
    decoders: np.ndarray | None  #: int64[5, 4]
    escapes: np.ndarray | None  #: int64[block]
    escape_heads: np.ndarray | None  #: uint16[block]


class Residuals(NamedTuple):
    """Working memory of one thread for predicted blocks."""

    symbols: np.ndarray  #: uint8, strided
    marks: np.ndarray  #: like symbols
    predictions: np.ndarray  #: uint32[block]
    words: np.ndarray  #: uint32[block]
    bytes: np.ndarray  #: uint8[2 * (stream_len + 64)]
    items: np.ndarray  #: uint8[n_planes, block + 64]
    n_items: np.ndarray  #: int64[8]
    scales: np.ndarray  #: uint32[block / 2 + 2]
    sums: np.ndarray  #: float32[N_SUMS]
    stream_bytes: np.ndarray  #: uint32[n_streams]
    starts: np.ndarray  #: int64[n_streams]
    decoders: np.ndarray  #: int64[5, 4]
    chunk: np.ndarray  #: uint8[CHUNK_BYTES]
    escapes: np.ndarray  #: int64[block]
    escape_heads: np.ndarray  #: uint16[block]
