"""Zip containers, which ``.npz`` and ``.pt`` are: where each stored member lies, and where its CRC-32 is written."""

from __future__ import annotations

import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from ..errors import Corruption, InsufficientData, LimitExceeded, NoMemory, Unsupported
from .source import ByteSource, FileSource, SourceFile, SubSource, WatchedSource, naming

MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
LOCAL, LOCAL_CRC = struct.Struct("<4s10xI8xHH"), 14
CENTRAL, CENTRAL_CRC = struct.Struct("<4s12xI8xHHH12x"), 16
#: The end of a large zip: signature, size and start of the directory; signature and place of that; and a signature.
_TAIL = struct.Struct("<4s36xQQ4s4xQ4x4s18x")
#: The directory is read in blocks of so many bytes.
DIRECTORY_BLOCK = 1 << 16
#: Unless the caller allows more, a zip may unpack to 1 MiB and so many times its size: the most that deflate makes of
#: a byte, and deflate is all that numpy writes.
MAX_UNPACKED_PER_BYTE = 1032
#: LZMA keeps so many of the last bytes in memory; the highest preset of xz asks for as many.
MAX_LZMA_DICTIONARY = 1 << 26

#: What zipfile says of a file at whose end no directory is.
_NO_END = "File is not a zip file"
#: How an error of zlib begins that is one of memory: by its number, Z_MEM_ERROR.
_NO_MEMORY = "Error -4 "
#: What zipfile and sources raise on damaged zips.
_DIRECTORY_ERRORS = (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError, InsufficientData)


@dataclass(frozen=True)
class ZipMember:
    """A stored (not compressed) member of a zip.

    Attributes:
        name: Name of the member.
        start: First byte of its contents in the zip.
        stop: The byte after the last one.
        crc_at: Places of their CRC-32 in the zip.
    """

    name: str
    start: int
    stop: int
    crc_at: tuple[int, ...]


@dataclass(frozen=True)
class Zip:
    """The members of a zip.

    Attributes:
        members: In the order of the directory.
        compressed: True if any of them is compressed.
        start: The first byte of the first member's header; what comes before it is no part of the zip.
    """

    members: tuple[ZipMember, ...]
    compressed: bool
    start: int = 0

    @classmethod
    def read_from(cls, source: ByteSource, path: str) -> Zip:
        """Reads the directory, and each member's header.

        Raises:
            Corruption: Not a readable zip.
        """
        before = _bytes_before(source)
        source = watched = WatchedSource(source)
        file = SourceFile(SubSource(source, before, source.size) if before else source)
        try:
            with zipfile.ZipFile(cast(IO[bytes], file)) as archive:
                infos, directory = archive.infolist(), before + archive.start_dir
            for info in infos:
                info.header_offset += before
            compressed = any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos)
            if compressed:
                return cls(tuple(ZipMember(info.filename, 0, 0, ()) for info in infos), True)
            places = _directory_entries(source, directory, len(infos))
            members = tuple(_member(source, *both) for both in zip(infos, places, strict=True))
            return cls(members, False, min((info.header_offset for info in infos), default=0))
        except _DIRECTORY_ERRORS as error:
            if watched.error is not None:  # of what is read here, beside what zipfile reads
                raise watched.error from watched.error.__cause__
            file.check_was_read(error)
            if str(error) == _NO_END and source.read(0, min(4, source.size)).tobytes() in MAGICS:
                raise Corruption(
                    f"{path}: is cut, or damaged at its end: it begins as a zip file, and the directory at the end of "
                    "one is missing; copy or save it anew"
                ) from error
            raise Corruption(f"{path}: not a readable zip file: {error}") from error


def _bytes_before(source: ByteSource) -> int:
    """Return how many bytes of a source precede the zip at its end; 0 where that has no large directory (ZIP64).

    Recent releases of Python look for the directory's end where the zip says that it is, as if nothing preceded. If the
    end of an earlier zip is there, they refuse the file.
    """
    at = source.size - _TAIL.size
    if at < 0:
        return 0
    end64, size, start, locator, named, end = _TAIL.unpack(source.read(at, source.size).data)
    before = at - named
    is_whole = (end64, locator, end) == (b"PK\x06\x06", b"PK\x06\x07", b"PK\x05\x06")
    return before if is_whole and before >= 0 and start + size == named else 0


def zips_before(source: ByteSource, path: str, stop: int) -> Iterator[Zip]:
    """Yield the zips that end at byte ``stop``, at the beginning of that one, and so on: the last comes first.

    torch.distributed.checkpoint writes such files, with a zip for each tensor.
    """
    while stop > 0:
        try:
            archive = Zip.read_from(SubSource(source, 0, stop), path)
        except Corruption:
            return
        if archive.compressed or not archive.start < stop:
            return
        yield archive
        stop = archive.start


