"""Argument bundles of the block kernels: named tuples, which cost nothing in numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Geometry(NamedTuple):
    """``n_values`` of the frame; values per ``block`` and per sub-stream (``stream_len``)."""

    n_values: int
    block: int
    stream_len: int


class FloatBits(NamedTuple):
    """The value type (docs/format.md section 2): bits of head and tail, where the head lies, and the bits of two
    magnitudes."""

    head_bits: int
    head_shift: int
    tail_bits: int
    infinity: np.uint64
    smallest_normal: np.uint64


class Rounding(NamedTuple):
    """``drops``: uint8[256], mantissa bits to drop by level, of which there are ``n_levels``; ``nearest`` even, else
    truncate; ``prune``: denormals and -0 become +0."""

    drops: np.ndarray
    n_levels: int
    nearest: bool
    prune: bool


class Choices(NamedTuple):
    """Per block: ``codebook`` (int64, -1: store raw) and ``base`` (int64, -1: to be found); ``references``:
    sub-streams have references of their own."""

    codebook: np.ndarray
    base: np.ndarray
    references: bool


class Books(NamedTuple):
    """The codebooks of a frame, first axis the codebook; see ``codebook.Tables``. Only the tables of one direction
    are there."""

    n_symbols: np.ndarray
    lengths: np.ndarray
    first: np.ndarray
    counts: np.ndarray
    number: np.ndarray
    ranges: np.ndarray
    coded: np.ndarray
    with_gaps: np.ndarray
    mark_of: np.ndarray
    shift: np.ndarray
    head_of: np.ndarray
    narrow_head_of: np.ndarray
    run_symbol: np.ndarray
    escape_code: np.ndarray
    table: np.ndarray


class Planes(NamedTuple):
    """``n``: number of planes; ``widths``: int64[n]; ``uniform``: int64[8], see ``kernels.planes``; ``chunks``:
    int64[12], see ``tables.chunks_of``."""

    n: int
    widths: np.ndarray
    uniform: np.ndarray
    chunks: np.ndarray


class Columns(NamedTuple):
    """Column references: ``spans``: int64[5 * n], of each first and last value, number of columns, where in ``heads``
    (int8) they lie and how many columns share one."""

    spans: np.ndarray
    heads: np.ndarray


class SampleSpec(NamedTuple):
    """A sample of an array to count, and how to count it.

    Attributes:
        block: values per block.
        stream: values per sub-stream.
        piece: values per piece.
        every: one piece in so many is counted,
        step: of one block in so many.
        head_shift, head_mask: where the head lies in a value.
        window, center: where bins lie in histograms, see ``kernels.sample.code_costs``.
        infinity: bits of that magnitude, for values of several levels; else 0.
        by_block: heads are counted relative to the mean of their block.
        by_stream: heads are counted relative to the mean of their sub-stream.
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


class SampleScratch(NamedTuple):
    """Working memory of one thread for counting a sample, one block at a time."""

    references: np.ndarray  #: int8[piece], of columns
    shifted: np.ndarray  #: uintW[block + piece], values without them
    means: np.ndarray  #: int64[n_streams]
    numbers: np.ndarray  #: int64[n_streams], of values that are not zero
    is_shifted: np.ndarray  #: bool[n_streams]
    bins: np.ndarray  #: uint16[stream_len]
    counts: np.ndarray  #: uint32[count.BOTH, n_bins]
    parts: np.ndarray  #: uint16[4 * count.PART], zeros
    stream_counts: np.ndarray  #: uint32[count.PART], heads as they are
    block_counts: np.ndarray  #: uint32[count.PART], likewise


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
    sums: np.ndarray  #: float32[16]
    stream_bytes: np.ndarray  #: uint32[n_streams]
    starts: np.ndarray  #: int64[n_streams]
    decoders: np.ndarray  #: int64[5, 4]
    chunk: np.ndarray  #: uint8[CHUNK_BYTES]
    escapes: np.ndarray  #: int64[block]
    escape_heads: np.ndarray  #: uint16[block]
