"""Dictionaries: the few values, or factors of values, that indexed blocks name (docs/format.md, section 5, kind 4)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..dtypes import BY_NAME, DType
from ..errors import Corruption, Unsupported
from .codebook import INLINE, Codebook, read_inline

DICTIONARY = 4  #: kind of record
MAX_DICTIONARIES = 16
MAX_ENTRIES = 256
INDEX_TYPE = BY_NAME["float8_e4m3fn"]  #: the type that indices are coded as, because its values are bytes and all head
_VALUES, _FACTORS, _OFFSETS = 0, 1, 3  #: forms
_INFINITY, _SIGN = 0x7F800000, 0x80000000


@dataclass(frozen=True)
class Dictionary:
    """The values, or the factors of values, that indexed blocks name, and the code of their indices.

    Attributes:
        has_factors: True if a value is an entry times a scale, False if it is an entry.
        has_offsets: True if an offset is added to that product.
        entries: The entries' bits as little-endian bytes: values of W bits, or factors as float32.
        entry_bytes: Bytes of an entry.
        codebook: The codes of indices.
    """

    has_factors: bool
    entries: bytes
    entry_bytes: int
    codebook: Codebook
    has_offsets: bool = False

    @property
    def n_entries(self) -> int:
        """Return the number of entries."""
        return len(self.entries) // self.entry_bytes

    @cached_property
    def table(self) -> np.ndarray:
        """Return the entries' bits, and 0 for indices that have none: uintW[256], or uint32[256] of factors."""
        table = np.zeros(MAX_ENTRIES, f"<u{self.entry_bytes}")
        table[: self.n_entries] = np.frombuffer(self.entries, table.dtype)
        return table.astype(f"u{self.entry_bytes}", copy=False)

    @property
    def factors(self) -> np.ndarray:
        """Return the factors, 0 of the same sign for denormal ones, 0 for indices that have none: float32[256]."""
        bits = self.table
        return np.where(bits & np.uint32(_INFINITY), bits, bits & np.uint32(_SIGN)).view(np.float32)

    @cached_property
    def record(self) -> bytes:
        """Return the record, which :func:`read_dictionary` reads."""
        form = _OFFSETS if self.has_offsets else _FACTORS if self.has_factors else _VALUES
        record = struct.pack("<BBH", DICTIONARY, form, self.n_entries) + self.codebook.record + self.entries
        return record + bytes(-len(record) % 4)


def read_dictionary(data: bytes, at: int, dtype: DType) -> tuple[Dictionary, int]:
    """Read the record of a dictionary.

    Args:
        data: Bytes that hold the record.
        at: Byte at which it begins; 4 bytes are there.
        dtype: Type of the frame's values.

    Returns:
        The dictionary, and the byte after its record.

    Raises:
        Corruption: A field has a value that it must not have, a code is not complete, or the record ends early.
        Unsupported: Frames of this type have no dictionaries, or it is of a form that is not known.
    """
    _, form, n_entries = struct.unpack_from("<BBH", data, at)
    if not dtype.tail_bits:
        raise Unsupported(f"dictionary: frames of {dtype.name} have none in this version")
    if form not in (_VALUES, _FACTORS, _OFFSETS):
        raise Unsupported(f"dictionary: one of form {form} is not known to this version")
    if (form != _VALUES and not dtype.predictable) or not 1 <= n_entries <= MAX_ENTRIES:
        raise Corruption(
            f"dictionary: form {form} and {n_entries} entries; it must have 1 to {MAX_ENTRIES} entries, and of "
            f"{dtype.name} form {f'{_VALUES}, {_FACTORS} or {_OFFSETS}' if dtype.predictable else _VALUES}"
        )
    if data[at + 4 : at + 5] not in (b"", bytes([INLINE])):
        raise Corruption(f"dictionary: its codebook must be of kind {INLINE}, not {data[at + 4]}")
    codebook, entries_at = read_inline(data, at + 4, 1, INDEX_TYPE.head_bits)
    entry_bytes = dtype.itemsize if form == _VALUES else 4
    entries_end = entries_at + n_entries * entry_bytes
    end = entries_end + -(entries_end - at) % 4
    if end > len(data) or any(data[entries_end:end]):
        raise Corruption("dictionary: its record does not fit into the prelude, or its padding is not zero")
    has_factors, has_offsets = form != _VALUES, form == _OFFSETS
    dictionary = Dictionary(has_factors, data[entries_at:entries_end], entry_bytes, codebook, has_offsets)
    if dictionary.has_factors and (dictionary.table & np.uint32(_INFINITY) == np.uint32(_INFINITY)).any():
        raise Corruption("dictionary: a factor is infinite or NaN")
    return dictionary, end
