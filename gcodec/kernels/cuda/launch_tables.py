"""Arguments of the CUDA kernels: numbers in named bundles, and tables with a row for each frame."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class ValueCoding(NamedTuple):
    """Properties of all frames of a launch: the value type (docs/format.md section 2), the number of levels and planes,
    and how values are rounded. All of them uint32, flags 0 or 1."""

    width: np.uint32
    head_bits: np.uint32
    tail_bits: np.uint32
    sign: np.uint32
    infinity: np.uint32
    smallest_normal: np.uint32
    n_levels: np.uint32
    n_planes: np.uint32
    lossy: np.uint32
    nearest: np.uint32
    prune: np.uint32


class EncodeTables(NamedTuple):
    """``drops``: uint32[16], by level; ``widths``: uint32[8], of planes; ``shifts``: uint64[17], by level, zero's at
    16: byte p is how far left in the tail the item of plane p lies. First axis the codebook: ``codes``: uint32[n, 256]
    as of :func:`prefix_code.encode_table`; ``infos``: uint32[n, 256], see :func:`info_of`; ``ranges``: uint32[n, 16,
    3], by level first, count and number of the first symbol; ``escapes``: uint32[n, 2], the escape's code and
    length."""

    drops: np.ndarray
    widths: np.ndarray
    shifts: np.ndarray
    codes: np.ndarray
    infos: np.ndarray
    ranges: np.ndarray
    escapes: np.ndarray


class DecodeTables(NamedTuple):
    """``widths``, ``shifts``, ``infos``: as in :class:`EncodeTables`; ``lookups``: uint16[n, 4096], of a window of 12
    bits the first symbol and, 8 bits up, its length; ``most``: uint32[n], symbols of the ranges; ``spans``: int64[n, 5]
    and ``heads``: int8[n], column references as in :class:`gcodec.kernels.core.bundles.Columns`."""

    widths: np.ndarray
    shifts: np.ndarray
    infos: np.ndarray
    lookups: np.ndarray
    most: np.ndarray
    spans: np.ndarray
    heads: np.ndarray


class Output(NamedTuple):
    """The results of :func:`encode.encode_blocks`. ``slots``: uint32, room for each block if stored raw; ``sizes``:
    uint32[n_blocks], bytes; ``kinds``: uint8[n_blocks]; ``faults``: uint32[n_frames], 1 where a level was not in the
    ladder."""

    slots: np.ndarray
    sizes: np.ndarray
    kinds: np.ndarray
    faults: np.ndarray


#: Columns of the table of frames to encode, int64[n, 8]: where its values and levels begin, in elements of their
#: arrays; how many there are; number of its first block in the launch; codebook, -1 for none; log2 of values per
#: sub-stream; whether sub-streams have references of their own; where its slots begin, in words.
VALUES, LEVELS, N_VALUES, FIRST_BLOCK, BOOK, STREAM_LOG2, REFERENCES, SLOT = range(8)
#: Columns of the table by which frames are put together, int64[n, 8]: number of blocks; bytes of the prelude, with the
#: codebook and without; most bytes that a frame with a codebook may take; where the frame goes, in words, and bytes
#: there; where the starts of its two preludes lie, in words, and in each how many words.
N_BLOCKS, PRELUDE, BARE, LIMIT, PLACE, ROOM, START, START_WORDS = range(8)
#: Columns of the table of frames to decode, int64[n, 10]: where the frame begins, in words, and where its values go, in
#: elements; how many; number of its first block in the launch; log2 of values per block and per sub-stream; its
#: codebooks and column references: first and how many.
FRAME, TARGET, COUNT, FIRST, BLOCK_LOG2, STREAM, FIRST_BOOK, N_BOOKS, FIRST_SPAN, N_SPANS = range(10)

MOST_BLOCK_LOG2 = 14
MOST_STREAMS = 1 << MOST_BLOCK_LOG2 - 6  #: of a block
BLOCK_BYTES = 1 << 20  #: no block of so few values is longer


def info_of(head: int, mark: int, level: int) -> int:
    """Return a symbol's relative head, the planes that its values own items of, and its level, in one word."""
    return head | mark << 16 | level << 24
