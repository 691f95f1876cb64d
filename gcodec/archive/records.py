"""Records stored field by field: blocks of quantized weights, whose scales and integers compress in ways of their own.

The format is in docs/archive.md, section 3. Records are put into classes by where a block's scale and minimum put its
integers, so that each class has a code of its own; readers compute the classes from the scales.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from ..errors import Corruption
from ..files.record_fields import RecordFields
from ..files.source import Bytes
from .layout import RECORDS, STORED

MAX_FIELDS, MAX_CLASSES = 16, 16
#: A class of so many bytes of a field pays for a code of its own; more classes than that hardly save more.
CLASS_BYTES, USUAL_CLASSES = 1 << 15, 16
#: Least share of a field that classes must save, in a sample of so many records.
WORTH_CLASSES, SAMPLED_RECORDS = 0.002, 1 << 11
#: Stands for no subtrahend; and the bits of a float16 without its sign.
NOTHING, MAGNITUDE = 0xFFFF, 0x7FFF
_START, _FIELD, _STREAM = struct.Struct("<HBBHH"), struct.Struct("<HB"), struct.Struct("<BI")


class Stream(NamedTuple):
    """The bytes of a field, of all records or of those of a class, as they are stored.

    Attributes:
        codec: As that of a chunk, below RECORDS.
        payload: The stored bytes.
    """

    codec: int
    payload: bytes | memoryview


#: Stores the bytes of a field, given the type of its numbers, None for bytes.
Pack = Callable[[Bytes, str | None], Stream]
#: Returns the bytes of a field, given how many there must be.
Unpack = Callable[[Stream, int], Bytes]


class _Header(NamedTuple):
    """The start of a chunk of records.

    Attributes:
        record_bytes: Bytes of a record.
        minuend: Offset of a u16 that classes depend on.
        subtrahend: Offset of another.
        thresholds: int16[n_classes - 1], ascending.
        fields: Bytes of each field, and whether it is classed.
    """

    record_bytes: int
    minuend: int
    subtrahend: int
    thresholds: np.ndarray
    fields: tuple[tuple[int, bool], ...]

    @property
    def n_classes(self) -> int:
        """Return the number of classes."""
        return len(self.thresholds) + 1

    def pack(self) -> bytes:
        """Return the header's bytes."""
        start = _START.pack(self.record_bytes, len(self.fields), self.n_classes, self.minuend, self.subtrahend)
        fields = b"".join(_FIELD.pack(size, is_classed) for size, is_classed in self.fields)
        return start + self.thresholds.astype("<i2").tobytes() + fields

    def columns(self, records: np.ndarray) -> Iterator[tuple[np.ndarray, bool]]:
        """Yield each field of all records, in the memory of uint8[n, record_bytes], as items of its size; and whether
        it is classed."""
        start = 0
        for size, is_classed in self.fields:
            yield records[:, start : start + size].view(f"V{size}")[:, 0], is_classed
            start += size

    def numbers(self, records: np.ndarray) -> np.ndarray:
        """Return what the classes of records depend on: int32[n]."""
        numbers = _u16_at(records, self.minuend)
        return numbers if self.subtrahend == NOTHING else numbers - _u16_at(records, self.subtrahend)

    def order(self, records: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """Return the records' numbers by class, int64[n], and how many each class has."""
        numbers, classes = self.numbers(records), np.zeros(len(records), np.uint8)
        for threshold in self.thresholds:  # so few that a pass for each is quicker than a search
            classes += numbers >= threshold
        return np.argsort(classes, kind="stable"), np.bincount(classes, minlength=self.n_classes).tolist()


def pack_records(data: Bytes, fields: RecordFields, pack: Pack) -> bytes:
    """Return a part of records as a chunk holds it.

    Args:
        data: uint8[n], whole records, one at least.
        fields: What they consist of.
        pack: Stores the bytes of a field.
    """
    records = data.reshape(-1, fields.record_bytes)
    header = _header_for(records, fields)
    order, counts = header.order(records) if header.n_classes > 1 else (None, [])
    streams = list[Stream]()
    for (column, is_classed), kind in zip(header.columns(records), fields.kinds, strict=True):
        ends = [0, *accumulate(counts)] if is_classed else [0, len(records)]
        items = column[order] if is_classed else column
        streams += [_packed(items[start:stop], kind, pack) for start, stop in pairwise(ends)]
    sizes = b"".join(_STREAM.pack(stream.codec, len(stream.payload)) for stream in streams)
    return b"".join([header.pack(), sizes, *(stream.payload for stream in streams)])


def unpack_records(payload: Bytes, out: Bytes, unpack: Unpack) -> None:
    """Restore the part that a chunk of records holds.

    Args:
        payload: uint8[n], the chunk.
        out: uint8[n], takes the part.
        unpack: Restores the bytes of a field; raises Corruption if there are not as many as there must be.

    Raises:
        Corruption: The chunk is damaged.
    """
    reader = _Reader(payload)
    header = _read_header(reader, out.size)
    n_streams = sum(header.n_classes if is_classed else 1 for _, is_classed in header.fields)
    sizes = [reader.take(_STREAM) for _ in range(n_streams)]
    streams = iter([Stream(codec, reader.bytes(size).data) for codec, size in sizes])
    if reader.at != len(payload):
        raise Corruption(f"{len(payload) - reader.at} bytes follow the last field of records")
    records = out.reshape(-1, header.record_bytes)
    columns = [(column, [next(streams) for _ in range(header.n_classes if is_classed else 1)])
               for column, is_classed in header.columns(records)]  # fmt: skip
    for column, (stream, *others) in columns:
        if not others:
            column[:] = _unpacked(stream, len(records), column.dtype, unpack)
    if header.n_classes > 1:
        order, counts = header.order(records)
        for column, of_classes in columns:
            if len(of_classes) > 1:
                parts = [_unpacked(stream, count, column.dtype, unpack)
                         for stream, count in zip(of_classes, counts, strict=True)]  # fmt: skip
                column[order] = np.concatenate(parts)


class _Reader:
    """Reads a chunk front to back. Raises Corruption where it ends too soon."""

    def __init__(self, payload: Bytes) -> None:
        self._payload, self.at = payload, 0

    def bytes(self, size: int) -> Bytes:
        """Return the next bytes."""
        if size > len(self._payload) - self.at:
            raise Corruption("a chunk of records ends before its fields do")
        self.at += size
        return self._payload[self.at - size : self.at]

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers."""
        return form.unpack(self.bytes(form.size).tobytes())


def _read_header(reader: _Reader, n_bytes: int) -> _Header:
    """Return the header of a chunk for a part of so many bytes, checked."""
    record_bytes, n_fields, n_classes, minuend, subtrahend = reader.take(_START)
    if not (1 <= n_fields <= MAX_FIELDS and 1 <= n_classes <= MAX_CLASSES and record_bytes) or n_bytes % record_bytes:
        raise Corruption(
            f"{n_bytes} bytes are no records of {record_bytes} bytes, {n_fields} fields and {n_classes} classes"
        )
    thresholds = reader.bytes(2 * (n_classes - 1)).view("<i2")
    fields = tuple((size, bool(flag)) for size, flag in (reader.take(_FIELD) for _ in range(n_fields)) if flag <= 1)
    plain = np.repeat([not is_classed for _, is_classed in fields], [size for size, _ in fields])
    numbers = [] if n_classes == 1 else [minuend] if subtrahend == NOTHING else [minuend, subtrahend]
    is_right = len(fields) == n_fields and len(plain) == record_bytes and all(size for size, _ in fields)
    is_right = is_right and (n_classes > 1) == any(is_classed for _, is_classed in fields)
    is_right = is_right and all(at + 2 <= record_bytes and plain[at : at + 2].all() for at in numbers)
    is_right = is_right and (n_classes > 1 or (minuend, subtrahend) == (0, NOTHING))
    if not is_right or np.any(thresholds[1:] < thresholds[:-1]):
        raise Corruption("a chunk of records has fields or classes that do not fit together")
    return _Header(record_bytes, minuend, subtrahend, thresholds, fields)


def _header_for(records: np.ndarray, fields: RecordFields) -> _Header:
    """Return the header for records: with classes, if these make the integers smaller."""
    plain = _Header(fields.record_bytes, 0, NOTHING, np.empty(0, np.int16), tuple((n, False) for n in fields.sizes))
    number = fields.integers
    n_classes = 0 if number is None else min(len(records) * fields.sizes[number] // CLASS_BYTES, USUAL_CLASSES)
    if number is None or n_classes < 2:
        return plain
    scale = fields.offset(fields.scale)
    minuend, subtrahend = (scale, NOTHING) if fields.minimum is None else (fields.offset(fields.minimum), scale)
    sample = records[:: -(-len(records) // SAMPLED_RECORDS)]
    header = plain._replace(minuend=minuend, subtrahend=subtrahend)
    numbers = np.sort(header.numbers(sample))
    # The first numbers of all classes but the lowest, equally many in each; where numbers repeat there are fewer.
    thresholds = np.unique(numbers[len(numbers) * np.arange(1, n_classes) // n_classes]).astype(np.int16)
    thresholds = thresholds[thresholds > numbers[0]]
    if not len(thresholds):
        return plain
    classed = tuple((size, n == number) for n, size in enumerate(fields.sizes))
    header = header._replace(thresholds=thresholds, fields=classed)
    start = fields.offset(number)
    integers = sample[:, start : start + fields.sizes[number]]
    order, counts = header.order(sample)
    parts = np.split(integers[order], np.cumsum(counts)[:-1])
    return header if sum(map(_bits, parts)) < (1 - WORTH_CLASSES) * _bits(integers) else plain


def _bits(values: np.ndarray) -> float:
    """Return the bits that bytes take with a code of their own, at least."""
    counts = np.bincount(values.reshape(-1), minlength=256)
    counts = counts[counts > 0]
    return float(np.sum(counts * np.log2(counts.sum() / counts)))


def _u16_at(records: np.ndarray, offset: int) -> np.ndarray:
    """Return a u16 of each record without its highest bit: int32[n]."""
    return records[:, offset : offset + 2].view("<u2")[:, 0].astype(np.int32) & MAGNITUDE


def _packed(items: np.ndarray, kind: str | None, pack: Pack) -> Stream:
    return pack(np.ascontiguousarray(items).view(np.uint8), kind) if len(items) else Stream(STORED, b"")


def _unpacked(stream: Stream, n_items: int, kind: np.dtype, unpack: Unpack) -> np.ndarray:
    """Return the items that a stream holds."""
    if stream.codec >= RECORDS or (not n_items and stream != Stream(STORED, stream.payload[:0])):
        raise Corruption(f"a field of records is stored with codec {stream.codec}")
    return unpack(stream, n_items * kind.itemsize).view(kind) if n_items else np.empty(0, kind)
