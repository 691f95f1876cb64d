"""Which tensors have columns that differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences
from ..kernels.sample.column_means import GROUP, find_column_heads, measure_columns
from .prediction import Rows

_LOOK_ROWS, _LOOK_COLUMNS = 64, 64  #: of each tensor, so many are looked at to choose tensors, and
_LEAST_ROWS, _FIT_VALUES = 32, 1 << 14  #: so many rows or values to fit references
_MOST = 64  #: tensors with column references in a frame
_RECORD_BITS, _HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
_MARGIN = 0.002  #: least share of its size that they must promise to take off a tensor
_STEP_VARIANCE = 1 / 12  #: of what rounding to whole heads leaves out


def fit_columns(values: np.ndarray, rows: Sequence[Rows], dtype: DType) -> tuple[ColumnReferences, ...]:
    """Column references of the tensors that promise to gain by them. ``values``: uintW[n]; ``rows``: tensors in it.

    The gain is estimated as if heads were distributed normally: of a quarter of the variance, they take a bit less.
    """
    shapes = np.array([(one.start, one.n_columns, one.group, one.stop) for one in rows], np.int64)
    n_columns, group = shapes[:, 1], shapes[:, 2]
    n_rows, seen = (shapes[:, 3] - shapes[:, 0]) // n_columns, np.maximum(_LOOK_COLUMNS // group, 1) * group
    every = np.maximum(n_rows // _LOOK_ROWS, 1)
    tensors = np.column_stack([shapes[:, :3], np.minimum(seen, n_columns), n_rows // every, every])
    found = np.empty((len(rows), 4), np.int64)
    measure_columns(values, tensors, dtype.head_shift, dtype.head_mask, *_scratch(tensors, dtype), found)
    total = np.maximum(found[:, 0], 1)
    variance = found[:, 1] / total + _STEP_VARIANCE
    groups = np.column_stack([np.ones_like(total), group])
    bits = np.log2(variance[:, None] / (variance[:, None] - found[:, 2:] / total[:, None])) / 2
    n_heads = n_columns[:, None] // groups
    share = tensors[:, 3] * tensors[:, 4] / (n_columns * n_rows)
    gains = bits * (found[:, 0] / share)[:, None] - _HEAD_BITS * n_heads - _RECORD_BITS
    best = gains.argmax(axis=1)
    gain = gains[np.arange(len(rows)), best]
    chosen = np.flatnonzero(gain > _MARGIN * dtype.bits * (shapes[:, 3] - shapes[:, 0]))
    chosen = np.sort(chosen[np.argsort(-gain[chosen], kind="stable")[:_MOST]])
    shapes[:, 2] = groups[np.arange(len(rows)), best]
    return _references(values, shapes[chosen], dtype)


def _references(values: np.ndarray, shapes: np.ndarray, dtype: DType) -> tuple[ColumnReferences, ...]:
    """The references of tensors: int64[n, 4] of first value, columns, group and last value."""
    if not len(shapes):
        return ()
    start, n_columns, group, stop = shapes.T
    n_rows = (stop - start) // n_columns
    every = np.maximum(n_rows // np.maximum(_LEAST_ROWS, _FIT_VALUES // n_columns), 1)
    tensors = np.column_stack([start, n_columns, group, n_columns, n_rows // every, every])
    heads = np.empty(int((n_columns // group).sum()), np.int8)
    find_column_heads(values, tensors, dtype.head_shift, dtype.head_mask, *_scratch(tensors, dtype), heads)
    ends = np.cumsum(n_columns // group).tolist()
    return tuple(
        ColumnReferences(first, last, columns, together, heads[end - columns // together : end])
        for (first, columns, together, last), end in zip(shapes.tolist(), ends, strict=True)
    )


def _scratch(tensors: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the kernels work in: a row of values, and of two sums for each."""
    most = int(tensors[:, 3].max()) + GROUP
    sums, numbers = np.empty((2, most), np.int32)
    return np.empty(most, dtype.uint), sums, numbers
