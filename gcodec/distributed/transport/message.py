"""Messages of a compressed all-reduce: a header of 64 bytes, then the payload, which is one frame.

    byte  0  magic "GCar"          8  sender, u32         24  agreement, u64       48  reserved, zero
          4  version, u8          12  piece, u32          32  values, u64          60  CRC-32 of bytes 0 ... 59, u32
          5  kind, u8             16  sequence, u64       40  payload bytes, u64
          6  reserved, zero

All numbers are little-endian. ``agreement`` is a hash of what all ranks must have in common: dtype, mode, operation,
number of values and world size. The frame has checksums of its own (docs/format.md); the header's is the CRC.
docs/contributing/wire.md is the page of this format.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ...errors import Corruption, PeerError

#: Kinds of messages: a rank's own values; a finished sum; why a rank fails, as text; and, with no payload, that a rank
#: has received all it needs.
CONTRIBUTION, RESULT, ABORT, RECEIPT = range(4)
HEADER = 64  #: bytes
MAX_REASON = 400  #: bytes of an abort message's text
_MAGIC, _VERSION = b"GCar", 2
_FIELDS = struct.Struct("<4sBB2xIIQQQQ12x")


class Header(NamedTuple):
    """A message's header, but for magic, version and CRC.

    Attributes:
        kind: CONTRIBUTION, RESULT, ABORT or RECEIPT.
        sender: Rank of the sender.
        piece: Number of the piece.
        sequence: Number of the all-reduce on its lane.
        agreement: Hash of what all ranks must have in common.
        n_values: Values that the payload holds.
        payload: Bytes behind the header.
    """

    kind: int
    sender: int
    piece: int
    sequence: int
    agreement: int
    n_values: int
    payload: int

    def write_to(self, message: np.ndarray) -> None:
        """Write the header into the first 64 bytes of ``message``, uint8."""
        kind, sender, piece, *rest = self
        fields = _FIELDS.pack(_MAGIC, _VERSION, kind, sender, piece, *rest)
        message[:HEADER] = np.frombuffer(fields + struct.pack("<I", zlib.crc32(fields)), np.uint8)

    @classmethod
    def read_from(cls, message: np.ndarray, where: str) -> Header:
        """Read the header of a message.

        Args:
            message: The buffer that the message was received in, uint8; the header is its first 64 bytes.
            where: Begins the text of an error.

        Raises:
            Corruption: The header is damaged.
            PeerError: The sender speaks another version of the protocol.
        """
        data = message[:HEADER].tobytes()
        magic, version, *fields = _FIELDS.unpack_from(data)
        if magic != _MAGIC or zlib.crc32(data[:60]) != int.from_bytes(data[60:], "little"):
            raise Corruption(f"{where}: the message's header is damaged")
        if version != _VERSION:
            raise PeerError(f"{where}: it speaks version {version} of the protocol, this rank version {_VERSION}")
        return cls(*fields)


def agreement_of(*facts: Any) -> int:
    """Return a hash of 64 bits, equal on all ranks if the facts are: numbers, strings and tuples of these."""
    return int(xxhash.xxh3_64_intdigest(repr(facts).encode()))


def check(message: np.ndarray, expected: Header, where: str) -> np.ndarray:
    """Return the payload of a received message, a view (uint8), after comparing the header with the one expected.

    Args:
        message: The buffer that the message was received in, uint8.
        expected: The header that is due; the payload's size may be another.
        where: Names the sender in errors.

    Raises:
        PeerError: An abort message, or a peer that does something else.
        Corruption: The message is damaged.
    """
    header = Header.read_from(message, where)
    if not 0 <= header.payload <= len(message) - HEADER:
        raise Corruption(f"{where}: {header.payload} bytes of payload where at most {len(message) - HEADER} fit")
    payload = message[HEADER : HEADER + header.payload]
    # From what the peer may well have meant to what nobody can have: an abort message and differences between the
    # ranks are the peer's doing, and are told as such before anything counts as damage.
    if header.kind == ABORT:
        raise PeerError(f"{where}: that rank has aborted: {payload.tobytes().decode(errors='replace')}")
    if header.sequence != expected.sequence:
        raise PeerError(f"{where}: that rank is at all-reduce {header.sequence}, this one at {expected.sequence}")
    if header.agreement != expected.agreement or header.n_values != expected.n_values:
        raise PeerError(
            f"{where}: that rank differs in dtype, mode, operation, number of values, world size, step or "
            "shared codebooks (as after load_state_dict() on some ranks only)"
        )
    if header._replace(payload=0) != expected:
        raise Corruption(f"{where}: {header} instead of {expected}")
    return payload


def abort_message(header: Header, error: BaseException) -> np.ndarray:
    """Return the message that takes the place of another one when its sender fails: uint8.

    Args:
        header: The header of the message that the receiver expects.
        error: Why the sender fails.
    """
    text = f"{type(error).__name__}: {error}".encode()[:MAX_REASON]
    message = np.empty(HEADER + len(text), np.uint8)
    header._replace(kind=ABORT, payload=len(text)).write_to(message)
    message[HEADER:] = np.frombuffer(text, np.uint8)
    return message
