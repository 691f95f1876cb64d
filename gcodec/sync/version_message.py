"""A version of weights as bytes: an archive of tensors, whose metadata say what it applies to (docs/weight-sync.md).

Index and frames have checksums over every byte, and all that is restored is compared with a hash.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from ..archive import ArchiveReader, FileEntry
from ..archive.base_tensors import BaseFinder, are_end_to_end
from ..archive.entries import well_formed
from ..errors import Corruption, GcodecError, InvalidArgument, Unsupported, WrongKind
from ..files.file_plan import TensorView
from ..files.safetensors import CODES
from ..files.source import ArraySource, Bytes, ByteSource
from .tensor_bits import TensorLayout

#: Keys of the metadata; others of this prefix are reserved, and all without it are the publisher's own.
PREFIX = "gcodec-sync"
FORMAT, NUMBER, BASE, STATE, PART = (PREFIX + key for key in ("", ".version", ".base", ".state", ".part"))
#: What :data:`FORMAT` maps to: of messages in which each tensor is a segment of its own, and of those in which some are
#: end to end in one.
ALONE, JOINED = "1", "2"
MAX_NUMBER = 1 << 62
#: Bytes-like objects, a path, or a binary stream.
Message = bytes | bytearray | memoryview | np.ndarray | str | os.PathLike[str] | BinaryIO


@dataclass(frozen=True)
class VersionInfo:
    """Facts about a version's message.

    Attributes:
        number: Number of the version, from 1.
        state: Hash of the weights that applying it gives, 16 hexadecimal digits.
        base: Hash of the weights that it applies to; None for an anchor, which applies to any.
        part: Name of the part of a sharded state that it holds; empty for all of it.
        metadata: The publisher's own key-value pairs.
        tensors: Layout of each tensor that it holds, by name: all of them, or those that changed.
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
        layout: Its layout.
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


def to_metadata(info: VersionInfo, *, are_joined: bool) -> dict[str, str]:
    """Return the metadata of the archive that holds a version; :func:`open_message` reads them.

    Args:
        info: The facts.
        are_joined: There are segments of several tensors.
    """
    own = {FORMAT: JOINED if are_joined else ALONE, NUMBER: str(info.number), STATE: info.state}
    if info.base is not None:
        own[BASE] = info.base
    if info.part:
        own[PART] = info.part
    return {**own, **info.metadata}


def check_own_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return a publisher's own key-value pairs. Raises InvalidArgument unless they are strings, and no key reserved."""
    if not isinstance(metadata, Mapping | None):
        raise InvalidArgument(f"metadata must map strings to strings, not be {metadata!r}")
    pairs = dict(metadata or {})
    for key, value in pairs.items():
        if not _is_text(key) or not _is_text(value) or key.startswith(PREFIX):
            raise InvalidArgument(
                f"metadata must map strings of UTF-8 to such strings, and no key may begin with {PREFIX!r}; found "
                f"{key!r}: {value!r}"
            )
    return pairs


def check_part(part: Any) -> str:
    """Return the name of a part of a sharded state. Raises InvalidArgument unless it is a string."""
    if not _is_text(part):
        raise InvalidArgument(f"part must be a string of UTF-8, not {part!r}")
    return str(part)


def _is_text(value: Any) -> bool:
    """Return True for a string that can be written as UTF-8."""
    return isinstance(value, str) and well_formed(value)


class TensorPart(NamedTuple):
    """Bytes of a tensor that have been decoded; those of a tensor come in order.

    Attributes:
        name: Name of the tensor.
        layout: Its layout.
        start: Number of the first of these bytes.
        data: The bytes; of the last part, none.
        hash: Of all of the tensor's bytes, where this is its last part; else None.
    """

    name: str
    layout: TensorLayout
    start: int
    data: Bytes
    hash: str | None = None


