"""``.npy``: finds the array in the file. The header stays as it is, so the file comes back byte for byte."""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import warnings
from dataclasses import dataclass

import numpy as np

from ..errors import Corruption, InvalidArgument
from .elements import MAX_SIZE, name_of, numpy_dtype, stored_as
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble
from .source import ByteSource

MAGIC = np.lib.format.MAGIC_PREFIX
#: Begins the note about a file that is kept without a look at its values.
AS_BYTES = "kept as plain bytes: "
VERSIONS = ((1, 0), (2, 0), (3, 0))
MAX_HEADER = 1 << 16
#: What Python's parser and numpy raise on a header that is none; MemoryError where it is too deep for the parser.
_MALFORMED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    tokenize.TokenError,
)
#: A header that no parser finds too deep: texts, numbers and names in brackets, of which it refuses too many itself.
_PLAIN = re.compile(rb"""(?:[\s,:(){}\[\]]|\d++L?|True|False|None|'[^'\\]*+'|"[^"\\]*+")*+""")


@dataclass(frozen=True)
class NpyHeader:
    """The fields of a ``.npy`` header; ``start`` is where the data begins."""

    start: int
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool

    @classmethod
    def read_from(cls, source: ByteSource, path: str) -> NpyHeader:
        """Reads the header (NEP 1, versions 1.0 to 3.0).

        Raises:
            Corruption: Not a ``.npy`` header.
        """
        head, begin = _read_head(source)
        stream = io.BytesIO(head)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of numbers as Python 2 wrote them
                version = np.lib.format.read_magic(stream)
                # Versions 2 and 3 differ in how names of fields are encoded, which are of no interest here.
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                if version not in VERSIONS:
                    raise ValueError(f"version {version[0]}.{version[1]} is not known")
                shape, fortran, dtype = read(stream, max_header_size=MAX_HEADER)
            return cls(stream.tell(), dtype, _checked(shape, fortran), fortran)
        except _MALFORMED as error:
            if isinstance(error, MemoryError) and _PLAIN.fullmatch(head, begin):
                raise
            raise Corruption(f"{path}: malformed .npy header: {str(error)[:200]}") from error

    @property
    def stop(self) -> int:
        """The byte after the last of the data."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def plan_npy(path: str, source: ByteSource, name: str, dtype: str | None = None) -> FilePlan:
    """Return the plan of a ``.npy`` file.

    Args:
        path: Under which the archive keeps the file.
        name: Of the one tensor in it.
        dtype: What raw bits (uint8, uint16, void) really are, such as ``"bfloat16"``; None to take the header's word.
    """
    header = NpyHeader.read_from(source, path)
    if header.dtype.hasobject:
        return assemble(path, "bytes", source, [], note=f"{AS_BYTES}an array of Python objects")
    try:
        segment = npy_segment(header, name, 0, dtype)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None
    return assemble(path, "npy", source, [segment])


def npy_segment(
    header: NpyHeader, name: str, at: int, dtype: str | None = None, crc_at: tuple[int, ...] = ()
) -> SegmentViews:
    """Return the array of a ``.npy`` that begins at byte ``at`` of a larger file, with a checksum at ``crc_at``."""
    element = reinterpreted(header.dtype, dtype) if dtype else name_of(header.dtype)
    stride = _fortran_stride(header.shape) if header.fortran and len(header.shape) > 1 else None
    segment = FileSegment(at + header.start, at + header.stop, stored_as(element), at, crc_at)
    return SegmentViews(segment, (TensorView(name, element, header.shape, 0, 0, stride),))


def reinterpreted(dtype: np.dtype, name: str) -> str:
    """Return ``name``, if raw bits of numpy type ``dtype`` can stand for it.

    Raises:
        InvalidArgument: The widths differ, or ``dtype`` is a type of its own.
    """
    target = numpy_dtype(name)
    if target is None or target.itemsize != dtype.itemsize or dtype.kind not in "uV":
        kind = "unsigned integers" if target is None else f"arrays of uint{8 * target.itemsize}"
        raise InvalidArgument(f"an array of {dtype} cannot hold the bits of {name}; dtype={name!r} is for {kind}")
    return name


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a row-major ``.npy`` file, which :meth:`NpyHeader.read_from` reads."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _read_head(source: ByteSource) -> tuple[bytes, int]:
    """Return the bytes up to the end of the header, as far as they are there, and where its text begins."""
    start = source.read(0, min(source.size, 12)).tobytes()
    begin = 10 if start[6:7] == b"\1" else 12
    size = int.from_bytes(start[8:begin], "little")
    return source.read(0, min(source.size, begin + min(size, MAX_HEADER + 1))).tobytes(), begin


def _checked(shape: tuple[int, ...], fortran: bool) -> tuple[int, ...]:
    """Return a shape; raises ValueError for one that an array cannot have."""
    if not all(type(n) is int and 0 <= n < MAX_SIZE for n in shape):
        raise ValueError(f"shape must be a tuple of sizes below 2^62, not {shape!r}")
    if len(shape) > 64:
        raise ValueError(f"shape must have at most 64 dimensions, not {len(shape)}")
    if fortran and max(_fortran_stride(shape), default=0) >= MAX_SIZE:
        raise ValueError("the strides of a Fortran array must be below 2^62")
    return shape


def _fortran_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[:axis]) for axis in range(len(shape)))
