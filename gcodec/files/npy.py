"""``.npy``: finds the array in the file. The header stays as it is, so the file comes back byte for byte."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass

import numpy as np

from ..errors import Corruption, InvalidArgument
from .elements import MAX_SIZE, name_of, numpy_dtype, stored_as
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble
from .source import ByteSource

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 16


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
            Corruption: not a ``.npy`` header.
        """
        head = source.read(0, min(12, source.size)).tobytes()
        if head[:6] != MAGIC or len(head) < 12 or head[6] not in (1, 2, 3) or head[7] != 0:
            raise Corruption(f"{path}: is not a .npy file of version 1, 2 or 3")
        start = 10 if head[6] == 1 else 12
        stop = start + int.from_bytes(head[8:start], "little")
        if stop - start > MAX_HEADER or stop > source.size:
            raise Corruption(f"{path}: the .npy header is longer than {min(MAX_HEADER, source.size)} bytes")
        data = source.read(start, stop).tobytes()
        try:
            return cls(stop, *_fields(data.decode("utf-8" if head[6] == 3 else "latin-1")))
        except Exception as error:  # there is no list of what ast and numpy raise
            raise Corruption(f"{path}: malformed .npy header: {str(error)[:200]}") from error

    @property
    def stop(self) -> int:
        """The byte after the last of the data."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def plan_npy(path: str, source: ByteSource, name: str, dtype: str | None = None) -> FilePlan:
    """Return the plan of a ``.npy`` file.

    Args:
        path: under which the archive keeps the file.
        name: of the one tensor in it.
        dtype: what raw bits (uint8, uint16, void) really are, such as ``"bfloat16"``; None to take the header's word.
    """
    header = NpyHeader.read_from(source, path)
    if header.dtype.hasobject:
        return assemble(path, "bytes", source, [], note="kept as plain bytes: an array of Python objects")
    return assemble(path, "npy", source, [npy_segment(header, name, 0, dtype)])


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
        InvalidArgument: the widths differ, or ``dtype`` is a type of its own.
    """
    target = numpy_dtype(name)
    if target is None or target.itemsize != dtype.itemsize or dtype.kind not in "uV":
        raise InvalidArgument(f"an array of {dtype} cannot hold the bits of {name}")
    return name


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a row-major ``.npy`` file, which :meth:`NpyHeader.read_from` reads."""
    import io

    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _fields(text: str) -> tuple[np.dtype, tuple[int, ...], bool]:
    fields = ast.literal_eval(text.strip())
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise ValueError("it must have the fields descr, fortran_order and shape")
    shape, fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < MAX_SIZE for n in shape):
        raise ValueError(f"shape must be a tuple of sizes below 2^62, not {shape!r}")
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order must be True or False, not {fortran!r}")
    if len(shape) > 64:
        raise ValueError(f"shape must have at most 64 dimensions, not {len(shape)}")
    if fortran and max(_fortran_stride(shape), default=0) >= MAX_SIZE:
        raise ValueError("the strides of a Fortran array must be below 2^62")
    return np.lib.format.descr_to_dtype(fields["descr"]), shape, fortran


def _fortran_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[:axis]) for axis in range(len(shape)))
