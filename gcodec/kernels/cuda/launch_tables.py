"""Arguments of the CUDA kernels: arrays and numbers in named bundles, and tables with a row for each frame."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class ValueCoding(NamedTuple):
    """The way in which the values of a launch are cut and rounded (docs/format.md section 2); all uint32.

    Attributes:
        width: Bits of a value.
        head_bits: Bits of its head.
        tail_bits: Bits of its tail, the sign included unless it is in the head.
        sign: The sign bit.
        infinity: Bits of +inf.
        smallest_normal: Bits of the smallest value that is not denormal.
        n_levels: Number of levels.
        n_planes: Number of planes.
        lossy: 1 if values are rounded.
        nearest: 1 to round to nearest even, 0 to truncate.
        prune: 1 if denormals and -0 become +0.
        sign_in_head: 1 if the head's lowest bit is the sign.
    """

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
    sign_in_head: np.uint32


class Tensors(NamedTuple):
    """The tensors that a launch encodes.

    Attributes:
        values: uintW: the values of all tensors are reached from their starts on.
        levels: uint8: the levels of their values; of no meaning where there is one level.
        rows: int64[n_frames, 9]: a row of numbers for each tensor, columns ``VALUES`` ... ``END``.
        owner: int32[n_blocks]: the row that each block belongs to.
    """

    values: Any
    levels: Any
    rows: Any
    owner: Any


class EncodedFrames(NamedTuple):
    """The frames that a launch decodes.

    Attributes:
        words: uint32: the words of all frames are reached from their places on.
        rows: int64[n_frames, 10]: a row of numbers for each frame, columns ``FRAME`` ... ``N_SPANS``.
        owner: int32[n_blocks]: the row that each block belongs to.
        offsets: int64[n_blocks]: bytes from the frame's beginning to the block's, a multiple of 8 inside the frame.
        sizes: int64[n_blocks]: bytes of each block, a multiple of 8 that ends inside the frame.
    """

    words: Any
    rows: Any
    owner: Any
    offsets: Any
    sizes: Any


class EncodeTables(NamedTuple):
    """The tables of an encoder's bit layout and codebooks; the first axis of the last four is the codebook.

    Attributes:
        drops: uint32[16]: mantissa bits that each level loses.
        widths: uint32[8]: bits of the items of each plane.
        shifts: uint64[17]: by level, zero's at 16: byte p is how far left in the tail the item of plane p lies.
        codes: uint32[n, 256]: code and length of each symbol, as of :func:`prefix_code.encode_table`.
        infos: uint32[n, 256]: what a symbol's values consist of, see :func:`info_of`.
        ranges: uint32[n, 16, 3]: by level first relative head, count, and number of the first symbol.
        escapes: uint32[n, 2]: the escape's code and length.
    """

    drops: np.ndarray
    widths: np.ndarray
    shifts: np.ndarray
    codes: np.ndarray
    infos: np.ndarray
    ranges: np.ndarray
    escapes: np.ndarray


class DecodeTables(NamedTuple):
    """The tables of some frames' bit layout, codebooks and column references.

    Attributes:
        widths: As in :class:`EncodeTables`.
        shifts: As in :class:`EncodeTables`.
        infos: As in :class:`EncodeTables`.
        lookups: uint16[n, 4096]: for a window of 12 bits its first symbol and, 8 bits up, the length of its code.
        n_symbols: uint32[n]: symbols of the codebook's ranges.
        spans: int64[n_spans, 5]: column references, as in :class:`gcodec.kernels.core.bundles.Columns`.
        heads: int8[n_heads]: their heads, likewise.
    """

    widths: np.ndarray
    shifts: np.ndarray
    infos: np.ndarray
    lookups: np.ndarray
    n_symbols: np.ndarray
    spans: np.ndarray
    heads: np.ndarray


class Output(NamedTuple):
    """The results of encoding blocks.

    Attributes:
        target: uint32: memory of all frames.
        sizes: uint32[n_blocks]: bytes of each block.
        kinds: uint8[n_blocks]: kind of each block.
        faults: uint32[n_frames]: 1 where a level is not in the ladder.
        numbers: uint32[1]: how many blocks have begun; 0 before the launch.
        told: uint64[n_blocks]: what each block has told those after it (``source/look_back.cuh``); 0 before the launch.
    """

    target: np.ndarray
    sizes: np.ndarray
    kinds: np.ndarray
    faults: np.ndarray
    numbers: np.ndarray
    told: np.ndarray


#: Columns of the table of frames to encode, int64[n, 9]: where its values and levels begin, in elements of their
#: arrays; how many there are; number of its first block in the launch; codebook, -1 for none; log2 of values per
#: sub-stream; whether sub-streams have references of their own; where its first block begins, behind the prelude, and
#: where the memory for the frame ends, in words.
VALUES, LEVELS, N_VALUES, FIRST_BLOCK, BOOK, STREAM_LOG2, REFERENCES, BODY, END = range(9)
#: Columns of the table by which frames are put together, int64[n, 8]: number of blocks; bytes of the prelude, with the
#: codebook and without; max bytes of a frame with a codebook; where the frame goes, in words, and bytes there; where
#: the starts of its two preludes lie, in words, and in each how many words.
N_BLOCKS, PRELUDE, BARE, LIMIT, PLACE, ROOM, START, START_WORDS = range(8)
#: Columns of the table of frames to decode, int64[n, 10]: where the frame begins, in words, and where its values go, in
#: elements; how many; number of its first block in the launch; log2 of values per block and per sub-stream; its
#: codebooks and column references: first and how many.
FRAME, TARGET, COUNT, FIRST, BLOCK_LOG2, STREAM, FIRST_BOOK, N_BOOKS, FIRST_SPAN, N_SPANS = range(10)

MAX_BLOCK_LOG2 = 14  #: of blocks that are decoded; those that are encoded have as many values
BLOCK = 1 << MAX_BLOCK_LOG2
MAX_BINS = 2 + 16 * 64  #: of a histogram


def info_of(head: int, mark: int, level: int) -> int:
    """Return a symbol's relative head, the planes that its values own items of, and its level, in one word.

    bits      31 ... 24    23 ... 16                     15 ... 0
    info      level        mark: a bit for each plane    relative head
    """
    return head | mark << 16 | level << 24
