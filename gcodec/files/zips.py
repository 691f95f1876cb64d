"""Zip containers, which ``.npz`` and ``.pt`` are: where each stored member lies, and where its CRC-32 is written."""

from __future__ import annotations

import lzma
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from ..errors import Corruption
from .source import ByteSource, FileSource, SourceFile

MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
LOCAL, LOCAL_CRC = struct.Struct("<4s22xHH"), 14
CENTRAL, CENTRAL_CRC = struct.Struct("<4s24xHHH12x"), 16

#: What zipfile and the decompressors raise on damaged zips.
_DIRECTORY_ERRORS = (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError)
_UNPACKING_ERRORS = (*_DIRECTORY_ERRORS, zlib.error, lzma.LZMAError, EOFError, RuntimeError)


@dataclass(frozen=True)
class ZipMember:
    """A stored (not compressed) member of a zip.

    Attributes:
        name: name of the member.
        start: first byte of its contents in the zip.
        stop: the byte after the last one.
        crc_at: places of their CRC-32 in the zip.
    """

    name: str
    start: int
    stop: int
    crc_at: tuple[int, ...]


@dataclass(frozen=True)
class Zip:
    """The members of a zip.

    Attributes:
        members: in the order of the directory.
        compressed: True if any of them is compressed.
    """

    members: tuple[ZipMember, ...]
    compressed: bool

    @classmethod
    def read_from(cls, source: ByteSource, path: str) -> Zip:
        """Reads the directory, and each member's header.

        Raises:
            Corruption: not a readable zip.
        """
        try:
            with zipfile.ZipFile(cast(IO[bytes], SourceFile(source))) as archive:
                infos, directory = archive.infolist(), archive.start_dir
            compressed = any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos)
            if compressed:
                return cls(tuple(ZipMember(info.filename, 0, 0, ()) for info in infos), True)
            places = _directory_entries(source, directory, len(infos))
            return cls(tuple(_member(source, *both) for both in zip(infos, places, strict=True)), False)
        except _DIRECTORY_ERRORS as error:
            raise Corruption(f"{path}: not a readable zip file: {error}") from error


def stored_copy(source: ByteSource, path: str) -> FileSource:
    """Return a zip of the same members (names, order, dates, contents), none of them compressed, in a temporary file.

    Raises:
        Corruption: a member does not decompress.
    """
    target = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the source closes it
    try:
        with (
            zipfile.ZipFile(cast(IO[bytes], SourceFile(source))) as old,
            zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new,
        ):
            for info in old.infolist():
                fresh = zipfile.ZipInfo(info.filename, info.date_time)
                with old.open(info) as member, new.open(fresh, "w", force_zip64=info.file_size >= 1 << 31) as copy:
                    shutil.copyfileobj(member, copy, 1 << 20)
    except BaseException as error:
        target.close()
        # bz2 tells of damage by an OSError without a number; those of the operating system have one.
        if isinstance(error, _UNPACKING_ERRORS) or (isinstance(error, OSError) and error.errno is None):
            raise Corruption(f"{path}: cannot unpack: {error}") from error
        raise
    target.seek(0)
    return FileSource(target)


def _directory_entries(source: ByteSource, at: int, count: int) -> Iterator[int]:
    """Yield the places of the entries of the central directory."""
    for _ in range(count):
        magic, *lengths = CENTRAL.unpack(source.read(at, at + CENTRAL.size).tobytes())
        if magic != b"PK\x01\x02":
            raise ValueError(f"no directory entry at byte {at}")
        yield at
        at += CENTRAL.size + sum(lengths)


def _member(source: ByteSource, info: zipfile.ZipInfo, entry: int) -> ZipMember:
    local = info.header_offset
    magic, *lengths = LOCAL.unpack(source.read(local, local + LOCAL.size).tobytes())
    start = local + LOCAL.size + sum(lengths)
    stop = start + info.file_size
    if magic != b"PK\x03\x04" or stop > source.size or info.compress_size != info.file_size:
        raise ValueError(f"member {info.filename!r} is not where the directory says")
    candidates = [local + LOCAL_CRC, entry + CENTRAL_CRC]
    if info.flag_bits & 8:  # a data descriptor, with or without its own magic
        signed = source.read(stop, min(stop + 4, source.size)).tobytes() == b"PK\x07\x08"
        candidates.append(stop + 4 if signed else stop)
    return ZipMember(info.filename, start, stop, tuple(at for at in candidates if _u32(source, at) == info.CRC))


def _u32(source: ByteSource, at: int) -> int:
    return int.from_bytes(source.read(at, min(at + 4, source.size)).tobytes(), "little")
