"""``.npz``: a zip of ``.npy`` members. Stored members stay where they are; compressed ones are re-made as stored."""

from __future__ import annotations

import zlib
from dataclasses import replace

from ..errors import Corruption
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble
from .npy import NpyHeader, npy_segment
from .source import COPY_BYTES, Bytes, ByteSource, SubSource
from .zips import Zip, ZipMember, stored_copy


def is_npz(archive: Zip) -> bool:
    """Return True if every member is called ``….npy``, and there is one at least."""
    return bool(archive.members) and all(member.name.endswith(".npy") for member in archive.members)


def plan_npz(path: str, source: ByteSource, archive: Zip, max_unpacked_bytes: int | None = None) -> FilePlan:
    """Return the plan of a ``.npz`` file; tensors are named as ``numpy.load`` names them.

    Args:
        max_unpacked_bytes: Limit on the members' sizes if they are compressed, as for :func:`stored_copy`.

    Raises:
        Corruption: A member does not unpack, or members overlap.
        LimitExceeded, Unsupported: Unpacking takes too much room.
    """
    if archive.compressed:
        source = stored_copy(source, path, max_unpacked_bytes)
        plan = plan_npz(path, source, Zip.read_from(source, path))
        return replace(plan, exact=False, note="its members were compressed; they are restored uncompressed")
    pieces = [piece for member in archive.members for piece in _pieces(path, source, member)]
    return assemble(path, "npz", source, pieces)


def check_members(plan: FilePlan) -> None:
    """Raise Corruption unless all members of a ``.npz`` have the checksums that it has of them: in an archive, with
    checksums of its own, they would seem intact."""
    names = {view.segment: view.name for view in reversed(plan.tensors)}
    for number, segment in enumerate(plan.segments):
        check_crc(plan.source, segment, f"{plan.path}: {names[number]}")


def check_crc(source: ByteSource, segment: FileSegment, where: str, data: Bytes | None = None) -> None:
    """Raise Corruption unless the bytes of a segment have the checksum that their zip has of them.

    Args:
        source: The file.
        segment: The segment.
        where: Its name in the error.
        data: Its bytes; None: they are read, a part at a time.
    """
    found, at = zlib.crc32(source.read(segment.crc_from, segment.start).data), segment.start
    while at < segment.stop:
        part = source.read(at, min(at + COPY_BYTES, segment.stop)) if data is None else data
        found, at = zlib.crc32(part.data, found), at + part.size
    for at in segment.crc_at:
        if found != int.from_bytes(source.read(at, at + 4).tobytes(), "little"):
            raise Corruption(f"{where}: its bytes are not those that the checksum in the file is of")


def _pieces(path: str, source: ByteSource, member: ZipMember) -> list[SegmentViews]:
    """Return the array in a member; one of no known type if it cannot be read, so that nobody takes the others for all
    there are. Its bytes are just kept."""
    within = SubSource(source, member.start, member.stop)
    name = member.name.removesuffix(".npy")
    try:
        header = NpyHeader.read_from(within, f"{path}: {member.name}")
    except Corruption:
        return [_unread(name, "unknown", member)]
    if header.dtype.hasobject:  # a pickle
        return [_unread(name, "object", member)]
    if header.stop != within.size:
        return [_unread(name, "unknown", member)]
    return [npy_segment(header, name, member.start, crc_at=member.crc_at)]


def _unread(name: str, dtype: str, member: ZipMember) -> SegmentViews:
    view = TensorView(name, dtype, (member.stop - member.start,), 0)
    return SegmentViews(FileSegment(member.start, member.stop, None, member.start, member.crc_at), (view,))
