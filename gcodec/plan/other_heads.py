"""Weigh other heads than the usual one, the exponent (docs/format.md section 2): with a mantissa bit, which suits
values that are spread unevenly between two powers of two, or with the sign, or with the sign and three mantissa bits,
where the exponents say much about them."""

from __future__ import annotations

import numpy as np

from ..dtypes import DType
from ..kernels.core.specialized import Specialized
from ..kernels.heads.sign_in_head import MAX_TOLD_HEADS, bits_tell
from ..memory import acquire, release
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
    tell: int,
    with_wide_head: Candidate | None = None,
) -> list[tuple[Candidate, float]]:
    """Return candidates with other heads than the usual one, and what share of its size each has to save.

    Args:
        planner: Samples the array.
        first: The candidate with the usual head.
        tables: Tensors that may get column references, if there are any.
        smallest: True if any saving is welcome.
        tell: Which bits are worth a try in the head, as :func:`telling_bits` returns it.
        with_wide_head: The candidate with the wide head, if it is known.
    """
    n_values, results = len(planner.values), []
    wide = dtype.wide
    if wide is not None and n_values >= MIN_WIDE_VALUES and (dtype.bits < 32 or smallest or not first.columns):
        candidate = with_wide_head or _with_wide_head(planner, first, wide, tables)
        results.append((candidate, 0.0 if smallest else wide.min_saving))
    if not tell or n_values < MIN_SIGNED_VALUES:
        return results
    for other, which in ((dtype.signed, _SIGN), (dtype.fine, _FINE)):
        if other is not None and tell & which:
            columns = with_sign(first.columns, other.head_bits - dtype.head_bits)
            if which == _SIGN and tell & _ONE_SIGN:  # which changes nothing of what columns are worth
                candidate = planner.candidate(other, first.stream_log2, columns)
            else:  # they may not pay with this head
                candidate = planner.best(other, [first.stream_log2], columns)
            results.append((candidate, 0.0 if smallest else other.min_saving))
    return results


ALL_TELL = 3  #: what stands for all bits, as :func:`telling_bits` returns them


def telling_bits(values: np.ndarray, dtype: DType) -> int:
    """Return which bits of uintW[n] may be worth a place in the head: 1 for the signs, 2 for these and mantissa bits,
    and the sum for either; 0 for none. 4 is added where no values differ in their signs, as far as some show."""
    n = len(values)
    if n < MIN_SIGNED_VALUES or dtype.signed is None:
        return 0
    n_more = _FINE_BITS if n >= MIN_FINE_VALUES and dtype.fine is not None else 0
    counts = acquire("telling bits", _new_counts)
    tell: int = _bits_tell[dtype.bits](values, dtype.head_shift, n_more, counts)
    release("telling bits", counts)
    return tell


def _new_counts() -> np.ndarray:
    """Return room for what is counted to tell: uint32[2, n]."""
    return np.empty((2, MAX_TOLD_HEADS << _FINE_BITS + 1), np.uint32)


_SIGN, _FINE, _ONE_SIGN = 1, 2, 4  #: what ``bits_tell`` says: bits that may be worth a place in the head, and why
_FINE_BITS = 3  #: mantissa bits in the head of a fine type
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
