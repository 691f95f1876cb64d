"""The envelope of every payload: its kind, its number of values, and a checksum over all of it.

    byte 0  kind, u8       4  checksum, u32, the low half of XXH3 of all other bytes     16  sections, end to end
         1  dtype, u8      8  values of the tensor, u64
         2  zero, u16

Numbers are little-endian. The lengths of sections follow from what they hold, or stand in a section of their own; the
reader of a payload knows the tensor that it is for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import xxhash

from ..dtypes import DTYPES
from ..errors import Corruption, GcodecError, InsufficientData

SPARSE, QUANTIZED, PART, BLOCKS = 1, 2, 3, 4  #: kinds
#: Numbers of dtypes in payloads; they stand on the wire and must not change.
DTYPE_CODES = {getattr(torch, t.name): t.payload_number for t in DTYPES if t.payload_number is not None}
ENVELOPE = 16  #: bytes
_FIELDS = struct.Struct("<BBHIQ")


def seal(kind: int, dtype: torch.dtype, n_values: int, *sections: bytes) -> bytes:
    """Return the payload of these sections for a tensor of ``n_values`` values."""
    body = b"".join(sections)
    head = _FIELDS.pack(kind, DTYPE_CODES[dtype], 0, 0, n_values)
    return _FIELDS.pack(kind, DTYPE_CODES[dtype], 0, _checksum(head, body), n_values) + body


def unseal(payload: bytes, kind: int, dtype: torch.dtype, n_values: int) -> memoryview:
    """Return the sections of a payload, end to end.

    Args:
        payload: What :func:`seal` returned on some rank.
        kind: One of this module's kinds.
        dtype: Dtype of the tensor.
        n_values: Values of the tensor.

    Raises:
        InsufficientData: For a payload that is shorter than its envelope.
        Corruption: For another kind, dtype, number of values or checksum.
    """
    if len(payload) < ENVELOPE:
        raise InsufficientData(f"a payload has at least {ENVELOPE} bytes, its envelope, not {len(payload)}")
    *identity, zero, checksum, n_stated = _FIELDS.unpack_from(payload)
    body = memoryview(payload)[ENVELOPE:]
    head = _FIELDS.pack(*identity, zero, 0, n_stated)
    if checksum != _checksum(head, body):
        raise Corruption("the payload's checksum is wrong")
    if (*identity, zero, n_stated) != (kind, DTYPE_CODES[dtype], 0, n_values):
        raise Corruption(
            f"the payload's kind, dtype code, reserved field and number of values must be "
            f"{(kind, DTYPE_CODES[dtype], 0, n_values)}, not {(*identity, zero, n_stated)}"
        )
    return body


@contextmanager
def errors_of_rank(rank: int) -> Iterator[None]:
    """Name the rank that a payload is from in the errors of decoding it.

    Raises:
        InsufficientData: In place of one without the rank.
        Corruption: In place of any other GcodecError.
    """
    try:
        yield
    except InsufficientData as error:
        raise InsufficientData(f"rank {rank}: {error}") from error
    except GcodecError as error:
        raise Corruption(f"rank {rank}: {error}") from error


def _checksum(head: bytes, body: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(head)
    digest.update(body)
    return digest.intdigest() & 0xFFFFFFFF
