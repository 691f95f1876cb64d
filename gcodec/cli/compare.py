"""Comparison of an archive's files with their originals: not at all, or, in lossy segments, by how much."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import NamedTuple

import numpy as np

from ..archive import ArchiveReader, FileEntry, SegmentEntry
from ..errors import GcodecError, InvalidArgument
from ..files import FilePlan, FileSegment, open_source, plan_file, plan_or_bytes
from ..files.elements import numpy_dtype
from ..files.source import Bytes, ByteSource

Progress = Callable[[int], None]


class Difference(NamedTuple):
    """The differences between the values of a lossy segment and the original's.

    ``changed`` of its ``values``; the largest change as a share of the original value and as it is, over the finite
    values (relative: over those that are not zero, either).
    """

    tensor: str
    values: int
    changed: int
    max_relative: float
    max_absolute: float


def compare_file(archive: ArchiveReader, entry: FileEntry, original: str, progress: Progress) -> list[Difference]:
    """Compares a file with its original; the differences in lossy segments that have any.

    Raises:
        GcodecError: The file differs where no lossy mode was at work, or the archive is damaged.
        OSError: The original cannot be read.
    """
    with closing(open_source(original)) as source:
        if entry.exact:
            compare_bytes(archive, entry, source, original, progress)
            return []
        with closing(_plan_like(entry, source)) as plan:
            _check_structure(entry, plan, original)
            pairs = zip(entry.segments, plan.segments, strict=True)
            differences = [_compare_segment(archive, entry, n, *pair, plan, progress) for n, pair in enumerate(pairs)]
    return [difference for difference in differences if difference.changed]


def compare_bytes(
    archive: ArchiveReader, entry: FileEntry, source: ByteSource, original: str, progress: Progress
) -> None:
    """Compares a file byte for byte with ``source``, which errors call ``original``.

    Raises:
        GcodecError: They differ, or the archive is damaged.
        OSError: The source cannot be read.
    """
    if entry.size != source.size:
        raise GcodecError(f"{entry.path}: has {entry.size} bytes, {original} has {source.size}")
    at = 0
    for part in archive.restored(entry):
        differs = part != source.read(at, at + part.size)
        if differs.any():
            raise GcodecError(f"{entry.path}: differs from {original} at byte {at + int(differs.argmax())}")
        at += part.size
        progress(part.size)


def _plan_like(entry: FileEntry, source: ByteSource) -> FilePlan:
    """Return the plan of an original, with the type of values that was given when it was compressed, if one was."""
    plan = plan_or_bytes(entry.path, source, max_unpacked_bytes=entry.size)
    if plan.format in ("bytes", "npy") and len(entry.tensors) == 1 and plan.tensors != entry.tensors:
        with suppress(InvalidArgument):  # no type was given: it is another file
            return plan_file(entry.path, source, dtype=entry.tensors[0].dtype)
    return plan


def _check_structure(entry: FileEntry, plan: FilePlan, original: str) -> None:
    if entry.format != plan.format or entry.tensors != plan.tensors:
        raise GcodecError(f"{entry.path}: {original} holds other tensors, or of other types and shapes")
    if [segment.bytes for segment in entry.segments] != [segment.stop - segment.start for segment in plan.segments]:
        raise GcodecError(f"{entry.path}: {original} holds the same tensors in another layout")


def _compare_segment(
    archive: ArchiveReader,
    entry: FileEntry,
    number: int,
    segment: SegmentEntry,
    planned: FileSegment,
    plan: FilePlan,
    progress: Progress,
) -> Difference:
    name = entry.label(number)
    total, at = Difference(name, 0, 0, 0.0, 0.0), planned.start
    for part in archive.segment_parts(entry, number):
        total = _joined(total, _difference(name, part, plan.source.read(at, at + part.size), segment.dtype))
        at += part.size
        progress(part.size)
    if total.changed and not segment.lossy:
        raise GcodecError(f"{entry.path}:{name}: {total.changed} of {total.values} values differ from the original")
    return total


def _difference(name: str, data: Bytes, original: Bytes, dtype: str | None) -> Difference:
    unit = numpy_dtype(dtype) if dtype else np.dtype("u1")
    assert unit is not None  # a segment's dtype is one of elements.FLOATS
    bits = f"u{unit.itemsize}"
    changed = np.flatnonzero(data.view(bits) != original.view(bits))
    if not changed.size or dtype is None or dtype.startswith("float8"):
        return Difference(name, data.size // unit.itemsize, changed.size, 0.0, 0.0)
    new, old = (_as_float64(array.view(bits)[changed], dtype) for array in (data, original))
    finite = np.isfinite(old) & np.isfinite(new)
    change, size = np.abs(new - old)[finite], np.abs(old)[finite]
    relative = change[size > 0] / size[size > 0]
    return Difference(
        name, data.size // unit.itemsize, changed.size, float(relative.max(initial=0)), float(change.max(initial=0))
    )


def _as_float64(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(dtype).astype(np.float64)


def _joined(a: Difference, b: Difference) -> Difference:
    changes = max(a.max_relative, b.max_relative), max(a.max_absolute, b.max_absolute)
    return Difference(a.tensor, a.values + b.values, a.changed + b.changed, *changes)
