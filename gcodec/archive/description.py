"""Descriptions of an archive's files as plain dictionaries, down to the chunks and blocks; no value is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import GcodecError
from ..files.elements import width
from ..files.file_plan import TensorView
from .entries import FileEntry, SegmentEntry, name_of_copied_file, name_of_segment
from .layout import CODECS, FRAME, padding
from .reader import ArchiveReader

_BOOKS = "codebooks", "change_codebooks", "dictionaries"  #: in ``FrameInfo``: those of coded, sparse and indexed blocks


def file_summary(archive: ArchiveReader, entry: FileEntry) -> dict[str, Any]:
    """Return what a file's row in a list has only where there is something to be said: ``base`` and ``version_of``,
    what it is stored against; ``same``, what has all its bytes; ``found``, bytes of values by type, found in a file of
    an unknown kind."""
    found = Counter[str]()
    for segment in () if entry.tensors else entry.segments:
        if segment.dtype is not None:
            found[segment.dtype] += segment.bytes
    owners = [entry.segments[tensor.segment] for tensor in entry.tensors]
    earlier = {segment.version_of[0] for segment in entry.segments if segment.version_of is not None}
    versions = {
        "files": [archive.path_of(number) for number in sorted(earlier)],
        "tensors": sum(segment.version_of is not None for segment in owners),
    }
    summary = {
        "base": {"name": entry.base, "tensors": sum(s.base is not None for s in owners)} if entry.needs_base else None,
        "version_of": versions if earlier else None,
        "same": name_of_copied_file(archive.files, entry),
        "found": dict(found) or None,
    }
    return {key: value for key, value in summary.items() if value is not None}


def origins(files: Sequence[FileEntry], entry: FileEntry, number: int) -> dict[str, Any]:
    """Return what a segment of a file has the bytes of, or is coded against; an empty dictionary for nothing."""
    segment = entry.segments[number]
    places = {"cast": segment.cast, "version_of": segment.version_of, "same": segment.same}
    names = {key: name_of_segment(files, entry, place) for key, place in places.items()}
    return {key: name for key, name in {"base": segment.base, **names}.items() if name}


def describe_file(archive: ArchiveReader, entry: FileEntry) -> dict[str, Any]:
    """Return what an archive has of a file: sizes, modes, blocks and codebooks, by segment and by tensor.

    Raises:
        GcodecError: A frame's header is damaged.
    """
    segments = [_segment(archive, entry, n, entry.label(n)) for n in range(len(entry.segments))]
    return {
        "path": entry.path,
        "format": entry.format,
        "exact": entry.exact,
        "bytes": entry.size,
        "stored_bytes": entry.stored,
        "verbatim_bytes": entry.verbatim.bytes,
        "verbatim_stored_bytes": entry.verbatim.stored,
        "metadata": archive.metadata(entry),
        **file_summary(archive, entry),
        "segments": segments,
        "tensors": [_tensor(entry, tensor, segments[tensor.segment]) for tensor in entry.tensors],
    }


def _segment(archive: ArchiveReader, entry: FileEntry, number: int, name: str) -> dict[str, Any]:
    segment = entry.segments[number]
    # A segment that has the bytes of another has no chunks of its own; they are listed with the other.
    own = () if segment.same is not None else _chunks(archive, segment, f"{archive.name}: {entry.path}:{name}")
    chunks = list(own)
    values = segment.bytes // (width(segment.dtype) or 1) if segment.dtype else 0
    frames = [chunk["frame"] for chunk in chunks if "frame" in chunk]
    kinds: dict[str, int] = {}
    for frame in frames:
        for kind, count in frame["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    return {
        "name": name,
        "dtype": segment.dtype,
        "lossy": segment.lossy,
        "modes": sorted({_mode(chunk, segment.lossy) for chunk in chunks}),
        "bytes": segment.bytes,
        "stored_bytes": segment.stored,
        "ratio": segment.bytes / segment.stored if segment.stored else None,
        "values": values,
        "bits_per_value": 8 * segment.stored / values if values else None,
        "kinds": kinds,
        "codebooks": sum(len(frame[key]) for frame in frames for key in _BOOKS),
        "hash": segment.hash,
        **origins(archive.files, entry, number),
        "chunks": chunks,
    }


def _chunks(archive: ArchiveReader, segment: SegmentEntry, where: str) -> Iterator[dict[str, Any]]:
    at = segment.offset
    for chunk in segment.chunks:
        row = {"offset": at, "codec": CODECS[chunk.codec], "stored_bytes": chunk.stored, "bytes": chunk.size}
        if chunk.codec == FRAME:
            from .. import codec

            try:
                row["frame"] = codec.inspect(archive.stored_bytes(at, at + chunk.stored).data).as_dict()
            except GcodecError as error:
                raise type(error)(f"{where}: chunk at byte {at}: {error}") from error
        yield row
        at += chunk.stored + padding(chunk.stored)


def _mode(chunk: dict[str, Any], lossy: bool) -> str:
    """Return the mode that a frame states; for other chunks their codec, which may have got lossy values."""
    mode: str = chunk["frame"]["mode"] if "frame" in chunk else chunk["codec"]
    return mode if "frame" in chunk or not lossy else f"{mode} (lossy)"


def _tensor(entry: FileEntry, tensor: TensorView, segment: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    row |= {"segment": tensor.segment, "offset": tensor.offset, "bytes": tensor_bytes(tensor)}
    if tensor.stride is not None:
        row["stride"] = list(tensor.stride)
    if tensor.segment in entry.groups:
        return row | {"group": segment["name"], "stored_bytes": entry.share(tensor)}
    return row | ({} if segment["name"] == tensor.name else {"shares": segment["name"]})


def tensor_bytes(tensor: TensorView) -> int | None:
    """Return the bytes of a tensor's values; None for a type that is not known here."""
    return None if width(tensor.dtype) is None else tensor.n_bytes
