"""Find tensors whose columns differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences
from ..kernels.sample.column_means import GROUP, find_column_heads, measure_columns
from .prediction import Rows

_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 64  #: of each tensor, so many are sampled to choose tensors, and
_MIN_FIT_ROWS, _MIN_FIT_VALUES = 32, 1 << 14  #: so many rows or values to fit references
_MAX_TENSORS = 64  #: tensors with column references in a frame
_RECORD_BITS, _HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
_MARGIN = 0.002  #: smallest share of its size that they must promise to take off a tensor
_STEP_VARIANCE = 1 / 12  #: of what rounding to whole heads leaves out


def fit_columns(values: np.ndarray, rows: Sequence[Rows], dtype: DType) -> tuple[ColumnReferences, ...]:
    """Return column references of the tensors that promise to gain by them.

    The gain is estimated as if heads were distributed normally: of a quarter of the variance, they take a bit less.

    Args:
        values: uintW[n_values], the array.
        rows: Tensors in it, at least one.
        dtype: Its type, perhaps with a wide head.
    """
    shapes = np.array([(tensor.start, tensor.n_columns, tensor.group, tensor.stop) for tensor in rows], np.int64)
    n_columns, group = shapes[:, 1], shapes[:, 2]
    n_rows, n_sampled = (shapes[:, 3] - shapes[:, 0]) // n_columns, np.maximum(_SAMPLE_COLUMNS // group, 1) * group
    every = np.maximum(n_rows // _SAMPLE_ROWS, 1)
    tensors = np.column_stack([shapes[:, :3], np.minimum(n_sampled, n_columns), n_rows // every, every])
    measured = np.empty((len(rows), 4), np.int64)
    measure_columns(values, tensors, dtype.head_shift, dtype.head_mask, *_scratch(tensors, dtype), measured)
    total = np.maximum(measured[:, 0], 1)
    variance = measured[:, 1] / total + _STEP_VARIANCE
    groups = np.column_stack([np.ones_like(total), group])
    bits = np.log2(variance[:, None] / (variance[:, None] - measured[:, 2:] / total[:, None])) / 2
    n_heads = n_columns[:, None] // groups
    share = tensors[:, 3] * tensors[:, 4] / (n_columns * n_rows)
    gains = bits * (measured[:, 0] / share)[:, None] - _HEAD_BITS * n_heads - _RECORD_BITS
    best = gains.argmax(axis=1)
    gain = gains[np.arange(len(rows)), best]
    chosen = np.flatnonzero(gain > _MARGIN * dtype.bits * (shapes[:, 3] - shapes[:, 0]))
    chosen = np.sort(chosen[np.argsort(-gain[chosen], kind="stable")[:_MAX_TENSORS]])
    shapes[:, 2] = groups[np.arange(len(rows)), best]
    return _references(values, shapes[chosen], dtype)


def _references(values: np.ndarray, shapes: np.ndarray, dtype: DType) -> tuple[ColumnReferences, ...]:
    """Fit the column references of chosen tensors.

    Args:
        values: uintW[n_values], the array.
        shapes: int64[n, 4], of each tensor: first value, columns, columns that share a reference, end.
        dtype: Type of the array.
    """
    if not len(shapes):
        return ()
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