class OpenMessage(NamedTuple):
    """A version's message that is open for reading, and whose index and metadata have been checked.

    Attributes:
        info: The facts.
        archive: The archive.
        entry: The file in it.
    """

    info: VersionInfo
    archive: ArchiveReader
    entry: FileEntry

    def tensor_parts(self, without: Container[int] = ()) -> Iterator[TensorPart]:
        """Iterate over the bytes of all tensors, decoded, and their hashes.

        Args:
            without: Numbers of segments to pass over.

        Raises:
            Corruption: They are damaged.
        """
        for number, views in self.entry.views.items():
            if number in without:
                continue
            parts = self.archive.segment_parts(self.entry, number, views[0].name if len(views) == 1 else None)
            layouts = [(view.name, self.info.tensors[view.name]) for view in views]
            if len(views) > 1:
                yield from _cut(parts, layouts)
                continue
            (name, layout), at = layouts[0], 0
            for data in parts:
                yield TensorPart(name, layout, at, data)
                at += data.size
            yield TensorPart(name, layout, at, _NOTHING, self.entry.segments[number].hash)

    def check_rest(self) -> None:
        """Read and check the bytes that belong to no tensor. Raises Corruption."""
        with_tensors = {view.segment for view in self.entry.tensors}
        for number in range(len(self.entry.segments)):
            if number not in with_tensors:
                for _ in self.archive.segment_parts(self.entry, number):
                    pass


def _cut(parts: Iterable[Bytes], tensors: list[tuple[str, TensorLayout]]) -> Iterator[TensorPart]:
    """Yield the parts of tensors, given those of the segment in which they lie end to end."""
    left, (name, layout), at, digest = iter(tensors), ("", TensorLayout("uint8", (0,))), 0, xxhash.xxh3_64()
    for data in parts:
        while data.size:
            while at == layout.n_bytes:
                (name, layout), at, digest = next(left), 0, xxhash.xxh3_64()
            own, data = data[: layout.n_bytes - at], data[layout.n_bytes - at :]
            digest.update(own.data)
            yield TensorPart(name, layout, at, own)
            at += own.size
            if at == layout.n_bytes:
                yield TensorPart(name, layout, at, _NOTHING, digest.hexdigest())


def open_message(
    data: Message, *, threads: int | None = None, max_output_bytes: int | None = None, bases: BaseFinder | None = None
) -> OpenMessage:
    """Open a version's message, which the caller closes by closing its archive.

    Args:
        data: Bytes, a path or a binary stream.
        threads: How many decode at once; as many as the process may use if None.
        max_output_bytes: Refuse messages that restore to more; no limit if None.
        bases: Finds the weights that a difference applies to.

    Raises:
        Corruption: It is damaged.
        WrongKind: It is no version, and not damaged, as far as can be told.
        Unsupported: It is of a later format.
        LimitExceeded: It is above the limit.
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
        data: Bytes, a path or a binary stream.

    Raises:
        GcodecError: It is damaged, not a version, or of a later format.
    """
    message = open_message(data, threads=1)
    message.archive.close()
    return message.info


_NOTHING = np.zeros(0, np.uint8)


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
        raise WrongKind(f"{archive.name}: an archive, but not a version of weights")
    entry = archive.files[0]
    pairs = archive.metadata(entry)
    if not all(isinstance(value, str) for value in pairs.values()):
        raise Corruption(f"{archive.name}: metadata must map strings to strings")
    if FORMAT not in pairs:
        raise WrongKind(f"{archive.name}: an archive of tensors, but not a version of weights")
    if pairs[FORMAT] not in (ALONE, JOINED):
        raise Unsupported(f"{archive.name}: version message of format {pairs[FORMAT]!r}, not {ALONE} or {JOINED}")
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
    for segment, views in entry.views.items():
        if not are_end_to_end(views, entry.segments[segment].bytes):
            raise Corruption(f"{archive.name}: tensor {views[0].name!r} is not all of its values, exact and in order")
        if len(views) > 1 and (pairs[FORMAT] == ALONE or any(_differs(view, views[0].dtype) for view in views)):
            raise Corruption(f"{archive.name}: tensors {views[0].name!r} and {views[1].name!r} share a segment")
    info = VersionInfo(int(number), state, base, pairs.get(PART, ""), own, layouts)
    return OpenMessage(info, archive, entry)


def _differs(view: TensorView, dtype: str) -> bool:
    return view.dtype != dtype or 0 in view.shape


def _checked_layout(where: str, entry: FileEntry, view: TensorView, is_anchor: bool) -> TensorLayout:
    segment, layout = entry.segments[view.segment], TensorLayout(view.dtype, view.shape)
    if view.dtype not in CODES:
        raise Unsupported(f"{where}: tensor {view.name!r} has the type {view.dtype}, which versions do not have")
    if view.stride is not None or segment.lossy:
        raise Corruption(f"{where}: tensor {view.name!r} is not all of its values, exact and in order")
    if is_anchor and segment.base is not None:
        raise Corruption(f"{where}: tensor {view.name!r} of an anchor refers to a base")
    return layout
