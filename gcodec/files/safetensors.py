"""``.safetensors``: finds the tensors. The header stays as it is, so the file comes back byte for byte."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any

from ..dtypes import DTYPES
from ..errors import Corruption, InsufficientData, InvalidArgument
from .elements import MAX_SIZE, PAIRS, stored_as, width
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble
from .source import ByteSource

#: The format's own limit on its header.
MAX_HEADER = 100_000_000
NAME_OF = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    **{t.safetensors: t.name for t in DTYPES},
    "C64": "complex64",
    "F4": "float4_e2m1fn_x2",
}
CODES = {name: code for code, name in NAME_OF.items()}
#: Types of which a header counts values and torch pairs, each in a byte: their last dimension is half as long in torch.
PACKED_PAIRS = {"F4"}
#: Types of less than a byte, in bits. Those that are no pairs are restored with their file, not taken out alone.
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def looks_like_safetensors(head: bytes, size: int) -> bool:
    """Return True if a file of ``size`` bytes that begins with ``head`` (9 bytes or more) may be a ``.safetensors``."""
    length = int.from_bytes(head[:8], "little")
    return len(head) > 8 and 2 <= length <= min(size - 8, MAX_HEADER) and head[8:9] == b"{"


def plan_safetensors(path: str, source: ByteSource) -> FilePlan:
    """Return the plan of a ``.safetensors`` file.

    Raises:
        Corruption: The header is malformed; tensors overlap, leave holes or do not end where the file does.
    """
    start, header = read_header(source, path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Corruption(f"{path}: __metadata__ must map strings to strings")
    pieces = [_piece(path, name, entry, start) for name, entry in header.items()]
    plan = assemble(path, "safetensors", source, pieces, metadata=metadata)
    _check_complete(path, start, pieces, source.size)
    return plan


def read_header(source: ByteSource, path: str) -> tuple[int, dict[str, Any]]:
    """Return where the data begins, and the header as JSON.

    Raises:
        Corruption: Not a ``.safetensors`` header.
    """
    if source.size < 8:
        raise InsufficientData(f"{path}: a .safetensors file has at least 8 bytes, this has {source.size}")
    start = 8 + int.from_bytes(source.read(0, 8).tobytes(), "little")
    if start > min(source.size, 8 + MAX_HEADER):
        raise Corruption(
            f"{path}: the header has {start - 8} bytes; there is room for {min(source.size - 8, MAX_HEADER)}"
        )
    text = source.read(8, start).tobytes()  # what is raised here is no fault of the text
    try:
        header = json.loads(text.decode(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{path}: malformed .safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise Corruption(f"{path}: the .safetensors header is not a JSON object")
    return start, header


#: Type, shape and size in bytes of a tensor.
Described = tuple[str, tuple[int, ...], int]


def plan_described(
    path: str,
    tensors: Mapping[str, Described],
    groups: Sequence[Sequence[str]],
    source_of: Callable[[bytes], ByteSource],
    *,
    metadata: Mapping[str, str] | None = None,
    ties: Mapping[str, Sequence[str]] | None = None,
    apart: Collection[str] = (),
    container: str | None = None,
) -> FilePlan:
    """Return the plan of the ``.safetensors`` file that would hold tensors, which need not exist.

    Args:
        path: Under which an archive keeps the file.
        tensors: What they are, by name.
        groups: Their names, in the order of the data; tensors of a group, which are of one type, are one segment.
        source_of: Returns the source of the file's bytes, given its header; the tensors' bytes follow in this order.
        metadata: The file's own key-value pairs.
        ties: For some tensors, alone in their group, other names of the same values.
        apart: Names of tensors that are never put together with others.
        container: "numpy" or "torch" for all tensors, if one is known.

    Raises:
        InvalidArgument: As :func:`safetensors_header` does.
    """
    ties, pieces = ties or {}, []
    header = safetensors_header({name: tensors[name] for group in groups for name in group}, metadata)
    at = len(header)
    for number, group in enumerate(groups):  # mostly the number of its segment, too
        begin, views = at, []
        for name in group:
            dtype, shape, size = tensors[name]
            first = (at - begin) // (width(dtype) or 1)
            views += [TensorView(other, dtype, shape, number, first) for other in (name, *ties.get(name, ()))]
            at += size
        segment = FileSegment(begin, at, stored_as(tensors[group[0]][0]), apart=group[0] in apart)
        pieces.append(SegmentViews(segment, tuple(views)))
    return assemble(path, "safetensors", source_of(header), pieces, container=container)


def safetensors_header(tensors: Mapping[str, Described], metadata: Mapping[str, str] | None) -> bytes:
    """Return the header of a ``.safetensors`` file, which :func:`read_header` reads.

    Args:
        tensors: Name to (dtype, shape, size in bytes), in the order of the data.
        metadata: The file's own key-value pairs.

    Raises:
        InvalidArgument: A dtype that .safetensors lacks, one of pairs without a dimension, a reserved name, or a header
            beyond the format's limit.
    """
    entries, at = list[str](), 0
    if metadata is not None:
        entries.append('"__metadata__":' + json.dumps(dict(metadata), separators=(",", ":"), ensure_ascii=False))
    for name, (dtype, shape, size) in tensors.items():
        if name == "__metadata__":
            raise InvalidArgument(
                f"tensor {name!r}: must have another name, because a .safetensors header keeps the "
                "file's own strings under this one"
            )
        if dtype not in CODES:
            pairs = f"; store it as {PAIRS[dtype]}, or with gcodec.save" if dtype in PAIRS else ""
            raise InvalidArgument(f"tensor {name!r}: must be of a type that .safetensors has, not of {dtype}{pairs}")
        code, sizes = CODES[dtype], list(shape)
        if code in PACKED_PAIRS:
            if not sizes:
                raise InvalidArgument(
                    f"tensor {name!r}: must have a dimension, because {dtype} has two values in each "
                    "element; store it with the shape [1]"
                )
            sizes[-1] *= 2
        # Each entry as text: objects for all of them would take three times as long.
        shape_text = ",".join(map(str, sizes))
        entries.append(
            f'{encode_basestring(name)}:{{"dtype":"{code}","shape":[{shape_text}],"data_offsets":[{at},{at + size}]}}'
        )
        at += size
    text = f"{{{','.join(entries)}}}".encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise InvalidArgument(f"a .safetensors header of {len(text)} bytes is above the limit of {MAX_HEADER}")
    return len(text).to_bytes(8, "little") + text


def _piece(path: str, name: str, entry: object, start: int) -> SegmentViews:
    try:
        code, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]  # type: ignore[index]
        if not all(type(n) is int and 0 <= n < MAX_SIZE for n in (*shape, first, last)):
            raise ValueError("sizes and offsets must be integers of at least 0")
        bits = PACKED_BITS.get(code) or 8 * _width(code)
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(f"{path}: malformed entry for tensor {name!r}: {error}") from error
    if len(shape) > 64 or math.prod(shape) * bits != (last - first) * 8:
        raise Corruption(f"{path}: tensor {name!r}: shape {shape} of {code} is not {last - first} bytes")
    dtype = NAME_OF.get(code, code)
    if code in PACKED_PAIRS and shape and shape[-1] % 2 == 0:
        shape = [*shape[:-1], shape[-1] // 2]
    elif code in PACKED_PAIRS:  # some row ends within a byte: no tensor of torch has this shape
        dtype = code
    segment = FileSegment(start + first, start + last, stored_as(dtype))
    return SegmentViews(segment, (TensorView(name, dtype, tuple(shape), 0),))


def _width(code: str) -> int:
    size = width(NAME_OF[code]) if code in NAME_OF else None
    if size is None:
        raise ValueError(f"unknown dtype {code!r}")
    return size


def _check_complete(path: str, start: int, pieces: list[SegmentViews], size: int) -> None:
    """Check that data go without holes up to the end of the file, as the format demands."""
    at = start
    for piece in sorted(pieces, key=lambda piece: (piece.segment.start, piece.segment.stop)):
        if piece.segment.start != at:
            raise Corruption(f"{path}: {piece.segment.start - at} bytes at byte {at} belong to no tensor")
        at = piece.segment.stop
    if at != size:
        raise Corruption(f"{path}: {size - at} bytes after the last tensor belong to none")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result
