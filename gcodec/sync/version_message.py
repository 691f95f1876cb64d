"""A version of weights as bytes: an archive of tensors, whose metadata say what it applies to (docs/weight-sync.md).

Index and frames have checksums over every byte, and all that is restored is compared with a hash.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from ..archive import ArchiveReader, FileEntry
from ..archive.base_tensors import BaseFinder
from ..errors import Corruption, GcodecError, InvalidArgument, Unsupported
from ..files.file_plan import TensorView
from ..files.safetensors import CODES
from ..files.source import ArraySource, ByteSource
from .tensor_bits import TensorLayout

#: Keys of the metadata; others of this prefix are reserved, and all without it are the publisher's own.
PREFIX = "gcodec-sync"
FORMAT, NUMBER, BASE, STATE, PART = (PREFIX + key for key in ("", ".version", ".base", ".state", ".part"))
FORMAT_VERSION = "1"
MAX_NUMBER = 1 << 62
#: Bytes-like objects, a path, or a binary stream.
Message = bytes | bytearray | memoryview | np.ndarray | str | os.PathLike[str] | BinaryIO


@dataclass(frozen=True)
class VersionInfo:
    """Facts about a version's message.

    Attributes:
        number: number of the version, from 1.
        state: hash of the weights that applying it gives, 16 hexadecimal digits.
        base: hash of the weights that it applies to; None for an anchor, which applies to any.
        part: name of the part of a sharded state that it holds; empty for all of it.
        metadata: the publisher's own key-value pairs.
        tensors: layout of each tensor that it holds, by name: all of them, or those that changed.
    """

    number: int
    state: str
    base: str | None
    part: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, TensorLayout] = field(default_factory=dict)

    @property
    def is_anchor(self) -> bool:
        """Return True if it holds all weights."""
        return self.base is None

    def __str__(self) -> str:
        return f"version {self.number} ({'anchor' if self.is_anchor else 'difference'})"


class HashedTensor(NamedTuple):
    """A tensor as the hash of weights depends on it.

    Attributes:
        layout: its layout.
        hash: XXH3, 64 bits, of its row-major little-endian bytes: 16 hexadecimal digits.
    """

    layout: TensorLayout
    hash: str


def state_hash(tensors: Mapping[str, HashedTensor]) -> str:
    """Return the hash of weights: 16 hexadecimal digits.

    It is that of a JSON text, a list with name, dtype, shape and hash of each tensor in the order of their names.
    """
    rows = [[name, *tensors[name].layout, tensors[name].hash] for name in sorted(tensors)]
    return xxhash.xxh3_64_hexdigest(json.dumps(rows, separators=(",", ":"), ensure_ascii=True).encode())


def to_metadata(info: VersionInfo) -> dict[str, str]:
    """Return the metadata of the archive that holds a version; :func:`open_message` reads them."""
    own = {FORMAT: FORMAT_VERSION, NUMBER: str(info.number), STATE: info.state}
    if info.base is not None:
        own[BASE] = info.base
    if info.part:
        own[PART] = info.part
    return {**own, **info.metadata}


def check_own_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a publisher's own key-value pairs. Raises InvalidArgument unless they are strings, and no key reserved."""
    pairs = dict(metadata or {})
    key: Any
    value: Any
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str) or key.startswith(PREFIX):
            raise InvalidArgument(
                f"metadata must map strings to strings, and no key may begin with {PREFIX!r}; found {key!r}: {value!r}"
            )
    return pairs


class OpenMessage(NamedTuple):
    """A version's message that is open for reading, and whose index and metadata have been checked.

    Attributes:
        info: the facts.
        archive: the archive.
        entry: the file in it.
    """

    info: VersionInfo
    archive: ArchiveReader
    entry: FileEntry

    def tensors(self) -> Iterable[tuple[TensorView, TensorLayout, str]]:
        """Iterate over the tensors: where each lies, its layout, and the hash of its bytes."""
        for view in self.entry.tensors:
            yield view, self.info.tensors[view.name], self.entry.segments[view.segment].hash

    def check_rest(self) -> None:
        """Read and check the bytes that belong to no tensor. Raises Corruption."""
        with_tensors = {view.segment for view in self.entry.tensors}
        for number in range(len(self.entry.segments)):
            if number not in with_tensors:
                for _ in self.archive.segment_parts(self.entry, number):
                    pass


