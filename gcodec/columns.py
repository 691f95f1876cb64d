"""Column references: what the heads of a column have in common beyond those of its row (docs/format.md sections 4 and
7)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from .errors import Corruption
from .kernels.parameters import Columns

MARK = 1 << 31  #: what tells a record of column references from a template
MAX_COLUMNS = (1 << 24) - 1
_RECORD = struct.Struct("<IQQHbB")


@dataclass(frozen=True, eq=False)
class ColumnReferences:
    """Values ``start ... stop`` of an array are rows of ``n_columns``; every ``group`` columns have one of ``heads``
    (int8[n_columns / group], or the one that all share), which is added to their heads. ``stored``: the record that
    they were read from, which need not be the shortest."""

    start: int
    stop: int
    n_columns: int
    group: int
    heads: np.ndarray
    stored: bytes = b""

    @cached_property
    def record(self) -> bytes:
        """As in a frame."""
        if self.stored:
            return self.stored
        least = int(self.heads.min())
        numbers = (self.heads.astype(np.int64) - least).astype(np.uint8)
        width = int(numbers.max()).bit_length()
        packed = b""
        if width:
            bits = np.unpackbits(numbers[:, None], axis=1, count=width, bitorder="little")
            packed = np.packbits(bits, bitorder="little").tobytes()
        head = _RECORD.pack(self.n_columns | MARK, self.start, self.stop, self.group, least, width)
        return head + packed + bytes(-len(packed) % 4)


def read_column_references(data: bytes, at: int, n_values: int, after: int) -> tuple[ColumnReferences, int]:
    """The record at ``at`` and where it ends. ``after``: where the rows of the one before end. Raises Corruption."""
    if at + _RECORD.size > len(data):
        raise Corruption("column references: end early")
    marked, start, stop, group, least, width = _RECORD.unpack_from(data, at)
    n_columns = marked & ~MARK
    good = 2 <= n_columns <= MAX_COLUMNS and group and n_columns % group == 0 and width <= 8
    if not good or not after <= start < stop <= n_values:
        raise Corruption(f"column references: {n_columns} columns in groups of {group}, values {start} to {stop}")
    begin, at = at, at + _RECORD.size
    n_heads = n_columns // group if width else 1  # no more than there are bytes for
    n_bytes = (n_heads * width + 7) // 8
    end = at + (n_bytes + 3 & ~3)
    if end > len(data) or any(data[at + n_bytes : end]):
        raise Corruption("column references: end early, or padding is not zero")
    heads = np.full(n_heads, least, np.int64)
    if width:
        bits = np.unpackbits(np.frombuffer(data, np.uint8, n_bytes, at), count=n_heads * width, bitorder="little")
        heads += bits.reshape(n_heads, width) @ (1 << np.arange(width))
    if heads.max() > 127:
        raise Corruption("column references: beyond 127")
    return ColumnReferences(start, stop, n_columns, group, heads.astype(np.int8), data[begin:end]), end


_SPREAD = 1 << 16  #: most columns of which each gets a number of its own, whatever their groups: for speed


@lru_cache(4)
def for_kernels(found: tuple[ColumnReferences, ...]) -> Columns:
    """As the kernels want them."""
    spans: list[int] = []
    heads, begin = [np.zeros(0, np.int8)], 0
    for one in found:
        group, own = one.n_columns // len(one.heads), one.heads
        if one.n_columns <= _SPREAD:
            group, own = 1, np.repeat(own, group)
        spans += (one.start, one.stop, one.n_columns, begin, group)
        heads.append(own)
        begin += len(own)
    return Columns(np.array(spans, np.int64), np.concatenate(heads))

