"""Which tensors have columns that differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .columns import ColumnReferences
from .kernels.columns import measure_columns, sum_columns
from .prediction import Rows
from .valuetypes import ValueType

_LEAST_ROWS, _FIT_VALUES = 32, 1 << 14  #: of each tensor, so many rows or values are looked at
_MOST = 64  #: tensors with column references in a frame
_RECORD_BITS, _HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
_MARGIN = 0.002  #: least share of its size that they must promise to take off a tensor
_STEP_VARIANCE = 1 / 12  #: of what rounding to whole heads leaves out


def fit_columns(values: np.ndarray, rows: Sequence[Rows], dtype: ValueType) -> tuple[ColumnReferences, ...]:
    """Column references of the tensors that promise to gain by them. ``values``: uintW[n]; ``rows``: tensors in it.

    The gain is estimated as if heads were distributed normally: of a quarter of the variance, they take a bit less.
    """
    shapes = np.array([(one.start, one.n_columns, one.group, one.stop) for one in rows], np.int64)
    n_rows = (shapes[:, 3] - shapes[:, 0]) // shapes[:, 1]
    looked_at = np.minimum(n_rows, np.maximum(_LEAST_ROWS, _FIT_VALUES // shapes[:, 1]))
    tensors = np.column_stack([shapes[:, :3], looked_at, n_rows // looked_at])
    found, most = np.empty((len(rows), 4), np.int64), int(shapes[:, 1].max())
    sums, numbers = np.empty((2, most), np.int32)
    measure_columns(values, tensors, dtype.head_shift, dtype.head_mask, sums, numbers, found)
    total = np.maximum(found[:, 0], 1)
    variance = found[:, 1] / total + _STEP_VARIANCE
    groups = np.column_stack([np.ones_like(total), shapes[:, 2]])
    bits = np.log2(variance[:, None] / (variance[:, None] - found[:, 2:] / total[:, None])) / 2
    n_heads = shapes[:, 1:2] // groups
    gains = bits * (found[:, 0] * n_rows / looked_at)[:, None] - _HEAD_BITS * n_heads - _RECORD_BITS
    best = gains.argmax(axis=1)
    gain = gains[np.arange(len(rows)), best]
    chosen = np.flatnonzero(gain > _MARGIN * dtype.bits * (shapes[:, 3] - shapes[:, 0]))
    chosen = np.sort(chosen[np.argsort(-gain[chosen], kind="stable")[:_MOST]])
    return tuple(_references(values, rows[t], int(groups[t, best[t]]), tensors[t], dtype) for t in chosen.tolist())


def _references(
    values: np.ndarray, tensor: Rows, group: int, look: np.ndarray, dtype: ValueType
) -> ColumnReferences:
    """The references of a tensor. ``look``: a row of what :func:`measure_columns` takes."""
    n_columns, n_rows, every = tensor.n_columns, int(look[3]), int(look[4])
    sums, numbers = np.zeros((2, n_columns), np.int32)
    some = values[tensor.start : tensor.stop]
    sum_columns(some, n_columns, n_rows, every, dtype.head_shift, dtype.head_mask, sums, numbers)
    totals, many = (one.reshape(-1, group).sum(axis=1, dtype=np.int64) for one in (sums, numbers))
    heads = np.clip((2 * totals + many) // np.maximum(2 * many, 1), -100, 100)
    return ColumnReferences(tensor.start, tensor.stop, n_columns, group, heads.astype(np.int8))
