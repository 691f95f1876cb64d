"""Find tensors whose columns differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences
from ..kernels.core.specialized import Specialized
from ..kernels.sample.column_means import (
    BY_COLUMN,
    BY_GROUP,
    GROUP,
    N_COLUMNS,
    N_SHARING,
    ColumnScratch,
    ColumnTensors,
    find_column_heads,
    weigh_columns,
)
from ..memory import acquire, release
from .prediction import MIN_COLUMNS, Rows, rows_of

_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 64  #: of each tensor, so many are sampled to choose tensors
#: Likewise of each matrix of a tensor of more dimensions, and of a tensor of few columns.
_SAMPLE_ROWS_OF_PART, _SAMPLE_ROWS_OF_FEW = 32, 256
_MIN_PART_VALUES = 1 << 14  #: of such a matrix
_MIN_NARROW_VALUES = 1 << 17  #: of a tensor of few columns, whose rows are not compared
_MIN_FIT_ROWS, _MIN_FIT_VALUES = 32, 1 << 14  #: so many rows or values to fit references
_MAX_TENSORS = 64  #: tensors with column references in a frame
_MAX_POOLED_COLUMNS = 1 << 16  #: of a tensor for which scratch is kept
_MARGIN = 0.002  #: smallest share of its size that they must promise to take off a tensor
_LARGE_MARGIN = 0.01  #: likewise off a tensor of few columns or a matrix of several, of which there may be many

_weigh_columns, _find_column_heads = Specialized(weigh_columns), Specialized(find_column_heads)


class Tables:
    """Tensors in an array that may get column references, and how they are sampled.

    Args:
        rows: The tensors, each followed by its matrices if these may get references of their own.

    Attributes:
        rows: The same.
        weighed: How they are sampled to choose tensors, and what references must save.
        fitted: int64[n, 6], how they are sampled to fit references, as the kernel takes it.
        alone: Where there is a single tensor, ``fitted`` and the number of references, first for one for each group of
            columns, then for one for each column; empty where there are several.
        whole: int64[n], the number of the tensor that each is a matrix of; its own if it is none.
        is_part: bool[n], which are matrices of others.
        max_columns: Columns of the widest.
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = tuple(rows)
        shapes = np.array([(tensor.start, tensor.n_columns, tensor.group, tensor.stop) for tensor in rows], np.int64)
        n_columns, group, n_values = shapes[:, 1], shapes[:, 2], shapes[:, 3] - shapes[:, 0]
        self.whole, whole = np.arange(len(shapes)), 0
        for number, tensor in enumerate(self.rows):
            whole = whole if tensor.stop <= self.rows[whole].stop else number
            self.whole[number] = whole
        self.is_part = self.whole != np.arange(len(shapes))
        n_rows = n_values // n_columns
        n_sampled = np.minimum(np.maximum(_SAMPLE_COLUMNS // group, 1) * group, n_columns)
        is_narrow = n_columns < MIN_COLUMNS
        wanted = np.where(self.is_part, _SAMPLE_ROWS_OF_PART, np.where(is_narrow, _SAMPLE_ROWS_OF_FEW, _SAMPLE_ROWS))
        every = np.maximum(n_rows // wanted, 1)
        self.max_columns = int(n_columns.max())
        self.weighed = ColumnTensors(  # in C order, as kernels are called without a look at that
            np.ascontiguousarray(np.column_stack([shapes[:, :3], n_sampled, n_rows // every, every])),
            n_sampled * (n_rows // every) / (n_columns * n_rows),
            np.ascontiguousarray(n_columns[:, None] // np.column_stack([np.ones_like(group), group])),
            np.where(self.is_part | is_narrow, _LARGE_MARGIN, _MARGIN) * n_values,
        )
        every = np.maximum(n_rows // np.maximum(_MIN_FIT_ROWS, _MIN_FIT_VALUES // n_columns), 1)
        self.fitted = np.column_stack([shapes[:, :3], n_columns, n_rows // every, every])
        self.alone: tuple[tuple[np.ndarray, int], ...] = ()
        if len(rows) == 1:
            by_column = self.fitted.copy()
            by_column[:, N_SHARING] = 1
            tables = self.fitted, by_column
            self.alone = tuple([(table, int(n_columns[0]) // int(table[0, N_SHARING])) for table in tables])


def tables_of(shapes: Sequence[Sequence[int]]) -> Tables | None:
    """Return the tensors of these shapes, end to end in an array, that may get column references: those whose rows may
    be alike, their matrices if they have more dimensions, and those of few columns; None if there are none.

    The matrices of a tensor, as the heads of a cache of keys and values, may have columns of scales of their own.
    """
    return _tables_of(tuple(map(tuple, shapes)))


@lru_cache(64)
def _tables_of(shapes: tuple[tuple[int, ...], ...]) -> Tables | None:
    alike, tables, start = {rows.start: rows for rows in rows_of(shapes)}, [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        if start in alike and stop > start:
            rows = alike[start]
            tables.append(rows)
            size = math.prod(shape[-2:])
            if rows.n_columns == shape[-1] and size >= _MIN_PART_VALUES and 1 < (stop - start) // size <= _MAX_TENSORS:
                tables.extend([Rows(first, first + size, shape[-1]) for first in range(start, stop, size)])
        elif len(shape) > 1 and 1 < shape[-1] < MIN_COLUMNS <= shape[-2] and stop - start >= _MIN_NARROW_VALUES:
            tables.append(Rows(start, stop, shape[-1]))
        start = stop
    return Tables(tables) if tables else None


def fit_columns(values: np.ndarray, tables: Tables, dtype: DType) -> tuple[ColumnReferences, ...]:
    """Return column references of the tensors that promise to gain by them; of a tensor and its matrices, of either it
    or some of these.

    Args:
        values: uintW[n_values], the array.
        dtype: Its type, perhaps with a wide head.
    """
    size = 1 << (tables.max_columns + GROUP - 1).bit_length()
    key, gains = ("columns", dtype.uint, size), np.empty((len(tables.rows), 2))
    scratch = acquire(key, lambda: ColumnScratch(np.empty(size, dtype.uint), *np.empty((2, size), np.int32)))
    head, columns = (dtype.head_shift, dtype.head_mask), tuple[ColumnReferences, ...]()
    if _weigh_columns[dtype.bits](values, tables.weighed, *head, scratch, gains):
        if tables.alone:
            tensors, n_heads = tables.alone[gains.item(0, BY_COLUMN) >= gains.item(0, BY_GROUP)]
            chosen = [0]
        else:
            numbers = _chosen(tables, gains, dtype)
            tensors = np.ascontiguousarray(tables.fitted[numbers])
            tensors[gains[numbers, BY_COLUMN] >= gains[numbers, BY_GROUP], N_SHARING] = 1
            n_heads, chosen = int((tensors[:, N_COLUMNS] // tensors[:, N_SHARING]).sum()), numbers.tolist()
        heads = np.empty(n_heads, np.int8)
        _find_column_heads[dtype.bits](values, tensors, *head, scratch, heads)
        columns = _references(tables, chosen, tensors, heads)
    if size <= _MAX_POOLED_COLUMNS:
        release(key, scratch)
    return columns


def _chosen(tables: Tables, gains: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the numbers of the tensors that get references, rising; ``gains``: float64[n, 2], what these promise."""
    gain = gains.max(axis=1)
    promised = gain > dtype.bits * tables.weighed.min_gain
    if tables.is_part.any():
        promising = np.where(promised, gain, 0.0)
        of_parts = np.bincount(tables.whole[tables.is_part], promising[tables.is_part], len(gain))
        is_better = promising >= of_parts  # of a tensor: than its matrices are together
        promised &= np.where(tables.is_part, ~is_better[tables.whole], is_better)
    chosen = np.flatnonzero(promised)
    return np.sort(chosen[np.argsort(-gain[chosen], kind="stable")[:_MAX_TENSORS]])


def with_sign(columns: Sequence[ColumnReferences], more_bits: int) -> tuple[ColumnReferences, ...]:
    """Return column references for heads with the sign, which no reference changes, from those for heads without.

    Args:
        columns: References for the usual head; beyond what a byte holds they are cut off.
        more_bits: Bits that the head with the sign has more: 1 or 4; or 0 where it has a mantissa bit less.
    """
    table = _signed_heads(more_bits)
    return tuple(
        [
            ColumnReferences(one.start, one.stop, one.n_columns, one.group, table[one.heads.view(np.uint8)])
            for one in columns
        ]
    )


@cache
def _signed_heads(more_bits: int) -> np.ndarray:
    """Return what becomes of each reference, by its byte: int8[256]; argument as of :func:`with_sign`."""
    heads = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int16) << more_bits
    result: np.ndarray = (heads.clip(-128, 127) & -(1 << max(more_bits, 1))).astype(np.int8)
    return result


def _references(
    tables: Tables, chosen: Sequence[int], tensors: np.ndarray, heads: np.ndarray
) -> tuple[ColumnReferences, ...]:
    """Return the column references of chosen tensors.

    Args:
        chosen: Numbers of those that are chosen.
        tensors: int64[n, 6], how they were sampled.
        heads: int8, the heads of one after another.
    """
    found, at = [], 0
    for number, (start, n_columns, group, *_) in zip(chosen, tensors.tolist(), strict=True):
        end = at + n_columns // group
        found.append(ColumnReferences(start, tables.rows[number].stop, n_columns, group, heads[at:end]))
        at = end
    return tuple(found)
