"""Codebooks of changes: the codes of sparse blocks (docs/format.md, section 5, kind 3, and section 9)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..errors import Corruption
from ..kernels.entropy import prefix_code
from ..kernels.entropy.changes import (
    MAX_CATEGORIES,
    MAX_CLASSES,
    ChangeCodes,
    ChangeTables,
    fill_class_table,
    fill_step_table,
)
from ..kernels.entropy.encode_streams import checksum
from ..kernels.entropy.prefix_code import MAX_LENGTH, TABLE_SIZE
from .codebook import BY_ID, MAX_SYMBOLS, end_of_lengths, read_lengths

CHANGES = 3  #: kind of record
MAX_CHANGE_CODEBOOKS = 16
_KINDS_OF_STEPS = 3


class _Codes(NamedTuple):
    """Codes by symbol, uint32[n] each, first bit lowest."""

    counts: np.ndarray
    steps: np.ndarray
    classes: tuple[np.ndarray, ...]


class SymbolBits(NamedTuple):
    """Says how many bits symbols take: their code's length, and the bits that follow it to say which number of a
    category or which step it is.

    Attributes:
        counts: int64[41], of numbers of changes.
        steps: int64[2 * W + 1], or int64[0].
        classes: int64[n_classes, n_symbols].
    """

    counts: np.ndarray
    steps: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class ChangeCodebook:
    """The codes of sparse blocks.

    Attributes:
        bits: Bits of a value.
        thresholds: Where the classes after the first begin; () where there are less than two.
        counts: Code lengths of the categories of counts, 41 of them.
        steps: Code lengths of the steps, 2 * bits + 1 of them; none where symbols are gaps alone.
        classes: Code lengths of the symbols of each class: 3 for each category of gaps, or one where ``steps`` is
            empty. All classes have as many.
    """

    bits: int
    thresholds: tuple[int, ...]
    counts: bytes
    steps: bytes
    classes: tuple[bytes, ...]

    @property
    def with_base(self) -> bool:
        """Return True if changes have steps, so that blocks have a base."""
        return bool(self.steps)

    @property
    def n_kinds(self) -> int:
        """Return the number of symbols for a category of gaps."""
        return _KINDS_OF_STEPS if self.steps else 1

    @property
    def n_gaps(self) -> int:
        """Return the number of categories of gaps."""
        return len(self.classes[0]) // self.n_kinds

    @cached_property
    def is_empty(self) -> np.ndarray:
        """Return which classes have no changes: bool[n_classes]."""
        return np.array([not any(lengths) for lengths in self.classes])

    @cached_property
    def codes(self) -> _Codes:
        """Return the canonical codes. Raises Corruption if one is not complete."""
        return _Codes(_codes_of(self.counts), _codes_of(self.steps), tuple(map(_codes_of, self.classes)))

    @cached_property
    def symbol_bits(self) -> SymbolBits:
        """Return how many bits symbols take; of one that has no code, those that would follow it."""
        counts, steps = (np.frombuffer(lengths, np.uint8).astype(np.int64) for lengths in (self.counts, self.steps))
        classes = np.frombuffer(b"".join(self.classes), np.uint8).reshape(len(self.classes), self.n_gaps, self.n_kinds)
        by_gap = CATEGORY_BITS[: self.n_gaps, None]
        return SymbolBits(
            counts + CATEGORY_BITS,
            steps + np.maximum((np.arange(len(steps)) + 1) // 2 - 1, 0),
            (classes + by_gap).reshape(len(self.classes), -1),
        )

    @property
    def variant(self) -> int:
        """Return the number of classes that kernels are compiled for: this many or a few more."""
        return next(n for n in VARIANTS if n >= len(self.classes))

    def threshold_tuple(self) -> tuple[np.unsignedinteger, ...]:
        """Return where each class ends, as the kernels want it: uintW, as many as :attr:`variant` says."""
        kind = np.dtype(f"u{self.bits // 8}").type
        return (*map(kind, self.thresholds), *[kind(1 << self.bits - 1)] * (self.variant - len(self.thresholds)))

    def encode_tables(self) -> ChangeCodes:
        """Return the tables to encode with."""
        codes = self.codes
        rows = [_entries(lengths, code) for lengths, code in zip(self.classes, codes.classes, strict=True)]
        return ChangeCodes(
            np.stack(rows + [np.zeros_like(rows[0])] * (self.variant - len(rows))),
            _entries(self.steps, codes.steps),
            _entries(self.counts, codes.counts),
            self.n_kinds,
            self._padded_empty,
        )

    def decode_tables(self) -> ChangeTables:
        """Return the tables to decode with."""
        codes, classes = self.codes, np.zeros((self.variant, TABLE_SIZE), np.uint32)
        for lengths, code, row in zip(self.classes, codes.classes, classes, strict=False):
            fill_class_table(_array(lengths), code, self.n_kinds, row)
        counts, steps = np.zeros(TABLE_SIZE, np.uint32), np.zeros(TABLE_SIZE, np.uint16)
        fill_class_table(_array(self.counts), codes.counts, 1, counts)
        fill_step_table(_array(self.steps), codes.steps, steps)
        return ChangeTables(classes.reshape(-1), steps, counts, self._padded_empty)

    @property
    def _padded_empty(self) -> np.ndarray:
        return np.concatenate([self.is_empty, np.ones(self.variant - len(self.classes), np.bool_)])

    @cached_property
    def record(self) -> bytes:
        """Return the record, which :func:`read_changes` reads."""
        n_classes = len(self.classes) if self.with_base else 0
        head = struct.pack("<BBBB", CHANGES, n_classes, self.n_gaps, self.bits // 8)
        head += b"".join(threshold.to_bytes(self.bits // 8, "little") for threshold in self.thresholds)
        lengths = b"".join((self.counts, self.steps, *self.classes))
        pairs = np.frombuffer(lengths + bytes(len(lengths) & 1), np.uint8).reshape(-1, 2)
        record = head + (pairs[:, 0] | pairs[:, 1] << np.uint8(4)).tobytes()
        return record + bytes(-len(record) % 4)

    @cached_property
    def hash(self) -> int:
        """Return the checksum of the record that a reference by id carries."""
        data = np.frombuffer(bytearray(self.record), np.uint8)
        return int(checksum(data, 0, len(data) // 4, -1, np.uint64(256 + self.bits)))

    def reference(self, codebook_id: int) -> bytes:
        """Return the record that names this codebook by id instead of carrying it."""
        return struct.pack("<B3xIQ", BY_ID, codebook_id, self.hash)


VARIANTS = (1, 4, 8, 16)  #: numbers of classes that kernels are compiled for
CATEGORY_BITS = np.maximum((np.arange(MAX_CATEGORIES) >> 1) - 1, 0)  #: what follows a category, see ``category_bits``


def _array(lengths: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(lengths), np.uint8)


def _codes_of(lengths: bytes) -> np.ndarray:
    """Return the canonical codes of code lengths: uint32[n]. Raises Corruption unless it is complete or empty."""
    codes, following = np.zeros(256, np.uint32), np.empty(MAX_LENGTH + 1, np.uint32)
    total = prefix_code.canonical_codes(_array(lengths.ljust(256, b"\0")), MAX_SYMBOLS, following, codes)
    if any(lengths) and total != 1 << MAX_LENGTH:
        raise Corruption("codebook of changes: its code lengths do not make complete prefix codes")
    return codes[: len(lengths)]


def _entries(lengths: bytes, codes: np.ndarray) -> np.ndarray:
    """Return codes and their lengths as :class:`ChangeCodes` has them."""
    return (codes << np.uint32(4) | _array(lengths)).astype(np.uint32)


def read_changes(data: bytes, at: int, dtype: DType) -> tuple[ChangeCodebook, int]:
    """Read the record of a codebook of changes.

    Args:
        data: Bytes that hold the record.
        at: Byte at which it begins; 4 bytes are there.
        dtype: Type of the frame's values.

    Returns:
        The codebook, and the byte after its record.

    Raises:
        Corruption: The record does not fit the frame, ends early or has a code that is not complete.
    """
    _, n_classes, n_gaps, value_bytes = data[at : at + 4]
    if n_classes > MAX_CLASSES or not 1 <= n_gaps <= MAX_CATEGORIES or value_bytes != dtype.itemsize:
        raise Corruption(
            f"codebook of changes: {n_classes} classes, {n_gaps} categories of gaps, values of {value_bytes} bytes; "
            f"there must be at most {MAX_CLASSES} classes, 1 to {MAX_CATEGORIES} categories, and {dtype.itemsize} bytes"
        )
    n_kinds, n_steps = (_KINDS_OF_STEPS, 2 * dtype.bits + 1) if n_classes else (1, 0)
    n_lengths = MAX_CATEGORIES + n_steps + max(n_classes, 1) * n_kinds * n_gaps
    lengths_at = at + 4 + max(n_classes - 1, 0) * value_bytes
    end = end_of_lengths(data, at, lengths_at, n_lengths, "codebook of changes")
    thresholds = tuple(
        int.from_bytes(data[place : place + value_bytes], "little") for place in range(at + 4, lengths_at, value_bytes)
    )
    if any(low >= high for low, high in zip((0, *thresholds), (*thresholds, 1 << dtype.bits - 1), strict=True)):
        raise Corruption(f"codebook of changes: thresholds {thresholds} must rise, above 0 and below the sign bit")
    lengths = read_lengths(data, lengths_at, end, n_lengths, "codebook of changes").tobytes()
    steps_end = MAX_CATEGORIES + n_steps
    rows = tuple(lengths[first : first + n_kinds * n_gaps] for first in range(steps_end, n_lengths, n_kinds * n_gaps))
    codebook = ChangeCodebook(dtype.bits, thresholds, lengths[:MAX_CATEGORIES], lengths[MAX_CATEGORIES:steps_end], rows)
    _ = codebook.codes  # refuses incomplete codes
    return codebook, end