def open_message(
    data: Message, *, threads: int | None = None, max_output_bytes: int | None = None, bases: BaseFinder | None = None
) -> OpenMessage:
    """Open a version's message, which the caller closes by closing its archive.

    Args:
        data: bytes, a path or a binary stream.
        threads: how many decode at once; as many as the process may use if None.
        max_output_bytes: refuse messages that restore to more; no limit if None.
        bases: finds the weights that a difference applies to.

    Raises:
        Corruption: it is damaged, or not a version.
        Unsupported: it is of a later format.
        LimitExceeded: it is above the limit.
    """
    archive = ArchiveReader(_source_of(data), threads=threads, max_output_bytes=max_output_bytes, base=bases)
    try:
        archive.check_limit()
        return _checked(archive)
    except GcodecError:
        archive.close()
        raise


def read_version_info(data: Message) -> VersionInfo:
    """Return the facts about a version's message: number, hashes, metadata and layouts. Values are not read.

    Args:
        data: bytes, a path or a binary stream.

    Raises:
        GcodecError: it is damaged, not a version, or of a later format.
    """
    message = open_message(data, threads=1)
    message.archive.close()
    return message.info


class _NamedSource(ArraySource):
    name = "the message"


def _source_of(data: Message) -> str | os.PathLike[str] | BinaryIO | ByteSource:
    if isinstance(data, str | os.PathLike | io.IOBase) or hasattr(data, "readinto"):
        return data  # type: ignore[return-value]
    try:
        return _NamedSource([np.frombuffer(data, np.uint8)])  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(
            f"a version must be bytes, a path or a binary stream, not a {type(data).__name__}: {error}"
        ) from None


def _checked(archive: ArchiveReader) -> OpenMessage:
    """Return the message in an archive, if there is one."""
    if len(archive.files) != 1 or archive.files[0].format != "safetensors":
        raise Corruption(f"{archive.name}: an archive, but not a version of weights")
    entry = archive.files[0]
    pairs = archive.metadata(entry)
    if not all(isinstance(value, str) for value in pairs.values()):
        raise Corruption(f"{archive.name}: metadata must map strings to strings")
    if FORMAT not in pairs:
        raise Corruption(f"{archive.name}: an archive of tensors, but not a version of weights")
    if pairs[FORMAT] != FORMAT_VERSION:
        raise Unsupported(f"{archive.name}: version message of format {pairs[FORMAT]!r}, not {FORMAT_VERSION}")
    reserved = {FORMAT, NUMBER, BASE, STATE, PART}
    for key in pairs:
        if key.startswith(PREFIX) and key not in reserved:
            raise Unsupported(f"{archive.name}: reserved key {key!r}")
    number = pairs.get(NUMBER, "")
    if not (number.isascii() and number.isdigit() and len(number) < 20 and 1 <= int(number) < MAX_NUMBER):
        raise Corruption(f"{archive.name}: the number of a version must be 1 or more, not {number!r}")
    state, base = pairs.get(STATE, ""), pairs.get(BASE)
    for digest in (state,) if base is None else (state, base):
        if len(digest) != 16 or not set(digest) <= set("0123456789abcdef"):
            raise Corruption(f"{archive.name}: a hash must have 16 hexadecimal digits, not be {digest!r}")
    own = {key: value for key, value in pairs.items() if key not in reserved}
    layouts = {view.name: _checked_layout(archive.name, entry, view, base is None) for view in entry.tensors}
    if len({view.segment for view in entry.tensors}) != len(entry.tensors):
        raise Corruption(f"{archive.name}: two tensors of a version share their values")
    info = VersionInfo(int(number), state, base, pairs.get(PART, ""), own, layouts)
    return OpenMessage(info, archive, entry)


def _checked_layout(where: str, entry: FileEntry, view: TensorView, is_anchor: bool) -> TensorLayout:
    segment, layout = entry.segments[view.segment], TensorLayout(view.dtype, view.shape)
    if view.dtype not in CODES:
        raise Unsupported(f"{where}: tensor {view.name!r} has the type {view.dtype}, which versions do not have")
    if view.offset or view.stride is not None or layout.n_bytes != segment.bytes or segment.lossy:
        raise Corruption(f"{where}: tensor {view.name!r} is not all of its values, exact and in order")
    if is_anchor and segment.base is not None:
        raise Corruption(f"{where}: tensor {view.name!r} of an anchor refers to a base")
    return layout
