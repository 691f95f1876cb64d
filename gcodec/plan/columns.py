"""Find tensors whose columns differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences
from ..kernels.sample.column_means import GROUP, find_column_heads, measure_columns
from .prediction import MIN_COLUMNS, Rows, rows_of

_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 64  #: of each tensor, so many are sampled to choose tensors
#: Likewise of each matrix of a tensor of more dimensions, and of a tensor of few columns.
_SAMPLE_ROWS_OF_PART, _SAMPLE_ROWS_OF_FEW = 32, 256
_MIN_PART_VALUES = 1 << 14  #: of such a matrix
_MIN_NARROW_VALUES = 1 << 17  #: of a tensor of few columns, whose rows are not compared
_MIN_FIT_ROWS, _MIN_FIT_VALUES = 32, 1 << 14  #: so many rows or values to fit references
_MAX_TENSORS = 64  #: tensors with column references in a frame
_RECORD_BITS, _HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
_MARGIN = 0.002  #: smallest share of its size that they must promise to take off a tensor
_LARGE_MARGIN = 0.01  #: likewise off a tensor of few columns or a matrix of several, of which there may be many
_STEP_VARIANCE = 1 / 12  #: of what rounding to whole heads leaves out


class Tables:
    """Tensors in an array that may get column references, and how they are sampled.

    Args:
        rows: The tensors, each followed by its matrices if these may get references of their own.

    Attributes:
        rows: The same.
        shapes: int64[n, 4], of each: first value, columns, columns that may share a reference, end.
        tensors: int64[n, 6], what is sampled, as the kernel takes it.
        share: float64[n], the share of the values that is sampled.
        n_heads: int64[n, 2], references where columns have one each, and where they share them.
        min_gain: float64[n], by type's bits, the fewest bits that references must promise to save.
        whole: int64[n], the number of the tensor that each is a matrix of; its own if it is none.
        is_part: bool[n], which are matrices of others.
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
        self.shapes = shapes
        self.tensors = np.column_stack([shapes[:, :3], n_sampled, n_rows // every, every])
        self.share = n_sampled * (n_rows // every) / (n_columns * n_rows)
        self.n_heads = n_columns[:, None] // np.column_stack([np.ones_like(group), group])
        self.min_gain = np.where(self.is_part | is_narrow, _LARGE_MARGIN, _MARGIN) * n_values


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

    The gain is estimated as if heads were distributed normally: of a quarter of the variance, they take a bit less.

    Args:
        values: uintW[n_values], the array.
        tables: Tensors in it.
        dtype: Its type, perhaps with a wide head.
    """
    shapes, tensors = tables.shapes, tables.tensors
    measured = np.empty((len(shapes), 4), np.int64)
    measure_columns(values, tensors, dtype.head_shift, dtype.head_mask, *_scratch(tensors, dtype), measured)
    total = np.maximum(measured[:, 0], 1)
    variance = (measured[:, 1] / total + _STEP_VARIANCE)[:, None]
    bits = np.log2(variance / (variance - measured[:, 2:] / total[:, None])) / 2
    gains = bits * (measured[:, 0] / tables.share)[:, None] - _HEAD_BITS * tables.n_heads - _RECORD_BITS
    gain = gains.max(axis=1)
    promised = gain > dtype.bits * tables.min_gain
    if not promised.any():
        return ()
    if tables.is_part.any():
        promising = np.where(promised, gain, 0.0)
        of_parts = np.bincount(tables.whole[tables.is_part], promising[tables.is_part], len(shapes))
        is_better = promising >= of_parts  # of a tensor: than its matrices are together
        promised &= np.where(tables.is_part, ~is_better[tables.whole], is_better)
    chosen = np.flatnonzero(promised)
    chosen = np.sort(chosen[np.argsort(-gain[chosen], kind="stable")[:_MAX_TENSORS]])
    chosen_shapes = shapes[chosen]
    chosen_shapes[gains[chosen, 0] >= gains[chosen, 1], 2] = 1
    return _references(values, chosen_shapes, dtype)


def with_sign(columns: Sequence[ColumnReferences], more_bits: int) -> tuple[ColumnReferences, ...]:
    """Return column references for heads with the sign, which no reference changes, from those for heads without.

    Args:
        columns: References for the usual head; beyond what a byte holds they are cut off.
        more_bits: Bits that the head with the sign has more: 1 or 4; or 0 where it has a mantissa bit less.
    """
    if not columns:
        return ()
    heads = np.concatenate([references.heads for references in columns], dtype=np.int16) << more_bits
    heads = (np.minimum(np.maximum(heads, -128), 127) & -(1 << max(more_bits, 1))).astype(np.int8)
    ends = np.cumsum([len(references.heads) for references in columns]).tolist()
    return tuple(
        ColumnReferences(one.start, one.stop, one.n_columns, one.group, heads[end - len(one.heads) : end])
        for one, end in zip(columns, ends, strict=True)
    )


def _references(values: np.ndarray, shapes: np.ndarray, dtype: DType) -> tuple[ColumnReferences, ...]:
    """Fit the column references of chosen tensors.

    Args:
        values: uintW[n_values], the array.
        shapes: int64[n, 4], of each tensor, one at least: first value, columns, columns that share a reference, end.
        dtype: Type of the array.
    """
    start, n_columns, group, stop = shapes.T
    n_rows = (stop - start) // n_columns
    every = np.maximum(n_rows // np.maximum(_MIN_FIT_ROWS, _MIN_FIT_VALUES // n_columns), 1)
    tensors = np.column_stack([start, n_columns, group, n_columns, n_rows // every, every])
    heads = np.empty(int((n_columns // group).sum()), np.int8)
    find_column_heads(values, tensors, dtype.head_shift, dtype.head_mask, *_scratch(tensors, dtype), heads)
    ends = np.cumsum(n_columns // group).tolist()
    return tuple(
        ColumnReferences(first, last, columns, together, heads[end - columns // together : end])
        for (first, columns, together, last), end in zip(shapes.tolist(), ends, strict=True)
    )


def _scratch(tensors: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scratch for the kernels: a row of values, and two rows of sums."""
    size = int(tensors[:, 3].max()) + GROUP
    sums, numbers = np.empty((2, size), np.int32)
    return np.empty(size, dtype.uint), sums, numbers
