"""Sparse blocks (docs/format.md section 9): what differs from a base or from zero, found, written and read.

Only where a change lies is anything done for a value by itself: :mod:`class_ranks` says which value of its class it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U64
from ..entropy.changes import ChangeCodes, ChangeTables

GROUP = 64
ALL = U64(0xFFFFFFFFFFFFFFFF)  #: mask of a whole group


class Differences(NamedTuple):
    """Holds what differs in blocks that follow each other: changes by sub-stream, in each by class, of a class in their
    order.

    Attributes:
        gaps: uint32[n_changes].
        steps: uintW[n_changes], modulo 2**W; where there is no base, the value instead.
        counts: uint32[n_streams, n_classes], number of changes.
        ends: int64[n_blocks], number of changes up to the end of each block.
    """

    gaps: np.ndarray
    steps: np.ndarray
    counts: np.ndarray
    ends: np.ndarray


class SparseSizes(NamedTuple):
    """The sizes of sparse blocks: log2 of their values, and of the values of their sub-streams."""

    block_log2: int
    stream_log2: int


class BaseWords(NamedTuple):
    """Says how to take the hash of a base block by block.

    Attributes:
        data: uint8, the whole base.
        first: Number of the 32-bit word with which the first block begins.
        sums: uint64[n_blocks], result, the sum of each block's words; empty if none is to be taken.
    """

    data: np.ndarray
    first: int
    sums: np.ndarray


class Counts(NamedTuple):
    """Counts how often each symbol of a codebook of changes occurs.

    Attributes:
        counts: int64[MAX_CATEGORIES], of numbers of changes.
        steps: int64[2 * W + 1].
        classes: int64[n_classes, 3 * MAX_CATEGORIES], or [1, MAX_CATEGORIES] without a base.
    """

    counts: np.ndarray
    steps: np.ndarray
    classes: np.ndarray


class SparseScratch(NamedTuple):
    """Working memory of one thread.

    Attributes:
        members: uint64[17 * 512], by class and group of a window: which values of the group are of the class.
        before: uint16[16 * 544], by class and group of a window: members of the class before the group.
        totals: int64[16], by class: members in the window.
        places: uint16[n_places], where in the window values differ.
        tail: uintW[128], a group that ends early, and its predictions.
        passed: int64[16], by class: to read changes, members of the class before the next one, from the window on.
        after: int64[16], by class: to find changes, members up to the last one, from the window on; to read them,
            number of the next one.
        numbers: int64[16], by class: number of changes; where they are read, number of the one behind the last.
        gaps: uint32[], of changes: where they are found, each class has the same room; where they are read, one class
            follows the other.
        steps: uintW[], likewise.
        stream_bytes: uint32[n_streams], bytes of each sub-stream.
        state: int64[1], how many changes were read.
        short_gaps: uint64[2 * SHORT_GAPS], without a base: where changes are found, how often there is each short gap,
            counted in two parts; where they are written, what stands for it.
    """

    members: np.ndarray
    before: np.ndarray
    totals: np.ndarray
    places: np.ndarray
    tail: np.ndarray
    passed: np.ndarray
    after: np.ndarray
    numbers: np.ndarray
    gaps: np.ndarray
    steps: np.ndarray
    stream_bytes: np.ndarray
    state: np.ndarray
    short_gaps: np.ndarray


class Search(NamedTuple):
    """Says how to look for what differs in blocks, and takes what is found.

    Attributes:
        thresholds: Tuple of uintW: the magnitude at which each class ends; the last one's is not looked at.
        sizes: Sizes of blocks and sub-streams.
        scratch: Working memory.
        found: Result, with room for a change of every value, or for ``max_changes``.
        counts: Result, to which symbols are added, but numbers of changes.
        max_changes: Number of changes at which to give up.
    """

    thresholds: tuple[np.unsignedinteger[Any], ...]
    sizes: SparseSizes
    scratch: SparseScratch
    found: Differences
    counts: Counts
    max_changes: int


class SparseForm(NamedTuple):
    """Says what sparse blocks that are written are to be, besides their changes.

    Attributes:
        n_values: Values of the frame.
        sizes: Sizes of blocks and sub-streams.
        codebook: Number of their codebook in the frame.
        template: Number of the template that stands for the base, or ``NO_BASE``.
    """

    n_values: int
    sizes: SparseSizes
    codebook: int
    template: int


class SparseWriting(NamedTuple):
    """Holds what sparse blocks of a frame are written with, and where they go.

    Attributes:
        values: uintW[n], the values of the frame.
        codes: The :class:`changes.ChangeCodes` of their codebook.
        form: What they are to be.
        scratch: Working memory.
        out: uint8, with 8 bytes of margin.
        block_bytes: uint32[n_blocks], result, the size of each block.
    """

    values: np.ndarray
    codes: ChangeCodes
    form: SparseForm
    scratch: SparseScratch
    out: np.ndarray
    block_bytes: np.ndarray


class SparseRules(NamedTuple):
    """Says what a sparse block may name, by the frame's prelude.

    Attributes:
        n_values: Values of the frame.
        block_log2: log2 of the values per block.
        is_base: bool[n_templates], which of them stand for the base.
        first_book: Number of the frame's first codebook of changes.
        n_classes: int64[n_books], classes of each of them; 0: gaps alone.
    """

    n_values: int
    block_log2: int
    is_base: np.ndarray
    first_book: int
    n_classes: np.ndarray


class ChangedValues(NamedTuple):
    """Says which values of some blocks change, and to what.

    Attributes:
        places: uint32[n], their places, counted from the first block's first value.
        values: uintW[n], what they become; without a base, nothing yet.
    """

    places: np.ndarray
    values: np.ndarray


class Reading(NamedTuple):
    """Holds what the steps of reading sparse blocks share.

    Attributes:
        data: uint8, the frame, with a margin behind the blocks.
        rules: What they may name.
        tables: The :class:`ChangeTables` of their codebook.
        thresholds: Tuple of uintW, the magnitude at which each class ends; as many as the tables have.
        words: How to hash their base, beginning with the first of them that is read.
        scratch: Working memory.
        changed: Result, with room for all values of the blocks.
    """

    data: np.ndarray
    rules: SparseRules
    tables: ChangeTables
    thresholds: tuple[np.unsignedinteger[Any], ...]
    words: BaseWords
    scratch: SparseScratch
    changed: ChangedValues


@kernel
def first_values(count):
    """Return the mask of the first ``count`` values of a group."""
    return ALL if count >= GROUP else U64(U64(U64(1) << U64(count)) - U64(1))


@kernel
def copy_tail(values, first, tail, at):
    """Copy the values from ``first`` on, if there are any, to the group at ``tail[at]``."""
    if values is not None:
        for i in range(first, len(values)):
            tail[at + i - first] = values[i]
