"""Weigh other heads than the usual one, the exponent (docs/format.md section 2): with a mantissa bit, which suits
values that are spread unevenly between two powers of two, or with the sign, or with the sign and three mantissa bits,
where the exponents say much about them."""

from __future__ import annotations

import numpy as np

from ..dtypes import DType
from ..kernels.core.specialized import Specialized
from ..kernels.heads.sign_in_head import MAX_TOLD_HEADS, bits_tell
from .columns import Tables, fit_columns, with_sign
from .sampling import Candidate, SamplePlanner

MIN_WIDE_VALUES = 1 << 12  #: values from which a wide head is considered
MIN_SIGNED_VALUES = 1 << 12  #: values from which a sign in the head is considered
MIN_OTHER_HEADS = min(MIN_WIDE_VALUES, MIN_SIGNED_VALUES)  #: values from which any of them is
MIN_FINE_VALUES = 1 << 16  #: values from which three mantissa bits are considered with it


def with_other_heads(
    planner: SamplePlanner,
    first: Candidate,
    dtype: DType,
    tables: Tables | None,
    smallest: bool,
    with_wide_head: Candidate | None = None,
) -> list[tuple[Candidate, float]]:
    """Return candidates with other heads than the usual one, and what share of its size each has to save.

    Args:
        planner: Samples the array.
        first: The candidate with the usual head.
        dtype: The value type.
        tables: Tensors that may get column references, if there are any.
        smallest: True if any saving is welcome, and all heads are to be tried.
        with_wide_head: The candidate with the wide head, if it is known.
    """
    values, results = planner.values, []
    wide, signed, fine = dtype.wide, dtype.signed, dtype.fine
    if wide is not None and len(values) >= MIN_WIDE_VALUES and (dtype.bits < 32 or smallest or not first.columns):
        candidate = with_wide_head or _with_wide_head(planner, first, wide, tables)
        results.append((candidate, 0.0 if smallest else wide.min_saving))
    for other, n_more, min_values in ((signed, 0, MIN_SIGNED_VALUES), (fine, 3, MIN_FINE_VALUES)):
        if other is None or len(values) < (MIN_SIGNED_VALUES if smallest else min_values):
            continue
        if smallest or have_telling_bits(values, dtype, n_more):
            columns = with_sign(first.columns, other.head_bits - dtype.head_bits)
            candidate = planner.best(other, [first.stream_log2], columns)
            results.append((candidate, 0.0 if smallest else other.min_saving))
    return results


def have_telling_bits(values: np.ndarray, dtype: DType, n_more: int) -> bool:
    """Return True if the signs of an array, and ``n_more`` mantissa bits, may be worth a place in the head. ``values``:
    uintW[n]."""
    counts = np.zeros(MAX_TOLD_HEADS << n_more + 1, np.uint32)
    return bool(_bits_tell(dtype.bits, values, dtype.head_shift, n_more, counts))


_bits_tell = Specialized(bits_tell)


def _with_wide_head(planner: SamplePlanner, first: Candidate, wide: DType, tables: Tables | None) -> Candidate:
    """Return a candidate with a wide head, and with column references for the tensors that have them in another.

    Args:
        planner: Samples the array.
        first: The other candidate.
        wide: The value type with a wide head.
        tables: Tensors that may get column references, if there are any.
    """
    places = {(tensor.start, tensor.stop) for tensor in first.columns}
    rows = [tensor for tensor in tables.rows if (tensor.start, tensor.stop) in places] if tables else []
    columns = fit_columns(planner.values, Tables(rows), wide) if rows else ()
    return planner.best(wide, [first.stream_log2], columns)
