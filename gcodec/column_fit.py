"""Which tensors have columns that differ in scale, and by how much: column references (docs/format.md section 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .columns import ColumnReferences
from .kernels import columns as kernels
from .kernels.survey import entropy_bits
from .prediction import Rows
from .valuetypes import ValueType

_FIT_ROWS = 192  #: rows that are looked at, of each tensor
_MOST = 64  #: tensors with column references in a frame
_RECORD_BITS, _HEAD_BITS = 256, 4  #: what a record takes, and each of its heads, about
_MARGIN = 0.002  #: least share of its size that they must take off a tensor


def fit_columns(values: np.ndarray, rows: Sequence[Rows], dtype: ValueType) -> tuple[ColumnReferences, ...]:
    """Column references of the tensors that have some worth having. ``values``: uintW[n]; ``rows``: tensors in it."""
    found = []
    for tensor in rows:
        candidates = [_fit(values[tensor.start : tensor.stop], tensor.n_columns, group, dtype)
                      for group in dict.fromkeys((1, tensor.group))]
        gain, group, heads = max(candidates, key=lambda one: one[0])
        if gain > _MARGIN * (tensor.stop - tensor.start) * dtype.bits:
            found.append(ColumnReferences(tensor.start, tensor.stop, tensor.n_columns, group, heads))
    return tuple(found[:_MOST])


def _fit(values: np.ndarray, n_columns: int, group: int, dtype: ValueType) -> tuple[float, int, np.ndarray]:
    """(bits saved, group, heads) of a tensor."""
    n_rows, n_heads = len(values) // n_columns, n_columns // group
    picks = np.linspace(0, n_rows - 1, min(n_rows, _FIT_ROWS)).astype(np.int64)
    sums, numbers = np.zeros((2, n_heads), np.int64)
    heads, (plain, relative) = np.empty(n_heads, np.int8), np.zeros((2, 512), np.uint32)
    kernels.fit_columns(
        values, n_columns, picks, group, dtype.head_shift, dtype.head_mask, sums, numbers, heads, plain, relative
    )
    saved = (int(entropy_bits(plain)) - int(entropy_bits(relative))) / 256
    return saved * n_rows / len(picks) - _HEAD_BITS * n_heads - _RECORD_BITS, group, heads
