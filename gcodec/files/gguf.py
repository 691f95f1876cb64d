"""``.gguf``, the model files of llama.cpp: finds the tensors, and leaves what lies before them as it is.

Everything is little-endian, and a string is its length (u64) and its bytes::

    "GGUF" | version u32 | tensors u64 | keys u64 | keys ... | tensors ... | padding | data

    key:    name string | type u32 | value        array: type u32 | number of items u64 | items ...
    tensor: name string | dimensions u32 | each u64, innermost first | type u32 | offset in the data u64
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from ..errors import Corruption, Unsupported
from .elements import MAX_SIZE, stored_as, width
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble
from .record_fields import RecordFields
from .source import ByteSource


def _fields(text: str) -> RecordFields:
    """Return what a block consists of: numbers of bytes; "f", a float16, and "D", a float32; "d", a float16 that is the
    scale of all integers, which come last, and "m" their least value."""
    words = text.split()
    sizes = tuple(_FLOAT_BYTES[word] if word in _FLOAT_BYTES else int(word) for word in words)
    kinds = tuple(_KINDS.get(_FLOAT_BYTES.get(word, 0)) for word in words)
    minimum = words.index("m") if "m" in words else None
    if "d" not in words:
        return RecordFields(sizes, kinds)
    return RecordFields(sizes, kinds, words.index("d"), minimum, len(words) - 1)


_FLOAT_BYTES, _KINDS = {"d": 2, "m": 2, "f": 2, "D": 4}, {2: "float16", 4: "float32"}
MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: More bytes before the data than any model has: vocabularies take some ten million.
MAX_HEADER = 1 << 28
#: More tensors than any model has, and more keys, strings and arrays: each takes its time.
MAX_TENSORS, MAX_VALUES = 1 << 20, 1 << 22
#: Types of tensors that are no blocks.
PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16"}
#: Types of quantized weights, in blocks of so many values, and what a block consists of: restored with their file, not
#: taken out alone.
BLOCKS = {
    2: ("Q4_0", 32, _fields("d 16")),
    3: ("Q4_1", 32, _fields("d m 16")),
    6: ("Q5_0", 32, _fields("d 4 16")),
    7: ("Q5_1", 32, _fields("d m 4 16")),
    8: ("Q8_0", 32, _fields("d 32")),
    9: ("Q8_1", 32, _fields("D D 32")),
    10: ("Q2_K", 256, _fields("16 64 f f")),
    11: ("Q3_K", 256, _fields("32 64 12 f")),
    12: ("Q4_K", 256, _fields("f f 12 128")),
    13: ("Q5_K", 256, _fields("f f 12 32 128")),
    14: ("Q6_K", 256, _fields("128 64 16 f")),
    15: ("Q8_K", 256, _fields("D 256 32")),
    16: ("IQ2_XXS", 256, _fields("f 64")),
    17: ("IQ2_XS", 256, _fields("f 64 8")),
    18: ("IQ3_XXS", 256, _fields("f 64 32")),
    19: ("IQ1_S", 256, _fields("f 32 16")),
    20: ("IQ4_NL", 32, _fields("d 16")),
    21: ("IQ3_S", 256, _fields("f 64 8 32 4")),
    22: ("IQ2_S", 256, _fields("f 32 32 8 8")),
    23: ("IQ4_XS", 256, _fields("f 2 4 128")),
    29: ("IQ1_M", 256, _fields("32 16 8")),
    34: ("TQ1_0", 256, _fields("48 4 f")),
    35: ("TQ2_0", 256, _fields("64 f")),
    39: ("MXFP4", 32, _fields("1 16")),
    40: ("NVFP4", 64, _fields("4 32")),
    41: ("Q1_0", 128, _fields("f 16")),
}
#: Types of values of keys: their bytes.
VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT32, STRING, ARRAY = 4, 8, 9
#: The key that says to which multiple of bytes each tensor is moved, and what holds without it.
ALIGNMENT, DEFAULT_ALIGNMENT = b"general.alignment", 32
#: Arrays in each other, more than any writer makes.
MAX_DEPTH = 8
MAX_DIMENSIONS = 4


def plan_gguf(path: str, source: ByteSource) -> FilePlan:
    """Return the plan of a ``.gguf`` file. Shapes have the innermost dimension last, as those of numpy and torch.

    Raises:
        Corruption: The header is malformed; tensors overlap or lie outside the file.
        Unsupported: It is big-endian, of another version than 2 and 3, or has a tensor of a type that is not known.
    """
    header = _Header(path, source)
    if header.take(len(MAGIC)) != MAGIC:
        raise Corruption(f"{path}: does not begin as a .gguf file")
    version = header.uint32()
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        what, number = ("big-endian .gguf", swapped) if swapped in VERSIONS else (".gguf", version)
        raise Unsupported(
            f"{path}: is a {what} file of version {number}; only little-endian ones of versions 2 and 3 "
            "can be taken apart"
        )
    n_tensors, n_keys = header.uint64(), header.uint64()
    if n_tensors > MAX_TENSORS:
        raise Corruption(f"{path}: a .gguf file has at most {MAX_TENSORS} tensors, not {n_tensors}")
    alignment = DEFAULT_ALIGNMENT
    for _ in range(n_keys):
        name, kind = header.string(), header.uint32()
        if name == ALIGNMENT and kind == UINT32:
            alignment = header.uint32()
        else:
            header.skip_value(kind)
    if not alignment:
        raise Corruption(f"{path}: general.alignment must not be 0")
    tensors = [_tensor(header) for _ in range(n_tensors)]
    start = -(-header.at // alignment) * alignment
    return assemble(path, "gguf", source, [_piece(path, tensor, start) for tensor in tensors])


class _Tensor(NamedTuple):
    """A tensor as the header has it; ``offset`` is in the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Header:
    """Reads a header front to back, some of it at a time.

    Attributes:
        path: The file's, for errors.
        at: Where it is read next.
    """

    def __init__(self, path: str, source: ByteSource) -> None:
        self.path, self._source, self._n_values = path, source, 0
        self._data, self._start, self.at = b"", 0, 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > min(self._source.size, MAX_HEADER) - self.at:
            raise Corruption(f"{self.path}: the .gguf header ends at byte {self.at}, before {size} more bytes")
        at = self.at - self._start
        if at + size > len(self._data):
            self._start, at = self.at, 0
            stop = min(self._source.size, self.at + max(size, 1 << 20))
            self._data = self._source.read(self.at, stop).tobytes()
        self.at += size
        return self._data[at : at + size]

    def uint32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def uint64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> bytes:
        return self.take(self.uint64())

    def skip_value(self, kind: int, depth: int = 0) -> None:
        """Passes over a value of a key."""
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise Corruption(
                f"{self.path}: the keys of a .gguf file have at most {MAX_VALUES} values, but more were "
                f"counted up to byte {self.at}"
            )
        if kind in VALUE_BYTES:
            self._skip(VALUE_BYTES[kind])
        elif kind == STRING:
            self._skip(self.uint64())
        elif kind == ARRAY and depth < MAX_DEPTH:
            kind, n = self.uint32(), self.uint64()
            if kind in VALUE_BYTES:
                self._skip(n * VALUE_BYTES[kind])
                return
            for _ in range(n):
                self.skip_value(kind, depth + 1)
        else:
            raise Corruption(
                f"{self.path}: the .gguf header has a value of the unknown type {kind}, before byte {self.at}"
            )

    def _skip(self, size: int) -> None:
        if size > min(self._source.size, MAX_HEADER) - self.at:
            self.take(size)
        self.at += size
        if self.at - self._start > len(self._data):
            self._data, self._start = b"", self.at


