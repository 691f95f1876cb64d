"""Contents of an archive, a frame or a file that is not compressed yet, as a report shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from .. import codec
from ..archive import ArchiveReader, ArchiveWriter, Bases, FileEntry
from ..archive.description import describe_file
from ..archive.entries import unsafe_path
from ..archive.state_files import with_views_apart
from ..archive.tensor_groups import grouped
from ..errors import GcodecError, InvalidArgument, Unsupported, number_of
from ..files import FileSource, plan_file
from ..files.elements import width
from ..files.source import Bytes
from ..files.urls import name_at
from .distributions import Distribution

FRAME_MAGIC = b"\x89GCF"
PIECE_BYTES = 1 << 22
#: Of smaller pieces no time is taken: that of calls would count for most.
MIN_TIMED_PIECE = 1 << 16


@dataclass
class TensorRow:
    """A tensor as the report's table shows it.

    Attributes:
        file: The file that it is of.
        name: Its name.
        dtype: Its type.
        shape: Its shape.
        value_bytes: Its size; of the segment, where it owns one.
        stored_bytes: What that takes in the archive; 0 for one that lies in another's bytes.
        n_values: How many values are coded.
        modes: Modes and codecs of its chunks.
        kinds: Its blocks by kind; of tensors that share a frame, the first has them.
        shared: Whether it shares a frame with others.
        shares: The tensor whose bytes it lies in; empty for its own.
        exponents: Counts of its exponents, in the part that was read; None if none was.
    """

    file: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    value_bytes: int
    stored_bytes: int
    n_values: int = 0
    modes: str = ""
    kinds: dict[str, int] = field(default_factory=dict)
    shared: bool = False
    shares: str = ""
    exponents: np.ndarray | None = None


class FileRow(NamedTuple):
    """A file of an archive as the report's table shows it.

    Attributes:
        path: Its path in the archive.
        format: Its format.
        n_tensors: How many tensors it has.
        n_bytes: Its size.
        stored_bytes: What it takes in the archive.
    """

    path: str
    format: str
    n_tensors: int
    n_bytes: int
    stored_bytes: int


@dataclass
class Contents:
    """Everything that a report says of an archive or frame.

    Attributes:
        kind: What was read, in words.
        value_bytes: Size of what it restores to.
        stored_bytes: Its own size.
        rows: Its tensors.
        files: Its files, if it is an archive of several.
        distributions: Of values, by type.
        n_read: Bytes of values that were read for them.
        notes: Remarks for the reader.
        seconds: Time of each stage, for ``n_timed`` bytes of values.
        n_timed: Bytes of values that went through the stages.
    """

    kind: str
    value_bytes: int
    stored_bytes: int
    rows: list[TensorRow] = field(default_factory=list)
    files: list[FileRow] = field(default_factory=list)
    distributions: dict[str, Distribution] = field(default_factory=dict)
    n_read: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    n_timed: int = 0

    def count(self, data: Bytes, dtype: str) -> np.ndarray:
        """Count values; returns the counts of their exponents."""
        self.n_read += data.size
        return self.distributions.setdefault(dtype, Distribution(dtype)).add(data)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        begin = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - begin


def contents_of(path: str | Path, source: FileSource, *, limit: int, base: Bases | None = None) -> Contents:
    """Return what is in a file.

    Args:
        path: Its path or URL; its name tells the kind of a file that is not compressed.
        source: Its bytes.
        limit: Bytes of values to read for distributions and speeds: of more, the first part of every tensor.
        base: What an archive was compressed against; without it, tensors that need it are not read. Or what a tensor
            file is to be compressed against.

    Raises:
        InvalidArgument: There is a base, but this is a frame.
        GcodecError: It is none of these, or damaged.
        OSError: It cannot be read.
    """
    head = source.read(0, min(4, source.size)).tobytes()
    if head == FRAME_MAGIC:
        if base is not None:
            raise InvalidArgument(f"{path}: is a single frame, but only archives and tensor files take a base")
        return _frame(name_at(path), source, limit)
    if head != b"\x89GCA":
        return _compressed(path, source, limit, base)
    with ArchiveReader(source, base=base) as archive:
        return _archive(archive, limit, has_base=base is not None)


def _frame(name: str, source: FileSource, limit: int) -> Contents:
    data = source.read(0, source.size).data
    info = codec.inspect(data)
    contents = Contents("a single frame", info.value_bytes, info.frame_bytes)
    row = TensorRow(
        "",
        name,
        info.dtype,
        tuple(info.shape),
        info.value_bytes,
        info.frame_bytes,
        info.n_values,
        info.mode,
        {kind: count for kind, count in info.kinds.items() if count},
    )
    stop = min(info.n_values, limit // (width(info.dtype) or 1))
    try:
        values = np.asarray(codec.decode_range(data, 0, stop, like="numpy"))
        row.exponents = contents.count(values.reshape(-1).view(np.uint8), info.dtype)
    except GcodecError as error:
        contents.notes.append(f"Its values cannot be read without more: {error}")
    contents.rows.append(row)
    return contents


def _compressed(path: str | Path, source: FileSource, limit: int, base: Bases | None) -> Contents:
    """Compress a file into a temporary archive, against its base if there is one, and return what is in that."""
    known = name_at(path)
    name = f"file{PurePath(known).suffix}" if unsafe_path(known) else known
    plan = plan_file(name, source)
    try:
        if plan.format == "bytes":
            reason = f" ({plan.note.removeprefix('kept as plain bytes: ')})" if plan.note else ""
            raise Unsupported(f"{path}: neither an archive, nor a frame, nor a tensor file{reason}")
        with TemporaryDirectory(prefix="gcodec-report-") as folder:
            with ArchiveWriter(Path(folder, "x.gc")) as writer:
                earlier = None if base is None else base.find(plan.path)
                writer.add(grouped(with_views_apart(plan), earlier), None, earlier)
            with ArchiveReader(Path(folder, "x.gc"), base=base) as archive:
                contents = _archive(archive, limit, has_base=base is not None)
    finally:
        plan.close()
    contents.kind = f"a {plan.format} file of {number_of(len(contents.rows), 'tensor')}, not compressed"
    how = "lossless" if base is None else "lossless, with the same --base"
    contents.notes.insert(0, f"Sizes are those that gcodec compress would store, {how}; the file was not changed.")
    return contents


def _archive(archive: ArchiveReader, limit: int, *, has_base: bool) -> Contents:
    size = sum(entry.size for entry in archive.files)
    n_tensors = sum(len(entry.tensors) for entry in archive.files)
    first = archive.files[0] if len(archive.files) == 1 else None
    files = f"{first.path}, a {first.format} file" if first else f"{number_of(len(archive.files), 'file')}"
    contents = Contents(f"an archive of {files} with {number_of(n_tensors, 'tensor')}", size, archive.size)
    floats = sum(segment.bytes for entry in archive.files for segment in entry.segments if segment.dtype)
    share = min(1.0, limit / floats) if floats else 1.0
    left_out = 0
    for entry in archive.files:
        described = describe_file(archive, entry)
        exponents: dict[int, np.ndarray] = {}
        for number, segment in enumerate(entry.segments):
            if segment.dtype is None or segment.same is not None:
                continue
            if segment.base is not None and not has_base:
                left_out += 1
                continue
            exponents[number] = _read(archive, entry, number, share, contents)
        file = entry.path if len(archive.files) > 1 else ""
        if file:
            contents.files.append(FileRow(file, entry.format, len(entry.tensors), entry.size, entry.stored))
        contents.rows += [_row(file, tensor, described["segments"], exponents) for tensor in described["tensors"]]
    if share < 1:
        contents.notes.append(f"Distributions and speeds are of the first {100 * share:.2g} % of every tensor.")
    if left_out:
        contents.notes.append(f"Not read, as differences from a base: {number_of(left_out, 'tensor')}. Give --base.")
    return contents


def _read(archive: ArchiveReader, entry: FileEntry, number: int, share: float, contents: Contents) -> np.ndarray:
    """Read the first part of a segment, and take the time; returns the counts of its exponents."""
    segment = entry.segments[number]
    dtype, unit = segment.dtype or "", width(segment.dtype or "") or 1
    stop = min(segment.bytes, -(-int(segment.bytes * share) // unit) * unit)
    counts = contents.count(np.empty(0, np.uint8), dtype)
    for at in range(0, stop, PIECE_BYTES):
        end = min(at + PIECE_BYTES, stop)
        data = archive.segment_range(entry, number, at, end)  # the first time loads kernels
        counts = counts + contents.count(data, dtype)
        if data.size < MIN_TIMED_PIECE:
            continue
        with contents.timed("read and decode"):
            archive.segment_range(entry, number, at, end)
        values = data.view(f"u{unit}")
        codec.encode(values, dtype=dtype)
        with contents.timed("encode again, lossless"):
            codec.encode(values, dtype=dtype)
        contents.n_timed += data.size
    return counts


def _row(
    file: str, tensor: dict[str, Any], segments: list[dict[str, Any]], exponents: dict[int, np.ndarray]
) -> TensorRow:
    segment = segments[tensor["segment"]]
    row = TensorRow(file, tensor["name"], tensor["dtype"], tuple(tensor["shape"]), tensor["bytes"] or 0, 0)
    if "shares" in tensor:
        row.shares = tensor["shares"]
        return row
    row.value_bytes, row.stored_bytes, row.n_values = segment["bytes"], segment["stored_bytes"], segment["values"]
    if "same" in segment:
        row.value_bytes, row.modes = tensor["bytes"] or 0, f"same as {segment['same']}"
        return row
    if "group" in tensor:
        size = tensor["bytes"] or 0
        row.value_bytes, row.stored_bytes = size, tensor["stored_bytes"]
        row.n_values = row.n_values * size // max(segment["bytes"], 1)
        row.modes, row.shared = ", ".join(segment["modes"]), True
        if tensor["offset"]:
            return row
    else:
        row.modes = f"cast of {segment['cast']}" if "cast" in segment else ", ".join(segment["modes"])
    row.modes += f" against {segment['version_of']}" if "version_of" in segment else ""
    row.kinds = {kind: count for kind, count in segment["kinds"].items() if count}
    row.exponents = exponents.get(tensor["segment"])
    return row
