"""The index of an archive: where it is; to JSON and, checking every rule of docs/archive.md, back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import Corruption, InsufficientData, InvalidArgument, LimitExceeded, Unsupported
from ..files.elements import FLOATS, MAX_SIZE, width
from ..files.file_plan import TensorView
from ..files.source import ByteSource
from .chunks import unpack_chunk
from .entries import Blob, Chunk, FileEntry, Paths, SegmentEntry, path_key, place_blobs, well_formed
from .layout import (
    CODECS,
    FRAME,
    FREE_INDEX,
    HEAD_BYTES,
    HEADER,
    MAGIC,
    MAX_PART,
    MAX_VERSIONS,
    MIN_FRAME,
    STORED,
    TRAILER,
    Trailer,
    check_header,
    check_json,
    padding,
)
from .type_casts import CASTS

HASH = re.compile(r"[0-9a-f]{16}")


def read_index(
    source: ByteSource, max_output_bytes: float | None = None, name: str | None = None
) -> tuple[FileEntry, ...]:
    """Return the files of an archive, every blob with its offset.

    Args:
        max_output_bytes: The text of the index may have 1 MiB more than this; None for no other limits than those of
            docs/archive.md, sections 4 and 5.
        name: Of the file, by which what is no archive is told from a damaged one; None if it has none.

    Raises:
        GcodecError: Not an archive, damaged, of another version, or with an index above the limit.
    """
    head = source.read(0, min(source.size, HEAD_BYTES)).tobytes()
    last = b"" if head.startswith(MAGIC) else source.read(max(source.size - len(MAGIC), 0), source.size).tobytes()
    check_header(head, last, name)
    if source.size < HEADER.size + TRAILER.size:
        raise InsufficientData(f"an archive has at least {HEADER.size + TRAILER.size} bytes, this has {source.size}")
    trailer = Trailer.read_from(source.read(source.size - TRAILER.size, source.size).tobytes())
    trailer.check_sizes(source.size)
    if max_output_bytes is not None and trailer.index_raw_bytes > FREE_INDEX + max_output_bytes:
        raise LimitExceeded(
            f"the index of {trailer.index_raw_bytes} bytes is above the limit of {FREE_INDEX} + {max_output_bytes}"
        )
    end = source.size - TRAILER.size
    start = end - trailer.index_bytes - padding(trailer.index_bytes)
    if start < HEADER.size:
        raise Corruption(f"the index of {trailer.index_bytes} bytes does not fit into the archive of {source.size}")
    stored = source.read(start, end).tobytes()
    index = stored[: trailer.index_bytes]
    trailer.check(index)
    if any(stored[len(index) :]):
        raise Corruption("the padding after the index is not zero")
    text = _index_text(index, trailer)
    check_json(text, source.size, "the index")
    files = index_from_json(text)
    end_of_chunks = place_blobs(files)
    if end_of_chunks != start:
        first = start - end_of_chunks  # where an archive with this index would begin
        if first > 0 and source.read(first, first + len(MAGIC)).tobytes() == MAGIC:
            raise Corruption(
                f"several archives follow each other, the last from byte {first} on: each must be a file of its own, "
                "or be given as a stream of its own bytes"
            )
        raise Corruption(f"chunks end at byte {end_of_chunks}, but the index begins at byte {start}")
    return files


def _index_text(index: bytes, trailer: Trailer) -> bytes:
    if trailer.index_codec == STORED:
        return index
    chunk = Chunk(trailer.index_codec, len(index), trailer.index_raw_bytes)
    return unpack_chunk(chunk, np.frombuffer(index, np.uint8), "the index").tobytes()


def index_to_json(files: Sequence[FileEntry]) -> bytes:
    """Return the text of the index, which :func:`index_from_json` reads."""
    return json.dumps({"files": [_file_to_json(f) for f in files]}, separators=(",", ":"), ensure_ascii=False).encode()


def check_views(path: str, tensors: Sequence[TensorView]) -> None:
    """Raises InvalidArgument if a tensor of the file ``path`` cannot stand in an index."""
    for tensor in tensors:
        numbers = (*tensor.shape, tensor.offset, *(tensor.stride or ()))
        if len(tensor.shape) > 64 or max(numbers) >= MAX_SIZE:
            raise InvalidArgument(
                f"{path}: tensor {tensor.name!r}: must have at most 64 dimensions, and sizes, offsets and"
                " strides below 2^62, to be in an archive"
            )


def index_from_json(data: bytes) -> tuple[FileEntry, ...]:
    """Reads an index and gives every blob its offset.

    Raises:
        Corruption: Not JSON, or against a rule of docs/archive.md.
        Unsupported: A reserved key or codec.
    """
    try:
        root = json.loads(data.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise Corruption(f"the index is not readable: {error}") from error
    (files,) = _fields(root, "the index", ("files",))
    entries = tuple(_file_from_json(value, f"file {number}") for number, value in enumerate(_array(files, "files")))
    paths = Paths()
    for path in sorted((entry.path for entry in entries), key=path_key):
        paths.add(path)
    _resolve_copies(entries)
    place_blobs(entries)
    return entries


def _file_to_json(entry: FileEntry) -> dict[str, Any]:
    optional = {"container": entry.container, "base": entry.base}
    return {
        "path": entry.path,
        "format": entry.format,
        "exact": entry.exact,
        **{key: value for key, value in optional.items() if value is not None},
        "size": entry.size,
        "verbatim": _blob_to_json(entry.verbatim),
        "segments": [_segment_to_json(segment) for segment in entry.segments],
        "tensors": [_tensor_to_json(tensor) for tensor in entry.tensors],
    }


def _file_from_json(value: object, where: str) -> FileEntry:
    required = ("path", "format", "exact", "size", "verbatim", "segments", "tensors")
    optional = ("container", "base")
    path, format_, exact, size, verbatim, segments, tensors, container, base = _fields(value, where, required, optional)
    where = f"file {path!r}"
    if type(exact) is not bool:
        raise Corruption(f"{where}: 'exact' must be true or false, not a {type(exact).__name__}")
    entry = FileEntry(
        _text(path, where),
        _text(format_, where),
        exact,
        _number(size, where),
        _blob_from_json(verbatim, where),
        tuple(_segment_from_json(item, where) for item in _array(segments, where)),
        tuple(_tensor_from_json(item, where) for item in _array(tensors, where)),
        None if container is None else _text(container, where),
        None if base is None else _text(base, where),
    )
    _check_file(entry, where)
    return entry


def _check_file(entry: FileEntry, where: str) -> None:
    if entry.size != entry.verbatim.bytes + sum(segment.bytes for segment in entry.segments):
        raise Corruption(f"{where}: its parts do not sum to its size")
    if sum(segment.skip for segment in entry.segments) > entry.verbatim.bytes:
        raise Corruption(f"{where}: its segments skip more than its {entry.verbatim.bytes} verbatim bytes")
    if len({tensor.name for tensor in entry.tensors}) != len(entry.tensors):
        raise Corruption(f"{where}: two tensors of the same name")
    for tensor in entry.tensors:
        _check_tensor(tensor, entry.segments, where)


def _check_tensor(tensor: TensorView, segments: Sequence[SegmentEntry], where: str) -> None:
    if tensor.segment >= len(segments):
        where = f"{where}: tensor {tensor.name!r}"
        raise Corruption(f"{where}: there is no segment {tensor.segment}, only {len(segments)} segments")
    size = width(tensor.dtype)
    if size is None or 0 in tensor.shape:
        return
    last = tensor.offset + math.prod(tensor.shape) - 1
    if tensor.stride is not None:
        last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride, strict=True))
    if (last + 1) * size > segments[tensor.segment].bytes:
        where = f"{where}: tensor {tensor.name!r}"
        raise Corruption(f"{where}: it does not fit its segment of {segments[tensor.segment].bytes} bytes")


def _blob_to_json(blob: Blob) -> dict[str, Any]:
    return {"bytes": blob.bytes, "hash": blob.hash, "chunks": [list(chunk) for chunk in blob.chunks]}


def _blob_from_json(value: object, where: str) -> Blob:
    size, hash_, chunks = _fields(value, where, ("bytes", "hash", "chunks"))
    return Blob(*_blob_fields(size, hash_, chunks, where))


def _segment_to_json(segment: SegmentEntry) -> dict[str, Any]:
    skip = {"skip": segment.skip} if segment.skip else {}
    dtype = {"dtype": segment.dtype} if segment.dtype else {}
    lossy = {"lossy": True} if segment.lossy else {}
    base = {"base": segment.base} if segment.base else {}
    same = {"same": list(segment.same), "chunks": []} if segment.same is not None else {}
    cast = {"cast": list(segment.cast)} if segment.cast is not None else {}
    version_of = {"version_of": list(segment.version_of)} if segment.version_of is not None else {}
    return {**skip, **dtype, **lossy, **base, **_blob_to_json(segment), **same, **cast, **version_of}


def _segment_from_json(value: object, where: str) -> SegmentEntry:
    required, optional = ("bytes", "hash", "chunks"), ("skip", "dtype", "lossy", "base", "same", "cast", "version_of")
    size, hash_, chunks, skip, dtype, lossy, base, same, cast, earlier = _fields(value, where, required, optional)
    if dtype not in (None, *FLOATS) or not isinstance(lossy, bool | None):
        raise Corruption(f"{where}: a segment's dtype must be a type and 'lossy' true, not {dtype!r} and {lossy!r}")
    skip = _number(0 if skip is None else skip, where)
    base = None if base is None else _hash(base, where)
    if same is None:
        blob = _blob_fields(size, hash_, chunks, where)
        if [base, cast, earlier].count(None) < 2:
            raise Corruption(f"{where}: must have one of a base, a cast and an earlier version, not several")
        return SegmentEntry(
            *blob,
            skip=skip,
            dtype=dtype,
            lossy=bool(lossy),
            base=base,
            cast=None if cast is None else _place(cast, f"{where}: a cast"),
            version_of=None if earlier is None else _place(earlier, f"{where}: a version of another"),
        )
    place = [_number(number, where) for number in _array(same, where)]
    if len(place) != 2 or (base, cast, earlier) != (None, None, None) or _array(chunks, where):
        raise Corruption(
            f"{where}: a segment with the bytes of another must name a file and a segment, and have no "
            "chunks and no base of its own"
        )
    own = _number(size, where), _hash(hash_, where), ()
    return SegmentEntry(*own, skip=skip, dtype=dtype, lossy=bool(lossy), same=(place[0], place[1]))


def _place(value: object, where: str) -> tuple[int, int]:
    """Return the numbers of a file and of a segment in it."""
    numbers = [_number(number, where) for number in _array(value, where)]
    if len(numbers) != 2:
        raise Corruption(f"{where} must name a file and a segment")
    return numbers[0], numbers[1]


def _resolve_copies(files: Sequence[FileEntry]) -> None:
    """Gives segments that have the bytes of an earlier one its chunks. Raises Corruption if it cannot be that."""
    lengths = dict[tuple[int, int], int]()  # of the chains of versions, by where they end
    for number, entry in enumerate(files):
        for at, segment in enumerate(entry.segments):
            where = f"file {entry.path!r}: segment {at}"
            if segment.version_of is not None:
                _check_version(files, number, segment, segment.version_of, where)
                lengths[number, at] = 1 + lengths.get(segment.version_of, 0)
                if lengths[number, at] > MAX_VERSIONS:
                    raise Corruption(f"{where}: more than {MAX_VERSIONS} earlier versions must be decoded for it")
            if segment.cast is not None:
                _check_cast(files, segment, segment.cast, where)
            if segment.same is None:
                continue
            if not segment.same < (number, at) or segment.same[1] >= len(files[segment.same[0]].segments):
                raise Corruption(f"{where}: there is no earlier segment {segment.same[1]} of file {segment.same[0]}")
            first = files[segment.same[0]].segments[segment.same[1]]
            if (
                first.same is not None
                or first.base is not None
                or first.cast is not None
                or first.version_of is not None
                or _content_of(first) != _content_of(segment)
            ):
                raise Corruption(
                    f"{where}: must have the size, hash and type of segment {segment.same[1]} of file "
                    f"{segment.same[0]}, which must have chunks of its own, and need no other"
                )
            if not first.may_be_shared:
                raise Corruption(
                    f"{where}: segment {segment.same[1]} of file {segment.same[0]} has "
                    f"{len(first.chunks)} chunks, too many for its {first.bytes} bytes to be those of "
                    "another segment"
                )
            segment.chunks = first.chunks


def _check_cast(files: Sequence[FileEntry], segment: SegmentEntry, cast: tuple[int, int], where: str) -> None:
    """Raise Corruption unless a segment may be coded against the values of another, cast to its type."""
    file, number = cast
    of = files[file].segments[number] if file < len(files) and number < len(files[file].segments) else None
    fits = of is not None and of.cast is None and of.dtype == "float32" and of.bytes == 2 * segment.bytes
    if not fits or segment.dtype not in CASTS:
        raise Corruption(f"{where}: is no cast of segment {number} of file {file}")
    if not segment.may_be_shared:
        raise Corruption(f"{where}: has {len(segment.chunks)} chunks, too many for a cast of {segment.bytes} bytes")


def _check_version(
    files: Sequence[FileEntry], file: int, segment: SegmentEntry, earlier: tuple[int, int], where: str
) -> None:
    """Raise Corruption unless a segment of the file of number ``file`` may be coded against an earlier one."""
    of = files[earlier[0]].segments[earlier[1]] if earlier[0] < file and _is_there(files, earlier) else None
    fits = of is not None and of.same is None and of.cast is None and not of.lossy and not segment.lossy
    if of is None or not fits or (of.bytes, of.dtype) != (segment.bytes, segment.dtype) or of.dtype is None:
        raise Corruption(f"{where}: is no later version of segment {earlier[1]} of file {earlier[0]}")
    if not (segment.may_be_shared and of.may_be_shared):
        n_chunks = max(len(segment.chunks), len(of.chunks))
        raise Corruption(f"{where}: {n_chunks} chunks are too many for a version of {segment.bytes} bytes")


def _is_there(files: Sequence[FileEntry], place: tuple[int, int]) -> bool:
    return place[0] < len(files) and place[1] < len(files[place[0]].segments)


def _content_of(segment: SegmentEntry) -> tuple[int, str, str | None, bool]:
    """Return what segments of the same bytes have in common."""
    return segment.bytes, segment.hash, segment.dtype, segment.lossy


def _blob_fields(size: object, hash_: object, chunks: object, where: str) -> tuple[int, str, tuple[Chunk, ...]]:
    parts = tuple(_chunk_from_json(chunk, where) for chunk in _array(chunks, where))
    if _number(size, where) != sum(chunk.size for chunk in parts):
        raise Corruption(f"{where}: the sizes of its chunks do not sum to {size}")
    return _number(size, where), _hash(hash_, where), parts


def _hash(value: object, where: str) -> str:
    if not isinstance(value, str) or not HASH.fullmatch(value):
        raise Corruption(f"{where}: a hash must be a string of 16 lower-case hexadecimal digits")
    return value


def _chunk_from_json(value: object, where: str) -> Chunk:
    numbers = [_number(number, where) for number in _array(value, where)]
    if len(numbers) != 3:
        raise Corruption(f"{where}: a chunk must have 3 numbers, not {len(numbers)}")
    chunk = Chunk(*numbers)
    if chunk.codec >= len(CODECS):
        raise Unsupported(f"{where}: chunk codec {chunk.codec} is not known to this version")
    smallest = MIN_FRAME if chunk.codec == FRAME else 1
    fits = chunk.stored == chunk.size if chunk.codec == STORED else smallest <= chunk.stored < chunk.size
    if not 1 <= chunk.size <= MAX_PART or not fits:
        raise Corruption(f"{where}: a chunk with codec {chunk.codec} cannot store {chunk.size} bytes in {chunk.stored}")
    return chunk


def _tensor_to_json(tensor: TensorView) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype}
    entry |= {"shape": tensor.shape, "segment": tensor.segment}
    if tensor.offset:
        entry["offset"] = tensor.offset
    if tensor.stride is not None:
        entry["stride"] = tensor.stride
    return entry


_TENSOR, _TENSOR_IF_ANY = ("name", "dtype", "shape", "segment"), ("offset", "stride")  #: keys of a tensor


def _tensor_from_json(value: object, where: str) -> TensorView:
    name, dtype, shape, segment, offset, stride = _fields(value, where, _TENSOR, _TENSOR_IF_ANY)
    shape = tuple([_number(n, where) for n in _array(shape, where)])
    steps = None if stride is None else tuple([_number(n, where) for n in _array(stride, where)])
    if len(shape) > 64 or (steps is not None and len(steps) != len(shape)):
        raise Corruption(f"{where}: a tensor of illegal shape or strides")
    number = _number(segment, where), _number(0 if offset is None else offset, where)
    return TensorView(_text(name, where), _text(dtype, where), shape, *number, steps)


def _fields(value: object, where: str, required: Sequence[str], optional: Sequence[str] = ()) -> list[Any]:
    """Return the values of an object's keys, in the order asked for; None for an optional key that is absent."""
    if not isinstance(value, dict):
        raise Corruption(f"{where}: must be an object, not a {type(value).__name__}")
    found = [*map(value.get, required), *map(value.get, optional)]
    if len(value) == len(found) - found.count(None) and None not in found[: len(required)]:
        return found
    if missing := [key for key in required if key not in value]:
        raise Corruption(f"{where}: the key {missing[0]!r} is missing")
    if unknown := value.keys() - {*required, *optional}:
        raise Unsupported(f"{where}: reserved key {min(unknown)!r}")
    if any(value.get(key, 0) is None for key in optional):
        raise Corruption(f"{where}: a key must be left out rather than null")
    return found


def _array(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Corruption(f"{where}: must be an array, not a {type(value).__name__}")
    return value


def _number(value: object, where: str) -> int:
    if type(value) is not int or not 0 <= value < MAX_SIZE:
        raise Corruption(f"{where}: {str(value)[:40]!r} is not a number below 2^62")
    return value


def _text(value: object, where: str) -> str:
    if (
        isinstance(value, str)
        and len(value) <= 1 << 16
        and (value.isascii() or (well_formed(value) and len(value.encode()) <= 1 << 16))
    ):
        return value
    raise Corruption(f"{where}: must be a string of at most 65536 bytes")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Corruption(f"the index: a key occurs twice in {sorted(result)[:3]}")
    return result