def stored_copy(source: ByteSource, path: str, max_unpacked_bytes: int | None = None) -> FileSource:
    """Return a zip of the same members (names, order, dates, contents), none of them compressed, in a temporary file.

    Args:
        path: Name of the zip in errors.
        max_unpacked_bytes: Limit on the sum of the members' sizes; 1 MiB and 1032 times the zip's size if None.

    Raises:
        Corruption: A member does not decompress.
        LimitExceeded: The members are larger than the limit.
        Unsupported: A member is encrypted, or compressed by a method that Python lacks, or needs too much memory to be
            decompressed.
    """
    limit = (1 << 20) + MAX_UNPACKED_PER_BYTE * source.size if max_unpacked_bytes is None else max_unpacked_bytes
    target = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - the source closes it
    file = SourceFile(source)
    try:
        with (
            naming(tempfile.gettempdir()),
            zipfile.ZipFile(cast(IO[bytes], file)) as old,
            zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new,
        ):
            unpacked = sum(info.file_size for info in old.infolist())  # zipfile gives no more of a member than this
            if unpacked > limit:
                raise LimitExceeded(
                    f"{path}: its compressed members unpack to {unpacked} bytes, above the limit of {limit};"
                    " raise max_unpacked_bytes, or --max-unpacked-bytes of gcodec compress"
                )
            for info in old.infolist():
                if info.flag_bits & 1:
                    raise Unsupported(f"{path}: cannot unpack: {info.filename!r} is encrypted")
                _check_dictionary(source, info, path)
                fresh = zipfile.ZipInfo(info.filename, info.date_time)
                # of other methods than deflate zipfile unpacks all that it reads at once
                step = 1 << 20 if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 1 << 12
                with old.open(info) as member, new.open(fresh, "w", force_zip64=info.file_size >= 1 << 31) as copy:
                    shutil.copyfileobj(member, copy, step)
    except BaseException as error:
        target.close()
        if isinstance(error, ValueError) and "writing handle" in str(error) and error.__context__ is not None:
            error = error.__context__  # what ended the copy, of which zipfile makes an error of its own
        # There is no list of what decompressors raise. Errors of the operating system have a number; bz2's have none.
        ours = isinstance(error, MemoryError | LimitExceeded | Unsupported)
        if ours or not isinstance(error, Exception) or getattr(error, "errno", None) is not None:
            raise error
        if isinstance(error, NotImplementedError):  # a method that zipfile does not know
            raise Unsupported(f"{path}: cannot unpack: {error}") from error
        if isinstance(error, RuntimeError):  # of threads or a device
            raise error
        file.check_was_read(error)
        if isinstance(error, zlib.error) and str(error).startswith(_NO_MEMORY):
            raise NoMemory(f"{path}: there is no memory to unpack: {error}") from error
        raise Corruption(f"{path}: cannot unpack: {error}") from error
    target.seek(0)
    return FileSource(target)


def _check_dictionary(source: ByteSource, info: zipfile.ZipInfo, path: str) -> None:
    """Raises Unsupported if a member asks for too much memory, which LZMA takes without a limit."""
    if info.compress_type != zipfile.ZIP_LZMA:
        return
    _, _, *lengths = LOCAL.unpack(source.read(info.header_offset, info.header_offset + LOCAL.size).tobytes())
    size = _u32(source, info.header_offset + LOCAL.size + sum(lengths) + 5)  # after a version, a length and a byte
    if size > MAX_LZMA_DICTIONARY:
        raise Unsupported(
            f"{path}: {info.filename!r} is compressed with an LZMA dictionary of {size} bytes; the limit is"
            f" {MAX_LZMA_DICTIONARY}"
        )


def _directory_entries(source: ByteSource, at: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the places of the entries of the central directory, and the checksums in them."""
    start, block = at, b""
    for _ in range(count):
        if at + CENTRAL.size > start + len(block):
            start, block = at, source.read(at, min(at + DIRECTORY_BLOCK, source.size)).tobytes()
        magic, crc, *lengths = CENTRAL.unpack_from(block, at - start)
        if magic != b"PK\x01\x02":
            raise ValueError(f"no directory entry at byte {at}")
        yield at, crc
        at += CENTRAL.size + sum(lengths)


def _member(source: ByteSource, info: zipfile.ZipInfo, entry: tuple[int, int]) -> ZipMember:
    local = info.header_offset
    magic, crc, *lengths = LOCAL.unpack(source.read(local, local + LOCAL.size).tobytes())
    start = local + LOCAL.size + sum(lengths)
    stop = start + info.file_size
    if magic != b"PK\x03\x04" or stop > source.size or info.compress_size != info.file_size:
        raise ValueError(f"member {info.filename!r} is not where the directory says")
    written = [(local + LOCAL_CRC, crc), (entry[0] + CENTRAL_CRC, entry[1])]
    if info.flag_bits & 8:  # a data descriptor, with or without its own magic
        signed = source.read(stop, min(stop + 4, source.size)).tobytes() == b"PK\x07\x08"
        at = stop + 4 if signed else stop
        written.append((at, _u32(source, at)))
    return ZipMember(info.filename, start, stop, tuple(at for at, crc in written if crc == info.CRC))


def _u32(source: ByteSource, at: int) -> int:
    return int.from_bytes(source.read(at, min(at + 4, source.size)).tobytes(), "little")
