"""Column references: what the heads of a column have in common, beyond those of its row.

docs/format.md has their record in section 4 and their meaning in section 7.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..errors import Corruption
from ..kernels.core.bundles import Columns
from ..kernels.core.specialized import Specialized
from ..kernels.heads.column_references import pack_heads, unpack_heads

MARK = 1 << 31  #: what tells a record of column references from a template
MAX_COLUMNS = (1 << 24) - 1
_pack, _unpack = Specialized(pack_heads), Specialized(unpack_heads)
_RECORD = struct.Struct("<IQQHbB")


@dataclass(frozen=True, eq=False)
class ColumnReferences:
    """The heads that are added to those of a matrix, one for each group of columns.

    Attributes:
        start: Number of the value at which the matrix begins.
        stop: Number of the value after its last one.
        n_columns: Values in a row.
        group: Neighboring columns that share a head.
        heads: int8[n_columns / group], or int8[1] where all groups have the same.
        stored: The record that they were read from, which need not be the shortest; empty if they were made here.
    """

    start: int
    stop: int
    n_columns: int
    group: int
    heads: np.ndarray
    stored: bytes = b""

    @cached_property
    def record(self) -> bytes:
        """Return the record that stands in a frame."""
        if self.stored:
            return self.stored
        packed = np.zeros(len(self.heads) + 3, np.uint8)
        offset, width, n_bytes = _pack(None, self.heads, packed)
        head = _RECORD.pack(self.n_columns | MARK, self.start, self.stop, self.group, offset, width)
        return head + packed[: n_bytes + 3 & ~3].tobytes()


def read_column_references(data: bytes, at: int, n_values: int, after: int) -> tuple[ColumnReferences, int]:
    """Read a record of column references.

    Args:
        data: Bytes that hold the record.
        at: Byte at which it begins.
        n_values: Values of the frame.
        after: Value at which the matrix of the record before ends; this one must not begin earlier.

    Returns:
        The column references, and the byte after their record.

    Raises:
        Corruption: A field is outside its legal values, or the record ends early.
    """
    if at + _RECORD.size > len(data):
        raise Corruption("column references: their record does not fit into the prelude")
    marked, start, stop, group, offset, width = _RECORD.unpack_from(data, at)
    n_columns = marked & ~MARK
    good = 2 <= n_columns <= MAX_COLUMNS and group and n_columns % group == 0 and width <= 8
    if not good or not after <= start < stop <= n_values:
        raise Corruption(
            f"column references: a field is outside its legal values: {n_columns} columns in groups of {group}, "
            f"values {start} to {stop}, heads of {width} bits"
        )
    begin, at = at, at + _RECORD.size
    n_heads = n_columns // group if width else 1  # no more than there are bytes for
    n_bytes = (n_heads * width + 7) // 8
    end = at + (n_bytes + 3 & ~3)
    if end > len(data) or any(data[at + n_bytes : end]):
        raise Corruption("column references: their heads do not fit into the prelude, or the padding is not zero")
    heads = np.empty(n_heads, np.int8)
    if _unpack(None, np.frombuffer(data, np.uint8), at, width, offset, heads) > 127:
        raise Corruption("column references: a head is above 127")
    return ColumnReferences(start, stop, n_columns, group, heads, data[begin:end]), end


#: Up to this many columns each gets a head of its own, whatever the groups: kernels then copy whole rows of heads.
_MAX_SPREAD = 1 << 16


@lru_cache(4)
def for_kernels(references: tuple[ColumnReferences, ...]) -> Columns:
    """Return the column references of a frame as the kernels take them; those of the last few frames are kept."""
    spans, parts, at = list[int](), list[np.ndarray](), 0
    for reference in references:
        heads, n_columns = reference.heads, reference.n_columns
        group = n_columns // len(heads)
        if group > 1 and n_columns <= _MAX_SPREAD:
            heads, group = np.repeat(heads, group), 1
        spans += reference.start, reference.stop, n_columns, at, group
        parts.append(heads)
        at += len(heads)
    return Columns(np.array(spans, np.int64), np.concatenate([_NO_HEADS, *parts]))


_NO_HEADS = np.zeros(0, np.int8)
