"""Which tensors have columns that differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .columns import ColumnReferences
from .kernels.columns import sum_columns
from .prediction import Rows
from .valuetypes import ValueType

_LEAST_ROWS, _FIT_VALUES = 48, 1 << 16  #: of each tensor, so many rows or values are looked at
_MOST = 64  #: tensors with column references in a frame
_RECORD_BITS, _HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
_MARGIN = 0.001  #: least share of its size that they must promise to take off a tensor
_STEP_VARIANCE = 1 / 12  #: of what rounding to whole heads leaves out


def fit_columns(values: np.ndarray, rows: Sequence[Rows], dtype: ValueType) -> tuple[ColumnReferences, ...]:
    """Column references of the tensors that promise to gain by them. ``values``: uintW[n]; ``rows``: tensors in it."""
    found = []
    for tensor in rows:
        gain, group, heads = _fit(values[tensor.start : tensor.stop], tensor, dtype)
        if gain > _MARGIN * (tensor.stop - tensor.start) * dtype.bits:
            found.append(ColumnReferences(tensor.start, tensor.stop, tensor.n_columns, group, heads))
    return tuple(found[:_MOST])


def _fit(values: np.ndarray, tensor: Rows, dtype: ValueType) -> tuple[float, int, np.ndarray]:
    """(bits saved, group, heads) of a tensor. As if heads were distributed normally: of half the variance, they take
    half a bit less."""
    n_columns, n_rows = tensor.n_columns, len(values) // tensor.n_columns
    picks = np.linspace(0, n_rows - 1, min(n_rows, max(_LEAST_ROWS, _FIT_VALUES // n_columns))).astype(np.int64)
    sums, numbers = np.zeros((2, n_columns), np.int32)
    squares = sum_columns(values, n_columns, picks, dtype.head_shift, dtype.head_mask, sums, numbers)
    best: tuple[float, int, np.ndarray] = (0.0, 1, np.zeros(n_columns, np.int8))
    for group in dict.fromkeys((1, tensor.group)):
        by_group, many = (one.reshape(-1, group).sum(axis=1, dtype=np.int64) for one in (sums, numbers))
        heads = np.clip(np.floor_divide(2 * by_group + many, np.maximum(2 * many, 1)), -100, 100)
        total = max(int(many.sum()), 1)
        before = squares / total + _STEP_VARIANCE
        after = before - int((heads * (2 * by_group - many * heads)).sum()) / total
        saved = total / 2 * math.log2(before / after) * n_rows / len(picks)
        gain = saved - _HEAD_BITS * len(heads) - _RECORD_BITS
        best = max(best, (gain, group, heads.astype(np.int8)), key=lambda one: one[0])
    return best
