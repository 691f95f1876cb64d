"""Sparse blocks (docs/format.md section 9): what differs from a base or from zero, found, written and read.

Only where a change lies is anything done for a value by itself: :mod:`class_ranks` says which value of its class it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U64
from ..entropy.changes import ChangeTables

GROUP = 64
ALL = U64(0xFFFFFFFFFFFFFFFF)  #: mask of a whole group


class Differences(NamedTuple):
    """Holds what differs in one block: changes by sub-stream, in each by class, of a class in their order.

    Attributes:
        gaps: uint32[n_changes].
        steps: uintW[n_changes], modulo 2**W; where there is no base, the value instead.
        counts: uint32[n_streams, n_classes], number of changes.
    """

    gaps: np.ndarray
    steps: np.ndarray
    counts: np.ndarray


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


class SparseForm(NamedTuple):
    """Says what a sparse block that is written is to be, besides its changes.

    Attributes:
        number: Number of the block.
        n_values: Its values.
        codebook: Number of its codebook in the frame.
        template: Number of the template that stands for the base, or ``NO_BASE``.
        stream_log2: log2 of the values per sub-stream.
    """

    number: int
    n_values: int
    codebook: int
    template: int
    stream_log2: int


class SparseRules(NamedTuple):
    """Says what a sparse block may name, by the frame's prelude.

    Attributes:
        block_log2: log2 of the values per block.
        is_base: bool[n_templates], which of them stand for the base.
        first_book: Number of the frame's first codebook of changes.
        n_classes: int64[n_books], classes of each of them; 0: gaps alone.
    """

    block_log2: int
    is_base: np.ndarray
    first_book: int
    n_classes: np.ndarray


class ChangedValues(NamedTuple):
    """Says which values of a block change, and to what.

    Attributes:
        places: uint32[n], their places in the block.
        values: uintW[n], what they become; without a base, nothing yet.
    """

    places: np.ndarray
    values: np.ndarray


class Reading(NamedTuple):
    """Holds what the steps of reading a sparse block share.

    Attributes:
        data: uint8, the frame, with a margin behind the block.
        tables: The :class:`ChangeTables` of the block's codebook.
        scratch: A :class:`SparseScratch`.
        changed: A :class:`ChangedValues`, result, with room for all values of the block.
    """

    data: np.ndarray
    tables: ChangeTables
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
