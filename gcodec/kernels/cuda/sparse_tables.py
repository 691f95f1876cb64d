"""Arguments of the kernels for sparse blocks (docs/format.md section 9): arrays and numbers in named bundles.

The kernels are in CUDA C++ (``source/patch.cuh`` and the files that include it). A launch does one frame. Its changes
lie one after another, those of a sub-stream by class, those of a class in their order.

    sub-stream      0                          | 1                    | ...
    class           0       | 1    | 3         | 0        | 2         |
    changes         c c c c | c c  | c c c     | c c c    | c         | ...       ranks, steps, places
                    ^ starts[0]                  ^ starts[1]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..entropy.changes import MAX_CATEGORIES, MAX_CLASSES

HASH_PART_LOG2 = 14  #: log2 of the words of an array that are hashed by a block of the grid
CLASS_PART_LOG2 = 14  #: log2 of the values of a *part*, the most of a sub-stream that a block of the grid looks through
READ_TOGETHER = 8  #: sub-streams that are read by a block of the grid
N_CLASS_SYMBOLS = 3 * MAX_CATEGORIES  #: of a class: three for each category of gaps
N_SYMBOLS = MAX_CLASSES * N_CLASS_SYMBOLS  #: of all classes
N_STEP_SYMBOLS = 65  #: of values of 32 bits


class SparseShape(NamedTuple):
    """The numbers of a frame that its kernels need.

    Attributes:
        n_values: Values of the frame, uint64.
        width: Bits of a value, uint32, at most 32.
        block_log2: log2 of the values per block, uint32.
        first_book: Number of its first codebook of changes, uint32.
    """

    n_values: np.uint64
    width: np.uint32
    block_log2: np.uint32
    first_book: np.uint32


class SparseFrame(NamedTuple):
    """An encoded frame.

    Attributes:
        words: uint32, its words.
        offsets: int64[n_blocks]: bytes from its beginning to each block, a multiple of 8.
        sizes: int64[n_blocks]: bytes of each block, a multiple of 8 that ends inside the frame.
        is_base: uint8[n_templates]: 1 for templates that stand for the base; with one more element at the end.
    """

    words: Any
    offsets: Any
    sizes: Any
    is_base: Any


class ChangeBooks(NamedTuple):
    """The tables of a frame's codebooks of changes, by number among these, as of :class:`changes.ChangeTables`.

    Attributes:
        n_classes: uint32[n]; 0 where symbols are gaps alone, in which case all else of the codebook has no meaning.
        bounds: uint64[n, 17]: magnitudes of class c are at least bounds[c] and below bounds[c + 1].
        is_empty: uint8[n, 16]: 1 for classes whose code has no symbols.
        first_rows: uint32[n]: the row of ``classes`` for class 0.
        classes: uint32[n_rows, 4096].
        steps: uint16[n, 4096].
        counts: uint32[n, 4096].
    """

    n_classes: Any
    bounds: Any
    is_empty: Any
    first_rows: Any
    classes: Any
    steps: Any
    counts: Any


class SubStreams(NamedTuple):
    """The sub-streams of a frame's sparse blocks.

    Attributes:
        logs: uint32[n_blocks]: log2 of a block's values per sub-stream; 0 for a block that is not sparse.
        firsts: int64[n_blocks]: number of the block's first sub-stream.
        owner: int32[n_streams]: the block of each.
        begins: uint32[n_streams]: byte of the block at which each begins.
        sizes: uint32[n_streams]: bytes of each.
        starts: int64[n_streams]: number of its first change; of no meaning while changes are only counted.
        counts: uint32[n_streams, 16]: number of changes of each class.
    """

    logs: Any
    firsts: Any
    owner: Any
    begins: Any
    sizes: Any
    starts: Any
    counts: Any


class StoredChanges(NamedTuple):
    """The changes of a frame.

    Attributes:
        ranks: uint32[n]: which value of its class and sub-stream each is for.
        places: uint32[n]: which value of the sub-stream.
        steps: uintW[n]: steps, modulo 2**W; then the values that they lead to.
    """

    ranks: Any
    places: Any
    steps: Any


class SparseSource(NamedTuple):
    """A tensor that is encoded against a base.

    Attributes:
        values: uintW[n_values].
        base: uintW[n_values].
        bounds: uint64[17], where classes of magnitudes begin and end, as a row of :attr:`ChangeBooks.bounds`.
        n_values: Number of values, uint64.
        block_log2: log2 of the values per block, uint32.
        stream_log2: log2 of the values per sub-stream, uint32.
    """

    values: Any
    base: Any
    bounds: Any
    n_values: np.uint64
    block_log2: np.uint32
    stream_log2: np.uint32


class FoundChanges(NamedTuple):
    """The changes of a tensor that is encoded.

    Attributes:
        ranks: uint32[n]: which value of its class and sub-stream each is for.
        steps: uintW[n]: steps, modulo 2**W.
        starts: int64[n_streams]: number of the first change of each sub-stream.
        counts: uint32[n_streams, 16]: number of changes of each class.
    """

    ranks: Any
    steps: Any
    starts: Any
    counts: Any


class GpuChangeCodes(NamedTuple):
    """The codes of a codebook of changes, as of :class:`changes.ChangeCodes`.

    Attributes:
        classes: uint32[n_classes, n_symbols].
        steps: uint32[2 * W + 1].
        counts: uint32[41].
        is_empty: uint8[16].
    """

    classes: Any
    steps: Any
    counts: Any
    is_empty: Any


#: Columns of the table of blocks to write, int64[n_blocks, 8]: word at which a block begins; its bytes; whether it is
#: raw; bytes of its sub-streams, of the shortest one; bits of each length; number of its first sub-stream.
PLACE_WORD, SIZE_BYTES, IS_RAW, STREAMS_BYTES, MIN_BYTES, LENGTH_BITS, FIRST_STREAM = range(7)
#: Elements of a row of :attr:`ChangeBooks.bounds`.
N_BOUNDS = MAX_CLASSES + 1