def _tensor(header: _Header) -> _Tensor:
    """Return the next tensor of a header."""
    name, n_dimensions = header.string().decode(errors="replace"), header.uint32()
    if n_dimensions > MAX_DIMENSIONS:
        raise Corruption(
            f"{header.path}: tensor {name!r:.80} has {n_dimensions} dimensions; {MAX_DIMENSIONS} are the most"
        )
    sizes = struct.unpack(f"<{n_dimensions}Q", header.take(8 * n_dimensions))
    return _Tensor(name, sizes[::-1], header.uint32(), header.uint64())


def _piece(path: str, tensor: _Tensor, start: int) -> SegmentViews:
    """Return a tensor as a segment of the file, whose data begin at ``start``."""
    name, shape, kind, offset = tensor
    n_values = math.prod(shape)
    fields = None
    if kind in PLAIN:
        dtype = PLAIN[kind]
        block, size = 1, width(dtype) or 1
    elif kind in BLOCKS:
        dtype, block, fields = BLOCKS[kind]
        size = fields.record_bytes
    else:
        raise Unsupported(f"{path}: tensor {name!r:.80} is of type {kind}, which is not known; update gcodec")
    if (shape[-1] if shape else 1) % block or max(n_values // block * size, offset, *shape) >= MAX_SIZE:
        raise Corruption(
            f"{path}: tensor {name!r:.80}: {list(shape)} values of {dtype} at byte {offset} are no whole "
            "number of blocks, or too many"
        )
    start += offset
    segment = FileSegment(start, start + n_values // block * size, stored_as(dtype), fields=fields)
    return SegmentViews(segment, (TensorView(name, dtype, shape, 0),))
