"""The fixed parts of an archive: header and trailer, field by field as in docs/archive.md."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from ..errors import Corruption, InsufficientData, Unsupported, WrongKind, what_it_is

#: What names of archives end in.
SUFFIX = ".gc"
MAGIC, END_MAGIC = b"\x89GCA", b"ACG\x89"
VERSION = 1
HEADER = struct.Struct("<4sB3s")
TRAILER = struct.Struct("<QQQB3s4s")
#: So many of the first bytes tell what another kind of file is.
HEAD_BYTES = 32
ALIGNMENT = 8
STORED, ZSTD, FRAME, RECORDS = 0, 1, 2, 3
CODECS = ("stored", "zstd", "frame", "records")
MAX_PART = 1 << 28
#: So many segments, each a version of the next, are decoded for one.
MAX_VERSIONS = 8
MAX_INDEX = 1 << 28
#: An index may have so many bytes, brackets and commas, whatever the archive's size, and more in proportion to it.
FREE_INDEX, FREE_BRACKETS, FREE_COMMAS = 1 << 20, 1 << 18, 1 << 19
#: Bytes that a text may have beside those, for each byte that is stored of it.
TEXT_PER_BYTE = 100
MIN_FRAME = 48


def padding(size: int) -> int:
    """Bytes from ``size`` to the next multiple of 8."""
    return -size % ALIGNMENT


def archive_header() -> bytes:
    """Return the first 8 bytes of an archive."""
    return HEADER.pack(MAGIC, VERSION, bytes(3))


def check_header(data: bytes, end: bytes = b"", name: str | None = None) -> None:
    """Check that bytes are the first of an archive.

    Of what begins otherwise, an archive that lost its first bytes ends as archives do; blocks that never reached the
    disk are zeros; and what has no name, or that of an archive, was one unless it begins as another kind of file does.

    Args:
        data: The first bytes.
        end: The last bytes.
        name: Of the file; None if it has none.

    Raises:
        Corruption, InsufficientData: An archive, but damaged.
        WrongKind: Another kind of file.
        Unsupported: An archive of another version.
    """
    if not data.startswith(MAGIC):
        if not data:
            raise InsufficientData(f"the file is empty: an archive has at least {HEADER.size + TRAILER.size} bytes")
        if MAGIC.startswith(data[:4]):
            raise InsufficientData(f"an archive has at least {HEADER.size + TRAILER.size} bytes, this has {len(data)}")
        what = what_it_is(data)
        problem = f"not a gcodec archive: it begins with {data[:4]!r} instead of {MAGIC!r}"
        if end.endswith(END_MAGIC):
            raise Corruption(f"{problem}, though it ends as one does: its first bytes are damaged")
        if not any(data) or (not what and (name is None or name.endswith(SUFFIX))):
            raise Corruption(problem)
        raise WrongKind(f"{problem}{what}")
    if len(data) > 4 and data[4] != VERSION:
        raise Unsupported(f"the archive is of version {data[4]}; this gcodec reads version {VERSION}")
    if len(data) < HEADER.size:
        raise InsufficientData(f"an archive has at least {HEADER.size + TRAILER.size} bytes, this has {len(data)}")
    if any(data[5:8]):
        raise Corruption("reserved bytes of the header are not zero")


@dataclass(frozen=True)
class Trailer:
    """The last 32 bytes: where the index is, and its hash."""

    index_bytes: int
    index_raw_bytes: int
    index_codec: int
    hash: int = 0

    def write_to(self, index: bytes) -> bytes:
        """Return the trailer's bytes, with the hash of ``index`` (as stored) and themselves."""
        return self._pack(self._hash(index))

    @classmethod
    def read_from(cls, data: bytes) -> Trailer:
        """Reads the last 32 bytes of an archive.

        Raises:
            InsufficientData: The archive does not end in a trailer.
            Corruption: A field has no legal value.
            Unsupported: A reserved codec.
        """
        if len(data) < TRAILER.size or data[-4:] != END_MAGIC:
            raise InsufficientData("the archive is cut off: it does not end in a trailer")
        size, raw, hash_, codec, reserved, _ = TRAILER.unpack(data[-TRAILER.size :])
        if codec not in (STORED, ZSTD):
            raise Unsupported(f"the index has codec {codec}, which is not known to this version")
        most = min(MAX_INDEX, FREE_INDEX + TEXT_PER_BYTE * size)
        if any(reserved) or raw > most or (codec == STORED and raw != size):
            raise Corruption(
                f"the trailer holds illegal values: an index of {raw} bytes, stored in {size} with codec {codec}"
            )
        return cls(size, raw, codec, hash_)

    def check_sizes(self, archive_bytes: int) -> None:
        """Raises Corruption if the text of the index is too long for an archive of this size."""
        if self.index_raw_bytes > FREE_INDEX + 32 * archive_bytes:
            raise Corruption(f"an archive of {archive_bytes} bytes cannot have an index of {self.index_raw_bytes}")

    def check(self, index: bytes) -> None:
        """Raises Corruption unless the hash is that of ``index``, as stored."""
        if self._hash(index) != self.hash:
            raise Corruption("the hash of the index is wrong")

    def _hash(self, index: bytes) -> int:
        return xxhash.xxh3_64_intdigest(index + self._pack(0))

    def _pack(self, hash_: int) -> bytes:
        return TRAILER.pack(self.index_bytes, self.index_raw_bytes, hash_, self.index_codec, bytes(3), END_MAGIC)


def check_json(text: bytes, archive_bytes: int, what: str) -> None:
    """Raises Corruption if a text has more brackets or commas than an archive of this size may have: what they stand
    for takes far more memory than they do."""
    n_brackets, n_commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    if n_brackets > FREE_BRACKETS + archive_bytes or n_commas > FREE_COMMAS + 2 * archive_bytes:
        raise Corruption(
            f"{what} has {n_brackets} arrays and objects and {n_commas} commas, too many for an archive of"
            f" {archive_bytes} bytes"
        )


def may_compress(index: bytes, text: bytes, archive_bytes: int) -> bool:
    """Return True if an archive of this size may store ``text`` as the Zstandard frame ``index``."""
    trailer = Trailer(len(index), len(text), ZSTD)
    try:
        trailer.check_sizes(archive_bytes)
        check_json(text, archive_bytes, "the index")
    except Corruption:
        return False
    return len(text) <= FREE_INDEX + TEXT_PER_BYTE * len(index)


def may_compress_header(part: bytes, n_stored: int) -> bool:
    """Return True if readers take the metadata of a long header of which they find this part in so many bytes."""
    n_brackets, n_commas = part.count(b"[") + part.count(b"{"), part.count(b",")
    return len(part) <= TEXT_PER_BYTE * n_stored and n_brackets <= n_stored and n_commas <= 2 * n_stored
